"""What credits that compare a group share, and the numbers of the papers that their records claim."""

import pytest
from hand import batch_of
from six_graded import adv, group

from gruppo.methods import method
from gruppo.methods.gpg import CentredPerUseful
from gruppo.methods.grpo_passk import BestOfK
from gruppo.methods.opo import LengthWeighted
from gruppo.methods.reinforce_pp import WhitenedReturn
from gruppo.methods.reinforce_pp_baseline import WhitenedCentred
from gruppo.stages.credit import GroupCentred
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.requires import Samples

GROUPED = [GroupCentred(), WhitenedCentred(), CentredPerUseful(), LengthWeighted(), BestOfK()]


@pytest.mark.parametrize("credit", GROUPED, ids=lambda c: type(c).__name__)
def test_equal_groups_and_groups_of_one(credit: object) -> None:
    """Equal rewards, here .7 whose mean is rounded, and a single answer: exactly 0, whatever the method."""
    assert adv(credit, batch_of(group((0.7,) * 3, (1, 2, 3)))) == [0.0] * 6
    assert adv(credit, batch_of(group((1.0,), 2))) == [0.0] * 2
    assert [r.least for r in credit.requires if isinstance(r, Samples)] == [2]  # type: ignore[attr-defined]


def test_fields_are_the_papers() -> None:
    """The numbers of the papers, or of verl, that the records claim."""
    pp, ppb, passk = (method(n) for n in ("reinforce_pp", "reinforce_pp_baseline", "grpo_passk"))
    assert pp.credit == WhitenedReturn(gamma=1.0, kl_coef=0.001) and pp.penalties == ()
    assert pp.objective == ppb.objective == (ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),)
    assert ppb.penalties == (ReferenceKL(kl_coef=0.001, mean="token", estimator="k2"),)
    assert method("dr_grpo").penalties == ()
    assert method("dr_grpo").objective == (ClippedSurrogate(0.2, 0.2, mean="episode_sum/max_tokens"),)
    assert method("gpg").objective == (PolicyGradient(mean="token"),)
    for name in ("opo", "gpg", "remax", "dr_grpo"):
        assert method(name).update.steps == 1, f"{name} is exactly on-policy"
    assert passk.objective == method("grpo").objective and passk.penalties == method("grpo").penalties
