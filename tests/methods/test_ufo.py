"""Evidence for ufo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from collections.abc import Sequence

import evidence
import pytest
from dialogues import dialogue
from hand import batch_of, close
from looking_back import tasks_of
from small_batches import group

from gruppo.data import Episode, Status, Use
from gruppo.envs.answer import Answer
from gruppo.envs.wrappers import Retry
from gruppo.methods import method
from gruppo.methods.ufo import MostVaried, Retries
from gruppo.stages import Context
from gruppo.stages.check import problems
from gruppo.stages.curriculum import Uniform
from gruppo.tasks import load_task

test_laws = evidence.laws("ufo")
test_asks = evidence.asks("ufo")
test_terms = evidence.terms("ufo")
test_planted_mistakes = evidence.planted("ufo")
test_equivalences = evidence.equivalences("ufo")
test_resume = evidence.resume("ufo")

SUMS = load_task("addition", level=1)


def played(answers: Sequence[str], tries: int = 5) -> tuple[list[str], dict[str, float]]:
    """What is seen after each answer to the first task ("right" is its answer), and what is paid at the end."""
    env, task = Retry(Answer(SUMS.scorer), tries=tries), SUMS.train[0]
    env.reset(task)
    seen = [env.step(task.answer if a == "right" else a) for a in answers]
    assert [s.done for s in seen] == [*[False] * (len(seen) - 1), True] and not any(s.rewards for s in seen[:-1])
    return [s.text for s in seen[:-1]], dict(seen[-1].rewards)


def test_ufo_card() -> None:
    """Card S080: two equal wrong answers, then the right one: .25 − .5 · (1 − 2/3) = .0833; five equal wrong ones:
    −.5 · (1 − 1/5) = −.4; right at once: 1."""
    [tries] = {ask.how["tries"] for ask in method("ufo").curriculum(Context(prompts=2), SUMS.train)}
    told, paid = played(["3x", "3 X", "right"], tries)
    assert paid == pytest.approx({"task": 0.25, "repeated": -0.5 / 3}) and sum(paid.values()) == pytest.approx(
        0.0833, abs=1e-4
    )
    assert len(told) == 2 and len(set(told)) == 1, "one constant sentence, and the same task again"
    assert sum(played(["no"] * 5, tries)[1].values()) == pytest.approx(-0.4)
    assert sum(played(["right"], tries)[1].values()) == 1.0
    assert tries == 5 and sum(played(["no"], 1)[1].values()) == 0.0


def test_ufo_return_is_on_the_last_turn_and_all_tokens_share_it() -> None:
    """γ = λ = 1 and a critic that says 0: the target of every token of three tries is .25 − 1/6."""
    last = {"tokens": 2, "reward": {"task": 0.25, "repeated": -0.5 / 3}}
    batch = batch_of(
        [dialogue(0, [2, 1, last], None), dialogue(1, [1], 1.0)],
        value_critic_N=[0.0] * 6, logp_old_N=[-1.0] * 6, logp_ref_N=[-1.0] * 6,
    )  # fmt: skip
    found = method("ufo").credit(Context(), batch)
    close(found["ret_N"].tolist(), [0.25 - 0.5 / 3] * 5 + [1.0])
    assert len(set(found["adv_N"].tolist()[:5])) == 1 and found["adv_N"][0] < found["adv_N"][5]


def chosen(episodes: list[Episode], share: float = 0.25, seed: int = 0) -> list[str]:
    keep, again = MostVaried(share).episodes(Context(seed=seed), episodes)
    assert again == []
    return sorted({e.group for e, k in zip(episodes, keep, strict=True) if k})


def four() -> list[Episode]:
    """Deviations 0, .5, .25 and .1 of groups a, b, c, d."""
    told = {"a": [1.0, 1.0], "b": [0.0, 1.0], "c": [0.5, 1.0], "d": [0.2, 0.4]}
    return [e for i, (name, r) in enumerate(told.items()) for e in group(r, name, 10 * i)]


def test_ufo_learns_from_the_groups_that_vary_most() -> None:
    assert [chosen(four(), share) for share in (0.25, 0.26, 0.75, 1.0)] == [
        ["b"], ["b", "c"], ["b", "c", "d"], ["a", "b", "c", "d"],
    ]  # fmt: skip
    assert chosen(four(), 0.0) == ["b"], "at least one"
    assert chosen(list(reversed(four()))) == ["b"] and chosen([]) == []
    penalised = [dialogue(0, [{"reward": {"repeated": -9.0}}], 1.0, "p"), dialogue(1, [1], 1.0, "p")]
    assert chosen([*four(), *penalised], 0.2) == ["p"], "the whole return, not the task alone"


def test_ufo_counts_who_is_in_statistics() -> None:
    """Failed and unused rollouts make no group vary, and a group of them alone is not counted; they share its fate."""
    lost = [
        dialogue(90, [1], None, "a", status=Status.TIMEOUT),
        dialogue(91, [1], 5.0, "a", use=Use.NONE),
        dialogue(92, [1], 5.0, "a", use=Use.APART),
        dialogue(93, [1], None, "z", status=Status.ENV_ERROR),
    ]
    assert chosen([*four(), *lost]) == ["b"]
    with_b = [*four(), dialogue(94, [1], None, "b", status=Status.TIMEOUT)]
    assert MostVaried().episodes(Context(), with_b)[0][-1]


def test_ufo_ties_are_drawn_by_lot() -> None:
    """The same in every order and at every call; another one with another seed."""
    equal = [e for i, name in enumerate("abcdefgh") for e in group([1.0, 1.0], name, 10 * i)]
    picks = [chosen(equal, seed=seed) for seed in range(20)]
    assert all(len(p) == 2 for p in picks) and len({tuple(p) for p in picks}) > 3
    assert chosen(list(reversed(equal)), seed=3) == picks[3]


def test_ufo_asks_for_the_same_tasks_as_uniform() -> None:
    tasks, ctx = tasks_of(a=5), Context(step=1, prompts=3, samples=2)
    mine, plain = Retries(tries=3)(ctx, tasks), Uniform()(ctx, tasks)
    assert [(a.task, a.group, a.index) for a in mine] == [(a.task, a.group, a.index) for a in plain]
    assert {a.how["tries"] for a in mine} == {3}


def test_ufo_refuses_a_group_of_one_and_no_try() -> None:
    assert any("does not vary" in said for said in problems(method("ufo"), Context(), samples=1))
    with pytest.raises(ValueError, match="tries"):
        Retries(tries=0)
