"""Remarks next to a method's figures: what the laboratory does not do as a run would."""

from collections.abc import Iterable

from gruppo.lab.exact.trial import Trial
from gruppo.stages import Method, kind
from gruppo.stages.curriculum import Uniform


def remarks(trial: Trial) -> list[str]:
    return [*_cast(trial), *_data(trial), *_update(trial.method), *_sampled(trial)]


def _cast(trial: Trial) -> Iterable[str]:
    exact = trial.bench.critic == "exact"
    for name, role in trial.method.cast.items():
        if role.as_ == "head":
            yield f"the {name} " + ("knows the exact value of every state" if exact else "says 0 everywhere")
        elif name not in ("policy", "ref"):
            yield f"the {name} is the policy as it starts"


def _data(trial: Trial) -> Iterable[str]:
    m = trial.method
    if "expert" in m.rollout.writes:
        yield "its recorded answers are those of the draw"
    if m.reward:
        yield f"{', '.join(kind(o) for o in m.reward)} is in its reward, not in the true gradient"
    if trial.ctx.again:
        yield "what selection drops is not drawn again"
    if type(m.curriculum) is not Uniform:
        yield f"prompts come uniformly, not by {kind(m.curriculum)}"
    if m.remembers_episodes:
        yield "nothing is in its replay yet"
    if any(hasattr(o, "template") for o in m.prompting) or "injected" in m.rollout.writes:
        yield "the policy reads over drafts and inducers: it answers as if they were not there"


def _update(m: Method) -> Iterable[str]:
    steps = getattr(m.update, "steps", 0)
    if steps != 1:
        yield f"the first of {steps} optimiser steps a batch" if steps else f"without its update, {kind(m.update)}"


def _sampled(trial: Trial) -> Iterable[str]:
    if trial.ctx.random:
        yield f"draws random numbers of its own, which are sampled: an error of about {trial.error:.0%}"
