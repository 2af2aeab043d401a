"""Settings that mean nothing are refused, whoever has them."""

from typing import Any

import pytest

from gruppo.methods.aepo import WithHeated
from gruppo.methods.drpo_decoupled import Decoupled
from gruppo.methods.dump import DomainUcb
from gruppo.methods.igrpo import DraftThenRefine, Refine
from gruppo.methods.mmr1_vas import VarianceAware
from gruppo.methods.seele import HintRounds
from gruppo.methods.spo_single import Tracked
from gruppo.methods.ssb import Selective


def test_wrong_settings_are_refused() -> None:
    for make, said in (
        (lambda: HintRounds(rounds=0), "rounds=0"),
        (lambda: HintRounds(target=1.0), "target=1.0"),
        (lambda: WithHeated(heat=1.0), "heat=1.0"),
        (lambda: Refine(template="{prompt}"), "no {draft}"),
    ):
        with pytest.raises(ValueError, match=said):
            make()


@pytest.mark.parametrize(
    ("occupant", "fields"),
    [
        (VarianceAware, {"weighted_share": -0.1}),
        (VarianceAware, {"weighted_share": 1.1}),
        (VarianceAware, {"refresh_every": 0}),
        (DomainUcb, {"window": 0}),  # the last none of a list is all of it
        (DomainUcb, {"domain_temperature": 0.0}),
        (Selective, {"capacity": 0}),
        (Tracked, {"drift_half": 0.0}),  # a policy that stands still: 0/0
        (Tracked, {"keep_low": 0.97}),
        (Tracked, {"keep_high": 1.5}),
        (Decoupled, {"budget_tokens": -5}),
        (DraftThenRefine, {"drafts": -1}),
    ],
)
def test_settings_that_mean_nothing_are_refused(occupant: Any, fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(fields))}=.*[Uu]se "):
        occupant(**fields)
