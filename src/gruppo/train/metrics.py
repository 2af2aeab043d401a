"""Every logged number, defined once: unit, healthy range, meaning. A test rejects strangers."""

from collections.abc import Mapping, Sequence

import numpy as np

from gruppo.data import Batch, Episode, Source, Status, Use

METRICS: dict[str, tuple[str, str, str]] = {
    "step": ("steps", "", "steps done"),
    "reward": ("", "rises", "mean total reward of the judged episodes of the step"),
    "accuracy": ("share", "rises", "mean of the task's own component over all judged episodes drawn, before selection"),
    "reward/*": ("", "", "mean of one reward component"),
    "held_out": ("share", "rises", "mean task score on the held-out prompts, sampled at eval.temperature"),
    "length": ("tokens", "steady", "mean sampled tokens of an episode, truncated ones included"),
    "entropy": (
        "nats",
        "falls slowly, not to 0",
        "minus mean log π_gen of sampled tokens: the sampler's entropy, estimated",
    ),
    "truncated": ("share", "near 0", "episodes that ran out of tokens"),
    "failed": ("share", "0", "episodes that were not judged: the scorer or environment raised, hung or was cancelled"),
    "timed_out": ("share", "0", "episodes whose scorer or environment hung and was killed; a part of `failed`"),
    "dead_groups": ("share", "below 0.9", "drawn groups whose task rewards are all equal: they say nothing"),
    "groups": ("groups", "", "groups that were learned from"),
    "drawn_groups": ("groups", "", "groups drawn, also those that selection removed"),
    "rounds": ("rounds", "", "draws of the step, the first included"),
    "tokens": ("tokens", "", "tokens sampled in the step"),
    "adv_std": ("", "", "standard deviation of the advantage over learned tokens"),
    "kept": ("share", "", "policy tokens that selection kept"),
    "grad_norm": ("", "steady", "gradient norm of the policy before clipping, mean over optimiser steps"),
    "grad_norm_*": ("", "steady", "the same for another trained role"),
    "bad_gradients": ("steps", "0", "optimiser steps dropped because the gradient was not finite"),
    "lr": ("", "", "learning rate of the policy"),
    "policy": ("", "", "objective of the policy, as optimised, before coefficients; mean over optimiser steps"),
    "clip_fraction": ("share", "below 0.3", "tokens whose gradient the clip removed"),
    "kl_ref": ("nats", "", "minus the KL to the reference by k3: the term as maximised"),
    "entropy_bonus": ("nats", "", "entropy of the policy, with gradient: the term as maximised"),
    "value": ("", "towards 0", "critic's objective: minus half the squared error"),
    "separate": ("", "rises", "DisCO: score of right answers above wrong ones"),
    "trust": ("", "near 0", "DisCO: penalty of the trust region"),
    "sampler_gap": (
        "nats",
        "below 1e-3",
        "mean |log π_old - log π_gen|: the sampler and the trainer compute the same thing",
    ),
    "sampler_gap_max": ("nats", "below 1e-2", "the largest such gap of the step"),
    "version": ("", "", "version of the weights after the step"),
    "seconds": ("s", "", "the step, evaluation not included"),
    "seconds/*": ("s", "", "part of the step: sampling, scoring, forward, backward, optimiser, and the rest"),
    "tokens_per_second": ("1/s", "", "sampled tokens of the step per second of the step"),
}


def known(name: str) -> bool:
    """Whether a metric is in the table; a method's own terms are logged under the names of their Terms."""
    return name in METRICS or any(k.endswith("*") and name.startswith(k[:-1]) for k in METRICS)


def episode_metrics(drawn: Sequence[Episode]) -> dict[str, float]:
    """Metrics of everything that was drawn, before selection."""
    drawn = [e for e in drawn if e.use in (Use.LEARN, Use.BASELINE) and e.source == Source.POLICY]
    judged = [e for e in drawn if e.status.judged]
    tokens = [e.tokens for e in drawn]
    out = {
        "failed": _mean([not e.status.judged and e.status != Status.OPEN for e in drawn]),
        "timed_out": _mean([e.status == Status.TIMEOUT for e in drawn]),
        "truncated": _mean([e.status == Status.TRUNCATED for e in drawn]),
        "length": _mean(tokens),
        "tokens": float(sum(tokens)),
        "reward": _mean([e.total for e in judged]),
        "accuracy": _mean([e.reward["task"] for e in judged if "task" in e.reward]),
        "entropy": -_mean(
            np.concatenate([s.logp[np.isfinite(s.logp)] for e in drawn for s in e.sequences] or [np.zeros(0)])
        ),
    }
    components = {c for e in judged for c in e.reward}
    if len(components) > 1:
        out |= {f"reward/{c}": _mean([e.reward[c] for e in judged if c in e.reward]) for c in sorted(components)}
    groups: dict[str, set[float]] = {}
    for e in judged:
        groups.setdefault(e.group, set()).add(e.reward.get("task", e.total))
    out["dead_groups"] = _mean([len(seen) == 1 for seen in groups.values()])
    out["drawn_groups"] = float(len({e.group for e in drawn}))
    return out


def batch_metrics(batch: Batch) -> dict[str, float]:
    learn, policy = batch.learn_N, batch.policy_N
    out = {"groups": float(batch.size("G")), "kept": float(learn.sum()) / max(float(policy.sum()), 1.0)}
    if "adv_N" in batch.columns and int(learn.sum()) > 1:
        out["adv_std"] = float(batch.adv_N[learn].std())
    return out


def time_metrics(parts: Mapping[str, float], total: float) -> dict[str, float]:
    """Parts of a step, and the rest: what the framework itself costs."""
    named = {f"seconds/{k}": v for k, v in parts.items()}
    return {**named, "seconds": total, "seconds/rest": total - sum(parts.values())}


def _mean(values: Sequence[float] | np.ndarray) -> float:
    """NaN is what was not judged: it is left out."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")
