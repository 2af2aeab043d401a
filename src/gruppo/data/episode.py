"""Episodes, turns and sequences, recorded exactly as they happened.

Token ids in, token ids out: text is never decoded and encoded again.
"""

import math
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Source(IntEnum):
    """Where a token comes from. Every token that is not `ENV` is a decision (a row of level N)."""

    ENV = 0  # prompts, observations, tool results
    POLICY = 1  # sampled from the policy that is trained
    EXPERT = 2  # demonstration
    HINT = 3  # part of a solution, given by prompting
    FORCED = 4  # inserted by a constrained sampler
    OPPONENT = 5  # sampled from another model
    INJECTED = 6  # inserted by the method (inducers, budget markers)


class Status(IntEnum):
    """How an episode ended. An infrastructure failure is a status, never a reward of 0."""

    OK = 0
    TRUNCATED = 1  # ran out of tokens or turns
    OPEN = 2  # unfinished, continues in a later step; has no reward yet
    INVALID = 3  # the policy's own fault: unparsable answer, illegal action
    ENV_ERROR = 4  # environment, tool or scorer raised
    TIMEOUT = 5  # environment, tool or scorer hung and was killed
    CANCELLED = 6

    @property
    def judged(self) -> bool:
        """Whether the episode may carry a reward and enter group statistics."""
        return self in (Status.OK, Status.TRUNCATED, Status.INVALID)


class Use(IntEnum):
    LEARN = 0  # in statistics and learned from
    BASELINE = 1  # in statistics only
    NONE = 2  # recorded only
    APART = 3  # learned from, but in no statistic: experts, extra draws


# The flags of a turn; `flags_K` holds their sum.
# repeated: it does what was done in this state before; edit: it changes the agent's own context or memory.
FLAGS = {"void": 1, "invalid": 2, "truncated": 4, "patched": 8, "repeated": 16, "edit": 32}


@dataclass(slots=True)
class Note:
    """Values attached to an episode: one number for each row of `level`, and the weight version they belong to."""

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
    tag: str = ""  # kind of thought, such as plan or explore; "": none
    # From the request to what the action led to, those of tools included. Two plays need not have them in common.
    seconds: float = field(default=0.0, compare=False)
    text: str = ""  # the action as it was written, for people and rewards


_COLUMNS = ("ids", "source", "logp", "version", "temperature", "node")  # of Sequence: one entry for each token


