"""benchmarks/results.json, which the benchmarks write with --save, and RESULTS.md, which is made from it.

python benchmarks/report.py [--add FILE.json]     # FILE: what plain_loop.py --json wrote on another machine
"""

import argparse
import json
import math
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results.json", HERE / "RESULTS.md"
PACKAGES = ("torch", "transformers", "trl", "gruppo")
GOALS = {"tiny": 2.0, "tiny-short": 1.5, "smollm2": 3.0}
LOADED = 1.5  # load average above which a run is called loaded

HEAD = """# Results

Made by `python benchmarks/report.py` from `results.json`; not written by hand. What was tried, and what did not help:
[LOG.md](LOG.md).
"""

TRL = """## Against TRL's GRPOTrainer, on the CPU

`python benchmarks/against_trl.py --save`. Both sides take turns in one run; each has a process of its own, and only one
works at a time. Same weights, prompts, group size, answer length, reward function, float32, threads, fused AdamW,
clipping and clipped surrogate with the mean of a sequence; one optimiser step a batch, no reference. No answer ends
early: the id that would end it does not exist on either side. The ratio is that of the median steps of one turn; its
median and range are over the turns. Memory is the highest resident set of the whole process, from its start on;
gruppo's has that of its judge added, which is a process too.

What a step contains. Both: prompts to ids, sampling with a cache, text of the answers, rewards, advantages, forward and
backward, clipping, AdamW, metrics. gruppo besides: rewards come from a process of their own; sampled log-probabilities
are kept and compared with the trainer's; a prompt is computed once for its group, in sampling and in training. TRL
besides: entropy of every token for its metrics. Its rows are padded, which costs nothing here: all have one length.
Checkpointing of activations, which TRL turns on by default, is off; so are logging, saving and progress bars on both
sides.
"""

PLAIN = """## Against a plain transformers loop, on a GPU

`python benchmarks/plain_loop.py`. One process, both sides in turn, random weights in bfloat16. The plain loop:
`model.generate`, rewards, one padded forward and backward in micro-batches with logits of the answers only, clipping,
AdamW on the bfloat16 weights. gruppo: its engine on the same architecture, rewards, packing, credit, forward and
backward in micro-batches of as many tokens with each prompt computed once, clipping, AdamW on float32 copies of the
weights (12 bytes a parameter with both moments, where the plain loop's moments in bfloat16 take 4). Memory is the most
that the GPU had allocated in a step, less what the other side holds.
"""


GPU = """## Sampling and learning on a GPU

`python benchmarks/gpu.py`, random weights in bfloat16 in the shapes of Qwen2. Beside gruppo stands
transformers' `generate` (sampling), the plain loop described above (steps), or what the note says. Sampling includes
the prefill. Seconds of a step are medians, those of sampling the best of three, after a warm-up of each side; the plain
loop with answers of 2,048 tokens was not warmed up.
"""


MORE = """### Single parts

Runs of one script or of some parts, each with its day and what else the machine did.
"""


def machine() -> dict[str, Any]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "cores": os.cpu_count(), **found} | {
        "python": platform.python_version()
    }


