"""DAPO (Yu et al. 2025, arXiv:2503.14476).

    J = 1/Σ|o_i| Σ_i Σ_t min(r_it A_i, clip(r_it, 1−0.2, 1+0.28) A_i),   over groups with 0 < #correct < G

Differs from GRPO: a higher upper clip, a mean over tokens and no KL; groups of equal task reward are dropped and other
prompts drawn for them; overlong responses are penalised; several updates per batch.

The filter looks at the task's reward, before shaping. After three rounds of redraws the step uses what it has. The
token budget of the shaping is the run's. There are four updates per batch: with a single one every ratio is 1 and
nothing is clipped. `clip_dual=10` adds verl's dual clip.
"""

from gruppo.methods.grpo import GRPO
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.reward import OverlongShaping
from gruppo.stages.select import RedrawEqualGroups
from gruppo.stages.update import Passes

DAPO = GRPO.but(
    name="dapo",
    paper="arXiv:2503.14476",
    checked=(
        "Compared with verl docs/algo/dapo.md and reward_manager/dapo.py: the filter looks at the task's reward, not "
        "at the shaped one. The shaping budget of the paper is 20480 tokens with a buffer of 4096; here the budget is "
        "the run's, with a buffer of one fifth. verl's dual clip (10) is not in the paper's equation and is off here. "
        "The paper makes 16 updates per batch of 512 prompts; the four here, of the run's prompts, are ours. verl's "
        "documentation stops after 10 generation batches with an error; the limit of three redraws is ours."
    ),
    confidence="code",
    reward=OverlongShaping(),
    select=RedrawEqualGroups(max_rounds=3),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, mean="token"),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
)
