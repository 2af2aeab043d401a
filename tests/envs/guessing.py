"""A toy environment of two turns: guess a number; after a wrong guess the policy is told whether it is higher or lower.

It lives in the tests. A player yields episodes as `gruppo.stages.play.one_answer` does; it also goes on from a fork, so
methods that branch run in it unchanged. The prompt is a sum, so that the built-in policy has a chance.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gruppo.data import Episode, Source, Turn
from gruppo.engines.base import Completion, Request
from gruppo.policies import CharTokenizer
from gruppo.stages import Context
from gruppo.stages.play import Fork, Start, ending, request_after
from gruppo.tasks import Task

HIGHER, LOWER = ">", "<"


def tasks(n: int, level: int = 10) -> list[Task]:
    """Sums of two numbers below `level`; the number to guess is the sum."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(level // 10, level, (n, 2)).tolist()
    return [
        Task(f"guess-{i}", f"{a}+{b}=", str(a + b), 1, "guess", meta={"hints": [str(a + b)[:1]] if a + b > 9 else []})
        for i, (a, b) in enumerate(pairs)
    ]


@dataclass
class Guess:
    """The player. `steps` counts how often the environment was asked for an observation."""

    steps: int = 0

    async def __call__(
        self, ctx: Context, starts: Sequence[Start | Fork], window: int = 0
    ) -> AsyncIterator[tuple[int, Episode]]:
        asked = [request_after(ctx, s.prefix, s.uid, s.sampling) for s in starts]
        second: list[tuple[int, Episode, Request]] = []
        async for i, completion in ctx.engine.generate(asked):
            episode = first_turn(ctx, starts[i], asked[i], completion)
            if len(episode.turns) > 1 or guessed(episode) == number(episode):
                yield i, judged(episode)
            else:
                second.append((i, *self.step(ctx, episode, starts[i])))
        async for j, completion in ctx.engine.generate([request for *_, request in second]):
            i, episode, request = second[j]
            yield i, judged(second_turn(ctx, episode, request, completion))

    def step(self, ctx: Context, episode: Episode, start: Start | Fork) -> tuple[Episode, Request]:
        """The observation after a wrong guess, and the request for the second one."""
        self.steps += 1
        word = HIGHER if (guessed(episode) or 0) < number(episode) else LOWER
        seen = np.concatenate([ctx.tokenizer.encode(word), ctx.tokenizer.chat(episode.ask.task.messages)[1:]])
        [sequence] = episode.sequences
        longer = replace(episode, sequences=[sequence.extended(seen, Source.ENV)])
        return longer, request_after(ctx, longer.sequences[0].ids, episode.uid, start.sampling)


def first_turn(ctx: Context, start: Start | Fork, request: Request, completion: Completion) -> Episode:
    """The episode up to the end of the turn that was played; the turns of a fork before its cut stay as they were."""
    episode = start.ended(ctx, request, completion)
    [sequence] = episode.sequences
    if isinstance(start, Fork):
        turns = [t for t in start.episode.turns if t.start <= start.at]
        episode.turns = [*turns[:-1], replace(turns[-1], stop=len(sequence.ids), reward={})]
    return episode


def second_turn(ctx: Context, episode: Episode, request: Request, completion: Completion) -> Episode:
    [sequence] = episode.sequences
    begin = len(sequence.ids)
    longer = sequence.extended(
        completion.ids, Source.POLICY, completion.logp, completion.version, request.temperature, completion.allowed
    )
    turn = Turn(start=begin, stop=len(longer.ids), obs_start=episode.turns[-1].stop, obs_stop=begin)
    answers = longer.ids[longer.source != Source.ENV]
    return replace(
        episode,
        sequences=[longer],
        turns=[*episode.turns, turn],
        status=ending(completion),
        text=ctx.tokenizer.decode(answers),
    )


def number(episode: Episode) -> int:
    return int(episode.ask.task.answer)


def guessed(episode: Episode) -> int | None:
    """The number that the last turn says; what a hint gave belongs to the first."""
    [sequence], turn = episode.sequences, episode.turns[-1]
    mine = np.arange(len(sequence.ids)) >= turn.start
    if len(episode.turns) == 1:
        mine |= sequence.source == Source.HINT
    text = CharTokenizer().decode(sequence.ids[mine & (np.arange(len(sequence.ids)) < turn.stop)])
    return int(text) if text.isdecimal() else None


def judged(episode: Episode) -> Episode:
    """The environment's own reward: 1 for the number, wherever it was found."""
    episode.reward = {"task": float(guessed(episode) == number(episode))}
    return episode
