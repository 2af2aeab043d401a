"""GDPO, group reward-decoupled normalisation (Liu et al. 2026, arXiv:2601.05242).

    A_i^k = (r_i^k − mean_G r^k) / (std_G r^k + 1e-4)        for each component k of the reward, std with n − 1
    S_i = Σ_k w_k A_i^k,      A_i = (S_i − mean S) / (std S + 1e-4)      over all answers of the step

Differs from GRPO: reward components are normalised within the group one by one and then summed, so that different
combinations of rewards stay distinct and a component on a large scale does not drown the others: rescaling a component
changes nothing. With a single component it is GRPO, without the second normalisation.

`over="token"` whitens over tokens, so that long responses weigh more. Turn rewards belong to their component. A missing
component counts as 0, one that is constant within a group adds exactly 0, and one that another reward replaces is left
out. The paper also advises to pay an easy reward only where the hard one was earned; that is up to the scorer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from gruppo.data import Batch, segment
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES, judged_N, to_tokens
from gruppo.stages.names import nearest


@dataclass(frozen=True)
class DecoupledNormalised(Occupant):
    """A = (S − mean S) / (std S + eps) over the step, S = Σ_k w_k A^k, A^k group-normalised by component.

    weights  w_k by component; 1 where none is given
    over     the second normalisation is over responses (episode) or over tokens (token)
    """

    weights: Mapping[str, float] = setting({}, witness={"style": 0.25})
    over: Literal["episode", "token"] = "episode"
    eps: float = setting(1e-4, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES,)

    def wrong(self) -> str:
        strange = {k: w for k, w in self.weights.items() if type(w) not in (float, int) or not isfinite(w)}
        return (
            "" if not strange else f"weights={strange!r} has no number, so the component has no weight. Give numbers."
        )

    def unfit(self, batch: Batch) -> str:
        strange = [name for name in self.weights if name not in batch.components]
        return "" if not strange else (
            f"weights has {strange[0]!r}, which is no component of the reward{nearest(strange[0], batch.components)}, "
            f"so it would weigh nothing. Components: {', '.join(batch.components)}"
        )  # fmt: skip

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        paid_C = batch.paid_C
        if int(paid_C.sum()) < 2:
            return to_tokens(batch, advantage.z_score(batch.reward_E, groups, where=judged, eps=self.eps))
        adv_EC = advantage.z_score(batch.return_EC[:, paid_C], groups, where=judged, eps=self.eps)
        weights = [self.weights.get(c, 1.0) for c in batch.components]
        weight_C = torch.tensor(weights, dtype=adv_EC.dtype, device=batch.device)[paid_C]
        sum_E = adv_EC @ weight_C
        if self.over == "episode":
            return to_tokens(batch, advantage.z_score(sum_E, segment.one_part(judged), where=judged, eps=self.eps))
        sum_N = batch.spread(sum_E, "E", "N")
        return {"adv_N": advantage.z_score(sum_N, segment.one_part(sum_N), where=judged_N(batch), eps=self.eps)}


GDPO = GRPO.but(
    name="gdpo",
    paper="arXiv:2601.05242",
    checked=(
        "Compared with NVlabs/GDPO: trl-GDPO, grpo_trainer.py, and verl-GDPO, ray_trainer.py, which whitens over "
        "tokens, so that a long response weighs more in mean and deviation (over=token; verl adds its 1e-8 to the "
        "variance). TRL calls the method multi_objective_aggregation=normalize_then_sum. With a single component the "
        "second normalisation is left out, as in the reference code."
    ),
    confidence="code",
    credit=DecoupledNormalised(),
)
