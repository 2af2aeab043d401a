"""UFO, unary feedback as observation (Liu et al. 2025, arXiv:2507.14295), optimised by PPO.

    s_t = (q, a_1, f, a_2, f, …, a_{t−1}, f)          f: one constant sentence, after every wrong answer
    R = Σ_t 2^−t · right_t − λ (1 − E/T),             t from 0, at most 5 tries; E different answers among T; λ = 0.5
    R is on the last turn; γ = λ_GAE = 1, so that all tokens of an episode share it, less what the critic expected
    J = mean_t min(r_t A_t, clip(r_t, 1−0.2, 1+0.28) A_t) + 0.001 H;      less 0.001 (log π_old − log π_ref) per token

Differs from PPO: a task that can be judged becomes an episode of several tries. A wrong answer is followed by a
sentence that says only that, and the same task again; the episode ends with the first right answer. To be right sooner
is worth more, and to repeat an answer costs. Only the quarter of the groups whose returns vary most is learned from.

The environment plays the tries and pays them: `gruppo.envs.wrappers.Retry`, which the rollout puts around the world for
asks with `how["tries"]`; an answer is compared in lower case and without spaces, and an empty one does not count. With
one try, and all groups, this is PPO. A task of one answer is not tried again, and the run says so. A group of one never
varies, and is refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import Any

from gruppo.data import Episode, Use
from gruppo.methods.ppo import PPO
from gruppo.stages import Ask, Context, Occupant, Prompt, setting
from gruppo.stages.credit import Gae
from gruppo.stages.curriculum import Uniform, told
from gruppo.stages.objective import ClippedSurrogate, ValueLoss
from gruppo.stages.penalties import EntropyBonus
from gruppo.stages.requires import Samples
from gruppo.stages.select import share_of
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class Retries(Occupant):
    """Every task once per epoch, as in `uniform`; after a failure it is tried again, up to `tries` times in all."""

    tries: int = setting(5, low=1)

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        return told(Uniform()(ctx, tasks), tries=self.tries)


@dataclass(frozen=True)
class MostVaried(Occupant):
    """Learn only from the share of the groups whose returns have the largest standard deviation; ties by lot.

    ceil(share · groups) groups pass, counted over those with an episode in statistics.
    """

    share: float = setting(0.25, low=0, high=1)
    requires = (Samples(2, "The return of a single sample does not vary, so the choice would be by lot."),)

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
        returns: dict[str, list[float]] = {}
        for e in episodes:
            if e.use in (Use.LEARN, Use.BASELINE) and not math.isnan(e.total):
                returns.setdefault(e.group, []).append(e.total)
        most = sorted(returns, key=lambda g: (-pstdev(returns[g]), float(ctx.uniform("varied", g))))
        chosen = set(most[: share_of(self.share, len(most))])
        return [e.group in chosen for e in episodes], []


UFO = PPO.but(
    name="ufo",
    paper="arXiv:2507.14295",
    checked=(
        "Compared with lichengliu03/unary-feedback: ragen/env/metamathqa/env.py, config/base.yaml and the README. The "
        "decay of 1/2 by try, the penalty of 0.5 on repeated answers, 5 tries, clips of 0.2 and 0.28, γ = λ = 1, "
        "entropy and KL of 0.001, and the quarter of the groups are theirs. The sentence is 'wrong try again' here, "
        "in the words of the built-in worlds. There an invalid answer leaves the counter of turns as it is and may go "
        "on for ever; here it uses up a turn of the environment. The minibatches are PPO's here, two; 400 tokens a "
        "turn there, here the run's."
    ),
    confidence="code",
    curriculum=Retries(tries=5),
    select=MostVaried(share=0.25),
    credit=Gae(gamma=1.0, lam=1.0, kl_coef=0.001),
    objective={
        "policy": ClippedSurrogate(clip_low=0.2, clip_high=0.28, mean="token"),
        "critic": ValueLoss(clip_value=0.5),
    },
    penalties=EntropyBonus(entropy_coef=0.001),
    update=Passes(epochs=1, minibatches=2),
    breaks={
        "equal_rewards": "The advantage is against the critic's guess, which may be wrong where all rewards are equal."
    },
)
