"""Does a combination of occupants make sense? Checked before the run, and on the first batch."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import VIEWS, Batch, Episode, Source, single_turn
from gruppo.stages.cast import Never
from gruppo.stages.context import Context
from gruppo.stages.method import Method, kind
from gruppo.stages.names import nearest
from gruppo.stages.occupant import Occupant
from gruppo.stages.readouts import READOUTS
from gruppo.stages.requires import Promised, Samples

AT_STEPS = ("select", "objective", "penalties")  # rooms that work at every optimiser step


def problems(method: Method, ctx: Context, *, samples: int) -> list[str]:
    """Why the method cannot run, one sentence each, with the room and the remedy; [] if it can."""
    checks = (
        _requirements(method, samples),
        _undeclared(method),
        _needs(method, ctx),
        _absent(method, ctx),
        _roles(method, ctx),
        _several(method),
        _columns(method),
        _sources(method),
        _refused(method),
    )
    return [sentence for group in checks for sentence in group]


def check(method: Method, ctx: Context, *, samples: int) -> None:
    found = problems(method, ctx, samples=samples)
    if found:
        raise ValueError("\n".join(found))


def refuse_weaker(method: Method, engine: str, promises: Collection[str]) -> None:
    """Refuses an engine that cannot do what an occupant needs."""
    said = [
        f"{method.name}: {kind(o)} in {room} needs an engine that promises {r.promise!r}, and engine={engine} does not"
        f"{f': {r.why}' if r.why else ''}. It promises: {', '.join(sorted(promises)) or 'nothing'}. Use engine=native, "
        f"or another occupant of {room}."
        for room, o in method.occupants()
        for r in o.requires
        if isinstance(r, Promised) and r.promise not in promises
    ]
    if said:
        raise ValueError("\n".join(said))


def refuse_engine(method: Method, engine: str, promises: Collection[str]) -> None:
    """Refuses an engine that a run cannot train with."""
    if "weights" not in promises:
        raise ValueError(
            f"engine={engine} does not promise 'weights': its weights cannot be changed from here, so a run would "
            "learn from answers of another policy. Use engine=native or engine=vllm; gruppo eval may sample from it."
        )
    refuse_weaker(method, engine, promises)


def _requirements(method: Method, samples: int) -> Iterable[str]:
    for room, o in method.occupants():
        for requirement in o.requires:
            if said := requirement.before(method, room, kind(o), samples):
                yield said


def _undeclared(method: Method) -> Iterable[str]:
    for room, o in method.occupants():
        if room in ("objective", "penalties") and not hasattr(o, "terms"):
            yield (
                f"{method.name}: {kind(o)} in {room} has no method terms(ctx, batch), so nothing could be counted. "
                "Declare its terms there, and return their values by name from the call."
            )


def least_samples(method: Method) -> int:
    """The fewest samples of a prompt that the method can learn from."""
    return max([r.least for _, o in method.occupants() for r in o.requires if isinstance(r, Samples)], default=1)


def _needs(method: Method, ctx: Context) -> Iterable[str]:
    roles = {"old": "full", **{name: role.as_ for name, role in method.cast.items()}}
    for room, o, n in method.needs(ctx):
        where = f"{method.name}: {kind(o)} in {room} needs {n}"
        mine = next((r for r, chain in method.objectives.items() if any(x is o for x in chain)), "policy")
        if n.role not in roles:
            remedy = f"Add the role with but(cast={{{n.role!r}: Role(start=…)}}) or method.cast.{n.role}=FOLDER."
            if READOUTS[n.readout].head == "value":
                remedy = "Take both rooms of a method that trains one: method.credit=ppo method.objective=ppo."
            yield f"{where}, and the cast has no role {n.role!r}{nearest(n.role, roles)}: the need is unmet. {remedy}"
        elif (READOUTS[n.readout].head == "value") != (roles[n.role] == "head"):
            yield f"{where}, but role {n.role!r} has no such head. Use as_='head' for values, 'full' for tokens."
        if n.against and (n.against not in method.cast or roles[n.against] != "full"):
            full = [r for r, as_ in roles.items() if as_ == "full" and r != "old"]
            yield (
                f"{where}, but {n.against!r} is no language model of the cast{nearest(n.against, full)}: there is "
                f"nothing to compare with. Use against=… with one of {', '.join(full)}."
            )
        if n.when == "step" and n.role != mine and (n.role == "old" or room not in AT_STEPS):
            why = "old is the policy at the start of the step" if n.role == "old" else f"{room} works once a batch"
            yield f"{where} at every optimiser step, but {why}, so it would never be read. Use when='batch'."
        if n.view not in VIEWS:
            near = nearest(n.view, VIEWS)
            yield f"{where} in the view {n.view!r}, which does not exist{near}. Views: {', '.join(VIEWS)}."


def _absent(method: Method, ctx: Context) -> Iterable[str]:
    for room, o, n in method.needs(ctx):
        for role in (n.role, n.against):
            if role in method.cast and not method.cast[role].start:
                yield (
                    f"{method.name}: {kind(o)} in {room} needs {n}, and there is no model for {role!r} yet: a copy of "
                    "the policy would teach it nothing. Give a model with the policy's tokenizer: "
                    f"method.cast.{role}=FOLDER, such as the runs/NAME/policy of a run, or a name that model= takes."
                )


def _roles(method: Method, ctx: Context) -> Iterable[str]:
    for role, chain in method.objectives.items():
        if not chain:
            yield (
                f"{method.name}: there is no objective for role {role!r}, so there is nothing that it would learn. "
                "Choose one: method.objective+=clipped_surrogate, or method.objective=METHOD."
            )
        if role not in method.cast or not method.cast[role].train:
            yield (
                f"{method.name}: objective is for role {role!r}, which is not trained. Add Role(train=True) to the "
                "cast."
            )
    for name, role in method.cast.items():
        if role.outputs > 1 and role.as_ != "head":
            yield (
                f"{method.name}: role {name!r} has outputs={role.outputs}, and a language model has one for each token "
                f"of its vocabulary. Use as_='head', or leave method.cast.{name}.outputs out."
            )
    for role in dict.fromkeys(n.role for _, _, n in method.needs(ctx)):
        taught = {*method.objectives, *method.writers.values()}
        if role in method.cast and method.cast[role].train and role not in taught:
            yield (
                f"{method.name}: role {role!r} is needed and is to be trained, but no objective trains it: it would "
                "stay as it starts. Take the objective of a method that trains it (for a critic method.objective=ppo "
                f"does), or give it weights of its own: method.cast.{role}.train=false method.cast.{role}.start=FOLDER."
            )


def _several(method: Method) -> Iterable[str]:
    """Of roles that write for agents: each is a trained language model, by the policy's objective."""
    for agent, role in ((a, r) for a, r in method.writers.items() if r != "policy"):
        where, cast = f"{method.name}: writers has {agent!r} written by role {role!r}", method.cast[role]
        if cast.as_ != "full":
            yield (
                f"{where}, which has a value head and writes no tokens. Name a role of its own: method.writers."
                f"{agent}={agent}."
            )
            continue
        if not cast.train:
            yield (
                f"{where}, which is not trained, so nobody would learn from what it writes. Use method.cast.{role}."
                f"train=true (method.cast.{role}.start=FOLDER alone keeps it trained), or name a role of its own."
            )
        elif cast.refresh != Never():
            yield f"{where}, which is overwritten with {cast.refresh}. Leave method.cast.{role}.refresh out."
        if not cast.start:
            yield f"{where}, and there is no model for it. Use method.cast.{role}.start=policy, or a folder."
        if role in method.objectives:
            yield (
                f"{where}, and there is an objective for that role: a writer learns by the policy's, from what it "
                f"wrote. Leave the objective of {role!r} out."
            )
        if not getattr(method.update, "every_writer", False):
            yield (
                f"{where}, and {kind(method.update)} in update trains roles that it names, so {role!r} would stay as "
                "it starts. Use method.update=passes, or leave method.writers out."
            )


