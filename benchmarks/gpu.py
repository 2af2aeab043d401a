"""Sampling and learning on one GPU, with transformers' `generate` and a plain loop beside it in the same run.

    python benchmarks/gpu.py --json FILE             all parts, some eight minutes on an H200
    python benchmarks/gpu.py --parts sampling,step   some of them
    python benchmarks/gpu.py --small                 in float32 on a CPU, in seconds: does it run?

Random weights in bfloat16 in the shapes of Qwen2 (0.5 B, 1.5 B, 7 B). Parts:

    sampling  256 requests of 128 + 256 tokens, with prefill; the kernels of a step; the gap to the trainer
    ragged    1,024 requests whose lengths are geometric (mean 256, at most 2,048), 256 rows
    groups    32 prompts of 1,024 tokens x 16 answers of 256: one prompt for its group, against copies of it
    step      a whole GRPO step of plain_loop.py at 0.5 B and 1.5 B, and one with answers of 2,048 tokens
    sharded   learning at 0.5 B and 1.5 B with weights that FSDP2 has sharded over one rank, against plain ones
    large     the 7 B shape: sampling, and a step of an adapter
    exact     a GRPO step at 0.5 B with deterministic=true, against one without, and whether two runs are equal

`python benchmarks/report.py --gpu FILE` puts the result into RESULTS.md.
"""

import argparse
import asyncio
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plain_loop
import torch
import torch.distributed as dist
from report import machine
from transformers import Qwen2Config, Qwen2ForCausalLM

from gruppo.engines import Completion, NativeEngine, Request, complete
from gruppo.policies.layout import packed
from gruppo.policies.lora import Lora
from gruppo.scale.ranks import Member
from gruppo.scale.shard import mesh_of, shard_cast
from gruppo.train.exact import be_deterministic

PARTS = ("sampling", "ragged", "groups", "step", "sharded", "large", "exact")
BANDWIDTH = 4.8e12  # bytes a second, of an H200


class Bench:
    def __init__(self, small: bool) -> None:
        self.small = small
        self.device = torch.device("cpu" if small or not torch.cuda.is_available() else "cuda")
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, **found: Any) -> None:
        self.rows.append({"what": what, **found})
        print(json.dumps(self.rows[-1]), flush=True)

    def compare(self, what: str, unit: str, gruppo: float, peer: float, note: str) -> None:
        """Ours and another figure: a ratio above 1 is better for gruppo."""
        ratio = peer / gruppo if unit == "s" else gruppo / peer
        self.add(what, unit=unit, gruppo=gruppo, peer=peer, ratio=ratio, note=note)

    def model(self, shape: str) -> Any:
        torch.manual_seed(0)
        size = plain_loop.SMALL if self.small else plain_loop.SHAPES[shape]
        dtype = torch.float32 if self.small else torch.bfloat16
        with torch.device(self.device):
            model: Any = Qwen2ForCausalLM(Qwen2Config(**size))
            model = model.to(dtype)
        model.generation_config.eos_token_id = None
        return model

    def seconds(self, work: Callable[[], Any], repeats: int = 3) -> float:
        """The best of some repeats, after one that warms up."""
        work()
        return min(self.once(work) for _ in range(repeats))

    def once(self, work: Callable[[], Any]) -> float:
        self.wait()
        begun = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - begun

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak(self) -> float:
        return torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else float("nan")

    def write(self, file: Path) -> None:
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"
        file.write_text(json.dumps({"machine": machine(), "device": name, "rows": self.rows}, indent=1) + "\n")

    def fresh(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def requests(count: int, prompt: int, lengths: Sequence[int], vocab: int) -> list[Request]:
    draw = np.random.default_rng(0)
    return [Request(draw.integers(0, vocab, prompt), int(lengths[i]), key=i) for i in range(count)]


def drawn(engine: NativeEngine, asked: list[Request]) -> list[Completion]:
    return asyncio.run(complete(engine, asked))


def sampling(b: Bench) -> None:
    for shape in ("0.5b", "1.5b"):
        _sampling(b, shape)
        b.fresh()


def _sampling(b: Bench, shape: str) -> None:
    model = b.model(shape)
    count, prompt, answer = (4, 8, 8) if b.small else (256, 128, 256)
    asked = requests(count, prompt, [answer] * count, model.config.vocab_size)
    policy = plain_loop.own_policy(model)
    engine = NativeEngine({"policy": policy}, eos=None, max_rows=count)
    warm = b.once(lambda: drawn(engine, asked))
    ours = b.seconds(lambda: drawn(engine, asked))
    ids = torch.from_numpy(np.stack([r.prefix for r in asked])).to(b.device)

    def generated(tokens: int) -> None:
        with torch.no_grad():
            model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=tokens,
                min_new_tokens=tokens, pad_token_id=0,
            )  # fmt: skip

    generated(4)
    theirs = b.once(lambda: generated(answer))
    tokens = count * answer
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    floor = count / ((size + _cache_bytes(policy, count, prompt + answer / 2)) / BANDWIDTH)
    b.compare(
        f"sampling, {shape}: {count} x ({prompt} + {answer})",
        "tokens/s",
        tokens / ours,
        tokens / theirs,
        f"warm-up {warm:.1f} s; {tokens / ours / floor:.0%} of what the bandwidth allows",
    )
    b.add(f"gap of sampler and trainer, {shape}", unit="nats", gruppo=_gap(policy, asked, drawn(engine, asked)))
    if b.device.type == "cuda":
        b.add(f"kernels of a step, {shape}", unit="us", parts=_kernels(engine))


