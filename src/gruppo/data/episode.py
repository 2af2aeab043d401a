"""What happened: episodes, turns and sequences, exactly as they happened.

Token ids in, token ids out: nothing here is ever decoded and encoded again.
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Source(IntEnum):
    """Who wrote a token. Every token that is not `ENV` is a decision (a row of level N)."""

    ENV = 0  # prompts, observations, tool results
    POLICY = 1  # sampled from the policy that is trained
    EXPERT = 2  # demonstration
    HINT = 3  # a piece of a solution given by prompting
    FORCED = 4  # put there by a steered sampler
    OPPONENT = 5  # sampled from another model
    INJECTED = 6  # put there by the method (inducers, budget markers)


class Status(IntEnum):
    """How an episode ended. A failure of infrastructure is a status, never a reward of 0."""

    OK = 0
    TRUNCATED = 1  # ran out of tokens or turns
    OPEN = 2  # unfinished, goes on in a later step; has no reward yet
    INVALID = 3  # the policy's own fault: unreadable answer, illegal action
    ENV_ERROR = 4  # environment, tool or scorer raised
    TIMEOUT = 5  # environment, tool or scorer hung and was killed
    CANCELLED = 6

    @property
    def judged(self) -> bool:
        """Whether the episode may carry a reward and enter group statistics."""
        return self in (Status.OK, Status.TRUNCATED, Status.INVALID)


class Use(IntEnum):
    LEARN = 0  # in statistics and learned
    BASELINE = 1  # in statistics only
    NONE = 2  # kept for the record only
    APART = 3  # learned, in no statistic: experts, extra draws


# What may be said of a turn; `flags_K` holds their sum.
FLAGS = {"void": 1, "invalid": 2, "truncated": 4, "patched": 8}


@dataclass(slots=True)
class Note:
    """Values that a room attached to an episode: one number a row of `level`, with the weight version."""

    values: Floats
    level: str = "E"
    version: int = -1


@dataclass(slots=True)
class ToolCall:
    name: str
    arguments: str
    seconds: float
    ok: bool = True


@dataclass(slots=True)
class Turn:
    """One action of one agent. Spans are [start, stop) into the ids of `sequence`."""

    start: int
    stop: int
    sequence: int = 0
    obs_start: int = 0
    obs_stop: int = 0
    state: str = ""  # key of the state before the action
    action_key: str = ""  # canonical text of the action
    agent: str = "policy"
    reward: dict[str, float] = field(default_factory=dict[str, float])
    tools: tuple[ToolCall, ...] = ()
    flags: frozenset[str] = frozenset()  # of FLAGS


@dataclass(slots=True)
class Sequence:
    """One context that the model saw. Arrays are as long as `ids`."""

    ids: Ints
    source: NDArray[np.int8]
    logp: Floats  # of the distribution really sampled; NaN where nothing was sampled
    version: NDArray[np.int32]  # weights that sampled the token; -1 where nothing was sampled
    prompt_len: int
    temperature: Floats | None = None  # payload; None means 1 everywhere
    allowed: dict[int, Ints] | None = None  # payload: position -> ids that the truncated sampler could take
    node: Ints | None = None  # id of the decision in a tree; -1, or None for all: it is shared with no other sequence
    train_as: Ints | None = None  # the prompt to learn under, if it is another

    def __post_init__(self) -> None:
        n = len(self.ids)
        for name in ("source", "logp", "version", "temperature", "node"):
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise ValueError(
                    f"Sequence.{name} has {len(column)} entries for {n} ids: columns would slip against tokens. "
                    "Give one entry per id."
                )

    def upto(self, at: int) -> "Sequence":
        """The sequence as it was before position `at`; its prompt stays whole."""
        if not self.prompt_len <= at <= len(self.ids):
            raise ValueError(
                f"a sequence of {len(self.ids)} ids, {self.prompt_len} of them its prompt, cannot be cut at {at}: the "
                f"prompt would change, or there is nothing to cut. Use {self.prompt_len} to {len(self.ids)}."
            )
        return replace(
            self,
            ids=self.ids[:at],
            source=self.source[:at],
            logp=self.logp[:at],
            version=self.version[:at],
            temperature=None if self.temperature is None else self.temperature[:at],
            allowed=None if self.allowed is None else {p: ids for p, ids in self.allowed.items() if p < at},
            node=None if self.node is None else self.node[:at],
        )

    def extended(
        self,
        ids: Ints,
        source: Source,
        logp: NDArray[Any] | None = None,
        version: int | NDArray[np.int32] = -1,
        temperature: float = 1.0,
        allowed: list[Ints] | None = None,
    ) -> "Sequence":
        """The sequence, and these tokens of one source after it; without `logp`, tokens that nobody sampled."""
        n, end = len(ids), len(self.ids)

        def join(column: Any, tail: Any) -> Any:
            return np.concatenate([column, np.broadcast_to(np.asarray(tail, column.dtype), (n,))])

        warm = np.ones(end, np.float32) if self.temperature is None else self.temperature
        sets = {end + i: some for i, some in enumerate(allowed or [])}
        return replace(
            self,
            ids=join(self.ids, ids),
            source=join(self.source, source),
            logp=join(self.logp, np.nan if logp is None else logp),
            version=join(self.version, version),
            temperature=None if self.temperature is None and temperature == 1.0 else join(warm, temperature),
            allowed={**(self.allowed or {}), **sets} if self.allowed is not None or allowed is not None else None,
            node=None if self.node is None else join(self.node, -1),
        )

    def trained(self) -> "Sequence":
        """The sequence under the context it is learned in (`train_as` instead of the sampled prompt)."""
        if self.train_as is None:
            return self
        head, shift = len(self.train_as), len(self.train_as) - self.prompt_len

        def swap(column: Any, fill: Any) -> Any:
            return np.concatenate([np.full(head, fill, column.dtype), column[self.prompt_len :]])

        return replace(
            self,
            ids=np.concatenate([self.train_as, self.ids[self.prompt_len :]]),
            source=swap(self.source, Source.ENV),
            logp=swap(self.logp, np.nan),
            version=swap(self.version, -1),
            temperature=None if self.temperature is None else swap(self.temperature, 1.0),
            allowed=None if self.allowed is None else {p + shift: ids for p, ids in self.allowed.items()},
            node=None if self.node is None else swap(self.node, -1),
            prompt_len=head,
            train_as=None,
        )


@dataclass(slots=True)
class Episode:
    uid: int
    task: str  # uid of the task
    group: str  # set by Ask or Prompt; not the task
    sequences: list[Sequence]
    turns: list[Turn]
    reward: dict[str, float] = field(default_factory=dict[str, float])  # components; `task` is the task's own
    status: Status = Status.OK
    use: Use = Use.LEARN
    source: Source = Source.POLICY
    notes: dict[str, Note] = field(default_factory=dict[str, Note])
    text: str = ""  # what the policy wrote, for people and scorers
    error: str = ""  # what went wrong, in words
    final_state: str = ""
    replayed: bool = False
    step: int = -1  # step in which it was made
    domain: str = ""  # of the task: problems of one kind
    index: int = -1  # of the task in the training set; -1: not known
    answer: str = ""  # what the text answers; those of a group that mean the same are written the same; "": nothing
    replaced: frozenset[str] = frozenset()  # components that are recorded, but not paid: another stands for them
    ask: Any = field(
        default=None, repr=False, compare=False, kw_only=True
    )  # what asked for it, in this process; not stored
    rewarded: bool = field(default=False, compare=False, kw_only=True)  # through the reward room, which it passes once

    @property
    def total(self) -> float:
        """The return: the sum of its components and of those of its turns; NaN while nothing was judged."""
        tables = (self.reward, *(t.reward for t in self.turns))
        parts = [r for table in tables for name, r in table.items() if name not in self.replaced]
        return float(sum(parts)) if self.status.judged and parts else float("nan")

    @property
    def tokens(self) -> int:
        """Tokens sampled from the policy."""
        return int(sum((s.source == Source.POLICY).sum() for s in self.sequences))


def single_turn(
    uid: int,
    task: str,
    group: str,
    prompt: Ints,
    action: Ints,
    logp: Floats,
    version: int | NDArray[np.int32],
    *,
    source: Source = Source.POLICY,
    temperature: float | None = None,
    allowed: list[Ints] | None = None,
    prompt_source: NDArray[np.int8] | None = None,
    train_as: Ints | None = None,
    **rest: Any,
) -> Episode:
    """The usual episode: one prompt, one action, one sequence."""
    p, a = len(prompt), len(action)
    tail = np.full(a, source, np.int8)
    head = np.full(p, Source.ENV, np.int8) if prompt_source is None else prompt_source
    empty = np.full(p, np.nan, np.float32)
    sequence = Sequence(
        ids=np.concatenate([prompt, action]),
        source=np.concatenate([head, tail]),
        logp=np.concatenate([empty, logp.astype(np.float32)]),
        version=np.concatenate([np.full(p, -1, np.int32), np.broadcast_to(np.asarray(version, np.int32), (a,))]),
        prompt_len=p,
        temperature=None if temperature in (None, 1.0) else np.full(p + a, temperature, np.float32),
        allowed=None if allowed is None else {p + i: ids for i, ids in enumerate(allowed)},
        train_as=train_as,
    )
    turn = Turn(start=p, stop=p + a, obs_stop=p)
    return Episode(uid=uid, task=task, group=group, sequences=[sequence], turns=[turn], source=source, **rest)


def in_steps(episode: Episode, ends: list[int]) -> Episode:
    """An episode of one turn as one of several: a turn ends before each of these positions, the last at the end.

    Nothing is observed between two of them. What the turn was worth lies on the last.
    """
    [turn] = episode.turns
    inner = sorted({at for at in ends if turn.start < at < turn.stop})
    starts, stops = [turn.start, *inner], [*inner, turn.stop]
    steps = [
        replace(turn, start=a, stop=b, obs_start=a, obs_stop=a, reward={}, state="", action_key="", tools=())
        for a, b in zip(starts, stops, strict=True)
    ]
    steps[0] = replace(steps[0], obs_start=turn.obs_start, obs_stop=turn.obs_stop, state=turn.state)
    steps[-1] = replace(steps[-1], reward=turn.reward, tools=turn.tools)
    return replace(episode, turns=steps)
