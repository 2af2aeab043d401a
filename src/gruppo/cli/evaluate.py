"""`gruppo eval`: held-out scores of one or more policies, and their differences."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from gruppo.cli.commands import configured, print_json
from gruppo.engines.native import NativeEngine
from gruppo.lab.compare.statistics import Pair, pairwise
from gruppo.policies import load_policy, load_tokenizer
from gruppo.stages import Sampling
from gruppo.tasks.judge import judge_of
from gruppo.train.config import RunConfig
from gruppo.train.estimates import Interval
from gruppo.train.evaluate import Evaluation, evaluate, wanted_k
from gruppo.train.run import place_of, tasks_of


def eval(args: argparse.Namespace) -> int:
    config = configured(args)
    wanted_k(config.eval.samples, config.eval.k, config.eval.temperature)
    tasks = tasks_of(config)
    longest = config.sampling.max_tokens or tasks.max_tokens
    sampling = replace(config.sampling, max_tokens=longest, temperature=config.eval.temperature)
    found = evaluations(config, tasks, sampling, args.policies or [config.model.name])
    pairs = pairwise({name: e.score_P for name, e in found.items()})
    if args.json:
        shared = {"task": tasks.name, "temperature": sampling.temperature}
        tables = [{"policy": name, **shared, **e.table()} for name, e in found.items()]
        report = {"policies": tables, "differences": [asdict(p) | {"beyond_noise": p.beyond_noise} for p in pairs]}
        print_json(report if len(tables) > 1 else tables[0])
        return 0
    for name, e in found.items():
        print("\n".join(lines(f"{name} on {tasks.name}", sampling, e)))
    print("\n".join(differences(pairs)) if pairs else "intervals: 95 %, over prompts")
    return 0


def evaluations(config: RunConfig, tasks: Any, sampling: Sampling, policies: Sequence[str]) -> dict[str, Evaluation]:
    """{policy: its evaluation}, all on the same prompts with the same random keys."""
    twice = next((p for i, p in enumerate(policies) if p in policies[:i]), None)
    if twice is not None:
        raise ValueError(f"{twice} is there twice: it would be compared with itself. Leave one out.")
    device, dtype = place_of(config)
    # All are loaded before the first is evaluated, so that one that cannot be loaded costs no time.
    loaded = {n: (load_policy(n, dtype, device, config.seed), load_tokenizer(n)) for n in policies}
    judge = judge_of(tasks, config.task, _to_stderr).start()
    out: dict[str, Evaluation] = {}
    try:
        for name, (policy, tokenizer) in loaded.items():
            engine = NativeEngine({"policy": policy}, eos=tokenizer.stops, say=_to_stderr)
            e = config.eval
            out[name] = asyncio.run(evaluate(engine, tokenizer, judge, tasks, sampling, e.prompts, e.samples, e.k))
    finally:
        judge.close()
    return out


def _to_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # stdout may be JSON


def lines(title: str, sampling: Sampling, e: Evaluation) -> list[str]:
    """The report of one policy, most important first."""
    many = f" × {e.samples} answers" if e.samples > 1 else ""
    out = [f"{title}: accuracy {_shown(e.avg_at[e.samples])} on {e.prompts} held-out prompts{many}, "
           f"T={sampling.temperature:g}"]  # fmt: skip
    if e.samples > 1:
        out += _tries("  ", e.pass_at, e.maj_at)
    for level, of in e.by_level.items() if len(e.by_level) > 1 else ():
        out.append(f"  level {level}: {_shown(Interval(of['accuracy'], of['low'], of['high'], of['prompts']))}")
        if e.samples > 1:
            out += _tries("    ", of["pass_at"], of["maj_at"])
    out.append(f"  length {e.length:.1f} tokens, truncated {e.truncated:.1%}, entropy {e.entropy:.3f} nats per token, "
               f"failed {e.failed}")  # fmt: skip
    return out


def _shown(i: Interval) -> str:
    return f"{i} (one prompt: no interval)" if i.n < 2 else str(i)


def _tries(indent: str, pass_at: Mapping[int, Interval], maj_at: Mapping[int, Interval]) -> list[str]:
    votes = {k: f"maj@{k:<4} {i}" for k, i in maj_at.items()}
    return [f"{indent}pass@{k:<4} {i!s:<22}  {votes.get(k, '')}".rstrip() for k, i in pass_at.items()]


def differences(pairs: Sequence[Pair]) -> list[str]:
    out = ["differences, paired by prompt (t-interval at 95 %; p by Holm for all of them together):"]
    for p in pairs:
        d = p.difference
        verdict = "beyond noise" if p.beyond_noise else "not beyond noise"
        out.append(f"  {p.a} - {p.b}: {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}], p {p.p_holm:.2g}: {verdict}")
    return out
