"""Credit on large batches: 10^6 tokens in 10^4 episodes, and the factor from 10^5 tokens.

    python benchmarks/credit.py [--threads 2] [--json]

Only `credit` itself is timed: needs are columns of random numbers, caches of the batch are cold. The three sizes take
turns, so that a slow second of the machine hits them alike: a round is 100 calls at 10^3 tokens, 10 at 10^5 and 1 at
10^6. `factor` is t(10^6) / t(10^5); `growing` is the same without the fixed cost of the kernels, t(10^3), so 10 is
linear. Both are medians over 41 rounds; times are medians, `worst` is the slowest call.
"""

import argparse
import json
import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from gruppo.data import Batch, Inputs, Source
from gruppo.methods import all_methods
from gruppo.stages import Context, Method
from gruppo.train.allocator import keep_freed_memory


def big_batch(tokens: int, per_episode: int = 100, per_group: int = 8, seed: int = 0) -> Batch:
    """Single-turn episodes of equal length; built as columns, since Episode objects are not what is measured."""
    g = torch.Generator().manual_seed(seed)
    e = tokens // per_episode
    rows_E, rows_N = torch.arange(e), torch.arange(tokens)
    groups = (e + per_group - 1) // per_group
    episode_N = rows_N // per_episode
    rand = lambda: torch.rand(tokens, generator=g)  # noqa: E731
    zeros_E = torch.zeros(e, dtype=torch.int64)
    columns = {
        "turn_N": episode_N, "uid_N": rows_N, "token_N": torch.zeros(tokens, dtype=torch.int64),
        "logp_gen_N": -rand(), "source_N": torch.full((tokens,), int(Source.POLICY)),
        "version_N": torch.zeros_like(rows_N),
        "node_N": rows_N, "temperature_N": torch.ones(tokens), "keep_N": torch.ones(tokens, dtype=torch.bool),
        "weight_N": torch.ones(tokens), "logp_old_N": -rand(), "logp_ref_N": -rand(), "value_critic_N": rand(),
        "seq_K": rows_E, "turn_index_K": zeros_E, "state_K": zeros_E, "action_key_K": zeros_E, "agent_K": zeros_E,
        "flags_K": zeros_E, "reward_KC": torch.zeros(e, 1), "reward_K": torch.zeros(e),
        "episode_S": rows_E, "changed_S": torch.zeros(e, dtype=torch.bool),
        "group_E": rows_E // per_group, "uid_E": rows_E, "task_E": rows_E // per_group,
        "status_E": zeros_E, "use_E": zeros_E, "source_E": torch.full((e,), int(Source.POLICY)),
        "replayed_E": torch.zeros(e, dtype=torch.bool), "final_state_E": zeros_E,
        "uid_G": torch.arange(groups), "drawn_G": torch.full((groups,), per_group),
    }  # fmt: skip
    reward_E = torch.randint(0, 2, (e,), generator=g).float()
    columns |= {"reward_E": reward_E, "reward_EC": reward_E[:, None]}
    inputs = Inputs(rows_N, rows_N % per_episode, episode_N, rows_N - 1, rows_N)
    return Batch(columns, {"as_trained": inputs}, ("task",), ("policy",), groups)


SIZES = {10**3: 100, 10**5: 10, 10**6: 1}  # tokens: calls a round


def seconds(method: Method, batch: Batch, calls: int) -> float:
    """Mean of `calls` calls, each with the caches of the batch cold."""
    ctx = Context()
    cold = [replace(batch, _cache={}) for _ in range(calls)]
    start = time.perf_counter()
    for b in cold:
        method.credit(ctx, b)
    return (time.perf_counter() - start) / calls


def measure(rounds: int) -> list[dict[str, Any]]:
    batches, rows = {n: big_batch(n) for n in SIZES}, []
    for name, method in all_methods().items():
        for batch in batches.values():
            seconds(method, batch, 3)
        times = [[seconds(method, batches[n], calls) for n, calls in SIZES.items()] for _ in range(rounds)]
        fixed, small, large = (median(t) * 1e3 for t in zip(*times, strict=True))
        rows.append(
            {
                "method": name,
                "ms_1e3": fixed,
                "ms_1e5": small,
                "ms_1e6": large,
                "worst_ms": max(t[2] for t in times) * 1e3,
                "factor": median(c / b for _, b, c in times),
                "growing": median((c - a) / (b - a) for a, b, c in times),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # as a run does
    rows = measure(args.rounds)
    if args.json:
        print(json.dumps(rows))
        return
    heads = ("10^3 (ms)", "10^5 (ms)", "10^6 (ms)", "worst", "factor", "growing")
    print(f"{'method':<22}" + "".join(f"{h:>11}" for h in heads))
    for r in rows:
        print(f"{r['method']:<22}" + "".join(f"{x:11.2f}" for x in list(r.values())[1:]))


if __name__ == "__main__":
    main()
