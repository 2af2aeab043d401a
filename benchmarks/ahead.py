"""A GRPO run that samples ahead of learning, against one that does not: tokens a second on one GPU.

    python benchmarks/ahead.py [--shape 0.5b] [--ahead 0,2] [--steps 14] [--json FILE]
    python benchmarks/ahead.py --small     # in float32 on a CPU, in seconds: does it run?

A Qwen2 with random weights in bfloat16, 64 prompts of 128 tokens x 8 answers of 128; the reward is the
share of characters with an even code. `gruppo.train` with all that belongs to it: a judge in a process of its own,
metrics, a run folder.
Seconds are those between the ends of steps, the median after the first six. Sides in turn; the first is warmed up as
the others are. `--wait 1` has the reward answer after a second.
"""

import argparse
import json
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import plain_loop
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import gruppo

WARM = 6
END = "<|endoftext|>"  # what transformers adds to a tokenizer of Qwen2 that lacks it
REWARD = """
import time

def score(task, text):
    time.sleep({wait})
    return sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1)
"""


class Ends(gruppo.Callback):
    """When each step has ended."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.rows: list[dict[str, float]] = []

    def step(self, trainer: Any, step: gruppo.Step) -> None:
        self.at.append(time.perf_counter())
        self.rows.append(dict(step.row))


def made(folder: Path, shape: str, small: bool, prompt: int, wait: float) -> None:
    """A model, its tokenizer, tasks and a reward."""
    torch.manual_seed(0)
    size = dict(plain_loop.SMALL if small else plain_loop.SHAPES[shape])
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    others = [f"w{i}" for i in range(len(letters), int(size["vocab_size"]) - 1)]
    words = {c: i for i, c in enumerate([*letters, *others, END])}
    tok = Tokenizer(models.BPE(words, []))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tok, eos_token=END, pad_token=END).save_pretrained(folder / "model")
    model = Qwen2ForCausalLM(Qwen2Config(**size, eos_token_id=len(words) - 1, bos_token_id=None))
    model.to(torch.float32 if small else torch.bfloat16).save_pretrained(folder / "model")
    draw = np.random.default_rng(0)
    prompts = ["".join(chr(97 + i) for i in draw.integers(0, 26, prompt)) for _ in range(2048)]
    lines = [json.dumps({"prompt": text, "answer": ""}) for text in prompts]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "even.py").write_text(REWARD.format(wait=wait))


def one(folder: Path, args: argparse.Namespace, ahead: int, work: tuple[int, int, int]) -> dict[str, Any]:
    prompts, samples, answer = work
    ends = Ends()
    settings: dict[str, Any] = {
        "model.name": str(folder / "model"),
        "model.dtype": "float32" if args.small else "bfloat16",
        "model.device": "cpu" if args.small else "cuda",
        "task": str(folder / "tasks.jsonl"),
        "reward": f"{folder / 'even.py'}:score",
        "method.penalties": "none",
        "method.select+": "truncated_importance",
        "sampling.max_tokens": answer,
        "optim.lr": 1e-6,
        "eval.every": 0,
        "eval.prompts": 1,
        "save.folder": str(folder / "runs"),
        "save.checkpoint_every": 0,
        "save.episodes_every": 0,
        "show": 0,
    }
    gruppo.train(
        "grpo",
        callbacks=[ends],
        quiet=True,
        prompts=prompts,
        samples=samples,
        steps=args.steps,
        ahead=ahead,
        **settings,
    )
    taken = [b - a for a, b in pairwise(ends.at)][WARM - 1 :]
    tokens = ends.rows[-1]["sampled"]
    parts = {k: statistics.median(r[k] for r in ends.rows[WARM:] if k in r) for k in ends.rows[-1] if "seconds" in k}
    return {
        "ahead": ahead,
        "seconds": statistics.median(taken),
        "range": [min(taken), max(taken)],
        "tokens_per_second": tokens / statistics.median(taken),
        "age": ends.rows[-1].get("age"),
        "parts": parts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", choices=plain_loop.SHAPES, default="0.5b")
    parser.add_argument("--ahead", default="0,2")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    prompt, work = (8, (2, 2, 6)) if args.small else (128, (64, 8, 128))
    b, plain = gpu.Bench(args.small), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        made(Path(folder), args.shape, args.small, prompt, args.wait)
        for ahead in map(int, args.ahead.split(",")):
            found = one(Path(folder), args, ahead, work)
            plain = plain or found
            parts = ", ".join(f"{k.removeprefix('seconds/')} {v:.3g}" for k, v in found["parts"].items())
            (prompts, samples, answer), (low, high) = work, found["range"]
            b.compare(
                f"a run with ahead={ahead}, {args.shape}: {prompts} x {samples} answers of {prompt}+{answer} tokens",
                "tokens/s",
                found["tokens_per_second"],
                plain["tokens_per_second"],
                f"beside it: ahead={plain['ahead']}; {low:.3g} to {high:.3g} s a step; {parts}",
            )
            if args.json is not None:
                b.write(args.json)


if __name__ == "__main__":
    main()
