"""SimpleTIR (Xue et al. 2025, arXiv:2509.02479).

    void(turn) = it holds neither an action (a complete block of code, a call) nor a final answer
    keep_i = Π_t (1 − void_it)
    J = 1/Σ keep_i |o_i| Σ_i keep_i Σ_t min(r_it A_i, clip(r_it, 1−0.2, 1+0.28) A_i),     A_i over all rollouts

Differs from GRPO: a rollout with a void turn is not learned from, and its tokens are in no denominator. Its reward
stays in the mean and the standard deviation of the group. Such turns are improbable text after a tool's answer, whose
gradients are huge. Also a higher upper clip, a dual clip of 3, a mean over tokens and no KL. A turn is void if it has
the flag `void`, which who plays the episode sets (`gruppo.envs.format`): a turn that was cut off before its action is
void, too. Answers without turns of an environment have no such flag, and nothing is masked. If all rollouts of a step
are void, nothing is learned from it. A group of one is refused.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.data.episode import FLAGS
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, Stats
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.requires import FactsOfTurns


@dataclass(frozen=True)
class MaskVoid(Occupant):
    """Episodes with a turn that has no action stay in the statistics but are neither learned from nor counted."""

    requires = (FactsOfTurns("which turns have no action"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        void_E = batch.gather((batch.flags_K & FLAGS["void"]) > 0, "K", "E", "any")
        return batch.spread(~void_E, "E", "N"), torch.ones_like(batch.weight_N)


SIMPLETIR = GRPO.but(
    name="simpletir",
    paper="arXiv:2509.02479",
    checked=(
        "Compared with ltzheng/SimpleTIR, recipe/simpletir/agent_utils.py and simpletir_ray_trainer.py, and train.sh: "
        "clips of 0.2 and 0.28, dual clip 3, no KL, denominators without masked rollouts. Its script also drops "
        "answers that ran out of tokens (remove_clip; here method.select+=mask_truncated) and draws three times as "
        "many prompts to keep those of accuracy 0.1 to 0.9 (here method.select+=redraw_equal_groups is the nearest); "
        "neither is in the paper's equations, and both are left out. There a rollout ends at its void turn; here the "
        "environment decides. Four minibatches of 128 prompts in the script, here one batch of the run's prompts."
    ),
    confidence="code",
    select=MaskVoid(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, clip_dual=3.0, mean="token"),
    penalties=(),
)
