"""iGRPO (Hatamizadeh et al. 2026, arXiv:2602.09000, "Self-feedback-driven LLM reasoning").

    d_1 … d_N ~ π_old(· | q),    d̂ = argmax_i R(d_i),    q' = template(q, d̂)
    o_1 … o_G ~ π_old(· | q'),   A_j = (R_j − mean R) / (std R + ε) over the refinements
    J = 1/G Σ_j 1/|o_j| Σ_t min(r_jt A_j, clip(r_jt, 1−0.2, 1+0.2) A_j),      r = π/π_old under q'

Differs from GRPO: each prompt is drafted first, and the answers that are learned are refinements of the best draft; no
KL. Drafts are in no statistic, and no token of them is learned; what they cost is in the metric `sampled`. Of drafts
with equal rewards the first counts, also when all are wrong; one that could not be judged is no draft, and where none
could, the prompt stays as it is. The paper splits one budget, N = G = 4 of 8, so compare at equal `sampled`. Answers
are evaluated on the plain prompt. Written from the paper (sections 3 to 5); no code of the authors was found. There the
template is a sentence to the model, here by default draft and prompt alone, which fits a policy without a chat: write
`method.prompting.refine.template=…` for one that follows words. The built-in policy has never seen a
draft. Countdown suffers least from one (task=countdown task.level=1); in addition no refinement is right at first.
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
    """Show a draft of the answer with the prompt, where the ask has one: `template` has {prompt} and {draft}.

    draft_tokens  how much of a draft is shown, so that it fits the context; 0: all
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
    """`drafts` answers to every prompt, of use `none`; then `samples` answers that see the best of them."""

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
    prompting=Refine(),
    rollout=DraftThenRefine(drafts=4),
    penalties=(),
    together=("prompting", "rollout"),
)
