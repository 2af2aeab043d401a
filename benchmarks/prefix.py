"""A group's prompt computed once against copied into every sample: time of the training pass, forward and backward.

    python benchmarks/prefix.py [--threads 1] [--repeat 9] [--model tiny smollm2 qwen2] [--shape 44+16x8] [--cpu]

A shape is PROMPT+ANSWERxSAMPLES, or PROMPT+PIECE^FORKS: answers that fork in two again and again, each time for a piece
more, so that 44+16^4 is a tree of 16 leaves with answers of 64 tokens.

Random ids, log-probabilities and their gradient through the learner's own forward, micro-batches of 16,384 tokens. Both
sides are timed in turn, so that whatever else the machine does meets both alike. `ratio` is the median over the pairs,
with its range; `rows` is how many times fewer positions are computed. `--attention` times one layer of attention by
itself, in the three ways to attend over a tree.

tiny     the built-in policy
smollm2  random weights in the shape of SmolLM2-135M, on our own transformer (paths)
qwen2    random weights in the same shape as a Qwen2 of transformers (dense lines with a mask); needs the extra `hf`
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gruppo.data import Batch, micro_batches, pack, single_turn
from gruppo.data.prefix import WORTH
from gruppo.policies import TinyConfig, TinyTransformer, load_policy
from gruppo.policies.dense import dense_of
from gruppo.policies.layout import layout_of
from gruppo.stages import need
from gruppo.train.forward import serve

SHAPES = ("44+16x8", "200+32x8", "16+44x8", "8+200x8", "44+16x1", "44+16^4", "8+40^4")
SMOLLM2 = TinyConfig(vocab=49_152, dim=576, layers=30, heads=9, kv_heads=3, ffn=1536, context=2048)
NEVER = 2.0
clock = time.perf_counter


def batches(shape: str, tokens: int, vocab: int, even: bool = False) -> tuple[Batch, Batch]:
    """About `tokens` copied tokens in groups of a shape: (copied, shared).

    Prompts differ by up to a tenth in length unless `even`; answers differ from their first token on.
    """
    rng = np.random.default_rng(0)
    prompt, answer, size = sizes(shape)
    episodes = []
    for g in range(max(1, tokens // (size * (prompt + answer)))):
        more = 0 if even else int(rng.integers(-(prompt // 10), prompt // 10 + 1))
        ids = rng.integers(32, vocab, prompt + more)
        for action in _answers(rng, shape, vocab):
            logp = np.zeros(answer, np.float32)
            episodes.append(single_turn(len(episodes), "t", f"g{g}", ids, action, logp, 0))
    return pack(episodes, share=NEVER), pack(episodes, share=0.0 if even else WORTH)


def sizes(shape: str) -> tuple[int, int, int]:
    """Tokens of a prompt, of an answer, and answers a group."""
    prompt, rest = shape.split("+")
    if "^" in rest:
        piece, forks = map(int, rest.split("^"))
        return int(prompt), piece * forks, 2**forks
    answer, size = map(int, rest.split("x"))
    return int(prompt), answer, size


def _answers(rng: np.random.Generator, shape: str, vocab: int) -> np.ndarray:
    """The answers of a group, one a row. Those of a tree share the pieces above the fork at which they part."""
    _, answer, size = sizes(shape)
    if "^" not in shape:
        out = rng.integers(32, vocab, (size, answer))
        out[:, 0] = np.arange(size)
        return out
    forks = size.bit_length() - 1
    pieces: list[np.ndarray] = []
    for depth in range(1, forks + 1):
        nodes = rng.integers(32, vocab, (2**depth, answer // forks))
        nodes[:, 0] = np.arange(2**depth) % 2
        pieces.append(np.repeat(nodes, size // 2**depth, 0))
    return np.concatenate(pieces, 1)


def models(names: list[str]) -> dict[str, tuple[Callable[[], Any], int]]:
    """{name: (how to make it, copied tokens a pass)}."""
    known: dict[str, tuple[Callable[[], Any], int]] = {
        "tiny": (lambda: load_policy("tiny"), 8_000),
        "smollm2": (lambda: TinyTransformer(SMOLLM2), 1_000),
        "qwen2": (_qwen2, 1_000),
    }
    return {name: known[name] for name in names}


def _qwen2() -> Any:
    from transformers import AutoModelForCausalLM, Qwen2Config

    from gruppo.policies.hf import HFPolicy

    c = SMOLLM2
    config = Qwen2Config(
        vocab_size=c.vocab,
        hidden_size=c.dim,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        intermediate_size=c.ffn,
        tie_word_embeddings=True,
    )
    return HFPolicy(AutoModelForCausalLM.from_config(config), "qwen2")


def training_pass(policy: Any, batch: Batch) -> float:
    """Seconds of one optimiser step's forward and backward."""
    start = clock()
    for micro in micro_batches(batch, 16_384):
        serve(policy, micro, [need("logp", when="step")], grad=True)["logp_N"].sum().backward()
    seconds = clock() - start
    policy.zero_grad(set_to_none=True)
    return seconds


