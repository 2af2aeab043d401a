"""SALT, step-level advantages from a graph of trajectories (Li et al. 2025, arXiv:2510.20022).

    A_i = (R_i − mean R) / (std R + ε)                         over the episodes of a task, as in GRPO
    M(i, t): the turns of the task with the same state, action and next state as turn t of episode i, itself included
    A_it = 1/|M(i, t)| Σ_{(j, u) in M(i, t)} A_j               for every token of turn t

Differs from GRPO: the episodes of a task make a graph, with states as nodes and turns as edges, and turns that are the
same become one edge with the mean of their advantages. So a step that good and bad episodes share is pulled towards 0,
and the steps at which they part keep the whole signal. Merging keeps the sum of all advantages, and nothing is
normalised again. `normalise="leave_one_out"` does the same with RLOO. A turn that is made twice in an episode counts
twice. With `history` > 0 the turns before must agree, too.

What is not known is equal to nothing: a turn without a state, without an action, or without a state after it (the last
one, if the episode has no final state) is not merged. If nothing is, as in tasks of one turn, this is GRPO. Actions are
compared as the environment read them, so without thoughts. Of several agents, each is compared with itself.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gruppo.data import Batch, Key
from gruppo.data.keyed import key_hash, name_hash
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.requires import RecurringStates
from gruppo.stages.turns import judged_K, seat_advantage


@dataclass(frozen=True)
class MergedSteps(Occupant):
    """A_it = mean of the episodes' advantages over all turns of the group with the same state, action and next state.

    normalise  the advantage of an episode: group, (R − mean) / (std + eps); leave_one_out, R − mean of the others
    history    so many turns before must have the same state and action
    """

    normalise: Literal["group", "leave_one_out"] = "group"
    history: int = setting(0, low=0, witness=1)
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")  # scale: normalised by the group
    requires = (COMPARES, RecurringStates())

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        whole_K, edges, judged = seat_advantage(batch, self.compared), self.edges(batch), judged_K(batch)
        merged_K = edges.spread(batch.gather(whole_K, "K", edges, "mean", where=judged))
        return {"adv_N": batch.spread(torch.where(judged, merged_K, torch.zeros_like(merged_K)), "K", "N")}

    def compared(self, x: Tensor, key: Key, where: Tensor) -> Tensor:
        if self.normalise == "leave_one_out":
            return advantage.leave_one_out(x, key, where=where)
        return advantage.z_score(x, key, where=where, eps=self.eps)

    def edges(self, batch: Batch) -> Key:
        """Turns that are the same step, by what they begin with, do and come to."""
        nothing, seats = name_hash(""), batch.seats
        own_K = key_hash("not known", batch.spread(batch.uid_E, "E", "K"), batch.turn_index_K)
        assert isinstance(own_K, Tensor)
        final_K = batch.spread(batch.final_state_E, "E", "K")
        final_K = torch.where(final_K == nothing, own_K, final_K)
        last_K = batch.lag(torch.ones_like(own_K), -1, "K", seats) == 0
        after_K = torch.where(last_K, final_K, batch.lag(batch.state_K, -1, "K", seats))
        action_K = torch.where(batch.action_key_K == nothing, own_K, batch.action_key_K)
        past = [batch.lag(x, h, "K", seats) for h in range(1, self.history + 1) for x in (batch.state_K, action_K)]
        return batch.key("K", batch.group_K, batch.agent_K, batch.state_K, action_K, after_K, *past)


SALT = GRPO.but(
    name="salt",
    paper="arXiv:2510.20022",
    checked=(
        "Written from the rule as a citing paper states it (appendix A.3 of GRAFT: advantages are averaged over "
        "identical transitions, steps seen once are unchanged); no code of the authors was found, and the paper "
        "itself was not read. That the steps before may have to agree, too (history), is recalled, and so is its "
        "size of 1 to 3; 0 is the rule of the citing paper. Groups of 8, β = 0.01 and a mean in which every turn is "
        "a sample are those of verl-agent's GRPO, on which the paper builds."
    ),
    confidence="notes",
    credit=MergedSteps(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="turn"),
    penalties=ReferenceKL(kl_coef=0.01, mean="turn"),
)
