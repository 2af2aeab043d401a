"""A method on the bench: the gradient of every draw, from the method's own rooms and the trainer's own terms.

The gradient of an objective is Σ dJ/dstatistic · dstatistic/dθ. The first factor comes from the real code, draw by
draw, because statistics, denominators and hinges belong to one step; the second is a table, since a token in a state
has the same log-probability wherever it stands. So nothing is approximated, and no formula is written twice.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Use, key_hash, pack
from gruppo.lab.exact.bench import Bench, Drawn, LabContext
from gruppo.lab.exact.groups import Script, Unlike
from gruppo.lab.exact.world import TableCritic, TablePolicy
from gruppo.stages import Ask, Memory, Method, Need, Sampling, Stats, StepRecord
from gruppo.stages.check import check_first_batch, problems
from gruppo.stages.prompting import prompts_for
from gruppo.stages.recorded import Recorded
from gruppo.stages.reward import add_components
from gruppo.stages.rollout import Group
from gruppo.stages.select import through_first_door, through_second_door
from gruppo.train.forward import serve
from gruppo.train.learner import Learner, OptimConfig


@dataclass(frozen=True)
class Moments:
    """What a method does over all draws at one policy."""

    chance_C: Tensor
    subset_C: Tensor  # which prompts were asked
    grad_CT: Tensor  # the gradient of each draw
    adv_I: Tensor | None  # Σ over draws of P(draw) · advantage of an answer / samples of the step, by place
    dropped: float  # probability that selection leaves nothing to learn from

    @property
    def mean_T(self) -> Tensor:
        return self.chance_C @ self.grad_CT

    def joined(self, other: "Moments") -> "Moments":
        """Half of each."""
        return Moments(
            torch.cat([self.chance_C, other.chance_C]) / 2,
            torch.cat([self.subset_C, other.subset_C]),
            torch.cat([self.grad_CT, other.grad_CT]),
            None if self.adv_I is None or other.adv_I is None else (self.adv_I + other.adv_I) / 2,
            (self.dropped + other.dropped) / 2,
        )

    def variance(self) -> float:
        """The trace of the covariance from the answers alone: inside each choice of prompts, then averaged."""
        total = 0.0
        for s in torch.unique(self.subset_C):
            here = self.subset_C == s
            chance, grad = self.chance_C[here], self.grad_CT[here]
            share = chance.sum()
            centred = grad - (chance @ grad) / share
            total += float(chance @ (centred * centred).sum(1))
        return total


class Trial:
    """One method on the bench, with a step of `prompts` × `samples` answers."""

    def __init__(self, method: Method, bench: Bench, prompts: int, samples: int) -> None:
        # A role that a run must be given stands here at the policy's start, as every frozen role does.
        given = {name: replace(role, start=role.start or "policy") for name, role in method.cast.items()}
        self.method = method = method.but(cast=given)
        self.bench, self.world = bench, bench.world
        self.prompts, self.samples = prompts, samples
        self.draws = bench.draws(prompts, samples)
        self.script = Script(bench.world, lambda *key: self.ctx.uniform(*key))
        longest = max(map(len, self.world.answers)) + 1
        self.ctx = LabContext(
            step=bench.warm, steps=100, seed=bench.seed, memory=Memory(), prompts=prompts, samples=samples,
            engine=self.script, tokenizer=self.world.tokenizer, sampling=Sampling(max_tokens=longest + 1),
        )  # fmt: skip
        self.ctx.fresh, self.ctx.score, self.ctx.reward = self._fresh, self._score, self._judged
        doors = any(hasattr(o, "episodes") for o in method.select)
        self.own_rollout = method.rollout != Group() or bool(method.prompting)
        self.plain = not (self.own_rollout or doors or method.reward)
        self.checked, self.error = False, 0.0
        self.runner = asyncio.Runner()
        for said in problems(method, self.ctx, samples=samples, can=self.script.can):
            raise Unlike(said.removeprefix(f"{method.name}: ").rstrip("."))
        self.at(self.world.theta)
        views = dict.fromkeys(n.view for n in [*self.batch_needs, *self.learner.needs("policy")])
        self.views = list(dict.fromkeys(("as_trained", *views)))
        self._remember()

    def close(self) -> None:
        self.runner.close()

    def _fresh(self, n: int) -> list[Ask]:
        self.ctx.again += n
        return []

    def _score(self, episodes: Sequence[Episode], role: str = "policy", readouts: Sequence[str] = ("logp",)) -> Batch:
        batch = pack(episodes, dtype=torch.float64)
        needs = [Need(r, role) for r in readouts]
        return batch.with_columns(**serve(self.models[role], batch, needs, cast=self.models))

    # the models and what they know

    def at(self, theta: Tensor) -> None:
        """Stand at this policy: the models, and what they say of every edge. Frozen roles stay at the start."""
        policy, old = (TablePolicy(self.world, x) for x in (theta, self.bench.old(theta)))
        self.log_mass_QA = self.bench.log_mass(old.theta.detach())
        known = self.log_mass_QA.exp() if self.bench.critic == "exact" else None
        start = TablePolicy(self.world, self.world.theta)
        self.models: dict[str, Any] = {"policy": policy}
        for name, role in self.method.cast.items():
            if name != "policy":
                self.models[name] = TableCritic(self.world, known) if role.as_ == "head" else start
        before = {**self.models, "policy": old, "old": old}
        self.learner = Learner(self.method, self.models, OptimConfig())
        self.learner.begin(self.ctx)
        wanted = [n for _, _, n in self.method.needs(self.ctx) if n.when == "batch"]
        self.batch_needs = list(dict.fromkeys(wanted))
        self.known = {n: self._told(before[n.role], n) for n in self.batch_needs if n.at != "S"}
        self.of_sequences = {n: before[n.role] for n in self.batch_needs if n.at == "S"}  # no table: read at each draw
        self.gen_B = self._told(old, Need("logp"))
        atlas = self.bench.atlas
        rows = torch.bincount(atlas.episode_N, minlength=atlas.size("E")).tolist()
        self.gen_of_place = self.gen_B[self.bench.edges(atlas, "as_trained")].detach().float().split(rows)
        needs = self.learner.needs("policy")
        now = {n: self._told(policy, n, grad=True) for n in needs}
        self.slope_table = {n: _jacobian(x, policy.theta) for n, x in now.items()}
        self.now = {n: x.detach() for n, x in now.items()}

    def _told(self, model: Any, n: Need, grad: bool = False) -> Tensor:
        """A need of every edge, read as the trainer reads it."""
        if n.at != "N":
            raise Unlike(f"it reads {n} at level {n.at}, and the table of the laboratory holds decisions")
        plain = replace(n, view="as_trained")
        out = serve(model, self.bench.atlas, [plain], grad=grad, cast=self.models)[plain.column]
        if out.dim() != 1:
            raise Unlike(f"it reads {n}, which is no single number")
        return out[self.bench.row_of_edge]

    # one draw through the rooms

    def drawn(self, c: int, backwards: bool = False) -> Drawn | None:
        """A draw, packed; None when selection leaves nothing to learn from."""
        places = self.draws.places[c].tolist()
        if self.plain and not backwards and self.views == ["as_trained"]:
            key = (self.prompts, self.samples, c)
            if key not in self.bench.shelf:
                self.bench.shelf[key] = self._packed([self.world.episode(1000 + i, p) for i, p in enumerate(places)])
            return self.bench.shelf[key]
        if backwards:
            places.reverse()
        if self.own_rollout:
            episodes = self.runner.run(self._rolled_out(places))
        else:
            episodes = [self.world.episode(1000 + i, p) for i, p in enumerate(places)]
            for e, p in zip(episodes, places, strict=True):  # a reward may ask how likely an answer was
                e.sequences[0].logp[e.sequences[0].prompt_len :] = self.gen_of_place[p]
        add_components(self.ctx, self.method.reward, episodes)
        kept = [e for e in through_first_door(self.ctx, self.method.select, episodes)[0] if e.use != Use.NONE]
        for e in kept:
            e.answer = e.text
        add_components(self.ctx, self.method.reward, kept, whole=True)
        if not any(e.use != Use.BASELINE for e in kept):
            return None
        return self._packed(kept, episodes)

    async def _rolled_out(self, places: Sequence[int]) -> list[Episode]:
        """Prompting and rollout as they are, with an engine that hands out the answers of the draw."""
        asked = list(dict.fromkeys(p // len(self.world.answers) for p in places))
        # What is recorded is the draw itself; beside samples an expert writes a right answer.
        read = isinstance(self.method.rollout, Recorded)
        tasks = [self.world.told(q, places) if read else self.world.tasks[q] for q in asked]
        asks = [Ask(task, self.samples + self.method.rollout.brings) for task in tasks]
        self.script.begin(places, self.log_mass_QA.exp(), self.gen_of_place)
        prompts = [p for ask in asks for p in prompts_for(self.ctx, self.method.prompting, ask)]
        episodes = await self.method.rollout(self.ctx, prompts)
        self.script.end()
        return self._judged(episodes)

    def _judged(self, episodes: Sequence[Episode]) -> list[Episode]:
        for e in episodes:
            if e.status.judged and "task" not in e.reward:
                e.reward["task"] = self.world.score(e.task, e.text)
        return list(episodes)

    def _packed(self, kept: list[Episode], drawn: Sequence[Episode] = ()) -> Drawn:
        counts: dict[str, int] = {}
        for e in drawn or kept:
            counts[e.group] = counts.get(e.group, 0) + 1
        batch = pack(kept, drawn=counts, views=self.views, dtype=torch.float64)
        if any((s.temperature is not None or s.allowed) and e.use != Use.BASELINE for e in kept for s in e.sequences):
            raise Unlike("it learns from answers that were sampled at another temperature or truncation")
        edges = {view: self.bench.edges(batch, view) for view in self.views}
        width, index = len(self.world.answers), {t.uid: q for q, t in enumerate(self.world.tasks)}
        place_E = torch.tensor([index[e.task] * width + self.world.answers.index(e.text) for e in kept])
        return Drawn(batch, kept, edges, place_E, list(drawn or kept))

    def prepared(self, d: Drawn) -> Batch:
        """The batch after credit and the second door of select, as the loop makes it."""
        batch, gen_N = d.batch, d.batch.logp_gen_N
        exact = torch.where(torch.isnan(gen_N), gen_N, self.gen_B[d.edge_N["as_trained"]])
        columns = {n.column: x[d.edge_N[n.view]] for n, x in self.known.items()}
        if "logp_old_N" not in columns:
            columns["logp_old_N"] = self.gen_B[d.edge_N["as_trained"]]
        for n, model in self.of_sequences.items():
            columns |= serve(model, batch, [n], cast=self.models)
        batch = batch.with_columns(logp_gen_N=exact, **columns)
        batch = batch.with_columns(**self.method.credit(self.ctx, batch))
        return through_second_door(self.ctx, self.method.select, batch, Stats(), current=False)

    def slopes(self, d: Drawn, batch: Batch) -> dict[Need, Tensor]:
        """dJ/dstatistic of every decision: the objective and the penalties of one optimiser step on the whole draw."""
        leaves = {n: x[d.edge_N[n.view]].requires_grad_() for n, x in self.now.items()}
        stats = Stats({n.column: x for n, x in leaves.items()})
        fixed = Stats({k: v.detach() for k, v in stats.items()})
        batch = through_second_door(self.ctx, self.method.select, batch, fixed, current=True)
        terms = self.learner.terms("policy", batch, stats)
        loud = [t for t in terms if not (isinstance(t.coef, float | int) and t.coef == 0)]
        value = sum((t.total(t.weights(batch)) for t in loud), torch.zeros((), dtype=torch.float64))
        if not value.requires_grad:
            return {}
        grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        return {n: g for n, g in zip(leaves, grads, strict=True) if g is not None}

    def gradient(self, d: Drawn, batch: Batch) -> Tensor:
        """The gradient in θ of one draw."""
        total = torch.zeros_like(self.world.theta)
        for n, g in self.slopes(d, batch).items():
            total = total + g @ self.slope_table[n][d.edge_N[n.view]]
        if not bool(torch.isfinite(total).all()):
            raise Unlike("its gradient is not finite on some draw")
        return total

    # all draws

    def moments(self, theta: Tensor, tick: Callable[[], None] = lambda: None) -> Moments:
        self.at(theta)
        if self.own_rollout and not self.checked:
            self._order_matters_not()
        chance = self.draws.chances(self.log_mass_QA)
        first = self._pass(chance, tick)
        if not self.ctx.luck:
            return first
        second = self._pass(chance, tick, again=True)
        apart = float((first.mean_T - second.mean_T).norm())
        both = first.joined(second)
        self.error = apart / 2 / float(both.mean_T.norm()) if apart else 0.0
        return both

    def _pass(self, chance: Tensor, tick: Callable[[], None], again: bool = False) -> Moments:
        """Every draw, through the rooms. Dice of the method's own are thrown more often where a draw is probable."""
        grads, weight, which = list[Tensor](), list[float](), list[int]()
        adv_I, dropped = torch.zeros(self.draws.counts.shape[1], dtype=torch.float64), 0.0
        has_adv = "adv_N" in self.method.credit.gives
        for c, p in enumerate(chance.tolist()):
            if c % 16 == 0:
                tick()
            throw, throws = 0, 1
            while throw < throws:
                self.ctx.seed = int(key_hash(self.bench.seed, c, throw, int(again))) % 2**31
                grad, adv = self._through(c)
                throws = 1 + int(p * len(chance)) if self.ctx.luck else 1
                grads.append(grad)
                weight.append(p / throws)
                which.append(c)
                dropped += p / throws if adv is None else 0.0
                if adv is not None and has_adv:
                    adv_I.index_add_(0, adv[0], adv[1] * p / throws / (self.prompts * self.samples))
                throw += 1
        subset = self.draws.subset[torch.tensor(which)]
        chances = torch.tensor(weight, dtype=torch.float64)
        return Moments(chances, subset, torch.stack(grads), adv_I if has_adv else None, dropped)

    def _through(self, c: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The gradient of a draw, with the place and the advantage of each episode; None when nothing was left."""
        d = self.drawn(c)
        if d is None:
            return torch.zeros_like(self.world.theta), None
        batch = self.prepared(d)
        self._check(batch)
        adv_N = batch.columns.get("adv_N", batch.weight_N)
        return self.gradient(d, batch), (d.place_E, batch.gather(adv_N, "N", "E", "mean", where=batch.policy_N))

    def _check(self, batch: Batch) -> None:
        """What a run checks at its first batch, here at the first one that holds right and wrong answers."""
        rewards = batch.reward_E[batch.judged_E]
        if not self.checked and len(rewards) and float(rewards.min()) != float(rewards.max()):
            try:
                check_first_batch(self.method, batch)
            except ValueError as said:
                raise Unlike(str(said).removeprefix(f"{self.method.name}: ").rstrip(".")) from None
            self.checked = True

    def _order_matters_not(self) -> None:
        """A rollout of its own may treat answers by their order; then a group is no set."""
        for c in range(0, len(self.draws.places), max(len(self.draws.places) // 12, 1)):
            a, b = self.drawn(c), self.drawn(c, backwards=True)
            one, two = (self.gradient(d, self.prepared(d)) if d else torch.zeros(1) for d in (a, b))
            if not self.ctx.luck and not torch.allclose(one, two, atol=1e-12):
                raise Unlike("its rollout treats the answers to a prompt by their order, so groups are no sets")

    def _remember(self) -> None:
        """Memory as some steps leave it, drawn from the seed; the policy stays where it is."""
        generator = torch.Generator().manual_seed(self.bench.seed)
        chance = self.draws.chances(self.log_mass_QA)
        picks = torch.multinomial(chance, max(self.bench.warm, 1), replacement=True, generator=generator).tolist()
        for step, c in enumerate(picks[: self.bench.warm]):
            d = self.drawn(c)
            batch, kept, drawn = (None, [], []) if d is None else (self.prepared(d), d.episodes, d.drawn)
            record = StepRecord(step, kept, batch, {}, self.ctx, drawn)
            with self.ctx.memory.writing() as state:
                for _, o in self.method.occupants():
                    o.observe(record, state)
        self.ctx.again, self.ctx.luck = 0, False


def _jacobian(table_B: Tensor, theta: Tensor) -> Tensor:
    """dstatistic/dθ of every edge."""
    if not table_B.requires_grad:
        return torch.zeros(len(table_B), len(theta), dtype=torch.float64)
    rows = [torch.autograd.grad(x, theta, retain_graph=True)[0] for x in table_B]
    return torch.stack(rows)
