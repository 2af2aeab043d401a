"""GPG (Chu et al. 2025, arXiv:2504.02546, "Group policy gradient").

    A_i = α (R_i − mean R),      α = B / M
    J = 1/Σ|o_i| Σ_i Σ_t A_i log π(o_it | q, o_i<t)

Differs from REINFORCE: the baseline is the mean over the prompt's samples, the advantage is rescaled by α, and the mean
is over tokens. No importance ratio, no clip, no reference, no critic.

B counts the responses of the batch, M those in groups whose rewards differ: groups that are all correct or all wrong
have no gradient and would only shrink that of the others. `method.select+=redraw_equal_groups` redraws such groups
instead. A group of one is refused.
"""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch, centre
from gruppo.methods.reinforce import REINFORCE
from gruppo.stages import Context, Occupant
from gruppo.stages.credit import COMPARES, to_tokens
from gruppo.stages.objective import PolicyGradient


@dataclass(frozen=True)
class CentredPerUseful(Occupant):
    """A_i = α (R_i − mean of the group), α = responses / responses in groups whose rewards differ."""

    writes = ("adv_N",)
    ignores = ("shift",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        varied_G = batch.gather(batch.reward_E, "E", groups, "std", where=judged) > 0
        useful = (batch.spread(varied_G, "G", "E") & judged).sum().clamp(min=1)
        alpha = judged.sum().to(batch.reward_E.dtype) / useful
        return to_tokens(batch, alpha * centre(batch.reward_E, groups, where=judged))


GPG = REINFORCE.but(
    name="gpg",
    paper="arXiv:2504.02546",
    checked=(
        "Compared with AMAP-ML/GPG, open-r1/src/open_r1/gpg_trainer.py (α from groups with unequal rewards, loss over "
        "all tokens, scale_rewards False: F_norm = 1), and with verl core_algos.py, compute_gpg_outcome_advantage, "
        "where M is count_nonzero(R): then correct responses of groups without a gradient count as useful and wrong "
        "ones of the other groups do not, and a shift of the rewards would change the step. The authors' form is used "
        "here. Their trainer also samples again until a share of the samples (0.4 to 0.5 in their scripts) is useful; "
        "verl's does not; method.select+=redraw_equal_groups does it here, for all groups. A group of one has A = α R "
        "in verl and is refused here."
    ),
    confidence="code",
    credit=CentredPerUseful(),
    objective=PolicyGradient(mean="token"),
)
