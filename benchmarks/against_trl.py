"""gruppo against TRL's GRPOTrainer, step by step in turn, on the CPU.

    python benchmarks/against_trl.py [--model tiny tiny-short smollm2] [--turns 10] [--steps N] [--profile] [--save]

Same weights, prompts, group size, answer length, reward, optimiser, clipping, threads, float32; one optimiser step a
batch, no reference. Each side has a process of its own, so that each peak of memory is its own; only one works at a
time. They take turns, and begin in turn. A ratio compares the median steps of one turn of both sides.

tiny        a Llama of 1.8 M parameters with random weights; 2 prompts of 44 tokens x 8 answers of 8 tokens
tiny-short  the same with prompts of 7 tokens, where a shared prompt saves little
smollm2     SmolLM2-135M; 2 prompts of 44 tokens x 8 answers of 16 tokens

`--save` writes into benchmarks/results.json and RESULTS.md. `--profile` adds a few steps of each side under torch's
profiler at the end, into benchmarks/profile-SIDE-MODEL.txt.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import describe, save
from trl_sides import SIDES, Workload, median_of, write

HERE = Path(__file__).resolve().parent
STEPS = {"tiny": 30, "tiny-short": 30, "smollm2": 2}  # of one side in one turn
WARM_UP = {"tiny": 10, "tiny-short": 10, "smollm2": 1}
PROFILED = 5  # steps under the profiler
BOS_FIRST = {"SpecialToken": {"id": "<bos>", "type_id": 0}}


def workload(name: str, folder: Path, threads: int) -> Workload:
    """The model and the prompts, on disk."""
    common = {"prompts": 2, "samples": 8, "threads": threads, "rows": str(folder / f"{name}.jsonl")}
    prompts = [f"What is {a} + {b}? Answer with just the number." for a in range(10) for b in range(10)]
    if name == "tiny-short":
        prompts = [f"{a}+{b}=" for a in range(10, 100) for b in range(11, 100, 11)]
    if name == "smollm2":
        from gruppo.policies.smollm2 import smollm2_folder

        made = Workload(name, str(smollm2_folder()), chat=True, new_tokens=16, **common)
    else:
        made = Workload(name, str(_tiny(folder / "tiny")), chat=False, new_tokens=8, **common)
    Path(made.rows).write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    return made


def _tiny(folder: Path) -> Path:
    from gruppo.policies import TinyConfig, TinyTransformer

    TinyTransformer(TinyConfig(dim=192, layers=4, heads=4, ffn=512)).save(folder)
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    text = {"Sequence": {"id": "A", "type_id": 0}}
    # gruppo puts <bos> before a prompt itself; here AutoTokenizer does, so that both have the same ids.
    told["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [BOS_FIRST, text],
        "pair": [BOS_FIRST, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}},
    }
    path.write_text(json.dumps(told))
    return folder


class Side:
    """One process; `do` sends an order and waits for its answer."""

    def __init__(self, name: str, path: Path, threads: int) -> None:
        quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        env = {**os.environ, **quiet, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-W", "ignore", str(HERE / "trl_sides.py"), name, str(path)]
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.hello = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the side {self.name} ended early with code {self.process.wait()}; see above")
        return json.loads(line)

    def do(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.answer()


@contextmanager
def both(path: Path, threads: int) -> Iterator[dict[str, Side]]:
    sides: dict[str, Side] = {}
    try:
        for name in SIDES:
            sides[name] = Side(name, path, threads)
        yield sides
    finally:
        for side in sides.values():
            if side.process.poll() is None:
                side.process.kill()
                side.process.wait()


def compare(w: Workload, path: Path, turns: int, steps: int, profile: bool) -> dict[str, Any]:
    with both(path, w.threads) as sides:
        prompt = {
            name: side.do(do="steps", steps=min(steps, WARM_UP[w.name])).get("prompt") for name, side in sides.items()
        }
        prompt["gruppo"] = sides["gruppo"].hello["prompt"]
        sizes = {name: side.hello["parameters"] for name, side in sides.items()}
        if len({str(p) for p in prompt.values()}) > 1 or len(set(sizes.values())) > 1:
            raise SystemExit(f"{w.name}: the sides do not do the same: prompts {prompt}, parameters {sizes}")
        rows: dict[str, list[list[dict[str, float]]]] = {name: [] for name in sides}
        memory: dict[str, Any] = {}
        cpu: dict[str, list[float]] = {name: [] for name in sides}
        load = [os.getloadavg()[0]]
        for turn in range(turns):
            for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
                answer = sides[name].do(do="steps", steps=steps)
                rows[name].append(answer["rows"])
                memory[name] = answer["memory"]
                cpu[name].append(answer["cpu"])
            now = {name: median_of(rows[name][-1], "seconds") for name in sides}
            print(f"{w.name} {turn + 1}/{turns}: " + ", ".join(f"{k} {v:.4f} s" for k, v in now.items()), flush=True)
        load.append(os.getloadavg()[0])
        for name, side in sides.items() if profile else ():
            side.do(do="steps", steps=min(steps, PROFILED), profile=str(HERE / f"profile-{name}-{w.name}.txt"))
    _same_tokens(w, rows)
    return {
        "model": w.name,
        "parameters": sizes["gruppo"],
        "prompt_tokens": len(prompt["gruppo"]),
        "new_tokens": w.new_tokens,
        "prompts": w.prompts,
        "samples": w.samples,
        "threads": w.threads,
        "turns": turns,
        "steps_a_turn": steps,
        "load": load,
        **_figures(rows, memory, cpu),
    }


def _same_tokens(w: Workload, rows: dict[str, list[list[dict[str, float]]]]) -> None:
    wanted = w.prompts * w.samples * w.new_tokens
    found = {name: {row["tokens"] for turn in mine for row in turn} for name, mine in rows.items()}
    if any(counts != {wanted} for counts in found.values()):
        raise SystemExit(f"{w.name}: {wanted} tokens a step were asked for, sampled were {found}")


def _figures(
    rows: dict[str, list[list[dict[str, float]]]], memory: dict[str, Any], cpu: dict[str, list[float]]
) -> dict[str, Any]:
    turn = {name: [median_of(t, "seconds") for t in mine] for name, mine in rows.items()}
    ratio = [b / a for a, b in zip(turn["gruppo"], turn["trl"], strict=True)]
    sides: dict[str, Any] = {}
    for name, mine in rows.items():
        flat = [row for t in mine for row in t]
        seconds = statistics.median(turn[name])
        sides[name] = {
            "seconds": seconds,
            "seconds_range": [min(turn[name]), max(turn[name])],
            "cpu_seconds": statistics.median(cpu[name]),
            "tokens_per_second": flat[0]["tokens"] / seconds,
            "peak_mib": memory[name]["mib"],
            "peak_own_mib": memory[name]["own_mib"],
            "parts": {k.removeprefix("seconds/"): median_of(flat, k) for k in flat[0] if k.startswith("seconds/")},
        }
    return {"ratio": statistics.median(ratio), "ratio_range": [min(ratio), max(ratio)], "ratios": ratio, "sides": sides}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=0, help="of one side in one turn; default 30, or 2 of smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for name in args.model:
            w = workload(name, Path(place), args.threads)
            found = compare(
                w, write(w, Path(place) / f"{name}.json"), args.turns, args.steps or STEPS[name], args.profile
            )
            print(describe(found))
            if args.save:
                save("trl", name, found)


if __name__ == "__main__":
    main()
