"""What a learner's models are between two steps: copied, kept, restored, and handed to whoever samples from them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gruppo.policies import learned_state, load_learned
from gruppo.stages import Method
from gruppo.train.cast import refresh
from gruppo.train.checkpoint import optimiser_tensors, restore_optimiser
from gruppo.train.ranks import Ranks, whole

Tensors = dict[str, Tensor]


class Keeping:
    """The part of the learner that computes no gradient. On several ranks all of them take part in each of these."""

    method: Method
    models: Mapping[str, Any]
    ranks: Ranks
    optimisers: dict[str, torch.optim.Optimizer]
    moved: set[str]
    bad_steps: dict[str, int]
    micro_tokens: int

    def snapshot(self, role: str) -> dict[str, Any]:
        """A copy of the weights and the optimiser state of a role, for `restore`."""
        optim = [self.optimisers[role].state[p] for p in self._params(role)] if role in self.optimisers else None
        return {"weights": _copy(learned_state(self.models[role])), "optim": _copy(optim)}

    def restore(self, role: str, snapshot: Mapping[str, Any]) -> None:
        load_learned(self.models[role], snapshot["weights"])
        self.moved.add(role)
        if snapshot["optim"] is not None:
            for p, state in zip(self._params(role), snapshot["optim"], strict=True):
                self.optimisers[role].state[p] = _copy(state)

    def moments(self, role: str) -> list[dict[str, Tensor]]:
        """The optimiser's state of each parameter."""
        return [{k: whole(x) for k, x in self.optimisers[role].state[p].items()} for p in self._params(role)]

    # what a run does between steps

    @property
    def held(self) -> Sequence[Any]:
        """The models as this process holds them: whole, or its own parts of them."""
        return list(self.models.values())

    def refresh(self, step: int) -> None:
        """After the update of `step`: the roles that follow another role."""
        refresh(self.method, self.models, step)

    def publish(self, models: Mapping[str, Any]) -> None:
        """The weights that are sampled from and saved become those that are trained: here they are the same ones."""

    def state(self, roles: Sequence[str]) -> tuple[dict[str, Tensors], dict[str, Tensors]]:
        """The weights of these roles, and the state of all optimisers, for a checkpoint."""
        weights = {r: {k: self.ranks.gathered(p) for k, p in learned_state(self.models[r]).items()} for r in roles}
        return weights, {r: optimiser_tensors(o, self.ranks) for r, o in self.optimisers.items()}

    def load(self, weights: Mapping[str, Tensors], optimisers: Mapping[str, Tensors], **facts: Any) -> None:
        """What `state` returned; `facts` are `bad_steps`, and `micro_tokens` if memory had run out."""
        for role, found in weights.items():
            load_learned(self.models[role], found, self.ranks.put)
        for role, found in optimisers.items():
            restore_optimiser(self.optimisers[role], found, self.ranks)
        self.bad_steps = facts["bad_steps"]
        self.micro_tokens = min(self.micro_tokens, facts["micro_tokens"])

    def _params(self, role: str) -> list[Any]:
        return self.optimisers[role].param_groups[0]["params"]


def _copy(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, Mapping):
        return {k: _copy(v) for k, v in x.items()}
    return [_copy(v) for v in x] if isinstance(x, list) else x
