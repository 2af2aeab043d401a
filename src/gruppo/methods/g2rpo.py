"""G²RPO, Gaussian GRPO (Hu et al. 2026, arXiv:2604.08539, "OpenVLThinkerV2").

    A_i = Φ⁻¹((k_i − ½) / G),      k_i the rank of R_i in its group, 1 … G;   ties: the mean of their quantiles
    J = 1/G Σ_i 1/|o_i| Σ_t min(r_it A_i, clip(r_it, 1−0.2, 1+0.2) A_i)

Differs from GRPO: advantages are the normal quantiles of reward ranks instead of z-scores; no KL. Only the order of the
rewards counts, so an outlier does no more than a slightly better response, and tasks of any reward scale have equal
influence: |A| ≤ Φ⁻¹(1 − ½/G). Groups of equal rewards have A = 0 and stay in the mean; `select=RedrawEqualGroups()`
drops them, as the paper does.

The paper also shapes lengths and bounds the entropy. Both are available, but not part of the record, with one setting
for all tasks: `method.reward+=gruppo.methods.g2rpo:TrapezoidLength` and
`method.penalties+=gruppo.methods.g2rpo:EntropyBand`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Key, centre, segment
from gruppo.data.pairs import ROUNDING
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Need, Occupant, Sched, Stats, Term, Values, need, setting
from gruppo.stages.credit import COMPARES, to_tokens


def rank_quantiles(x: Tensor, key: Key, *, where: Tensor) -> Tensor:
    """Φ⁻¹((k − ½)/n) of the rank k in each part. Ties share their mean; 0 outside `where` and where all are equal."""
    rows = torch.nonzero(where)[:, 0]
    level = torch.round(x[rows].double() / ROUNDING)  # rounding errors must not break a tie
    order = torch.argsort(level, stable=True)
    order = order[torch.argsort(key.index[rows[order]], stable=True)]
    rows, level, part = rows[order], level[order], key.index[rows[order]]
    start, n = segment.offsets(Key(part, key.size))
    rank = torch.arange(len(rows), device=x.device) - start[part]
    quantile = torch.special.ndtri((rank.double() + 0.5) / n[part].double())
    ties = segment.key_of(part, level)
    shared = ties.spread(segment.gather(quantile, ties, "mean"))
    # A part of equal values has the mean of symmetric quantiles, 0 up to rounding; centring makes it exactly 0.
    return torch.zeros_like(x).index_copy(0, rows, centre(shared, Key(part, key.size)).to(x.dtype))


@dataclass(frozen=True)
class RankQuantiles(Occupant):
    """A_i = Φ⁻¹((k_i − ½) / G), the standard normal quantile of the rank of R_i in its group; ties share their mean."""

    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return to_tokens(batch, rank_quantiles(batch.reward_E, batch.level("E", "G"), where=batch.judged_E))


@dataclass(frozen=True)
class TrapezoidLength(Occupant):
    """Component `length`: 1 from `full_from` to `full_to`, linear to 0 at `zero_below` and `zero_above`, 0 beyond.

    All four are shares of the run's max_tokens. The defaults are ours.
    """

    zero_below: float = setting(0.0, witness=-1.0)
    full_from: float = setting(0.125, witness=0.6)
    full_to: float = setting(0.5, witness=0.9)
    zero_above: float = setting(1.0, witness=2.0)

    def wrong(self) -> str:
        return "" if self.zero_below < self.full_from and self.full_to < self.zero_above else (
            f"zero_below={self.zero_below}, full_from={self.full_from}, full_to={self.full_to}, zero_above="
            f"{self.zero_above}: it does not rise and fall. Use zero_below < full_from, full_to < zero_above."
        )  # fmt: skip

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        share = np.array([e.tokens for e in episodes], np.float64) / ctx.sampling.max_tokens
        rising = (share - self.zero_below) / (self.full_from - self.zero_below)
        falling = (self.zero_above - share) / (self.zero_above - self.full_to)
        return {"length": np.clip(np.minimum(rising, falling), 0.0, 1.0)}


@dataclass(frozen=True)
class EntropyBand(Occupant):
    """−band_coef (max(entropy_low − H, 0) + max(H − entropy_high, 0)), with gradient.

    H is the mean entropy of the step's policy tokens, in nats. The defaults are ours.
    """

    band_coef: Sched = setting(0.01, low=0)
    entropy_low: float = 0.1
    entropy_high: float = setting(1.0, low=0)

    def wrong(self) -> str:
        return "" if self.entropy_low < self.entropy_high else (
            f"entropy_low={self.entropy_low}, entropy_high={self.entropy_high}: the band is empty, and the two "
            "penalties cancel. Use entropy_low < entropy_high."
        )  # fmt: skip

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("entropy", when="step"),)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        some_E = batch.gather(batch.policy_N, "N", "E", "any")
        return [Term("entropy_band", some_E, coef=ctx.at(self.band_coef), at="E", additive=False)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        mine_N = batch.policy_N
        total = torch.where(mine_N, stats.entropy_N, torch.zeros_like(stats.entropy_N)).sum()
        mean = total / mine_N.sum().clamp(min=1)
        outside = torch.relu(self.entropy_low - mean) + torch.relu(mean - self.entropy_high)
        return {"entropy_band": -outside.expand(batch.size("E"))}


G2RPO = GRPO.but(
    name="g2rpo",
    paper="arXiv:2604.08539",
    checked=(
        "The advantage was read on the front page of the paper, the rest second hand; no code was found. The ranks and "
        "the rule for ties are those that reproduce figure 2 of the paper. The paper discards groups of equal rewards; "
        "here they have A = 0 and count in the mean. The paper shapes lengths and bounds the entropy with thresholds "
        "per task that it does not give; TrapezoidLength and EntropyBand have one setting for all tasks, their "
        "defaults are ours, and the record leaves them out."
    ),
    confidence="notes",
    credit=RankQuantiles(),
    penalties=(),
)
