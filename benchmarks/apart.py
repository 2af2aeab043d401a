"""Sampler and learner as two processes on one GPU: seconds of an exchange of weights, and tokens a second of GRPO.

    python benchmarks/apart.py [--json FILE]
    python benchmarks/apart.py --small     # in float32 on a CPU, in seconds: does it run?

Random weights in the shapes of SmolLM2 (float32) and Qwen2 1.5 B (bfloat16). An exchange is one
`sync(version, weights)`, from the call to the answer of the sampler that it has them; the best of five. Two ways:

    main memory  what samplers on Ray do: bytes in main memory, here a file in shared memory in the place of Ray's store
    GPU          the sampler copies from the learner's own tensors (CUDA IPC), which both processes see

Steps of GRPO at 0.5 B (64 x 8 answers of 128 + 128 tokens), weights through the GPU: one after the other, and with
the draws of the next step under way while this one is learned from (then they are one version old).
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import plain_loop
import torch
import torch.multiprocessing as mp
from transformers import LlamaConfig, LlamaForCausalLM

from gruppo.engines import Completion, NativeEngine, Request, complete
from gruppo.policies import learned_state, load_learned, load_policy
from gruppo.scale.samplers import Packed, tensor_of

SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
SMOLLM2 |= {"num_key_value_heads": 3, "vocab_size": 49_152, "tie_word_embeddings": True}
LIMITS = {"smollm2": 0.5, "1.5b": 1.0}  # seconds of an exchange
REPEATS = 5


def folder_of(b: gpu.Bench, shape: str, folder: Path) -> torch.dtype:
    """A model of this shape, as a run would load it."""
    if shape == "smollm2" and not b.small:
        with torch.device(b.device):
            model: Any = LlamaForCausalLM(LlamaConfig(**SMOLLM2))  # type: ignore[arg-type]
    else:
        model = b.model(shape)
    model.save_pretrained(folder)
    return model.dtype


def sampler(pipe: Any, folder: str, dtype: torch.dtype, device: torch.device) -> None:
    """The other process: it has weights of its own, takes new ones and answers requests."""
    torch.set_num_threads(4)
    policy = load_policy(folder, dtype, device)
    engine = NativeEngine({"policy": policy}, eos=None)
    own, theirs = learned_state(policy), dict[str, torch.Tensor]()
    pipe.send(None)
    while True:
        verb, *given = pipe.recv()
        if verb == "end":
            return
        if verb == "see":
            theirs = given[0]
            pipe.send(None)
        elif verb == "sync":
            version, path, sizes = given
            with torch.no_grad():
                if path:
                    _read(policy, own, path, sizes)
                else:
                    torch._foreach_copy_(list(own.values()), [theirs[name] for name in own])  # type: ignore[attr-defined]
            engine.sync(version, {"policy": policy})
            if device.type == "cuda":
                torch.cuda.synchronize()
            pipe.send(None)
        elif verb == "sum":
            pipe.send(summed(policy))
        else:
            pipe.send(asyncio.run(complete(engine, given[0])))


def _read(policy: Any, own: dict[str, torch.Tensor], path: str, sizes: dict[str, int]) -> None:
    whole, start, table = np.memmap(path, np.uint8, "r"), 0, dict[str, torch.Tensor]()
    for name, size in sizes.items():
        table[name] = tensor_of(whole[start : start + size], own[name])
        start += size
    load_learned(policy, table)


def summed(policy: Any) -> float:
    return sum(float(p.detach().double().sum()) for p in learned_state(policy).values())


class Elsewhere:
    """An engine in another process, with the seam of those that have weights of their own: `sync(version, weights)`."""

    def __init__(self, folder: str, dtype: torch.dtype, device: torch.device, through_gpu: bool) -> None:
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=sampler, args=(other, folder, dtype, device), daemon=True)
        self.process.start()
        self.device, self.through_gpu, self.seen = device, through_gpu, False
        self.packed, self.stored = Packed(), torch.zeros(0, dtype=torch.uint8)
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()
        self.store = Path(memory) / f"apart-{self.process.pid}"
        self.pipe.recv()

    def sync(self, version: int, weights: dict[str, Any]) -> None:
        state, sizes, path = learned_state(weights["policy"]), dict[str, int](), ""
        if not self.through_gpu:
            path, table = str(self.store), self.packed({"policy": state})["policy"]
            sizes = {name: len(x) for name, x in table.items()}
            if not self.store.exists():
                self.stored = torch.from_numpy(np.memmap(self.store, np.uint8, "w+", shape=(sum(sizes.values()),)))
            for part, x in zip(self.stored.split_with_sizes(list(sizes.values())), table.values(), strict=True):
                part.copy_(torch.from_numpy(x))
        elif not self.seen:
            self.told("see", {name: p.detach() for name, p in state.items()})
            self.seen = True
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.told("sync", version, path, sizes)

    def ask(self, requests: Sequence[Request]) -> None:
        self.pipe.send(("ask", list(requests)))

    def answers(self) -> list[Completion]:
        return self.pipe.recv()

    def told(self, *words: Any) -> Any:
        self.pipe.send(words)
        return self.pipe.recv()

    def close(self) -> None:
        self.pipe.send(("end",))
        self.process.join(30)
        self.store.unlink(missing_ok=True)


def exchange(b: gpu.Bench, shape: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dtype = folder_of(b, shape, Path(folder))
        b.fresh()
        policy = load_policy(folder, dtype, b.device)
        there = Elsewhere(folder, dtype, b.device, through_gpu=False)
    size = sum(p.numel() * p.element_size() for p in learned_state(policy).values())
    for name in ("main memory", "GPU"):
        there.through_gpu, taken = name == "GPU", list[float]()
        for i in range(REPEATS + 1):
            with torch.no_grad():
                for p in policy.parameters():
                    p.add_(0.01)
            taken.append(b.once(partial(there.sync, i, {"policy": policy})))
        b.add(
            f"exchange of weights between two processes, {shape}, through {name}",
            unit="s",
            gruppo=min(taken[1:]),
            note=f"{size / 2**30:.2f} GiB; the first {taken[0]:.3g} s, later at most {max(taken[1:]):.3g} s; "
            f"wanted: {LIMITS[shape]} s; the sampler has the same weights: {summed(policy) == there.told('sum')}",
        )
    there.close()
    b.fresh()


class Learns(plain_loop.Gruppo):
    """A learner whose sampler is another process."""

    def steps(self, there: Elsewhere, count: int, ahead: bool) -> list[float]:
        """Seconds of some steps. With `ahead`, a step is asked for before the one in front of it is learned from."""
        ends, asked = [time.perf_counter()], self.requests()
        there.ask(asked)
        drawn = there.answers()
        for step in range(count):
            following = self.requests()
            if ahead:
                there.ask(following)
            self.learn(asked, drawn, plain_loop.Parts(self.policy.device))
            if ahead:
                drawn = there.answers()
            there.sync(step + 1, {"policy": self.policy})
            if not ahead:
                there.ask(following)
                drawn = there.answers()
            asked = following
            ends.append(time.perf_counter())
        return [z - a for a, z in pairwise(ends)]


def steps(b: gpu.Bench) -> None:
    prompts, samples, answer, count = (2, 2, 8, 3) if b.small else (64, 8, 128, 8)
    with tempfile.TemporaryDirectory() as folder:
        dtype = folder_of(b, "0.5b", Path(folder))
        model = b.model("0.5b")
        ids = torch.randint(0, model.config.vocab_size, (prompts, 128), device=b.device)
        ours = Learns(model, plain_loop.Work(ids, samples, answer))
        del model
        there = Elsewhere(folder, dtype, b.device, b.device.type == "cuda")
        there.sync(0, {"policy": ours.policy})
        ours.steps(there, 2, True)  # graphs and kernels
        found = {ahead: statistics.median(ours.steps(there, count, ahead)[1:]) for ahead in (False, True)}
        there.close()
    tokens = prompts * samples * answer
    b.compare(
        f"sampler and learner as two processes, 0.5b: {prompts} x {samples} answers of 128+{answer} tokens",
        "tokens/s",
        tokens / found[True],
        tokens / found[False],
        f"the draws of the next step while this one is learned from, beside it: one after the other; "
        f"{found[True]:.3g} and {found[False]:.3g} s a step",
    )
    b.fresh()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    b = gpu.Bench(args.small)
    for work in (lambda: exchange(b, "smollm2"), lambda: exchange(b, "1.5b"), lambda: steps(b)):
        work()
        if args.json is not None:
            b.write(args.json)


if __name__ == "__main__":
    main()
