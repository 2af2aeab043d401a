"""Credit and selection on large batches: 10^6 tokens in 10^4 episodes, and the factor from 10^5 tokens.

    python benchmarks/credit.py [--threads 2] [--select] [--json] [METHOD …]

Only `credit` itself is timed, or with --select each occupant of `select` (of several methods with the same one, the
first): needs and notes are columns of random numbers, what a memory learns from one batch it knows, caches of the batch
are cold. Selection of episodes is timed on 10^4 episodes, without drawing again. The three sizes take
turns, so that a slow second of the machine hits them alike: a round is 100 calls at 10^3 tokens, 10 at 10^5 and 1 at
10^6. `factor` is t(10^6) / t(10^5); `growing` is the same without the fixed cost of the kernels, t(10^3), so 10 is
linear. Both are medians over 41 rounds; times are medians, `worst` is the slowest call.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from gruppo.data import Batch, Episode, Inputs, Source
from gruppo.methods import all_methods
from gruppo.stages import Context, Method, Stats, StepRecord, kind
from gruppo.stages.occupant import NoteColumn
from gruppo.stages.readouts import READOUTS
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
        "replayed_E": torch.zeros(e, dtype=torch.bool), "final_state_E": zeros_E, "domain_E": rows_E % 4,
        "index_E": rows_E // per_group, "answer_E": torch.randint(1, 5, (e,), generator=g),
        "uid_G": torch.arange(groups), "drawn_G": torch.full((groups,), per_group),
    }  # fmt: skip
    reward_E = torch.randint(0, 2, (e,), generator=g).float()
    reward_EC = torch.stack([torch.zeros(e), reward_E], 1)  # a second component, which pays nothing here
    columns |= {"reward_E": reward_E, "reward_EC": reward_EC, "return_EC": reward_EC}
    columns |= {"paid_EC": torch.ones(e, 2, dtype=torch.bool)}
    inputs = Inputs(rows_N, rows_N % per_episode, episode_N, rows_N - 1, rows_N)
    return Batch(columns, {"as_trained": inputs}, ("style", "task"), ("policy",), groups)


def known(batch: Batch, occupant: Any) -> Batch:
    """With what the occupant asks of models, of other rooms and of notes: random numbers."""
    g = torch.Generator().manual_seed(1)
    more = {
        n.column: READOUTS[n.readout].synthetic(g, batch.size(n.at), torch.float32) for n in occupant.needs(Context())
    }
    for note in (n for n in occupant.reads if isinstance(n, NoteColumn)):
        values = torch.tensor(note.among or (0.0, 0.25, 0.5, 0.75))
        more[note] = values[torch.randint(len(values), (batch.size(note[-1]),), generator=g)]
    more |= {c: torch.randn(batch.size("N"), generator=g) for c in occupant.reads if c == "adv_N"}
    return batch.with_columns(**{k: v for k, v in more.items() if k not in batch.columns})


def episodes(count: int, per_group: int = 8) -> list[Episode]:
    """Without tokens: selection of episodes looks at rewards, status and use."""

    def one(i: int) -> Episode:
        name, reward = f"{i // per_group}", {"task": float(i * 7919 % 3 == 0)}
        return Episode(uid=i, task=name, group=name, sequences=[], turns=[], reward=reward)

    return [one(i) for i in range(count)]


SIZES = {10**3: 100, 10**5: 10, 10**6: 1}  # tokens: calls a round


def seconds(call: Callable[[Any], Any], given: Any, calls: int) -> float:
    """Mean of `calls` calls, each with the caches of the batch cold."""
    cold = [replace(given, _cache={}) if isinstance(given, Batch) else given for _ in range(calls)]
    start = time.perf_counter()
    for x in cold:
        call(x)
    return (time.perf_counter() - start) / calls


def credit(method: Method, batches: dict[int, Batch]) -> tuple[Callable[[Any], Any], dict[int, Any]]:
    given, ctx = {n: known(b, method.credit) for n, b in batches.items()}, Context()
    with suppress(AttributeError, KeyError):  # a memory that wants more than this batch stays empty
        large = given[10**6]
        columns = large.with_columns(**method.credit(ctx, large))
        with ctx.memory.writing() as memory:
            method.credit.observe(StepRecord(0, [], columns, {}, ctx), memory)
    return lambda batch: method.credit(ctx, batch), given


def selections(methods: dict[str, Method], batches: dict[int, Batch]) -> dict[str, Any]:
    """{method occupant: (call, {size: what it is called with})}, each kind once."""
    kinds: dict[str, tuple[str, Any]] = {}
    for name, m in methods.items():
        for o in m.select:
            kinds.setdefault(kind(o), (name, o))
    drawn, out, ctx = {n: episodes(n // 100) for n in SIZES}, dict[str, Any](), Context(fresh=lambda n: [])
    for what, (name, o) in kinds.items():
        if hasattr(o, "tokens"):
            given = {n: known(b, o) for n, b in batches.items()}
            out[f"{name} {what}"] = (lambda b, o=o: o.tokens(ctx, b, Stats({})), given)
        if hasattr(o, "episodes"):
            out[f"{name} {what}"] = (lambda e, o=o: o.episodes(ctx, e), drawn)
    return out


def measure(what: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, (call, given) in what.items():
        for n in SIZES:
            seconds(call, given[n], 3)
        times = [[seconds(call, given[n], calls) for n, calls in SIZES.items()] for _ in range(rounds)]
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
    parser.add_argument("methods", nargs="*", help="all without a name")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--select", action="store_true", help="selection, not credit")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()  # as a run does
    methods = {n: m for n, m in all_methods().items() if not args.methods or n in args.methods}
    batches = {n: big_batch(n) for n in SIZES}
    what = selections(methods, batches) if args.select else {n: credit(m, batches) for n, m in methods.items()}
    rows = measure(what, args.rounds)
    if args.json:
        print(json.dumps(rows))
        return
    heads = ("10^3 (ms)", "10^5 (ms)", "10^6 (ms)", "worst", "factor", "growing")
    print(f"{'method':<38}" + "".join(f"{h:>11}" for h in heads))
    for r in rows:
        print(f"{r['method']:<38}" + "".join(f"{x:11.2f}" for x in list(r.values())[1:]))


if __name__ == "__main__":
    main()
