"""REINFORCE (Williams 1992, "Simple statistical gradient-following algorithms for connectionist RL").

    J = 1/B Σ_i (R_i − b) Σ_t log π(o_it | q, o_i<t),      b ← 0.9 b + 0.1 mean(R) after each step

The start of every other record: no ratio, no clip, no critic, no groups; one optimiser step a batch.
At the first step b is the mean of the batch. Checked against verl
`core_algos.py`, compute_policy_loss_reinforce, for the aggregation; the running baseline is one of several in use.
"""

from gruppo.stages import Method
from gruppo.stages.credit import RunningBaseline
from gruppo.stages.objective import PolicyGradient

REINFORCE = Method(
    name="reinforce",
    paper="Williams 1992",
    credit=RunningBaseline(decay=0.9),
    objective=PolicyGradient(mean="episode_sum"),
)
