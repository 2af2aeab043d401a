"""BAPO, balanced policy optimisation with adaptive clipping (Xi et al. 2025, arXiv:2510.18927).

    J = 1/Σ|o_i| Σ_i Σ_t min(r_it A_i, clip(r_it, c_low, c_high) A_i),   at least 3 A_i where A_i < 0
    ρ = Σ_{A>0} r A / Σ r |A| over tokens with a gradient
    from (0.6, 1.2): c_high += 0.05 up to 3, then c_low += 0.05 up to 0.9, until ρ ≥ ρ_0 = 0.5

Differs from GRPO: the clip bounds are searched at every optimiser step, so that negative advantages do not dominate on
stale data. The upper bound is raised first, which readmits tokens with A > 0 whose ratio has grown; then the lower
bound, which shuts out tokens with A < 0 whose ratio has shrunk; until tokens with A > 0 hold a share ρ_0 of the update.
No gradient flows through the search. Mean over tokens, dual clip, no KL.

If all tokens are clipped, the search continues until one has a gradient. If no bound reaches ρ_0, the last pair is
used. `contribution="value"` is the published count, which includes clipped tokens. `positive_share=0` switches the
search off.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import ratio
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.update import Passes

Contribution = Literal["live", "value"]
MOST_RUNGS = 1e5  # of the search: all are tried at once, in memory


@dataclass(frozen=True)
class BalancedClip(Occupant):
    """min(r A, clip(r, c_low, c_high) A), with c_low and c_high searched at every optimiser step.

    clip_low, clip_high             where the search starts: c_low = 1 − clip_low, c_high = 1 + clip_high
    clip_low_least, clip_high_most  where it ends
    clip_step                       the step of the search
    positive_share                  the share of the update that tokens with A > 0 shall have; 0: no search
    contribution                    live: r |A| of tokens with a gradient; value: |min(r A, clip(r) A)| of all tokens
    clip_dual                       lower bound clip_dual · A where A < 0; 0: none
    """

    version = 2  # 1 stopped its search at bounds that left no token with a gradient
    clip_low: float = setting(0.4, low=0, high=1, witness=0.8)
    clip_low_least: float = setting(0.1, witness=-0.5)
    clip_high: float = setting(0.2, low=0, witness=0.6)
    clip_high_most: float = setting(2.0, low=0, witness=0.3)
    clip_step: float = setting(0.05, above=0, witness=0.7)
    positive_share: float = setting(0.5, low=0, high=1, witness=[0.95, 0.0])
    contribution: Contribution = "live"
    clip_dual: float = setting(3.0, above=1, also=0, witness=1.2)
    mean: Any = setting("token", above=0)
    reads = ("adv_N",)

    def wrong(self) -> str:
        if not (self.clip_low_least <= self.clip_low and self.clip_high <= self.clip_high_most):
            return (
                f"clip_low={self.clip_low} to {self.clip_low_least}, clip_high={self.clip_high} to "
                f"{self.clip_high_most}: the search would move away from its end. Use clip_low_least <= clip_low and "
                "clip_high <= clip_high_most."
            )
        way = self.clip_low - self.clip_low_least + self.clip_high_most - self.clip_high
        return "" if way <= MOST_RUNGS * self.clip_step else (
            f"clip_step={self.clip_step}: the search would never end. Use a larger step; positive_share=0 is no search."
        )  # fmt: skip

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def bounds(self, r_N: Tensor, adv_N: Tensor, weight_N: Tensor) -> tuple[Tensor, Tensor]:
        """c_low and c_high: the first pair at which tokens with A > 0 have their share, else the last."""
        low_L = 1.0 - ladder(self.clip_low, self.clip_low_least, self.clip_step, r_N)
        high_H = 1.0 + ladder(self.clip_high, self.clip_high_most, self.clip_step, r_N)
        good_N, bad_N = weight_N * adv_N.clamp(min=0), weight_N * (-adv_N).clamp(min=0)
        if self.clip_dual and self.contribution == "live":
            bad_N = torch.where(r_N > self.clip_dual, torch.zeros_like(bad_N), bad_N)
        good_H = up_to(r_N, r_N * good_N, high_H)
        bad_L = (r_N * bad_N).sum() - up_to(r_N, r_N * bad_N, low_L, strictly=True)
        if self.contribution == "value":  # a clipped token counts with its bound
            good_H = good_H + high_H * (good_N.sum() - up_to(r_N, good_N, high_H))
            bad_L = bad_L + low_L * up_to(r_N, bad_N, low_L, strictly=True)
        way_good = torch.cat([good_H, good_H[-1:].expand(len(low_L) - 1)])
        way_bad = torch.cat([bad_L[:1].expand(len(high_H)), bad_L[1:]])
        total = way_good + way_bad
        reached = way_good >= self.positive_share * total
        if self.positive_share > 0:  # 0 of 0 is not a share, as long as a wider bound lets a good token in
            reached &= (total > 0) | (good_H[-1] == 0)
        reached[-1] = True
        at = reached.to(torch.int64).argmax()  # the first that is true
        last = len(high_H) - 1
        return low_L.index_select(0, (at - last).clamp(min=0)), high_H.index_select(0, at.clamp(max=last))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        shares = [
            Term(n, batch.learn_N, coef=0.0, additive=False) for n in ("clip_fraction", "bound_low", "bound_high")
        ]
        return [Term("policy", batch.learn_N, self.mean, additive=False), *shares]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        adv_N, learn_N, r_N = batch.adv_N, batch.learn_N, ratio(stats.logp_N, batch.logp_old_N)
        here_N = torch.where(learn_N, batch.weight_N, torch.zeros_like(batch.weight_N))
        low, high = self.bounds(stop(r_N), adv_N, here_N)
        value_N = torch.minimum(r_N * adv_N, torch.minimum(torch.maximum(r_N, low), high) * adv_N)
        if self.clip_dual:
            value_N = surrogate.dual_clipped(value_N, adv_N, self.clip_dual)
        clip_N = ((stop(r_N) > high) & (adv_N > 0)) | ((stop(r_N) < low) & (adv_N < 0))
        return {
            "policy": batch.weight_N * value_N,
            "clip_fraction": clip_N.to(r_N.dtype),
            "bound_low": low.expand(len(r_N)),
            "bound_high": high.expand(len(r_N)),
        }


def ladder(start: float, end: float, step: float, like: Tensor) -> Tensor:
    """start, start ± step, …, end. Multiples of the step, not a running sum, so the last rung is exactly the end."""
    before = math.ceil(abs(end - start) / step - 1e-9)
    rungs = torch.arange(before, dtype=like.dtype, device=like.device)
    return torch.cat([start + math.copysign(step, end - start) * rungs, rungs.new_full((1,), end)])


def up_to(x_N: Tensor, weight_N: Tensor, bound_B: Tensor, strictly: bool = False) -> Tensor:
    """Σ of the weights of x ≤ bound (x < bound if `strictly`), for each of the ascending bounds."""
    rung_N = torch.searchsorted(bound_B, x_N, right=strictly)
    total = torch.zeros(len(bound_B) + 1, dtype=x_N.dtype, device=x_N.device).index_add(0, rung_N, weight_N)
    return torch.cumsum(total, 0)[:-1]


BAPO = GRPO.but(
    name="bapo",
    paper="arXiv:2510.18927",
    checked=(
        "Compared with the authors' README (ρ_0 = 0.5 and both ranges, as used in the paper), with their code, "
        "WooooDyy/BAPO, recipe/bapo/policy_loss.py, and with notes on the published paper: its equation, ρ_0 = 0.4, "
        "the order, and steps of 0.05 above and 0.02 below (0.05 for both in the code, and here). Paper and code "
        "differ: the code raises the lower bound first, compares the ratio Σ_{A>0} / Σ_{A<0} with its target, so that "
        "0.5 is a share of 1/3, and repeats the search for every micro-batch. Here, as in the paper, the upper bound "
        "goes first and the share is of the whole; there is one search per optimiser step. In paper and code a token "
        "contributes the value of its clipped objective, |min(r A, clip(r) A)|: this published form is "
        "contribution=value. In it a higher lower bound makes the negative side larger, never smaller (r = 0.7 counts "
        "0.8, then 0.9), so that the search of the lower bound, once begun, runs to its end. The default, "
        "contribution=live, is ours: only tokens that still have a gradient contribute, each with r |A|, which is what "
        "the text says the bounds are for. The two differ at clipped tokens: live counts them as 0, value counts them "
        "at their bound. Bounds at which nothing contributes have not reached the share, which can happen with live "
        "only: with r = (1.5, 0.55) and A = (1, -1) both tokens are clipped at (0.6, 1.2), and the search goes on to "
        "an upper bound of about 1.5; version 1 stopped at once and had no gradient. The equation also weights tokens "
        "by π_old; over sampled tokens that weight is already in the sampling, and the code has none. The dual clip of "
        "3, two epochs and four minibatches are the code's."
    ),
    confidence="code",
    objective=BalancedClip(),
    version=2,  # 1 stopped its search where every token was clipped
    penalties=(),
    update=Passes(epochs=2, minibatches=4),
)
