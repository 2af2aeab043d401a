"""Unlikeliness reward (He et al. 2025, arXiv:2506.02355, "Rewarding the unlikely").

    s_i = mean over the tokens of log π_old(o_it),      rank_i = how many answers of the group are less likely, 0 … G−1
    R̃_i = R_i (1 − β rank_i / G),      β = 0.25;      then GRPO on R̃, two passes over each batch, KL 0.1

Differs from GRPO: among right answers an unlikely one has a higher reward, so training does not only sharpen the
policy; a group that is all right still has a gradient, towards diversity. The task reward stays as it is; the
difference −β R rank/G is a component of its own, `unlikely`. Wrong answers are ranked too and lose nothing, even where
their reward is negative. Equally likely answers, such as duplicates, share their mean rank; answers that the policy did
not sample have none. log π_old is the sampler's, at its temperature. A single sample is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gruppo.data import Episode, Source
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.requires import Samples
from gruppo.stages.reward import codes, task_reward
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class Unlikeliness(Occupant):
    """Component `unlikely` = −rank_coef · task · rank / G: the penalty on a right answer for being likely."""

    rank_coef: float = setting(0.25, low=0, witness=0.5)
    of_groups = True
    requires = (Samples(2, "It ranks the answers to one prompt, and a single answer has no rank."),)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        sampled_E = np.array([e.tokens > 0 for e in episodes], np.bool_)
        mine = [e for e in episodes if e.tokens > 0]
        group = codes([e.group for e in mine])
        likely = np.array([likelihood(e) for e in mine]).round(6)  # identical answers differ by less in a sampler
        right = np.array([max(task_reward(e), 0.0) for e in mine])
        out_E = np.zeros(len(episodes))
        out_E[sampled_E] = -self.rank_coef * right * ranks(group, likely) / np.bincount(group)[group]
        return {"unlikely": out_E}


def likelihood(e: Episode) -> float:
    """Mean log-probability of the tokens that the policy sampled."""
    logp = np.concatenate([s.logp[s.source == Source.POLICY] for s in e.sequences])
    return float(logp.mean(dtype=np.float64))


def ranks(group_E: NDArray[np.int64], value_E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank of each row in its group by value, from 0; ties share their mean rank."""
    order = np.lexsort((value_E, group_E))
    size = np.bincount(group_E)
    rank_E = np.empty(len(order))
    rank_E[order] = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
    equal_E = codes(list(zip(group_E.tolist(), value_E.tolist(), strict=True)))
    return (np.bincount(equal_E, rank_E) / np.bincount(equal_E))[equal_E]


UNLIKELINESS = GRPO.but(
    name="unlikeliness",
    paper="arXiv:2506.02355",
    checked=(
        "Compared with AndreHe02/rewarding-unlikely-release, verl/trainer/ppo/ray_lean_trainer.py. The paper's (G "
        "- rank)/G counts from the other end. The code ranks equally likely answers by their order, so that one of "
        "two equal answers is worth more by chance; here they share the mean rank. The paper also drops samples of "
        "small advantage; that is a filter of its own and is left out."
    ),
    confidence="code",
    reward=Unlikeliness(rank_coef=0.25),
    penalties=(ReferenceKL(kl_coef=0.1),),
    update=Passes(epochs=2, minibatches=1),
)
