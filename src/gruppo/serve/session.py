"""The calls of one episode, merged into sequences of tokens.

A call whose messages begin with those of an earlier one and its answer goes on in the same sequence: the sampled ids
stay as they are, and only what is new is rendered (`tokenizer.follow`). Any other call begins a new sequence of the
episode. So a program can edit its history, hold several dialogues, or try again from an earlier point.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from gruppo.data import Growing, ToolCall, key_hash
from gruppo.engines.base import Completion
from gruppo.serve.chat import Answer, Asked
from gruppo.serve.http import Refusal

MOST = 1000  # calls of one episode: a program that never ends costs no more


@dataclass(frozen=True, eq=False)
class State:
    """After an answer: the ids of its context up to there."""

    context: int
    ids: Any


@dataclass(frozen=True, eq=False)
class Plan:
    """Where a call goes on: `ids` are the whole prefix, and in context `context` (-1: a new one) `seen` is new."""

    ids: Any
    seen: Any
    context: int
    key: int
    chain: bytes  # of the messages
    edited: bool = False  # it goes on with nothing, though there was something to go on with
    at: float = field(default_factory=time.monotonic)  # when it was asked


@dataclass
class Session:
    """An episode that a program is writing with its calls.

    grown  the episode
    first  a prompt whose first answer has the uid of the episode as its random key, as without a program
    turns  calls that are served; then the policy says no more
    """

    grown: Growing
    tokenizer: Any
    first: Any = None
    turns: int = MOST
    lines: list[str] = field(default_factory=list[str])  # for people
    calls: int = 0  # begun
    over: bool = False
    _states: dict[bytes, list[State]] = field(default_factory=dict[bytes, list[State]])
    _busy: set[int] = field(default_factory=set[int])
    _keys: dict[int, int] = field(default_factory=dict[int, int])  # of contexts
    _begun: dict[bytes, int] = field(default_factory=dict[bytes, int])  # how often a context began with these ids
    _ends: dict[int, int] = field(default_factory=dict[int, int])  # tokens of each context
    _since: float = field(default_factory=time.monotonic)
    _waited: float = 0.0
    _waiting: int = 0

    # the time of the program

    def __enter__(self) -> "Session":
        """Around a call, in which the program waits for the policy."""
        if self._waiting == 0:
            self._asked_at = time.monotonic()
        self._waiting += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._waiting -= 1
        if self._waiting == 0:
            self._waited += time.monotonic() - self._asked_at

    @property
    def own_seconds(self) -> float:
        """Since the program began, without the time in which it waited for the policy."""
        until = self._asked_at if self._waiting else time.monotonic()
        return until - self._since - self._waited

    def begin(self) -> None:
        """The program begins now."""
        self._since, self._waited = time.monotonic(), 0.0

    # one call

    def plan(self, asked: Asked) -> Plan:
        """Where this call goes on. Nothing is changed but that the place is taken, until `take` or `drop`."""
        options, opening = self._options(asked), self.tokenizer.encode(asked.opening)
        chains = _chains(asked.messages, asked.tools)
        for n in range(len(asked.messages) - 1, 0, -1):
            states = self._states.get(chains[n])
            if not states:
                continue
            seen = self._following(asked.messages[n:], int(states[-1].ids[-1]), options)
            if seen is None:
                break
            for s in states:
                if s.context not in self._busy and self._ends[s.context] == len(s.ids):
                    follow = self._following(asked.messages[n:], int(s.ids[-1]), options)
                    follow = np.concatenate([follow, opening])
                    self._busy.add(s.context)
                    ids = np.concatenate([s.ids, follow])
                    return Plan(ids, follow, s.context, self._keys[s.context], chains[-1])
            ids = np.concatenate([states[-1].ids, seen, opening])  # from an earlier point: a branch
            return Plan(ids, ids, -1, self._new_key(ids), chains[-1])
        ids = np.concatenate([self._rendered(asked, options), opening])
        return Plan(ids, ids, -1, self._new_key(ids), chains[-1], edited=bool(self._states))

    def take(self, plan: Plan, asked: Asked, c: Completion, temperature: float) -> Answer:
        """The answer, written into the episode."""
        grown, context = self.grown, plan.context
        if context < 0:
            context = grown.begin(plan.ids)
            self._keys[context] = plan.key
        else:
            grown.switch(context)
            grown.observe(plan.seen)
        full = self.tokenizer.decode(c.ids)
        answer = Answer.of(asked.opening + full, c.reason == "length", asked, len(plan.ids), len(c.ids))
        flags = {"truncated"} if c.reason == "length" else set[str]()
        flags |= {"void"} if not full.strip() else set()
        # The program makes the calls, so how long they take and whether they succeed is not known here.
        tools = tuple(ToolCall(f["name"], f["arguments"], 0.0) for f in (call["function"] for call in answer.calls))
        how: dict[str, Any] = {"text": full, "flags": frozenset(flags), "tools": tools}
        how |= {"seconds": time.monotonic() - plan.at}
        grown.act(c.ids, c.logp, c.version, temperature=temperature, allowed=c.allowed, **how)
        chain = _chained(plan.chain, _canonical(answer.message))
        self._states.setdefault(chain, []).append(State(context, grown.ids))
        self._ends[context] = len(grown.ids)
        self._busy.discard(context)
        self._tell(asked, asked.opening + full)
        return answer

    def drop(self, plan: Plan) -> None:
        """The call came to nothing."""
        self._busy.discard(plan.context)

    # inside

    def _new_key(self, ids: Any) -> int:
        """The random key of a new context: by its ids, and how often it has begun, not by when."""
        digest = blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=16).digest()
        number = self._begun[digest] = self._begun.get(digest, -1) + 1
        if number == 0 and self.first is not None and np.array_equal(ids, self.first):
            return self.grown.uid
        return int(key_hash(self.grown.uid, "context", digest.hex(), number))

    def _options(self, asked: Asked) -> dict[str, Any]:
        if not asked.tools:
            return {}
        if not getattr(self.tokenizer, "has_template", False):
            raise Refusal(
                400,
                "tools are given, and this policy has no chat template that could show them, so it would answer "
                "without them. Describe them in a message, or use a chat model with tools.",
                param="tools",
            )
        return {"tools": list(asked.tools)}

    def _following(self, messages: Sequence[Mapping[str, Any]], last: int, options: dict[str, Any]) -> Any:
        """What follows an answer; None if the template cannot be extended."""
        try:
            return self.tokenizer.follow(messages, last, **options)
        except ValueError:
            return None

    def _rendered(self, asked: Asked, options: dict[str, Any]) -> Any:
        try:
            ids = self.tokenizer.chat(asked.messages, **options)
            unseen = bool(options) and np.array_equal(ids, self.tokenizer.chat(asked.messages))
        except ValueError as error:
            raise Refusal(400, str(error), param="messages") from None
        if unseen:
            raise Refusal(
                400,
                "tools are given, and the chat template of this policy does not show them, so it would answer without "
                "them. Describe them in a message, or use a model whose template has tools.",
                param="tools",
            )
        return ids

    def _tell(self, asked: Asked, said: str) -> None:
        """What is new since the last answer, and the answer, marked with >."""
        last = max((i for i, m in enumerate(asked.messages) if m["role"] == "assistant"), default=-1)
        self.lines += [m["content"] for m in asked.messages[last + 1 :] if m["content"]] if self.lines else []
        self.lines.append(f"> {said}")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def _canonical(message: Mapping[str, Any]) -> bytes:
    """What counts of a message. White space around the assistant's words does not: templates remove it as well."""
    content = message.get("content") or ""
    calls = list[Any]()
    for call in message.get("tool_calls") or ():
        function, arguments = call["function"], call["function"]["arguments"]
        calls.append([function["name"], json.loads(arguments) if isinstance(arguments, str) else arguments])
    own = content.strip() if message["role"] == "assistant" else content
    said = [message["role"], own, calls, message.get("name"), message.get("tool_call_id")]
    return json.dumps(said, sort_keys=True).encode()


def _chained(before: bytes, more: bytes) -> bytes:
    return blake2b(more, key=before, digest_size=32).digest()


def _chains(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """A hash for each number of first messages, from none to all."""
    out = [blake2b(json.dumps(list(tools), sort_keys=True).encode(), digest_size=32).digest()]
    for m in messages:
        out.append(_chained(out[-1], _canonical(m)))
    return out
