"""A small world for the laws: random episodes with every kind of row, tiny models in float64, a real learner."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Sequence, Source, Status, Turn, Use, pack
from gruppo.policies import Critic, TinyConfig, TinyTransformer
from gruppo.stages import Context, Memory, Method, Sampling, Stats
from gruppo.stages.readouts import READOUTS
from gruppo.stages.select import through_second_door
from gruppo.train.forward import serve
from gruppo.train.learner import Learner, OptimConfig

VOCAB = 12
DEAD = (Status.ENV_ERROR, Status.TIMEOUT, Status.CANCELLED)


def random_episodes(seed: int, *, groups: int = 3, mixed: bool = True, dead: bool = True) -> list[Episode]:
    """Groups of three to five episodes of one to three turns in one or two sequences.

    `mixed`: every group has right and wrong answers. `dead`: one failed and one unused episode beside them.
    """
    rng = np.random.default_rng(seed)
    out: list[Episode] = []
    for g in range(groups):
        size = int(rng.integers(3, 6))
        rewards = rng.integers(0, 2, size).astype(float)
        if mixed:
            rewards[:2] = [0.0, 1.0]
        rng.shuffle(rewards)
        for i in range(size):
            status = Status([Status.OK, Status.OK, Status.TRUNCATED, Status.INVALID][rng.integers(4)])
            use = Use.BASELINE if i >= 2 and rng.random() < 0.2 else Use.LEARN
            out.append(_episode(rng, len(out), f"g{g}", float(rewards[i]), status, use))
        if dead:
            out.append(_episode(rng, len(out), f"g{g}", float("nan"), DEAD[int(rng.integers(3))], Use.LEARN))
            out.append(_episode(rng, len(out), f"g{g}", 1.0, Status.OK, Use.NONE))
    return out


def _episode(rng: np.random.Generator, number: int, group: str, reward: float, status: Status, use: Use) -> Episode:
    sequences: list[Sequence] = []
    turns: list[Turn] = []
    for s in range(int(rng.integers(1, 3))):
        ids, source, spans = [np.array([1])], [np.zeros(1, np.int8)], list[tuple[int, int]]()
        for _ in range(int(rng.integers(1, 3))):
            obs, act = int(rng.integers(1, 3)), int(rng.integers(1, 5))
            kind = Source.HINT if rng.random() < 0.3 else Source.ENV
            start = sum(map(len, ids)) + obs
            ids.append(rng.integers(2, VOCAB, obs + act))
            source.append(np.concatenate([np.full(obs, kind, np.int8), np.full(act, Source.POLICY, np.int8)]))
            spans.append((start, start + act))
        where, what = np.concatenate(ids), np.concatenate(source)
        logp = np.where(what == Source.POLICY, -rng.random(len(where)) * 2 - 0.05, np.nan).astype(np.float32)
        version = np.where(what == Source.POLICY, 0, -1).astype(np.int32)
        sequences.append(Sequence(where, what, logp, version, prompt_len=spans[0][0]))
        turns += [Turn(a, b, s, state=f"s{rng.integers(3)}", action_key=f"a{rng.integers(2)}") for a, b in spans]
    parts = {} if np.isnan(reward) else {"task": reward}
    return Episode(1000 + number, f"t-{group}", group, sequences, turns, parts, status, use, text="x", step=0)


def tiny(seed: int, near: TinyTransformer | None = None, width: float = 0.3) -> TinyTransformer:
    """A random float64 model; `near` another one if given, so that ratios are not 1 and not wild."""
    config = TinyConfig(vocab=VOCAB, dim=8, layers=1, heads=2, ffn=12, context=64)
    model = TinyTransformer(config, seed).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            noise = torch.randn(p.shape, generator=generator, dtype=p.dtype) * width
            p.copy_(noise if near is None else list(near.parameters())[i] + 0.6 * noise)
    return model


class World:
    """A method with models, learner and context: episodes in, gradients out."""

    def __init__(self, method: Method, seed: int = 0, *, on_policy: bool = False) -> None:
        self.method, self.seed, self.on_policy = method, seed, on_policy
        policy = tiny(seed)
        self.models: dict[str, Any] = {"policy": policy}
        self.before: dict[str, Any] = {"old": policy if on_policy else tiny(seed + 1, policy)}  # at the start of the step
        for i, (name, role) in enumerate(method.cast.items()):
            if name != "policy":
                near = tiny(seed + 2 + i, policy)
                self.models[name] = self._critic(near, seed) if role.as_ == "head" else near
                moved = tiny(seed + 50 + i, near) if role.train and not on_policy else near
                self.before[name] = self._critic(moved, seed) if role.as_ == "head" else moved
        self.learner = Learner(method, self.models, OptimConfig())
        self.ctx = Context(step=1, steps=10, seed=seed, memory=Memory(), samples=4, sampling=Sampling(max_tokens=8))
        self.learner.begin(self.ctx)

    def _critic(self, trunk: TinyTransformer, seed: int) -> Critic:
        critic = Critic(trunk).double()
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            critic.value.weight.copy_(torch.randn(critic.value.weight.shape, generator=generator, dtype=torch.float64))
        return critic

    def packed(self, episodes: Seq[Episode], **columns: Tensor) -> Batch:
        """The batch with its needs, before credit."""
        wanted = [n for _, _, n in self.method.needs(self.ctx) if n.when == "batch"]
        drawn = {e.group: 0 for e in episodes}
        batch = pack(episodes, drawn=drawn | {"lost": 2}, views=[n.view for n in wanted], dtype=torch.float64)
        for n in dict.fromkeys(wanted):
            batch = batch.with_columns(**serve(self.before[n.role], batch, [n]))
        return batch.with_columns(**columns)

    def prepared(self, batch: Batch) -> Batch:
        """After credit and the second door of select."""
        batch = batch.with_columns(**self.method.credit(self.ctx, batch))
        return through_second_door(self.ctx, self.method.select, batch, Stats(), current=False)

    def grad(self, batch: Batch, role: str = "policy", cut: Seq[Tensor] | None = None, two_pass: bool = False) -> Tensor:
        """The flat gradient of the role's parameters."""
        self.learner.two_pass = two_pass
        self.learner.grad(role, batch, cut=cut)
        params = [p for p in self.models[role].parameters() if p.requires_grad]
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().clone() for p in params])

    def gradient(self, episodes: Seq[Episode], role: str = "policy", **options: Any) -> Tensor:
        return self.grad(self.prepared(self.packed(episodes)), role, **options)

    def statistics(self, batch: Batch, role: str = "policy") -> dict[str, Tensor]:
        """Synthetic statistics, one generator a readout, for laws that need no model."""
        generator = torch.Generator().manual_seed(self.seed)
        out: dict[str, Tensor] = {}
        for n in self.learner.needs(role):
            out[n.column] = READOUTS[n.readout].synthetic(generator, batch.size(n.at), torch.float64)  # type: ignore[arg-type]
        return out

    def value(self, batch: Batch, stats: dict[str, Tensor], role: str = "policy") -> Tensor:
        """J of given statistics."""
        table = Stats(stats)
        if "logp_old_N" not in batch.columns:
            batch = batch.with_columns(logp_old_N=table.logp_N.detach())
        batch = through_second_door(self.ctx, self.method.select if role == "policy" else (), batch, table, current=True)
        terms = self.learner.terms(role, batch, table)
        zero = torch.zeros((), dtype=torch.float64)
        return sum((t.total(t.weights(batch)) for t in terms if not _silent(t.coef)), zero)


def _silent(coef: Any) -> bool:
    return isinstance(coef, float | int) and coef == 0


def random_cut(batch: Batch, seed: int) -> list[Tensor]:
    """Sequences shuffled and dealt into two to five micro-batches: groups and episodes are cut."""
    generator = torch.Generator().manual_seed(seed)
    size = batch.size("S")
    order = torch.randperm(size, generator=generator)
    parts = int(torch.randint(2, 6, (1,), generator=generator))
    return [p for p in torch.tensor_split(order, min(parts, size)) if len(p)]


def without_penalties(method: Method) -> Method:
    """No penalty term, and no penalty hidden in a coefficient of the credit."""
    hidden = {name: 0.0 for name in ("kl_coef", "entropy_coef") if hasattr(method.credit, name)}
    return method.but(penalties=(), credit=replace(method.credit, **hidden))
