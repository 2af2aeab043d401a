"""REINFORCE (Williams 1992, "Simple statistical gradient-following algorithms for connectionist RL").

    J = 1/B Σ_i (R_i − b) Σ_t log π(o_it | q, o_i<t),      b ← 0.9 b + 0.1 mean(R) after each step

The base of every other record: no importance ratio, no clip, no critic, no groups; one optimiser step per batch. At the
first step b is the mean reward of the batch.
"""

from gruppo.stages import Method
from gruppo.stages.credit import RunningBaseline
from gruppo.stages.objective import PolicyGradient

REINFORCE = Method(
    name="reinforce",
    paper="Williams 1992",
    checked=(
        "Compared with verl core_algos.py, compute_policy_loss_reinforce, for the aggregation. The running "
        "baseline is one of several in use, and its decay of 0.9 is ours."
    ),
    confidence="code",
    credit=RunningBaseline(decay=0.9),
    objective=PolicyGradient(mean="episode_sum"),
)
