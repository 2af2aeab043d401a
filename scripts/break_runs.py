"""Damage run folders at random, and resume them: refused in a sentence, repaired, or a right result; nothing else.

    python scripts/break_runs.py                       2,000 damages (seed 0); about 40 minutes of one core
    python scripts/break_runs.py --count 200 --seed 1
    python scripts/break_runs.py --save FILE           writes the table of outcomes (docs/design/damage.md)

Small runs are made once, finished and stopped half-way: of four methods with state, and runs that sample ahead, or keep
their best policy, a LoRA adapter, or several writers (`--kinds` chooses). For each damage one is copied, one file is
damaged in one of eight ways, and `--resume` runs in a fork. Outcomes:

    refused   exit code 2 and a sentence that names the file or folder; no traceback
    repaired  exit code 0, and what the run leaves equals the undamaged run bit for bit
    harmless  the same, and the damaged file is none that a resume reads (a log, a picture of before)
    offered   refused, and the offered command (--skip-damaged) then ends with the right result
    told      the same as repaired but for best/: its policy was of a step that nothing else holds, and the run says so

A traceback, another result, or a damaged file that stays without a word is a failure, and the script ends with 1.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BEST = ("save.best=yes", "eval.every=1", "eval.prompts=8", "save.keep=2")
WRITERS = ("method=drmas", "task=verify", "method.writers.verifier=verifier")
KINDS = {
    "grpo": ("method=grpo",),
    "ppo": ("method=ppo",),  # a critic
    "spo_single": ("method=spo_single",),  # a memory of tasks
    "pipo": ("method=pipo",),  # a replay
    "ahead": ("method=pipo", "ahead=2"),  # drawn-*.arrow: episodes that were not learned from yet
    "best": ("method=grpo", *BEST),
    "lora": ("method=grpo", "model.lora.rank=2", *BEST),  # adapter/, also in best/
    "writers": WRITERS,
    "writers_best": (*WRITERS, *BEST),
}
SETTINGS = ("prompts=2", "samples=2", "steps=4", "save.checkpoint_every=2", "eval.prompts=2", "eval.every=2")
SETTINGS += ("save.episodes_every=2", "save.tensorboard=no", "threads=1", "task.train_size=8", "model.device=cpu")
WAYS = ("missing", "empty", "cut", "flipped", "zeros", "longer", "other type", "other version")
FINISHED, STOPPED = "finished", "stopped"
BEST_OF, GONE = "best/", "the best policy so far"  # what the run says if it is gone


def import_all() -> None:
    """What a run imports, once for all forks: it takes longer than the run."""
    for name in (
        "gruppo.train.trainer",
        "gruppo.cli.commands",
        "torch._dynamo",
        "matplotlib.figure",
        "pyarrow",
        "pandas",
    ):
        if find_spec(name.partition(".")[0]):
            import_module(name)


def gruppo(*argv: str) -> tuple[int, str]:
    """The command line in this process: exit code and words. A traceback is exit code 99."""
    from gruppo.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(list(argv))
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            print(f"Traceback: {type(error).__name__}: {error}")
            code = 99
    return code, said.getvalue()


def in_fork(work: Any) -> Any:
    """The result of `work` in a fork, so that nothing that it does stays here."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else (99, "the process died")


def make(home: Path, kinds: Iterable[str] = KINDS) -> None:
    """runs/KIND, a copy of it as runs/KIND-finished, and runs/KIND-stopped, after two of four steps."""
    os.chdir(home)
    for name in kinds:
        for state in (FINISHED, STOPPED):
            code, words = in_fork(partial(_trained, name, state))
            assert code == 0, words
            Path(f"runs/{name}").rename(f"runs/{name}-{state}")
        shutil.copytree(f"runs/{name}-{FINISHED}", f"runs/{name}")


def _trained(name: str, state: str) -> tuple[int, str]:
    from gruppo.train.samples import Samples

    def step(self: Any, trainer: Any, step: Any) -> None:
        trainer.stop.asked = int(step.done == 2)  # as by a signal

    if state == STOPPED:
        Samples.step = step
    return gruppo("train", *SETTINGS, *KINDS[name], f"save.name={name}")


def files(run: Path) -> list[Path]:
    return sorted(p for p in run.rglob("*") if p.is_file() and p.name != ".lock")


def damaged(path: Path, way: str, draw: random.Random) -> bool:
    """Damage a file; False if that changes nothing."""
    before = path.read_bytes()
    if way == "missing":
        path.unlink()
        return True
    if way == "other version":
        text = re.sub(rb'("(?:format|version|torch|gruppo)": ?)"?[\d.+a-z]+"?', rb'\g<1>"77"', before)
        after = text if text != before else before.replace(b"@1", b"@77")
    elif way == "other type":
        after = b"[1, 2, 3]\n" if path.suffix in (".json", ".jsonl") else b"\x89PNG not what you think"
    else:
        at = draw.randrange(max(len(before), 1))
        flipped = bytearray(before)
        for i in range(at, min(at + draw.choice((1, 32)), len(before))):
            flipped[i] ^= 1 << draw.randrange(8)
        after = {
            "empty": b"",
            "cut": before[:at],
            "flipped": bytes(flipped),
            "zeros": before[:at] + bytes(len(before) - at),
            "longer": before + bytes(draw.randrange(256) for _ in range(draw.randint(1, 99))),
        }[way]
    path.write_bytes(after)
    return after != before


