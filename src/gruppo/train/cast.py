"""The models of the roles. A role is built only if something trains it, reads it or copies from it."""

from collections.abc import Mapping
from typing import Any

import torch

from gruppo.policies import Critic, Unadapted, clone, has_adapter, load_policy, load_tokenizer
from gruppo.policies.memory import out_of_memory
from gruppo.stages import Context, Ema, Every, Method, Never, Role
from gruppo.stages.writers import writers_of
from gruppo.train.ranks import local


def build_cast(method: Method, policy: Any, ctx: Context, tokenizer: Any = None) -> dict[str, Any]:
    """{role: model}; `old` is the policy itself at the start of a step. `tokenizer` is the policy's."""
    wanted = {r for _, _, n in method.needs(ctx) for r in (n.role, n.against)} | set(method.objectives)
    wanted |= {r for r in method.cast if r.partition("@")[0] in wanted} | set(writers_of(method))
    sources = {r.refresh.source for r in method.cast.values() if isinstance(r.refresh, Every | Ema)}
    models: dict[str, Any] = {"policy": policy}
    for name, role in method.cast.items():
        if name != "policy" and name in wanted | sources:
            try:
                models[name] = _build(name, role, models, tokenizer, ctx.seed)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                raise ValueError(
                    f"out of memory for the weights of role {name!r}, beside those of {', '.join(models)}: each role "
                    "has a copy. Use model.lora.rank=16, with which roles that start as the policy share its weights, "
                    "or a smaller model."
                ) from None
    return models


def _build(name: str, role: Role, models: Mapping[str, Any], tokenizer: Any, seed: int) -> Any:
    policy = models["policy"]
    if role.start in models:  # a copy of the policy, or of a role before it
        trunk = models[role.start]
        if role.as_ == "head" and isinstance(trunk, Critic):
            if trunk.vocab != role.outputs:
                raise ValueError(
                    f"role {name!r} has outputs={role.outputs} and starts as a copy of {role.start!r}, which has "
                    f"{trunk.vocab}: it cannot be a copy. Give both the same number of outputs."
                )
            return clone(trunk, train=role.train)
        still = role.as_ == "full" and not role.train and isinstance(role.refresh, Never)
        if isinstance(trunk, Unadapted):
            if still:
                return trunk
            trunk = trunk.policy  # its adapter is 0 at the start, so a copy of the policy is the same
        elif still and has_adapter(trunk):
            return Unadapted(trunk)  # the adapter starts at 0: without it this is the policy as it started
    else:
        trunk = load_policy(role.start, next(policy.parameters()).dtype, policy.device)
        _refuse_other_words(name, role.start, tokenizer)
        if trunk.vocab != policy.vocab:
            raise ValueError(
                f"role {name!r} from {role.start!r} has a vocabulary of {trunk.vocab}, the policy {policy.vocab}: "
                "their log-probabilities cannot be compared. Use a model with the policy's tokenizer."
            )
    return clone(Critic(trunk, role.outputs, seed) if role.as_ == "head" else trunk, train=role.train)


def _refuse_other_words(name: str, start: str, tokenizer: Any) -> None:
    if tokenizer is not None and load_tokenizer(start).words() != tokenizer.words():
        raise ValueError(
            f"role {name!r} from {start!r} has another tokenizer than the policy: the same ids stand for other words, "
            "so their log-probabilities cannot be compared. Use a model with the policy's tokenizer."
        )


def refresh(method: Method, models: Mapping[str, Any], step: int) -> None:
    """After the update of `step`: copy or average the roles that follow another role."""
    for name, role in method.cast.items():
        rule = role.refresh
        if name not in models:
            continue
        if isinstance(rule, Every) and (step + 1) % rule.steps == 0:
            average(models[rule.source], models[name], 1.0)
        if isinstance(rule, Ema):
            average(models[rule.source], models[name], rule.tau)


def average(source: Any, target: Any, tau: float) -> None:
    """target ← (1 - tau) target + tau source."""
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            local(mine).lerp_(local(theirs), tau)
