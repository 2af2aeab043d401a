"""Every setting of every method, and of a run, with values of ten wrong kinds: taken, or refused with a sentence.

    python scripts/fuzz_settings.py                 all of them, as text (the command line) and as TOML values
    python scripts/fuzz_settings.py --share 0.1     a tenth, drawn with --seed
    python scripts/fuzz_settings.py --train         what is taken at the edge, through one training step

Prints the number of cases by outcome, and every offender: another exception, words of a library, no sentence, or more
than two seconds. The exit code is 1 if there is one.
"""

import argparse
import contextlib
import io
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gruppo.cli.overrides import Setting, apply, apply_settings, paths
from gruppo.methods import all_methods
from gruppo.stages import Context
from gruppo.stages.check import check
from gruppo.train.config import RunConfig
from gruppo.train.evaluate import wanted_k

# kind: what is typed, and the same in a TOML file
WRONG: dict[str, tuple[Any, ...]] = {
    "text": ("maybe",),
    "empty": ("",),
    "nan": ("nan", math.nan),
    "inf": ("inf", math.inf),
    "-1": ("-1", -1),
    "0": ("0", 0),
    "1e300": ("1e300", 1e300),
    "1e-300": ("1e-300", 1e-300),
    "list": ("[1, 2]", [1, 2]),
    "float for int": ("1.5", 1.5),
    "truth value": ("true", True),
}
LIBRARIES = ("Input should", "validation error", "pydantic", "Traceback", "Error:", "object has no attribute", "torch.")
SECONDS = 2.0
TRAINED = ("grpo", "ppo", "dapo")
EDGES = ("0", "1e-300", "1e-30", "1e30")
SMALL = ("model=tiny", "prompts=4", "samples=4", "steps=1", "eval.prompts=2", "eval.every=0", "save.tensorboard=no")


class Case(NamedTuple):
    method: str
    path: str
    kind: str
    value: Any

    @property
    def typed(self) -> bool:
        """From the command line, where everything is text."""
        return isinstance(self.value, str)

    def __str__(self) -> str:
        return f"method={self.method} {self.path}={self.value!r} ({'typed' if self.typed else 'TOML'})"


def cases() -> Iterator[Case]:
    """All paths of all methods, and once those of a run."""
    own = [p for p in paths(RunConfig()) if p.partition(".")[0] != "method"]
    yield from (Case("grpo", p, k, v) for p in own for k, both in WRONG.items() for v in both)
    for name in all_methods():
        there = [p for p in paths(_base(name)) if p.startswith("method.")]
        yield from (Case(name, p, k, v) for p in there for k, both in WRONG.items() for v in both)


@cache
def _base(method: str) -> RunConfig:
    return apply(RunConfig(), [f"method={method}"])


def outcome(case: Case) -> str:
    """ "taken", "refused", or what is wrong with it."""
    start = time.perf_counter()
    try:
        base = _base(case.method)
        if case.typed:
            config = apply(base, [f"{case.path}={case.value}"])
        else:
            config = apply_settings(base, [Setting(case.path, "=", case.value)])
        wanted_k(config.eval.samples, config.eval.k, config.eval.temperature)
        check(config.method, Context(prompts=config.prompts, samples=config.samples), samples=config.samples)
        found = "taken"
    except ValueError as error:
        found = no_sentence(str(error)) or "refused"
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    return found if seconds < SECONDS else f"{seconds:.1f} s"


def no_sentence(said: str) -> str:
    """What is wrong with a refusal; "" if it is a sentence of ours."""
    strange = [words for words in LIBRARIES if words in said]
    if strange:
        return f"words of a library: {said}"
    return "" if said.rstrip().endswith(".") and len(said.split()) > 4 else f"no sentence: {said}"


def fuzz(chosen: Iterable[Case]) -> tuple[Counter[str], list[str]]:
    """The number of cases by kind and outcome, and the offenders."""
    counts: Counter[str] = Counter()
    offenders: list[str] = []
    for case in chosen:
        found = outcome(case)
        good = found in ("taken", "refused")
        counts[f"{case.kind:<14} {found if good else 'OFFENDER'}"] += 1
        offenders += [] if good else [f"{case}: {found}"]
    return counts, offenders


def edges() -> Iterator[Case]:
    """Settings of three methods that take a number, at the edge of what they take."""
    for name in TRAINED:
        for path in paths(_base(name)):
            if path.startswith(("method.", "optim.", "sampling.")) and path not in ("method.version", "method.name"):
                yield from (Case(name, path, "edge", text) for text in EDGES if _is_number(name, path, text))


def _is_number(name: str, path: str, text: str) -> bool:
    node: Any
    try:
        node = apply(RunConfig(), [f"method={name}", f"{path}={text}"])
    except ValueError:
        return False
    for key in path.split("."):
        if isinstance(node, tuple):
            node = next(o for o in node if type(o).__name__.lower() == key.replace("_", ""))
        else:
            node = node[key] if isinstance(node, dict) or not hasattr(node, key) else getattr(node, key)
    return isinstance(node, float)


def one_step(case: Case) -> str:
    """One training step: "trained" with finite metrics, "ended" with a sentence, or what is wrong with it."""
    from gruppo.cli import main

    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            argv = [
                *SMALL,
                f"save.folder={folder}",
                "save.name=x",
                f"method={case.method}",
                f"{case.path}={case.value}",
            ]
            code = main(["train", *argv])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        row = Path(folder, "x", "metrics.jsonl")
        last = row.read_text().splitlines()[-1] if row.exists() else ""
    if code == 0:
        return "trained" if "NaN" not in last and "Infinity" not in last else f"trained to {last}"
    refusal = said.getvalue()[said.getvalue().find("gruppo: ") :]
    return "ended" if code == 2 and not any(w in refusal for w in LIBRARIES) else f"exit code {code}: {refusal}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="share of the cases (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the share that is drawn")
    parser.add_argument("--train", action="store_true", help="also train one step at the edges, for three methods")
    args = parser.parse_args()
    every = list(cases())
    chosen = random.Random(args.seed).sample(every, round(args.share * len(every)))
    counts, offenders = fuzz(chosen)
    if args.train:
        for case in edges():
            found = one_step(case)
            good = found in ("trained", "ended")
            counts[f"{'one step':<14} {found if good else 'OFFENDER'}"] += 1
            offenders += [] if good else [f"{case}: {found}"]
    print("\n".join(f"{n:7}  {what}" for what, n in sorted(counts.items())))
    print(f"{counts.total():7}  cases, {len(offenders)} offenders", *offenders, sep="\n")
    return int(bool(offenders))


if __name__ == "__main__":
    sys.exit(main())
