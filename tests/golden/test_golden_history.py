"""Worked numbers of the methods that remember tasks: hapo_history, dump, mmr1_vas, spo_single."""

import math

import pytest
import torch
from hand import Status, Use, answer, batch_of

from gruppo.data import Episode, Source
from gruppo.methods import method
from gruppo.methods.dump import DomainUcb
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.stages import Context, Memory, Method, Occupant, StepRecord
from gruppo.stages.curriculum import Uniform
from gruppo.stages.reward import add_components
from gruppo.tasks import load_task


def seen(occupant: Occupant, *steps: list[Episode], memory: Memory | None = None) -> Memory:
    """Memory after these steps."""
    memory = Memory() if memory is None else memory
    for step, drawn in enumerate(steps):
        with memory.writing():
            occupant.observe(StepRecord(step, [], None, {}, None, drawn), memory)
    return memory


# hapo_history: the card's example, h = 1000

HISTORY = [answer(0, "q", 1200, 1.0), answer(1, "q", 1000, 1.0), answer(2, "q", 900, 0.0)]


@pytest.mark.parametrize(
    ("right", "tokens", "reward"),
    [
        (1.0, 500, 1 + math.sqrt(0.5)),
        (1.0, 1000, 1.0),
        (1.0, 1500, 0.3),
        (1.0, 2500, 0.3),
        (0.0, 500, 0.0),
        (0.0, 1500, -math.sqrt(0.5)),
        (0.0, 2500, -1.0),
    ],
)
def test_hapo_rewards_what_is_shorter_than_the_shortest_right_answer(right: float, tokens: int, reward: float) -> None:
    [shorter] = method("hapo_history").reward
    e = answer(9, "q", tokens, right)
    add_components(Context(memory=seen(shorter, HISTORY)), (shorter,), [e])
    assert e.total == pytest.approx(reward, abs=1e-12) and e.reward["task"] == right


def test_hapo_without_a_history_is_plain_correctness() -> None:
    other = [answer(0, "another question", 3, 1.0)]
    for before in ([], [answer(0, "q", 3, 0.0)], other):
        [value] = ShorterThanBefore()(Context(memory=seen(ShorterThanBefore(), before)), [answer(9, "q", 7, 1.0)])[
            "length"
        ]
        assert value == 0.0


def test_hapo_forgets_nothing_and_learns_from_what_counts_only() -> None:
    """A longer answer does not raise h; failed, unused and recorded answers do not lower it; a truncated one does."""
    nothing = [
        answer(3, "q", 1100, 1.0),
        answer(4, "q", 10, 1.0, status=Status.ENV_ERROR),
        answer(5, "q", 10, 1.0, use=Use.NONE),
        answer(6, "q", 10, 1.0, use=Use.APART),
        answer(7, "q", 10, 1.0, source=Source.EXPERT),
        answer(8, "q", 10, None),
    ]
    memory = seen(ShorterThanBefore(), HISTORY, nothing, [])
    half = math.cos(math.pi / 2 * 500 / 1000)
    [value] = ShorterThanBefore()(Context(memory=memory), [answer(9, "q", 500, 1.0)])["length"]
    assert value == pytest.approx(half)
    seen(ShorterThanBefore(), [answer(9, "q", 500, 1.0, status=Status.TRUNCATED)], memory=memory)
    assert ShorterThanBefore()(Context(memory=memory), [answer(9, "q", 500, 1.0)])["length"] == pytest.approx([0.0])


def test_hapo_counts_what_selection_dropped() -> None:
    """`drawn`, not `episodes`: a group that is all right is dropped by a host that redraws, and still has a history."""
    memory = Memory()
    with memory.writing():
        ShorterThanBefore().observe(StepRecord(0, [answer(1, "q", 50, 1.0)], None, {}, None, HISTORY), memory)
    assert ShorterThanBefore()(Context(memory=memory), [answer(9, "q", 1000, 1.0)])["length"] == pytest.approx([0.0])


def test_hapo_right_always_has_more_than_wrong() -> None:
    shorter, m = ShorterThanBefore(), seen(ShorterThanBefore(), HISTORY)
    lengths = (1, 300, 999, 1001, 1700, 9000)
    right, wrong = (
        [r + v for v in shorter(Context(memory=m), [answer(i, "q", n, r) for i, n in enumerate(lengths)])["length"]]
        for r in (1.0, 0.0)
    )
    assert min(right) == pytest.approx(0.3) and max(wrong) == 0.0


def test_hapo_is_its_base_with_one_more_reward() -> None:
    m: Method = method("hapo_history")
    assert m.base == "grpo" and m.but(name="grpo", reward=()).credit == method("grpo").credit


# dump: the card's example, n = (10, 100), L = (0.2, 0.5)

MIX = load_task("mix:addition@1+chain+sorting@1", train_size=60).train


def known(**domains: tuple[float, int]) -> dict[str, object]:
    """{domain: (mean |A|, samples)} as memory has it."""
    return {
        k: {"size": torch.full((min(n, 300),), size, dtype=torch.float64), "samples": n, "asked": 0}
        for k, (size, n) in domains.items()
    }


