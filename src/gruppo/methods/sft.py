"""SFT: supervised fine-tuning (the first step of InstructGPT, Ouyang et al. 2022, arXiv:2203.02155).

    J = 1/Σ|y_i| Σ_i Σ_t log π(y_it | x_i, y_i<t)

Differs from REINFORCE: the answers are recorded in the tasks instead of sampled, and every token of a good answer has
an advantage of 1. Only the answer is learned, including its end-of-sequence token, not the prompt. The denominator
counts the tokens of the optimiser step, however it is split into micro-batches. Of several recorded answers those with
a reward of at least `threshold` are learned; a task without recorded answers supplies its `answer`. Usual learning
rates of large models are about 1e-5.
"""

from gruppo.methods.reinforce import REINFORCE
from gruppo.stages.recorded import Accepted, Alike, Likelihood, Recorded

SFT = REINFORCE.but(
    name="sft",
    paper="arXiv:2203.02155",
    checked=("Standard; the masked mean is that of verl's agg_loss with token-mean."),
    confidence="code",
    rollout=Recorded(),
    select=Accepted(threshold=1.0),
    credit=Alike(),
    objective=Likelihood(mean="token"),
    breaks={
        "equal_rewards": "Rewards only select: what select lets through is learned, also when all of it is equal.",
        "direction": "Bad answers are dropped by select; the objective knows no reward and pushes every answer up.",
    },
)
