"""Steps of many seeds on batches without episodes: all seeds in one batch, or each in its own.

Rooms that compare answers inside their group cannot tell whose group it is, so the steps of all seeds go through them
as one batch. Whether that is so is not declared but tried: at steps 0, 1, 2, 4, 8, … one seed is stepped again alone,
and its gradients must be the same. Where they are not (a room compares groups, or counts over the batch), every seed
has batches of its own.
"""

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from gruppo.data import Batch, uniform
from gruppo.lab.exact.groups import Unlike
from gruppo.lab.tabular.frame import Frame
from gruppo.lab.tabular.learner import SAMPLER, TableLearner, refuse_unread
from gruppo.lab.tabular.setup import Setup
from gruppo.lab.tabular.tables import Tables
from gruppo.stages import Context, Memory, Method, Never, Occupant, kind
from gruppo.stages.curriculum import Uniform
from gruppo.stages.objective import OLD
from gruppo.stages.rollout import Group
from gruppo.stages.update import Passes
from gruppo.stages.walk import Walk
from gruppo.stages.writers import writers_of

SAME = 1e-9  # of a gradient, relative: sums in another order differ by less, and a room that mixes seeds by more


def refuse_if_episodes(method: Method, ctx: Context) -> None:
    """Why a method needs episodes, or more than tables of the policy; nothing is raised if it does not."""
    if type(method.curriculum) is not Uniform or method.prompting or method.rollout != Group():
        raise Unlike("it chooses prompts or answers itself")
    if method.reward or any(hasattr(o, "episodes") for o in method.select):
        raise Unlike("it rewards or selects episodes")
    if method.remembers_episodes:
        raise Unlike("it replays episodes")
    if watching := [kind(o) for _, o in method.occupants() if type(o).observe is not Occupant.observe]:
        raise Unlike(f"{watching[0]} remembers steps")
    if type(method.update) is not Passes:
        raise Unlike(f"its update is {kind(method.update)}")
    if set(method.objectives) != {"policy"} or len(writers_of(method)) > 1:
        raise Unlike("it trains more roles than the policy")
    if any(not isinstance(r.refresh, Never) for n, r in method.cast.items() if n != "policy"):
        raise Unlike("a role of its cast moves")
    refuse_unread(method, ctx)


class Quick:
    """All seeds of one method, step by step."""

    def __init__(
        self, method: Method, setup: Setup, tables: Tables, theta: Tensor, seeds: Tensor, given: Tensor | None = None
    ) -> None:
        self.method, self.setup, self.tables, self.seeds = method, setup, tables, seeds
        self.learner = TableLearner(method, tables, theta, setup.optim, setup.optimiser == "sgd")
        self.learner.given = theta if given is None else given
        self.memory = Memory()
        refuse_if_episodes(method, self.context(0))
        self.every = torch.arange(len(seeds))
        self.alone = [torch.tensor([i]) for i in range(len(seeds))]
        self._frames: dict[tuple[int, ...], Frame] = {}
        self.together = True
        self.past = deque([theta.clone()], maxlen=setup.lag + 1)  # policies at the starts of the last steps

    @property
    def theta(self) -> Tensor:
        return self.learner.theta

    def context(self, step: int) -> Context:
        return self.setup.context(step, self.memory, self.tables.max_tokens)

    def frame(self, rows: Tensor) -> Frame:
        key = tuple(rows.tolist()) if len(rows) < len(self.seeds) else ()
        if key not in self._frames:
            self._frames[key] = Frame(self.tables, self.seeds[rows], self.setup.prompts, self.setup.samples)
        return self._frames[key]

    def step(self, step: int) -> Mapping[str, Tensor]:
        """One step of all seeds; returns what was logged, by seed."""
        if self.setup.lag and step:
            self.past.append(self.theta.clone())
        if not self.together or len(self.seeds) == 1:
            return self._each(step)
        if step & (step - 1):  # no power of two
            return self._of(step, self.every)
        row = step.bit_length() % len(self.seeds)
        before, self.learner.trail = self.learner.saved(row), []
        logged = self._of(step, self.every)
        among, after = [g[row] for g in self.learner.trail], self.learner.saved(row)
        self.learner.restore(row, before)
        self.learner.trail = []
        self._of(step, self.alone[row])
        alone, self.learner.trail = [g[0] for g in self.learner.trail], None
        self.learner.restore(row, after)
        if (apart := _apart(among, alone)) > SAME:
            raise Mixed(f"at step {step} the gradient of a seed among others is {apart:.1g} apart from its own alone")
        return logged

    def _each(self, step: int) -> Mapping[str, Tensor]:
        logged = [self._of(step, rows) for rows in self.alone]
        return {name: torch.cat([x.get(name, torch.full((1,), torch.nan)) for x in logged]) for name in logged[0]}

    def _of(self, step: int, rows: Tensor) -> Mapping[str, Tensor]:
        ctx = self.context(step)
        asked_PX = asked(self.seeds[rows], step, self.tables.prompts, self.setup.prompts)
        sampler = self.past[0] if self.setup.lag else None
        self.learner.begin(ctx, rows, asked_PX, self.setup.measured_at(step + 1), sampler)
        frame = self.frame(rows)
        answer_E = self.learner.sampled(uniform("answer", step, frame.uid_E))
        batch = frame.batch(asked_PX, answer_E, turned(self.setup.flips(step), step, frame.uid_E))
        batch = prepared(self.method, self.learner, ctx, batch, self.setup.old)
        self.method.update(ctx, self.learner, batch)
        return {**self.learner.means(), **(batch_facts(batch, len(rows)) if self.learner.logs else {})}


