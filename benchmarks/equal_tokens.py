"""grpo, gigpo, hgpo, salt and loop in the household, at equal sampled tokens, paired by seed.

    python benchmarks/equal_tokens.py run --jobs 16 --minutes 8     some runs; the same command goes on where it stopped
    python benchmarks/equal_tokens.py table                         what is there so far, as a table

Each run has one thread. When a run ends, its curve of (sampled tokens so far, held-out success) is appended to
FOLDER/curves.jsonl, so that file is all that must be carried from one machine to the next. At the end of the time, runs
that are not over finish their step and save it; the next call resumes those whose folder is still there, and begins the
others anew. A run is begun only if the longest one so far would still fit.

The table is read at budgets of tokens: a quarter, half, three quarters and all of what the shortest run has sampled.
The value is that on the line between the evaluations before and after. The learning rate is the household's own, in a
fifth of its 320 steps; of these 64 the first half is run, so that fifty runs fit into ten minutes of six cores. With
`--settings steps=64` all are, and a run of these counts in both tables. The rate was tuned with gigpo: the others might
gain from one of their own.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gruppo.lab.compare.statistics import paired
from gruppo.train.estimates import mean_interval

METHODS = ("grpo", "gigpo", "hgpo", "salt", "loop")
SETTINGS = ("task=household", "steps=32", "eval.every=8", "eval.prompts=150", "threads=1", "save.tensorboard=no")
SETTINGS += ("optim.lr=then({0: linear(5e-5, 5e-4, steps=8), 8: cosine(5e-4, 2e-5, steps=56)})",)
SETTINGS += ("save.episodes_every=0", "save.checkpoint_every=20", "save.keep=1")
LOOK = 0.5  # seconds between two looks at the processes


class Curves:
    """What is known: {(method, seed): [(tokens, success)]} with the seconds that a run took."""

    def __init__(self, folder: Path, settings: tuple[str, ...]) -> None:
        self.file, self.settings = folder / "curves.jsonl", list(settings)
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.of = {(r["method"], r["seed"]): seen for r in map(json.loads, lines) if (seen := self.part(r))}

    def part(self, row: dict[str, Any]) -> list[tuple[float, float]]:
        """The curve of a row with these settings. Of a longer run its first steps count: rates are of steps."""
        (mine, steps), (other, more) = of_steps(self.settings), of_steps(row["settings"])
        looks = steps // next(int(w.split("=")[1]) for w in reversed(mine) if w.startswith("eval.every=")) + 1
        return row["curve"][:looks] if mine == other and more >= steps else []

    def add(self, method: str, seed: int, run: Path, cpu: float) -> None:
        curve, tokens = list[tuple[float, float]](), 0.0
        for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
            tokens += row.get("sampled") or 0.0
            if row.get("held_out") is not None:
                curve.append((tokens, row["held_out"]))
        made = {"method": method, "seed": seed, "cpu_seconds": round(cpu, 1), "curve": curve, "settings": self.settings}
        self.of[method, seed] = curve
        with self.file.open("a") as file:
            file.write(json.dumps(made) + "\n")


def of_steps(settings: list[str]) -> tuple[list[str], int]:
    """The settings but steps, and the number of steps."""
    steps = [int(w.removeprefix("steps=")) for w in settings if w.startswith("steps=")]
    return [w for w in settings if not w.startswith("steps=")], steps[-1]


def begun(folder: Path, method: str, seed: int, settings: tuple[str, ...]) -> tuple[Any, Path]:
    run = folder / "runs" / f"{method}-{seed}"
    new = [*settings, f"method={method}", f"seed={seed}", f"save.folder={folder / 'runs'}", f"save.name={run.name}"]
    words = ["--resume", str(run)] if list(run.glob("checkpoints/step-*")) else new
    with (folder / f"{run.name}.log").open("ab") as log:
        command = [sys.executable, "-m", "gruppo", "train", *words]
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}), run


def run(folder: Path, seeds: int, jobs: int, minutes: float, settings: tuple[str, ...]) -> int:
    """Runs by seed, so that what is there when the time is over is paired."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    curves, end = Curves(folder, settings), time.monotonic() + 60 * minutes
    left = [(m, s) for s, m in product(range(seeds), METHODS) if (m, s) not in curves.of]
    running: dict[tuple[str, int], tuple[Any, Path, float]] = {}
    longest, wrong = 0.0, 0
    while running or left:
        while left and len(running) < jobs and time.monotonic() + longest < end:
            key = left.pop(0)
            running[key] = (*begun(folder, *key, settings), time.monotonic())
        if not running:
            break
        time.sleep(LOOK)
        if time.monotonic() > end:
            for process, _, _ in running.values():
                os.kill(process.pid, signal.SIGTERM)  # it finishes its step, and saves it
        for key, (process, path, since) in list(running.items()):
            ended = os.wait4(process.pid, 0 if time.monotonic() > end else os.WNOHANG)
            if ended[0]:
                del running[key]
                longest = max(longest, time.monotonic() - since)
                if (path / "summary.json").is_file():
                    curves.add(*key, path, ended[2].ru_utime + ended[2].ru_stime)
                else:
                    wrong += time.monotonic() < end
                    print(f"{key[0]}, seed {key[1]}: not over, see {folder / path.name}.log", flush=True)
    print(f"{len(curves.of)} of {seeds * len(METHODS)} runs are there", flush=True)
    return int(bool(wrong))


def at(curve: list[tuple[float, float]], budget: float) -> float:
    """Success at so many tokens, on the line between the evaluations before and after."""
    tokens, success = zip(*curve, strict=True)
    return float(np.interp(budget, tokens, success))


def table(folder: Path, settings: tuple[str, ...]) -> str:
    curves = Curves(folder, settings).of
    methods = [m for m in METHODS if any(name == m for name, _ in curves)]
    seeds = sorted(s for s in {s for _, s in curves} if all((m, s) in curves for m in methods))
    if not seeds:
        return "No seed has all its runs yet."
    most = min(curves[m, s][-1][0] for m in methods for s in seeds)
    budgets = [most * share for share in (0.25, 0.5, 0.75, 1.0)]
    head = ["", *(f"{b:,.0f} tokens" for b in budgets), "all, against grpo"]
    lines = [head, ["---"] * len(head)]
    for m in methods:
        values = [[at(curves[m, s], b) for s in seeds] for b in budgets]
        d = paired(values[-1], [at(curves["grpo", s], most) for s in seeds])
        means = (mean_interval(v) for v in values)
        own = [f"{i.mean:.3f} [{i.low:.3f}, {i.high:.3f}]" for i in means]
        lines.append([m, *own, "" if m == "grpo" else f"{d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]"])
    said = (
        f"Held-out success, mean over seeds {', '.join(map(str, seeds))} with the 95 % interval; `{' '.join(settings)}`"
    )
    return "\n".join([said, "", *("| " + " | ".join(line) + " |" for line in lines)])


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("what", choices=("run", "table"))
    p.add_argument("--folder", type=Path, default=Path("runs/equal_tokens"))
    p.add_argument("--seeds", type=int, default=10)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--minutes", type=float, default=8.0)
    p.add_argument("--settings", nargs="+", default=[], metavar="KEY=VALUE", help="in place of the ones above")
    args = p.parse_args()
    settings = (*SETTINGS, *args.settings)
    if args.what == "table":
        print(table(args.folder, settings))
        return 0
    return run(args.folder.absolute(), args.seeds, args.jobs, args.minutes, settings)


if __name__ == "__main__":
    sys.exit(main())
