"""What is worth learning from, by hand: both doors, each occupant, and each bound just inside and just outside."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from rooms import context, prompt, rolled, task

from gruppo.data import Batch, Episode, Status, pack
from gruppo.stages import Ask, need
from gruppo.stages.readouts import Stats
from gruppo.stages.rollout import Group
from gruppo.stages.select import (
    MaskTruncated,
    RedrawEqualGroups,
    SamplerGate,
    TopEntropy,
    TruncatedImportance,
    sampler_ratio,
    through_first_door,
    through_second_door,
)


def groups(*rewards: list[float | None]) -> list[Episode]:
    """A group for each list, an episode of three tokens for each number; None: not judged."""
    prompts = [prompt(Ask(task(i), len(mine))) for i, mine in enumerate(rewards)]
    out = rolled(Group(), context(), prompts)
    for e, r in zip(out, [r for mine in rewards for r in mine], strict=True):
        e.reward = {} if r is None else {"task": r}
        e.status = Status.ENV_ERROR if r is None else e.status
    return out


def batch(**columns: Any) -> Batch:
    """Two episodes of three tokens."""
    made = pack(groups([1.0, 0.0]), dtype=torch.float64)
    return made.with_columns(**{k: torch.tensor(v, dtype=torch.float64) for k, v in columns.items()})


# the first door


def asks(n: int) -> list[Ask]:
    return [Ask(task(90 + i), 2) for i in range(n)]


@pytest.mark.parametrize(("round_", "again"), [(0, 2), (2, 2), (3, 0)])
def test_equal_groups_are_dropped_and_others_drawn(round_: int, again: int) -> None:
    """Judged by the task's own reward; after `max_rounds` it learns from what there is."""
    found = groups([1.0, 0.0], [1.0, 1.0], [None, 0.0])
    found[2].reward["overlong"], found[3].reward["overlong"] = -0.5, 0.0
    keep, more = RedrawEqualGroups().episodes(context(round=round_, fresh=asks), found)
    assert keep == [True, True, False, False, False, False] and len(more) == again


def test_a_failed_episode_makes_no_difference() -> None:
    """One that failed may hold the reward it had before: it is not judged."""
    found = groups([1.0, 0.0])
    found[1].status = Status.TIMEOUT
    assert RedrawEqualGroups().episodes(context(fresh=asks), found)[0] == [False, False]
    unscored = groups([1.0, 0.0])
    unscored[1].reward = {"other": 0.0}
    assert RedrawEqualGroups().episodes(context(fresh=asks), unscored)[0] == [False, False]


def test_the_first_door_is_a_chain() -> None:
    """keep = and; what any of them asks for is drawn again."""

    class Odd:
        def episodes(self, ctx: Any, episodes: Any) -> Any:
            return [i % 2 == 1 for i in range(len(episodes))], asks(1)

    found = groups([1.0, 0.0, 1.0, 0.0])
    kept, again = through_first_door(context(), [Odd(), TopEntropy(), Odd()], found)
    assert [e.uid for e in kept] == [found[3].uid] and len(again) == 2


# the second door


def tokens(occupant: Any, b: Batch) -> tuple[list[bool], list[float]]:
    keep, weight = occupant.tokens(context(), b, Stats())
    return keep.tolist(), weight.tolist()


@pytest.mark.parametrize(("share", "count"), [(0.5, 3), (1.0, 6), (0.01, 1)])
def test_the_share_of_highest_entropy(share: float, count: int) -> None:
    values = [0.1, 0.6, 0.3, 0.2, 0.5, 0.4]
    keep, weight = tokens(TopEntropy(share), batch(entropy_old_N=values))
    bar = sorted(values)[-count]
    assert keep == [v >= bar for v in values] and weight == [1.0] * 6


def test_no_token_of_the_policy_no_share() -> None:
    b = batch(entropy_old_N=[1.0] * 6)
    b = b.with_columns(status_E=torch.full((2,), int(Status.ENV_ERROR)))
    keep, weight = TopEntropy().tokens(context(), b, Stats())
    assert not (keep & b.policy_N).any() and weight.tolist() == [1.0] * 6


