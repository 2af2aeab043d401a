"""A sound objective and a sound credit, in which mistakes are planted."""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch
from gruppo.pieces import advantage, surrogate
from gruppo.pieces.ratio import ratio
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need
from gruppo.stages.credit import COMPARES, to_tokens

NOW, OLD = need("logp", when="step"), need("logp", "old")


@dataclass(frozen=True)
class Objective(Occupant):
    """A sound objective, to be spoiled."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", self.over(batch), "token")]

    def over(self, batch: Batch) -> Tensor:
        return batch.learn_N

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"policy": batch.weight_N * self.per_token(batch, stats)}

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return surrogate.clipped(ratio(stats.logp_N, batch.logp_old_N), batch.adv_N, 0.2, 0.2)


@dataclass(frozen=True)
class Credit(Occupant):
    """A sound credit, to be spoiled."""

    writes = ("adv_N",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return to_tokens(batch, self.per_episode(ctx, batch))

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return advantage.z_score(batch.reward_E, batch.level("E", "G"), where=batch.judged_E)
