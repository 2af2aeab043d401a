"""Evidence for arpo_agentic: laws, mistakes, equivalences, resume, trees of turns, and numbers worked by hand."""

import math
from collections.abc import Callable
from typing import Any

import evidence
import numpy as np
import pytest
from drawing import IN_A_WORLD, steps_of
from hand import close
from in_worlds import Told, played, real_engine, turn_of

from gruppo.data import Episode, Growing, Source, Status, pack
from gruppo.engines import Request
from gruppo.methods import method
from gruppo.methods.arpo_agentic import Branches, SharedTurns
from gruppo.stages import Context
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.dialogue import first_entropy

test_laws = evidence.laws("arpo_agentic")
test_asks = evidence.asks("arpo_agentic")
test_planted_mistakes = evidence.planted("arpo_agentic")
test_equivalences = evidence.equivalences("arpo_agentic")
test_resume = evidence.resume("arpo_agentic")

ARPO = method("arpo_agentic")


def leaf(uid: int, reward: float | None) -> Growing:
    grown = Growing(uid, "t", "g")
    grown.begin(np.array([1, 2]))
    for token in (5, 6):
        grown.act(np.array([token]), np.full(1, -1.0, np.float32), 0)
        grown.observe(np.array([3]))
    return grown


def forked(rewards: list[float | None]) -> list[Episode]:
    """Four leaves of two turns, the first two of which share their first turn."""
    roots = [leaf(0, None), leaf(2, None), leaf(3, None)]
    twin = roots[0].fork(1, 1)
    twin.act(np.array([7]), np.full(1, -1.0, np.float32), 0)
    out = [g.finish() for g in (roots[0], twin, *roots[1:])]
    for e, r in zip(out, rewards, strict=True):
        e.reward, e.status = ({}, Status.ENV_ERROR) if r is None else ({"task": r}, Status.OK)
    return out


def test_card_hard_and_soft() -> None:
    """Card S075: R = 1, 0, 0, 0: A = 1.5, −.5, −.5, −.5. The turn that the first two share has ½ in both, or, soft,
    what each leaf has, which adds up to 1."""
    batch = pack(forked([1.0, 0.0, 0.0, 0.0]))
    hard, soft = (c(Context(), batch)["adv_N"].tolist() for c in (SharedTurns(), GroupNormalised()))
    close(hard, [0.5, 1.5, 0.5, -0.5, -0.5, -0.5, -0.5, -0.5], 1e-5)
    close(soft, [1.5, 1.5, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5], 1e-5)


def test_a_failed_leaf_is_in_no_mean() -> None:
    """R = 1, none, 0, 0: A = 2/√3, −1/√3. The shared turn has that of the leaf that was judged."""
    hard = SharedTurns()(Context(), pack(forked([1.0, None, 0.0, 0.0])))["adv_N"].tolist()
    close(hard, [2 / math.sqrt(3)] * 2 + [0.0] * 2 + [-1 / math.sqrt(3)] * 4, 1e-5)


def test_entropy_of_first_tokens() -> None:
    """p = ½, ¼ and 1, then a third token that does not count: (½ ln 2 + ¼ ln 4) / ln 100."""
    logp = np.log(np.array([[0.5, 0.25], [1.0, 1.0], [0.3, 0.3]]))
    topk = (np.zeros((3, 2), np.int64), logp)
    close(first_entropy(topk, 2, 100), (0.5 * math.log(2) + 0.25 * math.log(4)) / math.log(100))
    assert math.isnan(first_entropy(None, 2, 100)) and math.isnan(first_entropy(topk, 0, 100))


def test_which_turns_branch() -> None:
    """½ + .2 ΔH > ½ where entropy rose. By chance: u − .2 ΔH ≤ ½, half of the turns, 60 % at ΔH = ½."""
    ctx, rise = Context(), Branches()
    assert [rise.branches(ctx, 1, 1, d) for d in (-0.1, 0.0, 0.1, math.nan)] == [False, False, True, False]
    chance = Branches(branching="chance")
    share = [np.mean([chance.branches(ctx, u, 1, d) for u in range(3000)]) for d in (0.0, 0.5)]
    assert share == pytest.approx([0.5, 0.6], abs=0.03)


def tree(unsure: Callable[[Request], bool], samples: int = 4, **fields: Any) -> list[Episode]:
    """A world of four turns in which nothing is ever right."""
    engine = Told(lambda r: "dance" if r.key % 2 else "sing", unsure)
    found = played(ARPO.but(rollout=Branches(**fields)), engine, "guess", samples=samples, turns=4)
    assert len(found) == samples and len({e.uid for e in found}) == samples
    assert all(len(e.turns) == 4 and "first_entropy" not in e.notes for e in found)
    return found


def forks(episodes: list[Episode]) -> list[tuple[int, int]]:
    """(place of the parent, turn) of every branch; (−1, −1) for a root."""
    place = {e.uid: i for i, e in enumerate(episodes)}
    return [(place.get(e.parent, -1), e.fork) for e in episodes]


