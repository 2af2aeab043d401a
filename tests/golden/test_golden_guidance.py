"""Worked numbers of llds, kdrl, chord and rl_plus: what is held, taught and imitated.

Numbers marked "card" were worked from the authors' code or the paper's example; the others are plain sums here.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hand import Status, Use, answer, batch_of, by_expert, column, objective, worked

from gruppo.data import Batch, Episode, Source, Turn
from gruppo.data import Sequence as Tokens
from gruppo.engines import NativeEngine
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.chord import PHI, ExpertLikelihood, WithExperts
from gruppo.methods.kdrl import TeacherKL
from gruppo.methods.llds import HoldLikelihood
from gruppo.methods.rl_plus import ExpertInGroup, MixedImportance
from gruppo.policies import load_policy, load_tokenizer
from gruppo.stages import Ask, Context, Method, Prompt, Role, Sampling, Schedule, Stats
from gruppo.stages.check import check_first_batch, problems
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.prompting import prompts_for
from gruppo.stages.recorded import RightExperts, expert, expert_N
from gruppo.stages.walk import Walk
from gruppo.tasks import Task

FAILED = {"status": Status.ENV_ERROR}


def close(a: object, b: object, tol: float = 1e-12) -> None:
    assert a == pytest.approx(b, abs=tol, rel=0)


def group(rewards: Sequence[float | None], tokens: Any = 1, name: str = "g", first: int = 0) -> list[Episode]:
    lengths = [tokens] * len(rewards) if isinstance(tokens, int) else tokens
    return [answer(first + i, name, n, r) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]


# llds


def turns(uid: int, reward: float, *lengths: int) -> Episode:
    """An answer of several turns, one token of an environment before each."""
    source, spans = [np.full(2, Source.ENV, np.int8)], []
    for n in lengths:
        start = sum(map(len, source)) + 1
        source += [np.full(1, Source.ENV, np.int8), np.full(n, Source.POLICY, np.int8)]
        spans.append((start, start + n))
    who = np.concatenate(source)
    logp = np.where(who == Source.POLICY, -1.0, np.nan).astype(np.float32)
    version = np.where(who == Source.POLICY, 0, -1).astype(np.int32)
    tokens = Tokens(np.arange(1, len(who) + 1), who, logp, version, prompt_len=spans[0][0])
    return Episode(uid, "t", "g", [tokens], [Turn(a, b, 0) for a, b in spans], {"task": reward}, text="")


def held(gate: Any, episodes: list[Episode], fall: list[float], adv: list[float]) -> tuple[float, list[float]]:
    """The penalty alone, and its slopes."""
    batch = batch_of(episodes, logp_old_N=[-1.0] * len(fall), adv_N=adv)
    [term] = worked(HoldLikelihood(gate=gate), batch, **(stats := _leaf([-1.0 - d for d in fall]))).values()
    total = term.total(batch)
    total.backward()
    return float(total.detach()), stats.logp_N.grad.tolist()


def _leaf(logp: list[float]) -> Stats:
    return Stats(logp_N=torch.tensor(logp, dtype=torch.float64, requires_grad=True))


def test_llds_card() -> None:
    """Card: falls of (.3, −.5) add up to less than 0: nothing; of (.3, −.1): .3 of the first token, of two tokens."""
    value, slope = held("turn", group([1.0], 2), [0.3, -0.5], [0.0, 0.0])
    close([value, *slope], [0.0, 0.0, 0.0])
    value, slope = held("turn", group([1.0], 2), [0.3, -0.1], [0.5, 0.5])
    close([value, *slope], [-0.2 * 0.3 / 2, 0.1, 0.0])


def test_llds_gates() -> None:
    """Two turns: the first fell, the second rose by more. By turns the first is held, by the answer nothing is."""
    falls, up = [0.3, 0.1, -0.9], [1.0] * 3
    value, slope = held("turn", [turns(0, 1.0, 2, 1)], falls, up)
    close([value, *slope], [-0.2 * 0.4 / 3, 0.2 / 3, 0.2 / 3, 0.0])
    assert held("answer", [turns(0, 1.0, 2, 1)], falls, up) == (0.0, [0.0] * 3)
    value, slope = held("answer", [turns(0, 1.0, 2, 1)], [0.3, -0.2, 0.2], up)
    close([value, *slope], [-0.2 * 0.5 / 3, 0.2 / 3, 0.0, 0.2 / 3])


def test_llds_edges() -> None:
    """Bad answers may fall, and their tokens are counted; tokens of failed ones are not; no fall, and rounding, have
    no slope."""
    two = [*group([1.0, 0.0], [1, 2]), answer(2, "g", 3, None, **FAILED)]
    value, slope = held("turn", two, [0.3, 0.5, 0.5, 9.0, 9.0, 9.0], [1.0, -1.0, -1.0, 0.0, 0.0, 0.0])
    close([value, *slope], [-0.2 * 0.3 / 3, 0.2 / 3, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert held("turn", group([1.0], 2), [0.0, 1e-7], [1.0, 1.0]) == (0.0, [0.0, 0.0])
    with pytest.raises(ValueError, match=r"gate='turns'.*nearest: turn"):
        HoldLikelihood(gate="turns")  # type: ignore[arg-type]


# kdrl


def taught(
    episodes: list[Episode], logp: list[float], teacher: list[float], **fields: Any
) -> tuple[float, list[float]]:
    batch = batch_of(episodes, logp_teacher_N=teacher)
    [term] = worked(TeacherKL(teacher_coef=1.0, **fields), batch, **(stats := _leaf(logp))).values()
    total = term.total(batch)
    total.backward()
    return float(total.detach()), stats.logp_N.grad.tolist()


def test_kdrl_card() -> None:
    """Card: log π = −1, log π_T = −.5: k2 is .125, and its slope −.5: the likelihood goes up."""
    half = math.exp(0.5)
    for estimator, value, slope in (("k2", -0.125, 0.5), ("k1", 0.5, -1.0), ("k3", 1.5 - half, half - 1)):
        got = taught(group([0.0]), [-1.0], [-0.5], estimator=estimator)
        close([got[0], *got[1]], [value, slope])


def test_kdrl_masks() -> None:
    """A group with a right answer, one without; failed answers are out; masked tokens stay in the count of three."""
    episodes = [*group([1.0, 0.0], name="a"), *group([0.0], name="b", first=2), answer(3, "b", 1, 1.0, **FAILED)]
    logp, teacher = [-1.0] * 4, [-0.5, -2.0, -3.0, 0.0]
    pulls = [0.5, -1.0, -2.0, 0.0]
    for mask, some in (("nothing", (0, 1, 2)), ("right_answers", (1, 2)), ("solved_groups", (2,))):
        value, slope = taught(episodes, logp, teacher, mask=mask)
        close(value, -sum(0.5 * pulls[i] ** 2 for i in some) / 3)
        close(slope, [pulls[i] / 3 if i in some else 0.0 for i in range(4)])


def test_kdrl_schedule() -> None:
    """The paper's annealing: 5e-3 at first, 1e-3 from step 280 on."""
    falling = Schedule("linear(0.005, 0.001, steps=280)")
    assert [round(Context(step=s, steps=400).at(falling), 6) for s in (0, 140, 280, 399)] == [
        0.005,
        0.003,
        0.001,
        0.001,
    ]