def _cache_bytes(policy: Any, rows: int, tokens: float) -> float:
    c = policy.config
    return 2 * policy.layers * c.kv_heads * c.head_dim * 2 * rows * tokens


def _gap(policy: Any, asked: list[Request], found: list[Completion]) -> float:
    """Mean |log π of the sampler − log π of the trainer|, of 32 answers."""
    gaps = []
    with torch.no_grad():
        for r, c in list(zip(asked, found, strict=True))[:32]:
            hidden, _ = policy(packed([np.concatenate([r.prefix, c.ids])], policy.device))
            logp = torch.log_softmax(policy.head(hidden[len(r.prefix) - 1 : -1]), -1)
            token = torch.from_numpy(c.ids).to(policy.device)[:, None]
            gaps.append(float((logp.gather(1, token)[:, 0].cpu() - torch.from_numpy(c.logp)).abs().mean()))
    return float(np.mean(gaps))


def _kernels(engine: NativeEngine) -> dict[str, float]:
    from torch.profiler import ProfilerActivity, profile

    d = engine._streams["policy"].decoder  # type: ignore[attr-defined]
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            d.count.zero_()
            d.step(d.rows, draw=True)
        torch.cuda.synchronize()
    rows = sorted(((e.self_device_time_total / 5, e.key) for e in found.key_averages()), reverse=True)
    return {name[:60]: round(us, 1) for us, name in rows[:14]}


def ragged(b: Bench) -> None:
    """Lengths that are limits, and lengths that nobody knows, since a token ends an answer."""
    model = b.model("0.5b")
    vocab: int = model.config.vocab_size
    count, prompt, rows, mean, most = (12, 8, 4, 4, 16) if b.small else (1024, 128, 256, 256, 2048)
    lengths = np.minimum(np.random.default_rng(1).geometric(1 / mean, count), most)
    engine = NativeEngine({"policy": plain_loop.own_policy(model)}, eos=None, max_rows=rows)
    ending = tuple(range(0, vocab, mean))  # random weights draw any id about equally often
    unknown = [replace(r, stop=ending) for r in requests(count, prompt, [most] * count, vocab)]
    same = requests(count, prompt, [mean] * count, vocab)
    level = count * mean / b.seconds(lambda: drawn(engine, same), 1)
    work = {"limits": requests(count, prompt, lengths.tolist(), vocab), "ended by a token": unknown}
    for name, asked in work.items():
        length = [len(c.ids) for c in drawn(engine, asked)]
        seconds = min(b.once(lambda asked=asked: drawn(engine, asked)) for _ in range(2))
        b.compare(
            f"ragged, {name}: {count} requests, geometric with mean {mean}, at most {most}, {rows} rows",
            "tokens/s",
            sum(length) / seconds,
            level,
            f"beside it: equal lengths; drawn: mean {sum(length) / count:.0f}, longest {max(length)}",
        )
    b.fresh()


