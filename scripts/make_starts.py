"""Makes the weights of `tiny-talk` and `tiny-long`: those of `tiny`, trained on with the lines of scripted writers.

    python scripts/make_starts.py tiny-talk      # trains, measures, writes weights and recipe.json
    python scripts/make_starts.py tiny-long
    python scripts/make_starts.py tiny-talk --stage 2     # goes on from the weights of stage 1; --stage 3 only measures

The writers are in start_writers.py, the measures in start_measures.py. Only problems of the train splits are used; no
uid of a held-out problem that is measured may be among those that were seen. One core is enough.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout, not installed

from make_weights import TOKENIZER, train
from start_measures import held_out_uids, measure, tables
from start_writers import STAGES, Line, Stage

from gruppo.data import Inputs
from gruppo.policies.layout import packed
from gruppo.policies.tiny import TinyTransformer
from gruppo.tasks.numbering import hash64

WEIGHTS = Path(__file__).resolve().parents[1] / "src" / "gruppo" / "policies" / "weights"
CONTEXT = {"tiny-talk": 256, "tiny-long": 512}


class Lines:
    """Batches of about `tokens` tokens, in which what follows the given text is learned."""

    def __init__(self, stage: Stage, name: str, seed: int) -> None:
        self.draw, self.steps, self.most = Random(hash64(name, seed)), stage.steps, stage.tokens
        self.writers, self.weight = zip(*stage.writers.items(), strict=True)
        self.uids: set[str] = set()
        self.lines = self.tokens = 0

    def line(self) -> Line:
        line = self.draw.choices(self.writers, self.weight)[0](self.draw)
        self.uids.add(line[0])
        self.lines += 1
        return line

    def batches(self) -> Iterator[Inputs]:
        for _ in range(self.steps):
            lines, total = list[Line](), 0
            while total < self.most:
                lines.append(line := self.line())
                total += len(line[1]) + len(line[2]) + 2
            self.tokens += total
            yield inputs_of(lines)


def inputs_of(lines: list[Line]) -> Inputs:
    """`at_N` are the learned ids, with the end of the answer."""
    rows = [encoded(given, answer) for _, given, answer in lines]
    learned = [np.arange(len(row)) > len(given) for row, (_, given, _) in zip(rows, lines, strict=True)]
    return replace(packed(rows), at_N=torch.from_numpy(np.flatnonzero(np.concatenate(learned))))


def encoded(given: str, answer: str) -> np.ndarray:
    return np.concatenate([[TOKENIZER.bos], TOKENIZER.encode(given + answer), [TOKENIZER.eos]])


def start(name: str, folder: Path = WEIGHTS / "tiny") -> TinyTransformer:
    """The weights of `tiny`, with as many positions as the start has."""
    tiny = TinyTransformer.load(folder)
    policy = TinyTransformer(replace(tiny.config, context=CONTEXT[name]), seed=None)
    policy.load_state_dict(tiny.state_dict())
    return policy


def make(name: str, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one stage, after the ones before it, and saves; what was done, for recipe.json."""
    stage, begun, used = STAGES[name][number - 1], time.perf_counter(), time.process_time()
    lines = Lines(stage, name, number - 1)
    policy = start(name, options.out if number > 1 else WEIGHTS / "tiny")
    loss = train(policy, lines, argparse.Namespace(steps=stage.steps, lr=stage.lr, device="cpu"))  # type: ignore[arg-type]
    seen = lines.uids & held_out_uids()
    assert not seen, f"{len(seen)} held-out problems are in the corpus: {min(seen)}"
    policy.save(options.out, dtype=torch.float16)
    return {
        **{"stage": number, "steps": stage.steps, "tokens_a_step": stage.tokens, "lr": stage.lr},
        "writers": {w.__name__: share for w, share in stage.writers.items()},
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
        "final_loss": round(loss, 5),
        **{"lines": lines.lines, "tokens": lines.tokens, "problems": len(lines.uids)},
    }


def described(name: str, policy: TinyTransformer) -> dict[str, Any]:
    return {
        "made_by": f"scripts/make_starts.py {name}",
        "torch": torch.__version__,
        "config": asdict(policy.config),
        "parameters": sum(w.numel() for w in policy.parameters()),
    }


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", choices=[*STAGES])
    parser.add_argument("--stage", type=int, default=1, help="go on with this stage, from the weights that are there")
    parser.add_argument("--prompts", type=int, default=300, help="held-out prompts for each figure")
    parser.add_argument("--out", type=Path, help="the folder; that of the package by default")
    options = parser.parse_args(arguments)
    options.out = options.out or WEIGHTS / options.name
    return options


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(1)  # the order of sums, and with it the weights, depends on the number
    file = options.out / "recipe.json"
    stages = json.loads(file.read_text(encoding="utf-8"))["stages"][: options.stage - 1] if options.stage > 1 else []
    stages += [make(options.name, n + 1, options) for n in range(options.stage - 1, len(STAGES[options.name]))]
    policy = TinyTransformer.load(options.out)  # what ships is what is measured
    recipe = {**described(options.name, policy), "stages": stages, "prompts": options.prompts}
    recipe |= {"held_out": measure(options.name, policy, options.prompts)}
    file.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    print("\n\n".join(tables(recipe["held_out"])))  # for docs/models.md
    for path in options.out.iterdir():
        path.chmod(0o644)  # safetensors writes for the owner only
    size = sum(path.stat().st_size for path in options.out.iterdir())
    assert size <= 3e6, f"{size} bytes: more than the 3 MB that are meant for it."


if __name__ == "__main__":
    main()
