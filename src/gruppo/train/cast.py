"""The models behind the roles. A role is built only when something trains it, needs it or samples from it."""

from collections.abc import Mapping
from typing import Any

import torch

from gruppo.policies import Critic, clone, load_policy
from gruppo.stages import Context, Ema, Every, Method, Role


def build_cast(method: Method, policy: Any, ctx: Context) -> dict[str, Any]:
    """{role: model}; `old` is the policy itself at the start of a step."""
    wanted = {n.role for _, _, n in method.needs(ctx)} | set(method.objectives) | {"policy"}
    sources = {r.refresh.source for r in method.cast.values() if isinstance(r.refresh, Every | Ema)}
    models: dict[str, Any] = {"policy": policy}
    for name, role in method.cast.items():
        if name != "policy" and name in wanted | sources:
            models[name] = _build(name, role, policy)
    return models


def _build(name: str, role: Role, policy: Any) -> Any:
    if role.start == "policy":
        trunk = policy
    else:
        trunk = load_policy(role.start, next(policy.parameters()).dtype, policy.device)
        if trunk.vocab != policy.vocab:
            raise ValueError(
                f"role {name!r} from {role.start!r} has a vocabulary of {trunk.vocab}, the policy "
                f"{policy.vocab}: their "
                "log-probabilities cannot be compared. Use a model with the policy's tokenizer."
            )
    return clone(Critic(trunk) if role.as_ == "head" else trunk, train=role.train)


def refresh(method: Method, models: Mapping[str, Any], step: int) -> None:
    """After the update of `step`: copy or average the roles that follow another."""
    for name, role in method.cast.items():
        rule = role.refresh
        if name not in models:
            continue
        if isinstance(rule, Every) and (step + 1) % rule.steps == 0:
            models[name].load_state_dict(models[rule.source].state_dict())
        if isinstance(rule, Ema):
            with torch.no_grad():
                for mine, theirs in zip(models[name].parameters(), models[rule.source].parameters(), strict=True):
                    mine.lerp_(theirs, rule.tau)
