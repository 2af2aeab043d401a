"""The laws of environments, for any class: `gruppo env check NAME`.

Each law plays some tasks and yields a sentence for everything that is wrong, with the remedy. `checking.py` runs them
in a process that can be killed, so that an environment that hangs is a sentence too.
"""

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from gruppo.envs import base
from gruppo.envs.base import WORDS, Seen, actions_of, offers, seats_of
from gruppo.envs.hostile import HOSTILE
from gruppo.tasks.base import Task
from gruppo.tasks.numbering import hash64

TURNS = 60  # of a random episode
SEEDS = 3  # random episodes for each task
LONGEST = 1_000  # turns after which an episode is said not to end
PATIENCE = 5.0  # seconds that are spent on looking for an end
OURS = (__file__, base.__file__)  # between a law and the environment
Make = Callable[[], Any]


class Broken(Exception):
    """A law cannot be checked further; the message is the sentence."""


@dataclass(frozen=True)
class Law:
    name: str
    says: str
    check: Callable[[Make, Sequence[Task]], Iterator[str]]
    needs: str = ""  # what the environment must offer for it


def holds(law: Law, make: Make, tasks: Sequence[Task]) -> list[str] | None:
    """What is wrong with an environment under one law, each sentence once; None if the law is not about it."""
    found: dict[str, None] = {}
    try:
        if law.needs and not offers(make(), law.needs):
            return None
        for sentence in law.check(make, tasks):
            found[sentence] = None
            if len(found) >= 3:
                break
    except Broken as broken:
        found[str(broken)] = None
    except Exception as error:
        found[raised(error)] = None
    return list(found)


