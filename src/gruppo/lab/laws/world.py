"""A small world for the laws: random episodes with every kind of row, tiny models in float64, and the real learner."""

from collections.abc import Coroutine, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gruppo.data import Batch, Episode, Note, Sequence, Source, Status, ToolCall, Turn, Use, pack
from gruppo.data.keyed import uniform
from gruppo.data.prefix import WORTH
from gruppo.data.views import as_sampled
from gruppo.policies import Critic, TinyConfig, TinyTransformer
from gruppo.stages import Ask, Context, Memory, Method, Need, Sampling, Stats, need
from gruppo.stages.goal import Goal
from gruppo.stages.occupant import NoteColumn
from gruppo.stages.readouts import READOUTS
from gruppo.stages.select import through_first_door
from gruppo.stages.walk import Walk
from gruppo.tasks import Task
from gruppo.train.forward import serve
from gruppo.train.learner import Learner, OptimConfig

VOCAB = 12
GIVEN = (Source.HINT, Source.EXPERT, Source.FORCED, Source.OPPONENT, Source.INJECTED)
UNJUDGED = (Status.ENV_ERROR, Status.OPEN, Status.TIMEOUT, Status.CANCELLED)
GROUPS = ("g0", "g1", "g2", "g3", "one", "equal", "new")  # one task each, of two domains; the last is never drawn
JUDGED = (Status.OK, Status.TRUNCATED, Status.INVALID)
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


def random_episodes(seed: int, *, groups: int = 2, mixed: bool = True, dead: bool = True) -> list[Episode]:
    """Groups of three to five judged episodes, each of one to four turns in one or two sequences.

    Every batch holds every kind of row: given tokens of every source, turns that alternate between sequences, prompts
    that differ between sampling and training, temperatures, truncation sets, turn rewards, a baseline episode.

    mixed  every group has right and wrong answers
    dead   in addition: a group of equal rewards (replayed), a group of one, episodes apart (of an expert and of the
           policy), an expert's among the others, an unused one, and failed and open ones, some with a reward
    In a group some answers are the same, others are not, and some are empty. With an odd seed the reward has two
    components, which add up to 0 or 1.
    """
    return [_fresh(e) for e in _drawn(seed, groups, mixed, dead)]


def _fresh(e: Episode) -> Episode:
    """New objects around the same arrays, which are read-only."""
    return replace(_rewritable(e), sequences=[replace(s) for s in e.sequences], notes={})


def _rewritable(e: Episode) -> Episode:
    """The episode with rewards of its own, also on its turns."""
    return replace(e, turns=[replace(t, reward=dict(t.reward)) for t in e.turns], reward=dict(e.reward))


@lru_cache(maxsize=32)  # all laws and methods use the same few seeds
def _drawn(seed: int, groups: int, mixed: bool, dead: bool) -> list[Episode]:
    rng = np.random.default_rng(seed)
    out: list[Episode] = []

    def add(group: str, reward: float | None, status: Status = Status.OK, use: Use = Use.LEARN, **rest: Any) -> None:
        out.append(_episode(rng, len(out), group, reward, status, use, **rest))

    for g in range(groups):
        size = int(rng.integers(3, 6))
        rewards = rng.integers(0, 2, size).astype(float)
        if mixed:
            rewards[:2] = [0.0, 1.0]
        rng.shuffle(rewards)
        for i, reward in enumerate(rewards.tolist()):
            use = Use.BASELINE if i == size - 1 and (g == 0 or rng.random() < 0.2) else Use.LEARN
            add(f"g{g}", reward, JUDGED[int(rng.integers(3)) if g else i % 3], use)
    if dead:
        for i, status in enumerate(UNJUDGED):
            add(f"g{i % groups}" if i < 3 else "one", (None, 1.0)[i % 2], status)
        add("g0", 1.0, use=Use.NONE)
        add("g1", 1.0, use=Use.APART, author=Source.EXPERT)
        add("g0", float(rng.integers(2)), use=Use.APART)
        add("one", float(rng.integers(2)))
        for _ in range(3):  # three times 0.7 is rounded
            add("equal", 1.0, replayed=True)
        add("g0", 1.0, author=Source.EXPERT)
    _say(seed, out)
    _act(out)
    if seed % 2:
        _in_two(seed, out)
    for s in (s for e in out for s in e.sequences):
        _lock(s.ids, s.source, s.logp, s.version, s.temperature, s.train_as, *(s.allowed or {}).values())
    return out


ANSWERS = ("7", "7", "12", "", "30")


def _say(seed: int, episodes: Seq[Episode]) -> None:
    """Answers by their index in the group: the first group begins with two equal ones, the second has an empty one."""
    rng = np.random.default_rng((seed, 1))
    start = dict(zip(dict.fromkeys(e.group for e in episodes), (0, 1, *rng.integers(5, size=9)), strict=False))
    for e in episodes:
        e.text = e.answer = ANSWERS[start[e.group] % len(ANSWERS)]
        start[e.group] += 1


THOUGHTS = ("planning", "explore", "reflection", "monitor", "")


