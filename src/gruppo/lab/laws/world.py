"""A small world for the laws: tiny models in float64, and the real learner, for the episodes of `episodes.py`."""

from collections.abc import Coroutine, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cache, lru_cache
from inspect import iscoroutine
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gruppo.data import Batch, Episode, pack
from gruppo.data.prefix import WORTH
from gruppo.engines.native import NativeEngine
from gruppo.envs.base import POLICY
from gruppo.lab.laws.episodes import VOCAB, Letters, rewritable, with_notes
from gruppo.policies import Critic, TinyConfig, TinyTransformer
from gruppo.stages import Context, Memory, Method, Need, Sampling, Stats
from gruppo.stages.goal import Goal
from gruppo.stages.readouts import READOUTS
from gruppo.stages.select import through_first_door
from gruppo.stages.walk import Walk, as_needs
from gruppo.stages.writers import by_writer, cast_of, with_companions
from gruppo.train.forward import put_into, serve
from gruppo.train.learner import Learner, OptimConfig
from gruppo.train.waiting import waited

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


@cache
def _shape() -> TinyTransformer:
    return TinyTransformer(TinyConfig(vocab=VOCAB, dim=8, layers=1, heads=2, ffn=12, context=64), 0).double()


@cache
def _critic_shape(outputs: int) -> Critic:
    return Critic(_shape(), outputs).double()


@lru_cache(maxsize=64)
def _noise(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in _shape().parameters()]


def twin(model: M) -> M:
    """A copy of the model, seven times as fast as `deepcopy`: the laws make thousands of these small, plain models."""
    out = model.__class__.__new__(model.__class__)
    out.__dict__.update(model.__dict__)
    mine = {
        k: None if p is None else nn.Parameter(p.detach().clone(), p.requires_grad)
        for k, p in model._parameters.items()
    }
    children = {k: None if m is None else twin(m) for k, m in model._modules.items()}
    out.__dict__.update(_parameters=mine, _buffers=dict(model._buffers), _modules=children)
    return out


def tiny(seed: int, near: TinyTransformer | None = None, width: float = 0.3) -> TinyTransformer:
    """A random float64 model; with `near`, a small change of that model, so that ratios are near 1."""
    model = twin(_shape() if near is None else near)
    with torch.no_grad():
        for p, noise in zip(model.parameters(), _noise(seed), strict=True):
            if near is None:
                p.copy_(noise * width)
            else:
                p.add_(0.6 * (noise * width))
    return model


class NothingToLearn(ValueError):
    """Selection has left no episode to learn from."""


