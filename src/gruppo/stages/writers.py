"""Several trained writers: which role wrote a row (`Method.writers`: the name of an agent in a world → a role).

An agent that is not named is written by the policy. A context has one agent, so a sequence has one writer. What is read
of a row, `logp_old` and `logp_ref` say, is of the role that wrote it. Every writer learns by the policy's objective and
penalties, from its own sequences alone, and counts those: so its step is the same however much the others write.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Source
from gruppo.stages.cast import Ema, Every, Never, Role
from gruppo.stages.context import Context
from gruppo.stages.method import Method
from gruppo.stages.readouts import Stats
from gruppo.stages.select import through_second_door


def writers_of(method: Method) -> tuple[str, ...]:
    """The roles that write, the policy first."""
    return tuple(dict.fromkeys(("policy", *method.writers.values())))


def written_S(method: Method, batch: Batch, role: str) -> Tensor:
    """The sequences that a writer wrote."""
    own = [method.writers.get(agent, "policy") == role for agent in batch.agents]
    mine_K = torch.tensor(own, dtype=torch.bool, device=batch.device)[batch.agent_K]
    mine_S, other_S = (batch.gather(x, "K", "S", "any") for x in (mine_K, ~mine_K))
    if bool((mine_S & other_S).any()):
        raise ValueError(
            f"{method.name}: one sequence has turns of agents with different writers ({role} and another role), so its "
            "tokens have no common past under either. Give every agent a context of its own, or both one writer."
        )
    return mine_S


def written(method: Method, batch: Batch, role: str) -> Batch:
    """What a role learns from: a writer from its own sequences (all episodes and groups stay), a critic from all."""
    if role not in writers_of(method) or len(writers_of(method)) == 1:
        return batch
    mine_S = written_S(method, batch, role)
    return batch if bool(mine_S.all()) else batch.micro(torch.nonzero(mine_S)[:, 0])


def cut_of(method: Method, batch: Batch, role: str, cut: list[Tensor]) -> list[Tensor]:
    """A cut of the batch into micro-batches as a cut of `written`."""
    if written(method, batch, role) is batch:
        return cut
    mine_S = written_S(method, batch, role)
    index_S = torch.cumsum(mine_S, 0) - 1
    parts = [index_S[rows_S[mine_S[rows_S]]] for rows_S in cut]
    return [rows_S for rows_S in parts if len(rows_S)]


def by_writer(method: Method, batch: Batch) -> list[tuple[str, Batch]]:
    """(writer, its sequences) of every writer that wrote something; a part that is the whole batch is the batch."""
    parts = [(role, written(method, batch, role)) for role in writers_of(method)]
    return [(role, part) for role, part in parts if part is batch or part.size("S")]


def tokens_selected(ctx: Context, method: Method, batch: Batch) -> Batch:
    """After the selection of tokens before the update: each writer's among its own, as if the others were opponents.

    The whole episode is seen all the same: some drop all of it for one of its turns.
    """
    if len(writers_of(method)) == 1:
        return through_second_door(ctx, method.select, batch, Stats(), current=False)
    keep_N, weight_N = batch.keep_N, batch.weight_N
    for role in writers_of(method):
        mine_N = batch.spread(written_S(method, batch, role), "S", "N")
        theirs_N = ~mine_N & (batch.source_N == Source.POLICY)
        seen = batch.with_columns(source_N=batch.source_N.masked_fill(theirs_N, Source.OPPONENT))
        chosen = through_second_door(ctx, method.select, seen, Stats(), current=False)
        keep_N = torch.where(mine_N, chosen.keep_N, keep_N)
        weight_N = torch.where(mine_N, chosen.weight_N, weight_N)
    return batch.with_columns(keep_N=keep_N, weight_N=weight_N)


def cast_of(models: Mapping[str, Any], writer: str) -> dict[str, Any]:
    """The models by the names that rooms use, as they are for a writer: the policy is the writer itself."""
    end = f"@{writer}"
    own = {name.removesuffix(end): model for name, model in models.items() if name.endswith(end)}
    return {**models, **own, "policy": models[writer], "old": models[writer]}


def with_companions(method: Method) -> Method:
    """The method in which every writer has a copy of its own of each role that is a copy of the policy: `ref@verifier`.

    A reference that never moves serves all writers that start as the policy.
    """
    extra: dict[str, Role] = {}
    for writer in writers_of(method)[1:]:
        names = {"policy": writer}
        for name, role in method.cast.items():
            if name in writers_of(method) or role.train or role.as_ != "full":
                continue
            rule, shared = role.refresh, method.cast[writer].start == "policy" and isinstance(role.refresh, Never)
            follows = isinstance(rule, Every | Ema) and rule.source in names
            if (role.start in names and not shared) or follows:
                source = {"refresh": replace(rule, source=names[rule.source])} if follows else {}  # type: ignore[union-attr]
                names[name] = f"{name}@{writer}"
                extra[names[name]] = replace(role, start=names.get(role.start, role.start), **source)  # type: ignore[arg-type]
    return replace(method, cast=MappingProxyType({**method.cast, **extra})) if extra else method
