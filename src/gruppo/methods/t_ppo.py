"""T-PPO, truncated PPO (Fan et al. 2025, arXiv:2506.15050).

    δ_t = r_t + γ V_{t+1} − V_t,   Â_t = δ_t + γλ Â_{t+1};   an answer cut at l goes on from V_l = V_{l−1}     (EGAE)
    J_π = mean over the tokens of this window of min(r_t A_t, clip(r_t, 1 ± 0.2) A_t),     A = whiten(Â) over them
    J_V = −½ mean over finished answers of the squared error to R̂_t = Σ_{s≥t} γ^{s−t} r_s

Differs from PPO: a step samples a window of each answer. Open answers continue in the next step under the same random
key; free slots are filled with fresh prompts, and prompts without a slot are skipped in this step. The policy learns
each token once, in the step that sampled it; while an answer has no reward, its advantages rest on the critic alone.
The critic learns finished answers only, over all their windows, from returns (λ = 1). Open answers enter no reward and
no accuracy. The window is half of max_tokens unless set. Tokens just before the cut have hardly any advantage. With a
window of max_tokens and lam_value = lam this is PPO.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Status
from gruppo.methods.ppo import PPO
from gruppo.stages import Context, Need, Occupant, Prompt, Stats, Term, need, setting
from gruppo.stages.credit import two_gaes, whitened_gae
from gruppo.stages.objective import ClippedSurrogate, ValueLoss
from gruppo.stages.play import Fork, starts_of
from gruppo.stages.requires import InRoom, OneTurn


@dataclass(frozen=True)
class Windowed(Occupant):
    """Sample `window_tokens` (0: half of max_tokens) of each open answer and of fresh ones, up to prompts × samples."""

    window_tokens: int = setting(0, low=0, witness=1)
    requires = (InRoom("replay", ("open_pool",)), OneTurn())

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        before = [] if ctx.round else ctx.replay
        fresh = starts_of(ctx, prompts)
        fresh = fresh[: max(len(fresh) - len(before), 0)]
        window = self.window_tokens or (ctx.sampling.max_tokens + 1) // 2
        return await ctx.play([*fresh, *(further(ctx, e) for e in before)], window=window)


def goes_on(e: Episode) -> bool:
    """Whether the answer is open and has one sequence, so that its next token follows its last."""
    return e.status == Status.OPEN and len(e.sequences) == 1


def further(ctx: Context, e: Episode) -> Fork:
    """The rest of an open answer, with the random key and the temperature that it began with."""
    [s] = e.sequences
    warm = 1.0 if s.temperature is None else float(s.temperature[-1])
    rest = replace(ctx.sampling, max_tokens=max(ctx.sampling.max_tokens - e.tokens, 1), temperature=warm)
    return Fork(e, len(s.ids), e.uid, rest)


def this_window(ctx: Context, batch: Batch) -> Tensor:
    """Tokens sampled with the weights of this step."""
    return batch.version_N == ctx.version


@dataclass(frozen=True)
class WindowGae(Occupant):
    """GAE with `lam`, whitened over this window; the critic's targets use `lam_value`.

    An open episode bootstraps from its last value.
    """

    gamma: float = setting(1.0, low=0, high=1, witness=0.5)
    lam: float = setting(0.95, low=0, high=1, witness=0.3)
    lam_value: float = setting(1.0, low=0, high=1, witness=0.3)
    writes = ("adv_N", "ret_N")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("value", "critic"),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine, adv, ret, known = two_gaes(batch, self.gamma, self.lam, self.lam_value)
        return whitened_gae(batch, mine, adv, ret, known, known & this_window(ctx, batch)[mine])


@dataclass(frozen=True)
class ThisWindow(Occupant):
    """Keep the tokens of this window; earlier ones were learned in theirs."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return this_window(ctx, batch), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class OpenToo(ClippedSurrogate):
    """The clipped surrogate over kept tokens of finished and open answers."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        mine_N = batch.sampled_N & batch.keep_N & batch.spread(batch.learn_E | batch.open_E, "E", "N")
        return [replace(term, over=mine_N) for term in super().terms(ctx, batch)]


@dataclass(frozen=True)
class OpenPool(Occupant):
    """Keeps open answers for the rollout of the next step; they do not join a batch by themselves."""

    joins = False
    proximal = "now"
    credited = "now"

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        return [e for e in episodes if goes_on(e)]

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return list(store)


T_PPO = PPO.but(
    name="t_ppo",
    paper="arXiv:2506.15050",
    checked=(
        "Compared with notes on the paper (boundary rule, critic's targets, window of 8k of 24k tokens, 512 "
        "prompts of 16 samples, no KL); no code of the authors was found. λ = 0.95 and the clip are PPO's. The "
        "window of half of max_tokens is ours: a token just before the cut has hardly any advantage, and short "
        "answers would be cut soon."
    ),
    confidence="notes",
    rollout=Windowed(),
    select=ThisWindow(),
    credit=WindowGae(gamma=1.0, lam=0.95, lam_value=1.0),
    objective={
        "policy": OpenToo(clip_low=0.2, clip_high=0.2, mean="token"),
        "critic": ValueLoss(clip_value=0.5),
    },
    replay=OpenPool(),
    together=("rollout", "select", "credit", "objective", "replay"),
    breaks={
        "equal_rewards": "The advantage is against the critic's guess, which may be wrong where all rewards are equal."
    },
)