def _act(episodes: Seq[Episode]) -> None:
    """What is said about turns: kinds of thoughts, calls of tools, actions that were void or invalid.

    It is a function of uid and turn alone, so that nothing else of an episode depends on it.
    """
    for e in episodes:
        for i, t in enumerate(e.turns):
            t.tag = THOUGHTS[(e.uid + 2 * i) % 5]
            t.tools = tuple(ToolCall("search", str(j), 0.1) for j in range((e.uid + i) % 3 if e.uid % 9 else 0))
            void, invalid = e.uid % 4 == 2 and i == 1, (e.uid + i) % 5 == 3
            t.flags = frozenset([*(["void"] if void else []), *(["invalid"] if invalid else [])])


def _in_two(seed: int, episodes: Seq[Episode]) -> None:
    """Split the reward into `task` and `style`. The sum stays the same, and `task` is above 0 where it was."""
    rng = np.random.default_rng((seed, 2))
    for e in episodes:
        style = float(rng.integers(3)) / 4 if e.group != "equal" else 0.25
        if e.reward:
            e.reward = {"task": e.reward["task"] - style, "style": style}


def _lock(*arrays: np.ndarray | None) -> None:
    for x in arrays:
        if x is not None:
            x.setflags(write=False)


def _episode(
    rng: np.random.Generator,
    number: int,
    group: str,
    reward: float | None,
    status: Status,
    use: Use,
    author: Source = Source.POLICY,
    replayed: bool = False,
) -> Episode:
    """The properties of an episode depend on its number, so that a few of them cover everything."""
    sequences: list[Sequence] = []
    queues: list[list[Turn]] = []
    for s in range(2 if number % 2 == 0 else 1):
        source, spans = [np.zeros(1, np.int8)], list[tuple[int, int]]()
        for k in range(2 if number % 6 != 3 else int(rng.integers(1, 3))):
            obs, act = int(rng.integers(1, 3)), int(rng.integers(1, 5))
            given = GIVEN[(number + 2 * s + k) % 5] if number % 2 == 0 or rng.random() < 0.3 else Source.ENV
            start = sum(map(len, source)) + obs
            source += [np.full(obs, given, np.int8), np.full(act, author, np.int8)]
            spans.append((start, start + act))
        sequences.append(_sequence(rng, number, np.concatenate(source), spans[0][0]))
        turns = [Turn(a, b, s, state=f"s{rng.integers(3)}", action_key=f"a{rng.integers(2)}") for a, b in spans]
        queues.append(turns)
    if number % 3 == 1:  # they add up to 0, so that right stays 1 and wrong 0
        size = float(rng.integers(1, 5)) / 4
        queues[0][0].reward, queues[0][1].reward = {"turn": size}, {"turn": -size}
    order = [i for i, q in enumerate(queues) for _ in q]
    turns = [queues[i].pop(0) for i in (order[::2] + order[1::2] if number % 4 == 0 else rng.permutation(order))]
    parts = {} if reward is None else {"task": reward}
    e = Episode(1000 + number, f"t-{group}", group, sequences, turns, parts, status, use, author, text="x", step=0)
    e.replayed, e.index = replayed, GROUPS.index(group)
    e.domain = f"desk/{1 + e.index % 2}"
    e.ask = Ask(Task(e.task, f"{e.index}+{e.index}=", str(2 * e.index), 1 + e.index % 2, "desk"), 4, group)
    return e


class Letters:
    """The tokenizer of the small world: a letter is a token, and several letters share one."""

    eos = 1

    def encode(self, text: str) -> np.ndarray:
        return np.array([2 + ord(letter) % (VOCAB - 2) for letter in text], np.int64)


def _sequence(rng: np.random.Generator, number: int, source: Any, prompt: int) -> Sequence:
    n, mine = len(source), source == Source.POLICY
    ids = np.concatenate([[1], rng.integers(2, VOCAB, n - 1)])
    some = {int(p): np.unique([ids[p], *rng.integers(2, VOCAB, 4)]) for p in np.flatnonzero(mine)}
    return Sequence(
        ids=ids,
        source=source,
        logp=np.where(mine, -rng.random(n) * 2 - 0.05, np.nan).astype(np.float32),
        version=np.where(mine, 0, -1).astype(np.int32),
        prompt_len=prompt,
        temperature=np.full(n, 0.7, np.float32) if number % 3 == 2 else None,
        allowed=some if number % 3 == 0 else None,
        train_as=np.array([1, *rng.integers(2, VOCAB, 2)]) if number % 4 == 1 else None,
    )


def with_rewards(episodes: Seq[Episode], reward: float) -> list[Episode]:
    """The episodes with this task reward, one value for any other component, and no turn rewards."""
    calm = [[replace(t, reward={}) for t in e.turns] for e in episodes]
    return [
        replace(e, reward={k: reward if k == "task" else 0.3 for k in e.reward}, turns=turns)
        for e, turns in zip(episodes, calm, strict=True)
    ]


