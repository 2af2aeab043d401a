"""An episode that is being written, turn by turn and in several contexts, in time linear in its tokens.

    grown = Growing(uid, "task", "group")
    grown.begin(prompt)                                # a context
    grown.act(ids, logp, version, state="hall")        # a turn: what was sampled after `grown.ids`
    grown.observe(seen)                                # what the environment says to it
    other = grown.fork(uid_of_the_branch, turn=0)      # as it was before turn 0; the two share nothing
    episode = grown.finish(Status.OK, text="…")

Contexts become sequences in the order in which they are first acted in; one in which nobody acts is left out.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gruppo.data.episode import Episode, Floats, Ints, Note, Sequence, Source, Status, Turn
from gruppo.data.keyed import key_hash
from gruppo.data.views import as_sampled

_KINDS: dict[str, tuple[Any, Any]] = {  # the columns of a sequence: dtype, and the value of a token nobody sampled
    "ids": (np.int64, 0),
    "source": (np.int8, int(Source.ENV)),
    "logp": (np.float32, np.nan),
    "version": (np.int32, -1),
    "temperature": (np.float32, 1.0),
    "node": (np.int64, -1),
}
_OPTIONAL = ("temperature", "node")
# What is said of an episode when it has ended: a branch does not have it.
_ENDING = ("reward", "status", "text", "error", "final_state", "answer", "replaced", "rewarded")


class _Column:
    """An array with room behind its end, so that adding costs what is added."""

    __slots__ = ("_data", "size")

    def __init__(self, values: NDArray[Any], dtype: Any) -> None:
        self._data, self.size = np.array(values, dtype), len(values)  # a copy

    def add(self, values: Any, count: int) -> None:
        end = self.size + count
        if end > len(self._data):
            wider = np.empty(max(end, 2 * self.size, 64), self._data.dtype)
            wider[: self.size] = self.values
            self._data = wider
        self._data[self.size : end] = values
        self.size = end

    @property
    def values(self) -> NDArray[Any]:
        """What is there now; what is added later does not change it."""
        seen = self._data[: self.size]
        seen.flags.writeable = False
        return seen


@dataclass(slots=True)
class _Context:
    columns: dict[str, _Column]
    prompt_len: int
    train_as: Ints | None
    allowed: dict[int, Ints] | None
    number: int = -1  # of its sequence; -1: nobody has acted in it
    seen: int = 0  # where the observation before the next action begins

    @classmethod
    def of(cls, s: Sequence, number: int, seen: int) -> "_Context":
        there = {name: getattr(s, name) for name in _KINDS}
        columns = {name: _Column(x, _KINDS[name][0]) for name, x in there.items() if x is not None}
        allowed = None if s.allowed is None else {p: ids.copy() for p, ids in s.allowed.items()}
        return cls(columns, s.prompt_len, None if s.train_as is None else s.train_as.copy(), allowed, number, seen)

    @property
    def size(self) -> int:
        return self.columns["ids"].size

    def add(self, ids: Ints, allowed: list[Ints] | None = None, **columns: Any) -> None:
        n, end = len(ids), self.size
        for name, x in columns.items():
            if np.ndim(x) and len(x) != n:
                raise ValueError(
                    f"{name} has {len(x)} entries for {n} ids: they would be misaligned with the tokens. Give one "
                    "entry per id, or one for all."
                )
        if "temperature" not in self.columns and np.any(np.asarray(columns.get("temperature", 1.0)) != 1.0):
            self.columns["temperature"] = _Column(np.ones(end), np.float32)
        columns["ids"] = ids
        for name, column in self.columns.items():
            column.add(columns.get(name, _KINDS[name][1]), n)
        if allowed is not None:
            self.allowed = self.allowed or {}
            self.allowed.update({end + i: some for i, some in enumerate(allowed)})

    def sequence(self, stop: int | None = None) -> Sequence:
        """A copy of its first tokens; of all by default."""
        stop = self.size if stop is None else stop
        columns: dict[str, Any] = {name: c.values[:stop].copy() for name, c in self.columns.items()}
        allowed = None if self.allowed is None else {p: ids.copy() for p, ids in self.allowed.items() if p < stop}
        train_as = None if self.train_as is None else self.train_as.copy()
        return Sequence(**columns, prompt_len=self.prompt_len, allowed=allowed, train_as=train_as)


class Growing:
    """An episode that is being written. One action at a time is under way, in one of its contexts."""

    def __init__(self, uid: int, task: str, group: str, **rest: Any) -> None:
        self.uid, self.turns = uid, list[Turn]()
        self._rest: dict[str, Any] = {"task": task, "group": group, **rest}
        self._contexts: list[_Context] = []
        self._here = -1
        self._acted = 0  # contexts in which somebody has acted
        self._begun = -1  # where the action that is under way begins; -1: none is
        self._known: dict[str, Any] = {}  # of the turn that is under way

    @classmethod
    def of(cls, episode: Episode) -> "Growing":
        """A copy of an episode, to go on with in the context of its last turn."""
        made = cls(
            **{f.name: getattr(episode, f.name) for f in fields(Episode) if f.name not in ("sequences", "turns")}
        )
        made._rest |= {"reward": dict(episode.reward), "notes": _copies(episode.notes)}
        made.turns = [_copied(t) for t in episode.turns]
        seen = [0] * len(episode.sequences)
        for t in episode.turns:
            seen[t.sequence] = max(seen[t.sequence], t.stop)
        made._contexts = [_Context.of(s, i, seen[i]) for i, s in enumerate(episode.sequences)]
        made._acted = len(seen)
        made._here = episode.turns[-1].sequence if episode.turns else len(seen) - 1
        return made

    @property
    def ids(self) -> Ints:
        """The tokens of the present context: what the next action follows. Not to be written to."""
        return self._now("read").columns["ids"].values

    @property
    def acting(self) -> bool:
        """Whether an action is under way."""
        return self._begun >= 0

    @property
    def action(self) -> Ints:
        """The tokens of the action that is under way."""
        return self.ids[self._begun :] if self.acting else self.ids[:0]

    # writing

    def begin(self, prompt: Ints, *, source: NDArray[np.int8] | None = None, train_as: Ints | None = None) -> int:
        """Go on in a new context with this prompt; returns its number for `switch`.

        source    of each token of the prompt, if some are given parts of the action (hints)
        train_as  the prompt to train under, if different
        """
        self._between("a new context cannot begin")
        columns = {name: _Column(np.zeros(0), kind) for name, (kind, _) in _KINDS.items() if name not in _OPTIONAL}
        made = _Context(columns, len(prompt), train_as, None)
        made.add(prompt, source=Source.ENV if source is None else source)
        self._contexts.append(made)
        self._here = len(self._contexts) - 1
        return self._here

    def switch(self, context: int) -> None:
        """Go on in another context."""
        self._between("the context cannot be another")
        if not 0 <= context < len(self._contexts):
            raise ValueError(
                f"context {context} of episode {self.uid} was never begun: there are {len(self._contexts)}, counted "
                "from 0. Use a number that begin() returned."
            )
        self._here = context

    def observe(self, ids: Ints) -> None:
        """Tokens of the environment, to be seen before the next action in this context."""
        self._between("nothing can be observed")
        self._now("observe").add(ids)

    def write(
        self,
        ids: Ints,
        logp: Floats | None = None,
        version: int | NDArray[np.int32] = -1,
        *,
        source: Source | NDArray[np.int8] = Source.POLICY,
        temperature: float | Floats = 1.0,
        allowed: list[Ints] | None = None,
    ) -> None:
        """Tokens of the action that is under way, or of a new one; without `logp`, they were not sampled."""
        now = self._now("act")
        begun = now.size if self._begun < 0 else self._begun
        more = {"logp": np.nan if logp is None else logp, "version": version, "temperature": temperature}
        now.add(ids, allowed, source=source, **more)
        self._begun = begun
        self._number(now)

    def end(self, **turn: Any) -> Turn:
        """The action that is under way is a turn; without one, nothing was said. `turn`: other fields of Turn."""
        now = self._now("act")
        self._number(now)
        start = now.size if self._begun < 0 else self._begun
        made = Turn(start, now.size, now.number, now.seen, start, **{**self._known, **turn})
        self.turns.append(made)
        now.seen, self._begun, self._known = now.size, -1, {}
        return made

    def act(
        self,
        ids: Ints,
        logp: Floats | None = None,
        version: int | NDArray[np.int32] = -1,
        *,
        source: Source | NDArray[np.int8] = Source.POLICY,
        temperature: float | Floats = 1.0,
        allowed: list[Ints] | None = None,
        **turn: Any,
    ) -> Turn:
        """A whole action, or the rest of the one under way, as a turn: `write` and `end`."""
        self.write(ids, logp, version, source=source, temperature=temperature, allowed=allowed)
        return self.end(**turn)

    # branching and ending

    def fork(self, uid: int, turn: int | None = None, at: int | None = None) -> "Growing":
        """A copy to go on with: as it is, or as it was before the action of `turn`.

        at    a position in that action, whose tokens before it stay, and it is under way; or in what was seen before
        uid   another one makes a sibling: it has a parent, and `node` says which decisions the two share

        Rewards, text and all that is said at an end are dropped, and notes except those of level E. Turns before the
        cut keep the rewards they have: a player that restores its environment sets them again. In other contexts, what
        was seen after the last turn that stays must be observed again.
        """
        made = Growing(uid, **{k: v for k, v in self._rest.items() if k not in _ENDING})
        made._rest["notes"] = {k: n for k, n in _copies(self._rest.get("notes", {})).items() if n.level == "E"}
        kept = len(self.turns) if turn is None else turn
        if uid != self.uid:
            made._rest |= {"parent": self.uid, "fork": kept}
        cuts = dict.fromkeys(range(len(self._contexts))) if turn is None else self._cuts(turn, at)
        made._take(self, kept, cuts)
        if turn is None:
            made._here, made._begun, made._known = self._here, self._begun, dict(self._known)
            if made.acting:
                made._number(made._contexts[made._here])
        else:
            old = self.turns[turn]
            made._here = list(cuts).index(self._context_of(old))
            made._begun = old.start if at is not None and at >= old.start else -1
            made._known = {"state": old.state, "agent": old.agent}
        return made

    def split(self, turn: int, ends: list[int]) -> None:
        """Cut a turn into several at these positions, with nothing observed between them.

        What was seen before it goes to the first, what came of it to the last: rewards, tools, seconds.
        """
        whole = self._turn(turn)
        inner = sorted({at for at in ends if whole.start < at < whole.stop})
        pieces = zip([whole.start, *inner], [*inner, whole.stop], strict=True)
        alike = [(a, b, whole.sequence, a, a) for a, b in pieces]
        steps = [Turn(*span, agent=whole.agent, flags=whole.flags, tag=whole.tag) for span in alike]
        first, last = steps[0], steps[-1]
        first.obs_start, first.obs_stop, first.state = whole.obs_start, whole.obs_stop, whole.state
        last.reward, last.tools, last.seconds = dict(whole.reward), whole.tools, whole.seconds
        self.turns[turn : turn + 1] = steps

    def finish(self, status: Status | None = None, **rest: Any) -> Episode:
        """The episode so far, a copy; an action that is under way becomes its last turn. `rest`: fields of Episode."""
        if self.acting:
            self.end()
        acted = sorted((c for c in self._contexts if c.number >= 0), key=lambda c: c.number)
        said: dict[str, Any] = {**self._rest, **({} if status is None else {"status": status}), **rest}
        said |= {"reward": dict(said.get("reward", {})), "notes": _copies(said.get("notes", {}))}
        sequences, turns = [c.sequence() for c in acted], [_copied(t) for t in self.turns]
        return Episode(uid=self.uid, sequences=sequences, turns=turns, **said)

    # inside

    def _now(self, verb: str) -> _Context:
        if not 0 <= self._here < len(self._contexts):
            raise ValueError(f"episode {self.uid} has no context to {verb} in. Call begin(prompt) first.")
        return self._contexts[self._here]

    def _between(self, refused: str) -> None:
        if self.acting:
            raise ValueError(
                f"episode {self.uid}: an action is under way, so {refused}: its tokens would be parted. Call end() "
                "first."
            )

    def _turn(self, turn: int) -> Turn:
        if not 0 <= turn < len(self.turns):
            raise ValueError(
                f"episode {self.uid} has no turn {turn}: there are {len(self.turns)}, counted from 0, so there is "
                "nothing to cut."
            )
        return self.turns[turn]

    def _number(self, context: _Context) -> None:
        if context.number < 0:
            context.number, self._acted = self._acted, self._acted + 1

    def _context_of(self, turn: Turn) -> int:
        return next(i for i, c in enumerate(self._contexts) if c.number == turn.sequence)

    def _cuts(self, turn: int, at: int | None) -> dict[int, int | None]:
        """The contexts that were there before the action of `turn`, and how many tokens each had."""
        old = self._turn(turn)
        low = max(old.obs_start, self._contexts[self._context_of(old)].prompt_len)
        if at is not None and not low <= at <= old.stop:
            raise ValueError(
                f"turn {turn} of episode {self.uid} cannot be cut at {at}: with what was seen before it, it is {low} "
                f"to {old.stop}, so the prompt or another turn would be cut. Use a position in between, or the turn "
                "that holds it."
            )
        stop = {t.sequence: t.stop for t in self.turns[:turn]}
        stop[old.sequence] = old.start if at is None else at
        return {i: stop[c.number] for i, c in enumerate(self._contexts) if c.number in stop}

    def _take(self, other: "Growing", kept: int, cuts: dict[int, int | None]) -> None:
        """The first turns of another one, and these contexts, each with its first tokens (None: all)."""
        self.turns = [_copied(t) for t in other.turns[:kept]]
        last = {t.sequence: t.stop for t in self.turns}
        number = {old: new for new, old in enumerate(sorted(last))}
        self._acted = len(number)
        for t in self.turns:
            t.sequence = number[t.sequence]
        for i, stop in cuts.items():
            c = other._contexts[i]
            sequence = c.sequence(stop)
            if self.uid != other.uid and c.number >= 0:
                sequence.node = _nodes(sequence, other.uid, c.number)
            self._contexts.append(_Context.of(sequence, number.get(c.number, -1), last.get(c.number, 0)))


def _copied(turn: Turn) -> Turn:
    made = copy(turn)
    made.reward, made.tools = dict(turn.reward), tuple(map(copy, turn.tools))
    return made


def _copies(notes: dict[str, Note]) -> dict[str, Note]:
    return {name: Note(n.values.copy(), n.level, n.version) for name, n in notes.items()}


def _nodes(s: Sequence, uid: int, number: int) -> Ints:
    """The id of every decision of sequence `number` of an episode, as in `node_N` of a batch; -1 for other tokens."""
    decided = as_sampled(s)[1]
    own = key_hash(uid, number, torch.arange(len(decided)))
    assert isinstance(own, torch.Tensor)
    node = np.full(len(s.ids), -1)
    node[decided] = own.numpy()
    return node if s.node is None else np.where(s.node == -1, node, s.node)


def nodes_of(episode: Episode, sequence: int = 0) -> Ints:
    """The id of every decision of a sequence, as in `node_N` of a batch; -1 for other tokens."""
    return _nodes(episode.sequences[sequence], episode.uid, sequence)


def tokens_once(episodes: Iterable[Episode], source: Source | None = None) -> int:
    """Tokens of a source (None: that of their episode); what branches share with each other counts once."""
    written = [(e, i, s.source == (e.source if source is None else source))
               for e in episodes for i, s in enumerate(e.sequences)]  # fmt: skip
    if all(e.sequences[i].node is None for e, i, _ in written):
        return int(sum(mine.sum() for *_, mine in written))
    nodes = np.concatenate([nodes_of(e, i)[mine] for e, i, mine in written])
    return int((nodes == -1).sum()) + len(np.unique(nodes[nodes != -1]))


def in_steps(episode: Episode, ends: list[int], turn: int = 0) -> Episode:
    """The episode with one turn split into several, at these positions of its sequence (see `Growing.split`)."""
    made = Growing.of(episode)
    made.split(turn, ends)
    return made.finish()
