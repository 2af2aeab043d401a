"""AEPO, arbitrary entropy policy optimisation (Wang et al. 2025, arXiv:2510.08141).

    T = 1.2 if H < H* else 0.8,      H = the policy's entropy at the last step
    J = J_GRPO + α/B Σ_{o ~ π_T, A(o) > 0.05} 1/|o| Σ_t log π(o_t | q, o_<t)

Entropy is held at a target without a bonus on it: right answers that were drawn hotter than the policy pull it towards
a flatter distribution, colder ones towards a sharper one. Differs from GRPO: a quarter of the prompts is answered once
more at T; of the answers that are better than their group at most 60, half as many where entropy is too high, are
imitated; no KL. The step counts them as B does the others, so α = 1 is the weight of an answer of advantage 1.

Checked against 597358816/AEPO, verl/trainer/ray_trainer.py: there they take the place of the first rows of a batch of
2,560, here they are added, and what they cost is in the metric `sampled`; the prompts are its first, here drawn by lot;
its ratio starts at 1 and is clipped, the paper's gradient and this one is REINFORCE's. log π is that of temperature 1,
not of T. H is minus the mean log-probability of the sampled tokens; at the first step it counts as above the target.
No better answer: no term (the code fails).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Key, Note, Source, Use
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Memory, Need, Noted, Occupant, Prompt, Stats, StepRecord, Term, need
from gruppo.stages.rollout import Group, anew, asks_of

AT_ONE = need("logp", when="step", T=1.0)


@dataclass(frozen=True)
class WithHeated(Occupant):
    """Samples of every prompt; a `share` of the prompts once more at another temperature, for `HeatedLikelihood`.

    heat     that temperature is 1 + heat where the entropy is below `target_entropy`, else 1 − heat
    min_adv  an answer counts if its advantage among those of its prompt, in deviations, is above this
    most     answers that count, at the most; where the entropy is above the target, half as many
    """

    target_entropy: float = 0.5
    heat: float = 0.2
    share: float = 0.25
    min_adv: float = 0.05
    most: int = 60
    gives = ("note_heated_E",)
    min_samples = 2
    alone = "It keeps answers that are better than others of their prompt, and one alone is not."
    witness = {"target_entropy": 9.0, "heat": 0.9, "share": 1.0, "min_adv": 2.0, "most": 0}

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        episodes = await Group()(ctx, prompts)
        low = ctx.memory.get("entropy", float("inf")) < self.target_entropy
        chosen = [a for a in asks_of(prompts) if ctx.uniform("heated", ctx.round, a.group) < self.share]
        asks = [anew(a, "heated", a.samples, {"temperature": 1 + self.heat if low else 1 - self.heat}) for a in chosen]
        heated = await ctx.draw(asks) if asks else []
        better = self._better(heated)
        luck = ctx.uniform("imitated", torch.tensor([e.uid for e in better], dtype=torch.int64))
        count = min(self.most, len(better)) if low else min(self.most, len(better)) // 2
        for e in heated:
            e.use = Use.NONE
        for i in luck.argsort()[:count].tolist():
            better[i].use, better[i].notes["heated"] = Use.APART, Note(np.ones(1, np.float32))
        return [*episodes, *heated]

    def __post_init__(self) -> None:
        if not 0 <= self.heat < 1:
            raise ValueError(
                f"heat={self.heat}: 1 - heat is a temperature. Use a number from 0 to below 1, such as 0.2."
            )

    def _better(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The answers whose z-score in their group is above `min_adv`."""
        known = [e for e in episodes if e.status.judged and np.isfinite(e.total)]
        place = {group: i for i, group in enumerate(dict.fromkeys(e.group for e in known))}
        groups = Key(torch.tensor([place[e.group] for e in known], dtype=torch.int64), len(place))
        adv = advantage.z_score(torch.tensor([e.total for e in known]), groups)
        return [e for e, a in zip(known, adv.tolist(), strict=True) if a > self.min_adv]

    def observe(self, record: StepRecord, memory: Memory) -> None:
        mine = [e for e in record.drawn or record.episodes if e.use == Use.LEARN and e.source == Source.POLICY]
        logp = np.concatenate([s.logp[np.isfinite(s.logp)] for e in mine for s in e.sequences] or [np.zeros(0)])
        if len(logp):
            memory["entropy"] = -float(logp.astype(np.float64).mean())


def heated_N(batch: Batch) -> Tensor:
    """Tokens of the answers that were drawn at another temperature."""
    if "note_heated_E" not in batch.columns:  # this step has none
        return torch.zeros_like(batch.keep_N)
    return batch.spread(batch.note_heated_E == 1, "E", "N") & (batch.source_N == Source.POLICY)


@dataclass(frozen=True)
class HostAlone(Occupant):
    """The objective neither learns nor counts heated answers: they have a term of their own."""

    current = False
    notes = {"heated": Noted("E", (0.0, 1.0))}

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return ~heated_N(batch), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class HeatedLikelihood(Occupant):
    """heated_coef/B Σ 1/|o| Σ_t log π(o_t) over heated answers, at temperature 1; B counts all answers of the step."""

    heated_coef: float = 1.0
    notes = {"heated": Noted("E", (0.0, 1.0))}
    witness = {"heated_coef": 0.3}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (AT_ONE,)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        mine_N, logp_N = heated_N(batch), stats[AT_ONE.column]
        value_N = torch.where(mine_N, logp_N, torch.zeros_like(logp_N))
        return [Term("heated", value_N, batch.policy_N, "sequence", coef=self.heated_coef)]


AEPO = GRPO.but(
    name="aepo",
    paper="arXiv:2510.08141",
    rollout=WithHeated(),
    select=HostAlone(),
    penalties=(HeatedLikelihood(),),
    together=("rollout", "select", "penalties"),
)