class World:
    """A method with models, learner and context: episodes in, gradients out."""

    def __init__(self, method: Method, seed: int = 0, *, on_policy: bool = False) -> None:
        method = with_companions(method)
        self.method, self.seed, self.on_policy = method, seed, on_policy
        policy = tiny(seed)
        self.models: dict[str, Any] = {"policy": policy}
        old = policy if on_policy else tiny(seed + 1, policy)
        self.before: dict[str, Any] = {"old": old, "policy": old}  # at the start of the step
        for i, (name, role) in enumerate(method.cast.items()):
            if name != "policy":
                near = tiny(seed + 2 + i, policy)
                self.models[name] = self._critic(near, seed, role.outputs) if role.as_ == "head" else near
                moved = tiny(seed + 50 + i, near) if role.train and not on_policy else near
                self.before[name] = self._critic(moved, seed, role.outputs) if role.as_ == "head" else moved
        self.learner = Learner(method, self.models, OptimConfig())
        self.share = WORTH
        self.walk = Walk(method, self.read, packed=self.pack)
        self.walk.read_episodes = self.read_now
        self.store: list[Episode] = []
        ctx = Context(step=1, steps=10, seed=seed, memory=Memory(), samples=4, sampling=Sampling(max_tokens=8))
        ctx.tokenizer = Letters()
        self.ctx = self.walk.opened(ctx)
        self.ctx.fresh = lambda n: []
        self.learner.begin(self.ctx)

    def _critic(self, trunk: TinyTransformer, seed: int, outputs: int) -> Critic:
        critic = twin(_critic_shape(outputs))
        critic.trunk = twin(trunk)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            critic.value.weight.copy_(torch.randn(critic.value.weight.shape, generator=generator, dtype=torch.float64))
        return critic

    def read(self, role: str, batch: Batch, needs: Seq[Need]) -> dict[str, Tensor]:
        """What a role says with its weights at the start of the step."""
        return self._read(self.before, role, batch, needs)

    def _read(self, models: Mapping[str, Any], role: str, batch: Batch, needs: Seq[Need]) -> dict[str, Tensor]:
        """Of every row, what its writer says, or the role beside that writer."""
        out: dict[str, Tensor] = {}
        for writer, part in by_writer(self.method, batch):
            found = serve(cast_of(models, writer)[role], part, needs, cast=cast_of(self.models, writer))
            if part is batch:
                return found
            put_into(out, batch, part, needs, found)
        return out

    def read_now(self, episodes: Seq[Episode], role: str = "policy", readouts: Seq[str | Need] = ("logp",)) -> Batch:
        """ctx.read: what a role says now. What is remembered was learned under other weights."""
        needs = as_needs(role, readouts)
        batch = self.pack(episodes, views=[n.view for n in needs])
        for n in needs:
            batch = batch.with_columns(**self._read(self.models, n.role, batch, [n]))
        return batch

    def pack(self, episodes: Seq[Episode], drawn: Mapping[str, int] | None = None, views: Seq[str] = ()) -> Batch:
        """In float64; for a step, as if selection had dropped one more group."""
        lost = None if drawn is None else {**drawn, "lost": 2}
        return pack(episodes, drawn=lost, views=views, dtype=torch.float64, share=self.share)

    def scored(self, episodes: Seq[Episode]) -> list[Episode]:
        """Copies of the episodes, with notes and with all rewards of single episodes; every writer has its part."""
        mine = [rewritable(e) for e in with_notes(self.method, episodes)]
        agents = (POLICY, *self.method.writers)
        for e in mine if len(agents) > 1 else ():
            for turn in e.turns:
                turn.agent = agents[(e.uid + turn.sequence) % len(agents)]
        return at_once(self.walk.rewarded(self.ctx, mine))

    def selected(self, episodes: Seq[Episode]) -> list[Episode]:
        """Through the reward room and the first door of select."""
        return self.kept(self.scored(episodes))

    def kept(self, scored: Seq[Episode]) -> list[Episode]:
        """Through the first door of select, then with the rewards that compare a group."""
        kept = through_first_door(self.ctx, self.method.select, list(scored))[0]
        return at_once(self.walk.compared(self.ctx, kept))

    def packed(self, episodes: Seq[Episode], share: float = WORTH, **columns: Tensor) -> Batch:
        """The batch with its needs, before credit. `share` as in `pack`."""
        self.share = share
        return self.joined(self.selected(episodes), episodes).with_columns(**columns)

    def joined(self, kept: Seq[Episode], episodes: Seq[Episode]) -> Batch:
        """What selection kept of the episodes, packed, with the needs of the batch."""
        batch = self.walk.batch_of(self.ctx, episodes, kept, lazy=False)
        if batch is None:
            raise NothingToLearn(
                "select has left nothing to learn from of the episodes of the laws, so nothing can be compared. Look "
                "at its first door: it is shown right and wrong answers, groups of one and equal ones."
            )
        return batch

    def prepared(self, batch: Batch) -> Batch:
        """After credit and the second door of select."""
        return self.walk.credited(self.ctx, batch)

    def grad(self, batch: Batch, role: str = "policy", cut: Seq[Tensor] | None = None, **options: Any) -> Tensor:
        """The flat gradient of the role's parameters."""
        return self.learner.gradient(role, batch, cut=cut, **options)

    def updated(self, episodes: Seq[Episode]) -> None:
        """One update on these episodes. One that draws finds an engine, which samples from the world's policy."""
        kept = self.selected(episodes)
        batch = self.prepared(self.joined(kept, episodes))
        self.ctx.episodes = kept
        self.ctx.engine = NativeEngine({"policy": self.models["policy"]}, eos=Letters.eos)
        taken = self.method.update(self.ctx, self.learner, batch)
        if iscoroutine(taken):
            waited(taken)

    def gradient(self, episodes: Seq[Episode], role: str = "policy", **options: Any) -> Tensor:
        return self.grad(self.prepared(self.packed(episodes)), role, **options)

    def goal(self, role: str = "policy") -> Goal:
        return Goal(self.method, self.ctx, role)

    def statistics(self, batch: Batch, role: str = "policy") -> dict[str, Tensor]:
        """Synthetic statistics, for laws that need no model."""
        generator, goal = torch.Generator().manual_seed(self.seed), self.goal(role)
        return {n.column: self.synthetic(n, batch, generator) for n in (*goal.needs(), *goal.others())}

    def synthetic(self, n: Need, batch: Batch, generator: torch.Generator) -> Tensor:
        """Random values of a need, as wide as those of its role."""
        made, wide = READOUTS[n.readout], self.method.cast[n.role].outputs
        values = [made.synthetic(generator, batch.size(n.at), torch.float64) for _ in range(wide)]  # type: ignore[arg-type]
        return values[0] if wide == 1 else torch.stack(values, 1)

    def own(self, role: str = "policy") -> set[str]:
        """The statistics that have a gradient: those of the role itself."""
        return {n.column for n in self.goal(role).needs()}

    def value(self, batch: Batch, stats: dict[str, Tensor], role: str = "policy") -> Tensor:
        """J for given statistics."""
        if "logp_old_N" not in batch.columns and "logp_N" in stats:
            batch = batch.with_columns(logp_old_N=stats["logp_N"].detach())
        return self.goal(role).whole(batch, Stats(stats)).value.double()

    def slopes(self, batch: Batch, stats: dict[str, Tensor], role: str = "policy") -> dict[str, Tensor]:
        """dJ/dstatistic; 0 for those of other roles."""
        own = self.own(role)
        leaves = {k: v.detach().clone().requires_grad_(k in own) for k, v in stats.items()}
        value, out = self.value(batch, leaves, role), {k: torch.zeros_like(v) for k, v in stats.items()}
        if not value.requires_grad:
            return out
        mine = [k for k in stats if k in own]
        slopes = torch.autograd.grad(value, [leaves[k] for k in mine], allow_unused=True)
        return out | {k: g for k, g in zip(mine, slopes, strict=True) if g is not None}


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the coroutine waits for something")


def random_cut(batch: Batch, seed: int) -> list[Tensor]:
    """Sequences, shuffled and split into two to five micro-batches, across groups and episodes."""
    generator = torch.Generator().manual_seed(seed)
    size = batch.size("S")
    order = torch.randperm(size, generator=generator)
    parts = int(torch.randint(2, 6, (1,), generator=generator))
    return [p for p in torch.tensor_split(order, min(parts, size)) if len(p)]


def bare(method: Method) -> Method:
    """Only credit and objective: no penalties (nor any in the credit), only the task reward, and no group dropped."""
    hidden = {name: 0.0 for name in ("kl_coef", "entropy_coef") if hasattr(method.credit, name)}
    select = tuple(o for o in method.select if not hasattr(o, "episodes"))
    return method.but(penalties=(), reward=(), select=select, credit=replace(method.credit, **hidden))