def raised(error: Exception) -> str:
    """An error of the environment with the call and the line that raised it, and what that call must do instead."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in OURS]
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    call = frames[0].name if frames else ""
    said = "".join(traceback.format_exception_only(error)).strip()
    return f"{f'{call}()' if call in REMEDIES else 'it'} raised {said}{at}. {REMEDIES.get(call, REMEDIES['step'])}"


REMEDIES = {
    "reset": (
        "It must build every task that it is given. Without --tasks FILE or a static tasks() of the class, tasks are "
        "empty: give it such as it needs."
    ),
    "step": "An action that means nothing is Seen(valid=False); a failure is Seen(error=…, done=True).",
    "gold": "Give an action, or an empty text where there is none; or leave 'gold' out of `can`.",
    "actions": "Give a list of texts, or an empty one; or leave 'actions' out of `can`.",
    "snapshot": "Copy what a step changes; or leave 'snapshot' out of `can`.",
    "restore": "Put back what snapshot() gave, also into another one; or leave 'snapshot' out of `can`.",
    "look": "Return what was seen last.",
}


def sound(seen: Any) -> Seen:
    """A `Seen` whose fields have their types, or a sentence."""
    if not isinstance(seen, Seen):
        raise Broken(f"it gave {type(seen).__name__} and not a Seen. Return gruppo.envs.Seen(text, …).")
    for name, kind in (("text", str), ("agent", str), ("state", str), ("error", str)):
        if not isinstance(getattr(seen, name), kind):
            raise Broken(f"Seen.{name} is {getattr(seen, name)!r} and no text. Give a str.")
    if not seen.text and not seen.done:
        raise Broken("Seen.text is empty, so the agent sees nothing. Say what there is, if only 'nothing happens'.")
    for name in ("valid", "done", "truncated", "fresh"):
        if not isinstance(getattr(seen, name), bool):
            raise Broken(f"Seen.{name} is {getattr(seen, name)!r} and neither true nor false. Give a bool.")
    return seen


def acts(env: Any, seen: Seen, key: int) -> str:
    """An action for a random player: one that the environment names, or a word that it has said."""
    known = list(actions_of(env)) or seen.text.split() or ["look"]
    return str(known[hash64("act", key) % len(known)])


def random_play(make: Make, task: Task, key: int, turns: int = TURNS) -> tuple[list[str], list[Seen]]:
    """A random episode: its actions, and everything that was seen."""
    env = make()
    seen, actions = [sound(env.reset(task))], list[str]()
    while not seen[-1].done and len(actions) < turns:
        actions.append(acts(env, seen[-1], hash64(key, len(actions))))
        seen.append(sound(env.step(actions[-1])))
    return actions, seen


def again(env: Any, task: Task, actions: Sequence[str]) -> list[Seen]:
    return [sound(env.reset(task)), *(sound(env.step(action)) for action in actions)]


def unlike(one: Seen, two: Seen) -> str:
    """The fields in which two differ, as `text ('a', then 'b')`; empty if they are the same."""
    pairs = [(f.name, repr(getattr(one, f.name)), repr(getattr(two, f.name))) for f in fields(Seen)]  # NaN is itself
    return ", ".join([f"{name} ({_short(a)}, then {_short(b)})" for name, a, b in pairs if a != b][:2])


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def each(tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
    for task in tasks:
        for seed in range(SEEDS):
            yield task, hash64("check", task.uid, seed)


# ---- the laws --------------------------------------------------------------------------------------------


def says_text(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    for task, key in each(tasks):
        _, seen = random_play(make, task, key)
        for s in seen:
            if s.agent not in seats_of(make()) and not s.done:
                yield (
                    f"Seen.agent is {s.agent!r}, and the seats are {', '.join(seats_of(make()))}. Name it in `seats`, "
                    "or leave agent out in a world with one seat."
                )
            if s.truncated and not s.done:
                yield "Seen.truncated without done: the episode would go on. Set both when its turns run out."


def deterministic(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    for task, key in each(tasks):
        actions, seen = random_play(make, task, key)
        other = make()
        other.reset(tasks[0])
        other.step("look")  # an episode before it must leave no trace
        for i, (one, two) in enumerate(zip(seen, again(other, task, actions), strict=True)):
            if differs := unlike(one, two):
                yield (
                    f"the same actions on task {task.uid!r} gave another {differs} at turn {i}. Take chance from a key "
                    "(gruppo.envs.world.Draws), not from a generator or a clock, and begin anew in reset."
                )
                return


def stable(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    for task, key in each(tasks):
        env = make()
        seen = sound(env.reset(task))
        for turn in range(TURNS):
            before = seen.state, seen.text
            _looks(env)
            now = sound(env.look()) if callable(getattr(env, "look", None)) else seen
            if (now.state, now.text) != before or (seen.state, seen.text) != before:
                yield (
                    f"its state or text changed between two looks, from {before!r} to {(now.state, now.text)!r}, "
                    "although no action was taken. Compute it from the state alone, without a clock or a counter."
                )
                return
            if seen.done:
                break
            seen = sound(env.step(acts(env, seen, hash64(key, turn))))


def _looks(env: Any) -> None:
    """Everything that may be asked without acting."""
    actions_of(env)
    for what in ("gold", "snapshot"):
        if offers(env, what):
            getattr(env, what)()


def can_do(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    env = make()
    strange = set(getattr(env, "can", ())) - set(WORDS)
    if strange:
        yield f"`can` has {min(strange)!r}, which means nothing. It may have {', '.join(WORDS)}."
    for what, calls in (("snapshot", ("snapshot", "restore")), ("gold", ("gold",)), ("actions", ("actions",))):
        for call in calls:
            if offers(env, what) and not callable(getattr(env, call, None)):
                yield f"`can` has {what!r}, but there is no method {call}. Write it, or leave {what!r} out of `can`."
    players = getattr(env, "players", None)
    if offers(env, "players") and not (isinstance(players, Mapping) and players):
        yield "`can` has 'players', but there are none. Give a mapping from names to players, or leave it out of `can`."


def copies(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    for task, key in each(tasks):
        yield from _copied(make, task, key)


def _copied(make: Make, task: Task, key: int) -> Iterator[str]:
    actions, seen = random_play(make, task, key, 20)
    cut = hash64("cut", key) % (len(actions) + 1)
    env = make()
    again(env, task, actions[:cut])
    kept = env.snapshot()
    for action in actions[cut:]:
        env.step(action)
    other = make()
    other.reset(task)
    for where, place in (("", env), (" into another one", other)):
        back = sound(place.restore(kept))
        after = [back, *(sound(place.step(action)) for action in actions[cut:])]
        for i, (one, two) in enumerate(zip(seen[cut:], after, strict=True)):
            if differs := unlike(one, two):
                yield (
                    f"restoring a snapshot{where} and going on gave another {differs} than replaying, {i} turns later. "
                    "Copy everything that a step changes, and return what was seen last."
                )
                return


def pays(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    seats = seats_of(make())
    for task, key in each(tasks):
        _, seen = random_play(make, task, key)
        for s in seen:
            yield from _numbers(s)
        if seen[0].rewards:
            yield "reset paid a reward, and nobody had acted. Pay for actions only."
        last = seen[-1]
        if not last.done or last.error:
            continue
        if len(seats) > 1 and set(last.outcomes) != set(seats):
            has = ", ".join(last.outcomes) or "nobody"
            yield f"the end has outcomes for {has}, and the seats are {', '.join(seats)}. Give one for every seat."
        if len(seats) == 1 and not any("task" in s.rewards for s in seen):
            yield "the episode ended without a reward named 'task', so it cannot be judged. Pay 0 for a failure."


def _numbers(seen: Seen) -> Iterator[str]:
    for name in ("rewards", "outcomes"):
        table = getattr(seen, name)
        if not isinstance(table, Mapping):
            yield f"Seen.{name} is {type(table).__name__}. Give a mapping, such as {{'task': 1.0}}."
            continue
        for part, r in table.items():
            if not isinstance(r, int | float) or not math.isfinite(r):
                yield f"Seen.{name}[{part!r}] is {r!r}, which is no finite number. Leave it out if nothing was earned."


def wins(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    for task in tasks:
        env = make()
        seen, earned, turns = sound(env.reset(task)), 0.0, 0
        while not seen.done and turns < 1_000:
            action, turns = env.gold(), turns + 1
            if not isinstance(action, str) or not action:
                yield f"gold() gave {action!r} on task {task.uid!r} after {turns - 1} turns. Give an action that wins."
                return
            seen = sound(env.step(action))
            earned += seen.rewards.get("task", 0.0)
        won = min(seen.outcomes.values()) > 0 if seen.outcomes else earned > 0
        if not won or seen.truncated:
            yield (
                f"the gold path of task {task.uid!r} does not win: after {turns} turns it has earned {earned:g}"
                f"{', and its turns ran out' if seen.truncated else ''}. Correct gold(), or give more turns."
            )


def endures(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    for task in tasks:
        env = make()
        env.reset(task)
        for action in HOSTILE:
            try:
                seen = sound(env.step(action))
            except Broken:
                raise
            except Exception as error:
                yield f"for the action {_short(repr(action))} {raised(error)}"
                return
            if seen.error:
                yield f"the action {_short(repr(action))} gave error={seen.error!r}. Say valid=False instead."
            if seen.done:
                env.reset(task)


def comes_to_an_end(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    """As far as its patience goes: of a slow world, no more than some turns are played."""
    until = time.monotonic() + PATIENCE
    for task, key in [(task, hash64("end", task.uid)) for task in tasks]:
        env, turns = make(), 0
        seen = sound(env.reset(task))
        while not seen.done and turns < LONGEST and time.monotonic() < until:
            seen, turns = sound(env.step(acts(env, seen, hash64(key, turns)))), turns + 1
        if not seen.done and turns == LONGEST:
            yield (
                f"task {task.uid!r} had not ended after {LONGEST:,} turns, so an episode goes on until the model's "
                "context is full. Count turns, and end with Seen(done=True, truncated=True, rewards={'task': 0.0}); or "
                "name a function that returns gruppo.envs.wrappers.TurnLimit(World(), turns=30)."
            )
            return


def takes_turns(make: Make, tasks: Sequence[Task]) -> Iterator[str]:
    seats = seats_of(make())
    acted: set[str] = set()
    for task, key in each(tasks):
        actions, seen = random_play(make, task, key)
        acted |= {s.agent for s in seen[: len(actions)]}
        env = make()
        after = again(env, task, actions)[-1]
        if after.done:
            more = sound(env.step("look"))
            if not more.done or more.rewards or more.outcomes:
                yield "after its end it went on, or paid again. Return done=True, and no rewards, for every later step."
    idle = [seat for seat in seats if seat not in acted]
    if idle:
        yield (
            f"the seat {idle[0]!r} never acts; {', '.join(sorted(acted))} did. Set Seen.agent to the seat that acts "
            "next, or leave it out of `seats`."
        )


LAWS = (
    Law("text", "everything seen is a Seen with text, and its agents have seats", says_text),
    Law("can", "what `can` names is there", can_do),
    Law("rewards", "rewards are finite, and the end is judged", pays),
    Law("ends", "an episode comes to its end", comes_to_an_end),
    Law("determinism", "the same task and actions give the same", deterministic),
    Law("stable", "looking changes nothing", stable),
    Law("snapshot", "a snapshot equals a replay", copies, "snapshot"),
    Law("gold", "the gold path wins", wins, "gold"),
    Law("hostile", "no action raises", endures),
    Law("seats", "every seat acts, and nothing is paid after the end", takes_turns),
)
