"""Trees of tokens, for rollouts that branch inside an answer: rows that look ahead, and become episodes.

A rollout asks for the next tokens of its rows (`look`), decides outside the engine which of them branch or go, and
writes what is left (`written`). Why outside: what one row may do depends on the others of its prompt, and an engine
with few rows has them at different tokens. So the tree is the same in any order, however many are sampled at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gruppo.data import Episode, Growing, Note, Status, key_hash
from gruppo.data.views import as_sampled
from gruppo.engines.base import Ints, Reals, Request
from gruppo.engines.steer import Move
from gruppo.stages.context import Context
from gruppo.stages.play import Start, grown_of, prompt_source, request_after

AHEAD = 64  # tokens of a row that are looked at together; those that its tree does not need are lost


class Seen(NamedTuple):
    """The most probable ids at a token: p of the raw softmax, log p at the temperature."""

    ids: Ints
    p: Reals
    logp: Reals


class Token(NamedTuple):
    """A token, drawn or forced, and what was probable in its place."""

    id: int
    logp: float
    version: int
    forced: bool
    allowed: Any  # ids that it was drawn from, if some were left out; an empty array: all of them
    seen: Seen

    def taken(self, rank: int) -> "Token":
        """The candidate of this rank in its place, by force: no id was left out."""
        allowed = None if self.allowed is None else np.zeros(0, np.int64)
        return self._replace(
            id=int(self.seen.ids[rank]), logp=float(self.seen.logp[rank]), forced=True, allowed=allowed
        )


class Look:
    """A steer that notes what is probable, and forces the most probable id or lets one be drawn."""

    def __init__(self, most: int, temperature: float, force: bool) -> None:
        self.most, self.warmth, self.force, self.at = most, temperature or 1.0, force, dict[int, Seen]()

    def __call__(self, ids: Ints, position: int, logits: Reals, /) -> Move | None:
        z = logits.astype(np.float64) - logits.max()
        some = np.argpartition(-z, min(self.most, len(z)) - 1)[: self.most]
        best = some[np.lexsort((some, -z[some]))]
        logp = z[best] / self.warmth - np.log(np.exp(z / self.warmth).sum())
        self.at[position] = Seen(best, np.exp(z[best]) / np.exp(z).sum(), logp)
        return Move(force=int(best[0])) if self.force else None


@dataclass(eq=False)
class Row:
    """All tokens of an answer: those that its parent decided, its own, and those that are only looked at."""

    uid: int
    parent: "Row | None" = None
    birth: int = 0  # number of the first token of its own
    tokens: list[Token] = field(default_factory=list[Token])

    def ids(self, start: int, stop: int | None = None) -> Ints:
        return np.array([t.id for t in self.tokens[start:stop]], np.int64)

    def branch(self, at: int, rank: int) -> "Row":
        """A row that has another candidate at token `at`."""
        token = self.tokens[at].taken(rank)
        return Row(int(key_hash(self.uid, "branch", at, token.id)), self, at, [*self.tokens[:at], token])

    def force(self, at: int) -> None:
        """The most probable id at token `at`, whatever was drawn there."""
        was, best = self.tokens[at], self.tokens[at].taken(0)
        if not was.forced:
            self.tokens[at:] = [best, *(self.tokens[at + 1 :] if was.id == best.id else [])]


@dataclass(eq=False)
class Tree:
    """The rows of one prompt, parents before their branches. All have decided the same number of tokens."""

    start: Start
    width: int  # rows that it may have
    ends: frozenset[int]  # ids that end an answer
    rows: list[Row]
    step: int = 0  # tokens that are decided
    over: bool = False

    @classmethod
    def of(cls, ctx: Context, start: Start, width: int) -> "Tree":
        if "env" in start.prompt.ask.task.meta:
            raise ValueError(
                f"task {start.prompt.ask.task.uid!r} is played in an environment, and a tree of tokens is that of one "
                "answer: what follows an action would be lost. Use a task without an environment, or a method that "
                "branches at turns: method=arpo_agentic."
            )
        ends = frozenset({ctx.tokenizer.eos, *getattr(ctx.engine, "eos", ())})
        return cls(start, width, ends, [Row(start.uid)])

    def ended(self, row: Row) -> bool:
        return 0 < len(row.tokens) <= self.step and row.tokens[-1].id in self.ends

    @property
    def live(self) -> list[Row]:
        return [row for row in self.rows if not self.ended(row)]

    def request(self, ctx: Context, row: Row, most: int, look: Look) -> Request:
        """What follows the tokens of a row; `most` tokens for the whole answer."""
        how, ids = self.start.sampling, np.concatenate([self.start.prefix, row.ids(0)])
        ahead = replace(how, max_tokens=min(AHEAD, most - len(row.tokens)))
        return replace(request_after(ctx, ids, row.uid, ahead), steer=look)

    def written(self, ctx: Context) -> list[Episode]:
        """The rows as episodes, open where they have not ended. A branch shares the nodes of its parent before it."""
        prompt, how, made = self.start.prompt, self.start.sampling, dict[Row, Episode]()
        for row in self.rows:
            if row.parent is None:
                grown, source = grown_of(ctx, self.start), prompt_source(prompt) if prompt.given else None
                grown.begin(prompt.ids, source=source, train_as=prompt.train_as)
            else:
                grown = Growing.of(made[row.parent]).fork(row.uid, 0, len(prompt.ids) + row.birth)
            own = row.tokens[row.birth : self.step]
            logp, version = np.array([t.logp for t in own], np.float32), np.array([t.version for t in own], np.int32)
            allowed = None if any(t.allowed is None for t in own) else [t.allowed for t in own]
            ids = row.ids(row.birth, self.step)
            grown.write(ids, logp, version, temperature=how.temperature, allowed=allowed)
            left = Status.OPEN if self.step < how.max_tokens else Status.TRUNCATED
            text = ctx.tokenizer.decode(np.concatenate([prompt.begun, row.ids(0, self.step)]))
            made[row] = grown.finish(Status.OK if self.ended(row) else left, text=text)
        return [*made.values()]


async def look(ctx: Context, asked: Sequence[tuple[Row, Request]]) -> None:
    """Append the next tokens of these rows, with what their looks saw. What another row has computed is used again."""
    async for i, c in ctx.engine.generate([request for _, request in asked], remember=True):
        row, request = asked[i]
        assert isinstance(request.steer, Look)
        forced = np.zeros(len(c.ids), np.bool_) if c.forced is None else c.forced
        for t, token in enumerate(c.ids.tolist()):
            seen, allowed = request.steer.at[len(request.prefix) + t], c.allowed[t] if c.allowed else None
            row.tokens.append(Token(token, float(c.logp[t]), int(c.version[t]), bool(forced[t]), allowed, seen))


def note_forced(episodes: Sequence[Episode], forced: Sequence[Sequence[bool]]) -> None:
    """Note of every token whether it was forced: the first ones of each answer, as given; the others were not."""
    for e, first in zip(episodes, forced, strict=True):
        [s] = e.sequences
        mask = np.zeros(len(s.ids), np.float32)
        mask[s.prompt_len : s.prompt_len + len(first)] = first
        e.notes["forced"] = Note(mask[as_sampled(s)[1]], "N")
