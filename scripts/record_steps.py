"""Ten steps of every method, as a fingerprint: did a change of the code change what is computed?

    python scripts/record_steps.py record FILE [METHOD ...]     metrics and hashes of all weights, two seeds each
    python scripts/record_steps.py compare FILE FILE            one line for each run that differs

The runs go through the command line, so two versions of the code can be compared whatever their inside looks like.
Seconds and rates of them are left out. Four minutes on two cores.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SEEDS = (0, 1)
SIZE = ("steps=10", "prompts=12", "samples=6", "eval.every=5", "eval.prompts=60", "threads=1")
QUIET = ("save.episodes_every=0", "save.tensorboard=no", "--json")
# What a method cannot do without, or what lets its mechanism show within ten steps.
NEEDS = {
    "kdrl": ("method.cast.teacher=tiny",),
    "igrpo": ("task=countdown", "task.level=1"),
    "hapo_history": ("task.train_size=48",),
    "mmr1_vas": ("task.train_size=48", "method.curriculum.refresh_every=2"),
    "spo_single": ("task.train_size=48",),
    "pipo": ("method.update.window=3",),
    "vapo": ("method.update.warmup=3",),
    "archer": ("method.update.critic_epochs=3", "method.update.utterances=16", "method.update.warmup=3"),
    "oprl": ("task=chain", 'method.rollout.steps=" "'),
    "dump": ("task.level=1-3",),
    **dict.fromkeys(("dpo", "ipo", "kto", "orpo", "simpo"), ("task=preference",)),
}
TIMED = ("second", "time")


def record(names: list[str], jobs: int = 2) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        parts = [names[i::jobs] for i in range(jobs)]
        done = pool.map(lambda i: _in_process(parts[i], Path(folder) / f"{i}.json"), range(jobs))
        return {name: table for part in done for name, table in part.items()}


def _in_process(names: list[str], out: Path) -> dict[str, Any]:
    """One process for many runs: to start costs more than to train."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, "one", str(out), *names], check=True, env=env)
    return json.loads(out.read_text())


def one(out: Path, names: list[str]) -> None:
    from gruppo.cli import main

    found: dict[str, Any] = {}
    for name in names:
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                words = [f"method={name}", f"seed={seed}", *SIZE, *NEEDS.get(name, ()), *QUIET]
                said = main(["train", *words, f"save.folder={folder}", "save.name=run"])
                found[f"{name} {seed}"] = fingerprint(Path(folder) / "run") if said == 0 else {"failed": said}
    out.write_text(json.dumps(found))


def fingerprint(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in r.items() if not any(t in k for t in TIMED)} for r in rows]
    files = sorted((*(run / "policy").glob("*.safetensors"), *(run / "checkpoints").rglob("*.safetensors")))
    return {"metrics": metrics, "weights": {str(f.relative_to(run)): _hash(f) for f in files}}


def _hash(path: Path) -> str:
    from safetensors.torch import load_file

    digest = hashlib.sha256()
    for name, x in sorted(load_file(path).items()):
        digest.update(name.encode() + str((x.dtype, tuple(x.shape))).encode() + x.numpy().tobytes())
    return digest.hexdigest()[:16]


def compare(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """A line for each run that is not the same bit for bit."""
    out: list[str] = []
    for name in sorted({*a, *b}):
        one, two = a.get(name), b.get(name)
        if one is None or two is None or "failed" in one or "failed" in two:
            out.append(f"{name}: only in one of the files, or failed")
            continue
        steps = [i for i, (x, y) in enumerate(zip(one["metrics"], two["metrics"], strict=False)) if x != y]
        keys = sorted({k for i in steps for k in {*one["metrics"][i], *two["metrics"][i]}
                       if one["metrics"][i].get(k) != two["metrics"][i].get(k)})  # fmt: skip
        files = [f for f in {*one["weights"], *two["weights"]} if one["weights"].get(f) != two["weights"].get(f)]
        if steps or files:
            out.append(f"{name}: from step {steps[0] if steps else '-'} {', '.join(keys)}; files {sorted(files)}")
    return out


def main(words: list[str]) -> int:
    if words[0] == "one":
        one(Path(words[1]), words[2:])
    elif words[0] == "record":
        from gruppo.methods import built_in

        found = record(words[2:] or sorted(built_in()))
        Path(words[1]).write_text(json.dumps(found))
        print(f"{len(found)} runs, {sum('failed' in x for x in found.values())} failed")
    else:
        a, b = (json.loads(Path(w).read_text()) for w in words[1:3])
        print("\n".join(compare(a, b)) or f"{len(a)} runs are equal bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
