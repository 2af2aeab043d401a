"""How noisy a step's gradient is, measured in a run.

    Var ĝ = Σ_p |g_p − ḡ|² / (P (P − 1)),      g_p the gradient of one of P parts of whole groups, ḡ their mean
    noise = Var ĝ / |ḡ|²                       the share of noise, whatever the scale: E |ḡ|² = |E ĝ|² + Var ĝ

    gruppo train method=poise method.update=gruppo.lab.variance:MeasuredPasses method.update.parts=8

This is the trace of the covariance of ḡ, estimated without bias if groups are independent: what comes from the prompts
that were drawn is in it, and what comes from their answers. The exact laboratory knows the second part by enumeration,
in a world of a few answers; this one takes any task. It costs one more forward and backward of the batch.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, minibatches
from gruppo.stages.context import Context
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class MeasuredPasses(Passes):
    """`Passes` that first log `grad_variance` and `grad_noise`, from `parts` of the batch; it learns the same."""

    parts: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts < 2:
            raise ValueError(f"parts={self.parts}: one gradient has no variance. Use 2 or more.")

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        tally = learner.tally
        learner.tally = deepcopy(tally)  # what measuring would report is no step of the run
        try:
            grads = [gradient(learner, part) for part in minibatches(batch, self.parts, ctx.seed, ctx.step, "variance")]
        finally:
            learner.tally = tally
        if len(grads) > 1:
            mean, variance = torch.stack(grads).mean(0), variance_of_mean(torch.stack(grads))
            tally.add("grad_variance", variance)
            if bool(mean.any()):
                tally.add("grad_noise", variance / float(mean.square().sum(dtype=torch.float64)))
        super().__call__(ctx, learner, batch)


def gradient(learner: Any, batch: Batch) -> Tensor:
    """The policy's, before it is clipped, as one vector."""
    learner.grad("policy", batch)
    params = [p for p in learner.models["policy"].parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params])
    learner.optimisers["policy"].zero_grad(set_to_none=True)
    return flat


def variance_of_mean(grad_PX: Tensor) -> float:
    """Σ_p |g_p − ḡ|² / (P (P − 1))."""
    parts = len(grad_PX)
    return float((grad_PX - grad_PX.mean(0)).square().sum(dtype=torch.float64)) / (parts * (parts - 1))
