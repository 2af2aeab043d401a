"""A method on the bench: the gradient of every draw, from the method's own rooms and the trainer's own terms.

The gradient of an objective is Σ dJ/dstatistic · dstatistic/dθ. The first factor comes from the real code, draw by
draw, because statistics, denominators and clips belong to one step. The second is a table, since a token in a state
always has the same log-probability. So nothing is approximated, and no formula is written twice.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Use, key_hash, pack
from gruppo.lab.exact.bench import Bench, Drawn, LabContext
from gruppo.lab.exact.groups import Masses, Script, Unlike
from gruppo.lab.exact.world import ExactWorld, TableCritic, TablePolicy
from gruppo.lab.laws.world import at_once
from gruppo.stages import Ask, Memory, Method, Need, Sampling, StepRecord
from gruppo.stages.check import check_first_batch, problems
from gruppo.stages.goal import Goal
from gruppo.stages.recorded import Recorded
from gruppo.stages.rollout import Group
from gruppo.stages.select import through_first_door
from gruppo.stages.walk import Walk
from gruppo.tasks.judge import Verdict
from gruppo.train.forward import serve
from gruppo.train.waiting import Loop

THROWS = 1500  # repetitions over all draws, at least, for a method that draws random numbers of its own


@dataclass(frozen=True)
class Moments:
    """What a method does over all draws at one policy."""

    chance_C: Tensor
    subset_C: Tensor  # which prompts were asked
    grad_CT: Tensor  # the gradient of each draw
    adv_I: Tensor | None  # by answer: Σ over draws of P(draw) · its advantage / samples of the step
    dropped: float  # probability that selection leaves nothing to learn from

    @property
    def mean_T(self) -> Tensor:
        return self.chance_C @ self.grad_CT

    def joined(self, other: "Moments") -> "Moments":
        """The mean of both."""
        return Moments(
            torch.cat([self.chance_C, other.chance_C]) / 2,
            torch.cat([self.subset_C, other.subset_C]),
            torch.cat([self.grad_CT, other.grad_CT]),
            None if self.adv_I is None or other.adv_I is None else (self.adv_I + other.adv_I) / 2,
            (self.dropped + other.dropped) / 2,
        )

    def variance(self) -> float:
        """The trace of the covariance within each choice of prompts, averaged: the part that comes from the answers."""
        total = 0.0
        for s in torch.unique(self.subset_C):
            here = self.subset_C == s
            chance, grad = self.chance_C[here], self.grad_CT[here]
            share = chance.sum()
            centred = grad - (chance @ grad) / share
            total += float(chance @ (centred * centred).sum(1))
        return total


class ExactJudge:
    """Scores an answer by looking it up."""

    in_order = True

    def __init__(self, world: ExactWorld) -> None:
        self.world = world

    async def score(self, items: Sequence[tuple[Any, str]]) -> list[Verdict]:
        return [Verdict({"task": self.world.score(task.uid, text)}) for task, text in items]

    async def answers(self, groups: Sequence[Sequence[tuple[Any, str]]]) -> list[list[str]]:
        return [[text for _, text in group] for group in groups]


class Trial:
    """One method on the bench, with a step of `prompts` × `samples` answers."""

    def __init__(self, method: Method, bench: Bench, prompts: int, samples: int) -> None:
        # A role that a run must provide is the initial policy here, like every frozen role.
        given = {name: replace(role, start=role.start or "policy") for name, role in method.cast.items()}
        self.method = method = method.but(cast=given)
        self.bench, self.world = bench, bench.world
        self.prompts, self.samples = prompts, samples
        self.draws = bench.draws(prompts, samples)
        self.script = Script(bench.world, lambda *key: self.ctx.uniform(*key), self.masses)
        longest = max(map(len, self.world.answers)) + 1
        self.walk = Walk(method, self.read, self.world.tasks, ExactJudge(self.world), self.pack)
        self.ctx = LabContext(
            step=bench.warm, steps=5 * max(bench.warm, 1), seed=bench.seed, memory=Memory(), prompts=prompts,
            samples=samples, engine=self.script, tokenizer=self.world.tokenizer,
            sampling=Sampling(max_tokens=longest + 1),
        )  # fmt: skip
        self.walk.opened(self.ctx)
        self.ctx.fresh = self._fresh
        doors = any(hasattr(o, "episodes") for o in method.select)
        self.own_rollout = method.rollout != Group() or bool(method.prompting)
        self.plain = not (self.own_rollout or doors or method.reward)
        self.checked, self.error = False, 0.0
        if found := problems(method, self.ctx, samples=samples):
            raise Unlike(found[0].removeprefix(f"{method.name}: ").rstrip("."))
        if several := [name for name, role in method.cast.items() if role.outputs > 1]:
            raise Unlike(f"its role {several[0]} has several outputs, and the table of the laboratory holds one value")
        self.loop = Loop()
        try:
            self.at(self.world.theta)
            if self.own_rollout:
                self._enumerate_what_it_draws()
            self._remember()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.loop.close()

    def _fresh(self, n: int) -> list[Ask]:
        self.ctx.again += n
        return []

    def _enumerate_what_it_draws(self) -> None:
        """A rollout may draw fewer answers to a prompt than samples are asked for, for example next to an expert's."""
        self.drawn(0)
        taken = self.script.taken(self.samples)
        if 0 < taken < self.samples:
            self.draws = self.bench.draws(self.prompts, taken)

    # the models and their tables

    def at(self, theta: Tensor) -> None:
        """Move to this policy: build the models, and forget their tables. Frozen roles stay at the initial policy."""
        policy, old = (TablePolicy(self.world, x) for x in (theta, self.bench.old(theta)))
        self.log_mass_QA = self.bench.log_mass(old.theta.detach())
        known = self.log_mass_QA.exp() if self.bench.critic == "exact" else None
        start = TablePolicy(self.world, self.world.theta)
        self.models: dict[str, Any] = {"policy": policy}
        for name, role in self.method.cast.items():
            if name != "policy":
                self.models[name] = TableCritic(self.world, known) if role.as_ == "head" else start
        self.before = {**self.models, "policy": old, "old": old}
        self.goal = Goal(self.method, self.ctx)
        self._tables: dict[tuple[Need, float, bool], Tensor] = {}
        self._slope_tables: dict[tuple[Need, float], Tensor] = {}
        self._masses: dict[float, Masses] = {}

    def table(self, n: Need, T: float, trained: bool = False) -> Tensor:
        """A statistic of every edge at a temperature: of the model being trained, or at the start of the step."""
        if (n, T, trained) not in self._tables:
            model = self.models["policy"] if trained else self.before[n.role]
            self._tables[n, T, trained] = self._read_atlas(model, n, T, grad=False)
        return self._tables[n, T, trained]

    def slope_table(self, n: Need, T: float) -> Tensor:
        """dstatistic/dθ of every edge, of the model being trained."""
        if (n, T) not in self._slope_tables:
            policy = self.models["policy"]
            self._slope_tables[n, T] = _jacobian(self._read_atlas(policy, n, T, grad=True), policy.theta)
        return self._slope_tables[n, T]

    def _read_atlas(self, model: Any, n: Need, T: float, grad: bool) -> Tensor:
        """A statistic of every edge, read as the trainer reads it."""
        if n.at != "N":
            raise Unlike(f"it reads {n} at level {n.at}, and the table of the laboratory holds decisions")
        plain, atlas = replace(n, view="as_trained"), self.bench.atlas
        atlas = atlas.with_columns(temperature_N=torch.full_like(atlas.temperature_N, T))
        out = serve(model, atlas, [plain], grad=grad, cast=self.models)[plain.column]
        if out.dim() != 1:
            raise Unlike(f"it reads {n}, which is not a single number")
        return out[self.bench.row_of_edge]

    def masses(self, T: float) -> Masses:
        """The probability of every answer under the policy that samples, at a temperature."""
        if T not in self._masses:
            atlas, logp_B = self.bench.atlas, self.table(Need("logp", "old"), T)
            rows = torch.bincount(atlas.episode_N, minlength=atlas.size("E")).tolist()
            logp = logp_B[self.bench.edges(atlas, "as_trained")].float().split(rows)
            log_mass_QA = (self.bench.edges_of_answer @ logp_B).view(len(self.world.rates), -1)
            self._masses[T] = Masses(log_mass_QA.exp(), logp)
        return self._masses[T]

    def read(self, role: str, batch: Batch, needs: Sequence[Need]) -> dict[str, Tensor]:
        """What the rooms read, from the tables; needs of sequences come from the model at each draw."""
        of_sequences = [n for n in needs if n.at == "S"]
        columns = serve(self.before[role], batch, of_sequences, cast=self.models) if of_sequences else {}
        return columns | {n.column: self.looked_up(batch, n) for n in needs if n.at != "S"}

    def looked_up(self, batch: Batch, n: Need, trained: bool = False) -> Tensor:
        out = torch.zeros_like(batch.weight_N)
        for T, rows in _by_temperature(batch):
            out[rows] = self.table(n, T, trained)[_edge_N(batch, n)[rows]]
        return out

    def pack(self, episodes: Sequence[Episode], drawn: Any = None, views: Sequence[str] = ()) -> Batch:
        """A batch with the edge of each decision, and with the exact log-probabilities of the sampler."""
        if any(s.allowed and e.use != Use.BASELINE for e in episodes for s in e.sequences):
            raise Unlike("it learns from answers that were sampled from a truncated distribution")
        views = list(dict.fromkeys(("as_trained", *views, *(n.view for n in self._of_goal()))))
        batch = pack(episodes, drawn=drawn, views=views, dtype=torch.float64)
        batch = batch.with_columns(**{_edge_name(view): self.bench.edges(batch, view) for view in views})
        gen_N = batch.logp_gen_N
        return batch.with_columns(
            logp_gen_N=torch.where(torch.isnan(gen_N), gen_N, self.looked_up(batch, Need("logp", "old")))
        )

    def _of_goal(self) -> list[Need]:
        return [*self.goal.needs(), *self.goal.others()]

    # one draw through the rooms

    def drawn(self, c: int, backwards: bool = False) -> Drawn | None:
        """A draw, packed; None if selection leaves nothing to learn from."""
        numbers = self.draws.places[c].tolist()
        if backwards:
            numbers.reverse()
        if self.own_rollout:
            drawn = self.loop(self._rolled_out(numbers))
        else:
            drawn = [self.world.episode(1000 + i, p) for i, p in enumerate(numbers)]
            if self.plain and not backwards:
                return self._from_shelf(c, drawn)
            for e, p in zip(drawn, numbers, strict=True):  # a reward may read the log-probabilities
                e.sequences[0].logp[e.sequences[0].prompt_len :] = self.masses(1.0).logp[p]
            drawn = at_once(self.walk.rewarded(self.ctx, drawn))
        kept = at_once(self.walk.compared(self.ctx, through_first_door(self.ctx, self.method.select, drawn)[0]))
        batch = self.walk.batch_of(self.ctx, drawn, kept, lazy=False)
        return None if batch is None else Drawn(batch, kept, drawn)

    def _from_shelf(self, c: int, drawn: list[Episode]) -> Drawn:
        """Plain draws are packed once for all methods; only the readouts are the method's own."""
        wanted = self.walk.needs(self.ctx)
        if {n.view for n in (*wanted, *self._of_goal())} - {"as_trained"}:
            counts = dict(Counter(e.group for e in drawn))
            return Drawn(self.walk.with_needs(self.pack(drawn, counts, [n.view for n in wanted]), wanted), drawn, drawn)
        key = (self.prompts, self.draws.samples, c)
        if key not in self.bench.shelf:
            self.bench.shelf[key] = self.pack(drawn, dict(Counter(e.group for e in drawn)))
        batch = self.bench.shelf[key]
        batch = batch.with_columns(logp_gen_N=self.looked_up(batch, Need("logp", "old")))
        return Drawn(self.walk.with_needs(batch, wanted), drawn, drawn)

    async def _rolled_out(self, numbers: Sequence[int]) -> list[Episode]:
        """The method's own prompting, rollout and reward, with an engine that returns the answers of the draw."""
        asked = list(dict.fromkeys(p // len(self.world.answers) for p in numbers))
        # Recorded answers are those of the draw; an expert among the samples gives a right answer.
        read = isinstance(self.method.rollout, Recorded)
        tasks = [self.world.with_recorded(q, numbers) if read else self.world.tasks[q] for q in asked]
        self.script.begin(numbers)
        asks = [Ask(task, self.samples, index=q) for q, task in zip(asked, tasks, strict=True)]
        return await self.walk.drawn(self.ctx, asks, self.method.rollout)

    def prepared(self, d: Drawn) -> Batch:
        """The batch after credit and the second door of select."""
        batch = d.batch
        if "logp_old_N" not in batch.columns:
            batch = batch.with_columns(logp_old_N=self.looked_up(batch, Need("logp", "old")))
        return self.walk.credited(self.ctx, batch)

    def gradient(self, batch: Batch) -> Tensor:
        """The gradient of one draw in θ: one optimiser step with objective and penalties on all of it."""
        leaves = {n: self.looked_up(batch, n, trained=True).requires_grad_() for n in self.goal.needs()}
        fixed = {n.column: self.looked_up(batch, n) for n in self.goal.others()}
        slopes, _ = self.goal.slopes(batch, {n.column: x for n, x in leaves.items()}, fixed=fixed)
        total = torch.zeros_like(self.world.theta)
        for n in leaves:
            if n.column in slopes:
                for T, rows in _by_temperature(batch):
                    total = total + slopes[n.column][rows] @ self.slope_table(n, T)[_edge_N(batch, n)[rows]]
        if not bool(torch.isfinite(total).all()):
            raise Unlike("its gradient is not finite on some draw")
        return total

    # all draws

    def moments(self, theta: Tensor, tick: Callable[[], None] = lambda: None) -> Moments:
        self.at(theta)
        if self.own_rollout and not self.checked:
            self._refuse_if_ordered()
        chance = self.draws.chances(self.log_mass_QA)
        first = self._pass(chance, tick)
        if not self.ctx.random:
            return first
        second = self._pass(chance, tick, again=True)
        apart = float((first.mean_T - second.mean_T).norm())
        both = first.joined(second)
        self.error = apart / 2 / float(both.mean_T.norm()) if apart else 0.0
        return both

    def _pass(self, chance: Tensor, tick: Callable[[], None], again: bool = False) -> Moments:
        """Every draw, through the rooms; probable ones several times if the method draws random numbers itself."""
        grads, weight, which = list[Tensor](), list[float](), list[int]()
        adv_I, dropped = torch.zeros(self.draws.counts.shape[1], dtype=torch.float64), 0.0
        has_adv = "adv_N" in self.method.credit.writes
        for c, p in enumerate(chance.tolist()):
            if c % 16 == 0:
                tick()
            throw, throws = 0, 1
            while throw < throws:
                self.ctx.seed = int(key_hash(self.bench.seed, c, throw, int(again))) % 2**31
                grad, adv = self._through(c)
                throws = 1 + int(p * max(len(chance), THROWS)) if self.ctx.random else 1
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
        """The gradient of a draw, with the answer and the advantage of each episode; None if nothing was left."""
        d = self.drawn(c)
        if d is None:
            return torch.zeros_like(self.world.theta), None
        batch = self.prepared(d)
        self._check(batch)
        adv_N = batch.columns.get("adv_N", batch.weight_N)
        adv_E = batch.gather(adv_N, "N", "E", "mean", where=batch.policy_N)
        return self.gradient(batch), self._by_answer(batch, d, adv_E)

    def _by_answer(self, batch: Batch, d: Drawn, adv_E: Tensor) -> tuple[Tensor, Tensor]:
        """The number of each episode's answer and its advantage, leaving out texts without an answer."""
        width, prompt = len(self.world.answers), {t.uid: q for q, t in enumerate(self.world.tasks)}
        number = {e.uid: prompt[e.task] * width + self.world.answer_of(e.text) for e in d.drawn}
        none = {e.uid for e in d.drawn if self.world.answer_of(e.text) < 0}
        uids = batch.uid_E.tolist()
        rows = [i for i, uid in enumerate(uids) if uid in number and uid not in none]
        return torch.tensor([number[uids[i]] for i in rows], dtype=torch.int64), adv_E[rows]

    def _check(self, batch: Batch) -> None:
        """What a run checks at its first batch, here at the first one with right and wrong answers."""
        rewards = batch.reward_E[batch.judged_E]
        if not self.checked and len(rewards) and float(rewards.min()) != float(rewards.max()):
            try:
                check_first_batch(self.method, batch)
            except ValueError as said:
                raise Unlike(str(said).removeprefix(f"{self.method.name}: ").rstrip(".")) from None
            self.checked = True

    def _refuse_if_ordered(self) -> None:
        """Draws are enumerated as sets of answers, so a rollout must not depend on their order."""
        for c in range(0, len(self.draws.places), max(len(self.draws.places) // 12, 1)):
            a, b = self.drawn(c), self.drawn(c, backwards=True)
            one, two = (self.gradient(self.prepared(d)) if d else torch.zeros(1) for d in (a, b))
            if not self.ctx.random and not torch.allclose(one, two, atol=1e-12):
                raise Unlike("its rollout treats the answers to a prompt by their order, so groups are not sets")

    def _remember(self) -> None:
        """Fill memory with some steps, drawn with the seed; the policy does not change."""
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
        self.ctx.again, self.ctx.random = 0, False


def _edge_name(view: str) -> str:
    return "edge_N" if view == "as_trained" else f"edge_{view}_N"


def _edge_N(batch: Batch, n: Need) -> Tensor:
    return batch.columns[_edge_name(n.view)]


def _by_temperature(batch: Batch) -> list[tuple[float, Tensor]]:
    """(temperature, decisions sampled at it); greedy answers have no gradient and count as temperature 1."""
    warm_N = torch.where(batch.temperature_N > 0, batch.temperature_N, torch.ones_like(batch.temperature_N))
    return [(float(T), torch.nonzero(warm_N == T)[:, 0]) for T in torch.unique(warm_N)]


def _jacobian(table_B: Tensor, theta: Tensor) -> Tensor:
    """dstatistic/dθ of every edge."""
    if not table_B.requires_grad:
        return torch.zeros(len(table_B), len(theta), dtype=torch.float64)
    rows = [torch.autograd.grad(x, theta, retain_graph=True)[0] for x in table_B]
    return torch.stack(rows)
