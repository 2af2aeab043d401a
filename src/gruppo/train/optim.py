"""torch's optimisers without its compiler, and AdamW for weights with less precision than float32."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from gruppo.train.ranks import local

# These methods (and the step of torch's AdamW) import its compiler, torch._dynamo, 1 to 2 s of every start, only to ask
# it to leave them alone. Each remembers the answer in an attribute; where it is, nobody is asked. A torch that has no
# such attribute ignores it.
for _method in (Optimizer.add_param_group, Optimizer.zero_grad, Optimizer.state_dict, Optimizer.load_state_dict):
    _plain = inspect.unwrap(_method)
    setattr(_plain, "__dynamo_disable", _plain)


class AdamW(Optimizer):
    """torch's AdamW; of weights with less precision than float32 it updates float32 copies, and rounds.

    bfloat16 has 8 significant bits: an update of less than 1/512 of a weight would be lost, and most in RL are smaller.
    Of a sharded weight a rank updates its own part, as a plain tensor: through DTensor every call costs the host more.
    """

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float, fused: bool = True
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "fused": fused})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                _complete(self.state[p], p)
            states = [{k: local(x) for k, x in self.state[p].items()} for p in params]
            mine = [local(p) for p in params]
            weights = [state.get("master", p) for p, state in zip(mine, states, strict=True)]
            adamw(
                weights,
                [local(p.grad).to(w.dtype) for p, w in zip(params, weights, strict=True)],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=group["fused"],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=1e-8,
                maximize=False,
            )
            for p, w in zip(mine, weights, strict=True):
                if w is not p:
                    p.copy_(w)


def _complete(state: dict[str, Tensor], p: Tensor) -> None:
    """What a parameter lacks: everything before its first step; the copy, if a checkpoint had it in float32."""
    if p.element_size() < 4 and "master" not in state:
        state["master"] = p.detach().float().clone()
    if "step" not in state:
        weight = state.get("master", p.detach())
        state |= {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
        state["step"] = torch.zeros((), device=p.device)
