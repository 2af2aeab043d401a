"""Evidence for archer: laws, mistakes, equivalences, resume, and targets, advantages and updates worked by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import evidence
import numpy as np
import pytest
import torch
from hand import close, objective, worked
from torch import Tensor
from turn_by_turn import Step, packed, played

from gruppo.data import Batch, Episode, Source, Status, Use, single_turn
from gruppo.lab.laws import fields
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods.archer import (
    ARCHER,
    CriticThenActor,
    TemporalDifference,
    UtteranceAdvantage,
    UtteranceBuffer,
    chosen,
    spoken,
    states,
    transitions,
)
from gruppo.stages import Ask, Context, Role
from gruppo.stages.check import problems
from gruppo.stages.credit import GroupCentred
from gruppo.stages.objective import PolicyGradient
from gruppo.stages.play import prompt_before
from gruppo.stages.replay import Recent
from gruppo.tasks import Task

test_laws = evidence.laws("archer")
test_asks = evidence.asks("archer")
test_terms = evidence.terms("archer")
test_planted_mistakes = evidence.planted("archer")
test_equivalences = evidence.equivalences("archer")
test_resume = evidence.resume("archer")

SMALL = ARCHER.but(update=CriticThenActor(critic_epochs=2, actor_epochs=1, utterances=6, warmup=0))
LEARNED = UtteranceAdvantage(token_baseline="learned")
Row = Sequence[float]


def wide(*rows: Row) -> list[list[float]]:
    """Outputs of the critic: Q1, Q2, V1, V2, v; those that are left out are 0."""
    return [[*row, *[0.0] * (5 - len(row))] for row in rows]


def marked(episodes: Sequence[Episode], **columns: Any) -> Batch:
    """A batch with the columns of the credit: all turns are chosen, and nothing has a baseline."""
    batch = packed(episodes)
    none_N, one_K = torch.zeros_like(batch.weight_N), torch.ones_like(batch.reward_K)
    return batch.with_columns(**{"chosen_K": one_K, "whole_N": none_N, "foreseen_N": none_N} | columns)


def errors(batch: Batch, gamma: float = 0.95, **rows: Any) -> dict[str, list[float]]:
    """Errors of turns by name, where they count; what is not given is 0."""
    size = {"N": batch.size("N"), "K": batch.size("K")}
    names = ("value_K", "value_after_K", "value_N", "value_target_K", "value_target_after_K")
    stats: dict[str, Any] = {n: torch.zeros(size[n[-1]], 5, dtype=torch.float64) for n in names}
    stats |= {n: torch.tensor(x, dtype=torch.float64) for n, x in rows.items()}
    found = worked(TemporalDifference(gamma), batch, **stats)
    return {name: w.value[w.term.over].tolist() for name, w in found.items()}


# the critic


@pytest.mark.parametrize("apart", [False, True])
def test_archer_card(apart: bool) -> None:
    """Card S061: r = 1, γ = .95, V' = .5 give a target of 1.475 for Q; after the last turn it is r, here 2."""
    batch = marked([played(0, [Step(reward=1.0, tokens=2), Step(reward=2.0)], apart=apart)])
    slow = wide([9, 9, 9, 9], [9, 9, 0.5, 0.5])  # only V where the second turn begins is read
    close(errors(batch, value_target_K=slow, value_after_K=wide([1.475, 1.475], [2, 2]))["q"], [0.0, 0.0])
    # each Q has the V of its own number: targets 1.475 and 1.095
    two = errors(batch, value_target_K=wide([], [0, 0, 0.5, 0.1]), value_after_K=wide([1, 1], [2, 1.5]))["q"]
    close(two, [-(0.475**2 + 0.095**2), -0.25])
    assert errors(batch, 0.5, value_target_K=slow, value_after_K=wide([1.25, 1.25], [2, 2]))["q"] == [0.0, 0.0]


def test_archer_of_one_turn() -> None:
    """Card S061: three utterances in one state, with Q' = 1, 0, 0: V is at rest at E Q = 1/3, and with Q = r the
    advantages are r − mean r."""
    episodes = [played(i, [Step(reward=r)]) for i, r in enumerate((1.0, 0.0, 0.0))]
    reward, mean = [1.0, 0.0, 0.0], 1 / 3
    slow = torch.tensor(wide(*([r, r] for r in reward)), dtype=torch.float64)
    for v, push in ((mean, 0.0), (0.0, 2 * mean), (1.0, 2 * mean - 2)):  # Σ −2 (V − Q') / 3
        now = torch.tensor(wide(*[[0, 0, v, v]] * 3), dtype=torch.float64).requires_grad_()
        same: dict[str, Any] = {
            "value_after_K": slow,
            "value_target_K": 0 * slow,
            "value_N": slow,
            "value_target_after_K": slow,
        }
        found = worked(TemporalDifference(), marked(episodes), value_K=now, **same)
        found["v"].total(marked(episodes)).backward()
        close(now.grad.sum(0).tolist(), [0.0, 0.0, push, push, 0.0], 1e-12)  # type: ignore[union-attr]
    knows = {"value_critic_after_K": slow, "value_critic_K": torch.full_like(slow, mean)}
    close(UtteranceAdvantage()(Context(), packed(episodes).with_columns(**knows))["adv_N"].tolist(),
          [r - mean for r in reward])  # fmt: skip


