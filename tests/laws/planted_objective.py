"""Mistakes in the methods whose difference is the objective or the sampler's correction; see `planted.py`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.methods.cispo import ClippedWeight
from gruppo.methods.gmpo import GeometricMean
from gruppo.methods.gspo import SequenceClipped
from gruppo.methods.sapo import SoftGate
from gruppo.methods.vapo import LengthAdaptiveGae, adaptive_lambda
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import geometric_by_token, log_ratio, ratio, sequence_ratio
from gruppo.pieces.stop import stop
from gruppo.stages import CHAINS, Context, Method, Need, Occupant, Stats, Term, Values
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.select import TruncatedImportance, sampler_ratio


@dataclass(frozen=True)
class RatioWithoutItsToken(SequenceClipped):
    """GSPO's token form without π/sg(π): the value is right, and nothing has a gradient."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return super().terms(ctx, batch)[:1]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        key = batch.level("N", "S")
        s_N = key.spread(stop(sequence_ratio(stats.logp_N, batch.logp_old_N, key, batch.learn_N)))
        value_N = surrogate.clipped(s_N, batch.adv_N, self.clip_low, self.clip_high) + 0.0 * stats.logp_N
        return {"policy": batch.weight_N * value_N}


@dataclass(frozen=True)
class WeightDetachedByHand(ClippedWeight):
    """CISPO's weight, detached but not by pieces.stop: nothing can tell it from a forgotten gradient."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return super().terms(ctx, batch)[:1]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        weight_N = ratio(stats.logp_N, batch.logp_old_N).detach().clamp(1 - self.clip_low, 1 + self.clip_high)
        return {"policy": batch.weight_N * weight_N * batch.adv_N * stats.logp_N}


@dataclass(frozen=True)
class ClipsOneSide(GeometricMean):
    """GMPO's clip without the sign of the advantage: from above only, so that log_clip_low does nothing."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return super().terms(ctx, batch)[:1]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        kept_N = log_ratio(stats.logp_N, batch.logp_old_N).clamp(max=self.log_clip_high)
        ratio_N = geometric_by_token(kept_N, batch.level("N", "S"), batch.learn_N)
        return {"policy": batch.weight_N * ratio_N * batch.adv_N}


@dataclass(frozen=True)
class GateWithoutBound(SoftGate):
    """SAPO's gate saturates, so a bound on the ratio looks needless; its slope is then 0 · inf."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        r_N = torch.exp(stats.logp_N - batch.logp_old_N)
        value_N = surrogate.soft_gated(r_N, batch.adv_N, self.tau_pos, self.tau_neg)
        return {"policy": batch.weight_N * value_N}


@dataclass(frozen=True)
class OneLambdaForAll(LengthAdaptiveGae):
    """VAPO's λ from the mean length of everything drawn, failures included."""

    def lam_N(self, batch: Batch) -> Tensor:
        length_E = batch.gather(batch.keep_N, "N", "E", "count").double()
        return adaptive_lambda(length_E.mean().expand(batch.size("N")), self.length_share)


@dataclass(frozen=True)
class NormalisedOverAll(TruncatedImportance):
    """TIS, divided by the mean weight of all rows: those of failed episodes are among them."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        weight_N = sampler_ratio(batch, self.level).clamp(max=self.cap)
        return torch.ones_like(batch.keep_N), weight_N / weight_N.mean()


@dataclass(frozen=True)
class EstimatorByHalf(ReferenceKL):
    """Takes an estimator, and computes k3 whatever it says."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return ReferenceKL().needs(ctx)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return ReferenceKL(self.kl_coef, self.mean)(ctx, batch, stats)


def spoiled(name: str, **rooms: Any) -> Method:
    return method(name).but(
        name="spoiled", **{k: (v,) if k in CHAINS and isinstance(v, Occupant) else v for k, v in rooms.items()}
    )


SPOILED: dict[str, tuple[str, Method]] = {
    "gspo without a gradient": ("direction", spoiled("gspo", objective=RatioWithoutItsToken())),
    "cispo, detached by hand": ("finite_differences", spoiled("cispo", objective=WeightDetachedByHand())),
    "gmpo clips one side": ("fields_matter", spoiled("gmpo", objective=ClipsOneSide())),
    "sapo without a bound": ("extremes", spoiled("sapo", objective=GateWithoutBound())),
    "vapo, one λ for all": ("failures", spoiled("vapo", credit=OneLambdaForAll(length_share=2.0))),
    "tis, normalised over failures": ("failures", spoiled("grpo_tis", select=NormalisedOverAll())),
    "an estimator that is ignored": ("fields_matter", spoiled("grpo", penalties=EstimatorByHalf(kl_coef=0.04))),
}