def _columns(method: Method) -> Iterable[str]:
    """What an occupant reads, another must write: the credit its columns, any room notes."""
    notes = {name for _, o in method.occupants() for name in o.writes if name.startswith("note_")}
    for room, o in method.occupants():
        for name in (n for n in o.reads if _is_column(n)):
            if name.startswith("note_") and name not in notes:
                yield (
                    f"{method.name}: {kind(o)} in {room} reads {name}, and no room writes it{nearest(name, notes)}: "
                    f"there would be no such column. {_choose((x for _, x in method.occupants() if x is not o), name)} "
                    f"the rollout that comes with it{_writers(name)}; "
                    f"method.rollout=METHOD takes what belongs together. Or choose another {room}."
                )
            elif not name.startswith("note_") and name not in method.credit.writes:
                yield (
                    f"{method.name}: {kind(o)} in {room} reads {name}, but credit {kind(method.credit)} writes "
                    f"{', '.join(sorted(method.credit.writes)) or 'nothing'}. {_choose((method.credit,), name)} a "
                    f"credit that writes {name}{_writers(name)}, or another {room}."
                )


def _sources(method: Method) -> Iterable[str]:
    """Tokens that the policy did not write are ignored unless an occupant has a rule for them."""
    known = {name for _, o in method.occupants() for name in o.reads}
    for room, o in method.occupants():
        for source in (n for n in o.writes if _is_source(n) and n not in known):
            if source != "hint":  # hints are context unless a term learns them
                yield (
                    f"{method.name}: {kind(o)} in {room} makes {source} tokens, and no objective or penalty has a rule "
                    f"for them: they would be ignored. Choose an objective that reads {source}."
                )


