"""D³S, dynamic dual-level down-sampling (Wang et al. 2025, arXiv:2509.22115, "Learning more with less").

    S_q = argmax_{S ⊂ q, |S| = N_s} Var(A_S),      S = argmax_{S ⊂ ∪ S_q, |S| = N} Var(A_S)
    J = mean over the K % of the tokens of S with the largest |A_it| H_it of min(r_it A_i, clip(r_it, 1−0.2, 1+0.2) A_i)
    N_s and K go in a straight line from their first to their last value over the run

Differs from GRPO: only the responses whose advantages vary most are trained on, and of these only the tokens with the
largest |A| H, which are uncertain and matter. Advantages are computed over all responses and not normalised again; what
is not selected leaves both sum and denominator; mean over tokens.

The subset of largest variance consists of the k largest and the N_s − k smallest advantages; every k is tried. Groups
with A = 0 come last. Every selected response keeps at least one token. H is the entropy of the policy at the start of
the step.
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
    """Train on the responses whose advantages vary most, and on their tokens with the largest |A| H.

    group_share  the share of each group that is kept; moves linearly to group_share_last over the run
    batch_share  of these, the share of the step that is kept
    token_share  of their tokens, the share that is kept; moves linearly to token_share_last over the run
    """

    group_share: float = setting(0.5, low=0, high=1, witness=0.9)
    group_share_last: float = setting(1.0, low=0, high=1, witness=0.0)
    batch_share: float = setting(0.5, low=0, high=1, witness=0.9)
    token_share: float = setting(0.2, low=0, high=1, witness=0.8)
    token_share_last: float = setting(0.5, low=0, witness=9.0)
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
    """In each part, the `share` of the rows in `where` whose values have the largest variance; `noise` breaks ties.

    Such a set consists of the k largest values and, for the rest, the smallest. Every k is a candidate; Σ x and Σ x²
    of both ends are read from cumulative sums.
    """
    rows = torch.nonzero(where)[:, 0]
    value = torch.round(x[rows].double() / ROUNDING) * ROUNDING  # values that differ by rounding are ties
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
    checked=(
        "Only a detailed note on the paper was read. It leaves the sizes open: the shares are ours; that fewer than 20 "
        "% of the tokens are used on average is the paper's. In the paper H is the entropy of the current policy, "
        "without gradient; here it is that of the policy at the start of the step."
    ),
    confidence="notes",
    select=DownSample(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
)
