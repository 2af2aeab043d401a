"""Random episodes for the laws, with every kind of row: turns, contexts, given tokens, failures, groups of one."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from gruppo.data import Episode, Note, Sequence, Source, Status, ToolCall, Turn, Use
from gruppo.data.keyed import uniform
from gruppo.data.views import as_sampled
from gruppo.stages import Ask, Method
from gruppo.stages.occupant import NoteColumn
from gruppo.tasks import Task

R = TypeVar("R", Episode, Sequence, Turn)
VOCAB = 12
GIVEN = (Source.HINT, Source.EXPERT, Source.FORCED, Source.OPPONENT, Source.INJECTED)
UNJUDGED = (Status.ENV_ERROR, Status.OPEN, Status.TIMEOUT, Status.CANCELLED)
GROUPS = ("g0", "g1", "g2", "g3", "one", "equal", "new")  # one task each, of two domains; the last is never drawn
JUDGED = (Status.OK, Status.TRUNCATED, Status.INVALID)


def random_episodes(seed: int, *, groups: int = 2, mixed: bool = True, dead: bool = True) -> list[Episode]:
    """Groups of three to five judged episodes, each of one to four turns in one or two sequences.

    Every batch holds every kind of row: given tokens of every source, turns that alternate between sequences, prompts
    that differ between sampling and training, temperatures, truncation sets, turn rewards, a baseline episode.

    mixed  every group has right and wrong answers
    dead   in addition: a group of equal rewards (replayed), a group of one, episodes apart (of an expert and of the
           policy), an expert's among the others, an unused one, and failed and open ones, some with a reward
    In a group some answers are the same, others are not, and some are empty. With an odd seed the reward has two
    components, which add up to 0 or 1.
    """
    return [_fresh(e) for e in _drawn(seed, groups, mixed, dead)]


def _fresh(e: Episode) -> Episode:
    """New objects around the same arrays, which are read-only."""
    out = rewritable(e)
    out.sequences, out.notes = [_copied(s) for s in e.sequences], {}
    return out


def rewritable(e: Episode) -> Episode:
    """The episode with rewards of its own, also on its turns."""
    out = _copied(e)
    out.turns, out.reward = [_copied(t) for t in e.turns], dict(e.reward)
    for turn in out.turns:
        turn.reward = dict(turn.reward)
    return out


def _copied(x: R) -> R:
    """As `replace` without changes, twice as fast: the laws copy every row again and again."""
    out = object.__new__(type(x))
    for name in x.__dataclass_fields__:
        setattr(out, name, getattr(x, name))
    return out


@lru_cache(maxsize=32)  # all laws and methods use the same few seeds
def _drawn(seed: int, groups: int, mixed: bool, dead: bool) -> list[Episode]:
    rng = np.random.default_rng(seed)
    out: list[Episode] = []

    def add(group: str, reward: float | None, status: Status = Status.OK, use: Use = Use.LEARN, **rest: Any) -> None:
        out.append(_episode(rng, len(out), group, reward, status, use, **rest))

    for g in range(groups):
        size = int(rng.integers(3, 6))
        rewards = rng.integers(0, 2, size).astype(float)
        if mixed:
            rewards[:2] = [0.0, 1.0]
        rng.shuffle(rewards)
        for i, reward in enumerate(rewards.tolist()):
            use = Use.BASELINE if i == size - 1 and (g == 0 or rng.random() < 0.2) else Use.LEARN
            add(f"g{g}", reward, JUDGED[int(rng.integers(3)) if g else i % 3], use)
    if dead:
        for i, status in enumerate(UNJUDGED):
            add(f"g{i % groups}" if i < 3 else "one", (None, 1.0)[i % 2], status)
        add("g0", 1.0, use=Use.NONE)
        add("g1", 1.0, use=Use.APART, author=Source.EXPERT)
        add("g0", float(rng.integers(2)), use=Use.APART)
        add("one", float(rng.integers(2)))
        for _ in range(3):  # three times 0.7 is rounded
            add("equal", 1.0, replayed=True)
        add("g0", 1.0, author=Source.EXPERT)
    _say(seed, out)
    _act(out)
    if seed % 2:
        _in_two(seed, out)
    for s in (s for e in out for s in e.sequences):
        _lock(s.ids, s.source, s.logp, s.version, s.temperature, s.train_as, *(s.allowed or {}).values())
    return out


ANSWERS = ("7", "7", "12", "", "30")


def _say(seed: int, episodes: Seq[Episode]) -> None:
    """Answers by their index in the group: the first group begins with two equal ones, the second has an empty one."""
    rng = np.random.default_rng((seed, 1))
    start = dict(zip(dict.fromkeys(e.group for e in episodes), (0, 1, *rng.integers(5, size=9)), strict=False))
    for e in episodes:
        e.text = e.answer = ANSWERS[start[e.group] % len(ANSWERS)]
        start[e.group] += 1


THOUGHTS = ("planning", "explore", "reflection", "monitor", "")


def _act(episodes: Seq[Episode]) -> None:
    """What is said about turns: kinds of thoughts, calls of tools, actions that were void or invalid.

    It is a function of uid and turn alone, so that nothing else of an episode depends on it.
    """
    for e in episodes:
        for i, t in enumerate(e.turns):
            t.tag = THOUGHTS[(e.uid + 2 * i) % 5]
            t.tools = tuple(ToolCall("search", str(j), 0.1) for j in range((e.uid + i) % 3 if e.uid % 9 else 0))
            void, invalid = e.uid % 4 == 2 and i == 1, (e.uid + i) % 5 == 3
            t.flags = frozenset([*(["void"] if void else []), *(["invalid"] if invalid else [])])


def _in_two(seed: int, episodes: Seq[Episode]) -> None:
    """Split the reward into `task` and `style`. The sum stays the same, and `task` is above 0 where it was."""
    rng = np.random.default_rng((seed, 2))
    for e in episodes:
        style = float(rng.integers(3)) / 4 if e.group != "equal" else 0.25
        if e.reward:
            e.reward = {"task": e.reward["task"] - style, "style": style}


def _lock(*arrays: np.ndarray | None) -> None:
    for x in arrays:
        if x is not None:
            x.setflags(write=False)


def _episode(
    rng: np.random.Generator,
    number: int,
    group: str,
    reward: float | None,
    status: Status,
    use: Use,
    author: Source = Source.POLICY,
    replayed: bool = False,
) -> Episode:
    """The properties of an episode depend on its number, so that a few of them cover everything."""
    sequences: list[Sequence] = []
    queues: list[list[Turn]] = []
    for s in range(2 if number % 2 == 0 else 1):
        source, spans = [np.zeros(1, np.int8)], list[tuple[int, int]]()
        for k in range(2 if number % 6 != 3 else int(rng.integers(1, 3))):
            obs, act = int(rng.integers(1, 3)), int(rng.integers(1, 5))
            given = GIVEN[(number + 2 * s + k) % 5] if number % 2 == 0 or rng.random() < 0.3 else Source.ENV
            start = sum(map(len, source)) + obs
            source += [np.full(obs, given, np.int8), np.full(act, author, np.int8)]
            spans.append((start, start + act))
        sequences.append(_sequence(rng, number, np.concatenate(source), spans[0][0]))
        turns = [Turn(a, b, s, state=f"s{rng.integers(3)}", action_key=f"a{rng.integers(2)}") for a, b in spans]
        queues.append(turns)
    if number % 3 == 1:  # they add up to 0, so that right stays 1 and wrong 0
        size = float(rng.integers(1, 5)) / 4
        queues[0][0].reward, queues[0][1].reward = {"turn": size}, {"turn": -size}
    order = [i for i, q in enumerate(queues) for _ in q]
    turns = [queues[i].pop(0) for i in (order[::2] + order[1::2] if number % 4 == 0 else rng.permutation(order))]
    parts = {} if reward is None else {"task": reward}
    e = Episode(1000 + number, f"t-{group}", group, sequences, turns, parts, status, use, author, text="x", step=0)
    e.replayed, e.index = replayed, GROUPS.index(group)
    e.domain = f"desk/{1 + e.index % 2}"
    e.ask = Ask(Task(e.task, f"{e.index}+{e.index}=", str(2 * e.index), 1 + e.index % 2, "desk"), 4, group)
    return e


class Letters:
    """The tokenizer of the small world: a letter is a token, and several letters share one."""

    eos = 1

    def encode(self, text: str) -> np.ndarray:
        return np.array([2 + ord(letter) % (VOCAB - 2) for letter in text], np.int64)

    def decode(self, ids: Seq[int]) -> str:
        return "".join("_$abcdefghij"[i] for i in ids)


def _sequence(rng: np.random.Generator, number: int, source: Any, prompt: int) -> Sequence:
    n, mine = len(source), source == Source.POLICY
    ids = np.concatenate([[1], rng.integers(2, VOCAB, n - 1)])
    some = {int(p): np.unique([ids[p], *rng.integers(2, VOCAB, 4)]) for p in np.flatnonzero(mine)}
    return Sequence(
        ids=ids,
        source=source,
        logp=np.where(mine, -rng.random(n) * 2 - 0.05, np.nan).astype(np.float32),
        version=np.where(mine, 0, -1).astype(np.int32),
        prompt_len=prompt,
        temperature=np.full(n, 0.7, np.float32) if number % 3 == 2 else None,
        allowed=some if number % 3 == 0 else None,
        train_as=np.array([1, *rng.integers(2, VOCAB, 2)]) if number % 4 == 1 else None,
    )


def with_rewards(episodes: Seq[Episode], reward: float) -> list[Episode]:
    """The episodes with this task reward, one value for any other component, and no turn rewards."""
    calm = [[replace(t, reward={}) for t in e.turns] for e in episodes]
    return [
        replace(e, reward={k: reward if k == "task" else 0.3 for k in e.reward}, turns=turns)
        for e, turns in zip(episodes, calm, strict=True)
    ]


def with_notes(method: Method, episodes: Seq[Episode]) -> list[Episode]:
    """The episodes with every note that an occupant reads, as if a room of the method had written them.

    The values are random, keyed by episode. Failed episodes have no notes, and so NaN in the columns.
    """
    read = {column for _, o in method.occupants() for column in o.reads if isinstance(column, NoteColumn)}
    if not read:
        return list(episodes)

    def note(e: Episode, name: str, level: str, among: tuple[float, ...]) -> Note:
        decisions = sum(len(as_sampled(s)[1]) for s in e.sequences)
        size = {"E": 1, "S": len(e.sequences), "K": len(e.turns), "N": decisions}[level]
        draw = np.array([float(uniform("note", name, e.uid, i)) for i in range(size)])
        values = np.array(among)[(draw * len(among)).astype(int)] if among else draw
        return Note(values.astype(np.float32), level, 0)

    wanted = {c.removeprefix("note_")[:-2]: (c[-1], c.among) for c in sorted(read)}
    return [
        replace(e, notes={n: note(e, n, *spec) for n, spec in wanted.items() if e.status.judged} | e.notes)
        for e in episodes
    ]
