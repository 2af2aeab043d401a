"""Episodes of `tiny-agent` in the built-in worlds, for scripts/make_agent.py and the tests of what it made."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from gruppo.engines import NativeEngine, Request
from gruppo.envs import make_env
from gruppo.envs.base import seats_of
from gruppo.envs.players import episode, scripted
from gruppo.envs.registry import BUILT_IN, env_class
from gruppo.envs.words import vocabulary
from gruppo.envs.wrappers import Against
from gruppo.policies import TinyConfig, WordTokenizer
from gruppo.tasks import load_task
from gruppo.tasks.base import Task, TaskSet
from gruppo.tasks.numbering import hash64

TOKENIZER = WordTokenizer(vocabulary())
CONFIG = TinyConfig(vocab=TOKENIZER.vocab, context=512)
SPOKEN = [name for name in BUILT_IN if env_class(name).words]  # programs are no words
WORLDS = [name for name in SPOKEN if len(env_class(name).seats) == 1]
GAMES = [name for name in SPOKEN if name not in WORLDS]
ACTION = 8  # most tokens of an action that is sampled; the longest one has five and <eos>


def first(task: Task, text: str) -> np.ndarray:
    """The beginning of every dialogue: the task, and on the next line what is seen."""
    return TOKENIZER.chat([*task.messages, {"role": "user", "content": text}])


@cache
def tasks_of(name: str, level: int) -> TaskSet:
    return load_task(name, level=level)


@dataclass
class Played:
    """An episode that the policy plays."""

    env: Any
    task: Task
    key: int
    prefix: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    actions: list[str] = field(default_factory=list)
    invalid: int = 0
    won: bool = False
    full: bool = False  # its next turn did not fit into the context

    def begin(self) -> bool:
        """Whether there is something to do."""
        seen = self.env.reset(self.task)
        self.prefix = first(self.task, seen.text)
        return not seen.done

    def step(self, ids: np.ndarray) -> bool:
        """Whether it goes on."""
        self.actions.append(TOKENIZER.decode(ids))
        seen = self.env.step(self.actions[-1])
        self.invalid += not seen.valid
        if seen.done:
            self.won = seen.rewards.get("task", 0.0) > 0
            return False
        new = TOKENIZER.follow([{"role": "user", "content": seen.text}], int(ids[-1]))
        self.prefix = np.concatenate([self.prefix, ids, new])
        self.full = len(self.prefix) + ACTION > CONFIG.context
        return not self.full


def play(policy: Any, episodes: Sequence[Played], temperature: float = 1.0) -> None:
    """Plays all episodes, turn by turn: in each turn one action of all that go on."""
    room = CONFIG.context * len(episodes)
    engine = NativeEngine({"policy": policy}, eos=TOKENIZER.stops, cache_tokens=room)

    async def rounds() -> None:
        live = [e for e in episodes if e.begin()]
        while live:
            requests = [Request(e.prefix, ACTION, e.key, temperature) for e in live]
            found = {i: c.ids async for i, c in engine.generate(requests, remember=True)}
            live = [e for i, e in enumerate(live) if e.step(found[i])]

    asyncio.run(rounds())


def held_out(name: str, level: int, count: int) -> list[Played]:
    """Episodes of held-out tasks. In a game the policy plays either seat against the player `random`."""
    tasks, out = tasks_of(name, level).held_out, list[Played]()
    for i in range(count):
        task = tasks[i % len(tasks)]
        env = make_env(name)
        if name in GAMES:
            env = Against(env, "random", seats_of(env)[i % 2], key=i)
        out.append(Played(env, task, hash64(task.uid, i)))
    return out


def measure(policy: Any, count: int, seen: set[str]) -> dict[str, dict[str, float]]:
    """By world and level, on held-out tasks at temperature 1."""
    table: dict[str, dict[str, float]] = {}
    for level in range(1, 5):  # the lower levels first, since the others take long
        for name in (n for n in SPOKEN if level in env_class(n).levels):
            episodes = held_out(name, level, count)
            if name != "kuhn":  # it has six deals, so there are no others
                assert not seen & {e.task.uid for e in episodes}, f"{name}: a held-out task was trained on"
            play(policy, episodes)
            turns = sum(len(e.actions) for e in episodes)
            row = {
                "success": sum(e.won for e in episodes) / count,
                "turns": turns / count,
                "invalid": sum(e.invalid for e in episodes) / turns,
                "full": sum(e.full for e in episodes) / count,
                "random": chance_of(name, level, count),
            }
            table[f"{name} {level}"] = {k: round(v, 3) for k, v in row.items()}
            print(f"{name:>12} {level}  " + "  ".join(f"{k} {v:.3f}" for k, v in row.items()), flush=True)
    return dict(sorted(table.items()))


def chance_of(name: str, level: int, count: int) -> float:
    """How often a player wins that takes any action that is allowed."""
    won = 0
    for e in held_out(name, level, count):
        inner = e.env.env if name in GAMES else e.env
        won += episode(e.env, e.task, scripted(inner, 0.0), e.key)[-1][2].rewards.get("task", 0.0) > 0
    return won / count
