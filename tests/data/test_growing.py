"""An episode written turn by turn is the episode made at once; branches share nothing but their past."""

import time
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import LAW, answer, random_episodes
from test_store import bits

from gruppo.data import Episode, Growing, Note, Sequence, Source, Status, ToolCall, Turn, in_steps, nodes_of, pack

SEED = st.integers(0, 2**32 - 1)
OF_TURN = [f.name for f in fields(Turn)][5:]  # beyond the spans


def plain(e: Episode) -> Episode:
    """As a player writes it: contexts in the order of their first turn, no nodes, what nobody sampled at 1.0."""
    order = list(dict.fromkeys(t.sequence for t in e.turns))
    e.sequences = [e.sequences[j] for j in order]
    for t in e.turns:
        t.sequence = order.index(t.sequence)
    for s in e.sequences:
        s.node = None
        given = np.arange(len(s.ids)) < s.prompt_len
        if s.temperature is not None:
            s.temperature[given | (s.source == Source.ENV)] = 1.0
            s.temperature = s.temperature if (s.temperature != 1.0).any() else None
        s.logp[given], s.version[given] = np.nan, -1
        s.allowed = {p: x for p, x in s.allowed.items() if p >= s.prompt_len} if s.allowed else None
        s.allowed = s.allowed or None
    for j in range(len(e.sequences)):  # the prompt is part of the first observation
        next(t for t in e.turns if t.sequence == j).obs_start = 0
    return e


def written(e: Episode, pieces: int = 1) -> Growing:
    """The episode, turn by turn; every action in so many pieces."""
    keep = {f.name: getattr(e, f.name) for f in fields(Episode) if f.name not in ("sequences", "turns")}
    made = Growing(**keep)
    go_on(made, e, e.turns, {}, pieces)
    return made


def go_on(made: Growing, e: Episode, turns: list[Turn], handle: dict[int, int], pieces: int = 1) -> None:
    """Write these turns; `handle`: contexts that are there, by sequence."""
    for t in turns:
        s = e.sequences[t.sequence]
        if t.sequence not in handle:
            head = s.prompt_len
            handle[t.sequence] = made.begin(s.ids[:head], source=s.source[:head], train_as=s.train_as)
        made.switch(handle[t.sequence])
        made.observe(s.ids[len(made.ids) : t.start])
        assert made.ids.tolist() == s.ids[: t.start].tolist()
        for part in np.array_split(np.arange(t.start, t.stop), pieces):
            write(made, s, part)
        made.end(**{name: getattr(t, name) for name in OF_TURN})


def write(made: Growing, s: Sequence, part: np.ndarray) -> None:
    for p in part:
        some = None if s.allowed is None or p not in s.allowed else [s.allowed[p]]
        warm = 1.0 if s.temperature is None else s.temperature[p : p + 1]
        made.write(
            s.ids[p : p + 1], s.logp[p : p + 1], s.version[p : p + 1],
            source=s.source[p : p + 1], temperature=warm, allowed=some,
        )  # fmt: skip


def one(seed: int) -> Episode:
    return plain(random_episodes(seed, 1)[0])


@LAW
@given(SEED, st.integers(1, 3))
def test_written_turn_by_turn_it_is_the_episode(seed: int, pieces: int) -> None:
    e = one(seed)
    assert bits(written(e, pieces).finish()) == bits(e)


@LAW
@given(SEED)
def test_a_copy_is_the_episode_whatever_it_holds(seed: int) -> None:
    for e in random_episodes(seed, 2):
        assert bits(Growing.of(e).finish()) == bits(e)


@LAW
@given(SEED, st.data())
def test_an_episode_that_is_stored_in_the_middle_goes_on_as_if_it_were_not(seed: int, data: st.DataObject) -> None:
    """Stored after any turn and loaded, it is written to its end: nothing differs."""
    e = one(seed)
    cut = data.draw(st.integers(1, len(e.turns)))
    made = Growing.of(written(replace(e, turns=e.turns[:cut])).finish(Status.OPEN))
    there = {t.sequence for t in e.turns[:cut]}
    go_on(made, e, e.turns[cut:], {j: j for j in there})
    assert bits(made.finish(e.status)) == bits(e)