def compare(policy: Any, shape: str, tokens: int, repeat: int) -> dict[str, float | str]:
    copied, shared = batches(shape, tokens, min(policy.vocab, 32_000))
    for batch in (copied, shared):
        training_pass(policy, batch)
    pairs = [(training_pass(policy, copied), training_pass(policy, shared)) for _ in range(repeat)]
    ratio = [a / b for a, b in pairs]
    return {
        "shape": shape,
        "copied_s": statistics.median(a for a, _ in pairs),
        "shared_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(ratio),
        "least": min(ratio),
        "most": max(ratio),
        "rows": len(copied.inputs.ids_M) / len(shared.inputs.tree()[0].ids_M),
    }


# three ways to attend over a tree


def attention(shape: str, repeat: int, heads: int = 4, width: int = 32) -> dict[str, float | str]:
    """Milliseconds of forward and backward of one attention over 8 groups, medians."""
    prompt, answer, size = sizes(shape)
    copied, shared = batches(shape, 8 * size * (prompt + answer), 10**6, even=True)
    tree, row_M = shared.inputs.tree()
    assert row_M is not None
    x_M = torch.randn(len(tree.ids_M), 3, heads * width)
    x_copied = x_M[row_M]
    plain, paths = layout_of(copied.inputs, 10**6), layout_of(tree, 10**6)
    dense = dense_of(tree, 10**6, dim=10**6)  # whole trees
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "copied": lambda x: _over(plain, x, heads),
        "paths": lambda x: _over(paths, x, heads),
        "dense": lambda x: _over(dense, x, heads),
        "two products": lambda x: _two(x, heads, prompt, answer, size),
    }
    want, times = _over(plain, x_copied, heads), {name: list[float]() for name in ways}
    for _ in range(repeat + 1):
        for name, way in ways.items():
            leaf = (x_copied if name == "copied" else x_M).clone().requires_grad_()
            start = clock()
            out = way(leaf)
            out.sum().backward()
            times[name].append(clock() - start)
            torch.testing.assert_close(out if name == "copied" else out[row_M], want, rtol=0, atol=1e-4)
    return {"shape": shape, **{name: 1e3 * statistics.median(t[1:]) for name, t in times.items()}}


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _over(layout: Any, x: Tensor, heads: int) -> Tensor:
    q, k, v = x.unbind(1)
    lines = zip(layout.lines(q), layout.paths(k), layout.paths(v), layout.masks, strict=True)
    out = [
        F.scaled_dot_product_attention(*(_heads(t, heads) for t in line), attn_mask=mask, is_causal=mask is None)
        for *line, mask in lines
    ]
    return layout.positions([y.transpose(1, 2).flatten(2) for y in out])


def _two(x: Tensor, heads: int, prompt: int, answer: int, size: int) -> Tensor:
    """Keys of the prompt once a group, own keys a sample, one softmax over both. Prompts of one length only."""
    q, k, v = (_heads(t.unflatten(0, (-1, prompt + size * answer)), heads) for t in x.unbind(1))
    first = F.scaled_dot_product_attention(*(t[:, :, :prompt] for t in (q, k, v)), is_causal=True)
    (mine, prefix_k, prefix_v), own = (q[:, :, prompt:], k[:, :, :prompt], v[:, :, :prompt]), (size, answer)
    own_q, own_k, own_v = (t[:, :, prompt:].unflatten(2, own) for t in (q, k, v))
    later = torch.ones(answer, answer, dtype=torch.bool).triu(1)
    beside = (own_q @ own_k.transpose(-1, -2)).masked_fill(later, float("-inf"))
    before = (mine @ prefix_k.transpose(-1, -2)).unflatten(2, own)
    p = torch.softmax(torch.cat([before, beside], -1) * q.shape[-1] ** -0.5, -1)
    rest = (p[..., :prompt].flatten(2, 3) @ prefix_v) + (p[..., prompt:] @ own_v).flatten(2, 3)
    return torch.cat([first, rest], 2).transpose(1, 2).flatten(2).flatten(0, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--model", nargs="+", default=["tiny"], choices=["tiny", "smollm2", "qwen2"])
    parser.add_argument("--shape", nargs="+", default=list(SHAPES), help="PROMPT+ANSWERxSAMPLES or PROMPT+PIECE^FORKS")
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread, for a busy machine")
    parser.add_argument("--attention", action="store_true", help="time the three ways to attend, too")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    args = parser.parse_args()
    torch.set_num_threads(1 if args.cpu else args.threads)
    if args.cpu:
        global clock
        clock = time.process_time
    rows: list[dict[str, Any]] = []
    for name, (make, tokens) in models(args.model).items():
        policy = make()
        for shape in args.shape:
            rows.append({"model": name} | compare(policy, shape, tokens, args.repeat))
            if not args.json:
                print(
                    "{model:<8} {shape:<10} copied {copied_s:.3f} s, shared {shared_s:.3f} s, ratio {ratio:.2f} "
                    "({least:.2f} to {most:.2f}), rows {rows:.2f}".format(**rows[-1]),
                    flush=True,
                )
    ways = (
        [attention(shape, args.repeat) for shape in args.shape if not shape.endswith("x1") and "^" not in shape]
        if args.attention
        else []
    )
    if args.json:
        print(json.dumps({"threads": args.threads, "torch": torch.__version__, "passes": rows, "attention_ms": ways}))
        return
    for way in ways:
        print("  ".join(f"{k} {v:.1f} ms" if isinstance(v, float) else f"{v:<10}" for k, v in way.items()))


if __name__ == "__main__":
    main()