@dataclass(slots=True)
class Sequence:
    """One context of the model. Arrays are as long as `ids`."""

    ids: Ints
    source: NDArray[np.int8]
    logp: Floats  # under the distribution actually sampled from; NaN where nothing was sampled
    version: NDArray[np.int32]  # of the weights that sampled the token; -1 where nothing was sampled
    prompt_len: int
    temperature: Floats | None = None  # None: 1 everywhere
    allowed: dict[int, Ints] | None = None  # position -> ids that truncated sampling could choose from
    node: Ints | None = None  # id of the decision in a tree; -1, or None for all: not shared with another sequence
    train_as: Ints | None = None  # the prompt to train under, if different

    def __post_init__(self) -> None:
        n = len(self.ids)
        for name in _COLUMNS:
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise ValueError(
                    f"Sequence.{name} has {len(column)} entries for {n} ids: they would be misaligned with the tokens. "
                    "Give one entry per id."
                )

    def upto(self, at: int) -> "Sequence":
        """The sequence as it was before position `at`, which is not inside the prompt."""
        if not self.prompt_len <= at <= len(self.ids):
            raise ValueError(
                f"a sequence of {len(self.ids)} ids, {self.prompt_len} of them its prompt, cannot be cut at {at}: the "
                f"prompt would change, or there is nothing to cut. Use {self.prompt_len} to {len(self.ids)}."
            )
        columns: dict[str, Any] = {c: x[:at] for c in _COLUMNS if (x := getattr(self, c)) is not None}
        allowed = None if self.allowed is None else {p: ids for p, ids in self.allowed.items() if p < at}
        return replace(self, allowed=allowed, **columns)

    def extended(
        self,
        ids: Ints,
        source: Source,
        logp: NDArray[Any] | None = None,
        version: int | NDArray[np.int32] = -1,
        temperature: float = 1.0,
        allowed: list[Ints] | None = None,
    ) -> "Sequence":
        """The sequence followed by these tokens of one source; without `logp`, they were not sampled."""
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
        """The sequence under the context it is trained in (`train_as` instead of the sampled prompt)."""
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
    group: str  # set by the Ask or Prompt; need not be the task
    sequences: list[Sequence]
    turns: list[Turn]
    reward: dict[str, float] = field(default_factory=dict[str, float])  # components; `task` is the task's own
    status: Status = Status.OK
    use: Use = Use.LEARN
    source: Source = Source.POLICY
    notes: dict[str, Note] = field(default_factory=dict[str, Note])
    text: str = ""  # what the policy wrote, for people and scorers
    error: str = ""  # a description of what went wrong
    final_state: str = ""
    replayed: bool = False
    step: int = -1  # step in which it was sampled
    domain: str = ""  # of the task
    index: int = -1  # of the task in the training set; -1: not known
    answer: str = ""  # extracted from the text, normalised so that equivalent answers of a group are equal; "": none
    replaced: frozenset[str] = frozenset()  # components that are recorded but not paid, because another replaces them
    parent: int = -1  # uid of the episode that it branched from; -1: none
    fork: int = -1  # turn of the parent in which it branched off; -1: none
    asked: str = ""  # the Ask without its task, as JSON: what `ask` is made from after a restart (stages.play.ask_of)
    # The Ask it was drawn for, and whether the reward room has seen it: of this process only, never stored.
    ask: Any = field(default=None, repr=False, compare=False, kw_only=True)
    rewarded: bool = field(default=False, compare=False, kw_only=True)

    @property
    def total(self) -> float:
        """The return: the sum of its reward components and those of its turns; NaN if nothing was judged."""
        tables = (self.reward, *(t.reward for t in self.turns if t.reward))
        parts = [r for table in tables for name, r in table.items() if name not in self.replaced]
        return float(sum(parts)) if self.status.judged and parts else float("nan")

    @property
    def returns(self) -> dict[str, float]:
        """The return of each agent that acted: the rewards of its own turns, and those of the episode, which all share.

        With one agent it is `total`. Where nothing was judged, all are NaN.
        """
        total, agents = self.total, dict.fromkeys(t.agent for t in self.turns)
        if len(agents) < 2 or math.isnan(total):
            return dict.fromkeys(agents, total)
        out = dict.fromkeys(agents, float(sum(r for name, r in self.reward.items() if name not in self.replaced)))
        for t in self.turns:
            out[t.agent] += sum(r for name, r in t.reward.items() if name not in self.replaced)
        return out

    @property
    def earned(self) -> dict[str, float]:
        """`returns` of the agents that the policy speaks for."""
        out = self.returns
        return out if len(out) < 2 else {agent: r for agent, r in out.items() if agent in self.speaks}

    @property
    def speaks(self) -> set[str]:
        """Agents that the policy speaks for: it sampled a token of theirs. All agents, if it sampled none."""
        agents = {t.agent for t in self.turns}
        if len(agents) < 2:
            return agents
        spans = ((t.agent, self.sequences[t.sequence].source[t.start : t.stop]) for t in self.turns)
        return {agent for agent, source in spans if (source == Source.POLICY).any()} or agents

    @property
    def scores(self) -> dict[str, float]:
        """The reward of the task itself, the component `task`, of each agent that the policy speaks for.

        It lies on the episode, which all share, or on the turns of each, as in a game. Empty: there is none.
        """
        own, turns = self.reward.get("task"), [t for t in self.turns if "task" in t.reward]
        if own is None and not turns:
            return {}
        speaks = self.speaks
        mine = (t.agent for t in self.turns if t.agent in speaks)  # in an order that is the same in every process
        out = dict.fromkeys(mine, 0.0 if own is None else own)
        for t in turns:
            if t.agent in out:
                out[t.agent] += t.reward["task"]
        return out or {"": 0.0 if own is None else own}

    @property
    def score(self) -> float:
        """The mean of `scores`; NaN if there is none."""
        found = self.scores.values()
        return sum(found) / len(found) if found else float("nan")

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
    """An episode of one prompt and one action, in one sequence."""
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
