"""A run on several ranks: the first one is the run, and the others learn with it.

The first rank draws, judges, decides and writes, exactly as a run in one process does. Whatever concerns the trained
models it says to the others (`Lead`), and all do it at once on their own parts of the weights (`follow`). So there is
one environment, one judge, one run folder, and nothing that two ranks could disagree about.

It samples from whole copies of the models that write. They take the trained weights after every change (`publish`).
"""

import os
import signal
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.policies import learned_state, load_policy
from gruppo.scale.channel import END, GRACE, Channel, lost
from gruppo.scale.config import ScaleConfig
from gruppo.scale.shard import at_rest, mesh_of, shard_cast
from gruppo.stages import Context, Memory, Method, Need
from gruppo.stages.record import from_table, to_table
from gruppo.stages.writers import with_companions, writers_of
from gruppo.train.cast import build_cast
from gruppo.train.config import RunConfig
from gruppo.train.exact import be_deterministic, needed
from gruppo.train.keeping import Tensors
from gruppo.train.learner import Learner
from gruppo.train.place import place_of
from gruppo.train.ranks import Ranks, ranks, whole
from gruppo.train.run import Run

SENT = ("step", "steps", "seed", "round", "version", "prompts", "samples", "sampling")  # of a context


class Lead:
    """The learner of the first rank: whatever it is asked for, all ranks do. See `Learner` for what the verbs mean."""

    def __init__(self, inner: "Member", channel: Channel) -> None:
        self.inner, self.channel = inner, channel
        self._names: WeakSet[Snapshot] = WeakSet()
        self._numbers = count()

    def begin(self, ctx: Context) -> None:
        told = {name: getattr(ctx, name) for name in SENT}
        self._tell("begin_with", told, ctx.memory.plain)
        self.inner.begin(ctx)  # the others have a context without functions, which no objective calls

    def step(self, role: str, batch: Batch, coef: float = 1.0, lr: float | None = None, penalties: bool = True) -> None:
        self._all("step", role, batch, coef, lr, penalties)

    def grad(self, role: str, batch: Batch, *how: Any, **options: Any) -> None:
        self._all("grad", role, batch, *how, **options)

    def gradient(self, role: str, batch: Batch, **options: Any) -> Tensor:
        return self._all("gradient", role, batch, **options)

    def read(self, role: str, batch: Batch, needs: Sequence[Need], grad: bool = False) -> dict[str, Tensor]:
        return self._all("read", role, batch, list(needs), grad)

    def apply(self, role: str, lr: float | None = None) -> None:
        self._all("apply", role, lr)

    def refuse_broken(self) -> None:
        self._all("refuse_broken")

    def snapshot(self, role: str) -> "Snapshot":
        """A name for a copy that every rank keeps of its own part, as long as somebody holds the name."""
        new = Snapshot(next(self._numbers))
        self._names.add(new)
        self._all("keep", role, new.number, sorted(name.number for name in self._names))
        return new

    def restore(self, role: str, snapshot: "Snapshot") -> None:
        self._all("bring_back", role, snapshot.number)

    def copy(self, source: str, target: str, tau: float = 1.0) -> None:
        self._all("copy", source, target, tau)

    def moments(self, role: str) -> list[dict[str, Tensor]]:
        return self._all("moments", role)

    def refresh(self, step: int) -> None:
        self._all("refresh", step)

    def publish(self, models: Mapping[str, Any]) -> None:
        """The whole copies that are sampled from and saved become the trained weights."""
        self._tell("publish_to", list(models), None)
        self._here("publish_to", list(models), models)

    def state(self, roles: Sequence[str]) -> tuple[dict[str, Tensors], dict[str, Tensors]]:
        return self._all("state", list(roles))

    def load(self, weights: Mapping[str, Tensors], optimisers: Mapping[str, Tensors], **facts: Any) -> None:
        self._tell("load", _shapes(weights), _shapes(optimisers), **facts)
        self._here("load", weights, optimisers, **facts)

    def __getattr__(self, name: str) -> Any:
        """What only the first rank knows: the tally, the clock, learning rates, what has moved …"""
        if name == "models":
            raise AttributeError("models: every rank has a part of the weights; `read` reads them")
        return getattr(self.inner, name)

    def _all(self, verb: str, *given: Any, **named: Any) -> Any:
        self._tell(verb, *given, **named)
        return self._here(verb, *given, **named)

    def _tell(self, verb: str, *given: Any, **named: Any) -> None:
        with _together(self.inner.ranks):
            self.channel.say((verb, given, named))

    def _here(self, verb: str, *given: Any, **named: Any) -> Any:
        with _together(self.inner.ranks):
            return self.inner.do(verb, *given, **named)


class Snapshot:
    """Of a role on all ranks."""

    def __init__(self, number: int) -> None:
        self.number = number


class _together:
    """A rank that is gone is an error with a remedy."""

    def __init__(self, all_ranks: Ranks) -> None:
        self.size = all_ranks.size

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is not None and lost(error):
            raise ValueError(
                f"one of the {self.size} ranks is gone, so this step is lost. Its own words, if it had any, are above; "
                "without any it was killed, perhaps because memory ran out."
            ) from error


