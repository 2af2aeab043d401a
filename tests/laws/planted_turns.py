"""Mistakes of methods that give credit to the turns of agents: one for each method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.methods.gigpo import AnchorGroups
from gruppo.pieces import advantage
from gruppo.stages import Context, Method, Occupant
from gruppo.stages.turns import anchor_K, turn_return


@dataclass(frozen=True)
class FailedAnchors(AnchorGroups):
    """GiGPO whose anchors also hold the turns of failed episodes, with whatever they were paid until then."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        anchors = batch.key("K", batch.group_K, anchor_K(batch))
        step_K = advantage.z_score(turn_return(batch, self.gamma), anchors, eps=self.eps)
        whole_E = advantage.z_score(batch.reward_E, batch.level("E", "G"), where=batch.judged_E, eps=self.eps)
        judged_N = batch.spread(batch.judged_E, "E", "N")
        adv_N = batch.spread(whole_E, "E", "N") + batch.spread(step_K, "K", "N")
        return {"adv_N": torch.where(judged_N, adv_N, torch.zeros_like(adv_N))}


def spoiled(name: str, **rooms: Occupant) -> Method:
    return method(name).but(name="spoiled", **rooms)


SPOILED: dict[str, tuple[str, Method]] = {
    "gigpo, failures among anchors": ("failures", spoiled("gigpo", credit=FailedAnchors())),
}
