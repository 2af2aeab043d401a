"""Edges of the rooms: what memory lends, what is drawn by weights, what goes on, who is paid, how a batch is cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from rooms import context, task

from gruppo.data import Batch, Episode, Note, Source, Status, pack, single_turn
from gruppo.engines.base import Completion
from gruppo.stages import Ask, Context, Memory, Occupant, Prompt, Sampling
from gruppo.stages.credit import token_reward, two_gaes
from gruppo.stages.curriculum import asked, weighted
from gruppo.stages.play import Fork, request_after
from gruppo.stages.readouts import READOUTS, readout
from gruppo.stages.recorded import RightExperts
from gruppo.stages.replay import as_learned
from gruppo.stages.reward import add_components, codes
from gruppo.stages.tables import Table
from gruppo.stages.update import Passes


def answer(uid: int, n: int = 3, **fields: Any) -> Episode:
    logp = np.full(n, -1.0, np.float32)
    return single_turn(uid, "t", f"g{uid}", np.array([1, 2]), np.arange(10, 10 + n), logp, 0, **fields)


# memory and prompts


def test_what_lies_in_memory_is_shown_and_not_lent() -> None:
    """All the way down; in observe it is the thing itself."""
    memory = Memory()
    with memory.writing():
        memory["rates"] = {"a": [1, {"b": 2}]}
        memory["rates"]["c"] = 3
    rates = memory["rates"]
    assert rates["c"] == 3 and rates["a"][0] == 1 and isinstance(rates["a"], tuple) and rates["a"][1]["b"] == 2
    for table in (rates, rates["a"][1]):
        with pytest.raises(ValueError, match="was written outside observe"):
            table["b"] = 5
    assert Memory({"x": 2.5})["x"] == 2.5


def test_where_an_answer_begins() -> None:
    """With what is given, unless a place is told, the first one included; with nothing where nothing is given."""
    ask = Ask(task(0), 1)
    plain = Prompt(np.array([5, 6, 7]), ask, "g", 1)
    assert (plain.answer_from, ask.index) == (-1, -1)  # not told
    assert plain.begun.tolist() == [] and plain.begun.dtype == np.int64
    given = ((1, 2, "hint"),)
    assert [Prompt(np.array([5, 6, 7]), ask, "g", 1, given, None, p).begun.tolist() for p in (-1, 0, 1, 2, 3)] == [
        [6], [5, 6, 7], [6, 7], [7], [],
    ]  # fmt: skip


# credit


@dataclass(frozen=True)
class Instead(Occupant):
    """Pays `name` instead of another component."""

    name: str = "mine"
    replaces = ("task",)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, list[float]]:
        return {self.name: [0.5] * len(episodes)}


@dataclass(frozen=True)
class InsteadOfMine(Instead):
    name: str = "other"
    replaces = ("mine",)


@pytest.mark.parametrize(("chain", "paid"), [((), 1.0), ((Instead(),), 0.5), ((Instead(), InsteadOfMine()), 0.5)])
def test_what_is_replaced_is_paid_nowhere(chain: tuple[Occupant, ...], paid: float) -> None:
    """The return, and the rewards of tokens, which add up to it; a second one replaces the first as well."""
    e = answer(0, reward={"task": 1.0})
    e.turns[0].reward = {"task": 0.25, "tool": 0.125}
    add_components(context(), chain, [e])
    assert e.replaced == frozenset(["task", "mine"][: len(chain)]) and e.reward["task"] == 1.0
    turn = 0.125 if chain else 0.375
    batch = pack([e], dtype=torch.float64)
    assert token_reward(batch, torch.arange(3), 0.0).tolist() == [0.0, 0.0, paid + turn]
    assert e.total == float(batch.reward_E) == paid + turn


@pytest.mark.parametrize("status", [Status.OPEN, Status.TIMEOUT])
def test_what_was_not_judged_is_not_paid(status: Status) -> None:
    batch = pack([answer(0, reward={"task": 1.0}, status=status), answer(1, 2, reward={"task": 0.5})])
    assert token_reward(batch, torch.arange(5), 0.0).tolist() == [0.0, 0.0, 0.0, 0.0, 0.5]


def test_two_lambdas_by_hand() -> None:
    """V = .2, .4, .6, R = 1, γ = .5: errors 0, −.1, .4. Advantages with γλ = .5, the critic's targets with .25."""
    batch = pack([answer(0, reward={"task": 1.0})], dtype=torch.float64)
    batch = batch.with_columns(value_critic_N=torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64))
    _, adv, ret, _ = two_gaes(batch, 0.5, 1.0, 0.5)
    assert adv.tolist() == pytest.approx([0.05, 0.1, 0.4]) and ret.tolist() == pytest.approx([0.2, 0.4, 1.0])