def with_notes(method: Method, episodes: Seq[Episode]) -> list[Episode]:
    """The episodes with every note that an occupant reads, as if a room of the method had written them.

    The values are random, keyed by episode. Failed episodes have no notes, and so NaN in the columns.
    """
    read = {column for _, o in method.occupants() for column in o.reads if isinstance(column, NoteColumn)}
    if not read:
        return list(episodes)

    def note(e: Episode, name: str, level: str, among: tuple[float, ...]) -> Note:
        decisions = sum(len(as_sampled(s)[1]) for s in e.sequences)
        size = {"E": 1, "S": len(e.sequences), "K": len(e.turns), "N": decisions}[level]
        draw = np.array([float(uniform("note", name, e.uid, i)) for i in range(size)])
        values = np.array(among)[(draw * len(among)).astype(int)] if among else draw
        return Note(values.astype(np.float32), level, 0)

    wanted = {c.removeprefix("note_")[:-2]: (c[-1], c.among) for c in sorted(read)}
    return [
        replace(e, notes={n: note(e, n, *spec) for n, spec in wanted.items() if e.status.judged} | e.notes)
        for e in episodes
    ]


@cache
def _shape() -> TinyTransformer:
    return TinyTransformer(TinyConfig(vocab=VOCAB, dim=8, layers=1, heads=2, ffn=12, context=64), 0).double()


@cache
def _critic_shape() -> Critic:
    return Critic(_shape()).double()


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
        self.method, self.seed, self.on_policy = method, seed, on_policy
        policy = tiny(seed)
        self.models: dict[str, Any] = {"policy": policy}
        old = policy if on_policy else tiny(seed + 1, policy)
        self.before: dict[str, Any] = {"old": old, "policy": old}  # at the start of the step
        for i, (name, role) in enumerate(method.cast.items()):
            if name != "policy":
                near = tiny(seed + 2 + i, policy)
                self.models[name] = self._critic(near, seed) if role.as_ == "head" else near
                moved = tiny(seed + 50 + i, near) if role.train and not on_policy else near
                self.before[name] = self._critic(moved, seed) if role.as_ == "head" else moved
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

    def _critic(self, trunk: TinyTransformer, seed: int) -> Critic:
        critic = twin(_critic_shape())
        critic.trunk = twin(trunk)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            critic.value.weight.copy_(torch.randn(critic.value.weight.shape, generator=generator, dtype=torch.float64))
        return critic

    def read(self, role: str, batch: Batch, needs: Seq[Need]) -> dict[str, Tensor]:
        """What a role says with its weights at the start of the step."""
        return serve(self.before[role], batch, needs, cast=self.models)

    def read_now(self, episodes: Seq[Episode], role: str = "policy", readouts: Seq[str] = ("logp",)) -> Batch:
        """ctx.read: what a role says now. What is remembered was learned under other weights."""
        batch = self.pack(episodes)
        return batch.with_columns(**serve(self.models[role], batch, [need(r, role) for r in readouts]))

    def pack(self, episodes: Seq[Episode], drawn: Mapping[str, int] | None = None, views: Seq[str] = ()) -> Batch:
        """In float64; for a step, as if selection had dropped one more group."""
        lost = None if drawn is None else {**drawn, "lost": 2}
        return pack(episodes, drawn=lost, views=views, dtype=torch.float64, share=self.share)

    def scored(self, episodes: Seq[Episode]) -> list[Episode]:
        """Copies of the episodes, with notes and with all rewards of single episodes."""
        mine = [_rewritable(e) for e in with_notes(self.method, episodes)]
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

    def gradient(self, episodes: Seq[Episode], role: str = "policy", **options: Any) -> Tensor:
        return self.grad(self.prepared(self.packed(episodes)), role, **options)

    def goal(self, role: str = "policy") -> Goal:
        return Goal(self.method, self.ctx, role)

    def statistics(self, batch: Batch, role: str = "policy") -> dict[str, Tensor]:
        """Synthetic statistics, for laws that need no model."""
        generator = torch.Generator().manual_seed(self.seed)
        out: dict[str, Tensor] = {}
        for n in self.goal(role).needs():
            out[n.column] = READOUTS[n.readout].synthetic(generator, batch.size(n.at), torch.float64)  # type: ignore[arg-type]
        return out

    def value(self, batch: Batch, stats: dict[str, Tensor], role: str = "policy") -> Tensor:
        """J for given statistics."""
        if "logp_old_N" not in batch.columns and "logp_N" in stats:
            batch = batch.with_columns(logp_old_N=stats["logp_N"].detach())
        return self.goal(role).whole(batch, Stats(stats)).value.double()

    def slopes(self, batch: Batch, stats: dict[str, Tensor], role: str = "policy") -> dict[str, Tensor]:
        """dJ/dstatistic."""
        leaves = {k: v.detach().clone().requires_grad_() for k, v in stats.items()}
        value = self.value(batch, leaves, role)
        if not value.requires_grad:
            return {k: torch.zeros_like(v) for k, v in stats.items()}
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        return {k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), slopes, strict=True)}


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
