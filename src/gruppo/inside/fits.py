"""Which methods run inside another trainer, and why the others do not: from what their rooms need, never by name."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from gruppo.data import pack
from gruppo.stages import Context, Method, Need, Never, kind
from gruppo.stages.check import draws_again, equal_groups
from gruppo.stages.curriculum import Uniform
from gruppo.stages.goal import Goal
from gruppo.stages.replay import Forget
from gruppo.stages.requires import FactsOfTurns, RecurringStates, SeveralSeats
from gruppo.stages.rollout import Group
from gruppo.stages.update import Passes

# What stands in a room that the other trainer furnishes, and what it does there.
PLAIN: dict[str, tuple[type, str, str]] = {
    "curriculum": (
        Uniform,
        "tasks come in the order of its dataset",
        "Leave curriculum out: but(curriculum=Uniform())",
    ),
    "rollout": (Group, "every prompt has the same number of plain answers", "Leave rollout out: but(rollout=Group())"),
    "update": (Passes, "optimiser steps are passes over minibatches", "Use but(update=Passes(…))"),
    "replay": (Forget, "nothing of an earlier step can join a batch", "Leave replay out: but(replay=Forget())"),
}
ELSEWHERE = "or train it with `gruppo train`, which has all rooms"


@dataclass(frozen=True)
class Host:
    """Another trainer, and what it can tell.

    batch    (role, readout) that can be read once a batch, at every token
    step     (role, readout) that can be read at every optimiser step, with gradient
    """

    name: str
    batch: frozenset[tuple[str, str]]
    step: frozenset[tuple[str, str]]

    def tells(self, n: Need) -> bool:
        plain = n.at == "N" and n.view == "as_trained" and not n.params and not n.against and n.side == "before"
        return plain and (n.role, n.readout) in (self.step if n.when == "step" else self.batch)


NOW = frozenset({("policy", "logp"), ("policy", "entropy")})
TRL = Host("TRL", NOW | {("old", "logp"), ("old", "entropy"), ("ref", "logp")}, NOW)
VERL_TRAINER = Host("verl", TRL.batch, TRL.step)  # with a trainer of ours; its registries are told less


def refusals(method: Method, host: Host = TRL) -> list[str]:
    """Why the method cannot run inside the host, one sentence each, with the room, the need and the remedy."""
    checks = (_furnished(method, host), _unread(method, host), _unrecorded(method, host), _roles(method, host))
    return [sentence for found in checks for sentence in found]


def refuse(method: Method, host: Host = TRL) -> None:
    found = refusals(method, host)
    if found:
        raise ValueError("\n".join(found))


def admitted(method: Method, host: Host, call: str, answers: Callable[[str], str] | None, remedy: str = "") -> None:
    """Refuses a method that does not fit, or whose answers nobody extracts; warns of what is lost. `call`: who asks."""
    refuse(method, host)
    if answers is None and any("answer_E" in o.reads for _, o in method.occupants()):
        raise ValueError(
            f"{method.name} compares the answers of a group, and {host.name} does not extract them from texts. Say "
            f"how: {call}(…, answers=lambda text: …), with equal strings for equal answers."
        )
    for again in draws_again(method):
        warnings.warn(
            f"{method.name}: {again} in select asks to draw again, which is lost inside {host.name}: what it drops is "
            f"not replaced, and the step is smaller.{remedy}",
            stacklevel=3,
        )


def _furnished(method: Method, host: Host) -> Iterator[str]:
    """Rooms that the host furnishes itself hold the plain occupant."""
    for room, (plain, does, remedy) in PLAIN.items():
        o = getattr(method, room)
        if type(o) is not plain:
            yield (
                f"{method.name}: {kind(o)} in {room} would never be called inside {host.name}, where {does}. "
                f"{remedy}, {ELSEWHERE}."
            )
    for o in method.prompting:
        yield (
            f"{method.name}: {kind(o)} in prompting would never be called inside {host.name}, where prompts are those "
            f"of its dataset. Put the words into the dataset and leave it out: but(prompting=()), {ELSEWHERE}."
        )


def _unread(method: Method, host: Host) -> Iterator[str]:
    said: set[tuple[str, str]] = set()
    for room, o, n in method.needs(Context()):
        if not host.tells(n) and (room, str(n)) not in said:
            said.add((room, str(n)))
            told = sorted({f"{readout}@{role}" for role, readout in host.batch | host.step})
            yield (
                f"{method.name}: {kind(o)} in {room} needs {n} at {n.at}, and inside {host.name} only "
                f"{', '.join(told)} of tokens can be read. Choose another {room}, {ELSEWHERE}."
            )


def _unrecorded(method: Method, host: Host) -> Iterator[str]:
    """What a world would have said about turns and seats."""
    for room, o in method.occupants():
        for r in o.requires:
            what = {RecurringStates: "the states that turns begin in", SeveralSeats: "several agents with returns"}
            facts = r.facts if isinstance(r, FactsOfTurns) else what.get(type(r), "")
            if facts:
                yield (
                    f"{method.name}: {kind(o)} in {room} needs {facts}, which {host.name} does not record: it would "
                    f"do nothing. Choose another {room}, {ELSEWHERE}."
                )


def _roles(method: Method, host: Host) -> Iterator[str]:
    for role in method.objectives:
        if role != "policy":
            yield (
                f"{method.name}: objective trains the role {role!r}, and {host.name} trains the policy alone. Choose "
                f"an objective and a credit without it, {ELSEWHERE}."
            )
    for agent, role in method.writers.items():
        yield (
            f"{method.name}: writers has {agent!r} written by {role!r}, and inside {host.name} the policy writes "
            f"everything. Leave writers out, {ELSEWHERE}."
        )
    ref = method.cast.get("ref")
    if ref is not None and reads(method, "ref") and (ref.start != "policy" or ref.refresh != Never()):
        yield (
            f"{method.name}: the role 'ref' starts as {ref.start!r} with refresh={ref.refresh}, and inside "
            f"{host.name} the reference is the policy as it started. Use but(cast={{'ref': Role()}}), {ELSEWHERE}."
        )


def reads(method: Method, role: str) -> bool:
    """Whether a room reads this role."""
    return any(role in (n.role, n.against) for _, _, n in method.needs(Context()))


def whole_step(method: Method) -> bool:
    """Whether its objective couples the rows of an optimiser step: gradients of parts do not add up to its own."""
    ctx, batch = Context(samples=2), pack(equal_groups())
    told = {n.column: torch.zeros(batch.size("N")) for _, _, n in method.needs(ctx) if n.when == "batch"}
    batch = batch.with_columns(**told)
    goal = Goal(method, ctx)
    return not goal.fused(goal.terms(batch.with_columns(**method.credit(ctx, batch))))