def test_dump_weighs_domains_by_their_upper_confidence_bound() -> None:
    weights = DomainUcb().weights(known(a=(0.2, 10), b=(0.5, 100)), ["a", "b"])
    bounds = [0.2 + math.sqrt(2 * math.log(111) / 11), 0.5 + math.sqrt(2 * math.log(111) / 101)]
    assert bounds == pytest.approx([1.125, 0.805], abs=1e-3)
    assert weights.tolist() == pytest.approx([0.961, 0.039], abs=1e-3)
    ratio = math.exp((bounds[0] - bounds[1]) / 0.1)
    assert weights.tolist() == pytest.approx([ratio / (1 + ratio), 1 / (1 + ratio)], rel=1e-9)


def test_dump_is_uniform_over_domains_that_are_equal_and_prefers_what_it_has_not_seen() -> None:
    assert DomainUcb().weights({}, ["a", "b", "c"]).tolist() == pytest.approx([1 / 3] * 3)
    assert DomainUcb().weights(known(a=(0.3, 50), b=(0.3, 50)), ["a", "b"]).tolist() == pytest.approx([0.5, 0.5])
    assert float(DomainUcb().weights(known(a=(0.9, 500)), ["a", "b"])[1]) > 0.99


def learned(episodes: list[Episode], adv: list[float], dropped: list[Episode] | None = None) -> StepRecord:
    """A step in which every token of an answer has that advantage."""
    per_token = [a for e, a in zip(episodes, adv, strict=True) for _ in range(e.tokens)]
    return StepRecord(0, episodes, batch_of(episodes, adv_N=per_token), {}, None, [*episodes, *(dropped or [])])


def test_dump_remembers_the_size_of_the_advantage_by_sample() -> None:
    """|A| of an answer, not of its tokens; what selection dropped is 0; failed and unused ones do not count."""
    a, b = "addition/1", "chain/2"
    step = [
        answer(1, "p", 1, 1.0, domain=a),
        answer(2, "p", 5, 0.0, domain=a),
        answer(3, "q", 2, 1.0, domain=b),
        answer(4, "q", 2, None, domain=b, status=Status.TIMEOUT),
    ]
    memory = Memory()
    for _ in range(2):
        with memory.writing():
            dropped = [answer(9, "r", 3, 1.0, domain=b), answer(10, "r", 3, 1.0, domain=b, use=Use.NONE)]
            DomainUcb(window=3).observe(learned(step, [0.7, -0.7, 0.5, 0.0], dropped), memory)
    assert memory["domains"][a]["size"].tolist() == pytest.approx([0.7] * 3)  # the last three
    assert memory["domains"][b]["size"].tolist() == pytest.approx([0.0, 0.5, 0.0])
    assert {k: (v["samples"], v["asked"]) for k, v in memory["domains"].items()} == {a: (4, 2), b: (4, 4)}
    mean = DomainUcb(domain_temperature=1.0).weights(memory["domains"], [a, b])
    assert float(mean[0] / mean[1]) == pytest.approx(math.exp(0.7 - 0.5 / 3))


def test_dump_goes_through_a_domain_before_a_task_comes_again() -> None:
    """Over steps, and over the redrawn epochs of a small domain; a task that comes twice in a step has two groups."""
    memory, seen_places = Memory(), dict[str, list[int]]()
    for step in range(12):
        asks = DomainUcb()(Context(step=step, prompts=15, samples=2, memory=memory), MIX)
        assert len(asks) == 15 and len({a.group for a in asks}) == 15
        drawn = [answer(100 * step + i, a.group, 1, 1.0, domain=a.task.domain) for i, a in enumerate(asks)]
        for a in asks:
            assert MIX[a.place] == a.task
            seen_places.setdefault(a.task.domain, []).append(a.place)
        with memory.writing():
            DomainUcb().observe(learned(drawn, [0.0] * 15), memory)
    for places in seen_places.values():
        assert len(places) > 20
        for first in range(0, len(places) - 20, 20):
            assert len(set(places[first : first + 20])) == 20
    again = DomainUcb()(Context(step=3, round=1, prompts=15, memory=memory), MIX)
    assert [a.place for a in again] != [a.place for a in DomainUcb()(Context(step=3, prompts=15, memory=memory), MIX)]


def test_dump_on_one_domain_has_the_tasks_of_an_epoch_of_uniform() -> None:
    tasks, memory = load_task("addition", train_size=24).train, Memory()
    seen_by: dict[str, list[int]] = {"dump": [], "uniform": []}
    for step in range(6):
        ctx = Context(step=step, prompts=8, memory=memory)
        asks = DomainUcb()(ctx, tasks)
        seen_by["dump"] += [a.place for a in asks]
        seen_by["uniform"] += [a.place for a in Uniform()(ctx, tasks)]
        drawn = [answer(100 * step + i, a.group, 1, 1.0, domain=a.task.domain) for i, a in enumerate(asks)]
        with memory.writing():
            DomainUcb().observe(learned(drawn, [0.5] * 8), memory)
    assert sorted(seen_by["dump"]) == sorted(seen_by["uniform"]) and sorted(seen_by["dump"][:24]) == list(range(24))
