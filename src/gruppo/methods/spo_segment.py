"""SPO-chain, segment policy optimisation (Guo et al. 2025, arXiv:2505.23564).

    cut before every 5th token with π_old < 0.9;   V(s_k) = mean reward of 9 fresh continuations of the prefix at cut k
    A_k = V(s_{k+1}) − V(s_k) for the tokens of segment k,   V(s_0) at the prompt, V after the last segment = R
    J = mean over tokens with π_old < 0.9 of min(r_t A_t, clip(r_t, 1 ± 0.2) A_t),   A whitened over these tokens

Differs from GRPO: credit goes to the segment that changed the chance of success, estimated without a critic by sampling
continuations from its ends. Tokens that the policy was sure of are not learned from and enter no denominator; if it was
sure of all, all are learned from. The gains of an answer's segments add up to R − V(s_0). Continuations are episodes of
use `none`: judged and stored, but not learned from; the metric `sampled` counts their tokens. Equal prefixes, such as
the prompt, are one state and are probed once. A cut without a judged continuation is dropped. The tree variant for long
answers is not implemented.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Note, Use, key_hash
from gruppo.data.views import as_sampled
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, Prompt, Stats, note, setting
from gruppo.stages.credit import judged_N, whitened
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.play import Fork, sampling_for

UNSURE = note("unsure", "N", among=(0.0, 1.0))
State = tuple[str, bytes]  # a task and a prefix of an answer to it


@dataclass(frozen=True)
class Segments(Occupant):
    """A group of answers, cut before every `interval`-th token with a sampling probability below `sure`.

    `probes` continuations estimate the value at each cut. Writes two notes per token: `gain`, the value after its
    segment minus the value before it; `unsure`, 1 if its probability was below `sure`.
    """

    sure: float = setting(0.9, above=0, high=1, witness=0.01)
    interval: int = setting(5, low=1, witness=2)
    probes: int = setting(9, low=1, witness=2)
    writes = ("note_gain_N", "note_unsure_N")

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        paths = await ctx.reward(await ctx.play(prompts))
        states: dict[State, tuple[Episode, int]] = {}
        for path in paths:
            for at in self.cuts(path):
                states.setdefault(state(path, at), (path, at))
        forks = [fork for where in states.values() for fork in self.forks(ctx, *where)]
        probes = await ctx.reward(await ctx.play(forks))
        worth: dict[State, list[float]] = {name: [] for name in states}
        for fork, probe in zip(forks, probes, strict=True):
            probe.use = Use.NONE
            worth[state(fork.episode, fork.at)].append(probe.total)
        for path in paths:
            rows = as_sampled(path.sequences[0])[1]
            values = {at: worth[state(path, at)] for at in self.cuts(path)}
            path.notes["gain"] = Note(gains(path, values)[rows], "N")
            path.notes["unsure"] = Note(self.unsure(path)[rows].astype(np.float32), "N")
        return [*paths, *probes]

    def unsure(self, path: Episode) -> Any:
        """Where a token was sampled with a probability below `sure`; NaN, for tokens that were not sampled, is not."""
        return path.sequences[0].logp < math.log(self.sure)

    def cuts(self, path: Episode) -> list[int]:
        """Starts of segments: the end of the prompt, and every `interval`-th unsure token after it."""
        start, at = path.sequences[0].prompt_len, np.flatnonzero(self.unsure(path))
        return [start, *(p for p in at[self.interval - 1 :: self.interval].tolist() if p > start)]

    def forks(self, ctx: Context, path: Episode, at: int) -> list[Fork]:
        """Continuations of a path from a cut, each with its own random key and the length left to the path."""
        how, start = sampling_for(ctx, path.ask), turn_start(path, at)
        rest = replace(how, max_tokens=how.max_tokens - (at - start))
        return [Fork(path, at, int(key_hash(path.uid, "probe", at, n)), rest) for n in range(self.probes)]


def turn_start(path: Episode, at: int) -> int:
    """Start of the turn that contains a position."""
    return max(t.start for t in path.turns if t.start <= at)


def state(path: Episode, at: int) -> State:
    return path.task, path.sequences[0].ids[:at].tobytes()


def gains(path: Episode, values: dict[int, list[float]]) -> Any:
    """Per position: value at the next cut minus value at the previous one, from judged continuations.

    V at the end is the answer's own reward. NaN where a value is unknown.
    """
    known = {at: [v for v in some if v == v] for at, some in values.items()}
    start, size = min(values), len(path.sequences[0].ids)
    cuts = sorted(at for at, some in known.items() if some or at == start)
    worth = [float(np.mean(known[at])) if known[at] else math.nan for at in cuts]
    out = np.full(size, math.nan, np.float32)
    out[start:] = np.repeat(np.diff([*worth, path.total]), np.diff([*cuts, size]))
    return out


def unsure_N(batch: Batch) -> Tensor:
    """Tokens that the policy was not sure of; all tokens if it was sure of every judged one."""
    some_N = batch.note_unsure_N > 0
    return some_N if bool((some_N & judged_N(batch)).any()) else torch.ones_like(some_N)


@dataclass(frozen=True)
class SegmentGain(Occupant):
    """A_t = gain of the token's segment, whitened over the tokens that are learned from; 0 where unknown."""

    writes = ("adv_N",)
    ignores = ("shift", "scale")
    reads = (note("gain", "N"), UNSURE)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine = torch.nonzero(judged_N(batch) & unsure_N(batch) & ~batch.note_gain_N.isnan())[:, 0]
        return whitened(batch, mine, batch.note_gain_N[mine])


