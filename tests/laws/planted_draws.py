"""Mistakes of methods that draw more than a group, planted to see that the laws catch them: one for each method."""

from collections.abc import Sequence
from dataclasses import dataclass

from planted_credit import spoiled

from gruppo.data import Batch, Episode, Source
from gruppo.methods.aepo import AT_ONE, HeatedLikelihood, heated_N
from gruppo.methods.igrpo import DraftThenRefine
from gruppo.methods.scaf_grpo import HelpFailedGroups
from gruppo.methods.seele import HintLikelihood
from gruppo.stages import Context, Method, Prompt, Stats, Term


@dataclass(frozen=True)
class FourDrafts(DraftThenRefine):
    """iGRPO that always writes as many drafts as the paper, whatever it is told."""

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        return await DraftThenRefine()(ctx, prompts)


@dataclass(frozen=True)
class MeanOfHeated(HeatedLikelihood):
    """AEPO whose heated answers are counted in the micro-batch at hand."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        mine_N = heated_N(batch) & batch.policy_N
        value_N = stats[AT_ONE.column] / mine_N.sum().clamp(min=1)
        return [Term("heated", value_N, mine_N, 1.0, coef=self.heated_coef)]


@dataclass(frozen=True)
class ExemptBySteps(HelpFailedGroups):
    """Scaf-GRPO that compares the share of the run with the number of the step: nothing is ever exempt."""

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        exempt = 1.0 if ctx.step < self.exempt_share else 0.0
        return await HelpFailedGroups(self.levels, exempt)(ctx, prompts)


@dataclass(frozen=True)
class HintsOfFailures(HintLikelihood):
    """SEELE that makes the hints of all answers likely, also of those that failed or are not used."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        hint_N = batch.source_N == Source.HINT
        return [Term("hint", stats.logp_N, hint_N, "episode_sum", coef=self.hint_coef)]


SPOILED: dict[str, tuple[str, Method]] = {
    "igrpo, always four drafts": ("fields_matter", spoiled("igrpo", rollout=FourDrafts())),
    "aepo, heated answers counted at hand": ("micro_batches", spoiled("aepo", penalties=MeanOfHeated())),
    "scaf_grpo, exempt by steps": ("fields_matter", spoiled("scaf_grpo", rollout=ExemptBySteps())),
    "seele, hints of failures": ("failures", spoiled("seele", penalties=HintsOfFailures(hint_coef=0.5))),
}