# ---- forks


def cut_at(e: Episode, turn: int) -> Episode:
    """What was there before the action of a turn, read off the episode."""
    last = {t.sequence: t.stop for t in e.turns[:turn]}
    return replace(
        e,
        sequences=[e.sequences[j].upto(last[j]) for j in sorted(last)],
        turns=e.turns[:turn],
    )


@LAW
@given(SEED, st.data())
def test_a_fork_is_the_past_and_then_its_own(seed: int, data: st.DataObject) -> None:
    e = one(seed)
    turn = data.draw(st.integers(0, len(e.turns) - 1))
    made = Growing.of(e).fork(99, turn)
    here = e.turns[turn]
    past = e.sequences[here.sequence].ids[: here.start]
    assert made.ids.tolist() == past.tolist()
    made.act(np.array([5, 6]), np.array([-1.0, -2.0], np.float32), 7, text="new")
    got, want = made.finish(), cut_at(e, turn)
    assert (got.uid, got.parent, got.fork) == (99, e.uid, turn)
    assert (got.reward, got.status, got.text, got.answer, got.rewarded) == ({}, Status.OK, "", "", False)
    assert {k: n.level for k, n in got.notes.items()} == {k: n.level for k, n in e.notes.items() if n.level == "E"}
    assert bits(got.turns[:-1]) == bits(want.turns)
    new = got.turns[-1]
    assert (new.start, new.stop, new.obs_start, new.state, new.agent) == (
        here.start, here.start + 2, here.obs_start, here.state, here.agent,
    )  # fmt: skip
    for j, s in enumerate(got.sequences):
        stop = here.start if j == new.sequence else len(s.ids)
        old = e.sequences[j if j < len(want.sequences) else here.sequence]
        for name in ("ids", "source", "logp", "version"):
            assert bits(getattr(s, name)[:stop]) == bits(getattr(old, name)[:stop])


@LAW
@given(SEED, st.data())
def test_the_decisions_of_siblings_are_the_same_nodes_up_to_the_fork_and_no_further(
    seed: int, data: st.DataObject
) -> None:
    e = replace(one(seed), notes={}, use=0)
    turn = data.draw(st.integers(0, len(e.turns) - 1))
    made = Growing.of(e).fork(99, turn)
    made.act(np.array([5, 6]), np.zeros(2, np.float32), 7)
    sibling = replace(made.finish(), notes={})
    batch = pack([e, sibling])
    mine = [set(batch.node_N[batch.episode_N == i].tolist()) for i in range(2)]
    here = e.turns[turn]
    last = {t.sequence: t.stop for t in e.turns[:turn]} | {here.sequence: here.start}
    shared = [nodes_of(e, j)[:stop] for j, stop in last.items()]
    assert mine[0] & mine[1] == {x for s in shared for x in s.tolist() if x != -1}
    assert len(mine[1] - mine[0]) == 2


def mutable(x: Any) -> set[int]:
    """Addresses of everything in it that can be written to."""
    if isinstance(x, np.ndarray):
        return {id(x) if x.base is None else id(x.base)}
    if isinstance(x, dict):
        return {id(x)}.union(*map(mutable, x.values()))
    if isinstance(x, list | tuple):
        return ({id(x)} if isinstance(x, list) else set[int]()).union(*map(mutable, x))
    if isinstance(x, Episode | Sequence | Turn | Note):
        return {id(x)}.union(*(mutable(getattr(x, f.name)) for f in fields(x)))
    if isinstance(x, Growing):
        return {id(x)}.union(*map(mutable, vars(x).values()))
    if hasattr(x, "__slots__") and not isinstance(x, int):  # no Status, Source or Use
        return {id(x)}.union(*(mutable(getattr(x, name)) for name in x.__slots__))
    return set()


