"""What is worth learning from? Two doors: episodes before the batch (with redraws), tokens after credit."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Status, Use
from gruppo.data.episode import FLAGS
from gruppo.data.levels import refuse_word
from gruppo.pieces.ratio import product_ratio, ratio, sequence_ratio
from gruppo.stages.context import Ask, Context, Prompt
from gruppo.stages.occupant import Occupant, setting
from gruppo.stages.readouts import Need, Stats, need
from gruppo.stages.requires import Samples

Weighed = Literal["token", "sequence", "geometric"]  # the unit of an importance weight


class SelectEpisodes(Protocol):
    """(keep for each episode, asks or prompts to draw in addition)."""

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]: ...


class SelectTokens(Protocol):
    """(keep, weight) of each token. One that needs current statistics (`when="step"`) runs at every optimiser step."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class RedrawEqualGroups(Occupant):
    """Drop groups in which all task rewards are equal, and draw other tasks instead (DAPO).

    Only the component `task` counts, not the shaped sum; in a game, that of each agent the policy speaks for. Episodes
    that are in no statistics do not count, and share the fate of their group. After `max_rounds` redraws it learns from
    what there is.
    """

    max_rounds: int = setting(3, low=0)
    requires = (Samples(2, "A group of one is always equal, so every group would be dropped."),)

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
        values: dict[tuple[str, str], set[float]] = {}
        for e in episodes:
            if e.status.judged and e.use in (Use.LEARN, Use.BASELINE):
                for agent, score in e.scores.items():
                    values.setdefault((e.group, agent), set()).add(score)
        mixed = {group for (group, _), seen in values.items() if len(seen) > 1}
        missing = len({e.group for e in episodes}) - len(mixed)
        again: list[Ask | Prompt] = list(ctx.fresh(missing)) if missing and ctx.round < self.max_rounds else []
        return [e.group in mixed for e in episodes], again


