"""How one episode is played: a prompt is answered, or an earlier episode continues from a position.

Rollouts make episodes with `ctx.play`. Here an episode is one answer. An environment can play several turns behind the
same call (none is included yet), so that a rollout that only calls `ctx.play` need not change.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from gruppo.data import Episode, Note, Source, Status, Turn, key_hash, single_turn
from gruppo.data.views import as_sampled
from gruppo.engines.base import Completion, Request
from gruppo.stages.context import Ask, Context, Prompt, Sampling

Ids = Any  # int64 array


class Play(Protocol):
    """Plays every start and yields (its index, the episode) in the order in which they end.

    window  maximum tokens to sample per episode; a longer one stays open, and can continue as a Fork; 0: no limit
    """

    def __call__(
        self, ctx: Context, starts: "Sequence[Start | Fork]", window: int = 0
    ) -> AsyncIterator[tuple[int, Episode]]: ...


@dataclass(frozen=True, eq=False)
class Start:
    """An episode to be played from its prompt. `uid` is also its random key."""

    prompt: Prompt
    uid: int
    sampling: Sampling

    @property
    def prefix(self) -> Ids:
        return self.prompt.ids

    def ended(self, ctx: Context, request: Request, completion: Completion) -> Episode:
        """The episode with this completion as its answer."""
        return episode_of(
            ctx,
            self.prompt,
            self.uid,
            completion.ids,
            completion.logp,
            completion.version,
            temperature=request.temperature,
            allowed=completion.allowed,
            status=ending(completion),
        )


@dataclass(frozen=True, eq=False)
class Fork:
    """An episode of one sequence, to be continued from position `at`; the tokens in `given` are inserted there first.

    With a `uid` of its own it is a sibling of the episode, and `node` says which decisions the two share.
    """

    episode: Episode
    at: int
    uid: int
    sampling: Sampling
    given: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    source: Source = Source.INJECTED  # of `given`, which is part of the answer but not the policy's

    @property
    def prefix(self) -> Ids:
        return np.concatenate([self.episode.sequences[0].ids[: self.at], self.given])

    def ended(self, ctx: Context, request: Request, completion: Completion) -> Episode:
        """The episode up to `at`, then `given`, then this completion.

        The rewards of the old ending are dropped, and all notes except those at level E.
        """
        [sequence] = self.episode.sequences
        kept = sequence.upto(self.at)
        if self.uid != self.episode.uid:
            kept = replace(kept, node=nodes_of(self.episode)[: self.at])
        longer = kept.extended(self.given, self.source).extended(
            completion.ids, Source.POLICY, completion.logp, completion.version, request.temperature, completion.allowed
        )
        start = longer.prompt_len
        return replace(
            self.episode,
            uid=self.uid,
            sequences=[longer],
            turns=[Turn(start=start, stop=len(longer.ids), obs_stop=start)],
            status=ending(completion),
            text=ctx.tokenizer.decode(longer.ids[longer.source != Source.ENV]),
            reward={},
            replaced=frozenset[str](),
            answer="",
            notes={k: n for k, n in self.episode.notes.items() if n.level == "E"},
            rewarded=False,
        )


async def one_answer(
    ctx: Context, starts: Sequence[Start | Fork], window: int = 0
) -> AsyncIterator[tuple[int, Episode]]:
    """One answer to each start: the play of single-turn tasks."""
    wanted = [request_after(ctx, s.prefix, s.uid, s.sampling) for s in starts]
    asked = [replace(r, max_tokens=min(window, r.max_tokens)) for r in wanted] if window else wanted
    async for i, completion in ctx.engine.generate(asked):
        episode = starts[i].ended(ctx, wanted[i], completion)
        if window and completion.reason == "length" and len(completion.ids) < wanted[i].max_tokens:
            episode.status = Status.OPEN
        yield i, episode


def ending(completion: Completion) -> Status:
    return Status.OK if completion.reason == "stop" else Status.TRUNCATED


def request_after(ctx: Context, prefix: Ids, key: int, sampling: Sampling) -> Request:
    """A request for what follows these ids, under this random key."""
    return Request(prefix, key=int(key), stop=(ctx.tokenizer.eos,), **vars(sampling))


def sampling_for(ctx: Context, ask: Ask) -> Sampling:
    """The sampling of the run, with the overrides of the ask."""
    return replace(ctx.sampling, **{k: v for k, v in ask.how.items() if k in Sampling.__dataclass_fields__})


def starts_of(ctx: Context, given: Sequence[Prompt | Start | Fork]) -> list[Start | Fork]:
    """One start for every sample of every prompt; starts and forks stay as they are."""
    out: list[Start | Fork] = []
    number = 0
    for s in given:
        if isinstance(s, Prompt):
            uids = [episode_uid(ctx, s, number, sample) for sample in range(s.samples)]
            out += [Start(s, uid, sampling_for(ctx, s.ask)) for uid in uids]
            number += 1
        else:
            out.append(s)
    return out


def episode_uid(ctx: Context, prompt: Prompt, number: int, sample: int) -> int:
    """The uid of a sample of prompt `number` of a draw: a function of the seed, the step and the ask."""
    ask = prompt.ask
    how = ",".join(f"{k}={ask.how[k]}" for k in sorted(ask.how))
    uid = key_hash(ctx.seed, ctx.step, "episode", ctx.round, prompt.group, ask.key, how, number, sample)
    assert isinstance(uid, int)
    return uid


def episode_of(
    ctx: Context,
    prompt: Prompt,
    uid: int,
    ids: Ids,
    logp: Any,
    version: Any,
    *,
    source: Source = Source.POLICY,
    **rest: Any,
) -> Episode:
    """The episode in which a prompt was answered with these ids. It keeps its ask, and so its task."""
    ask = prompt.ask
    return single_turn(
        uid,
        ask.task.uid,
        prompt.group,
        prompt.ids,
        ids,
        logp,
        version,
        source=source,
        prompt_source=prompt_source(prompt) if prompt.given else None,
        train_as=prompt.train_as,
        text=ctx.tokenizer.decode(np.concatenate([prompt.begun, ids])),
        notes={k: Note(np.array([v], np.float32)) for k, v in ask.notes.items()},
        step=ctx.step,
        ask=ask,
        index=ask.index,
        domain=ask.task.domain,
        **rest,
    )


def prompt_source(prompt: Prompt) -> Any:
    """The source of each token of the prompt: the environment, or what `given` says."""
    source = np.full(len(prompt.ids), Source.ENV, np.int8)
    for start, stop, name in prompt.given:
        source[start:stop] = Source[name.upper()]
    return source


def nodes_of(episode: Episode) -> Any:
    """The id of every decision of an episode of one sequence, as in `node_N` of a batch; -1 for other tokens."""
    [s] = episode.sequences
    decided = as_sampled(s)[1]
    own = key_hash(episode.uid, 0, torch.arange(len(decided)))
    assert isinstance(own, torch.Tensor)
    node = np.full(len(s.ids), -1)
    node[decided] = own.numpy()
    return node if s.node is None else np.where(s.node == -1, node, s.node)