@dataclass(frozen=True)
class Unsure(Occupant):
    """Keep the tokens that the policy was not sure of; the others enter no denominator."""

    reads = (UNSURE,)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return unsure_N(batch), torch.ones_like(batch.weight_N)


_NOTED = "The laws' answers carry gains that do not follow from their rewards."

SPO_SEGMENT = GRPO.but(
    name="spo_segment",
    paper="arXiv:2505.23564",
    checked=(
        "Compared with AIFrameResearch/SPO, read at commit b9fc6a2: "
        "src/treetune/episode_generators/math_episode_generator_with_mc_advantages.py, "
        "src/treetune/trainers/ppo_trainer.py, masked_whiten in trainers/utils.py, and the spo_chain files of "
        "configs. The same in both: threshold 0.9, interval 5, gains between cuts, whitening with n - 1 over kept "
        "tokens and over all where none is kept, clip 0.2. Continuations: 9 for rho-1b, DeepSeekMath and "
        "Qwen2.5-1.5B-Base, 4 in the other Qwen configurations. Differences. (1) The code cuts before the 1st, "
        "6th, 11th … unsure token and gives no credit before the first cut; here the first cut is the end of the "
        "prompt and the others are before the 5th, 10th … unsure token, so that the first segment has one unsure "
        "token fewer. (2) The code whitens over the micro-batches of all devices, here over the batch; where a "
        "micro-batch keeps no token the code's loss is 0/0, here all tokens are learned. (3) The KL is k3 with "
        "1e-4 in both (1e-3 for one task), but the code sums it over the kept tokens of an answer and averages "
        "over answers; here it is the mean over all sampled tokens, which is weaker by about the number of kept "
        "tokens (method.penalties.reference_kl.mean=episode_sum is near the code). (4) The code takes four updates "
        "a batch (minibatches of 128 of 512 answers, one epoch), sixteen for rho-1b (64 of 512, two epochs) and "
        "one for one task, here one. (5) The code skips a micro-batch whose mean ratio over kept tokens exceeds 10 "
        "(ratio_threshold, the default in every configuration): its loss times 0, the KL included. That is a guard "
        "of its trainer against loss spikes, documented there as such and not part of the method: with a clip of "
        "0.2 and few updates a batch the mean ratio stays near 1. It is left out; here the optimiser's clip_norm "
        "bounds the step, and step zero finds a sampler and a learner that disagree, the other way to such ratios. "
        "The tree variant (segments of 100 tokens, 6 branches each, edges that are replayed) is left out."
    ),
    confidence="code",
    rollout=Segments(sure=0.9, interval=5, probes=9),
    select=Unsure(),
    credit=SegmentGain(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
    penalties=ReferenceKL(kl_coef=1e-4, mean="token"),
    together=("rollout", "select", "credit"),
    breaks={"equal_rewards": _NOTED, "direction": _NOTED},
)
