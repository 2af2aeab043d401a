"""Worked numbers of the gates of the sampler's correction, and of the KL to the reference.

What is expected is computed by plain loops over lists, from the formula and its derivative by hand. The weights are in
tests/methods/test_grpo_tis.py.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hand import answer, batch_of, by_episode, column, objective, worked
from six_answers import LENGTHS, LOGP, REF, B, T, close, hand_batch
from small_batches import LN2, THREE, corrected

from gruppo.methods import method
from gruppo.pieces import divergence
from gruppo.pieces.ratio import effective_share
from gruppo.stages import Context, Stats
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.select import SamplerGate, TruncatedImportance
from gruppo.train.metrics import batch_metrics

# TIS and its gates


def test_a_gate_drops_what_leaves_the_band() -> None:
    """Band ½ to 2: the first three tokens leave it; so does their product 3; their geometric mean 1.44 does not."""
    assert corrected(SamplerGate(), THREE) == ([False, False, False, True], [1.0] * 4)
    assert corrected(SamplerGate(level="sequence"), THREE)[0] == [False, False, False, True]
    assert corrected(SamplerGate(level="geometric"), THREE)[0] == [True] * 4
    narrow = SamplerGate(gate_low=0.999, gate_high=1.001, level="geometric")
    assert corrected(narrow, [-1.0, -1.0, -1.0 + 0.006, -1.0005])[0] == [False, False, False, True]
    assert corrected(SamplerGate(counted=True), THREE) == ([True] * 4, [0.0, 0.0, 0.0, 1.0])


def test_a_gate_and_the_denominators() -> None:
    """Dropped: the one answer that is left is the whole mean. Counted: it is one of two."""
    batch = batch_of([answer(0, "g", 3, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=THREE, logp_ref_N=THREE)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    for counted, share in ((False, 1.0), (True, 0.5)):
        grpo = method("grpo").but(select=SamplerGate(level="sequence", counted=counted), penalties=())
        _, slope = objective(grpo, batch, logp_N=THREE)
        close(slope["logp_N"], [0.0, 0.0, 0.0, -a * share])


def test_effective_share() -> None:
    """Card B13: (Σ w)² / (n Σ w²): w = 2, 1, 1 → 16 / 18; all alike → 1; rows outside do not matter."""
    w = torch.tensor([2.0, 1.0, 1.0, 50.0], dtype=torch.float64)
    inside = torch.tensor([True, True, True, False])
    close(float(effective_share(w, inside)), 16 / 18)
    close(float(effective_share(torch.ones(4, dtype=torch.float64), inside)), 1.0)
    assert float(effective_share(w, torch.zeros(4, dtype=torch.bool))) == 0.0


def test_the_effective_share_is_logged_where_weights_differ() -> None:
    """w = 2, 1/3, 2, 1: (16/3)² / (4 · 82/9) = 256/328."""
    batch = batch_of([answer(0, "g", 3, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=THREE)
    assert "effective" not in batch_metrics(batch)
    _, weight_N = TruncatedImportance().tokens(Context(), batch, Stats())
    close(batch_metrics(batch.with_columns(weight_N=weight_N))["effective"], 256 / 328)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TruncatedImportance(level="sequnce"), "sequence"),
        (lambda: TruncatedImportance(cap=0.0), r"cap=0\.0 .*> 0"),
        (lambda: SamplerGate(gate_low=2.0, gate_high=1.0), "no ratio would pass"),
        (lambda: ReferenceKL(estimator="k4"), r"Use k1, k2, k3, .*full"),
    ],
)
def test_wrong_settings_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


# KL to the reference


def test_estimators() -> None:
    """Card B04: π = .5, π_ref = .25: k1 = ln 2 = .69315, k2 = ½ ln² 2 = .24023, k3 = ½ − 1 + ln 2 = .19315."""
    logp, ref = torch.tensor([math.log(0.5), math.log(0.25)], dtype=torch.float64)
    close(float(divergence.k1(logp, ref)), LN2)
    close(float(divergence.k2(logp, ref)), 0.5 * LN2**2)
    close(float(divergence.k3(logp, ref)), LN2 - 0.5)


def test_full_by_hand() -> None:
    """π = (½, ½, 0), π_ref = (¼, ½, ¼): KL = ½ ln 2 + ½ ln 1 + 0; the token of probability 0 adds nothing."""
    with np.errstate(divide="ignore"):
        log_p, log_q = (torch.from_numpy(np.log(x)) for x in ([0.5, 0.5, 0.0], [0.25, 0.5, 0.25]))
    close(float(divergence.full(log_p, log_q)), 0.5 * LN2)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "full"])
def test_reference_kl_by_estimator(estimator: str) -> None:
    """−β · mean over sequences of the mean over tokens of the estimate; `full` reads what the model says it is."""
    beta, kl = 0.5, [0.3 + 0.1 * i for i in range(T)]

    def one(lp: float, ref: float, whole: float) -> tuple[float, float]:
        d = lp - ref
        return {
            "k1": (d, 1.0),
            "k2": (d * d / 2, d),
            "k3": (math.exp(-d) + d - 1, 1 - math.exp(-d)),
            "full": (whole, 1.0),
        }[estimator]

    value, slope = 0.0, []
    for lps, refs, wholes in zip(*(by_episode(c, LENGTHS) for c in (LOGP, REF, kl)), strict=True):
        for args in zip(lps, refs, wholes, strict=True):
            k, dk = one(*args)
            value -= beta * k / len(lps) / B
            slope.append(-beta * dk / len(lps) / B)
    stats = {"kl_ref_N": torch.tensor(kl, dtype=torch.float64), "logp_N": torch.tensor(LOGP, dtype=torch.float64)}
    leaf = stats["kl_ref_N" if estimator == "full" else "logp_N"].requires_grad_()
    batch = hand_batch()
    [term] = worked(ReferenceKL(kl_coef=beta, estimator=estimator), batch, **stats).values()
    total = term.total(batch)
    close(float(total.detach()), value)
    close(column(torch.autograd.grad(total, leaf)[0]), slope)
