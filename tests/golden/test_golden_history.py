"""Worked numbers of the methods that remember tasks: hapo_history, dump, mmr1_vas, spo_single."""

import math

import numpy as np
import pytest
import torch
from hand import Status, Use, answer, batch_of

from gruppo.data import Batch, Episode, Key, Note, Source, name_hash, pack
from gruppo.methods import method
from gruppo.methods.dump import DomainUcb
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.methods.mmr1_vas import VarianceAware
from gruppo.methods.spo_single import ByTracker, LastOfTask, Tracked, value
from gruppo.pieces.diversity import self_bleu
from gruppo.stages import Context, Memory, Method, Occupant, StepRecord
from gruppo.stages.curriculum import Uniform
from gruppo.stages.reward import add_components
from gruppo.stages.tables import Table
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


# mmr1_vas: self-BLEU as nltk 3.9.2 computes it (weights 1/3, smoothing method 1); p = (0, .5, 1) -> w = (0, 1, 0)

BLEU = [
    ([[1, 7, 2, 2, 3, 2, 1], [4, 9], [0, 1, 5], [1, 3, 4, 3, 7, 4, 0, 0]], 0.08785104147243437),
    ([[0, 7, 1, 5, 1, 2, 0]], 0.0),
    ([[0, 1, 7, 1, 4, 1, 5, 3, 8], [0, 6, 4, 1, 0]], 0.08047685768277965),
    ([[4], [0, 2, 0, 2, 6, 8, 4, 0]], 0.0155931818630176),
    ([[4, 3, 5, 1, 1, 4, 5], [0, 4, 2, 1], [3, 0, 2], [2, 8, 1, 0], [9, 1, 1, 0], [0]], 0.15311436300183814),
    ([[1, 0], [6], [0, 0], [3, 0, 7, 2, 2], [1, 3, 2, 3, 2, 0, 4], [2, 1, 1, 6, 8]], 0.11573436585798957),
    ([[1, 2, 3, 4]] * 3, 1.0),
    ([[1, 2, 3], [4, 5, 6]], 0.0),
    ([[1, 2, 3], []], 0.0),
]


def test_self_bleu_of_many_groups_at_once() -> None:
    rows = [(row, g) for g, (group, _) in enumerate(BLEU) for row in group]
    token_N = torch.tensor([t for row, _ in rows for t in row])
    part_N = torch.tensor([i for i, (row, _) in enumerate(rows) for _ in row])
    got = self_bleu(token_N, part_N, Key(torch.tensor([g for _, g in rows]), len(BLEU)))
    assert got.tolist() == pytest.approx([bleu for _, bleu in BLEU], abs=1e-12)


def tried(place: int, *scores: float, uid: int = 0, **fields: object) -> list[Episode]:
    return [answer(100 * uid + 10 * place + i, f"q{place}", 3, r, index=place, **fields) for i, r in enumerate(scores)]


def test_vas_weighs_the_tasks_that_are_sometimes_right() -> None:
    vas = VarianceAware(diversity_coef=0.0)
    memory = seen(vas, [*tried(0, 0.0, 0.0), *tried(1, 0.0, 1.0), *tried(2, 1.0, 1.0)])
    assert Table.of(memory, "variance").columns["score"].tolist() == pytest.approx([0.0, 0.8 * 0.25, 0.0])
    assert vas.weights(Table.of(memory, "variance"), 3).tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)
    tasks = load_task("addition", train_size=3).train
    asks = vas(Context(step=1, prompts=5, samples=4, memory=memory), tasks)
    assert [a.index for a in asks[:2]] == [1, 1] and len({a.group for a in asks}) == 5  # floor(5 / 2) by weight


def test_vas_adds_how_different_the_answers_are() -> None:
    same, other = tried(0, 1.0, 1.0), tried(1, 1.0, 1.0)
    other[1].sequences[0].ids[-3:] = [7, 8, 9]
    memory = seen(VarianceAware(), [*same, *other])
    assert Table.of(memory, "variance").columns["score"].tolist() == pytest.approx([0.0, 0.2])


def test_vas_counts_judged_answers_only_and_gives_the_mean_to_what_it_never_saw() -> None:
    vas = VarianceAware(diversity_coef=0.0)
    failed = tried(1, 1.0, 1.0, uid=1, status=Status.ENV_ERROR) + tried(1, 1.0, uid=2, use=Use.NONE)
    memory = seen(vas, [*tried(0, 0.0, 0.0), *tried(1, 0.0, 1.0), *failed, *tried(-1, 1.0, 0.0)])
    assert vas.weights(Table.of(memory, "variance"), 5).tolist() == pytest.approx([0, 1, 0.5, 0.5, 0.5], abs=1e-6)