def result(run: Path) -> dict[str, str]:
    """What a run leaves, without what depends on the clock or on its name: the policy, the last checkpoint, metrics."""
    out: dict[str, str] = {}
    last = max((p.name for p in run.glob("checkpoints/step-*")), default="none")
    for path in files(run):
        name = path.relative_to(run).as_posix()
        state = name.startswith(f"checkpoints/{last}/") and path.suffix in (".safetensors", ".arrow")
        if state or name.startswith(("policy/", "adapter/", "writers/", BEST_OF)):
            out[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        out["metrics"] = str([sorted((k, v) for k, v in r.items() if "second" not in k) for r in rows])
        summary = json.loads((run / "summary.json").read_text())
        of_best = {k: summary.pop(k) for k in list(summary) if k.startswith("best")}
        out["summary"] = str({k: v for k, v in summary.items() if k not in ("seconds", "tokens_per_second", "folder")})
        out |= {f"{BEST_OF}in the summary": str(of_best)} if of_best else {}
    except (OSError, ValueError) as error:
        out["broken"] = str(error)
    return out


def outcome(run: Path, file: str, right: dict[str, str]) -> tuple[str, str]:
    """(what a resume makes of a damaged run, its words)."""
    code, words = in_fork(lambda: gruppo("train", "--resume", str(run)))
    if "Traceback" in words or code not in (0, 2):
        return "TRACEBACK", words
    if code == 0:
        if result(run) != right:
            return ("told" if _only_best(result(run), right) and GONE in words else "ANOTHER RESULT"), words
        return ("harmless" if file.startswith("episodes/") else "repaired"), words
    if Path(file).name not in words and file not in words and str(run) not in words:
        return "NO FILE NAMED", words
    offer = re.findall(r"go on with  gruppo (.*--skip-damaged)", words)
    if not offer:
        return "refused", words
    code, words = in_fork(lambda: gruppo(*shlex.split(offer[-1])))
    if code != 0 or result(run) != right:
        return "OFFER FAILED", words
    return "offered", words


def _only_best(found: dict[str, str], right: dict[str, str]) -> bool:
    return all(name.startswith(BEST_OF) for name in found.keys() | right.keys() if found.get(name) != right.get(name))


def trials(count: int, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Iterator[tuple[str, str, str, str, str]]:
    """(run, file, way, outcome, words) of each damage."""
    draw = random.Random(seed)
    right = {name: result(Path(f"runs/{name}")) for name in kinds}
    while count:
        name, state = draw.choice(kinds), draw.choice((FINISHED, STOPPED))
        run = copied(name, state)
        path, way = draw.choice(files(run)), draw.choice(WAYS)
        file = path.relative_to(run).as_posix()
        if not damaged(path, way, draw):
            continue
        count -= 1
        yield f"{name}, {state}", file, way, *outcome(run, file, right[name])


def copied(name: str, state: str, to: str = "damaged") -> Path:
    """A run to damage."""
    run = Path("runs") / to
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(f"runs/{name}-{state}", run)
    return run


def kind(file: str) -> str:
    return re.sub(r"\d{6}", "N", file)


def share(home: Path, job: int, count: int, seed: int, kinds: Sequence[str]) -> None:
    """One process of several: its trials in a folder of its own, a line for each in trials.jsonl."""
    here = home / str(job)
    here.mkdir()
    make(here, kinds)
    with (here / "trials.jsonl").open("w") as file:
        for row in trials(count, seed * 1000 + job, kinds):
            file.write(json.dumps(row) + "\n")
            file.flush()
            if row[3].isupper():
                print(f"{row[3]}: {row[0]}, {row[1]}, {row[2]}\n{row[4]}", flush=True)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--count", type=int, default=2000)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=1, help="processes at once; each has its own random numbers")
    p.add_argument(
        "--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), metavar="KIND", help=", ".join(KINDS)
    )
    p.add_argument("--save", metavar="FILE", help="write the table of outcomes")
    args = p.parse_args()

    import_all()
    here, each = Path.cwd(), -(-args.count // args.jobs)
    with tempfile.TemporaryDirectory(prefix="gruppo-damage-") as home:
        pids = [_started(partial(share, Path(home), job, each, args.seed, args.kinds)) for job in range(args.jobs)]
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        rows = [
            json.loads(line) for path in Path(home).glob("*/trials.jsonl") for line in path.read_text().splitlines()
        ]
    os.chdir(here)
    table = Counter((kind(file), way, what) for _, file, way, what, _ in rows)
    bad = sum(what.isupper() for _, _, _, what, _ in rows) + sum(map(bool, ended))
    flags = f"--count {args.count} --jobs {args.jobs} --seed {args.seed}"
    flags += "" if args.kinds == list(KINDS) else f" --kinds {' '.join(args.kinds)}"
    text = report(table, len(rows), flags, bad)
    print(text)
    if args.save:
        Path(args.save).write_text(text, encoding="utf-8")
    return int(bool(bad))


def _started(work: Any) -> int:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def report(table: "Counter[tuple[str, str, str]]", count: int, flags: str, bad: int) -> str:
    """A page: outcomes by file and by way."""
    outcomes = sorted({what for _, _, what in table})
    head = f"| file | {' | '.join(outcomes)} |\n|---|{'---|' * len(outcomes)}\n"
    lines = ["# Damaged run folders", ""]
    lines += [f"Written by `scripts/break_runs.py {flags}`: {count} random damages, {bad} failures.", ""]
    for by, title in ((0, "file"), (1, "way")):
        names = sorted({key[by] for key in table})
        lines += ["", head.replace("| file |", f"| {title} |").rstrip()]
        for name in names:
            cells = [str(sum(n for key, n in table.items() if key[by] == name and key[2] == w) or "") for w in outcomes]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    total = [str(sum(n for key, n in table.items() if key[2] == w)) for w in outcomes]
    return "\n".join([*lines, f"| **all** | {' | '.join(total)} |", ""])


if __name__ == "__main__":
    sys.exit(main())
