"""COPO, consistency-aware policy optimisation (Han et al. 2025, arXiv:2508.04138).

    A_i = (R_i − mean_G R) / (std_G R + ε)              inside the group
    Ā_q = (R̄_q − mean R̄) / (std R̄ + ε)                  R̄_q the mean reward of group q, over the groups of the step
    H_q = −Σ_a p_a log p_a                              p_a the share of the group's answers that are a
    w_q = σ(γ (H_q − ρ)),      γ = 20,  ρ = 1.5
    J = 1/B Σ_i 1/|o_i| Σ_t [ w_q min(r_it A_i, clip(r_it) A_i) + (1 − w_q) min(r_it Ā_q, clip(r_it) Ā_q) ]

Differs from GRPO: groups that are all correct or all wrong still teach, by how their prompt compares with the other
prompts of the step. A group that agrees (low answer entropy) is moved as a whole; one that does not is compared inside.
Two surrogates are blended, not two advantages. Asymmetric clip, no KL.

With ρ = 1.5 the within-group term takes over at five different answers (log 4 = 1.39), so with four samples per prompt
all learning is between prompts. The scorer decides which answers are equal; responses without an answer count as one
answer. A prompt alone in its step has Ā = 0, a response alone in its group A = 0.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, segment
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.pieces.ratio import ratio
from gruppo.pieces.surrogate import clip_fraction, clipped
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class InsideAndBetween(Occupant):
    """Two group-normalised advantages, A within the group and Ā between groups, and the weight w of the first.

    w = σ(blend_slope (H − blend_entropy)), H the answer entropy of the group in nats.
    """

    blend_slope: float = setting(20.0, witness=1.0)
    blend_entropy: float = setting(1.5, witness=0.5)
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N", "adv_global_N", "local_N")
    ignores = ("shift", "scale")
    reads = ("answer_E",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        live_G = batch.gather(judged, "E", groups, "any")
        local_E = advantage.z_score(batch.reward_E, groups, where=judged, eps=self.eps)
        rate_G = mean_reward(batch)
        global_G = advantage.z_score(rate_G, segment.one_part(rate_G), where=live_G, eps=self.eps)
        weight_G = torch.sigmoid(self.blend_slope * (answer_entropy(batch) - self.blend_entropy))
        global_E = torch.where(judged, groups.spread(global_G), torch.zeros_like(local_E))
        named = {"adv_N": local_E, "adv_global_N": global_E, "local_N": groups.spread(weight_G)}
        return {name: batch.spread(x_E, "E", "N") for name, x_E in named.items()}


def mean_reward(batch: Batch) -> Tensor:
    """The mean reward of each group. Taken relative to its minimum, so that equal rewards have exactly equal means."""
    groups, judged = batch.level("E", "G"), batch.judged_E
    low_G = batch.gather(batch.reward_E, "E", groups, "min", where=judged)
    return low_G + batch.gather(batch.reward_E - groups.spread(low_G), "E", groups, "mean", where=judged)


def answer_entropy(batch: Batch) -> Tensor:
    """−Σ p log p over the distinct answers of each group, in nats."""
    groups, judged = batch.level("E", "G"), batch.judged_E
    same = batch.key("E", batch.group_E, batch.answer_E)
    alike_E, all_E = (
        key.spread(batch.gather(judged, "E", key, "sum")).to(batch.reward_E.dtype).clamp(min=1)
        for key in (same, groups)
    )
    return batch.gather(torch.log(all_E / alike_E), "E", groups, "mean", where=judged)


@dataclass(frozen=True)
class TwoSurrogates(Occupant):
    """w min(r A, clip(r) A) + (1 − w) min(r Ā, clip(r) Ā), with clip(r) = clip(r, 1 − clip_low, 1 + clip_high)."""

    clip_low: float = setting(0.2, low=0, high=1, witness=0.05)
    clip_high: float = setting(0.28, low=0, witness=0.05)
    mean: Any = setting("episode", above=0)
    reads = ("adv_N", "adv_global_N", "local_N")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        logged = ("local_share", "local_push", "between_push", "clip_fraction")
        shares = [Term(name, batch.learn_N, coef=0.0) for name in logged]
        return [Term("policy", batch.learn_N, self.mean), *shares]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        r_N, w_N = ratio(stats.logp_N, batch.logp_old_N), batch.local_N
        inside_N, between_N = (
            clipped(r_N, adv_N, self.clip_low, self.clip_high) for adv_N in (batch.adv_N, batch.adv_global_N)
        )
        clip_N, between_clip_N = (
            clip_fraction(r_N.detach(), adv_N, self.clip_low, self.clip_high)
            for adv_N in (batch.adv_N, batch.adv_global_N)
        )
        return {
            "policy": batch.weight_N * (w_N * inside_N + (1 - w_N) * between_N),
            "local_share": w_N,
            "local_push": w_N * batch.adv_N.abs(),
            "between_push": (1 - w_N) * batch.adv_global_N.abs(),
            "clip_fraction": w_N * clip_N + (1 - w_N) * between_clip_N,
        }


COPO = GRPO.but(
    name="copo",
    paper="arXiv:2508.04138",
    checked=(
        "No code was read: the repository named in the paper is not available. The equations are those of two reports "
        "on the paper that agree. Of the asymmetric clip they give 0.2 below; 0.28 above is DAPO's. They do not say "
        "how tokens are averaged; here it is a mean per response, since a mean over all tokens would push the long "
        "responses of a good prompt more than the short ones. Statistics are taken over the step; the paper's are "
        "taken over a minibatch of 16 prompts."
    ),
    confidence="notes",
    credit=InsideAndBetween(),
    objective=TwoSurrogates(clip_low=0.2, clip_high=0.28, mean="episode"),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
    together=("credit", "objective"),
)