def test_vas_keeps_its_weights_until_they_are_made_anew() -> None:
    vas, later = VarianceAware(diversity_coef=0.0, refresh_every=2), [*tried(0, 0.0, 1.0), *tried(1, 1.0, 1.0)]
    first = [*tried(0, 0.0, 0.0), *tried(1, 0.0, 1.0)]
    for steps, wanted in (((first, later), [0, 1]), ((first, later, []), [1, 0])):
        assert vas.weights(Table.of(seen(vas, *steps), "variance"), 2).tolist() == pytest.approx(wanted, abs=1e-6)


def test_vas_is_uniform_without_a_share_and_where_all_weigh_the_same() -> None:
    tasks = load_task("addition", train_size=40).train
    memory = seen(VarianceAware(), [*tried(0, 0.0, 0.0), *tried(1, 0.0, 1.0)])
    for step in range(4):
        ctx = Context(step=step, prompts=6, memory=memory)
        plain = [(a.task, a.group, a.key, a.index) for a in Uniform()(ctx, tasks)]
        assert [(a.task, a.group, a.key, a.index) for a in VarianceAware(weighted_share=0.0)(ctx, tasks)] == plain
    equal = seen(VarianceAware(), [*tried(0, 0.0, 1.0), *tried(1, 0.0, 1.0)])
    places = [
        a.index
        for step in range(400)
        for a in VarianceAware(weighted_share=1.0)(Context(step=step, prompts=10, memory=equal), tasks)
    ]
    assert min(places.count(i) for i in range(40)) > 60  # 100 each, ± 10


# spo_single: s = 6 of 8 -> a = 5.778, b = 2.222, v = .722; then R = 1 at rho = .875 -> 6.056, 1.944, .757


def tracked(**tasks: tuple[float, float]) -> Memory:
    """{group: (a, b)} as memory has it; the place of a task is its number."""
    keys = torch.tensor([name_hash(f"task of {g}") for g in tasks])
    a, b = (torch.tensor([ab[i] for ab in tasks.values()], dtype=torch.float64) for i in (0, 1))
    return Memory({"tracker": Table().put(keys, a=a, b=b, index=torch.arange(len(tasks))).plain})


def stepped(episodes: list[Episode], drift: list[float], memory: Memory) -> list[float]:
    """a, b and v of the first task after a step."""
    batch = pack(episodes, dtype=torch.float64).with_columns(drift_E=torch.tensor(drift, dtype=torch.float64))
    with memory.writing():
        Tracked().observe(StepRecord(0, episodes, batch, {}, None, episodes), memory)
    tracker, key = Table.of(memory, "tracker"), torch.tensor([name_hash(episodes[0].task)])
    return [float(x) for x in (tracker.look(key, "a"), tracker.look(key, "b"), value(tracker, key))]


def test_spo_updates_what_it_expects_of_a_task() -> None:
    a, b = 8 * 6.5 / 9, 8 * 2.5 / 9  # the paper's start from eight answers, six of them right: N = 1/(1 - 0.875)
    assert (a, b, a / (a + b)) == pytest.approx((5.778, 2.222, 0.722), abs=1e-3)
    got = stepped([answer(0, "q", 3, 1.0)], [9.0], tracked(q=(a, b)))  # far: rho = 0.875
    assert got == pytest.approx([6.056, 1.944, 0.757], abs=1e-3)
    near = stepped([answer(0, "q", 3, 0.0)], [0.0], tracked(q=(a, b)))  # rho = 0.96
    assert near[:2] == pytest.approx([0.96 * a, 0.96 * b + 1])
    half = stepped([answer(0, "q", 3, 1.0)], [0.06 * math.log2(1 / 0.9)], tracked(q=(a, b)))  # 2^(-D/.06) = 0.9
    assert half[:2] == pytest.approx([0.9 * a + 1, 0.9 * b])


def test_spo_at_a_first_visit_starts_from_one_half() -> None:
    assert stepped([answer(0, "q", 3, 1.0)], [0.0], Memory())[:2] == pytest.approx([0.96 * 0.5 + 1, 0.96 * 0.5])


def test_spo_takes_several_answers_as_evidence_together_and_failures_as_none() -> None:
    answers = [answer(0, "q", 3, 1.0), answer(1, "q", 3, 0.0), answer(2, "q", 3, 1.0)]
    lost = [answer(3, "q", 3, None, status=Status.TIMEOUT), answer(4, "q", 3, 1.0, use=Use.NONE)]
    got = stepped([*answers, *lost], [9.0] * 5, tracked(q=(4.0, 4.0)))
    assert got[:2] == pytest.approx([3.5 + 2, 3.5 + 1])


