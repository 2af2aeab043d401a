"""gruppo against a plain transformers loop, in turn in one process: meant for one GPU.

    python benchmarks/plain_loop.py [--turns 3] [--prompts 64] [--samples 8] [--tokens 128+128] [--json FILE]
    python benchmarks/plain_loop.py --small     # the same in float32 on a CPU, in seconds: does it run?

A Qwen2 in the shape of its 0.5 B (or 1.5 B) model, random weights in bfloat16, 64 prompts x 8 answers of 128 + 128
tokens. Both
sides draw every answer in full length, reward it by the share of even ids, and take one step of GRPO without a
reference. The plain loop is what one would write in an afternoon; see RESULTS.md for what each side's step contains.
Imports torch, transformers and gruppo only. `python benchmarks/report.py --add FILE` puts the result into RESULTS.md.
"""

import argparse
import asyncio
import copy
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from report import machine
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from gruppo.data import pack, single_turn
from gruppo.engines import NativeEngine
from gruppo.engines.base import Completion, Request, complete
from gruppo.methods import method
from gruppo.policies import load_policy
from gruppo.policies.lora import Lora
from gruppo.stages import Context
from gruppo.train.learner import Learner, OptimConfig

LR, BETAS, CLIP = 1e-6, (0.9, 0.95), 1.0
MICRO_TOKENS = 16_384
QWEN2 = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
QWEN2 |= {"num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True, "rope_theta": 1e6}
SHAPES = {
    "0.5b": QWEN2,
    "1.5b": QWEN2
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    "7b": QWEN2
    | {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    | {"num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False},
}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 500, "tie_word_embeddings": True}


@dataclass(frozen=True)
class Work:
    ids: Tensor  # prompts, all of one length
    samples: int
    answer: int


@dataclass
class Parts:
    """Seconds of the parts of a step; the GPU is waited for, so that each has its own."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _last: float = field(default_factory=time.perf_counter)

    def end(self, name: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


def plain_step(model: Any, optimiser: torch.optim.Optimizer, work: Work) -> dict[str, float]:
    """generate, rewards, padded micro-batches, clipping, AdamW."""
    parts, rows = Parts(model.device), work.ids.repeat_interleave(work.samples, 0)
    model.eval()
    with torch.no_grad():
        whole = model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            do_sample=True,
            top_k=0,
            max_new_tokens=work.answer,
            pad_token_id=0,
            eos_token_id=None,
        )
    assert whole.shape[1] == rows.shape[1] + work.answer
    parts.end("sampling")
    reward = (whole[:, rows.shape[1] :] % 2 == 0).float().mean(1).view(-1, work.samples)
    adv = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-6)).flatten()
    model.train()
    for ids, a in zip(*(x.split(max(MICRO_TOKENS // whole.shape[1], 1)) for x in (whole, adv)), strict=True):
        logits = model(ids, attention_mask=torch.ones_like(ids), logits_to_keep=work.answer + 1).logits[:, :-1].float()
        logp = -F.cross_entropy(logits.flatten(0, 1), ids[:, -work.answer :].flatten(), reduction="none")
        ratio = (logp - logp.detach()).exp().view(len(ids), -1)
        gain = torch.minimum(ratio * a[:, None], ratio.clamp(0.8, 1.2) * a[:, None])
        (-gain.mean(1).sum() / len(whole)).backward()
    parts.end("forward and backward")
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    parts.end("optimiser")
    return parts.seconds


def own_policy(model: Any, lora: Lora | None = None) -> Any:
    """The model as a run would load it from its folder."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        policy = load_policy(folder, model.dtype, model.device, lora=lora)
    return policy.train()


class Gruppo:
    """The engine, the packing, the credit and the learner of a run, without tokenizer, task and judge."""

    def __init__(self, model: Any, work: Work, lora: Lora | None = None) -> None:
        self.method = method("grpo").but(penalties=())
        self.policy, self.work, self.done = own_policy(model, lora), work, 0
        self.engine = NativeEngine({"policy": self.policy}, eos=None)
        optim = OptimConfig(lr=LR, beta1=BETAS[0], beta2=BETAS[1], clip_norm=CLIP, micro_tokens=MICRO_TOKENS)
        self.learner = Learner(self.method, {"policy": self.policy}, optim)
        self.prompts = work.ids.cpu().numpy()

    def step(self) -> dict[str, float]:
        parts, asked = Parts(self.policy.device), self.requests()
        drawn = asyncio.run(complete(self.engine, asked))
        parts.end("sampling")
        self.learn(asked, drawn, parts)
        return parts.seconds

    def requests(self) -> list[Request]:
        """Those of the next step."""
        size, self.done = self.work.samples, self.done + 1
        keys = range(self.done * 10**6, self.done * 10**6 + len(self.prompts) * size)
        return [Request(self.prompts[i // size], self.work.answer, key) for i, key in enumerate(keys)]

    def learn(self, asked: list[Request], drawn: list[Completion], parts: Parts) -> None:
        assert all(len(c.ids) == self.work.answer for c in drawn)
        size, ctx = self.work.samples, Context(step=self.done)
        self.learner.begin(ctx)
        episodes = [
            single_turn(
                i,
                "task",
                f"g{i // size}",
                asked[i].prefix,
                c.ids,
                c.logp,
                c.version,
                temperature=1.0,
                reward={"task": float(np.mean(c.ids % 2 == 0))},
            )
            for i, c in enumerate(drawn)
        ]
        batch = pack(episodes, dtype=torch.float32).to(self.policy.device)
        batch = batch.with_columns(**self.method.credit(ctx, batch))
        parts.end("rewards, packing, credit")
        self.learner.grad("policy", batch)
        parts.end("forward and backward")
        self.learner.apply("policy")
        self.engine.version += 1
        parts.end("optimiser")


def measured(
    step: Callable[[], dict[str, float]], device: torch.device, other: Any, its_optimiser: torch.optim.Optimizer
) -> dict[str, Any]:
    """One step: its parts, and the most memory that it had (MiB), less what the other side holds.

    On a GPU a step goes before it, since the memory that the other side had was given back: a run asks for it once.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        step()
        torch.cuda.reset_peak_memory_stats()
    parts = step()
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else float("nan")
    kept = [x for state in its_optimiser.state.values() for x in state.values() if isinstance(x, Tensor)]
    kept += list(other.parameters())
    held = sum(x.numel() * x.element_size() for x in kept)
    return {"parts": parts, "seconds": sum(parts.values()), "mib": (peak - held) / 2**20}


def summary(rows: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    seconds = [r["seconds"] for r in rows]
    return {
        "seconds": statistics.median(seconds),
        "seconds_range": [min(seconds), max(seconds)],
        "tokens_per_second": tokens / statistics.median(seconds),
        "peak_mib": max(r["mib"] for r in rows),
        "parts": {k: statistics.median(r["parts"][k] for r in rows) for k in rows[0]["parts"]},
    }


def compare(args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cpu" if args.small or not torch.cuda.is_available() else "cuda")
    prompt, answer = (int(x) for x in args.tokens.split("+"))
    shape, dtype = (SMALL, torch.float32) if args.small else (SHAPES[args.shape], torch.bfloat16)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**shape)).to(device, dtype)
    model.generation_config.eos_token_id = None
    ids = torch.randint(0, shape["vocab_size"], (args.prompts, prompt), device=device)
    work, params = Work(ids, args.samples, answer), sum(p.numel() for p in model.parameters())
    ours = Gruppo(copy.deepcopy(model), work)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=0.0, fused=True)
    sides = {"gruppo": ours.step, "plain loop": lambda: plain_step(model, optimiser, work)}
    others = {"gruppo": (model, optimiser), "plain loop": (ours.policy, ours.learner.optimisers["policy"])}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(args.turns + 1):  # the first warms up
        for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            rows[name].append(measured(sides[name], device, *others[name]))
            print(f"turn {turn}, {name}: {rows[name][-1]['seconds']:.3f} s {rows[name][-1]['parts']}", flush=True)
    tokens = args.prompts * args.samples * answer
    ratio = [b["seconds"] / a["seconds"] for a, b in zip(rows["gruppo"][1:], rows["plain loop"][1:], strict=True)]
    return {
        "machine": machine(),
        "model": "small" if args.small else f"qwen2-{args.shape}, random",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "parameters": params,
        "prompts": args.prompts,
        "prompt_tokens": prompt,
        "samples": args.samples,
        "new_tokens": answer,
        "turns": args.turns,
        "steps_a_turn": 1,
        "ratio": statistics.median(ratio),
        "ratio_range": [min(ratio), max(ratio)],
        "sides": {name: summary(mine[1:], tokens) for name, mine in rows.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", default="128+128", help="of a prompt and of an answer")
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = compare(args)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k != "machine"}, indent=1))


if __name__ == "__main__":
    main()
