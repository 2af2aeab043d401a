"""How one episode is played: a prompt is answered, or an earlier episode continues from a position.

Rollouts make episodes with `ctx.play`. Here an episode is one answer; `converse` plays several turns in an environment
behind the same call, so that a rollout that only calls `ctx.play` need not change.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from gruppo.data import Episode, Growing, Note, Source, Status, key_hash, single_turn
from gruppo.data import nodes_of as nodes_of
from gruppo.engines.base import Completion, Request
from gruppo.stages.context import Ask, Context, Prompt, Sampling

Ids = Any  # int64 array


class Play(Protocol):
    """Plays every start and yields (its index, the episode) in the order in which they end.

    window  maximum tokens to sample per episode; a longer one stays open, and can continue as a Fork; 0: no limit
    turns   maximum turns to play of an episode; a longer one stays open, and goes on as Further; 0: no limit
    """

    def __call__(
        self, ctx: Context, starts: "Sequence[Start | Fork]", window: int = 0, turns: int = 0
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
    """An episode to be continued from position `at` of a sequence; the tokens in `given` are inserted there first.

    The action that stands there goes on, turns before it stay, and later ones, of other sequences too, are dropped.
    With a `uid` of its own it is a sibling of the episode, and `node` says which decisions the two share.
    """

    episode: Episode
    at: int
    uid: int
    sampling: Sampling
    given: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    source: Source = Source.INJECTED  # of `given`, which is part of the answer but not the policy's
    sequence: int = 0

    @property
    def prefix(self) -> Ids:
        return np.concatenate([self.episode.sequences[self.sequence].ids[: self.at], self.given])

    def grown(self) -> Growing:
        """The episode up to `at`, then `given`, with the action under way.

        The rewards of the old ending are dropped, and all notes except those at level E.
        """
        begun = [i for i, t in enumerate(self.episode.turns) if t.sequence == self.sequence and t.start <= self.at]
        if not begun:
            raise ValueError(
                f"episode {self.episode.uid} cannot be continued from position {self.at} of sequence {self.sequence}: "
                "no turn has begun there, so its prompt would be cut. Use a position in one of its actions."
            )
        grown = Growing.of(self.episode).fork(self.uid, begun[-1], self.at)
        grown.write(self.given, source=self.source)
        return grown

    def ended(self, ctx: Context, request: Request, completion: Completion) -> Episode:
        """The episode up to `at`, then `given`, then this completion."""
        grown = self.grown()
        grown.act(
            completion.ids,
            completion.logp,
            completion.version,
            temperature=request.temperature,
            allowed=completion.allowed,
        )
        made = grown.finish(ending(completion))
        written = [s.ids[s.source != Source.ENV] for s in made.sequences]
        made.text = ctx.tokenizer.decode(np.concatenate(written))
        return made


class Further(Fork):
    """An open episode of a world that goes on after its last turn, with its own random keys and the newest weights."""

    def grown(self) -> Growing:
        """The whole episode."""
        return Growing.of(self.episode)


def further(ctx: Context, episode: Episode) -> Further:
    """The rest of an open episode of a world, under the settings that it began with."""
    if episode.ask is None:
        raise ValueError(
            f"what was asked in the open episode {episode.uid} (task {episode.task!r}) is not known any more, so it "
            "cannot go on. Put the data back as it was, and use numbers, texts and lists of them in Ask.how."
        )
    last = episode.sequences[-1]
    return Further(episode, len(last.ids), episode.uid, sampling_for(ctx, episode.ask))


async def as_they_end(
    playing: "asyncio.Future[Any]", ended: "asyncio.Queue[tuple[int, Episode]]", count: int
) -> AsyncGenerator[tuple[int, Episode], None]:
    """What `playing` puts into the queue, `count` times. If it fails, so does this; who leaves this cancels it."""
    try:
        for _ in range(count):
            waiting = asyncio.ensure_future(ended.get())
            await asyncio.wait({waiting, playing}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and ended.empty():  # it has ended before its time
                waiting.cancel()
                await playing
            yield await waiting
        await playing
    finally:
        playing.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await playing


async def one_answer(
    ctx: Context, starts: Sequence[Start | Fork], window: int = 0, turns: int = 0
) -> AsyncIterator[tuple[int, Episode]]:
    """One answer to each start: the play of single-turn tasks. It is one turn, so a limit of turns cuts nothing."""
    wanted = [request_after(ctx, s.prefix, s.uid, s.sampling) for s in starts]
    asked = [replace(r, max_tokens=min(window, r.max_tokens)) for r in wanted] if window else wanted
    async for i, completion in ctx.engine.generate(asked):
        episode = starts[i].ended(ctx, wanted[i], completion)
        if window and completion.reason == "length" and len(completion.ids) < wanted[i].max_tokens:
            episode.status = Status.OPEN
        yield i, episode


def shown(play: Play, task: Any) -> Any:
    """The task as the policy sees it first; one that is played in an environment begins with an observation."""
    return play.shown(task) if hasattr(play, "shown") else task  # type: ignore[attr-defined]


def close_play(play: Play) -> None:
    """Ends the processes of a play, if it has any."""
    if hasattr(play, "close"):
        play.close()  # type: ignore[attr-defined]


def ending(completion: Completion) -> Status:
    return Status.OK if completion.reason == "stop" else Status.TRUNCATED


def request_after(ctx: Context, prefix: Ids, key: int, sampling: Sampling, role: str = "policy") -> Request:
    """A request for what follows these ids, under this random key."""
    return Request(prefix, key=int(key), stop=(ctx.tokenizer.eos,), role=role, **vars(sampling))


def sampling_for(ctx: Context, ask: Ask) -> Sampling:
    """The sampling of the run, with the overrides of the ask."""
    return replace(ctx.sampling, **{k: v for k, v in ask.how.items() if k in Sampling.__dataclass_fields__})


def starts_of(ctx: Context, given: Sequence[Prompt | Start | Fork]) -> list[Start | Fork]:
    """One start for every sample of every prompt; starts and forks stay as they are."""
    out: list[Start | Fork] = []
    number = 0
    for s in given:
        if isinstance(s, Prompt):
            sampling = sampling_for(ctx, s.ask)
            out += [Start(s, episode_uid(ctx, s, number, sample), sampling) for sample in range(s.samples)]
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


def grown_of(ctx: Context, start: Start) -> Growing:
    """The episode of a start, with nothing in it: for plays of several turns."""
    ask = start.prompt.ask
    return Growing(
        start.uid,
        ask.task.uid,
        start.prompt.group,
        notes={k: Note(np.array([v], np.float32)) for k, v in ask.notes.items()},
        step=ctx.step,
        ask=ask,
        asked=asked_of(ask),
        index=ask.index,
        domain=ask.task.domain,
    )


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
        asked=asked_of(ask),
        index=ask.index,
        domain=ask.task.domain,
        **rest,
    )


def asked_of(ask: Ask) -> str:
    """An ask without its task, as JSON, to be stored with its episodes. What JSON cannot hold exactly is in `lost`."""
    held, lost = dict[str, Any](), list[str]()
    for name, value in ask.how.items():
        value = value.item() if isinstance(value, np.generic) else value
        if _exact(value):
            held[name] = value
        else:
            lost.append(name)
    notes = {name: float(x) for name, x in ask.notes.items()}
    said = {"how": held, "key": ask.key, "notes": notes, "lost": lost}
    return json.dumps({"samples": ask.samples, "group": ask.group, **{k: v for k, v in said.items() if v}})


def _exact(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False


def ask_of(episode: Episode, task: Any) -> Ask:
    """The ask of an episode of an earlier process, for its task; of an older file, one sample without options."""
    if not episode.asked:
        return Ask(task, 1, episode.group, index=episode.index)
    said = json.loads(episode.asked)
    if lost := said.pop("lost", ()):
        raise ValueError(
            f"the ask of episode {episode.uid} had the options {', '.join(lost)}, which no file can hold, so it cannot "
            "be asked again. Use numbers, texts and lists of them in Ask.how."
        )
    return Ask(task, index=episode.index, **said)


def prompt_before(episode: Episode, turn: int, key: str = "") -> Prompt:
    """The state in which a turn of an episode began, as a prompt for one sample; all before it is context.

    `key` separates its draws from others: it becomes that of the ask.
    """
    t = episode.turns[turn]
    s = episode.sequences[t.sequence]
    if episode.ask is None:
        raise ValueError(
            f"what was asked in episode {episode.uid} is not known any more, so nothing can be drawn where its turns "
            "began. Put the data back as it was, and use numbers, texts and lists of them in Ask.how."
        )
    seen = None if s.train_as is None else np.concatenate([s.train_as, s.ids[s.prompt_len : t.start]])
    return Prompt(s.ids[: t.start], replace(episode.ask, key=key), episode.group, 1, train_as=seen)


def prompt_source(prompt: Prompt) -> Any:
    """The source of each token of the prompt: the environment, or what `given` says."""
    source = np.full(len(prompt.ids), Source.ENV, np.int8)
    for start, stop, name in prompt.given:
        source[start:stop] = Source[name.upper()]
    return source
