"""Credits with a mistake each, in their numbers or in their state; planted.py says which law catches it."""

import random
from dataclasses import dataclass
from typing import ClassVar

import torch
from sound import Credit
from torch import Tensor

from gruppo.data import Batch, Use
from gruppo.pieces import advantage
from gruppo.stages import Context, Memory, StepRecord
from gruppo.stages.credit import RunningBaseline


@dataclass(frozen=True)
class ReadsTheRow(Credit):
    """The first half of the batch gets more (pitfall 25)."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        half = torch.arange(batch.size("E")) < batch.size("E") // 2
        return super().per_episode(ctx, batch) * torch.where(half, 1.0, 0.5)


@dataclass(frozen=True)
class FailuresAreZero(Credit):
    """A failed episode enters the mean of its group as a reward of 0 (pitfall 21)."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        reward_E = torch.where(torch.isnan(batch.reward_E), torch.zeros_like(batch.reward_E), batch.reward_E)
        inside = batch.use_E <= Use.BASELINE
        return torch.where(inside, advantage.z_score(reward_E, batch.level("E", "G"), where=inside), 0.0 * reward_E)


@dataclass(frozen=True)
class FailuresInMemory(RunningBaseline):
    """The running mean counts failed episodes as 0: seen one step later."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        if record.batch is not None:
            memory["baseline"] = float(torch.nan_to_num(record.batch.reward_E).mean())


@dataclass(frozen=True)
class PutAsideCounts(Credit):
    """Episodes apart are in the statistics of the others."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        inside = ~torch.isnan(batch.reward_E)
        return advantage.z_score(batch.reward_E, batch.level("E", "G"), where=inside)


@dataclass(frozen=True)
class NoGuard(Credit):
    """(R − mean) / std, and nothing for a group of equal rewards (pitfall 16)."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        reward_E = torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))
        groups = batch.level("E", "G")
        mean = batch.gather(reward_E, "E", groups, "mean", where=batch.judged_E)[groups.index]
        square = batch.gather((reward_E - mean) ** 2, "E", groups, "mean", where=batch.judged_E)[groups.index]
        return torch.where(batch.judged_E, (reward_E - mean) / square.sqrt(), torch.zeros_like(mean))


@dataclass(frozen=True)
class CancellingVariance(Credit):
    """E[x²] − E[x]²: what is left of equal rewards is rounding, and its root is divided by (pitfall 16)."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        x = torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))
        groups = batch.level("E", "G")
        mean, square = (batch.gather(y, "E", groups, "mean", where=batch.judged_E)[groups.index] for y in (x, x * x))
        z = (x - mean) / (square - mean * mean).abs().sqrt().clamp(min=1e-30)
        return torch.where(batch.judged_E, z, torch.zeros_like(z))


@dataclass(frozen=True)
class RawReward(Credit):
    """No baseline at all."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))


@dataclass(frozen=True)
class ClaimsShift(Credit):
    """Half a baseline, which claims to be a whole one."""

    ignores = ("shift",)

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        mean = batch.gather(batch.reward_E, "E", "G", "mean", where=batch.judged_E)
        adv_E = batch.reward_E - 0.5 * batch.spread(mean, "G", "E")
        return torch.where(batch.judged_E, adv_E, torch.zeros_like(adv_E))


@dataclass(frozen=True)
class ClaimsScale(Credit):
    """Centred, not divided by the deviation, which claims that scale does not matter."""

    ignores = ("shift", "scale")

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return advantage.leave_one_out(batch.reward_E, batch.level("E", "G"), where=batch.judged_E)


@dataclass(frozen=True)
class UpsideDown(Credit):
    """Worse than the others is better."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return -super().per_episode(ctx, batch)


@dataclass(frozen=True)
class UpsideDownWhereEasy(Credit):
    """The sign is wrong in one kind of group only; summed over the batch, it still looks right."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        adv_E, groups = super().per_episode(ctx, batch), batch.level("E", "G")
        biggest = (
            batch.gather(batch.judged_E, "E", groups, "sum") == batch.gather(batch.judged_E, "E", groups, "sum").max()
        )
        small = ~biggest | (torch.arange(groups.size) != int(torch.nonzero(biggest)[0]))
        return torch.where(small[groups.index], -0.1 * adv_E, adv_E)


@dataclass(frozen=True)
class NanThroughTheMean(Credit):
    """Divides by a scale of the whole batch, of which dead rows are a part: 0 · NaN is NaN."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        alive = batch.judged_E.to(batch.reward_E.dtype)
        size = (
            (torch.nan_to_num(batch.reward_E, nan=0.0, posinf=float("inf"), neginf=-float("inf")) * alive).abs().sum()
        )
        return super().per_episode(ctx, batch) / (1 + size)


# state


@dataclass(frozen=True)
class WritesInCall(Credit):
    """State changes while it is read."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        ctx.memory["seen"] = ctx.memory.get("seen", 0) + 1
        return super().per_episode(ctx, batch)


@dataclass(frozen=True)
class WritesDeeper(Credit):
    """The same, inside a table that memory holds."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        memory.setdefault("table", {})

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        if "table" in ctx.memory:
            ctx.memory["table"]["seen"] = True
        return super().per_episode(ctx, batch)


@dataclass(frozen=True)
class HiddenState(Credit):
    """Keeps a count where no checkpoint looks."""

    calls: ClassVar[list[int]] = []

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        self.calls.append(1)
        return super().per_episode(ctx, batch) * (1 + 0.01 * len(self.calls))


@dataclass(frozen=True)
class UnkeyedRandomness(Credit):
    """Draws from a generator that a resumed run would not find where it was."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return super().per_episode(ctx, batch) * (1 + 0.1 * random.random())


@dataclass(frozen=True)
class RemembersAnObject(Credit):
    """A set cannot be in a checkpoint."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        memory["seen"] = {e.uid for e in record.episodes}


@dataclass(frozen=True)
class WantsABatch(Credit):
    """A step may have nothing to learn from; this one falls over."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        assert record.batch is not None
        memory["size"] = record.batch.size("E")


@dataclass(frozen=True)
class WritesMore(Credit):
    """Returns a column that it does not declare, so that nothing may read it."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        found = super().__call__(ctx, batch)
        return {**found, "extra_N": found["adv_N"] + 1}


@dataclass(frozen=True)
class WritesLess(Credit):
    """Declares a column that it does not return."""

    writes = (*Credit.writes, "extra_N")
