"""D³S, dynamic dual-level down-sampling (Wang et al. 2025, arXiv:2509.22115, "Learning more with less").

    S_q = argmax_{S ⊂ q, |S| = N_s} Var(A_S),      S = argmax_{S ⊂ ∪ S_q, |S| = N} Var(A_S)
    J = mean over the K % of the tokens of S with the largest |A_it| H_it of min(r_it A_i, clip(r_it, 1−0.2, 1+0.2) A_i)
    N_s and K go in a straight line from their first to their last value over the run

Answers that differ most are learned from, and of these the tokens that are uncertain and matter. Differs from GRPO:
advantages are those of all answers, and are not normalised again; what is not chosen leaves sum and count; mean over
tokens. A set of the largest variance is made of the k largest and the N_s − k smallest; every k is tried. Groups with
A = 0 are taken last. Every chosen answer keeps at least one token. H is that of the policy at the start of the step
(the paper: of the policy, without gradient). Read in a detailed note of the paper, which leaves the sizes open: the
shares below are ours; under 20 % of the tokens in the mean is the paper's. Confidence: second hand.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, Key, segment
from gruppo.data.pairs import ROUNDING
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Need, Occupant, Stats, need, setting
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.select import share_of


@dataclass(frozen=True)
class DownSample(Occupant):
    """Keep the `group_share` of each group that varies most, of these the `batch_share`, and of their tokens the
    `token_share` with the largest |A| H; two of the shares move to their `_last` value by the end of the run."""

    group_share: float = setting(0.5, witness=0.9)
    group_share_last: float = setting(1.0, witness=0.0)
    batch_share: float = setting(0.5, witness=0.9)
    token_share: float = setting(0.2, witness=0.8)
    token_share_last: float = setting(0.5, witness=9.0)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("entropy", "old"),)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        def now(first: float, last: float) -> float:
            return (1 - ctx.progress) * first + ctx.progress * last

        learn_N = batch.learn_N
        adv_E = batch.gather(batch.adv_N, "N", "E", "mean", where=learn_N)
        live_E, noise_E = batch.gather(learn_N, "N", "E", "any"), ctx.uniform("d3s", batch.uid_E)
        in_group = now(self.group_share, self.group_share_last)
        some_E = most_varied(adv_E, batch.level("E", "G"), in_group, noise_E, live_E)
        some_E = most_varied(adv_E, segment.one_part(adv_E), self.batch_share, noise_E, some_E)
        mine_N = learn_N & batch.spread(some_E, "E", "N")
        score_N = torch.where(mine_N, batch.adv_N.abs() * batch.entropy_old_N, -torch.inf)
        best_E = batch.gather(score_N, "N", "E", "max")
        n = share_of(now(self.token_share, self.token_share_last), int(mine_N.sum()))
        bar = torch.topk(score_N, n).values[-1] if n else torch.zeros(())
        keep_N = mine_N & ((score_N >= bar) | (score_N >= batch.spread(best_E, "E", "N")))
        return keep_N | ~batch.policy_N, torch.ones_like(batch.weight_N)


def most_varied(x: Tensor, key: Key, share: float, noise: Tensor, where: Tensor) -> Tensor:
    """The `share` of each part's rows in `where` whose values have the largest variance; ties by `noise`.

    Such a set has the k largest and the rest from the smallest. Every k of every part is a candidate; Σ x and Σ x² of
    both ends are read from running sums.
    """
    rows = torch.nonzero(where)[:, 0]
    value = torch.round(x[rows].double() / ROUNDING) * ROUNDING  # what differs by rounding is a tie
    order = torch.argsort(noise[rows], stable=True)
    order = order[torch.argsort(value[order], stable=True)]
    order = order[torch.argsort(key.index[rows[order]], stable=True)]
    rows, value, part = rows[order], value[order], key.index[rows[order]]
    start, n = segment.offsets(Key(part, key.size))
    take = (share * n.double() - 1e-9).ceil().long().clamp(min=1).minimum(n)
    sums = torch.cat([value.new_zeros(1, 2), torch.stack([value, value**2], 1).cumsum(0)])
    at = torch.repeat_interleave(take + 1)  # candidates k = 0 … take
    k = torch.arange(len(at), device=x.device) - (torch.cumsum(take + 1, 0) - take - 1)[at]
    low, high, end = start[at] + take[at] - k, (start + n)[at] - k, (start + n)[at]
    mean = (sums[low] - sums[start[at]] + sums[end] - sums[high]) / take[at].clamp(min=1)[:, None]
    variance, parts = mean[:, 1] - mean[:, 0] ** 2, Key(at, key.size)
    best = variance >= parts.spread(segment.gather(variance, parts, "max")) - ROUNDING
    split = segment.gather(k.double(), parts, "min", where=best).long()
    rank = torch.arange(len(rows), device=x.device) - start[part]
    chosen = (rank < (take - split)[part]) | (rank >= (n - split)[part])
    return torch.zeros_like(where).index_put((rows[chosen],), torch.ones((), dtype=torch.bool, device=x.device))


D3S = GRPO.but(
    name="d3s",
    paper="arXiv:2509.22115",
    select=DownSample(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
)
