"""NFT, negative-aware fine-tuning (Chen et al. 2025, arXiv:2505.18116).

    R_t = π(o_t) / π_old(o_t),   r_q = share of right answers of the prompt,   w = 1 − r_q
    J = mean over answers of w/1000 Σ_t [ log R_t if right,  log max_ε( (1 − r_q R_t) / (1 − r_q) ) if wrong ],   ε = 1

Differs from RFT: wrong answers are learned too, through the implicit negative policy: π_old without its right answers,
expressed in π, so that raising a wrong token's likelihood under it lowers π. Differs from GRPO: maximum likelihood
throughout, without advantage or clip. max_ε has the value of max(x, ε) and the gradient of x, so a wrong token with R >
1 keeps the gradient −r_q/(1 − r_q) R. On-policy this is Dr.GRPO with C = 1000; with `prompt_weight="normalised"`, w =
√((1 − r_q)/r_q), it is GRPO with the standard deviation over n. Groups that are all right or all wrong are not in the
mean. Rewards must be binary.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.credit import COMPARES
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.requires import BINARY_REWARD
from gruppo.stages.select import RedrawEqualGroups
from gruppo.stages.update import Passes

PromptWeight = Literal["centred", "normalised"]


@dataclass(frozen=True)
class RightRate(Occupant):
    """Credit: `right_N` is 1 on tokens of right answers, `rate_N` is the share of right answers to the prompt."""

    writes = ("right_N", "rate_N")
    requires = (COMPARES, BINARY_REWARD)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        right_E = (torch.where(batch.judged_E, batch.reward_E, 0.0) > 0).to(batch.reward_E.dtype)
        rate_G = batch.gather(right_E, "E", "G", "mean", where=batch.judged_E)
        return {"right_N": batch.spread(right_E, "E", "N"), "rate_N": batch.spread(rate_G, "G", "N")}


@dataclass(frozen=True)
class NegativeAware(Occupant):
    """log R for right answers, bad_coef · log-likelihood under the implicit negative policy for wrong ones.

    floor          ε, lower bound on the likelihood ratio of the negative policy
    prompt_weight  centred: 1 − r_q, as in Dr.GRPO; normalised: √((1 − r_q)/r_q), as in GRPO
    """

    bad_coef: float = setting(1.0, low=0, witness=0.0)
    floor: float = setting(1.0, above=0, witness=0.1)
    prompt_weight: PromptWeight = "centred"
    mean: Any = setting("episode_sum/1000", above=0)
    reads = ("right_N", "rate_N")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        known_N = batch.learn_N & batch.spread(batch.judged_E, "E", "N")  # an episode apart is neither right nor wrong
        return [Term("policy", known_N & (batch.rate_N > 0) & (batch.rate_N < 1), self.mean)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        rate_N = batch.rate_N.clamp(0.02, 0.98)
        log_N = torch.clamp(stats.logp_N - batch.logp_old_N, -20.0, 10.0)
        left_N = (1.0 - rate_N * torch.exp(log_N)) / (1.0 - rate_N)
        held_N = left_N + stop(left_N.clamp(min=self.floor) - left_N)  # value of the floor, gradient of left
        value_N = torch.where(batch.right_N > 0, log_N, self.bad_coef * torch.log(held_N))
        weight_N = 1.0 - rate_N if self.prompt_weight == "centred" else torch.sqrt((1.0 - rate_N) / rate_N)
        return {"policy": batch.weight_N * weight_N * value_N}


NFT = GRPO.but(
    name="nft",
    paper="arXiv:2505.18116",
    checked=(
        "Compared with NVlabs/NFT, dp_actor.py and train_7B.sh: token ratios, log R at most 10, r_q between 0.02 "
        "and 0.98, ε = 1, weight of wrong answers 1 (0.5 is advised for 32B), one epoch of sixteen minibatches "
        "(four here), no KL. Rewards are 0 and 1 here, -1 and 1 there. Groups that are all right or all wrong are "
        "out of the mean here, because the paper redraws them; `max_rounds` = 3 of the redrawing is ours."
    ),
    confidence="code",
    select=RedrawEqualGroups(max_rounds=3),
    credit=RightRate(),
    objective=NegativeAware(),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
)