@LAW
@given(SEED, st.booleans(), st.sampled_from([99, None]))
def test_a_fork_shares_nothing_that_can_be_written_to(seed: int, whole: bool, uid: int | None) -> None:
    e = one(seed)
    e.notes["of e"] = Note(np.ones(1, np.float32))
    grown = Growing.of(e)
    branch = grown.fork(e.uid if uid is None else uid, None if whole else len(e.turns) - 1)
    done = branch.finish()
    assert mutable(e) and len(mutable(grown)) > 3
    everything = [mutable(x) for x in (e, grown, branch, done)]
    for i, a in enumerate(everything):
        for b in everything[:i]:
            assert not a & b


def test_what_comes_later_changes_nothing_that_was_read() -> None:
    made = Growing(1, "t", "g")
    made.begin(np.array([1, 2]))
    made.act(np.array([3]), np.zeros(1, np.float32), 0)
    prefix, early = made.ids, made.finish()
    branch = made.fork(2)
    for i in range(200):
        made.observe(np.array([i]))
        made.act(np.array([i, i]), np.zeros(2, np.float32), 0, reward={"r": 1.0})
    early.turns[0].reward["task"] = 1.0
    assert prefix.tolist() == [1, 2, 3] and early.sequences[0].ids.tolist() == [1, 2, 3] and len(early.turns) == 1
    assert branch.ids.tolist() == [1, 2, 3] and made.turns[0].reward == {}
    with pytest.raises(ValueError, match="read-only"):
        prefix[0] = 9


def test_an_action_that_is_cut_goes_on() -> None:
    """Sequences a a b: the second action of a is cut after its first token; that of b, which came later, is gone."""
    made = Growing(1, "t", "g")
    a = made.begin(np.array([1]))
    made.act(np.array([10, 11]), np.zeros(2, np.float32), 0, state="s", agent="a", reward={"r": 1.0})
    made.begin(np.array([2]))
    made.act(np.array([20]), np.zeros(1, np.float32), 0, agent="b")
    made.switch(a)
    made.observe(np.array([12]))
    made.act(np.array([13, 14]), np.zeros(2, np.float32), 0, state="t", agent="a", reward={"r": 2.0})
    cut = made.fork(7, turn=2, at=5)
    assert cut.acting and cut.ids.tolist() == [1, 10, 11, 12, 13]
    cut.write(np.array([30]), source=Source.INJECTED)
    cut.act(np.array([31]), np.zeros(1, np.float32), 1)
    e = cut.finish()
    assert [s.ids.tolist() for s in e.sequences] == [[1, 10, 11, 12, 13, 30, 31], [2, 20]]
    assert [(t.start, t.stop, t.sequence, t.obs_start, t.obs_stop) for t in e.turns] == [
        (1, 3, 0, 0, 1), (1, 2, 1, 0, 1), (4, 7, 0, 3, 4),
    ]  # fmt: skip
    assert [(t.state, t.agent, t.reward) for t in e.turns] == [("s", "a", {"r": 1.0}), ("", "b", {}), ("t", "a", {})]
    early = made.fork(8, turn=0, at=2)
    early.act(np.array([40]), np.zeros(1, np.float32), 1)
    assert [s.ids.tolist() for s in early.finish().sequences] == [[1, 10, 40]]
    seen = made.fork(9, turn=2, at=4)  # where the observation ends, nothing is under way
    assert seen.ids.tolist() == [1, 10, 11, 12]


def test_a_context_in_which_nobody_acts_is_left_out() -> None:
    made = Growing(1, "t", "g")
    idle = made.begin(np.array([1]))
    made.begin(np.array([2]))
    made.act(np.array([3]), np.zeros(1, np.float32), 0)
    assert [s.ids.tolist() for s in made.finish().sequences] == [[2, 3]]
    made.switch(idle)
    made.act(np.array([4]), np.zeros(1, np.float32), 0)
    e = made.finish()
    assert [s.ids.tolist() for s in e.sequences] == [[2, 3], [1, 4]] and [t.sequence for t in e.turns] == [0, 1]
    pack([e])


def test_an_action_that_is_under_way_is_the_last_turn() -> None:
    made = Growing(1, "t", "g")
    made.begin(np.array([1]))
    made.write(np.array([2]), np.zeros(1, np.float32), 0)
    branch = made.fork(2)
    branch.act(np.array([3]), np.zeros(1, np.float32), 0)
    assert [(t.start, t.stop) for t in branch.finish().turns] == [(1, 3)]
    assert [(t.start, t.stop) for t in made.finish(Status.OPEN).turns] == [(1, 2)]
    silent = Growing(1, "t", "g")
    silent.begin(np.array([1]))
    silent.end(flags=frozenset({"void"}))
    assert [(t.start, t.stop) for t in silent.finish().turns] == [(1, 1)]