def save(section: str, name: str, found: dict[str, Any]) -> None:
    """Put one result in its place and write the page anew."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results.setdefault(section, {})[name] = {"machine": machine()} | found
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


def page(results: dict[str, Any]) -> str:
    parts = [HEAD]
    for section, text in (("trl", TRL), ("plain_loop", PLAIN)):
        if section in results:
            known = [name for name in GOALS if name in results[section]]
            names = dict.fromkeys((*known, *results[section]))
            parts += [text, *(describe(results[section][name]) for name in names)]
    if "gpu" in results:
        parts += [GPU, gpu_table(results["gpu"])]
    if "gpu_more" in results:
        parts += [MORE, *(gpu_table(found) for found in results["gpu_more"])]
    return "\n".join(parts)


def _short(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def gpu_table(found: dict[str, Any]) -> str:
    m = found["machine"]
    packages = ", ".join(f"{p} {m[p]}" for p in PACKAGES if p in m)
    lines = [f"{m['date']}; {found['device']}; {packages}{'; ' if 'note' in found else ''}{found.get('note', '')}."]
    if "second" in found:
        lines += [f"The rows on sampling, gaps, kernels and ragged work are of a second run, {found['second']}."]
    lines += ["", "| what | gruppo | beside it | ratio | |", "|---|---|---|---|---|"]
    for row in found["rows"]:
        if "parts" not in row:
            mine, other = (f"{_short(row[k])} {row['unit']}" if k in row else "" for k in ("gruppo", "peer"))
            ratio = f"{row['ratio']:.2f} x" if "ratio" in row else ""
            lines.append(f"| {row['what']} | {mine} | {other} | {ratio} | {row.get('note', '')} |")
    for row in found["rows"]:
        if "parts" in row:
            parts = ", ".join(f"`{name}` {us:g}" for name, us in row["parts"].items())
            lines += ["", f"{row['what']} ({row['unit']}): {parts}."]
    return "\n".join([*lines, ""])


def describe(found: dict[str, Any]) -> str:
    """One result as Markdown."""
    shape = (
        f"{found['prompts']} prompts of {found['prompt_tokens']} tokens x {found['samples']} answers of "
        f"{found['new_tokens']}"
    )
    lines = [f"### {found['model']}: {found['parameters'] / 1e6:.1f} M parameters, {shape}", "", _where(found), ""]
    lines += ["| side | s a step (range over turns) | CPU s a step | tokens/s | peak memory (MiB) | parts (s) |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [_row(name, side) for name, side in found["sides"].items()]
    low, high = found["ratio_range"]
    other = next(name for name in found["sides"] if name != "gruppo")
    speed = f"**gruppo is {found['ratio']:.2f} x as fast as {other}** ({low:.2f} to {high:.2f}), at {_memory(found)}"
    lines += ["", speed, *_by_cpu(found)]
    return "\n".join([*lines, *_verdict(found), ""])


def _where(found: dict[str, Any]) -> str:
    m = found.get("machine", machine())
    packages = ", ".join(f"{p} {m[p]}" for p in PACKAGES if p in m)
    place = found.get("device") or f"{m['cores']} cores, {found['threads']} threads"
    load = ""
    if "load" in found:
        before, after = found["load"]
        load = f"; load {before:.1f} before, {after:.1f} after"
        load += " (**a loaded machine**: trust the ratio more than the seconds)" if before > LOADED else ""
    return f"{m['date']}; {place}; {packages}; {found['turns']} turns of {found['steps_a_turn']} steps{load}."


def _row(name: str, side: dict[str, Any]) -> str:
    low, high = side["seconds_range"]
    parts = ", ".join(f"{k} {v:.3g}" for k, v in side["parts"].items())
    memory = f"{side['peak_mib']:.0f}"
    if side.get("peak_own_mib", math.inf) < side["peak_mib"]:
        memory += f" ({side['peak_own_mib']:.0f} without its judge)"
    seconds = f"{side['seconds']:.4g} ({low:.4g} to {high:.4g})"
    cpu = f"{side['cpu_seconds']:.4g}" if "cpu_seconds" in side else "not measured"
    return f"| {name} | {seconds} | {cpu} | {side['tokens_per_second']:.0f} | {memory} | {parts} |"


def _by_cpu(found: dict[str, Any]) -> list[str]:
    """Processor time does not count what other programs do, so it is the steadier figure on a loaded machine."""
    mine, other = (side.get("cpu_seconds") for side in found["sides"].values())
    return [f"By processor time, its own process and the judge's: {other / mine:.2f} x."] if mine and other else []


def _memory(found: dict[str, Any]) -> str:
    mine, other = (side["peak_mib"] for side in found["sides"].values())
    return f"{mine / other:.2f} x its memory."


def _verdict(found: dict[str, Any]) -> list[str]:
    goal = GOALS.get(found["model"])
    if goal is None:
        return []
    mine, other = (side["peak_mib"] for side in found["sides"].values())
    speed = "met" if found["ratio"] >= goal else "**missed**"
    return [f"Goals: {goal:g} x the speed, {speed}; no more memory, {'met' if mine <= other else '**missed**'}."]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--add", type=Path, help="a file that plain_loop.py --json wrote")
    parser.add_argument("--gpu", type=Path, help="a file that gpu.py --json wrote")
    parser.add_argument("--more", type=Path, help="the same of some parts, or what apart.py or ahead.py --json wrote")
    parser.add_argument("--note", help="of --more: what else the machine did")
    args = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if args.add is not None:
        found = json.loads(args.add.read_text())
        results.setdefault("plain_loop", {})[found["model"]] = found
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if args.gpu is not None:
        results["gpu"] = json.loads(args.gpu.read_text())
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if args.more is not None:
        found = json.loads(args.more.read_text()) | ({"note": args.note} if args.note else {})
        results.setdefault("gpu_more", []).append(found)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
