"""Agents: steps of the built-in worlds, and what is done with 10,000 turns before the first forward.

    python benchmarks/agents.py [--threads 1] [--json]

worlds   `env.step`, and `reset` where an episode begins, with actions that a random player chose before: what a player
         costs is not counted; the best of five rounds
turns    1,250 episodes of eight turns in groups of eight, of ten states a group: `pack`, then the credit of methods
         that compare turns, from cold caches; medians of eleven rounds
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from gruppo.data import Batch, Episode, Growing, Status, pack
from gruppo.envs import make_env
from gruppo.methods import method
from gruppo.stages import Context
from gruppo.tasks import load_task
from gruppo.train.allocator import keep_freed_memory

WORLDS = ("lake", "sokoban", "household", "shop", "tictactoe", "kuhn")
CREDITS = ("gigpo", "hgpo", "salt")
TASKS, ROUNDS, EPISODES, TURNS, GROUP, STATES = 200, 11, 1250, 8, 8, 10


def steps_per_second(name: str) -> float:
    """Steps of a world in a second of one core."""
    tasks, env, choose = load_task(name), make_env(name), random.Random(0)
    plays: list[tuple[Any, list[str]]] = []
    for i in range(TASKS):
        task, actions = tasks.train[i % len(tasks.train)], list[str]()
        seen = env.reset(task)
        while not seen.done:
            actions.append(choose.choice(list(env.actions())))
            seen = env.step(actions[-1])
        plays.append((task, actions))

    def again() -> None:
        for task, actions in plays:
            env.reset(task)
            for action in actions:
                env.step(action)

    return sum(len(actions) for _, actions in plays) / min(seconds(again) for _ in range(5))


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def walked(i: int, draw: np.random.Generator) -> Episode:
    """An episode of eight turns, each with six tokens of observation and four of action."""
    grown = Growing(i, f"t{i // GROUP}", f"t{i // GROUP}", index=i // GROUP)
    grown.begin(draw.integers(4, 500, 12))
    for t in range(TURNS):
        grown.write(draw.integers(4, 500, 4), np.full(4, -1.0, np.float32), 0)
        grown.end(state=f"s{draw.integers(STATES)}", action_key=f"a{draw.integers(4)}")
        if t < TURNS - 1:
            grown.observe(draw.integers(4, 500, 6))
    return grown.finish(Status.OK, reward={"task": float(draw.integers(2))})


def of_turns() -> dict[str, float]:
    """Seconds for 10,000 turns."""
    draw = np.random.default_rng(0)
    episodes = [walked(i, draw) for i in range(EPISODES)]
    out = {"pack": median(seconds(lambda: pack(episodes)) for _ in range(ROUNDS))}
    batch = pack(episodes)
    batch = batch.with_columns(logp_old_N=batch.logp_gen_N, logp_ref_N=batch.logp_gen_N)
    ctx = Context(step=0, seed=0, prompts=EPISODES // GROUP, samples=GROUP)
    for name in CREDITS:
        credit = method(name).credit

        def cold(batch: Batch = batch, credit: Any = credit) -> float:
            fresh = replace(batch, _cache={})
            return seconds(lambda: credit(ctx, fresh))

        out[name] = median(cold() for _ in range(ROUNDS))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    found = {"steps_per_second": {name: round(steps_per_second(name)) for name in WORLDS}, "seconds": of_turns()}
    if args.json:
        print(json.dumps(found))
        return
    for name, speed in found["steps_per_second"].items():
        print(f"{name:12s} {speed:>9,.0f} steps/s")
    for name, s in found["seconds"].items():
        print(f"{name:12s} {s:9.4f} s for {EPISODES * TURNS:,} turns")


if __name__ == "__main__":
    main()
