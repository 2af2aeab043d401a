"""Furniture for random combinations: everything registered, every shared occupant, and some strange but lawful ones."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from torch import Tensor

from gruppo.cli.overrides import occupants
from gruppo.data import Batch, Source
from gruppo.methods import all_methods
from gruppo.methods.chord import ExpertLikelihood
from gruppo.methods.dmpo import MatchDistribution
from gruppo.methods.grpo import GRPO
from gruppo.methods.seele import HintLikelihood
from gruppo.methods.vapo import ImitateRight
from gruppo.pieces.aggregate import MEANS
from gruppo.pieces.ratio import sequence_ratio
from gruppo.pieces.stop import stop
from gruppo.pieces.surrogate import clipped
from gruppo.stages import Context, Method, Need, Occupant, Role, Schedule, Stats, Term, Values, kind, need
from gruppo.stages.credit import Gae, LeaveOneOut
from gruppo.stages.objective import ClippedSurrogate, ValueLoss
from gruppo.stages.penalties import EntropyBonus, ReferenceKL
from gruppo.stages.reward import OverlongShaping
from gruppo.stages.select import TopEntropy, TruncatedImportance
from gruppo.stages.update import Passes

FEW = settings(max_examples=2, derandomize=True, deadline=None, phases=[Phase.generate], database=None)
MANY = settings(FEW, max_examples=40)
SEEDS = st.integers(0, 2**31 - 1)
NOW, OLD = need("logp", when="step"), need("logp", "old")

# Strange, but lawful: terms at other levels, other sources, selection that looks at the model being trained.


@dataclass(frozen=True)
class SequenceSurrogate(Occupant):
    """A term of level S: one ratio a sequence, as GSPO has it."""

    clip: float = 0.2
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.gather(batch.learn_N, "N", "S", "any"), at="S", additive=False)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        learn, key = batch.learn_N, batch.level("N", "S")
        weighed = stop(batch.weight_N) * stats.logp_N + (1 - stop(batch.weight_N)) * stop(stats.logp_N)
        r_S = sequence_ratio(weighed, batch.logp_old_N, key, where=learn)
        adv_S = batch.gather(batch.adv_N, "N", "S", "mean", where=learn)
        return {"policy": clipped(r_S, adv_S, self.clip, self.clip)}


@dataclass(frozen=True)
class TurnScore(Occupant):
    """A term of level K: the mean score of a turn, then the mean over turns."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.gather(batch.learn_N, "N", "K", "any"), at="K")]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        score_N = batch.weight_N * batch.adv_N * stats.logp_N
        return {"policy": batch.gather(score_N, "N", "K", "mean", where=batch.learn_N)}


