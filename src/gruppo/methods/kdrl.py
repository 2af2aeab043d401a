"""KDRL, distillation and reinforcement together (Xu et al. 2025, arXiv:2506.02208).

    J = J_GRPO − β · 1/Σ|o_i| Σ_i Σ_t ½ (log π(o_it) − log π_T(o_it))²,      β = 0.002

Differs from GRPO: the KL to a teacher π_T, on the policy's own answers, replaces the KL to the reference; the mean is
over tokens. In expectation over π the gradient of the last term is that of KL(π ‖ π_T); on-policy it amounts to token
advantages A_i + β (log π_T − log π). The teacher must be given and share the policy's tokenizer:
method.cast.teacher=FOLDER. β can be annealed: `method.penalties.teacher_kl.teacher_coef="linear(0.005, 0.001,
steps=280)"`. `mask=right_answers` removes the term from right answers, `mask=solved_groups` from groups with a right
answer; masked tokens stay in the denominator. Both log-probabilities are taken at the sampler's temperature.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Need, Occupant, Role, Sched, Stats, Term, Values, need, setting
from gruppo.stages.objective import NOW, ClippedSurrogate
from gruppo.stages.penalties import ESTIMATORS
from gruppo.stages.requires import BINARY_REWARD

Mask = Literal["nothing", "right_answers", "solved_groups"]
Estimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class TeacherKL(Occupant):
    """−teacher_coef · KL(π ‖ π_teacher) on the policy's tokens, with gradient; 0 on masked tokens.

    mask       nothing; right_answers: answers with a reward above 0; solved_groups: groups with such an answer
    estimator  k1, k2 or k3, as in reference_kl
    """

    teacher_coef: Sched = setting(0.002, low=0, witness=0.5)
    mask: Mask = "nothing"
    estimator: Estimator = "k2"
    mean: Any = setting("token", above=0, added=True)

    def unfit(self, batch: Batch) -> str:
        return "" if self.mask == "nothing" else BINARY_REWARD.at_first_batch(batch)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("logp", "teacher"))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("kl_teacher", batch.policy_N, self.mean, coef=ctx.at(self.teacher_coef))]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        kl_N = ESTIMATORS[self.estimator](stats.logp_N, batch.logp_teacher_N)
        right_E = batch.judged_E & (batch.reward_E > 0)
        if self.mask == "solved_groups":
            right_E = batch.spread(batch.gather(right_E, "E", "G", "any"), "G", "E")
        done_N = batch.spread(right_E, "E", "N") & (self.mask != "nothing")
        return {"kl_teacher": torch.where(done_N, torch.zeros_like(kl_N), -kl_N)}


KDRL = GRPO.but(
    name="kdrl",
    paper="arXiv:2506.02208",
    checked=(
        "Written from notes and summaries of the paper (equations and coefficients); no code was found. The paper "
        "finds k2 better than k1 and k3, anneals β as in the docstring, and masks the term by reward as the two "
        "values of `mask` do. Its sampling temperature is 1; here both log-probabilities are taken at the "
        "sampler's temperature, whatever it is."
    ),
    confidence="notes",
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
    penalties=(TeacherKL(teacher_coef=0.002),),
    cast={"teacher": Role(start="")},
)
