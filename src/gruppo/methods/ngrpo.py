"""NGRPO, negative-enhanced GRPO (Nan et al. 2025, arXiv:2509.18851).

    μ, σ = mean and deviation (n − 1) of {R_1 … R_G, r_max × m}
    A_i = (R_i − μ) / (σ + ε)   of the real answers,      m = 1, r_max = 1
    J = 1/Σ|o_i| Σ_i Σ_t min(r_it A_i, clip(r_it, 1−0.16, 1+0.24) A_i)

Differs from GRPO: a virtual answer with the highest reward joins each group. A group that is all wrong is pushed down
instead of having no gradient, and every other group is shifted down too. The clip is tighter below than above, the mean
is over tokens, and there is no KL. Groups that are all right are dropped, since their advantage would be 0. A group of
one is allowed: a single wrong answer has A = −0.707, a single right one A = 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Use, segment
from gruppo.methods.grpo import GRPO
from gruppo.stages import Ask, Context, Occupant, Prompt, setting
from gruppo.stages.credit import to_tokens
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.reward import task_reward
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class VirtualBest(Occupant):
    """A_i = (R_i − mean) / (std + eps) over the group and `copies` virtual answers with reward `top_reward`."""

    top_reward: float = setting(1.0, witness=2.0)
    copies: int = setting(1, low=0, witness=3)  # 0 is GRPO
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        below_E = batch.reward_E - self.top_reward  # so that a group that is all right has std = 0 exactly
        centred_E, std_G, n_G = segment.deviations(below_E, groups, where=judged)
        gap_G, n_G = batch.gather(below_E, "E", groups, "mean", where=judged), n_G.to(below_E.dtype)
        size_G = n_G + self.copies
        # Pooled Σ (x − mean)²: the sum of both sets', plus n m / (n + m) times the squared gap of their means.
        square_G = n_G * std_G**2 + n_G * self.copies / size_G.clamp(min=1) * gap_G**2
        spread_G = (square_G / (size_G - 1).clamp(min=1)).sqrt()
        raised_E = centred_E + groups.spread(self.copies / size_G.clamp(min=1) * gap_G)
        scale_E = groups.spread(torch.where(spread_G > 0, spread_G + self.eps, torch.inf))
        return to_tokens(batch, torch.where(judged, raised_E / scale_E, torch.zeros_like(raised_E)))


@dataclass(frozen=True)
class DropSolvedGroups(Occupant):
    """Drop groups whose task rewards are all at least `top_reward`; they are not redrawn."""

    top_reward: float = setting(1.0, witness=0.0)

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
        lowest: dict[str, float] = {}
        for e in episodes:
            if e.status.judged and e.use in (Use.LEARN, Use.BASELINE) and e.scores:
                lowest[e.group] = min(lowest.get(e.group, self.top_reward), task_reward(e))
        solved = {group for group, worst in lowest.items() if worst >= self.top_reward}
        return [e.group not in solved for e in episodes], []


NGRPO = GRPO.but(
    name="ngrpo",
    paper="arXiv:2509.18851",
    checked=(
        "Compared with nangongrui-ngr/NGRPO, verl/trainer/ppo/core_algos.py, compute_ngrpo_outcome_advantage and "
        "compute_policy_loss. There a group of one is exempt from the rule (A = R); here the rule has no "
        "exception. Four updates a batch, as in the script (1024 prompts, 256 at a time)."
    ),
    confidence="code",
    select=DropSolvedGroups(),
    credit=VirtualBest(top_reward=1.0, copies=1),
    objective=ClippedSurrogate(clip_low=0.16, clip_high=0.24, mean="token"),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
    breaks={
        "equal_rewards": "A virtual right answer is in every group, so answers that are wrong alike are pushed down.",
    },
)
