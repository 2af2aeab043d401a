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
from gruppo.methods.grpo import GRPO
from gruppo.pieces.aggregate import MEANS
from gruppo.pieces.ratio import sequence_ratio
from gruppo.pieces.stop import stop
from gruppo.pieces.surrogate import clipped
from gruppo.stages import Context, Method, Need, Occupant, Role, Schedule, Stats, Term, kind, need
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
    takes = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        learn, key = batch.learn_N, batch.level("N", "S")
        weighed = stop(batch.weight_N) * stats.logp_N + (1 - stop(batch.weight_N)) * stop(stats.logp_N)
        r_S = sequence_ratio(weighed, batch.logp_old_N, key, where=learn)
        adv_S = batch.gather(batch.adv_N, "N", "S", "mean", where=learn)
        live_S = batch.gather(learn, "N", "S", "any")
        return [Term("policy", clipped(r_S, adv_S, self.clip, self.clip), live_S, "token", at="S", additive=False)]


@dataclass(frozen=True)
class TurnScore(Occupant):
    """A term of level K: the mean score of a turn, then the mean over turns."""

    takes = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        learn = batch.learn_N
        score_K = batch.gather(batch.weight_N * batch.adv_N * stats.logp_N, "N", "K", "mean", where=learn)
        return [Term("policy", score_K, batch.gather(learn, "N", "K", "any"), "token", at="K")]


@dataclass(frozen=True)
class ExpertToo(Occupant):
    """The clipped surrogate, and the likelihood of the expert's tokens as a term of its own."""

    share: float = 0.1
    takes = ("adv_N",)
    handles = frozenset({"expert"})

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        expert_N = (batch.source_N == Source.EXPERT) & batch.spread(batch.learn_E, "E", "N") & batch.keep_N
        told = Term("expert", batch.weight_N * stats.logp_N, expert_N, "token", coef=self.share)
        return [*ClippedSurrogate()(ctx, batch, stats), told]


@dataclass(frozen=True)
class WholeStep(Occupant):
    """Log of a mean over the whole step: no cut into micro-batches leaves it as it is."""

    takes = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        score_E = batch.gather(batch.weight_N * batch.adv_N * stats.logp_N, "N", "E", "sum", where=batch.learn_N)
        live_E = batch.gather(batch.learn_N, "N", "E", "any")
        soft = torch.nn.functional.softplus(score_E)
        mean = torch.where(live_E, soft, torch.zeros_like(soft)).sum() / live_E.sum().clamp(min=1)
        return [Term("policy", torch.log1p(mean).expand(batch.size("G")), _first(batch), 1.0, at="G", additive=False)]


def _first(batch: Batch) -> Tensor:
    return torch.arange(batch.size("G")) == 0


@dataclass(frozen=True)
class WeighedKL(Occupant):
    """A coefficient of every token, and a count that is a number."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("logp", "ref"))

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        coef_N = 0.1 + 0.1 * (batch.token_N % 3).to(stats.logp_N.dtype)
        kl_N = 0.5 * (stats.logp_N - batch.logp_ref_N) ** 2
        kl_N = torch.where(kl_N < 1e3, kl_N, stop(kl_N))
        return [Term("kl", -kl_N, batch.policy_N, 30.0, coef=coef_N)]


@dataclass(frozen=True)
class NotTooSure(Occupant):
    """Drops tokens that the model being trained is sure of: runs at every optimiser step."""

    most: float = -0.1
    current = True

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


def furniture(room: str) -> list[Any]:
    """What methods put into a room, every shared occupant with its defaults, and the strange ones."""
    taken = [o for m in all_methods().values() for r, o in m.occupants() if r == room]
    shared = [cls() for cls in occupants(room).values()]
    out: list[Any] = []
    for o in [*taken, *shared, *STRANGE.get(room, ())]:
        if o not in out:
            out.append(o)
    return out


@st.composite
def combinations(draw: Any) -> Method:
    """A random method, sensible or not."""
    objectives = [o for o in furniture("objective") if not isinstance(o, ValueLoss)]
    objective = draw(st.sampled_from(objectives))
    if any(f.name == "mean" for f in dataclasses.fields(objective)):
        objective = dataclasses.replace(objective, mean=draw(st.sampled_from([*MEANS, 25.0])))
    credit = draw(st.sampled_from(furniture("credit")))
    critic = draw(st.booleans()) or "ret_N" in credit.gives
    both = critic and draw(st.booleans())

    def chain(room: str, most: int) -> tuple[Any, ...]:
        return tuple(draw(st.lists(st.sampled_from(furniture(room)), max_size=most, unique_by=kind)))

    return GRPO.but(
        name="combination",
        credit=credit,
        objective={"policy": objective, "critic": ValueLoss()} if both else objective,
        penalties=chain("penalties", 2),
        select=chain("select", 2),
        reward=chain("reward", 1),
        update=draw(st.sampled_from(furniture("update"))),
        cast=CRITIC if critic else {},
    )
