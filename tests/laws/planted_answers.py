"""Mistakes in nft, dmpo, reg_grpo, drpo_decoupled and poise; see `planted.py`."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, segment
from gruppo.methods import method
from gruppo.methods.dmpo import MatchDistribution, learned_E
from gruppo.methods.drpo_decoupled import Decoupled
from gruppo.methods.nft import NegativeAware
from gruppo.methods.poise import StateProbe
from gruppo.methods.reg_grpo import Regression
from gruppo.pieces.ratio import log_ratio
from gruppo.stages import Context, Memory, Method, Stats, StepRecord, Term, Values
from gruppo.stages.objective import ClippedSurrogate


@dataclass(frozen=True)
class ClampedRateOnly(NegativeAware):
    """NFT with the rate clamped to .98 and no more: groups that are all right are still learned from."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        [term] = super().terms(ctx, batch)
        return [replace(term, over=batch.learn_N)]


@dataclass(frozen=True)
class TargetOfEverything(MatchDistribution):
    """DMPO's target over every answer that was paid anything before it failed; q over those learned."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        every_E, live_E = ~torch.isnan(batch.reward_EC).all(1), learned_E(batch)
        paid_E = torch.nan_to_num(batch.reward_EC).sum(1)
        heat_E = torch.where(every_E, torch.exp(paid_E / self.target_temperature), 0.0)
        p_E = heat_E / batch.spread(batch.gather(heat_E, "E", "G", "sum"), "G", "E").clamp(min=1e-9)
        score_E = batch.gather(stats.logp_N, "N", "E", "mean", where=batch.learn_N)
        total_G = batch.gather(score_E, "E", "G", "logsumexp", where=live_E)
        return {"match": -((p_E - torch.exp(score_E - batch.spread(total_G, "G", "E"))) ** 2)}


@dataclass(frozen=True)
class DeviationDetached(Regression):
    """Reg-GRPO without the gradient of the deviation, and not by pieces.stop."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        gap_N = batch.weight_N * log_ratio(stats.logp_N, batch.logp_old_N)
        rho_E = batch.gather(gap_N, "N", "E", "sum", where=batch.learn_N)
        groups = batch.level("E", "G")
        centred_E, std_G, _ = segment.deviations(rho_E, groups, where=learned_E(batch), ddof=1)
        adv_E = batch.gather(batch.adv_N, "N", "E", "mean", where=batch.learn_N)
        error_E = adv_E - centred_E / groups.spread(std_G.detach() + self.eps)
        return {"regression": -(error_E**2)}


@dataclass(frozen=True)
class SharesWithoutBound(Decoupled):
    """DRPO's weights as they are written: exp of a large number, over a sum of such."""

    def shares_E(self, ctx: Context, batch: Batch, right_E: Tensor) -> Tensor:
        length_E = batch.gather(batch.learn_N, "N", "E", "sum")
        heat_E = torch.exp((1.0 - length_E / ctx.sampling.max_tokens) / self.length_temperature) * right_E
        return heat_E / batch.spread(batch.gather(heat_E, "E", "G", "sum"), "G", "E").clamp(min=1e-30)


@dataclass(frozen=True)
class FitsFailures(StateProbe):
    """POISE's probe, fitted to every answer drawn, a failed one as if it had got nothing."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        if record.batch is not None:
            reward_E, every_E = torch.nan_to_num(record.batch.reward_E), torch.zeros_like(record.batch.status_E)
            super().observe(
                replace(record, batch=record.batch.with_columns(reward_E=reward_E, status_E=every_E)), memory
            )


def spoiled(name: str, objective: Any, **rooms: Any) -> Method:
    return method(name).but(name="spoiled", objective=objective, **rooms)


SPOILED: dict[str, tuple[str, Method]] = {
    "nft learns from equal groups": ("equal_rewards", spoiled("nft", ClampedRateOnly())),
    "dmpo, target of failures": (
        "failures",
        spoiled("dmpo", (ClippedSurrogate(), TargetOfEverything(target_temperature=1.0))),
    ),
    "reg_grpo, detached by hand": ("finite_differences", spoiled("reg_grpo", DeviationDetached(), penalties=())),
    "poise fits failures": ("failures", method("poise").but(name="spoiled", credit=FitsFailures())),
    "drpo, weights without a bound": (
        "extremes",
        spoiled("drpo_decoupled", SharesWithoutBound(length_temperature=1e-4)),
    ),
}
