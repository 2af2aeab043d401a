"""iGRPO (Hatamizadeh et al. 2026, arXiv:2602.09000, "Self-feedback-driven LLM reasoning").

    d_1 … d_N ~ π_old(· | q),    d̂ = argmax_i R(d_i),    q' = template(q, d̂)
    o_1 … o_G ~ π_old(· | q'),   A_j = (R_j − mean R) / (std R + ε) over the refinements
    J = 1/G Σ_j 1/|o_j| Σ_t min(r_jt A_j, clip(r_jt, 1−0.2, 1+0.2) A_j),      r = π/π_old under q'

Differs from GRPO: the policy first drafts answers to each prompt and then learns from refinements of the best draft; no
KL. Drafts enter no statistic and none of their tokens is learned, but the metric `sampled` counts them: compare runs at
equal `sampled`. Ties go to the first draft, also when all are wrong. Drafts that could not be judged are skipped;
without a judged draft the prompt stays plain. Evaluation uses the plain prompt. The default template, draft then
prompt, suits policies without a chat format; set `method.prompting.refine.template=…` for models that follow
instructions. The built-in policy has never seen a draft: it copes best on task=countdown task.level=1; on addition no
refinement is right at first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from gruppo.data import Episode, Use
from gruppo.methods.grpo import GRPO
from gruppo.stages import Ask, Context, Occupant, Prompt, setting
from gruppo.stages.prompting import missing_fields, worded
from gruppo.stages.requires import InRoom
from gruppo.stages.rollout import again, asks_of


@dataclass(frozen=True)
class Refine(Occupant):
    """Show a draft with the prompt if the ask has one; `template` contains {prompt} and {draft}.

    draft_tokens  cut drafts to this length, so that they fit the context; 0 shows all of a draft
    """

    template: str = setting("{draft}\n{prompt}", witness="{prompt}\n{draft}\n")
    draft_tokens: int = setting(0, low=0, witness=1)

    def wrong(self) -> str:
        return missing_fields(self.template, "prompt", "draft")

    def __call__(self, ctx: Context, ask: Ask, prompts: list[Prompt]) -> list[Prompt]:
        if "draft" not in ask.how:
            return prompts
        draft = ask.how["draft"]
        if self.draft_tokens:
            draft = ctx.tokenizer.decode(ctx.tokenizer.encode(draft)[: self.draft_tokens])
        ids = worded(ctx, ask.task, self.template.format(prompt=ask.task.prompt, draft=draft))
        return [replace(p, ids=ids) for p in prompts]


@dataclass(frozen=True)
class DraftThenRefine(Occupant):
    """Sample `drafts` answers to each prompt, of use `none`, then `samples` answers that see the best draft."""

    drafts: int = setting(4, low=0, witness=1)  # 0 is GRPO
    requires = (InRoom("prompting", ("refine",)),)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        if not self.drafts:
            return await ctx.play(prompts)
        asks = asks_of(prompts)
        drafted = await ctx.draw([again(a, "draft", self.drafts, {}) for a in asks])
        best: dict[str, Episode] = {}
        for d in drafted:
            d.use = Use.NONE
            if isfinite(d.total) and (d.group not in best or d.total > best[d.group].total):
                best[d.group] = d
        seen = {g: {"draft": d.text.strip()} for g, d in best.items()}
        return [*drafted, *await ctx.draw([again(a, "refine", a.samples, seen.get(a.group, {})) for a in asks])]


IGRPO = GRPO.but(
    name="igrpo",
    paper="arXiv:2602.09000",
    checked=(
        "Written from sections 3 to 5 of the paper; no code of the authors was found. The paper splits one budget "
        "of 8 answers into N = G = 4. Its template is a sentence addressed to the model; the default here is the "
        "draft and the prompt alone, which is ours."
    ),
    confidence="paper",
    prompting=Refine(),
    rollout=DraftThenRefine(drafts=4),
    penalties=(),
    together=("prompting", "rollout"),
)
