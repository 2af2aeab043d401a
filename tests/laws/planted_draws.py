"""Mistakes of methods that draw more than a group, planted to see that the laws catch them: one for each method."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from planted_credit import spoiled

from gruppo.data import Batch, Episode, Source
from gruppo.methods.aepo import AT_ONE, HeatedLikelihood, HostAlone, heated_N
from gruppo.methods.igrpo import DraftThenRefine
from gruppo.methods.scaf_grpo import HelpFailedGroups
from gruppo.methods.seele import HintLikelihood
from gruppo.stages import Context, Method, Prompt, Stats, Term, Values
from gruppo.stages.objective import ClippedSurrogate


@dataclass(frozen=True)
class FourDrafts(DraftThenRefine):
    """iGRPO that always writes as many drafts as the paper, whatever it is told."""

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        return await DraftThenRefine()(ctx, prompts)


@dataclass(frozen=True)
class MeanOfHeated(HeatedLikelihood):
    """AEPO whose heated answers are counted in the micro-batch at hand."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("heated", heated_N(batch) & batch.policy_N, 1.0, coef=self.heated_coef)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        mine_N = heated_N(batch) & batch.policy_N
        return {"heated": stats[AT_ONE.column] / mine_N.sum().clamp(min=1)}


@dataclass(frozen=True)
class ForgetsTheDropped(HeatedLikelihood):
    """AEPO that does not say that it reads what selection dropped: heated answers read as 0, and teach nothing."""

    reads = HostAlone.reads


@dataclass(frozen=True)
class ExemptBySteps(HelpFailedGroups):
    """Scaf-GRPO that compares the share of the run with the number of the step: nothing is ever exempt."""

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        exempt = 1.0 if ctx.step < self.exempt_share else 0.0
        return await HelpFailedGroups(self.levels, exempt)(ctx, prompts)


@dataclass(frozen=True)
class HintsOfFailures(HintLikelihood):
    """SEELE that makes the hints of all answers likely, also of those that failed or are not used."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("hint", batch.source_N == Source.HINT, "episode_sum", coef=self.hint_coef)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"hint": torch.where(batch.source_N == Source.HINT, stats.logp_N, torch.zeros_like(stats.logp_N))}


@dataclass(frozen=True)
class DroppedHints(HintLikelihood):
    """SEELE that forgets to say that it has a rule for hints: no occupant does, and they read as 0."""

    reads = ()


CONSTANT = ClippedSurrogate(mean="episode_sum/max_tokens")
SPOILED: dict[str, tuple[str, Method]] = {
    "igrpo, always four drafts": ("fields_matter", spoiled("igrpo", rollout=FourDrafts())),
    "aepo, heated answers counted at hand": (
        "micro_batches",
        spoiled("aepo", objective=(ClippedSurrogate(), MeanOfHeated())),
    ),
    "aepo forgets what was dropped": (
        "fields_matter",
        spoiled("aepo", objective=(ClippedSurrogate(), ForgetsTheDropped())),
    ),
    "scaf_grpo, exempt by steps": ("fields_matter", spoiled("scaf_grpo", rollout=ExemptBySteps())),
    "seele, hints of failures": ("failures", spoiled("seele", objective=(CONSTANT, HintsOfFailures(hint_coef=0.5)))),
    "seele forgets its hints": ("fields_matter", spoiled("seele", objective=(CONSTANT, DroppedHints()))),
}