def test_truncated_answers_are_not_learned() -> None:
    found = groups([1.0, 0.0])
    found[1].status = Status.TRUNCATED
    assert tokens(MaskTruncated(), pack(found)) == ([True] * 3 + [False] * 3, [1.0] * 6)


OLD = [-0.5, -1.5, -2.5, -1.5, -2.5, -3.5]  # what the engine of these tests says, second sample one lower


def test_the_ratio_to_the_sampler() -> None:
    gap = [0.5, -0.5, 0.0, 1.0, 0.0, 0.0]
    b = batch(logp_old_N=[o + g for o, g in zip(OLD, gap, strict=True)])
    assert sampler_ratio(b, "token").log().tolist() == pytest.approx(gap, abs=1e-12)
    assert sampler_ratio(b, "sequence").log().tolist() == pytest.approx([0.0] * 3 + [1.0] * 3, abs=1e-12)
    assert sampler_ratio(b, "geometric").log().tolist() == pytest.approx([0.0] * 3 + [1 / 3] * 3, abs=1e-12)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_what_the_sampler_did_not_say_weighs_one(level: str) -> None:
    """NaN on one side, or infinities of both, which are no ratio."""
    inf = float("inf")
    b = batch(logp_old_N=[OLD[0], float("nan"), -inf, *OLD[3:]])
    b = b.with_columns(logp_gen_N=torch.tensor([OLD[0], OLD[1], -inf, *OLD[3:]], dtype=torch.float64))
    assert sampler_ratio(b, level).tolist() == [1.0] * 6


def test_bounds_of_the_gate_are_inside() -> None:
    b = batch(logp_old_N=OLD).with_columns(logp_gen_N=torch.tensor(OLD, dtype=torch.float64))
    assert tokens(SamplerGate(gate_low=1.0, gate_high=2.0), b)[0] == [True] * 6
    assert tokens(SamplerGate(gate_low=0.5, gate_high=1.0), b)[0] == [True] * 6
    assert tokens(SamplerGate(gate_low=1.01, gate_high=2.0), b)[0] == [False] * 6
    counted = SamplerGate(gate_low=1.01, gate_high=2.0, counted=True)
    assert tokens(counted, b) == ([True] * 6, [0.0] * 6)


def test_gates_that_let_nothing_through_are_refused() -> None:
    assert SamplerGate(gate_low=0.0, gate_high=1.0).gate_low == 0.0
    for low, high in ((1.0, 1.0), (2.0, 1.0)):
        with pytest.raises(ValueError, match="no ratio would pass"):
            SamplerGate(gate_low=low, gate_high=high)
    with pytest.raises(ValueError, match=r"gate_low=-0.1 is out of range: use a number >= 0\."):
        SamplerGate(gate_low=-0.1, gate_high=1.0)
    with pytest.raises(ValueError, match=r"cap=0.0 is out of range: use a number > 0\."):
        TruncatedImportance(cap=0.0)


@pytest.mark.parametrize("occupant", [TruncatedImportance(), SamplerGate()], ids=["importance", "gate"])
def test_the_sampler_is_compared_with_the_old_policy(occupant: Any) -> None:
    assert occupant.needs(context()) == (need("logp", "old"),)


@pytest.mark.parametrize("occupant", [TopEntropy(), MaskTruncated(), TruncatedImportance(), SamplerGate()])
def test_once_a_batch_and_not_at_every_step(occupant: Any) -> None:
    """None of these reads the model being trained: they run when the batch is made, and only then."""
    made = batch(entropy_old_N=[1.0] * 6, logp_old_N=OLD)
    assert through_second_door(context(), [occupant], made, Stats(), current=True) is made
    assert through_second_door(context(), [occupant], made, Stats(), current=False) is not made


def test_the_second_door_is_a_chain() -> None:
    """keep = and, weight = product."""
    b = batch(entropy_old_N=[0.1, 0.6, 0.3, 0.2, 0.5, 0.4], logp_old_N=[o + 9 for o in OLD])
    chain = [TopEntropy(0.5), TruncatedImportance(cap=2.0), replace(TruncatedImportance(), cap=3.0)]
    out = through_second_door(context(), chain, b, Stats(), current=False)
    assert out.keep_N.tolist() == [False, True, False, False, True, True] and out.weight_N.tolist() == [6.0] * 6