def _is_source(name: str) -> bool:
    return name.upper() in Source.__members__


def _is_column(name: str) -> bool:
    return not _is_source(name) and name not in ("answer_E", "dropped")


def _choose(occupants: Iterable[Any], name: str) -> str:
    """`Choose`, after the likelier remedy if one of the occupants is the user's own, and may not say what it writes."""
    own = [kind(o) for o in occupants if not type(o).__module__.startswith("gruppo.")]
    if not own:
        return "Choose"
    return f'If {" or ".join(own)} writes it, declare that in the class: writes = ("{name}",). Otherwise choose'


def _writers(name: str) -> str:
    """The occupants that write a column, by their names on the command line; "" if none is known."""
    ours = (c for c in subclasses(Occupant) if c.__module__.startswith("gruppo."))
    known = sorted({kind(c) for c in ours if name in c.writes})
    return f" ({', '.join(known)})" if known else ""


def subclasses(cls: type[Occupant]) -> Iterator[type[Occupant]]:
    """All subclasses that are loaded."""
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def _refused(method: Method) -> Iterable[str]:
    here = {kind(o): room for room, o in method.occupants()}
    for room, o in method.occupants():
        for other in o.refuses:
            if other in here:
                yield (
                    f"{method.name}: {kind(o)} in {room} and {other} in {here[other]} conflict: the one undoes or "
                    f"doubles the other. Keep one: method.{room}-={kind(o)} or method.{here[other]}-={other}."
                )


# At the first batch, before the first update.


def compares(method: Method) -> bool:
    """Whether it learns from differences of rewards, and so nothing from equal ones."""
    return "equal_rewards" not in method.breaks


def readable_N(method: Method, batch: Batch) -> Tensor:
    """Tokens of the policy, and those of other sources that some occupant reads."""
    known = {Source[s.upper()] for _, o in method.occupants() for s in o.reads if _is_source(s)} | {Source.POLICY}
    return torch.isin(batch.source_N, torch.tensor(sorted(known), device=batch.device))


