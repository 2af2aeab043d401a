"""What is worth learning from? Two doors: episodes before statistics (and draw again), tokens after credit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Status
from gruppo.stages.context import Ask, Context, Prompt
from gruppo.stages.occupant import Occupant
from gruppo.stages.readouts import Need, Stats, need


class SelectEpisodes(Protocol):
    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]: ...


class SelectTokens(Protocol):
    current: bool  # whether it reads statistics of the model being trained: then it runs at every optimiser step

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class RedrawEqualGroups(Occupant):
    """Drop groups whose task reward is the same for all, and draw other tasks in their place (DAPO).

    Judged on the component `task`, not on the shaped sum. After `max_rounds` it learns from what there is.
    """

    max_rounds: int = 3
    min_samples = 2
    alone = "A group of one is always equal, so every group would be dropped."
    witness = {"max_rounds": 0}

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
        values: dict[str, set[float]] = {}
        for e in episodes:
            if e.status.judged and "task" in e.reward:
                values.setdefault(e.group, set()).add(e.reward["task"])
        mixed = {g for g, seen in values.items() if len(seen) > 1}
        missing = len({e.group for e in episodes}) - len(mixed)
        again: list[Ask | Prompt] = list(ctx.fresh(missing)) if missing and ctx.round < self.max_rounds else []
        return [e.group in mixed for e in episodes], again


@dataclass(frozen=True)
class TopEntropy(Occupant):
    """Learn only from the share of tokens with the highest entropy under the old policy."""

    share: float = 0.2
    current = False
    witness = {"share": 0.6}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("entropy", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        entropy_N = batch.entropy_old_N
        mine = entropy_N[batch.policy_N]
        if not len(mine):
            return batch.policy_N, torch.ones_like(entropy_N)
        count = max(int(self.share * len(mine)), 1)
        bar = torch.topk(mine, count).values[-1]
        return entropy_N >= bar, torch.ones_like(entropy_N)


@dataclass(frozen=True)
class MaskTruncated(Occupant):
    """Answers that ran out of tokens stay in the statistics, and are not learned from (DAPO's overlong filtering)."""

    current = False

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        whole_E = batch.status_E != Status.TRUNCATED
        return batch.spread(whole_E, "E", "N"), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class TruncatedImportance(Occupant):
    """Weight tokens by min(π_old / π_gen, cap): corrects a sampler whose numerics differ (card B13)."""

    cap: float = 2.0
    current = False
    witness = {"cap": 0.5}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        gap = torch.clamp(batch.logp_old_N - batch.logp_gen_N, -20.0, 20.0)
        known = batch.on_policy_N & torch.isfinite(gap)
        weight = torch.where(known, torch.exp(torch.where(known, gap, torch.zeros_like(gap))), torch.ones_like(gap))
        return torch.ones_like(known), weight.clamp(max=self.cap)


def through_first_door(
    ctx: Context, chain: Sequence[Any], episodes: list[Episode]
) -> tuple[list[Episode], list[Ask | Prompt]]:
    """keep = and; the asks of all occupants are drawn again."""
    again: list[Ask | Prompt] = []
    for occupant in chain:
        if hasattr(occupant, "episodes"):
            keep, more = occupant.episodes(ctx, episodes)
            episodes = [e for e, k in zip(episodes, keep, strict=True) if k]
            again += more
    return episodes, again


def through_second_door(ctx: Context, chain: Sequence[Any], batch: Batch, stats: Stats, *, current: bool) -> Batch:
    """keep = and, weight = product."""
    for occupant in chain:
        if hasattr(occupant, "tokens") and bool(occupant.current) is current:
            keep, weight = occupant.tokens(ctx, batch, stats)
            batch = batch.with_columns(keep_N=batch.keep_N & keep, weight_N=batch.weight_N * weight)
    return batch
