"""Does a combination make sense? Decided in three grades: before the run, at the first batch, and not at all."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from gruppo.data import VIEWS, Batch, Source, Use
from gruppo.stages.context import Context
from gruppo.stages.method import CHAINS, Method, kind
from gruppo.stages.names import nearest
from gruppo.stages.occupant import Occupant
from gruppo.stages.readouts import READOUTS


def problems(method: Method, ctx: Context, *, samples: int, can: frozenset[str] = frozenset()) -> list[str]:
    """What makes the method impossible before it starts: one sentence each, with room, need and remedy."""
    checks = (
        _samples(method, samples),
        _needs(method, ctx),
        _absent(method, ctx),
        _roles(method, ctx),
        _names(method),
        _conflicts(method),
        _beside(method),
        _engine(method, can),
    )
    return [sentence for group in checks for sentence in group]


def check(method: Method, ctx: Context, *, samples: int, can: frozenset[str] = frozenset()) -> None:
    found = problems(method, ctx, samples=samples, can=can)
    if found:
        raise ValueError("\n".join(found))


def _samples(method: Method, samples: int) -> Iterable[str]:
    for room, o in method.occupants():
        if samples < o.min_samples:
            yield (
                f"samples={samples}: {method.name} has {kind(o)} in {room}. {o.alone} "
                f"Use samples >= {o.min_samples}, or a method without groups such as method=reinforce."
            )


def _needs(method: Method, ctx: Context) -> Iterable[str]:
    roles = {"old": "full", **{name: role.as_ for name, role in method.cast.items()}}
    for room, o, n in method.needs(ctx):
        where = f"{method.name}: {kind(o)} in {room} needs {n}"
        mine = next((r for r, x in method.objectives.items() if x is o), "policy")
        if n.role not in roles:
            yield (
                f"{where}, and the cast has no role {n.role!r}{nearest(n.role, roles)}: the need is unmet. "
                f"Add the role with but(cast={{{n.role!r}: Role(start=…)}}) or method.cast.{n.role}=FOLDER."
            )
        elif (READOUTS[n.readout].head == "value") != (roles[n.role] == "head"):
            yield f"{where}, but role {n.role!r} has no such head. Use as_='head' for values, 'full' for tokens."
        if n.against and (n.against not in method.cast or roles[n.against] != "full"):
            full = [r for r, as_ in roles.items() if as_ == "full" and r != "old"]
            yield (
                f"{where}, but {n.against!r} is no language model of the cast{nearest(n.against, full)}: there is "
                f"nothing to compare with. Use against=… with one of {', '.join(full)}."
            )
        if n.when == "step" and n.role != mine:
            yield (
                f"{where} at every optimiser step, but only the role that is trained there ({mine}) is read with "
                "gradient. Use when='batch' for another role."
            )
        if n.view not in VIEWS:
            near = nearest(n.view, VIEWS)
            yield f"{where} in the view {n.view!r}, which nobody makes{near}. Views: {', '.join(VIEWS)}."


def _absent(method: Method, ctx: Context) -> Iterable[str]:
    for room, o, n in method.needs(ctx):
        for role in (n.role, n.against):
            if role in method.cast and not method.cast[role].start:
                yield (
                    f"{method.name}: {kind(o)} in {room} needs {n}, and nobody plays {role!r} yet: a copy of the "
                    f"policy would teach it nothing. Give a model with the policy's tokenizer: "
                    f"method.cast.{role}=FOLDER, such as the runs/NAME/policy of a run, or a name that model= takes."
                )


def _roles(method: Method, ctx: Context) -> Iterable[str]:
    for room, o in method.occupants():
        for role in o.roles:
            if role not in method.cast:
                yield (
                    f"{method.name}: {kind(o)} in {room} works with role {role!r}, which the cast has not"
                    f"{nearest(role, method.cast)}. Add the role with but(cast={{{role!r}: Role(start=…)}})."
                )
    for role in method.objectives:
        if role not in method.cast or not method.cast[role].train:
            yield (
                f"{method.name}: objective is for role {role!r}, which is not trained. Add "
                "Role(train=True) to the cast."
            )
    for role in dict.fromkeys(n.role for _, _, n in method.needs(ctx)):
        if role in method.cast and method.cast[role].train and role not in method.objectives:
            yield (
                f"{method.name}: role {role!r} is needed and is to be trained, but no objective "
                "trains it: it would stay as it starts. Take the objective of a method along that trains it "
                "(for a critic method.objective=ppo does), or give it weights "
                f"of its own: method.cast.{role}.train=false method.cast.{role}.start=FOLDER."
            )


def _names(method: Method) -> Iterable[str]:
    """What an occupant takes, another must give: columns the credit, notes any room before it."""
    given = set(method.credit.gives)
    notes = {name for _, o in method.occupants() for name in o.gives if name.startswith("note_")}
    for room, o in method.occupants():
        for name in o.takes:
            if name not in given:
                yield (
                    f"{method.name}: {kind(o)} in {room} takes {name}, but credit {kind(method.credit)} gives "
                    f"{', '.join(sorted(given)) or 'nothing'}. Choose a credit that gives {name}{_givers(name)}, or "
                    f"another {room}."
                )
        for name in (f"note_{note}_{noted.level}" for note, noted in o.notes.items()):
            if name not in notes:
                yield (
                    f"{method.name}: {kind(o)} in {room} reads {name}, and no room gives it"
                    f"{nearest(name, notes)}: there would be no such column. Choose the rollout that comes with it"
                    f"{_givers(name)}; method.rollout=METHOD takes what belongs together. Or choose another {room}."
                )
    made = {s: (room, o) for room, o in method.occupants() for s in o.makes}
    handled = {s for _, o in method.occupants() for s in o.handles}
    for source, (room, o) in made.items():
        if source not in handled and source != "hint":  # hints are context unless a term learns them
            yield (
                f"{method.name}: {kind(o)} in {room} makes {source} tokens, and no objective or penalty has a rule for "
                f"them: they would be ignored. Choose an objective that handles {source}."
            )


def _givers(name: str) -> str:
    """Who gives such a column, by the names that a command line takes; nothing where nobody is known."""
    ours = (c for c in subclasses(Occupant) if c.__module__.startswith("gruppo."))
    known = sorted({kind(c) for c in ours if name in c.gives})
    return f" ({', '.join(known)})" if known else ""


def subclasses(cls: type[Occupant]) -> Iterator[type[Occupant]]:
    """All that derive from it, as far as they are loaded."""
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def _conflicts(method: Method) -> Iterable[str]:
    here = {kind(o): room for room, o in method.occupants()}
    for room, o in method.occupants():
        for other in o.conflicts:
            if other in here:
                yield (
                    f"{method.name}: {kind(o)} in {room} and {other} in {here[other]} conflict: the one undoes or "
                    f"doubles the other. Keep one: method.{room}-={kind(o)} or method.{here[other]}-={other}."
                )


def _beside(method: Method) -> Iterable[str]:
    """Two halves of one mechanism: what the one writes, the other reads. A class that derives from a half is one."""
    for room, o in method.occupants():
        for other, kinds in o.beside.items():
            there = [x for r, x in method.occupants() if r == other]
            if not {kind(c) for x in there for c in type(x).__mro__}.intersection(kinds):
                yield (
                    f"{method.name}: {kind(o)} in {room} works with {' or '.join(kinds)} in {other}, where it finds "
                    f"{', '.join(map(kind, there)) or 'nothing'}: it would not do what it says. Use "
                    f"method.{other}{'+=' if other in CHAINS else '='}{kinds[0]}, or another {room}."
                )


def _engine(method: Method, can: frozenset[str]) -> Iterable[str]:
    for room, o in method.occupants():
        for missing in sorted(o.capabilities - can):
            yield (
                f"{method.name}: {kind(o)} in {room} needs an engine that can {missing!r}; this one can "
                f"{', '.join(sorted(can)) or 'nothing special'}. Use an engine that can, or another {room}."
            )


# At the first batch, before the first update.


def _binary_reward(batch: Batch) -> str:
    values = torch.unique(batch.reward_E[batch.judged_E])
    if len(values) > 2:
        return (
            f"rewards have {len(values)} different values, but it wants right or wrong. Use a task or reward "
            "with two values"
        )
    if len(values) == 2 and not bool(values[0] <= 0 < values[1]):
        return (
            f"rewards are {float(values[0]):g} and {float(values[1]):g}, but right is above 0 and wrong is not: all "
            "would be the same. Use a task or reward of 0 and 1"
        )
    return ""


def _pairs(batch: Batch) -> str:
    """Sampled groups may all be equal at first; recorded answers stay as they are."""
    if batch.size("P") or not bool((batch.source_E == Source.EXPERT).all()):
        return ""
    return (
        "no task has two recorded answers of different reward, so there is nothing to compare. Use a preference file, "
        "task=preference, or pairs of sampled answers with method.rollout=group"
    )


def _several_groups(batch: Batch) -> str:
    return "" if batch.size("G") > 1 else "there is one group only; it compares groups. Use more prompts"


def _baseline_episodes(batch: Batch) -> str:
    if bool((batch.judged_E & (batch.use_E == Use.BASELINE)).any()):
        return ""
    return (
        "no episode is one, or none was judged, so every advantage would be 0. Use a rollout that makes them, such as "
        "method.rollout=with_greedy"
    )


PREDICATES: dict[str, Callable[[Batch], str]] = {
    "binary_reward": _binary_reward,
    "several_groups": _several_groups,
    "pairs": _pairs,
    "baseline_episodes": _baseline_episodes,
}


def compares(method: Method) -> bool:
    """Whether it learns from differences of rewards: then equal ones say nothing."""
    return "equal_rewards" not in method.breaks


def readable_N(method: Method, batch: Batch) -> Tensor:
    """Tokens of the policy, and given ones that some occupant has a rule for."""
    known = {Source[s.upper()] for _, o in method.occupants() for s in o.handles} | {Source.POLICY}
    return torch.isin(batch.source_N, torch.tensor(sorted(known), device=batch.device))


def learnable_N(method: Method, batch: Batch) -> Tensor:
    """Tokens that can be learned from: readable, in episodes to learn from or still open, and kept by selection."""
    return readable_N(method, batch) & batch.spread(batch.learn_E | batch.open_E, "E", "N") & batch.keep_N


def check_first_batch(method: Method, batch: Batch) -> list[str]:
    """Refuses what cannot work on this data; returns warnings for what may."""
    for room, o in method.occupants():
        for name in o.expects:
            said = PREDICATES[name](batch)
            if said:
                raise ValueError(f"{method.name}: {kind(o)} in {room} expects {name}: {said}.")
        if said := o.refuses(batch):
            raise ValueError(f"{method.name}: {kind(o)} in {room} cannot learn from the first batch: {said}.")
    warnings: list[str] = []
    judged = batch.judged_E
    if not bool((judged | batch.open_E).any()):  # open ones are judged later
        raise ValueError(
            "no episode of the first batch was judged: there is nothing to learn from. Look at the episodes' errors."
        )
    if not bool(learnable_N(method, batch).any()):
        raise ValueError(
            "the first batch has no token to learn from: every mask is empty. Look at select and at "
            "the status of episodes."
        )
    rewards = batch.reward_E[judged]
    if compares(method) and len(rewards) and bool((rewards == rewards[0]).all()):
        warnings.append(f"every reward of the first batch is {float(rewards[0]):g}: nothing can be compared yet.")
    return warnings
