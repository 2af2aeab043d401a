"""Evidence for dump: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
import torch
from hand import answer, batch_of
from looking_back import HINTED, seen, tasks_of

from gruppo.data import Episode, Status, Use
from gruppo.methods.dump import DomainUcb
from gruppo.stages import Context, Memory, StepRecord
from gruppo.stages.curriculum import Uniform
from gruppo.tasks import Task, load_task

test_laws = evidence.laws("dump")
test_asks = evidence.asks("dump")
test_planted_mistakes = evidence.planted("dump")
test_resume = evidence.resume("dump")


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
            assert MIX[a.index] == a.task
            seen_places.setdefault(a.task.domain, []).append(a.index)
        with memory.writing():
            DomainUcb().observe(learned(drawn, [0.0] * 15), memory)
    for places in seen_places.values():
        assert len(places) > 20
        for first in range(0, len(places) - 20, 20):
            assert len(set(places[first : first + 20])) == 20
    again = DomainUcb()(Context(step=3, round=1, prompts=15, memory=memory), MIX)
    assert [a.index for a in again] != [a.index for a in DomainUcb()(Context(step=3, prompts=15, memory=memory), MIX)]


def test_dump_on_one_domain_has_the_tasks_of_an_epoch_of_uniform() -> None:
    tasks, memory = load_task("addition", train_size=24).train, Memory()
    seen_by: dict[str, list[int]] = {"dump": [], "uniform": []}
    for step in range(6):
        ctx = Context(step=step, prompts=8, memory=memory)
        asks = DomainUcb()(ctx, tasks)
        seen_by["dump"] += [a.index for a in asks]
        seen_by["uniform"] += [a.index for a in Uniform()(ctx, tasks)]
        drawn = [answer(100 * step + i, a.group, 1, 1.0, domain=a.task.domain) for i, a in enumerate(asks)]
        with memory.writing():
            DomainUcb().observe(learned(drawn, [0.5] * 8), memory)
    assert sorted(seen_by["dump"]) == sorted(seen_by["uniform"]) and sorted(seen_by["dump"][:24]) == list(range(24))


def places(tasks: list[Task], n: int, known: Memory | None = None, **where: int) -> list[int]:
    ctx = Context(prompts=n, memory=known or Memory(), **where)
    return [a.index for a in DomainUcb()(ctx, tasks)]


def test_dump_of_a_domain_that_was_not_seen() -> None:
    """L = 0 and n_j = 0: √(2 ln 11); of the other, seen ten times, .5 + √(2 ln 11 / 11)."""
    known = {"a": {"size": torch.full((10,), 0.5).double(), "samples": 10, "asked": 0}}
    chance = DomainUcb(domain_temperature=1.0).weights(known, ["a", "b"]).tolist()
    gap = 0.5 + math.sqrt(2 * math.log(11) / 11) - math.sqrt(2 * math.log(11))
    assert chance[0] / chance[1] == pytest.approx(math.exp(gap), rel=1e-12)


def test_dump_after_its_first_step() -> None:
    """Three samples of two prompts. |A| is that of the policy's own tokens, so the 9 on a hint does not count."""
    episodes = [answer(1, "p", 2, 1.0, domain="a", **HINTED), answer(2, "p", 1, 0.0, domain="a")]
    episodes += [answer(3, "q", 1, 1.0, domain="a")]
    batch = batch_of(episodes, adv_N=[9.0, 0.5, 1.5, -0.25, 0.0])
    [(name, held)] = seen(DomainUcb(), episodes, batch=batch)["domains"].items()
    assert name == "a" and held["size"].tolist() == pytest.approx([1.0, 0.25, 0.0])
    assert (held["samples"], held["asked"]) == (3, 2)


def test_dump_learns_nothing_from_failures() -> None:
    failed = [answer(1, "p", 2, None, domain="a", status=Status.ENV_ERROR)]
    assert dict(seen(DomainUcb(), failed, batch=batch_of(failed, adv_N=[0.0, 0.0]))["domains"]) == {}


def test_dump_goes_through_a_domain_in_another_order_each_time() -> None:
    """Every task once, then every task once in another order; another seed has another order, and so has another
    domain of as many tasks."""
    one, other = tasks_of(a=20), tasks_of(b=20)
    twice = places(one, 40)
    first, second = twice[:20], twice[20:]
    assert sorted(first) == sorted(second) == list(range(20)) and first != second
    assert places(one, 20) == first
    assert places(one, 20, seed=1) != first
    assert places(other, 20) != first


def test_dump_draws_again_out_of_turn() -> None:
    """In each round of a step other tasks, and not from the first on: the tasks of the turn are asked already."""
    tasks = tasks_of(a=200)
    rounds = [places(tasks, 3, round=r) for r in range(6)]
    assert len({tuple(r) for r in rounds}) == 6
    order = places(tasks, 400)  # twice through, in two orders
    begins = [order.index(r[0]) for r in rounds[1:]]
    assert all(order[b : b + 3] == r for b, r in zip(begins, rounds[1:], strict=True))
