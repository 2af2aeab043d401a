"""SFT: supervised fine-tuning (the first step of InstructGPT, Ouyang et al. 2022, arXiv:2203.02155).

    J = 1/Σ|y_i| Σ_i Σ_t log π(y_it | x_i, y_i<t)

Differs from REINFORCE: the answers are recorded in the tasks and not sampled, and every token of a good one counts
alike (an advantage of 1). Only the answer is learned, its eos included, not the prompt; the count of tokens is that of
the optimiser step, whatever its cut (pitfall 12). Of several recorded answers those with a reward of `threshold` or
more are learned; a task without recorded answers gives its `answer`. Standard; the same masked mean as verl's
agg_loss token-mean. Usual learning rates of large models are about 1e-5.
"""

from gruppo.methods.reinforce import REINFORCE
from gruppo.stages.recorded import Accepted, Alike, Likelihood, Recorded

SFT = REINFORCE.but(
    name="sft",
    paper="arXiv:2203.02155",
    rollout=Recorded(),
    select=Accepted(threshold=1.0),
    credit=Alike(),
    objective=Likelihood(mean="token"),
    breaks={
        "equal_rewards": "Rewards only select: what select lets through is learned, also when all of it is equal.",
        "direction": "Bad answers are dropped by select; the objective knows no reward and pushes every answer up.",
    },
)
