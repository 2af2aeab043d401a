"""What an environment is: `reset(task)` and `step(action)` give a `Seen`.

An environment is a pure function of the task and the actions: no clock, no random generator, no memory of earlier
episodes. So two resets followed by the same actions give the same `Seen`s, and playing the actions again restores what
cannot be copied (`replay.py`). `gruppo env check NAME` tests this, and more, for any class.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from gruppo.tasks.base import Task

POLICY = "policy"  # the agent of a world with one seat
WORDS = ("actions", "gold", "players", "snapshot")  # what an environment may offer, in `can`


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool, as `Turn.tools` records it. How long it took is nothing that two plays must have in common."""

    name: str
    arguments: str = ""  # as they were given
    seconds: float = field(default=0.0, compare=False, repr=False)
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """What an action led to: the text for the agent that acts next, and the pay of the one that has just acted.

    `rewards` are components; `task` is the task's own, and the end of an episode has it in a world with one seat. In a
    game the end has `outcomes` instead, one for each seat. After `done` nothing is paid any more.
    """

    text: str
    agent: str = POLICY  # who acts next
    state: str = ""  # key of the state; in a game, of what this agent may know of it
    valid: bool = True  # whether the last action was understood and allowed
    rewards: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    outcomes: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    done: bool = False  # the episode is over, however it ended
    truncated: bool = False  # it is over because its turns ran out
    error: str = ""  # why the environment itself failed; such an episode is over and is not judged
    fresh: bool = False  # the text is the whole context: what was seen before is forgotten
    tools: tuple[Called, ...] = ()  # that the last action called
    answer: str | None = None  # at the end, instead of a reward: what the scorer of the task is to judge


Player = Callable[[Seen, int], str]  # an action for what one seat sees; the number is the random key of this move


@runtime_checkable
class Env(Protocol):
    """The two calls that every environment has. All others are optional: see `offers`."""

    def reset(self, task: Task) -> Seen: ...
    def step(self, action: str) -> Seen: ...


def offers(env: Any, what: str) -> bool:
    """Whether an environment can do this: `snapshot` (and `restore`), `gold`, `actions` or `players`."""
    if what not in WORDS:
        raise ValueError(f"{what!r} is nothing that an environment offers. Use one of {', '.join(WORDS)}.")
    return what in getattr(env, "can", ())


def need(env: Any, what: str, why: str) -> None:
    """Refuses an environment that cannot do this."""
    if not offers(env, what):
        has = ", ".join(sorted(getattr(env, "can", ()))) or "nothing beyond reset and step"
        other = " Replaying the actions does the same: gruppo.envs.replay.Replayed." if what == "snapshot" else ""
        raise ValueError(
            f"{name_of(env)} has no {what}, and {why}. It offers {has}.{other} If it has the method, name it in `can`."
        )


def name_of(env: Any) -> str:
    return str(getattr(env, "name", "") or type(env).__name__)


def seats_of(env: Any) -> tuple[str, ...]:
    """The names of its agents, in the order in which they first act."""
    return tuple(getattr(env, "seats", (POLICY,)))


def gold_of(env: Any) -> str:
    """An action on the way to a win, from where the environment is; empty if there is none."""
    need(env, "gold", "its winning path was asked for")
    return str(env.gold())


def actions_of(env: Any) -> Sequence[str]:
    """Some actions that are allowed now; empty if the environment names none."""
    return env.actions() if offers(env, "actions") else ()


def play(env: Any, task: Task, actions: Iterable[str]) -> list[Seen]:
    """Everything that is seen when these actions are played, up to the end of the episode."""
    seen = [env.reset(task)]
    for action in actions:
        if seen[-1].done:
            break
        seen.append(env.step(action))
    return seen