# ---- refusals


def begun() -> Growing:
    made = Growing(5, "t", "g")
    made.begin(np.array([1, 2]))
    made.act(np.array([3]), np.zeros(1, np.float32), 0)
    return made


@pytest.mark.parametrize("verb", ["observe", "begin", "switch"])
def test_nothing_comes_between_the_tokens_of_an_action(verb: str) -> None:
    made = begun()
    made.write(np.array([4]))
    with pytest.raises(ValueError, match=r"episode 5: an action is under way, so .* Call end"):
        getattr(made, verb)(0 if verb == "switch" else np.array([1]))


@pytest.mark.parametrize(
    ("turn", "at", "said"),
    [
        (1, None, r"episode 5 has no turn 1: there are 1"),
        (-1, None, r"no turn -1"),
        (0, 1, r"turn 0 of episode 5 cannot be cut at 1: .* it is 2 to 3.*the prompt"),
        (0, 4, r"cannot be cut at 4"),
    ],
)
def test_a_cut_that_cannot_be(turn: int, at: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        begun().fork(6, turn, at)


def test_other_mistakes_are_sentences() -> None:
    with pytest.raises(ValueError, match=r"episode 1 has no context to act in. Call begin\(prompt\) first"):
        Growing(1, "t", "g").act(np.array([1]))
    with pytest.raises(ValueError, match="context 3 of episode 5 was never begun: there are 1"):
        begun().switch(3)
    made = begun()
    with pytest.raises(ValueError, match="logp has 1 entries for 2 ids"):
        made.act(np.array([1, 2]), np.zeros(1, np.float32), 0)
    assert not made.acting and made.ids.tolist() == [1, 2, 3]  # nothing of it is there


# ---- steps


def test_any_turn_of_an_episode_can_be_in_steps() -> None:
    e, i = next((e, i) for e in map(one, range(99)) for i, t in enumerate(e.turns) if i and t.stop - t.start > 2)
    whole = e.turns[i]
    whole.tools, whole.seconds = (ToolCall("add", "1", 2.0),), 3.0
    ends = [whole.start + 1, whole.start + 2]
    steps = in_steps(e, ends, i)
    mine = steps.turns[i : i + 3]
    assert [(t.start, t.stop) for t in mine] == list(zip([whole.start, *ends], [*ends, whole.stop], strict=True))
    assert len(steps.turns) == len(e.turns) + 2 and bits(steps.sequences) == bits(e.sequences)
    assert steps.total == e.total or (np.isnan(steps.total) and np.isnan(e.total))
    assert [(t.tag, t.agent, t.flags) for t in mine] == [(whole.tag, whole.agent, whole.flags)] * 3
    assert [(t.seconds, len(t.tools)) for t in mine] == [(0, 0), (0, 0), (3.0, 1)]
    with pytest.raises(ValueError, match="has no turn 99"):
        in_steps(e, [3], 99)
    assert bits(in_steps(answer(1), []).sequences) == bits(answer(1).sequences)


# ---- time


def seconds(turns: int, contexts: bool) -> float:
    prompt, act, seen = np.arange(30), np.arange(5), np.arange(12)
    logp = np.zeros(5, np.float32)
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        made = Growing(1, "t", "g")
        made.begin(prompt)
        for _ in range(turns):
            if contexts:
                made.begin(prompt)
            else:
                made.observe(seen)
            assert len(made.ids) >= 30  # the prefix of the next request
            made.act(act, logp, 0)
        made.finish()
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("contexts", [False, True], ids=["one context", "a context a turn"])
def test_time_is_linear_in_the_tokens(contexts: bool) -> None:
    """24 times the turns take 24 times as long; with a look at the past at every turn, it would be far more."""
    assert seconds(6000, contexts) < 48 * seconds(250, contexts)