@dataclass(frozen=True)
class ExpertToo(Occupant):
    """The likelihood of the experts' tokens, also of those inside other answers: a term of its own in a chain."""

    share: float = 0.1
    reads = ("expert",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        expert_N = (batch.source_N == Source.EXPERT) & batch.spread(batch.learn_E, "E", "N") & batch.keep_N
        return [Term("expert_too", expert_N, coef=self.share)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"expert_too": batch.weight_N * stats.logp_N}


@dataclass(frozen=True)
class WholeStep(Occupant):
    """Log of a mean over the whole step: no cut into micro-batches leaves it as it is."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", _first(batch), 1.0, at="G", additive=False)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        score_E = batch.gather(batch.weight_N * batch.adv_N * stats.logp_N, "N", "E", "sum", where=batch.learn_N)
        live_E = batch.gather(batch.learn_N, "N", "E", "any")
        soft = torch.nn.functional.softplus(score_E)
        mean = torch.where(live_E, soft, torch.zeros_like(soft)).sum() / live_E.sum().clamp(min=1)
        return {"policy": torch.log1p(mean).expand(batch.size("G"))}


def _first(batch: Batch) -> Tensor:
    return torch.arange(batch.size("G")) == 0


@dataclass(frozen=True)
class WeighedKL(Occupant):
    """A coefficient of every token, and a count that is a number."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("logp", "ref"))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        coef_N = 0.1 + 0.1 * (batch.token_N % 3).to(batch.weight_N.dtype)
        return [Term("kl", batch.policy_N, 30.0, coef=coef_N)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        kl_N = 0.5 * (stats.logp_N - batch.logp_ref_N) ** 2
        return {"kl": -torch.where(kl_N < 1e3, kl_N, stop(kl_N))}


@dataclass(frozen=True)
class NotTooSure(Occupant):
    """Drops tokens that the model being trained is sure of: runs at every optimiser step."""

    most: float = -0.1

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return stats.logp_N < self.most, torch.clamp(-stats.logp_N, 0.5, 2.0)


STRANGE: dict[str, list[Any]] = {
    "objective": [SequenceSurrogate(), TurnScore(), ExpertToo(), WholeStep()],
    "penalties": [WeighedKL(), ReferenceKL(kl_coef=Schedule("linear(0.1, 0.0, steps=4)"), mean="token")],
    "select": [NotTooSure(), TruncatedImportance(cap=1.1), TopEntropy(share=0.5)],
    "credit": [LeaveOneOut(kl_coef=0.2), Gae(gamma=0.9, lam=0.5, kl_coef=0.1)],
    "reward": [OverlongShaping(budget_tokens=6, buffer_tokens=4)],
    "update": [Passes(epochs=2, minibatches=2)],
}
STRANGE["penalties"].append(EntropyBonus(entropy_coef=Schedule("cosine(0.1, 0.01, steps=4)")))
STRANGE["objective"].append(ClippedSurrogate(clip_low=0.1, clip_high=0.4, clip_dual=2.0))
CRITIC = {"critic": Role(as_="head", train=True)}
# Objectives whose terms have names of their own: they stand behind others in a chain.
BEHIND = [
    ExpertToo(),
    ExpertLikelihood(),
    MatchDistribution(),
    HintLikelihood(hint_coef=0.3),
    ImitateRight(),
]


def furniture(room: str) -> list[Any]:
    """What methods put into a room, every shared occupant with its defaults, and the strange ones."""
    taken = [o for m in all_methods().values() for r, o in m.occupants() if r == room]
    shared = [cls() for cls in occupants(room).values()]
    out: list[Any] = []
    for o in [*taken, *shared, *STRANGE.get(room, ())]:
        if o not in out:
            out.append(o)
    return out


def means_for(objective: Any) -> list[str | float]:
    """Ways to average that its rows have: a pair or a group lies in no sequence."""
    if {"win_P", "label_E"} & set(objective.reads):
        return ["token", 25.0]
    return ["token", "group", "drawn_group_sum", 25.0] if "group" in str(objective.mean) else [*MEANS, 25.0]


@st.composite
def combinations(draw: Any) -> Method:
    """A random method, sensible or not."""
    objectives = [o for o in furniture("objective") if not isinstance(o, ValueLoss)]
    objective = draw(st.sampled_from(objectives))
    if any(f.name == "mean" for f in dataclasses.fields(objective)):
        objective = dataclasses.replace(objective, mean=draw(st.sampled_from(means_for(objective))))
    others = [o for o in BEHIND if kind(o) != kind(objective)]
    objectives = (objective, *draw(st.lists(st.sampled_from(others), max_size=1)))
    credit = draw(st.sampled_from(furniture("credit")))
    critic = draw(st.booleans()) or "ret_N" in credit.writes
    both = critic and draw(st.booleans())

    def chain(room: str, most: int) -> tuple[Any, ...]:
        return tuple(draw(st.lists(st.sampled_from(furniture(room)), max_size=most, unique_by=kind)))

    return GRPO.but(
        name="combination",
        credit=credit,
        objective={"policy": objectives, "critic": ValueLoss()} if both else objectives,
        penalties=chain("penalties", 2),
        select=chain("select", 2),
        reward=chain("reward", 1),
        update=draw(st.sampled_from(furniture("update"))),
        cast=CRITIC if critic else {},
    )