def test_archer_pays_the_last_turn_and_every_agent() -> None:
    """The reward of the episode comes with the last turn of each agent, and each goes on to its own next turn."""
    turns = [Step(agent="a"), Step(agent="b", reward=0.25), Step(agent="a"), Step(agent="b")]
    batch = marked([played(0, turns, 1.0)])
    slow = wide(*[[0, 0, v, v] for v in (0.1, 0.2, 0.3, 0.4)])
    want = [0.0 + 0.95 * 0.3, 0.25 + 0.95 * 0.4, 1.0, 1.0]
    close(errors(batch, value_target_K=slow, value_after_K=wide(*[[x, x] for x in want]))["q"], [0.0] * 4)


def test_archer_of_silent_turns() -> None:
    """Nothing was said in the second turn: its reward is the first one's, which goes on to the third."""
    silent = played(0, [Step(reward=1.0), Step(reward=0.5, tokens=0), Step(reward=2.0), Step(reward=0.25, tokens=0)])
    slow = wide([], [0, 0, 7, 7], [0, 0, 0.5, 0.5], [0, 0, 7, 7])
    found = errors(marked([silent]), value_target_K=slow, value_after_K=wide([1.975, 1.975], [], [2.25, 2.25], []))
    close(found["q"], [0.0, 0.0])
    assert len(found["v"]) == 2
    nobody = played(0, [Step(reward=1.0, tokens=0)])
    assert errors(marked([nobody])) == {"q": []} and spoken(nobody) == []


def test_archer_learns_from_what_has_an_outcome() -> None:
    """Q: judged episodes. V: those of the present policy. Failed and open ones teach neither; an utterance that was
    drawn apart has no outcome, and a remembered episode is of another policy."""

    def of(**fields: Any) -> dict[str, int]:
        found = errors(marked([played(0, [Step(reward=1.0)], **fields), played(1, [Step(reward=1.0)])]))
        return {name: len(rows) for name, rows in found.items()}

    assert of() == {"q": 2, "v": 2}
    assert of(status=Status.ENV_ERROR) == of(status=Status.OPEN) == of(use=Use.BASELINE) == {"q": 1, "v": 1}
    assert of(use=Use.APART) == {"q": 1, "v": 2} and of(replayed=True) == {"q": 2, "v": 1}
    left = marked([played(0, [Step(reward=1.0)] * 3)], chosen_K=torch.tensor([0.0, 1.0, 0.0]))
    assert {name: len(rows) for name, rows in errors(left).items()} == {"q": 1, "v": 1}


# the advantage


def test_archer_takes_the_smaller_of_both() -> None:
    """min(.7, .4) − min(.1, .3) = .3 and min(.2, .9) − min(.6, .5) = −.3, for all tokens of an utterance."""
    batch = packed([played(0, [Step(tokens=2), Step(reward=1.0)])])
    columns = {"value_critic_after_K": wide([0.7, 0.4, 8, 8, 8], [0.2, 0.9, 8, 8, 8]),
               "value_critic_K": wide([8, 8, 0.1, 0.3, 8], [8, 8, 0.6, 0.5, 8]),
               "value_critic_N": wide(*[[8, 8, 8, 8, v] for v in (0.0, 0.1, -0.2)])}  # fmt: skip
    batch = batch.with_columns(**{k: torch.tensor(x, dtype=torch.float64) for k, x in columns.items()})
    plain, less = UtteranceAdvantage()(Context(), batch), LEARNED(Context(), batch)
    close(plain["adv_N"].tolist(), [0.3, 0.3, -0.3])
    close(less["adv_N"].tolist(), [0.3, 0.2, -0.1])
    assert plain["foreseen_N"].tolist() == [0.0] * 3 and less["foreseen_N"].tolist() == [1.0] * 3
    # J = mean over utterances of A Σ log π
    value, slope = objective(ARCHER, batch, logp_N=[-1.0, -2.0, -0.5])
    close(value, (0.3 * -3.0 + -0.3 * -0.5) / 2)
    close(slope["logp_N"], [0.15, 0.15, -0.15])
    # and v learns A, not what is left of it: the mean over three tokens of −(A − v)²
    found = errors(marked([played(0, [Step(tokens=2), Step(reward=1.0)])], **less),
                   value_N=columns["value_critic_N"])  # fmt: skip
    close(found["token_baseline"], [-(0.3**2), -(0.2**2), -(0.1**2)])