class Member(Learner):
    """The learner of one rank, with sharded models."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.kept: dict[int, Any] = {}  # snapshots by number

    def do(self, verb: str, *given: Any, **named: Any) -> Any:
        """What the first rank said, from a state in which every weight is in parts."""
        at_rest(self.models)
        return getattr(self, verb)(*given, **named)

    def grad(self, role: str, batch: Batch, *how: Any, **options: Any) -> None:
        super().grad(role, batch, *how, **options)
        at_rest(self.models)  # parameters are those that the optimiser has, with the gradient of this rank's parts

    def begin_with(self, told: Mapping[str, Any], memory: Mapping[str, Any]) -> None:
        self.begin(Context(**told, memory=Memory(memory)))

    def keep(self, role: str, number: int, named: Sequence[int]) -> None:
        self.kept = {n: found for n, found in self.kept.items() if n in named}
        self.kept[number] = self.snapshot(role)

    def bring_back(self, role: str, number: int) -> None:
        self.restore(role, self.kept[number])

    @torch.no_grad()
    def publish_to(self, roles: Sequence[str], models: Mapping[str, Any] | None) -> None:
        """Gather weight by weight; the first rank writes each into its whole copy."""
        for role in roles:
            mine = None if models is None else learned_state(models[role])
            for name, p in learned_state(self.models[role]).items():
                full = whole(p)
                if mine is not None:
                    mine[name].copy_(full)


_OPEN: list[Channel] = []  # that of the first rank


def opened() -> Channel:
    """The channel of the run of this process, the first rank."""
    if not _OPEN or _OPEN[-1].ended:
        ranks()
        _OPEN[:] = [Channel()]
    return _OPEN[-1]


@contextmanager
def leading() -> Generator[Channel]:
    """Around a run on the first rank: however it ends, the other ranks end as well."""
    channel = opened()
    try:
        yield channel
    finally:
        channel.end()


def lead(run: Run, ctx: Context, together: Ranks) -> tuple[Lead, dict[str, Any]]:
    """The learner of a run on the first rank, and the models that it samples from: those that write."""
    _refuse_too_few(run.device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    channel = opened()
    table = to_table(replace(run.config, scale=ScaleConfig(ranks=together.size)))
    told = {name: getattr(ctx, name) for name in SENT}
    channel.say((table, told))
    keep = frozenset(writers_of(run.method))
    with _together(together):
        shards = shard_cast(run.models, mesh_of(run.device, together.size), keep)
    inner = Member(run.method, shards, run.config.optim, run.warn, together)
    return Lead(inner, channel), {role: run.models[role] for role in run.models if role in keep}


def _refuse_too_few(device: torch.device, size: int) -> None:
    if device.index is not None:
        raise ValueError(
            f"model.device={device} on {size} ranks: all of them would share one GPU. Use model.device=cuda: each rank "
            "takes its own."
        )
    if device.type == "cuda" and size > torch.cuda.device_count():
        raise ValueError(
            f"scale.ranks={size} and {torch.cuda.device_count()} GPUs: two ranks on one GPU would wait for each other. "
            "Use as many ranks as there are GPUs, or model.device=cpu."
        )


def follow() -> dict[str, Any]:
    """What every rank but the first does, from the start of the run to its end: the summary, if there is one."""
    together = ranks()
    channel = Channel()
    for number in (signal.SIGINT, signal.SIGTERM):  # the first rank decides: it finishes the step and says the end
        signal.signal(number, signal.SIG_IGN)
    first: Any = channel.hear()
    if first[0] == END:  # nothing was started
        return first[1] or {}
    table, told = first
    member = _member(table, told, together)
    failed: Exception | None = None
    while True:
        try:
            verb, given, named = channel.hear(GRACE if failed else None)
        except RuntimeError:
            if failed is None or lost(failed):
                return {}  # another rank is gone, and the first one, or whoever has started them, says so
            _give_up(together.rank, failed)
        if verb == END:
            return given or {}
        failed = _done(member, verb, *given, **named)


def _give_up(rank: int, failed: Exception) -> NoReturn:
    """It failed here and not on the first rank, which waits. At once: the usual end would wait for that rank, too."""
    if not isinstance(failed, ValueError):
        traceback.print_exception(failed)
    print(f"gruppo: rank {rank}: {failed}", file=sys.stderr, flush=True)
    os._exit(2)


def _done(member: Member, verb: str, *given: Any, **named: Any) -> Exception | None:
    """Do it. What fails on all ranks, the first one tells, and goes on or ends; what fails here alone is returned."""
    try:
        device = next(iter(member.models.values())).device
        member.do(verb, *(_on(device, x) for x in given), **{k: _on(device, x) for k, x in named.items()})
    except Exception as error:
        return error
    return None


def _on(device: torch.device, x: Any) -> Any:
    if isinstance(x, list) and x and all(isinstance(y, Tensor) for y in x):
        return [y.to(device) for y in x]
    return x.to(device) if isinstance(x, Batch) else x


def cast_of(table: Mapping[str, Any], told: Mapping[str, Any]) -> tuple[RunConfig, Method, dict[str, Any]]:
    """The models of a run as they start, in another process than the run's."""
    config: RunConfig = from_table(table)
    if config.threads:
        torch.set_num_threads(config.threads)
    device, dtype = place_of(config)
    if needed(config.deterministic, device):
        be_deterministic(RunConfig)  # to the end of this process
    m, method = config.model, with_companions(config.method)
    policy = load_policy(m.name, dtype, device, config.seed, m.lora, m.checkpointing, m.sharpen)
    return config, method, build_cast(method, policy, Context(**told))


def _member(table: Mapping[str, Any], told: Mapping[str, Any], together: Ranks) -> Member:
    config, method, models = cast_of(table, told)
    mesh = mesh_of(place_of(config)[0], together.size)
    return Member(method, shard_cast(models, mesh), config.optim, _silent, together)


def _silent(words: str) -> None:
    pass


def _shapes(tables: Mapping[str, Tensors]) -> dict[str, dict[str, Tensor]]:
    """What the others are told of a checkpoint: the values come weight by weight, and single numbers with this."""
    return {
        role: {k: x if not x.dim() else torch.empty(x.shape, dtype=x.dtype, device="meta") for k, x in table.items()}
        for role, table in tables.items()
    }