def test_kdrl_wants_a_teacher() -> None:
    """A teacher that is a copy of the policy would teach nothing: the run is refused until one is given."""
    kdrl = method("kdrl")
    [said] = problems(kdrl, Context(), samples=4)
    assert said == (
        "kdrl: teacher_kl in penalties needs logp@teacher, and there is no model for 'teacher' yet: a copy of the "
        "policy would teach it nothing. Give a model with the policy's tokenizer: method.cast.teacher=FOLDER, such as "
        "the runs/NAME/policy of a run, or a name that model= takes."
    )
    assert problems(kdrl.but(cast={"teacher": Role(start="tiny")}), Context(), samples=4) == []
    assert problems(kdrl.but(penalties=()), Context(), samples=4) == []  # nobody needs it: it is not built


def test_kdrl_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"mask='right_answer' is not one of its values.*nearest: right_answers"):
        TeacherKL(mask="right_answer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="estimator='full' is not one of its values"):
        TeacherKL(estimator="full")  # type: ignore[arg-type]
    shades = batch_of(group([0.0, 0.5, 1.0]))
    check_first_batch(method("kdrl"), shades)
    masked = method("kdrl").but(penalties=(TeacherKL(mask="right_answers"),))
    with pytest.raises(ValueError, match=r"teacher_kl in penalties cannot learn from the first batch: rewards have 3"):
        check_first_batch(masked, shades)


# chord


def test_chord_weights() -> None:
    """Card: φ has its peak of .25 at p = .5 and is 0 at both ends; CHORD-μ's weight at steps 0, 100 and 200."""
    p = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    close(PHI["uncertain"](p).tolist(), [0.0, 0.1875, 0.25, 0.0])
    close(PHI["one"](p).tolist(), [1.0] * 4)
    close(PHI["probability"](p).tolist(), p.tolist())
    mu = Schedule("cosine(0.9, 0.05, steps=200)")
    close([Context(step=s, steps=300).at(mu) for s in (0, 100, 200, 250)], [0.9, 0.475, 0.05, 0.05])
    with pytest.raises(ValueError, match=r"phi='certain'.*nearest: uncertain"):
        ExpertLikelihood(phi="certain")  # type: ignore[arg-type]


LOGP, OLD = [-0.5, -1.0, -0.7, -0.2, -1.5], [-0.9, -1.0, -0.6, -0.2, -0.4]


def mixed(use: Use) -> Batch:
    """Two sampled answers, and an expert's of two tokens."""
    return batch_of([*group([1.0, 0.0], [2, 1]), by_expert(answer(2, "g", 2, 1.0), use)], logp_old_N=OLD)


def test_chord_two_means() -> None:
    """Three tokens of the policy, two of the expert, each divided by their own number."""
    both = (ClippedSurrogate(mean="token", coef=0.75), ExpertLikelihood(expert_coef=0.25))
    value, slope = objective(method("chord").but(objective=both, select=()), mixed(Use.APART), logp_N=LOGP)
    a = math.sqrt(0.5) / (1 + math.sqrt(2) * 1e-6)
    r = [math.exp(x - y) for x, y in zip(LOGP, OLD, strict=True)]
    own = [1.2 * a, r[1] * a, -r[2] * a]  # the first is clipped
    p = [math.exp(x) for x in LOGP[3:]]
    theirs = [q * (1 - q) * x for q, x in zip(p, LOGP[3:], strict=True)]
    close(value, 0.75 * sum(own) / 3 + 0.25 * sum(theirs) / 2)
    close(slope["logp_N"], [0.0, 0.25 * own[1], 0.25 * own[2], *(0.125 * q * (1 - q) for q in p)])


def test_chord_without_one_of_the_two() -> None:
    """A batch without experts, or of experts only: the other term is 0, and nothing is NaN."""
    chord = method("chord").but(select=())
    alone = batch_of([by_expert(answer(0, "g", 2, 1.0), Use.APART)], logp_old_N=OLD[:2])
    value, slope = objective(chord, alone, logp_N=LOGP[:2])
    p = [math.exp(x) for x in LOGP[:2]]
    close(slope["logp_N"], [0.1 * q * (1 - q) / 2 for q in p])
    assert math.isfinite(value)
    none = batch_of(group([1.0, 0.0], [2, 1]), logp_old_N=OLD[:3])
    plain = method("grpo").but(objective=ClippedSurrogate(mean="token"), penalties=())
    close(objective(chord, none, logp_N=LOGP[:3])[0], 0.9 * objective(plain, none, logp_N=LOGP[:3])[0])


def test_given_tokens_of_an_expert_are_not_imitated() -> None:
    """Only what stands in an answer of the expert's own."""
    hinted = answer(0, "g", 3, 1.0)
    hinted.sequences[0].source[2] = Source.EXPERT
    batch = batch_of([hinted, by_expert(answer(1, "g", 2, 1.0)), by_expert(answer(2, "g", 1, 1.0), Use.NONE)])
    assert column(expert_N(batch)) == [False] * 3 + [True] * 2 + [False]


# rl_plus


def test_rl_plus_card() -> None:
    """Card: π_old = .1, π = .2: ω = .55, w = .6154, weight .8944; at π = 1 the weight is 0."""
    old, now = [math.log(0.1), 0.0], [math.log(0.2), 0.0]
    batch = batch_of([by_expert(answer(0, "g", 2, 1.0))], logp_old_N=old, adv_N=[1.0, 1.0])
    [term] = worked(MixedImportance(mean="episode_sum"), batch, logp_N=now).values()
    w, weight = 0.4 / (0.1 + 0.55), math.sqrt(0.8)
    assert (round(w, 4), round(weight, 4)) == (0.6154, 0.8944)
    close(term.value.tolist(), [w * weight, 0.0])


def test_rl_plus_group() -> None:
    """The expert is in the mean of the group; the policy's ratio is not clipped; 1/3 answers, 1/10 the longest."""
    m = method("rl_plus").but(objective=MixedImportance(mean="episode_sum/10"), penalties=(), select=())
    value, slope = objective(m, mixed(Use.LEARN), logp_N=LOGP)
    up, down = 1 / 3, -2 / 3
    r = [math.exp(x - y) for x, y in zip(LOGP, OLD, strict=True)]
    p, old = [math.exp(x) for x in LOGP], [math.exp(x) for x in OLD]
    theirs = [2 * p[i] / (1.5 * old[i] + 0.5) * math.sqrt(1 - p[i]) * up for i in (3, 4)]
    terms = [r[0] * up, r[1] * up, r[2] * down, *theirs]
    close(value, sum(terms) / 30)
    close(slope["logp_N"], [t / 30 for t in terms])  # each is proportional to π of now: its slope is its value


# experts in a run


TASKS = [Task(f"t{i}", f"{i}+1=", str(i + 1), 1, "desk", "steps") for i in range(3)]


def rolled_out(rollout: Any, samples: int, seed: int = 0) -> list[Episode]:
    tokenizer, policy = load_tokenizer("tiny-random"), load_policy("tiny-random")
    engine = NativeEngine({"policy": policy}, eos=tokenizer.eos)
    ctx = Context(engine=engine, tokenizer=tokenizer, seed=seed, sampling=Sampling(max_tokens=4))
    ctx = Walk(method("grpo"), read=lambda role, batch, needs: {}).opened(ctx)  # without a judge
    prompts: list[Prompt] = [p for t in TASKS for p in prompts_for(ctx, (), Ask(t, samples))]
    return asyncio.run(rollout(ctx, prompts))


def test_experts_beside_the_samples() -> None:
    """Three samples a prompt and an expert apart, who writes the answer and not the steps; none has a reward yet."""
    made = rolled_out(WithExperts(), 3)
    experts = [e for e in made if e.source == Source.EXPERT]
    assert [e.group for e in made if e.source == Source.POLICY] == [t.uid for t in TASKS for _ in range(3)]
    assert [e.text for e in experts] == [t.answer for t in TASKS] and {e.use for e in experts} == {Use.APART}
    assert len({e.uid for e in made}) == len(made) and all(e.reward == {} for e in made)
    assert [e for e in rolled_out(WithExperts(expert_share=0.0), 3) if e.source == Source.EXPERT] == []
    some = [len(rolled_out(WithExperts(expert_share=0.5), 1, seed)) - 3 for seed in range(6)]
    assert set(some) <= {0, 1, 2, 3} and 0 < sum(some) < 18


def test_an_expert_in_the_group() -> None:
    """Two samples and an expert of three, learned from like the others; the samples are those of a group of two."""
    made, plain = rolled_out(ExpertInGroup(), 3), rolled_out(method("grpo").rollout, 2)
    experts = [e for e in made if e.source == Source.EXPERT]
    assert [e.group for e in experts] == [t.uid for t in TASKS] and {e.use for e in experts} == {Use.LEARN}
    assert [e.uid for e in made if e.source == Source.POLICY] == [e.uid for e in plain]
    assert [len([e for e in made if e.group == t.uid]) for t in TASKS] == [3, 3, 3]


def test_a_task_without_an_answer_is_refused() -> None:
    ctx = Context(tokenizer=load_tokenizer("tiny-random"), sampling=Sampling(max_tokens=4))
    [prompt] = prompts_for(ctx, (), Ask(replace(TASKS[0], answer=""), 1))
    with pytest.raises(ValueError, match="'t0' has no recorded answer"):
        expert(ctx, prompt, 0, Use.APART)


def test_wrong_experts_are_dropped() -> None:
    """By the task's own component; sampled answers stay, whatever they are worth; an expert who was not judged goes."""
    wrong, right = by_expert(answer(0, "g", 1, 0.0)), by_expert(answer(1, "g", 1, 1.0))
    right.reward["overlong"] = -0.5
    lost, own = by_expert(answer(2, "g", 1, None, **FAILED)), answer(3, "g", 1, 0.0)
    assert RightExperts().episodes(Context(), [wrong, right, lost, own]) == ([False, True, False, True], [])


@pytest.mark.parametrize("name", ["chord", "rl_plus"])
def test_taking_one_room_takes_both(name: str) -> None:
    """A rollout with experts in a method that has no rule for them would be ignored: they come together."""
    m: Method = method(name)
    assert m.together == ("rollout", "objective")
    assert any("expert" in s for s in problems(method("grpo").but(rollout=m.rollout), Context(), samples=4))
    assert World(m, 0).ctx.samples == 4