def batch_facts(batch: Batch, parts: int) -> dict[str, Tensor]:
    """What a run logs of its batch after credit and selection, by part."""
    part_N, learn_N = batch.part_G[batch.up("N", "G")], batch.learn_N

    def total(x_N: Tensor) -> Tensor:
        return torch.zeros(parts, dtype=torch.float64).index_add(0, part_N, x_N.double())

    best_G, worst_G = (batch.gather(sign * batch.reward_E, "E", "G", "max") for sign in (1, -1))
    same_P = torch.zeros(parts, dtype=torch.float64).index_add(0, batch.part_G, (best_G == -worst_G).double())
    count_P = total(learn_N)
    out = {
        "dead_groups": same_P / torch.bincount(batch.part_G, minlength=parts),
        "kept": count_P / total(batch.policy_N),
    }
    if "adv_N" in batch.columns:
        adv_N = torch.where(learn_N, batch.adv_N, torch.zeros_like(batch.adv_N))
        mean_P = total(adv_N) / count_P
        spread_P = total(torch.where(learn_N, (adv_N - mean_P[part_N]) ** 2, torch.zeros_like(adv_N)))
        out["adv_std"] = (spread_P / (count_P - 1)).sqrt()
        out["adv_live"] = total(learn_N & (adv_N.abs() > 1e-9)) / count_P
        equal_N = (best_G == -worst_G)[batch.up("N", "G")]
        out["adv_equal"] = total(adv_N.abs() * equal_N) / total(adv_N.abs()).clamp(min=1e-12)
    return out


def _apart(among: list[Tensor], alone: list[Tensor]) -> float:
    """The largest difference of two lists of gradients, relative to the largest number in them."""
    if len(among) != len(alone):
        return float("inf")
    size = max((float(g.abs().max()) for g in (*among, *alone)), default=0.0)
    gap = max((float((a - b).abs().max()) for a, b in zip(among, alone, strict=True)), default=0.0)
    return gap / size if size else gap


class Mixed(ValueError):
    """The rooms of the method mix what belongs to different seeds."""


def turned(chance: float, step: int, uid_E: Tensor) -> Tensor | None:
    """The answers whose rewards are turned in a step; None if no reward is."""
    if not chance:
        return None
    noise_E = uniform("flip", step, uid_E)
    assert isinstance(noise_E, Tensor)
    return noise_E < chance


def asked(seeds: Tensor, step: int, prompts: int, count: int) -> Tensor:
    """`count` different prompts for each seed, at random; all of them in their order if that many are asked for."""
    if count == prompts:
        return torch.arange(prompts).expand(len(seeds), -1)
    noise = uniform("prompt", step, seeds[:, None], torch.arange(prompts))
    assert isinstance(noise, Tensor)
    return torch.argsort(noise, dim=1)[:, :count]


def prepared(method: Method, learner: TableLearner, ctx: Context, batch: Batch, old: str = "step") -> Batch:
    """With what rooms read, credit and selection: from here on this is the walk of a run. With `old="sampler"` π_old is
    the policy that gave the answers."""
    walk = Walk(method, learner.read)
    left_out = {OLD} if old == SAMPLER else walk.lazy_old(ctx)
    gen_N = learner.read(SAMPLER, batch, [OLD])[OLD.column]
    batch = batch.with_columns(logp_gen_N=gen_N, **({OLD.column: gen_N} if old == SAMPLER else {}))
    return walk.credited(ctx, walk.with_needs(batch, [n for n in walk.needs(ctx) if n not in left_out]))
