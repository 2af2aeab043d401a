"""AEPO, arbitrary entropy policy optimisation (Wang et al. 2025, arXiv:2510.08141).

    T = 1.2 if H < H* else 0.8,      H = the policy's entropy at the last step
    J = J_GRPO + α/B Σ_{o ~ π_T, A(o) > 0.05} 1/|o| Σ_t log π(o_t | q, o_<t)

Differs from GRPO: a quarter of the prompts is sampled once more at temperature T, and the responses with A > 0.05 are
imitated, at most 60 per step, or half of them while the entropy is above the target; no KL. Good responses drawn at
T > 1 flatten the policy, those at T < 1 sharpen it: the entropy is held at its target without a bonus. With α = 1 an
imitated response weighs about as much as one of advantage 1.

H is minus the mean log-probability of the sampled tokens; the first step counts as above the target. log π is taken at
temperature 1. The metric `sampled` includes the extra rollouts. If no response qualifies, the term is absent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Key, Note, Source, Use
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Memory, Need, Occupant, Prompt, Stats, StepRecord, Term, Values, need, note, setting
from gruppo.stages.requires import Samples
from gruppo.stages.rollout import again, asks_of

AT_ONE = need("logp", when="step", T=1.0)
HEATED = note("heated", among=(0.0, 1.0))


@dataclass(frozen=True)
class WithHeated(Occupant):
    """The usual rollouts, and a second group at another temperature for a `share` of the prompts.

    target_entropy  the entropy to hold, in nats
    heat            the temperature is 1 + heat while the entropy is below the target, else 1 − heat
    min_adv         a heated response is imitated if its group-normalised advantage is above this
    most            the largest number imitated per step; half of it while the entropy is above the target
    """

    target_entropy: float = setting(0.5, low=0, witness=9.0)
    heat: float = setting(0.2, low=0, below=1, witness=0.9)  # 1 − heat is a temperature
    share: float = setting(0.25, low=0, high=1, witness=1.0)
    min_adv: float = setting(0.05, witness=2.0)
    most: int = setting(60, low=0, witness=0)
    writes = ("note_heated_E",)
    requires = (
        Samples(
            2, "It imitates responses that beat the other samples of their prompt, and a single sample beats none."
        ),
    )

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        episodes = await ctx.play(prompts)
        low = ctx.memory.get("entropy", float("inf")) < self.target_entropy
        chosen = [a for a in asks_of(prompts) if ctx.uniform("heated", ctx.round, a.group) < self.share]
        asks = [again(a, "heated", a.samples, {"temperature": 1 + self.heat if low else 1 - self.heat}) for a in chosen]
        heated = await ctx.draw(asks) if asks else []
        better = self._better(heated)
        noise = ctx.uniform("imitated", torch.tensor([e.uid for e in better], dtype=torch.int64))
        count = min(self.most, len(better)) if low else min(self.most, len(better)) // 2
        for e in heated:
            e.use = Use.NONE
        for i in noise.argsort()[:count].tolist():
            better[i].use, better[i].notes["heated"] = Use.APART, Note(np.ones(1, np.float32))
        return [*episodes, *heated]

    def _better(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Responses whose group-normalised advantage is above `min_adv`."""
        known = [e for e in episodes if e.status.judged and np.isfinite(e.total)]
        number = {group: i for i, group in enumerate(dict.fromkeys(e.group for e in known))}
        groups = Key(torch.tensor([number[e.group] for e in known], dtype=torch.int64), len(number))
        adv = advantage.z_score(torch.tensor([e.total for e in known]), groups)
        return [e for e, a in zip(known, adv.tolist(), strict=True) if a > self.min_adv]

    def observe(self, record: StepRecord, memory: Memory) -> None:
        mine = [e for e in record.drawn or record.episodes if e.use == Use.LEARN and e.source == Source.POLICY]
        logp = np.concatenate([s.logp[np.isfinite(s.logp)] for e in mine for s in e.sequences] or [np.zeros(0)])
        if len(logp):
            memory["entropy"] = -float(logp.astype(np.float64).mean())


def heated_N(batch: Batch) -> Tensor:
    """Tokens of the heated responses."""
    if "note_heated_E" not in batch.columns:  # none in this step
        return torch.zeros_like(batch.keep_N)
    return batch.spread(batch.note_heated_E == 1, "E", "N") & (batch.source_N == Source.POLICY)


@dataclass(frozen=True)
class HostAlone(Occupant):
    """Keeps heated responses out of the surrogate (the host of the extra term) and out of its denominator."""

    reads = (HEATED,)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return ~heated_N(batch), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class HeatedLikelihood(Occupant):
    """heated_coef/B Σ 1/|o| Σ_t log π(o_t) over heated responses, at temperature 1; B counts all responses."""

    heated_coef: float = setting(1.0, low=0, witness=0.3)
    mean: Any = setting("sequence", above=0, added=True)
    reads = (HEATED, "dropped")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (AT_ONE,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("heated", batch.policy_N, self.mean, coef=self.heated_coef)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        logp_N = stats[AT_ONE.column]
        return {"heated": torch.where(heated_N(batch), logp_N, torch.zeros_like(logp_N))}


AEPO = GRPO.but(
    name="aepo",
    paper="arXiv:2510.08141",
    checked=(
        "Compared with 597358816/AEPO, verl/trainer/ray_trainer.py. There the heated responses replace the first rows "
        "of a batch of 2,560; here they are added to the batch. There the prompts are the first ones of the batch; "
        "here they are drawn with a random key. The importance ratio of the code starts at 1 and is clipped; the "
        "gradient of the paper, and of this implementation, is that of REINFORCE. If no heated response qualifies the "
        "code fails; here the term is absent."
    ),
    confidence="code",
    rollout=WithHeated(),
    select=HostAlone(),
    objective=(*GRPO.objective, HeatedLikelihood()),
    penalties=(),
    together=("rollout", "select", "objective"),
    version=2,  # 1 had this term among the penalties
    breaks={"equal_rewards": "Heated answers are imitated, whatever the rewards of the others are."},
)
