"""Mistakes in gppo, bapo, clip_cov and kl_cov; see `planted.py`."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.methods.bapo import BalancedClip
from gruppo.methods.clip_cov import ClipCovariance
from gruppo.methods.gppo import GradientPreserving
from gruppo.methods.kl_cov import KlCovariance
from gruppo.pieces.covariance import token_covariance
from gruppo.pieces.ratio import ratio
from gruppo.stages import Context, Method, Stats, Term, Values


@dataclass(frozen=True)
class BoundDetachedByHand(GradientPreserving):
    """GPPO's r/sg(r) with .detach(): no law can hold it fixed."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return super().terms(ctx, batch)[:1]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        r_N = ratio(stats.logp_N, batch.logp_old_N)
        unit_N = r_N / r_N.detach()
        bounded_N = torch.minimum(torch.maximum(r_N, 0.8 * unit_N), 1.28 * unit_N)
        return {"policy": batch.weight_N * torch.minimum(r_N * batch.adv_N, bounded_N * batch.adv_N)}


@dataclass(frozen=True)
class SearchesItsMicroBatch(BalancedClip):
    """BAPO's bounds, found for the tokens at hand, as the published code does."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [replace(t, additive=True) for t in super().terms(ctx, batch)]


@dataclass(frozen=True)
class LeavesOutEveryThird(ClipCovariance):
    """Clip-Cov takes every third candidate as they stand in the batch, instead of drawing them."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return super().terms(ctx, batch)[:1]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        cov_N = token_covariance(batch.adv_N, stats.logp_N.detach(), batch.learn_N)
        candidate_N = batch.learn_N & (cov_N > self.cov_low)
        out_N = candidate_N & (torch.cumsum(candidate_N, 0) % 3 == 0)
        value_N = torch.where(out_N, 0.0, 1.0) * ratio(stats.logp_N, batch.logp_old_N) * batch.adv_N
        return {"policy": batch.weight_N * value_N}


@dataclass(frozen=True)
class ShareOfEveryRow(KlCovariance):
    """KL-Cov holds a share of all rows, given and failed ones included."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        share = self.chosen_share * batch.size("N") / max(int(batch.learn_N.sum()), 1)
        return KlCovariance(share, self.trust_coef, self.mean)(ctx, batch, stats)


def spoiled(name: str, objective: Any) -> Method:
    return method(name).but(name="spoiled", objective=objective, select=())


SPOILED: dict[str, tuple[str, Method]] = {
    "gppo, detached by hand": ("finite_differences", spoiled("gppo", BoundDetachedByHand())),
    "bapo searches its micro-batch": ("micro_batches", spoiled("bapo", SearchesItsMicroBatch())),
    "clip_cov leaves out every third": ("order", spoiled("clip_cov", LeavesOutEveryThird(cov_low=0.0))),
    "kl_cov holds a share of every row": ("failures", spoiled("kl_cov", ShareOfEveryRow(0.1))),
}