# curriculum


def test_draws_by_weight_in_proportion() -> None:
    """One of weight 1 and twenty of 1/20: it is the first of every second draw. (The largest of log w − g, with the
    noise the wrong way round, would have it in 0.83 of them.)"""
    weights = torch.tensor([1.0] + [0.05] * 20)
    first = [weighted(context(step=s), weights, 3)[0] == 0 for s in range(600)]
    assert np.mean(first) == pytest.approx(0.5, abs=0.07)
    again = [p == 0 for s in range(30) for p in weighted(context(step=s), weights, 20, replace=True)]
    assert np.mean(again) == pytest.approx(0.5, abs=0.07)


def test_draws_without_replacement_unless_told() -> None:
    for seed in range(5):
        assert sorted(weighted(context(seed=seed), torch.ones(6), 6)) == list(range(6))
    assert len(set(weighted(context(), torch.ones(6), 40, replace=True))) == 6


@pytest.mark.parametrize("replace", [False, True])
def test_a_round_and_a_key_have_luck_of_their_own(replace: bool) -> None:
    draws = {
        tuple(weighted(context(round=r, step=s), torch.ones(50), 8, key, replace=replace))
        for r in (0, 1)
        for s in (0, 1)
        for key in ("a", "b")
    }
    assert len(draws) == 8


class Unlucky(Context):
    def uniform(self, *key: Any) -> Any:
        return torch.zeros(len(key[-1]), dtype=torch.float64)


