"""Credits that read hidden states go through the laboratory; and poise's baseline is unbiased, as it must be."""

from dataclasses import dataclass

import pytest
import torch
from test_exact import SMALL, away, figures
from torch import Tensor

from gruppo.data import Batch
from gruppo.lab.exact.figures import lab
from gruppo.methods import method
from gruppo.methods.poise import StateProbe
from gruppo.pieces import probe
from gruppo.stages import Context
from gruppo.stages.credit import to_tokens
from gruppo.stages.objective import PolicyGradient

POISE = method("poise").but(objective=PolicyGradient())


@dataclass(frozen=True)
class OwnStates(StateProbe):
    """The baseline from the answer's own states: what the paper warns of."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        if "probe" not in ctx.memory:
            return super().__call__(ctx, batch)
        guess_E = probe.predict(ctx.memory["probe"], self.features(batch)).clamp(0.0, 1.0)
        return to_tokens(batch, torch.where(batch.judged_E, batch.reward_E - guess_E, torch.zeros_like(guess_E)))


@pytest.mark.parametrize(("samples", "seed"), [(2, 0), (3, 1)])
def test_the_others_states_leave_the_gradient_alone(samples: int, seed: int) -> None:
    """With a probe that eight steps were fitted to, the expected gradient is the true one, whatever it says."""
    result = lab([POISE], SMALL, samples=samples, steps=0, seed=seed)
    assert away(result) < 1e-9 and figures(result).bias < 1e-9 and result.rows[0].exact


def test_its_own_states_do_not() -> None:
    """So the test above can fail."""
    result = lab([POISE.but(name="own", credit=OwnStates())], SMALL, samples=2, steps=0)
    assert figures(result).bias > 0.01


def test_the_probe_has_learned_something() -> None:
    """Less variance than the two answers' own rewards give: RLOO's baseline is one other reward."""
    both = lab([POISE, method("rloo").but(penalties=())], SMALL, samples=2, steps=0)
    assert figures(both, 0).variance < figures(both, 1).variance