def learnable_N(method: Method, batch: Batch) -> Tensor:
    """Tokens that can be learned from: readable, in episodes to learn from or still open, and kept by selection."""
    return readable_N(method, batch) & batch.spread(batch.learn_E | batch.open_E, "E", "N") & batch.keep_N


def cut_off(share: float, tokens: int) -> str:
    """Why rewards are equal, and what helps, if most answers were cut off; else "". 0 tokens: in an environment."""
    if not share > 0.5:
        return ""
    if not tokens:
        return f"{share:.0%} of the episodes ran out of turns: an easier task.level, or more task.options.turns, helps."
    return (
        f"{share:.0%} of the answers were cut off at {tokens} tokens, before they had ended, so the scorer could not "
        f"see an answer. Give them more room, for example sampling.max_tokens={4 * tokens} (if the model's context "
        "allows it), or ask for shorter answers."
    )


def check_first_batch(method: Method, batch: Batch, why: str = "") -> list[str]:
    """Raises if the method cannot learn from this data; returns warnings if it may not. `why`: rewards are equal."""
    for room, o in method.occupants():
        for requirement in o.requires:
            if said := requirement.at_first_batch(batch):
                raise ValueError(f"{method.name}: {kind(o)} in {room} requires {requirement.called}: {said}.")
        if said := o.unfit(batch):
            raise ValueError(f"{method.name}: {kind(o)} in {room} cannot learn from the first batch: {said}.")
    warnings: list[str] = []
    judged = batch.judged_E
    if not bool((judged | batch.open_E).any()):  # open episodes are judged later
        raise ValueError(
            "no episode of the first batch was judged: there is nothing to learn from. Look at the episodes' errors."
        )
    if not bool(learnable_N(method, batch).any()):
        raise ValueError(
            "the first batch has no token to learn from: every mask is empty. Look at select and at the status of "
            "episodes."
        )
    if (compares(method) or still(method, batch)) and (equal := equal_returns(batch)):
        said = f"every reward of the first batch is {equal}: nothing can be compared yet."
        warnings.append(f"{said} {why}".rstrip())
    return warnings


def draws_again(method: Method) -> list[str]:
    """Occupants that ask for more draws when groups are equal: the first door is tried with such groups."""
    asked: list[str] = []

    def fresh(n: int) -> list[Any]:
        asked.append(name)
        return []

    ctx = Context(samples=2, fresh=fresh)
    for o in method.select:
        name = kind(o)
        if hasattr(o, "episodes"):
            with suppress(Exception):  # it may need what these answers do not have
                _, again = o.episodes(ctx, equal_groups())
                asked += [name] if again else []
    return list(dict.fromkeys(asked))


def equal_groups() -> list[Episode]:
    """Two groups of two answers, all with the same reward."""
    ids, logp = np.array([1, 2]), np.zeros(2, np.float32)
    return [single_turn(i, "t", f"g{i // 2}", ids, ids, logp, 0, reward={"task": 0.0}) for i in range(4)]


def still(method: Method, batch: Batch) -> bool:
    """Whether no token has an advantage, and advantages are all that the method learns from."""
    read = {name for _, o in method.occupants() for name in o.reads}
    if "adv_N" not in batch.columns or any(_is_source(name) or name.startswith("note_") for name in read):
        return False
    return not bool((batch.adv_N[batch.learn_N].abs() > 1e-9).any())


def equal_returns(batch: Batch) -> str:
    """The return of all judged episodes, if it is the same, of every agent that the policy speaks for; else ""."""
    said: list[str] = []
    for a in torch.nonzero(batch.speaks_A)[:, 0].tolist():
        known = batch.reward_EA[:, a][batch.judged_E]
        known = known[~known.isnan()]
        if not len(known) or not bool((known == known[0]).all()):
            return ""
        said.append(f"{float(known[0]):g}" + (f" ({batch.agents[a]})" if len(batch.agents) > 1 else ""))
    return ", ".join(said)