def groups(b: Bench) -> None:
    model = b.model("0.5b")
    prompts, prompt, samples, answer = (2, 70, 3, 5) if b.small else (32, 1024, 16, 256)
    policy = plain_loop.own_policy(model)
    base = requests(prompts, prompt, [answer] * prompts, model.config.vocab_size)
    shared = [Request(r.prefix, answer, key=100 * i + j) for i, r in enumerate(base) for j in range(samples)]
    # Another payload is another prompt: nothing is shared.
    apart = [Request(r.prefix, answer, r.key, payload=str(i).encode()) for i, r in enumerate(shared)]
    found = {}
    for name, asked in (("shared", shared), ("copies", apart)):
        b.fresh()
        engine = NativeEngine({"policy": policy}, eos=None, max_rows=prompts * samples)
        seconds = b.seconds(lambda asked=asked, engine=engine: drawn(engine, asked), 2)
        found[name] = (prompts * samples * answer / seconds, _pages(engine))
        del engine
    (mine, pages), (other, more) = found["shared"], found["copies"]
    b.compare(
        f"groups: {prompts} prompts of {prompt} tokens x {samples} answers of {answer}",
        "tokens/s",
        mine,
        other,
        f"beside it: copies of the prompt; pages in use at most {pages} and {more}",
    )
    b.fresh()


def _pages(engine: NativeEngine) -> int:
    decoder = getattr(engine._streams["policy"], "decoder", None)
    return decoder.pool.peak if decoder is not None else 0


def step(b: Bench) -> None:
    for shape in ("0.5b", "1.5b"):
        args = argparse.Namespace(small=b.small, shape=shape, tokens="128+128", prompts=64, samples=8, turns=2)
        if b.small:
            args = argparse.Namespace(**{**vars(args), "tokens": "8+8", "prompts": 2, "samples": 2, "turns": 1})
        found = plain_loop.compare(args)
        mine, other = found["sides"]["gruppo"], found["sides"]["plain loop"]
        parts = ", ".join(f"{k} {v:.3g}" for k, v in mine["parts"].items())
        b.compare(
            f"GRPO step, {shape}: {args.prompts} x {args.samples} answers of {args.tokens} tokens",
            "s",
            mine["seconds"],
            other["seconds"],
            f"{parts}; memory {mine['peak_mib'] / 1024:.1f} and {other['peak_mib'] / 1024:.1f} GiB",
        )
        b.fresh()
    _long(b)


def _long(b: Bench) -> None:
    """One step with long answers. The plain loop takes minutes, so it is not warmed up."""
    model = b.model("0.5b")
    prompts, samples, answer = (2, 2, 12) if b.small else (32, 8, 2048)
    ids = torch.randint(0, model.config.vocab_size, (prompts, 128), device=b.device)
    work = plain_loop.Work(ids, samples, answer)
    ours = plain_loop.Gruppo(copy.deepcopy(model), work)
    ours.step()
    mine = ours.step()
    del ours
    b.fresh()
    optimiser = torch.optim.AdamW(model.parameters(), lr=plain_loop.LR, fused=True)
    other = plain_loop.plain_step(model, optimiser, work)
    a, z = sum(mine.values()), sum(other.values())
    b.compare(
        f"GRPO step, 0.5b: {prompts} x {samples} answers of 128+{answer} tokens",
        "s",
        a,
        z,
        ", ".join(f"{k} {v:.3g}" for k, v in mine.items()),
    )
    b.fresh()


