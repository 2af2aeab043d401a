"""How long the segment operations take, and that their time grows with the rows and no faster.

    python benchmarks/segments.py [--threads 2] [--repeat 20] [--json]

10^3 and 10^4 episodes of 100 tokens, 5 turns each, 8 a group. Best of `repeat` runs, in milliseconds.
`factor` is the time for 10 times the tokens: 10 is linear.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from gruppo.data import Batch, Episode, Turn, micro_batches, pack, uniform
from gruppo.data import Sequence as Context
from gruppo.train.allocator import keep_freed_memory

TOKENS, TURNS, GROUP = 100, 5, 8
SIZES = (1_000, 10_000)


def episodes(count: int, seed: int = 0) -> list[Episode]:
    """Episodes of one sequence: a prompt token, then five actions of 20 tokens; 50 states for each turn."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 32_000, (count, TOKENS + 1))
    logp = -rng.exponential(size=(count, TOKENS + 1)).astype(np.float32)
    state = rng.integers(0, 50, (count, TURNS))
    source = np.array([0] + [1] * TOKENS, np.int8)
    version = np.zeros(TOKENS + 1, np.int32)
    step = TOKENS // TURNS
    return [
        Episode(
            uid=i,
            task=f"t{i // GROUP}",
            group=f"g{i // GROUP}",
            sequences=[Context(ids[i], source, logp[i], version, 1)],
            turns=[Turn(1 + k * step, 1 + (k + 1) * step, state=f"{k} {state[i, k]}") for k in range(TURNS)],
            reward={"task": float(i % 2)},
        )
        for i in range(count)
    ]


def operations(made: Sequence[Episode]) -> dict[str, Callable[[], object]]:
    """What is timed. Indices from level to level are made once and kept, as in a step."""
    batch = pack(made)
    x_N, c_N = torch.randn(batch.size("N")), torch.rand(batch.size("N"))
    keep_N = torch.rand(batch.size("N")) < 0.9
    adv_E, x_K = torch.randn(batch.size("E")), torch.randn(batch.size("K"))
    state = batch.key("K", batch.group_K, batch.state_K)
    return {
        "gather N→E sum": lambda: batch.gather(x_N, "N", "E"),
        "gather N→E mean, masked": lambda: batch.gather(x_N, "N", "E", "mean", where=keep_N),
        "gather N→E std": lambda: batch.gather(x_N, "N", "E", "std", ddof=1),
        "gather N→E max": lambda: batch.gather(x_N, "N", "E", "max"),
        "gather N→E logsumexp": lambda: batch.gather(x_N, "N", "E", "logsumexp"),
        "gather N→G sum": lambda: batch.gather(x_N, "N", "G"),
        "gather K→state mean": lambda: batch.gather(x_K, "K", state, "mean"),
        "spread E→N": lambda: batch.spread(adv_E, "E", "N"),
        "scan N in E": lambda: batch.scan(x_N, 0.95, "N"),
        "scan N in E, array": lambda: batch.scan(x_N, c_N, "N"),
        "lag N in E": lambda: batch.lag(x_N, 1, "N"),
        "lag K in E": lambda: batch.lag(x_K, 1),
        "key K group, state": lambda: batch.key("K", batch.group_K, batch.state_K),
        "key N turn, token": lambda: batch.key("N", batch.turn_N, batch.token_N),
        "uniform N": lambda: uniform(0, 1, "room", batch.uid_N),
        "micro-batches of 16,384": lambda: cut(batch),
        "pack": lambda: pack(made),
    }


def cut(batch: Batch) -> int:
    return sum(part.size("N") for part in micro_batches(batch, 16_384))


def best(f: Callable[[], object], repeat: int) -> float:
    """Milliseconds of the fastest run; slow operations are run less often."""
    times: list[float] = []
    f()
    while len(times) < repeat and (len(times) < 3 or sum(times) < 2.0):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def measure(repeat: int) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for count in SIZES:
        for name, f in operations(episodes(count)).items():
            table.setdefault(name, {})[str(count * TOKENS)] = best(f, repeat)
    small, large = (str(count * TOKENS) for count in SIZES)
    for row in table.values():
        row["factor"] = row[large] / row[small]
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # as a run does
    table = measure(args.repeat)
    if args.json:
        print(json.dumps({"threads": args.threads, "torch": torch.__version__, "unit": "ms", "times": table}))
        return
    heads = [f"{count * TOKENS:,} tokens" for count in SIZES]
    print(f"{'ms, best of ' + str(args.repeat):<26}{heads[0]:>16}{heads[1]:>18}{'factor':>9}")
    for name, row in table.items():
        small, large, factor = row.values()
        print(f"{name:<26}{small:>16.3f}{large:>18.3f}{factor:>9.1f}")


if __name__ == "__main__":
    main()