# the update


class Watched:
    """A world with an update of archer that is watched: what the learner was told, and with which batches."""

    def __init__(self, update: CriticThenActor, step: int = 0, credit: UtteranceAdvantage | None = None) -> None:
        self.world = World(ARCHER.but(update=update, credit=credit or UtteranceAdvantage()), 0)
        self.world.ctx.step, self.told, self.batches = step, list[str](), list[Batch]()
        learner, world = self.world.learner, self.world
        plain_step, plain_copy = learner.step, learner.copy

        def step_of(role: str, batch: Batch, **options: Any) -> None:
            self.told.append(role)
            self.batches.append(batch)
            plain_step(role, batch, **options)

        def copy(source: str, target: str, tau: float = 1.0) -> None:
            before = [p.detach().clone() for p in world.models[target].parameters()]
            plain_copy(source, target, tau)
            pairs = zip(before, world.models[source].parameters(), world.models[target].parameters(), strict=True)
            assert all(torch.allclose(now, (1 - tau) * old + tau * new) for old, new, now in pairs)
            self.told.append(f"{source}>{target} {tau}")

        learner.step, learner.copy = step_of, copy  # type: ignore[method-assign]
        world.updated(random_episodes(0))


def test_archer_critic_then_actor() -> None:
    """Two critic steps, each followed by the target; then one of the policy; none of the policy in the warm-up."""
    watched = Watched(CriticThenActor(critic_epochs=2, actor_epochs=1, utterances=4, warmup=3, target_tau=0.25), step=3)
    assert watched.told == ["critic", "critic>target 0.25", "critic", "critic>target 0.25", "policy"]
    early = Watched(CriticThenActor(critic_epochs=1, actor_epochs=3, utterances=4, warmup=3), step=2)
    assert early.told == ["critic", "critic>target 0.1"]
    for batch in watched.batches[:2]:
        # Q learns from four remembered turns, V from four fresh utterances of the same states
        found = {name: x for name, x in TemporalDifference().over(batch).items()}
        past_K = batch.spread(batch.replayed_E, "E", "K")
        assert {name: int(x.sum()) for name, x in found.items()} == {"q": 4, "v": 4}
        assert bool(past_K[found["q"]].all()) and not bool(past_K[found["v"]].any())
    acted = watched.batches[2]
    assert acted.size("E") == 4 and bool((acted.use_E == Use.APART).all()) and not bool(acted.judged_E.any())
    assert not set(acted.uid_E.tolist()) & set(watched.batches[0].uid_E.tolist())  # drawn anew


def test_archer_trains_a_token_baseline_after_the_actor() -> None:
    watched = Watched(CriticThenActor(critic_epochs=1, actor_epochs=2, utterances=4, warmup=0), credit=LEARNED)
    assert watched.told == ["critic", "critic>target 0.1", "policy", "critic", "policy", "critic"]
    names = [list(TemporalDifference().over(b)) for b in watched.batches]
    assert names[0] == ["q", "v"] and names[2] == names[4] == ["token_baseline"]


def test_archer_without_anything_to_remember_does_nothing() -> None:
    world = World(SMALL, 0)
    failed = [replace(e, status=Status.ENV_ERROR, reward={}) for e in random_episodes(0) if e.use == Use.LEARN]
    world.ctx.episodes = failed
    world.learner.step = lambda *a, **k: pytest.fail("there is nothing to learn from")  # type: ignore[method-assign]
    coroutine = SMALL.update(world.ctx, world.learner, None)
    with pytest.raises(StopIteration):
        coroutine.send(None)


@pytest.mark.slow
def test_archer_fields_matter() -> None:
    """The law, with a smaller update than that of the record."""
    mine = [(room, at, o) for room, at, o in fields.slots_of(SMALL) if o is not ARCHER.curriculum]
    wanted = {"credit", "objective", "update", "replay"}
    assert fields.fields_matter(SMALL, 0, [s for s in mine if s[0] in wanted]) == ""


