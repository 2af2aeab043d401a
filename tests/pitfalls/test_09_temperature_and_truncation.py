"""Pitfall 9: "log-prob at T≠1; top-p/top-k/min-p support". Rule: "log-probs of the *sampling* distribution on both
sides, or store the truncation set".

If the bug came back, the trainer would score sampled tokens at T = 1 or over the whole vocabulary: its
log-probabilities would not be the sampler's, ratios would be biased from the first step, and step zero would refuse
to start.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import batch_of, drawn, running

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.stages import Sampling, need
from gruppo.stages.penalties import EntropyBonus
from gruppo.stages.play import Start
from gruppo.train.doctor import step_zero
from gruppo.train.forward import serve

SAMPLINGS = [
    Sampling(8, temperature=0.7),
    Sampling(8, temperature=1.6),
    Sampling(8, top_k=5),
    Sampling(8, top_p=0.6),
    Sampling(8, temperature=0.7, top_k=20, top_p=0.8),
]


def gap(run: Any, batch: Batch, **params: float) -> float:
    need_ = need("logp", "old", **params)
    now = serve(run.models["policy"], batch, [need_])[need_.column]
    return float((now - batch.logp_gen_N).abs().max())


def forgetful(batch: Batch, sampling: Sampling) -> Batch:
    """The bug: nobody stored how the tokens were drawn."""
    return replace(batch.with_columns(temperature_N=torch.ones_like(batch.temperature_N)), allowed=None, _cache={})


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_sampler_and_trainer_agree(policy: Path, sampling: Sampling) -> None:
    with running(policy, sampling=sampling) as run:
        batch = batch_of(run, drawn(run))
        assert gap(run, batch) < 1e-4
        assert gap(run, forgetful(batch, sampling)) > 0.05
        if sampling.temperature != 1.0:
            assert gap(run, batch, T=1.0) > 0.05
        micro = batch.micro(torch.arange(batch.size("S")).flip(0)[:5])  # the stored sets are cut with the rows
        assert gap(run, micro) < 1e-4


def test_the_sampler_does_not_report_the_plain_distribution(policy: Path) -> None:
    """Both sides could agree on T = 1 and be wrong together: the engine's own score at T = 1 is another number."""
    with running(policy, sampling=SAMPLINGS[0]) as run:
        e = max(drawn(run), key=lambda e: e.tokens)
        s = e.sequences[0]
        prefix, tail = s.ids[: s.prompt_len], s.ids[s.prompt_len :]
        at_07, at_1 = (run.engine.logprobs([prefix], [tail], temperature=t)[0] for t in (0.7, 1.0))
        assert abs(at_07 - s.logp[s.prompt_len :]).max() < 1e-4
        assert abs(at_1 - s.logp[s.prompt_len :]).max() > 0.05


def test_ratio_and_entropy_live_on_the_kept_set(policy: Path) -> None:
    with running(policy, method("grpo").but(penalties=EntropyBonus()), sampling=SAMPLINGS[3]) as run:
        batch = batch_of(run, drawn(run))
        now, entropy = (serve(run.models["policy"], batch, [need(r, "old")])[f"{r}_old_N"] for r in ("logp", "entropy"))
        assert batch.allowed is not None
        most = batch.allowed.length.double().log()
        assert bool((entropy <= most + 1e-5).all()) and bool(torch.isfinite(now).all())
        plain = forgetful(batch, SAMPLINGS[3])
        assert bool((serve(run.models["policy"], plain, [need("entropy", "old")])["entropy_old_N"] > most + 0.1).any())


def test_step_zero_would_refuse(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checks(run: Any) -> dict[str, bool]:
        return {c.name: c.ok for c in asyncio.run(step_zero(run))}

    with running(policy, sampling=SAMPLINGS[4]) as run:
        assert all(checks(run).values())
        made = Start.ended

        def careless(*arguments: Any) -> Any:
            e = made(*arguments)
            return replace(e, sequences=[replace(e.sequences[0], temperature=None, allowed=None)])

        monkeypatch.setattr(Start, "ended", careless)
        assert not checks(run)["sampler_gap"]


def test_greedy_answers_are_certain(policy: Path) -> None:
    """T = 0 is a point mass: log-probability 0 on both sides, and no division by 0."""
    with running(policy, sampling=Sampling(8, temperature=0.0)) as run:
        batch = batch_of(run, drawn(run))
        assert float(batch.logp_gen_N.abs().max()) == 0.0 and gap(run, batch) == 0.0