class Sharded(plain_loop.Gruppo):
    """As a rank of several learns: from sharded weights, which a whole copy takes after every step to sample."""

    def __init__(self, model: Any, work: plain_loop.Work) -> None:
        super().__init__(model, work)
        shards = shard_cast({"policy": self.policy}, mesh_of(self.policy.device, 1), frozenset({"policy"}))
        self.learner = self.member = Member(self.method, shards, self.learner.config)

    def publish(self) -> None:
        self.member.do("publish_to", ["policy"], {"policy": self.policy})


def sharded(b: Bench) -> None:
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if b.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    learned = ("forward and backward", "optimiser")
    for shape in ("0.5b", "1.5b"):
        prompts, samples, answer = (2, 2, 8) if b.small else (64, 8, 128)
        found: list[dict[str, float]] = []
        publishing = 0.0
        for kind in (Sharded, plain_loop.Gruppo):
            model = b.model(shape)
            ids = torch.randint(0, model.config.vocab_size, (prompts, 128), device=b.device)
            ours = kind(model, plain_loop.Work(ids, samples, answer))
            del model
            steps = [ours.step() for _ in range(4)][1:]
            found.append({k: statistics.median(parts[k] for parts in steps) for k in learned})
            if isinstance(ours, Sharded):
                publishing = b.seconds(ours.publish)
            del ours
            b.fresh()
        mine, plain = found
        b.compare(
            f"learning with FSDP2 on one rank, {shape}: {prompts} x {samples} answers of 128+{answer} tokens",
            "s",
            sum(mine.values()),
            sum(plain.values()),
            f"beside it: plain; {', '.join(f'{k} {mine[k]:.3g} and {plain[k]:.3g}' for k in learned)}; "
            f"the sampler's copy takes the weights in {publishing:.3g} s",
        )


def large(b: Bench) -> None:
    model = b.model("7b")
    prompts, samples, answer = (2, 2, 8) if b.small else (16, 8, 128)
    ids = torch.randint(0, model.config.vocab_size, (prompts, 128), device=b.device)
    ours = plain_loop.Gruppo(model, plain_loop.Work(ids, samples, answer), lora=Lora(rank=16))
    del model
    b.fresh()
    ours.step()
    parts = ours.step()
    b.add(
        f"7b with an adapter of rank 16, GRPO step: {prompts} x {samples} answers of 128+{answer} tokens",
        unit="s",
        gruppo=sum(parts.values()),
        note=", ".join(f"{k} {v:.3g}" for k, v in parts.items()) + f"; peak {b.peak():.1f} GiB",
    )
    b.fresh()


def exact(b: Bench) -> None:
    """The last part: deterministic algorithms stay on."""
    model = b.model("0.5b")
    prompts, samples, answer = (2, 2, 8) if b.small else (64, 8, 128)
    work = plain_loop.Work(torch.randint(0, model.config.vocab_size, (prompts, 128), device=b.device), samples, answer)

    def steps(count: int) -> tuple[list[dict[str, float]], list[torch.Tensor]]:
        b.fresh()
        ours = plain_loop.Gruppo(copy.deepcopy(model), work)
        parts = [ours.step() for _ in range(count)]
        return parts, [p.detach().cpu() for p in ours.policy.parameters()]

    def equal(x: list[torch.Tensor], y: list[torch.Tensor]) -> bool:
        return all(torch.equal(p, q) for p, q in zip(x, y, strict=True))

    (_, free), (plain, again) = steps(3), steps(3)
    before = equal(free, again)
    be_deterministic()
    (_, one), (fixed, two) = steps(3), steps(3)
    mine, other = fixed[-1], plain[-1]
    b.compare(
        f"deterministic=true, 0.5b: {prompts} x {samples} answers of 128+{answer} tokens",
        "s",
        sum(mine.values()),
        sum(other.values()),
        f"beside it: without; weights of two runs after 3 steps equal: {equal(one, two)}, without: {before}; "
        + ", ".join(f"{k} {v:.3g}" for k, v in mine.items()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    b = Bench(args.small)
    for part in args.parts.split(","):
        begun = time.perf_counter()
        globals()[part](b)
        print(f"{part}: {time.perf_counter() - begun:.0f} s", flush=True)
        if args.json is not None:
            b.write(args.json)


if __name__ == "__main__":
    main()