@dataclass(frozen=True)
class TopEntropy(Occupant):
    """Learn only from the share of the batch's tokens with the highest entropy under the old policy.

    ceil(share · tokens) tokens pass, and all that tie with the last of them.
    counted  dropped tokens stay in the denominators (TRL); else they do not (arXiv:2506.01939, equation 6)
    """

    version = 2  # 1 rounded the number of tokens down
    share: float = setting(0.2, low=0, high=1)
    counted: bool = setting(False, added=True)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("entropy", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        entropy_N, every_N = batch.entropy_old_N, torch.ones_like(batch.keep_N)
        mine = entropy_N[batch.policy_N]
        if not len(mine):
            return every_N, torch.ones_like(entropy_N)
        bar = torch.topk(mine, share_of(self.share, len(mine))).values[-1]
        top_N = (entropy_N >= bar) | ~batch.policy_N  # only tokens of the policy are dropped
        return (every_N, top_N.to(entropy_N.dtype)) if self.counted else (top_N, torch.ones_like(entropy_N))


def share_of(share: float, n: int) -> int:
    """ceil(share · n), at least 1; safe against rounding (0.29 · 100 is 29)."""
    return min(max(ceil(share * n - 1e-9), 1), n)


@dataclass(frozen=True)
class MaskTruncated(Occupant):
    """Answers that ran out of tokens stay in the statistics but are not learned from (DAPO's overlong filtering)."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        complete_E = batch.status_E != Status.TRUNCATED
        return batch.spread(complete_E, "E", "N"), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class WholeTurns(Occupant):
    """Turns that ran out of tokens stay in the statistics but are not learned from."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        alone_E = batch.gather(torch.ones_like(batch.reward_K), "K", "E", "count") == 1  # its status is the turn's
        cut_K = batch.spread(alone_E & (batch.status_E == Status.TRUNCATED), "E", "K")
        whole_K = ~cut_K & (batch.flags_K & FLAGS["truncated"] == 0)
        return batch.spread(whole_K, "K", "N"), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class TruncatedImportance(Occupant):
    """Weight tokens by min(w, cap), w = π_old / π_gen: corrects a sampler whose numerics differ (TIS, Yao et al. 2025).

    level  token: one weight per token; sequence: the product over the sequence; geometric: the geometric mean over it
    self_normalised  then divide by the mean weight of the batch's policy tokens
    No gradient flows through w. Where the sampler's log-probability is unknown, w = 1.
    """

    cap: float = setting(2.0, above=0, witness=0.5)
    level: Weighed = "token"
    self_normalised: bool = False
    corrects = True

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        weight_N = sampler_ratio(batch, self.level).clamp(max=self.cap)
        mine_N = weight_N[batch.policy_N]
        if self.self_normalised and len(mine_N):
            weight_N = weight_N / mine_N.mean()
        return torch.ones_like(batch.keep_N), weight_N


@dataclass(frozen=True)
class SamplerGate(Occupant):
    """Drop tokens or sequences with w = π_old / π_gen outside [gate_low, gate_high] (Liu et al. 2025).

    Together with TruncatedImportance(cap=gate_high) this is masked importance sampling: w inside, 0 outside.
    level    token, sequence or geometric, as there; a geometric gate is narrow, such as 0.999 to 1.001
    counted  dropped tokens stay in the denominators (TRL); else they do not (verl)
    """

    gate_low: float = setting(0.5, low=0, witness=1.2)
    gate_high: float = setting(2.0, above=0, witness=0.9)
    level: Weighed = "token"
    counted: bool = False
    corrects = True

    def wrong(self) -> str:
        ok = self.gate_low < self.gate_high
        return "" if ok else (
            f"gate_low={self.gate_low}, gate_high={self.gate_high}: no ratio would pass. Use gate_low < gate_high."
        )  # fmt: skip

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        ratio_N = sampler_ratio(batch, self.level)
        inside_N = (ratio_N >= self.gate_low) & (ratio_N <= self.gate_high)
        every_N = torch.ones_like(inside_N)
        return (every_N, inside_N.to(ratio_N.dtype)) if self.counted else (inside_N, every_N.to(ratio_N.dtype))


def sampler_ratio(batch: Batch, level: str) -> Tensor:
    """w = π_old / π_gen of each sampled token, of its sequence, or the geometric mean over its sequence.

    The ratio of a sequence includes the sampled tokens that selection dropped: it is a property of what was drawn. It
    is 1 for tokens that were not sampled, or not under the prompt that they are learned under.
    """
    refuse_word("level", level, get_args(Weighed))
    old_N, gen_N, sampled_N = batch.logp_old_N, batch.logp_gen_N, batch.on_policy_N
    known_N = sampled_N & torch.isfinite(old_N - gen_N)
    if level == "token":
        return torch.where(known_N, ratio(old_N, gen_N), torch.ones_like(old_N))
    ratio_of = product_ratio if level == "sequence" else sequence_ratio
    key = batch.level("N", "S")
    return torch.where(sampled_N, key.spread(ratio_of(old_N, gen_N, key, known_N)), torch.ones_like(old_N))


def reads_current(ctx: Context, occupant: Any) -> bool:
    """Whether it reads current statistics of the model being trained."""
    return any(n.when == "step" for n in occupant.needs(ctx))


def through_first_door(
    ctx: Context, chain: Sequence[Any], episodes: list[Episode]
) -> tuple[list[Episode], list[Ask | Prompt]]:
    """Episodes that all occupants keep, and the asks of all of them."""
    again: list[Ask | Prompt] = []
    for occupant in chain:
        if hasattr(occupant, "episodes"):
            keep, more = occupant.episodes(ctx, episodes)
            episodes = [e for e, k in zip(episodes, keep, strict=True) if k]
            again += more
    return episodes, again


def through_second_door(ctx: Context, chain: Sequence[Any], batch: Batch, stats: Stats, *, current: bool) -> Batch:
    """Tokens that all occupants keep; weights are multiplied."""
    for occupant in chain:
        if hasattr(occupant, "tokens") and reads_current(ctx, occupant) is current:
            keep, weight = occupant.tokens(ctx, batch, stats)
            batch = batch.with_columns(keep_N=batch.keep_N & keep, weight_N=batch.weight_N * weight)
    return batch
