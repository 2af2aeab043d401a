"""igrpo, aepo, scaf_grpo and seele, which draw more than a group: who is drawn, who learns, and the worked numbers."""

import pytest

from gruppo.methods.aepo import WithHeated
from gruppo.methods.igrpo import Refine
from gruppo.methods.seele import HintRounds

# seele


def test_wrong_settings_are_refused() -> None:
    for make, said in (
        (lambda: HintRounds(rounds=0), "rounds=0"),
        (lambda: HintRounds(target=1.0), "target=1.0"),
        (lambda: WithHeated(heat=1.0), "heat=1.0"),
        (lambda: Refine(template="{prompt}"), "no {draft}"),
    ):
        with pytest.raises(ValueError, match=said):
            make()
