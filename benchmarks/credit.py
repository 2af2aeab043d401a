"""Credit on large batches: 10^6 tokens in 10^4 episodes, and the factor from 10^5 tokens.

    python benchmarks/credit.py [--json]

Only `credit` itself is timed: needs are columns of random numbers. Best of 25, caches of the batch cold. The last
column is the factor without the fixed cost of the kernels, taken at 10^3 tokens.
"""

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import torch

from gruppo.data import Batch, Inputs, Source
from gruppo.methods import all_methods
from gruppo.stages import Context, Method


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


def seconds(method: Method, tokens: int, repeats: int = 25) -> float:
    """The best of `repeats`, each with the caches of the batch cold."""
    ctx, batch, times = Context(), big_batch(tokens), []
    for _ in range(repeats):
        cold = replace(batch, _cache={})
        start = time.perf_counter()
        method.credit(ctx, cold)
        times.append(time.perf_counter() - start)
    return min(times)


def measure() -> list[dict[str, Any]]:
    rows = []
    for name, method in all_methods().items():
        fixed, small, large = (seconds(method, n) for n in (10**3, 10**5, 10**6))
        rows.append(
            {
                "method": name,
                "ms_1e3": fixed * 1e3,
                "ms_1e5": small * 1e3,
                "ms_1e6": large * 1e3,
                "factor": large / small,
                "factor_less_fixed": (large - fixed) / (small - fixed),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = measure()
    if as_json:
        print(json.dumps(rows))
        return
    print(f"threads {torch.get_num_threads()}")
    print(f"{'method':<10} {'10^3 (ms)':>10} {'10^5 (ms)':>10} {'10^6 (ms)':>10} {'factor':>7} {'less 10^3':>10}")
    for r in rows:
        times = f"{r['ms_1e3']:10.2f} {r['ms_1e5']:10.2f} {r['ms_1e6']:10.2f}"
        print(f"{r['method']:<10} {times} {r['factor']:7.1f} {r['factor_less_fixed']:10.1f}")


if __name__ == "__main__":
    main()