def test_spo_of_a_policy_that_stands_still_comes_to_expect_the_rate_of_right_answers() -> None:
    memory = Memory()
    for i in range(300):
        got = stepped([answer(i, "q", 1, 0.3)], [0.0], memory)
    assert got == pytest.approx([0.3 * 25, 0.7 * 25, 0.3], abs=1e-3)  # a window of 1 / (1 - 0.96) answers


def advantages(memory: Memory, episodes: list[Episode]) -> list[float]:
    batch = pack(episodes, dtype=torch.float64)
    adv_N = Tracked()(Context(memory=memory), batch)["adv_N"]
    return batch.gather(adv_N, "N", "E", "mean").tolist()


def test_spo_is_the_reward_above_what_was_expected_whitened_over_answers() -> None:
    memory = tracked(p=(9.0, 1.0), q=(1.0, 3.0))
    episodes = [answer(0, "p", 2, 1.0), answer(1, "q", 5, 1.0), answer(2, "new", 1, 0.0), answer(3, "x", 2, None)]
    episodes[3].status = Status.ENV_ERROR
    above = [1 - 0.9, 1 - 0.25, 0 - 0.5]
    mean = sum(above) / 3
    std = math.sqrt(sum((x - mean) ** 2 for x in above) / 2)
    wanted = [(x - mean) / (std + 1e-8) for x in above] + [0.0]
    assert advantages(memory, episodes) == pytest.approx(wanted, abs=1e-12)
    alike = [answer(i, g, 2, 1.0) for i, g in enumerate(("p", "p"))]
    assert advantages(memory, alike) == [0.0, 0.0]  # all right with v = .9: nothing stands out
    assert advantages(memory, [answer(0, "q", 2, 1.0)]) == [0.0]


def test_spo_draws_tasks_by_the_deviation_of_their_rewards() -> None:
    memory = tracked(p=(9.0, 1.0), q=(1.0, 1.0))
    weights = ByTracker().weights(Table.of(memory, "tracker"), 4)
    assert weights.tolist() == pytest.approx([0.3 + 0.05, 0.5 + 0.05, 0.5 + 0.05, 0.5 + 0.05])
    tasks = load_task("addition", train_size=4).train
    asks = ByTracker()(Context(prompts=3, samples=1, memory=memory), tasks)
    assert len({a.index for a in asks}) == 3 and [a.samples for a in asks] == [1, 1, 1]
    many = ByTracker()(Context(prompts=9, memory=memory), tasks)  # more prompts than tasks: with replacement
    assert len(many) == 9 and len({a.group for a in many}) == 9


def test_spo_keeps_the_last_answer_to_every_task_and_learns_from_none_of_them() -> None:
    store = LastOfTask().put(Context(), [], [answer(0, "p", 1, 1.0), answer(1, "q", 1, 1.0)])
    fresh = [answer(2, "q", 1, 0.0), answer(3, "p", 1, None, status=Status.ENV_ERROR)]
    store = LastOfTask().put(Context(step=1), store, fresh)
    assert {e.task: e.uid for e in store} == {"task of p": 0, "task of q": 2}
    assert LastOfTask().get(Context(step=1), store) == store and not LastOfTask().joins  # read, not learned


def test_spo_measures_how_far_the_policy_has_moved_on_the_last_answer() -> None:
    """|log π_then − log π_now| by hand: (0.2 + 0.4) / 2 for q; the task that is not asked again is not scored."""
    last = [answer(7, "q", 2, 1.0), answer(8, "other", 2, 1.0)]
    for e in last:
        e.notes["logp_old"] = Note(np.array([-1.0, -2.0], np.float32), "N")
    asked_for: list[int] = []

    def score(episodes: list[Episode]) -> Batch:
        asked_for.extend(e.uid for e in episodes)
        batch = pack(episodes, dtype=torch.float64)
        return batch.with_columns(logp_policy_N=torch.tensor([-1.2, -1.6], dtype=torch.float64))

    batch = pack([answer(0, "q", 3, 1.0), answer(1, "new", 1, 0.0)], dtype=torch.float64)
    ctx = Context(replay=last, read=score)
    assert Tracked()(ctx, batch)["drift_E"].tolist() == pytest.approx([0.3, 0.0]) and asked_for == [7]


@pytest.mark.parametrize("rewards", [(-1.0, 1.0), (0.0, 5.0)])
def test_spo_refuses_rewards_that_are_no_share(rewards: tuple[float, float]) -> None:
    batch = pack([answer(i, f"q{i}", 1, r) for i, r in enumerate(rewards)])
    said = Tracked().unfit(batch)
    assert f"rewards reach from {rewards[0]:g} to {rewards[1]:g}" in said and "Use 0 to 1" in said
    assert Tracked().unfit(pack([answer(0, "q", 1, 0.25), answer(1, "r", 1, 1.0)])) == ""
