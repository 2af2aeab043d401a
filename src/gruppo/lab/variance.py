"""How noisy a step's gradient is, measured in a run.

    Var ĝ = Σ_p |g_p − ḡ|² / (P (P − 1)),      g_p the gradient of one of P parts of whole groups, ḡ their mean
    noise = Var ĝ / |ḡ|²                       the share of noise, whatever the scale: E |ḡ|² = |E ĝ|² + Var ĝ

    gruppo train method=poise method.update=gruppo.lab.variance:MeasuredPasses method.update.parts=8

This is the trace of the covariance of ḡ, unbiased if groups are independent. It includes the variance from the choice
of prompts and that from their answers. The exact laboratory computes the second part by enumeration, in a small world;
this works on any task. It costs one more forward and backward pass of the batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, minibatches
from gruppo.stages import Context, setting
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class MeasuredPasses(Passes):
    """`Passes` that first logs `grad_variance` and `grad_noise`, from `parts` of the batch; it learns the same."""

    parts: int = setting(8, low=2)  # a single gradient has no variance

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        parts = minibatches(batch, self.parts, ctx.seed, ctx.step, "variance")
        grads = [learner.gradient("policy", part) for part in parts]
        if len(grads) > 1:
            mean, variance = torch.stack(grads).mean(0), variance_of_mean(torch.stack(grads))
            learner.tally.add("grad_variance", variance)
            if bool(mean.any()):
                learner.tally.add("grad_noise", variance / float(mean.square().sum(dtype=torch.float64)))
        super().__call__(ctx, learner, batch)


def variance_of_mean(grad_PX: Tensor) -> float:
    """Σ_p |g_p − ḡ|² / (P (P − 1))."""
    parts = len(grad_PX)
    return float((grad_PX - grad_PX.mean(0)).square().sum(dtype=torch.float64)) / (parts * (parts - 1))
