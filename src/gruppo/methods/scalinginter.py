"""ScalingInter-RL (Xi et al. 2025, AgentGym-RL, arXiv:2509.08755).

    h = 10 turns before step 100, 20 before step 200, then 30
    an episode ends when it is over, or after h turns; then GRPO on its outcome

Differs from GRPO: only the number of turns that an episode may take, which rises in stages. A short horizon first
teaches what leads to a reward soon and costs little; long ones from the start collapse, and short ones alone stop
early. An unfinished episode earns what its world pays for that, usually 0. Any schedule will do, such as
`method.curriculum.turns="linear(4, 30, steps=200)"`; it is a function of the step, so a run that was stopped goes on at
its stage. A task of one turn is not affected: there it is GRPO.
"""

from dataclasses import dataclass
from typing import Any

from gruppo.methods.grpo import GRPO
from gruppo.stages import Ask, Context, Occupant, Sched, Schedule, setting
from gruppo.stages.curriculum import Uniform, told
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.update import Passes

STAGES = Schedule("steps({0: 10, 100: 20, 200: 30})")


@dataclass(frozen=True)
class Horizon(Occupant):
    """Every task once per epoch, as in `uniform`; an episode has at most `turns` turns, rounded down."""

    turns: Sched = setting(STAGES, low=1, witness=3.0)

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        return told(Uniform()(ctx, tasks), turns=int(ctx.at(self.turns)))


SCALINGINTER = GRPO.but(
    name="scalinginter",
    paper="arXiv:2509.08755",
    checked=(
        "Compared with WooooDyy/AgentGym-RL, verl/agent_trainer/ppo/ray_trainer.py and examples/train/ScalingInter-RL: "
        "a stage of 100 steps, horizons of 10, 20 and 30 turns for SciWorld and TextCraft (6, 13, 20 for BabyAI; 5, "
        "8, 10 for SearchQA), β = 0.001, two passes over the batch in four minibatches. The batch of 32 tasks with 8 "
        "rollouts is the run's here."
    ),
    confidence="code",
    curriculum=Horizon(),
    penalties=ReferenceKL(kl_coef=0.001),
    update=Passes(epochs=2, minibatches=4),
)
