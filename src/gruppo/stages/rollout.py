"""How are episodes made? A rollout is a coroutine: it may wait for an engine, an environment or a reward."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gruppo.data import Episode, Status, in_steps
from gruppo.stages.context import Ask, Context, Prompt
from gruppo.stages.occupant import Occupant, setting


class Rollout(Protocol):
    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]: ...

    # Optional, `pauses = True` beside `__call__`: it hands all that it is given to `ctx.play`, once, and looks at no
    # ending. So its episodes can be left open and go on in the next step (`turns_a_step`); those are then among its
    # prompts, as forks.


def pauses(rollout: Rollout) -> bool:
    """Whether its episodes can be left open. Its own class has to say so: what it inherits was said of another
    `__call__`, or before something else of it was changed."""
    own = vars(type(rollout))
    return "__call__" in own and own.get("pauses") is True


def asks_of(prompts: Sequence[Prompt]) -> list[Ask]:
    """The asks of these prompts, each once, for a rollout that uses `ctx.draw`."""
    return list({id(p.ask): p.ask for p in prompts}.values())


def again(ask: Ask, key: str, samples: int, how: Mapping[str, Any], notes: Mapping[str, float] | None = None) -> Ask:
    """The ask again, under a random key of its own, with additions to `how` and to its notes."""
    return replace(
        ask, samples=samples, key=f"{ask.key} {key}", how={**ask.how, **how}, notes={**ask.notes, **(notes or {})}
    )


@dataclass(frozen=True)
class Group(Occupant):
    """`samples` episodes of every prompt: the plain default. An answer is one turn; if `steps` is set, it is split
    into turns that each end in this text."""

    steps: str = setting("", witness=["0", "a", "e", "t", "+"], added=True)
    pauses = True

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        episodes = await ctx.play(prompts)
        return [self.split(ctx, e) for e in episodes] if self.steps else episodes

    def split(self, ctx: Context, episode: Episode) -> Episode:
        if len(episode.turns) != 1 or episode.status == Status.OPEN:  # an environment makes turns itself
            return episode
        [turn], [sequence] = episode.turns, episode.sequences
        ends = step_ends(ctx, sequence.ids[turn.start : turn.stop], self.steps)
        return in_steps(episode, [turn.start + end for end in ends])


def step_ends(ctx: Context, ids: Any, separator: str) -> list[int]:
    """Where the steps of an answer end: after the token in which a separator ends (it may begin in an earlier token).

    The token that ends the answer is not a step of its own.
    """
    pieces = {i: ctx.tokenizer.decode([i]) for i in np.unique(ids).tolist()}
    text = "".join(pieces[i] for i in ids.tolist())
    length = np.cumsum([len(pieces[i]) for i in ids.tolist()])
    ends = np.array([match.end() for match in re.finditer(re.escape(separator), text)])
    return [end for end in sorted({*(np.searchsorted(length, ends) + 1).tolist()}) if end < len(ids) - 1]