def test_a_weight_of_0_is_never_drawn() -> None:
    assert weighted(Unlucky(), torch.tensor([0.0, 1.0, 0.0]), 2, replace=True) == [1, 1]
    assert weighted(context(), torch.tensor([0.0, 1.0, 0.0]), 2) == [1]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([0.5, 0.0, -1.0], "1 of 3 weights of tasks are no chances, the first is -1:"),
        ([1.0, float("inf"), float("nan")], "2 of 3 weights of tasks are no chances, the first is inf:"),
        ([float("-inf"), 2.0], "1 of 2 weights of tasks are no chances, the first is -inf:"),
    ],
)
def test_weights_that_are_no_chances_are_refused(weights: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        weighted(context(), torch.tensor(weights), 1)


def test_a_task_that_comes_again_has_a_group_of_its_own() -> None:
    asks = asked(context(samples=5), [task(0), task(1)], [1, 0, 1])
    assert [(a.task.uid, a.group, a.index, a.samples) for a in asks] == [
        ("t1", "t1", 1, 5), ("t0", "t0", 0, 5), ("t1", "t1#2", 1, 5),
    ]  # fmt: skip


# what is remembered, recorded and judged


def test_what_is_recalled_is_what_was_noted_of_tokens() -> None:
    """Nothing is asked of a model."""
    e = answer(0, notes={"adv": Note(np.array([1, 2, 3], np.float32), "N"), "rate": Note(np.ones(1, np.float32))})
    heard: list[dict[str, Any]] = []

    def read(episodes: Sequence[Episode], **how: Any) -> Batch:
        heard.append(how)
        return pack(episodes)

    batch = as_learned(Context(read=read), [e])
    assert batch.adv_N.tolist() == [1, 2, 3] and heard == [{"readouts": ()}]
    assert {n for n in batch.columns if n.startswith(("rate", "note_"))} == {"note_adv_N", "note_rate_E"}


def test_an_expert_that_no_scorer_judged_is_not_followed() -> None:
    experts = [answer(i, source=Source.EXPERT, reward=r) for i, r in enumerate(({"style": 9.0}, {"task": 1.0}))]
    assert RightExperts().episodes(context(), [*experts, answer(2)]) == ([False, True, True], [])


def test_names_as_numbers() -> None:
    assert codes(["b", "a", "b"]).tolist() == [0, 1, 0]
    assert codes([]).dtype == codes(["b"]).dtype == np.int64  # what counts them takes whole numbers only


# rollouts


@pytest.mark.parametrize(("reason", "status"), [("stop", Status.OK), ("length", Status.TRUNCATED)])
@pytest.mark.parametrize("uid", [1, 5])
def test_an_answer_that_goes_on(uid: int, reason: Any, status: Status) -> None:
    """It ends as its last piece does, and keeps what that piece could have been."""
    path, sets = answer(1), [np.array([30, 7]), np.array([31]), np.array([2, 9])]
    done = Completion(np.array([30, 31, 2]), np.full(3, -0.5, np.float32), np.zeros(3, np.int32), reason, None, sets)
    ctx, fork = context(), Fork(path, 4, uid, Sampling(5, temperature=0.5))
    e = fork.ended(ctx, request_after(ctx, fork.prefix, uid, fork.sampling), done)
    s = e.sequences[0]
    assert e.uid == uid and e.status == status and s.ids.tolist() == [1, 2, 10, 11, 30, 31, 2]
    assert s.allowed is not None and {p: x.tolist() for p, x in s.allowed.items()} == {4: [30, 7], 5: [31], 6: [2, 9]}
    assert s.temperature is not None and s.temperature.tolist() == [1, 1, 1, 1, 0.5, 0.5, 0.5]
    assert s.temperature.dtype == s.logp.dtype == np.float32


# readouts, tables, updates


def test_a_readout_of_ones_own() -> None:
    def read(chunk: Any) -> torch.Tensor:
        return chunk.hidden_CD

    def synthetic(g: torch.Generator, n: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(n, dtype=dtype)

    try:
        assert readout("mine", synthetic, "value", pair=True)(read) is read
        readout("plain", synthetic)(read)
        mine, plain = READOUTS["mine"], READOUTS["plain"]
    finally:
        del READOUTS["mine"], READOUTS["plain"]
    assert (mine.name, mine.read, mine.synthetic, mine.head, mine.pair) == ("mine", read, synthetic, "value", True)
    assert (plain.head, plain.pair) == ("policy", False)


def test_a_table_of_nothing_knows_nothing() -> None:
    known = Table().known(torch.tensor([0, 7]))
    assert len(Table()) == 0 and known.tolist() == [False, False] and known.dtype == torch.bool
    one = Table().put(torch.tensor([7]), a=torch.tensor([2.0]))
    assert one.key_T.tolist() == [7] and one.look(torch.tensor([0, 7]), "a", -1.0).tolist() == [-1.0, 2.0]


class Learner:
    trained = ("policy",)

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def step(self, role: str, part: Batch) -> None:
        self.seen.append(tuple(sorted(part.uid_E.tolist())))


def test_every_pass_is_cut_anew() -> None:
    """By run, step and pass."""
    batch, cuts = pack([answer(i) for i in range(8)]), set[tuple[tuple[int, ...], ...]]()
    for seed in (3, 4):
        for step in (5, 6):
            learner = Learner()
            Passes(epochs=2, minibatches=4)(Context(seed=seed, step=step), learner, batch)
            assert [len(p) for p in learner.seen] == [2] * 8
            cuts |= {tuple(learner.seen[:4]), tuple(learner.seen[4:])}
    assert len(cuts) == 8
