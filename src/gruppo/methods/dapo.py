"""DAPO (Yu et al. 2025, arXiv:2503.14476).

    J = 1/Σ|o_i| Σ_i Σ_t min(r_it A_i, clip(r_it, 1−0.2, 1+0.28) A_i),   over groups with 0 < #correct < G

Differs from GRPO: higher upper clip, mean over tokens, no KL, groups without variance are redrawn, overlong episodes
are shaped, several updates a batch. Checked against verl docs/algo/dapo.md and reward_manager/dapo.py: the filter
looks at the task's reward, not at the shaped one. The budget of the shaping is the run's (the paper's: 20480 with a
buffer of 4096); verl's dual clip (10) is not in the paper's equation and is off; set clip_dual=10 for it. The paper
takes 16 updates a batch of 512 prompts; 4 here, of the run's prompts: with a single one the ratio is 1: no clip.
"""

from gruppo.methods.grpo import GRPO
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.reward import OverlongShaping
from gruppo.stages.select import RedrawEqualGroups
from gruppo.stages.update import Passes

DAPO = GRPO.but(
    name="dapo",
    paper="arXiv:2503.14476",
    reward=OverlongShaping(),
    select=RedrawEqualGroups(max_rounds=3),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, mean="token"),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
)