ROOT = (-1, -1)


def test_branches_begin_where_entropy_rose() -> None:
    assert forks(tree(lambda r: turn_of(r) == 2)) == [ROOT, ROOT, (0, 2), (1, 2)]
    assert forks(tree(lambda r: False)) == [ROOT] * 4  # nowhere: all are roots
    assert forks(tree(lambda r: turn_of(r) == 0)) == [ROOT] * 4  # the first turn follows no observation
    assert forks(tree(lambda r: True)) == [ROOT] * 4  # always the same: it did not rise


def test_earlier_turns_first_and_never_beyond_the_budget() -> None:
    assert forks(tree(lambda r: turn_of(r) in (1, 3))) == [ROOT, ROOT, (0, 1), (1, 1)]
    assert forks(tree(lambda r: turn_of(r) in (1, 3), samples=5)) == [ROOT, ROOT, (0, 1), (1, 1), (0, 3)]
    assert forks(tree(lambda r: turn_of(r) == 1, branch_copies=2)) == [ROOT, ROOT, (0, 1), (0, 1)]


def test_a_branch_branches_again_after_its_own_turn() -> None:
    """One root, unsure at turns 1 and 2: branches at both; the one of turn 1 is unsure at turn 2 again."""
    found = forks(tree(lambda r: turn_of(r) in (1, 2), samples=4, root_share=0.25))
    assert found == [ROOT, (0, 1), (0, 2), (1, 2)]
    rest = forks(tree(lambda r: turn_of(r) == 3, samples=4, root_share=0.25))
    assert rest == [ROOT, (0, 3), ROOT, ROOT]  # what is missing begins at the prompt


@pytest.mark.parametrize(
    "fields",
    [
        {"root_share": 1.0},
        {"branch_base": 0.2},
        {"branch_slope": -0.2},
        {"branch_bar": 0.9},
        {"branching": "chance"},
        {"branch_copies": 3},
        {"entropy_tokens": 1},
    ],
    ids=lambda f: next(iter(f)),
)
def test_every_field_matters(fields: dict[str, Any]) -> None:
    """Unsure at turn 3; at turn 2 more words have more entropy, unless only the first token counts."""

    def unsure(r: Request) -> bool:
        return turn_of(r) == 3

    def seen(**some: Any) -> list[tuple[int, int]]:
        engine = Told(lambda r: "sing" if turn_of(r) != 2 else "sing and dance", unsure)
        return forks(played(ARPO.but(rollout=Branches(**some)), engine, "guess", samples=8, turns=4))

    assert seen() != seen(**fields)


def test_without_branches_it_is_a_group_bit_for_bit() -> None:
    """The same ids with the same keys as those of grpo; and where a task is one answer there are no turns to branch."""
    alone = ARPO.but(rollout=Branches(branch_bar=99.0))
    left, right = (played(m, real_engine(), "guess", tasks=2, turns=3) for m in (alone, method("grpo")))
    assert [e.uid for e in left] == [e.uid for e in right]
    assert [e.sequences[0].ids.tolist() for e in left] == [e.sequences[0].ids.tolist() for e in right]
    same = [steps_of(m, steps=1)[1][0].batch for m in (ARPO, method("grpo"))]
    assert same[0].uid_E.tolist() == same[1].uid_E.tolist()  # type: ignore[union-attr]


def test_what_a_branch_shares_is_computed_once_and_learned_as_sampled() -> None:
    engine = real_engine()
    found = played(ARPO.but(rollout=Branches(branch_base=9.0)), engine, "household", tasks=2, samples=6)
    twins = [e for e in found if e.parent != -1]
    assert len(twins) == 6 and {e.fork for e in twins} >= {1}
    by_uid, new = {e.uid: e for e in found}, 0
    for e in found:
        start = e.turns[e.fork].start if e.parent != -1 else 0
        [s], old = e.sequences, by_uid.get(e.parent)
        new += len(s.ids) - start
        if old is not None:
            assert s.ids[:start].tolist() == old.sequences[0].ids[:start].tolist()
            assert s.ids[start:].tolist() != old.sequences[0].ids[start:].tolist()
        for t in e.turns:
            assert (s.source[t.start : t.stop] == Source.POLICY).all()
            [logp] = engine.logprobs([s.ids[: t.start]], [s.ids[t.start : t.stop]])
            np.testing.assert_allclose(logp, s.logp[t.start : t.stop], atol=1e-6)
    assert engine.prefilled + engine.decoded <= 1.05 * new
    batch = pack(found)
    assert len(set(batch.node_N.tolist())) < batch.size("N")


def test_it_trains_in_a_world() -> None:
    _, records = steps_of(ARPO.but(credit=SharedTurns(), rollout=Branches(branching="chance")), *IN_A_WORLD, steps=2)
    assert any(e.parent != -1 for r in records for e in r.drawn) and {len(r.drawn) for r in records} == {6}
    assert any(0 < r.facts.get("shared", 0.0) < 1 for r in records)
