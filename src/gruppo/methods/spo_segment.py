"""SPO-chain, segment policy optimisation (Guo et al. 2025, arXiv:2505.23564).

    cut before every 5th token with π_old < 0.9;   V(s_k) = mean reward of 9 fresh continuations of the prefix at cut k
    A_k = V(s_{k+1}) − V(s_k) for the tokens of segment k,   V(s_0) at the prompt, V after the last segment = R
    J = mean over tokens with π_old < 0.9 of min(r_t A_t, clip(r_t, 1 ± 0.2) A_t),   A whitened over these tokens

Differs from GRPO: credit goes to the piece of the answer that changed the odds, estimated without a critic by sampling
on from its ends; tokens that the policy was sure of teach nothing and are in no count. The advantages of an answer add
up to R − V(s_0), so with one segment it is a sample against the mean of others. Continuations are episodes of use
`none`: they are judged and stored, not learned; `sampled` counts their tokens. Equal prefixes, such as the prompt, are
one state and tried once. A cut whose continuations all failed to be judged is no cut. Checked against notes on
AIFrameResearch/SPO, math_episode_generator_with_mc_advantages.py and ppo_trainer.py (threshold .9, N = 9, interval 5,
whitening over kept tokens, over all where none is kept), not against the files; the small KL is recalled. The tree
variant for long answers (segments of 100 tokens, 6 branches each, edges that are replayed) is not here. Confidence:
code, by notes.
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
State = tuple[str, bytes]  # a task, and what was written so far


@dataclass(frozen=True)
class Segments(Occupant):
    """A group of answers, cut before every `interval`-th token that was sampled with a probability below `sure`; at
    every cut `probes` continuations tell the value.

    Notes of every token: `gain`, the value after its segment less that before; `unsure`, 1 where its probability was
    below `sure`.
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
        """Where something was sampled with a probability below `sure`; NaN, where nothing was, is not below."""
        return path.sequences[0].logp < math.log(self.sure)

    def cuts(self, path: Episode) -> list[int]:
        """Where segments begin: the end of the prompt, and before every `interval`-th unsure token after it."""
        start, at = path.sequences[0].prompt_len, np.flatnonzero(self.unsure(path))
        return [start, *(p for p in at[self.interval - 1 :: self.interval].tolist() if p > start)]

    def forks(self, ctx: Context, path: Episode, at: int) -> list[Fork]:
        """Continuations of a path from there on, each under a key of its own, as long as the path might have become."""
        how, start = sampling_for(ctx, path.ask), turn_start(path, at)
        rest = replace(how, max_tokens=how.max_tokens - (at - start))
        return [Fork(path, at, int(key_hash(path.uid, "probe", at, n)), rest) for n in range(self.probes)]


def turn_start(path: Episode, at: int) -> int:
    """Where the turn that holds a position begins."""
    return max(t.start for t in path.turns if t.start <= at)


def state(path: Episode, at: int) -> State:
    return path.task, path.sequences[0].ids[:at].tobytes()


def gains(path: Episode, values: dict[int, list[float]]) -> Any:
    """For every position the value of the next cut less that of the last one, by the judged continuations there.

    V at the end is the answer's own reward. NaN where a value is not known.
    """
    known = {at: [v for v in some if v == v] for at, some in values.items()}
    start, size = min(values), len(path.sequences[0].ids)
    cuts = sorted(at for at, some in known.items() if some or at == start)
    worth = [float(np.mean(known[at])) if known[at] else math.nan for at in cuts]
    out = np.full(size, math.nan, np.float32)
    out[start:] = np.repeat(np.diff([*worth, path.total]), np.diff([*cuts, size]))
    return out


def unsure_N(batch: Batch) -> Tensor:
    """Tokens that the policy was not sure of; where it was sure of all that is judged, all."""
    some_N = batch.note_unsure_N > 0
    return some_N if bool((some_N & judged_N(batch)).any()) else torch.ones_like(some_N)


@dataclass(frozen=True)
class SegmentGain(Occupant):
    """A_t = the gain of the token's segment, whitened over the tokens that are learned; 0 where it is not known."""

    writes = ("adv_N",)
    ignores = ("shift", "scale")
    reads = (note("gain", "N"), UNSURE)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine = torch.nonzero(judged_N(batch) & unsure_N(batch) & ~batch.note_gain_N.isnan())[:, 0]
        return whitened(batch, mine, batch.note_gain_N[mine])


@dataclass(frozen=True)
class Unsure(Occupant):
    """Keep the tokens that the policy was not sure of: the others are in no count."""

    reads = (UNSURE,)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return unsure_N(batch), torch.ones_like(batch.weight_N)


_NOTED = "The laws' answers carry gains that do not follow from their rewards."

SPO_SEGMENT = GRPO.but(
    name="spo_segment",
    paper="arXiv:2505.23564",
    rollout=Segments(sure=0.9, interval=5, probes=9),
    select=Unsure(),
    credit=SegmentGain(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
    penalties=ReferenceKL(kl_coef=1e-4, mean="token"),
    together=("rollout", "select", "credit"),
    breaks={"equal_rewards": _NOTED, "direction": _NOTED},
)
