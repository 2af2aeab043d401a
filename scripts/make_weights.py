"""Makes the weights of the built-in policy: imitation of writers of mixed care, on all tasks and levels.

    python scripts/make_weights.py --device cuda

Only problems of the train splits are used, and at the end no uid of a held-out problem may be among those
that were seen. Sampled at temperature 1 the policy is right about as often as its writers (tasks/writers.py),
though it could be right nearly always: `--care 1` trains it on right answers only and shows what it can do.

Needs torch, numpy and safetensors. A sequence is <bos>, the prompt, the answer and <eos>; only the answer
and <eos> are learned.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout, not installed

from gruppo.data import Inputs
from gruppo.policies.folder import TinyConfig
from gruppo.policies.layout import packed
from gruppo.policies.tiny import TinyTransformer
from gruppo.policies.tokenizer import CharTokenizer
from gruppo.tasks import BUILT_IN, family
from gruppo.tasks.base import Task
from gruppo.tasks.imports import load_object
from gruppo.tasks.numbering import hash64
from gruppo.tasks.writers import CARE, write

CHUNK = 8192  # examples that one process makes at a time
WRITERS = 4  # answers to each problem that is drawn
CELLS = [(name, level) for name in BUILT_IN for level in family(name).levels]
WEIGHT = [2 if level == family(name).default else 1 for name, level in CELLS]
TOKENIZER = CharTokenizer()

# ---- the corpus ----------------------------------------------------------------------------------


@dataclass
class Chunk:
    """Examples as one flat array of ids; `prompt` and `length` count the ids of each."""

    ids: np.ndarray
    prompt: np.ndarray
    length: np.ndarray
    cell: np.ndarray
    right: np.ndarray
    uids: np.ndarray  # hashes of the problems


def make_chunk(seed: int, number: int, care: float | None) -> Chunk:
    """A pure function of its arguments, so the number of processes does not matter."""
    draw = Random(hash64("corpus", seed, number))
    rows, uids = [], []
    for cell in draw.choices(range(len(CELLS)), WEIGHT, k=CHUNK // WRITERS):
        name, level = CELLS[cell]
        task = draw_train(name, level, draw)
        uids.append(hash64(task.uid))
        prompt = with_bos(task)
        score = load_object(family(name).scorer)
        for _ in range(WRITERS):
            text = write(task, CARE[name][level] if care is None else care, draw)
            ids = np.concatenate([prompt, TOKENIZER.encode(text), [TOKENIZER.eos]])
            rows.append((ids.astype(np.uint8), len(prompt), cell, score(task, text)))
    draw.shuffle(rows)
    ids, prompts, cells, right = zip(*rows, strict=True)
    return Chunk(
        ids=np.concatenate(ids),
        prompt=np.array(prompts, np.int64),
        length=np.array([len(i) for i in ids], np.int64),
        cell=np.array(cells, np.int64),
        right=np.array(right, np.float32),
        uids=np.array(uids, np.uint64),
    )


def with_bos(task: Task) -> np.ndarray:
    """The prompt as the policy sees it everywhere in the package."""
    return np.concatenate([[TOKENIZER.bos], TOKENIZER.encode(task.prompt)])


def draw_train(name: str, level: int, draw: Random) -> Task:
    """Any problem of the train split, each with the same probability, written down in any way."""
    kind = family(name)
    rank = kind.rank(level, "train", 0, draw.randrange(kind.size(level, "train")))
    assert not kind.held_out(level, rank)
    return kind.make(level, rank, draw.getrandbits(60))


def _make_chunk(arguments: tuple[int, int, float | None]) -> Chunk:
    return make_chunk(*arguments)


class Corpus:
    """Batches of examples from worker processes, and the figures of what has been seen."""

    def __init__(self, seed: int, batch: int, steps: int, care: float | None, workers: int) -> None:
        self.batch, self.steps, self.care = batch, steps, care
        self.examples = np.zeros(len(CELLS), np.int64)
        self.right = np.zeros(len(CELLS))
        self.tokens = 0
        self.uids: list[np.ndarray] = []
        chunks = [(seed, n, care) for n in range(math.ceil(steps * batch / CHUNK))]
        # Forked before CUDA is touched: the children need no torch, and spawned ones would import it.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.pool = context.Pool(workers)
        self._chunks = self.pool.imap(_make_chunk, chunks)

    def batches(self) -> Iterator[Inputs]:
        """One Inputs for each step; `at_N` are the answers and their <eos>."""
        chunk, at = None, CHUNK
        for _ in range(self.steps):
            parts, missing = [], self.batch
            while missing:
                if chunk is None or at == CHUNK:
                    chunk, at = self._count(next(self._chunks)), 0
                stop = min(CHUNK, at + missing)
                parts.append((chunk, at, stop))
                missing, at = missing - (stop - at), stop
            yield inputs_of(parts)
        self.pool.terminate()
        self.pool.join()

    def _count(self, chunk: Chunk) -> Chunk:
        self.examples += np.bincount(chunk.cell, minlength=len(CELLS))
        self.right += np.bincount(chunk.cell, chunk.right, minlength=len(CELLS))
        self.tokens += len(chunk.ids)
        self.uids.append(chunk.uids)
        return chunk

    def figures(self) -> dict[str, object]:
        rows = zip(CELLS, self.examples.tolist(), self.right.tolist(), strict=True)
        return {
            "examples": int(self.examples.sum()),
            "tokens": self.tokens,
            "problems": len(np.unique(np.concatenate(self.uids))),
            "answers_a_problem": WRITERS,
            "care": {n: dict(CARE[n]) for n in BUILT_IN} if self.care is None else self.care,
            "by_task": {f"{n}-{v}": {"examples": e, "right": round(r / max(e, 1), 4)} for (n, v), e, r in rows},
        }

    def assert_unseen(self, tasks: list[Task]) -> None:
        """No held-out problem was in the corpus: checked by uid, not by the rule that made the splits."""
        held = np.array([hash64(t.uid) for t in tasks], np.uint64)
        seen = np.isin(held, np.concatenate(self.uids))
        assert not seen.any(), f"{seen.sum()} held-out problems are in the corpus: {tasks[int(seen.argmax())].uid}"


def inputs_of(parts: list[tuple[Chunk, int, int]]) -> Inputs:
    flat, length, prompt = [], [], []
    for chunk, a, b in parts:
        start = int(chunk.length[:a].sum())
        flat.append(chunk.ids[start : start + int(chunk.length[a:b].sum())])
        length.append(chunk.length[a:b])
        prompt.append(chunk.prompt[a:b])
    ids, length_S, prompt_S = np.concatenate(flat), np.concatenate(length), np.concatenate(prompt)
    rows = np.arange(len(ids))
    pos = rows - np.repeat(np.cumsum(length_S) - length_S, length_S)
    return Inputs(
        ids_M=torch.from_numpy(ids.astype(np.int64)),
        pos_M=torch.from_numpy(pos),
        seq_M=torch.from_numpy(np.repeat(np.arange(len(length_S)), length_S)),
        parent_M=torch.from_numpy(np.where(pos > 0, rows - 1, -1)),
        at_N=torch.from_numpy(np.flatnonzero(pos >= np.repeat(prompt_S, length_S))),
    )


# ---- training ------------------------------------------------------------------------------------


def loss_of(policy: TinyTransformer, inputs: Inputs) -> torch.Tensor:
    """Mean cross-entropy of the answers; the blocks run in bfloat16 on a GPU, the logits in float32."""
    with torch.autocast("cuda", torch.bfloat16, enabled=inputs.ids_M.is_cuda):
        hidden, _ = policy(inputs)
    logits = policy.head(hidden[inputs.parent_M[inputs.at_N]])
    return F.cross_entropy(logits, inputs.ids_M[inputs.at_N])


def rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over a fortieth of the steps (at most 500), then a cosine to a hundredth of the peak."""
    warm = min(500, max(1, steps // 40))
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def train(policy: TinyTransformer, corpus: Corpus, options: argparse.Namespace) -> float:
    """Plain AdamW; prints the loss; returns the mean of the last fiftieth of the steps."""
    cuda = options.device.startswith("cuda")
    matrices = [w for w in policy.parameters() if w.dim() > 1]
    others = [w for w in policy.parameters() if w.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.98), fused=cuda)
    begun, losses = time.perf_counter(), []
    every = max(1, options.steps // 40)
    for step, inputs in enumerate(corpus.batches()):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, options.steps, options.lr)
        loss = loss_of(policy, inputs.to(options.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
        if (step + 1) % every == 0 or step == 0:
            mean = float(torch.stack(losses[-every:]).mean())
            left = (time.perf_counter() - begun) / (step + 1) * (options.steps - step - 1)
            print(f"step {step + 1:6d}  loss {mean:.4f}  {left:4.0f} s left", flush=True)
    return float(torch.stack(losses[-max(1, options.steps // 50) :]).mean())


# ---- measuring -----------------------------------------------------------------------------------


@torch.no_grad()
def answer(policy: TinyTransformer, tasks: list[Task], max_tokens: int, greedy: bool, seed: int) -> list[str | None]:
    """One answer to each prompt, at temperature 1 or greedy; None where <eos> did not come in time.

    Reads the whole sequence again for each token: slow and plain, so that no cache can be wrong here.
    """
    written = [with_bos(t) for t in tasks]
    prompt = [len(ids) for ids in written]
    generator = torch.Generator().manual_seed(seed)
    unfinished = np.arange(len(tasks))
    for _ in range(max_tokens):
        inputs = packed([written[i] for i in unfinished], policy.device)
        last = torch.tensor(np.cumsum([len(written[i]) for i in unfinished]) - 1, device=policy.device)
        logits = policy.head(policy(inputs)[0][last]).cpu()
        drawn = logits.argmax(-1) if greedy else logits.softmax(-1).multinomial(1, generator=generator)[:, 0]
        for i, token in zip(unfinished, drawn.tolist(), strict=True):
            written[i] = np.append(written[i], token)
        unfinished = unfinished[(drawn != TOKENIZER.eos).numpy()]
        if not len(unfinished):
            break
    late = set(unfinished.tolist())
    rows = enumerate(zip(written, prompt, strict=True))
    return [None if i in late else TOKENIZER.decode(ids[n:]) for i, (ids, n) in rows]


def measure(policy: TinyTransformer, prompts: int, corpus: Corpus) -> dict[str, dict[str, float]]:
    """Accuracy on held-out problems, by task and level."""
    table = {}
    for name, level in CELLS:
        tasks = family(name).task_set(level, held_out_size=prompts)
        held = list(tasks.held_out)
        corpus.assert_unseen(held)
        score = load_object(tasks.scorer)
        row: dict[str, float] = {"prompts": len(held)}
        for how, greedy in (("sampled", False), ("greedy", True)):
            texts = answer(policy, held, tasks.max_tokens, greedy, seed=hash64("measure", name, level) >> 1)
            row[how] = round(
                sum(x is not None and score(t, x) for t, x in zip(held, texts, strict=True)) / len(held), 4
            )
        row["mean_characters"] = round(sum(len(x or "") for x in texts) / len(texts), 2)
        table[f"{name}-{level}"] = row
        mark = "default level" if family(name).default == level else ""
        print(
            f"{name:>10} {level}  sampled {row['sampled']:.3f}  greedy {row['greedy']:.3f}  {mark}",
            flush=True,
        )
    return table


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    home = Path(__file__).resolve().parents[1] / "src" / "gruppo" / "policies" / "weights" / "tiny"
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--batch", type=int, default=2048, help="examples a step")
    parser.add_argument("--lr", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=home)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--care", type=float, help="how often all writers are right, instead of writers.CARE")
    parser.add_argument("--prompts", type=int, default=1000, help="held-out prompts for each task and level")
    cores = os.cpu_count() or 2
    parser.add_argument("--workers", type=int, default=max(1, cores - 1), help="processes for the corpus")
    return parser.parse_args(arguments)


def main() -> None:
    options = options_of()
    begun = time.perf_counter()
    corpus = Corpus(options.seed, options.batch, options.steps, options.care, options.workers)
    policy = TinyTransformer(TinyConfig(vocab=CharTokenizer.vocab), seed=options.seed).to(options.device)
    loss = train(policy, corpus, options)
    trained = time.perf_counter() - begun
    policy.save(options.out, dtype=torch.float16)
    policy = TinyTransformer.load(options.out, device=options.device)  # what ships is what is measured
    accuracy = measure(policy, options.prompts, corpus)
    recipe = {
        "made_by": "scripts/make_weights.py",
        "seed": options.seed,
        "steps": options.steps,
        "batch": options.batch,
        "lr": options.lr,
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device,
        "torch": torch.__version__,
        "seconds": round(trained, 1),
        "final_loss": round(loss, 5),
        "config": asdict(policy.config),
        "parameters": sum(w.numel() for w in policy.parameters()),
        "corpus": corpus.figures(),
        "held_out_accuracy": accuracy,
    }
    (options.out / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    for file in options.out.iterdir():
        file.chmod(0o644)  # safetensors writes for the owner only
    size = sum(file.stat().st_size for file in options.out.iterdir())
    total = time.perf_counter() - begun
    print(f"{options.out}: {size / 1e6:.1f} MB, trained in {trained:.0f} s, all in {total:.0f} s")
    assert size <= 5e6, f"{size} bytes: more than the 5 MB that the package ships."


if __name__ == "__main__":
    main()