def test_archer_begins_where_turns_began() -> None:
    """The prompt ends before the turn; what the policy had said before is context. A prompt to train under goes on
    in the same way."""
    ask = Ask(Task("t", "2+2=", "4", 1, "desk"), 4, key="mine")
    e = played(3, [Step(tokens=2), Step(reward=1.0, tokens=3)], ask=ask)
    first, second = states([(e, 0), (e, 1)], "x")
    assert first.ids.tolist() == [1, 2] and second.ids.tolist() == [1, 2, 5, 5, 7]
    assert first.samples == 1 and first.ask.key != second.ask.key and first.ask.task is ask.task
    assert first.given == () and first.train_as is None
    s = replace(e.sequences[0], train_as=np.array([9, 9, 9]))
    assert prompt_before(replace(e, sequences=[s], ask=ask), 1).train_as.tolist() == [9, 9, 9, 5, 5, 7]
    with pytest.raises(ValueError, match="what was asked in episode 3 is not known any more"):
        prompt_before(replace(e, ask=None), 0)


def test_archer_chooses_turns_by_their_keys() -> None:
    known = [(e, i) for e in (played(u, [Step(), Step(), Step(reward=1.0)]) for u in range(40)) for i in spoken(e)]

    def uids(turns: Any) -> set[tuple[int, int]]:
        return {(e.uid, i) for e, i in turns}

    some = chosen(Context(), known, 30, "critic 0")
    assert len(some) == len(uids(some)) == 30 and len(chosen(Context(), known, 999, "critic 0")) == 120
    assert uids(chosen(Context(), known[::-1], 30, "critic 0")) == uids(some)  # the order is not asked
    others = [chosen(Context(), known, 30, "critic 1"), chosen(Context(step=1), known, 30, "critic 0"),
              chosen(Context(seed=1), known, 30, "critic 0")]  # fmt: skip
    assert all(uids(x) != uids(some) for x in others)


def test_archer_buffer_counts_utterances() -> None:
    """The newest episodes with five utterances in all; failed ones, those of experts and baselines never."""

    def walked(uid: int, turns: int, **fields: Any) -> Episode:
        return played(uid, [Step(reward=1.0)] * turns, **fields)

    put = UtteranceBuffer(capacity=5).put
    store = put(Context(), [], [walked(1, 2), walked(2, 2), walked(3, 2)])
    assert [e.uid for e in store] == [2, 3]
    store = put(Context(), store, [walked(4, 1), walked(5, 9, status=Status.TIMEOUT), walked(6, 1, use=Use.BASELINE)])
    assert [e.uid for e in store] == [2, 3, 4]
    assert [e.uid for e in put(Context(), store, [walked(7, 6)])] == []  # more than there is room for
    said = single_turn(8, "t", "g", np.array([1]), np.array([2]), np.zeros(1, np.float32), 0, source=Source.EXPERT)
    assert put(Context(), [], [replace(said, reward={"task": 1.0})]) == []
    assert UtteranceBuffer().get(Context(), store) == store and not UtteranceBuffer.joins


def test_archer_batches_keep_the_notes_of_remembered_episodes_out() -> None:
    world = World(SMALL, 0)
    kept = world.selected(random_episodes(0))
    known = [(e, i) for e in kept for i in spoken(e)]
    batch = transitions(world.ctx, known[:3], [])
    assert not [n for n in batch.columns if n.startswith("note_")] and int(batch.chosen_K.sum()) == 3
    assert bool(batch.replayed_E.all())


def test_archer_refuses_half_of_itself() -> None:
    """In words, before the run: another credit, another objective, another critic."""
    halves = {
        "reads foreseen_N": ARCHER.but(credit=GroupCentred()),
        "requires temporal_difference in objective": ARCHER.but(objective=PolicyGradient()),
        "requires utterance_buffer in replay": ARCHER.but(replay=Recent()),
        "reads 5 outputs of the role 'critic', which has 1": ARCHER.but(cast={"critic": Role(as_="head", train=True)}),
    }
    for said, m in halves.items():
        assert any(said in s for s in problems(m, Context(), samples=4)), said
    assert problems(ARCHER, Context(), samples=1) == []


def moved(tensors: dict[str, Tensor], before: dict[str, Tensor]) -> bool:
    return any(not torch.equal(x, before[k]) for k, x in tensors.items())


def test_archer_moves_what_it_trains() -> None:
    """The law `roles`, after the warm-up: the policy, the critic and its slow copy move, and nothing else."""
    world = World(SMALL, 0)
    before = {r: {k: v.clone() for k, v in m.state_dict().items()} for r, m in world.models.items()}
    world.updated(random_episodes(0))
    assert {r for r, m in world.models.items() if moved(m.state_dict(), before[r])} == {"policy", "critic", "target"}
