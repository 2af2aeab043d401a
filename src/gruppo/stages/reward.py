"""What is each episode worth? A chain of reward components, in addition to `task`, which the task's scorer gives."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gruppo.data import Episode, Use
from gruppo.pieces.shaping import overlong
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant, setting
from gruppo.stages.requires import FactsOfTurns, StepsOfTasks


class Reward(Protocol):
    """{component: one value per episode}.

    One that compares the answers of a group has `of_groups = True`: it is called when a step has all its episodes.
    Components in `replaces` are still recorded, but no longer part of the total.
    """

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class OverlongShaping(Occupant):
    """Component `overlong`: 0 for short answers, falling to −1 at the token budget (DAPO).

    `budget_tokens=0` means the run's max_tokens, and `buffer_tokens=0` a fifth of the budget, the proportion of the
    paper's 20480 and 4096.
    """

    budget_tokens: int = setting(0, low=0, witness=4)
    buffer_tokens: int = setting(0, low=0, witness=3)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        budget = self.budget_tokens or ctx.sampling.max_tokens
        buffer = self.buffer_tokens or max(budget // 5, 1)
        length = np.array([e.tokens for e in episodes], np.float64)
        return {"overlong": overlong(length, budget, buffer)}


@dataclass(frozen=True)
class InvalidActions(Occupant):
    """Component `invalid` of turns: −invalid_coef for an action that the environment did not understand or allow."""

    invalid_coef: float = setting(0.1, low=0)
    requires = (FactsOfTurns("which actions were invalid"),)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        return {"invalid": [[-self.invalid_coef * ("invalid" in t.flags) for t in e.turns] for e in episodes]}


@dataclass(frozen=True)
class RightSteps(Occupant):
    """Component `steps` of turns: step_bonus for each step of an answer that is the right one at its place.

    The steps of a task are `Task.steps`: the totals of a chain, or the lines of a solution. An answer has as many turns
    as the rollout makes of it: method.rollout.steps=" " for totals, or a line break for lines.
    """

    step_bonus: float = setting(0.1, low=0)
    requires = (StepsOfTasks(),)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        return {"steps": [self._of(ctx, e) for e in episodes]}

    def _of(self, ctx: Context, e: Episode) -> list[float]:
        steps: Sequence[str] = () if e.ask is None else e.ask.task.steps
        said = [ctx.tokenizer.decode(e.sequences[t.sequence].ids[t.start : t.stop]).strip() for t in e.turns]
        return [self.step_bonus * (i < len(steps) and text == steps[i]) for i, text in enumerate(said)]


def task_reward(e: Episode, absent: float = 0.0) -> float:
    """The reward of the task itself, wherever it lies: on the episode, on turns, or on both, which are added.

    In a game it is the mean over the seats that the policy speaks for; `e.scores` has each. `absent`: there is none.
    """
    return absent if math.isnan(e.score) else e.score


def codes(names: Sequence[Any]) -> NDArray[np.int64]:
    """A number for each distinct name, from 0."""
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], np.int64)


def add_components(
    ctx: Context, chain: Sequence[Occupant], episodes: Sequence[Episode], of_groups: bool = False
) -> None:
    """Add the components of the chain to judged episodes. A name that is there already is an error.

    With `of_groups`, only the components that compare the answers of a group, for episodes that are in statistics;
    without it, all others.
    """
    judged = [e for e in episodes if e.status.judged and not (of_groups and e.use in (Use.NONE, Use.APART))]
    if not judged:  # everything failed; occupants need not handle that
        return
    for occupant in (o for o in chain if getattr(o, "of_groups", False) == of_groups):
        for name, values in occupant(ctx, judged).items():  # type: ignore[operator]
            if len(values) != len(judged):
                raise ValueError(
                    f"reward component {name!r} has {len(values)} values for {len(judged)} episodes: rewards would go "
                    "to the wrong episodes. Return one value per episode, NaN where it was not judged."
                )
            for e, v in zip(judged, values, strict=True):
                _write(e, name, v)
        for e in judged:
            e.replaced |= frozenset(getattr(occupant, "replaces", ()))


def _write(e: Episode, name: str, value: Any) -> None:
    """A number goes to the episode, one number per turn to its turns. NaN: not judged, and so is the total."""
    if np.ndim(value) and len(value) != len(e.turns):
        raise ValueError(
            f"reward component {name!r} has {len(value)} values for the {len(e.turns)} turns of an episode: they would "
            "go to the wrong turns. Return one number for the episode, or one for each turn."
        )
    each = [(t.reward, v) for t, v in zip(e.turns, value, strict=True)] if np.ndim(value) else [(e.reward, value)]
    for table, v in each:
        if name in table:
            raise ValueError(
                f"reward component {name!r} is written by two occupants: one would be lost. Rename one of them."
            )
        if np.isinf(v):
            raise ValueError(
                f"reward component {name!r} is {v} for an episode: every advantage of its group would be NaN. "
                "Return a finite number, or NaN where it was not judged."
            )
        table[name] = float(v)
