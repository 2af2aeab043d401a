"""`gruppo env list | check NAME | play NAME`: worlds, the laws that they keep, and a look at what an agent sees."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gruppo.envs.base import Player, Seen, actions_of, name_of, offers, seats_of
from gruppo.envs.check import LAWS
from gruppo.envs.checking import checked, sample, tasks_for
from gruppo.envs.guard import Guarded
from gruppo.envs.players import episode, opponent, scripted
from gruppo.envs.registry import BUILT_IN, env_class, make_env
from gruppo.tasks import load_task
from gruppo.tasks.base import Task, TaskSet
from gruppo.tasks.imports import nearest
from gruppo.tasks.numbering import hash64

DO = ("list", "check", "play")
SHOWN = 12  # actions of a hint
CHECKED = 6  # tasks of a level


def env(args: argparse.Namespace) -> int:
    if args.what not in DO:
        raise ValueError(
            f"gruppo env {args.what}: there is no such thing to do.{nearest(args.what, DO)} Use {', '.join(DO)}."
        )
    if args.what == "list":
        return listed(args.json)
    if len(args.names) != 1:
        given = "no name" if not args.names else f"{len(args.names)} names"
        raise ValueError(f"gruppo env {args.what} takes one environment, and {given} was given. See gruppo env list.")
    return (check if args.what == "check" else play)(args.names[0], args)


def listed(as_json: bool) -> int:
    rows = []
    for name in BUILT_IN:
        world = env_class(name)
        rows.append({"name": name, "about": world.about, "seats": list(world.seats), "levels": sorted(world.levels)})
        rows[-1] |= {"can": sorted(world.can), "players": sorted(world.players)}
    if as_json:
        print(json.dumps(rows))
        return 0
    wide = max(len(r["name"]) for r in rows)
    for r in rows:
        seats = f"{len(r['seats'])} seat{'s' if len(r['seats']) > 1 else ' '}"
        print(f"{r['name']:<{wide}}  {seats:<7}  levels 1-{r['levels'][-1]}  {r['about']}")
    print(
        "\nPlay one: gruppo env play lake.  Your own: gruppo env check ./mine.py:World.  As tasks: docs/environments.md"
    )
    return 0


def check(name: str, args: argparse.Namespace) -> int:
    """Prints each law as it is checked; exit code 1 if one is broken."""
    env_class(name)  # a wrong name is a wrong name, and not a broken law
    if args.seconds is not None and args.seconds <= 0:
        raise ValueError(f"--seconds {args.seconds:g}: no law could be checked. Use a positive number.")
    tasks = sample(leveled(name, args), CHECKED) if args.level else tasks_for(name, args.tasks, CHECKED)
    says = {law.name: law.says for law in LAWS}
    found: dict[str, list[str] | None] = {}
    told: dict[str, str] = {}
    for law, wrong in checked(name, tasks, args.seconds or 30.0):
        found[law] = wrong
        if not args.json:
            word = "none" if wrong is None else "broken" if wrong else "ok"
            print(f"{word:<6}  {law:<11}  {says[law]}", flush=True)
            for sentence in wrong or ():
                print(f"        {told_once(sentence, told)}")
                told.setdefault(sentence, law)
    broken = [law for law, wrong in found.items() if wrong]
    if args.json:
        print(json.dumps({"env": name, "tasks": len(tasks), "laws": found, "ok": not broken}))
    else:
        held = sum(wrong == [] for wrong in found.values())
        left = len(LAWS) - held - len(broken)
        rest = f"; {left} not checked" if left else ""
        hold, many = "law holds" if held == 1 else "laws hold", "task" if len(tasks) == 1 else "tasks"
        print(f"{name}: {held} {hold}, {len(broken)} broken{rest}; {len(tasks)} {many}")
    return 1 if broken else 0


def told_once(sentence: str, told: Mapping[str, str]) -> str:
    """What is wrong; where it was said under another law, only that. `told` has the law of each sentence."""
    for before, law in told.items():
        if before in sentence:
            return sentence.replace(before, f"the same as under {law}")
    return sentence


def play(name: str, args: argparse.Namespace) -> int:
    """An episode as text; without --player, you play."""
    world = Guarded(make_env(name))
    task = chosen(name, args)
    players = {seat: player_of(world, args.player, args.care) for seat in seats_of(world)} if args.player else None
    print(f"{name_of(world)}: {task.prompt or task.uid}")
    if getattr(world, "rules", "") and not args.player:
        print(world.rules)
    if players is None:
        return typed(world, task)
    key = hash64("play", args.seed)
    for agent, action, seen in episode(world, task, players, key):
        if agent:
            print(f"{said(world, agent)}> {action}")
        print(shown(seen))
    return 0


def leveled(name: str, args: argparse.Namespace) -> TaskSet:
    """The tasks of an environment, or of --tasks; with --level, those of that level."""
    if not (args.tasks or name in BUILT_IN or name.startswith("env:")):
        raise ValueError(
            f"--level {args.level}: {name} has no levels, so nothing would differ. Leave it out, or give tasks with "
            "levels: --tasks levels.jsonl."
        )
    return load_task(args.tasks or name, **({"level": args.level} if args.level else {}))


def chosen(name: str, args: argparse.Namespace) -> Task:
    if args.level or args.tasks or name in BUILT_IN or name.startswith("env:"):
        tasks = leveled(name, args)
        if not 0 <= args.number < len(tasks.train):
            raise ValueError(
                f"--number {args.number}: there are {len(tasks.train)} tasks. Use 0 to {len(tasks.train) - 1}."
            )
        return tasks.train[args.number]
    return tasks_for(name)[0]


def player_of(world: Any, name: str, care: float) -> Player:
    """By a name that task.against takes, too: `gold`, `random`, `gold:0.7`, or one of the game's own."""
    if not 0 <= care <= 1:
        raise ValueError(f"--care {care:g} is no probability. Use 0 to 1.")
    if name == "random" and not offers(world, "players"):
        return scripted(world, 0.0)  # also where no actions are named: then it says nothing
    try:
        return opponent(world, f"gold:{care!r}" if name == "gold" and care < 1 else name)
    except ValueError as error:
        raise ValueError(str(error).replace("player=", "--player ", 1)) from None


def typed(world: Any, task: Task, ask: Callable[[str], str] = input) -> int:
    """You act for every seat. An empty line shows some actions, and the end of the input ends the game."""
    seen = world.reset(task)
    print(shown(seen))
    while not seen.done:
        try:
            action = ask(f"{said(world, seen.agent)}> ")
        except EOFError:
            print()
            return 0
        if not sys.stdin.isatty():
            print(action)
        if not action.strip():
            some = list(actions_of(world))
            print(", ".join(some[:SHOWN]) + (" …" if len(some) > SHOWN else "") if some else "Type an action.")
            continue
        seen = world.step(action)
        print(shown(seen))
    return 0


def said(world: Any, agent: str) -> str:
    return agent if len(seats_of(world)) > 1 else ""


def shown(seen: Seen) -> str:
    """The text, what was paid, and what is odd about it."""
    paid = {**seen.rewards, **seen.outcomes}
    notes = [*(f"{name} {r:+g}" for name, r in paid.items())]
    notes += ["truncated"] * seen.truncated + ["invalid"] * (not seen.valid)
    notes += [f"error: {seen.error}"] if seen.error else []
    return f"  {seen.text}" + (f"   [{', '.join(notes)}]" if notes else "")
