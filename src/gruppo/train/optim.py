"""AdamW for weights with less precision than float32."""

from typing import Any

import torch
from torch.optim.adamw import adamw


class MasterAdamW(torch.optim.Optimizer):
    """AdamW on float32 copies of the weights, which are rounded from them after each step.

    bfloat16 has 8 significant bits: an update of less than 1/512 of a weight would be lost, and most in RL are smaller.
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float, fused: bool) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "fused": fused})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    master = p.detach().float().clone()
                    self.state[p] = {"master": master, "exp_avg": torch.zeros_like(master)}
                    self.state[p] |= {"exp_avg_sq": torch.zeros_like(master), "step": torch.zeros((), device=p.device)}
            column = {k: [self.state[p][k] for p in params] for k in ("master", "exp_avg", "exp_avg_sq", "step")}
            adamw(
                column["master"],
                [p.grad.float() for p in params],
                column["exp_avg"],
                column["exp_avg_sq"],
                [],
                column["step"],
                fused=group["fused"],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=1e-8,
                maximize=False,
            )
            for p, master in zip(params, column["master"], strict=True):
                p.copy_(master)
