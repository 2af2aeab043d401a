"""What the framework itself costs: the share of a step outside sampling, scoring, forward, backward and optimiser.

    python benchmarks/overhead.py [--method grpo] [--steps 12] [--profile] [--json]

The built-in policy at about 4,096 sampled tokens a step (sorting, 43 prompts x 8 answers of about 12 tokens), steady
steps only. `--profile` lists the functions behind the rest.
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
from typing import Any

import torch

from gruppo.methods import method
from gruppo.train.config import RunConfig, TaskConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run

PARTS = ("sampling", "scoring", "forward", "backward", "optimiser", "rest")


def measure(name: str, steps: int, profiler: cProfile.Profile | None = None) -> dict[str, Any]:
    """Median seconds of each part over the steady steps (the first two warm up)."""
    run = Run(RunConfig(method=method(name), task=TaskConfig(name="sorting", level="2"), prompts=43))
    try:
        steady = asyncio.run(_steps(run, steps, profiler))
    finally:
        run.close()
    parts = {p: statistics.median(r.get(f"seconds/{p}", 0.0) for r in steady) for p in PARTS}
    shares = [r["seconds/rest"] / r["seconds"] for r in steady]
    return {
        "method": name,
        "threads": torch.get_num_threads(),
        "tokens": statistics.median(r["tokens"] for r in steady),
        "seconds": statistics.median(r["seconds"] for r in steady),
        **{f"seconds_{k}": v for k, v in parts.items()},
        "overhead": statistics.median(shares),
        "overhead_range": [min(shares), max(shares)],
    }


async def _steps(run: Run, steps: int, profiler: cProfile.Profile | None) -> list[Any]:
    rows: list[Any] = []
    for step in range(steps + 2):
        if step == 2 and profiler is not None:
            profiler.enable()
        rows.append((await train_step(run, step)).facts)
    if profiler is not None:
        profiler.disable()
    return rows[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--method", action="append", help="may be given several times; default: all six")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    profiler = cProfile.Profile() if args.profile else None
    rows = [
        measure(m, args.steps, profiler) for m in args.method or ["reinforce", "rloo", "grpo", "dapo", "ppo", "disco"]
    ]
    if args.json:
        print(json.dumps(rows))
    else:
        print(
            f"{'method':<10} {'tokens':>7} {'s/step':>7}  "
            + "  ".join(f"{p:>9}" for p in PARTS)
            + "   overhead (range)"
        )
        for r in rows:
            low, high = r["overhead_range"]
            parts = "  ".join(f"{r['seconds_' + p]:9.4f}" for p in PARTS)
            print(
                f"{r['method']:<10} {r['tokens']:7.0f} {r['seconds']:7.3f}  {parts}   "
                f"{r['overhead']:.1%} ({low:.1%} to {high:.1%})"
            )
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
