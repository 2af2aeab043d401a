"""SSB, the Selective Sample Buffer of Skywork R1V2 (Wang et al. 2025, arXiv:2504.16656).

    after a step:   remember (x, o, A, log π_old) of every answer with A ≠ 0
    in a step:      draw remembered answers, P(j) = |A_j|^power / Σ_k |A_k|^power, and learn from them, too

Differs from GRPO: late in training most groups are all right or all wrong and have no gradient; the buffer keeps the
share of informative answers high. A stored answer keeps its advantage and its log π_old: its ratio is to the policy
that it was learned under, and it enters no statistic of the current step. |A_j| is the mean over the answer's tokens.
Sampling is without replacement: the smallest random keys −log(u) / |A|^power are taken (Efraimidis and Spirakis 2006),
and what was sampled stays in the buffer. In means each stored answer counts as an answer of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gruppo.data import Episode, Source, Use
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.replay import Credited, Proximal


@dataclass(frozen=True)
class Selective(Occupant):
    """Stores answers with an advantage and samples them again, in proportion to |A|^power.

    capacity  number of answers in the buffer
    share     share of the batch that comes from the buffer
    max_age   age in steps at which an answer leaves the buffer
    """

    capacity: int = setting(512, low=1, witness=1)
    share: float = setting(0.25, low=0, below=1, witness=0.6)
    max_age: int = setting(5, low=0, witness=1)
    power: float = setting(1.0, low=0, witness=4.0)
    proximal: Proximal = "stored"
    credited: Credited = "stored"
    joins = True
    reads = ("adv_N",)

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        young = [e for e in store if ctx.step - e.step < self.max_age]
        fresh = [e for e in episodes if e.status.judged and (e.use, e.source) == (Use.LEARN, Source.POLICY)]
        return [*young, *(e for e in fresh if _size(e) > 0)][-self.capacity :]

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        count = round(self.share / (1 - self.share) * ctx.prompts * ctx.samples)
        noise = np.array([ctx.uniform("ssb", e.uid) for e in store])
        late = -np.log1p(-noise) / np.array([_size(e) for e in store]) ** self.power
        return [store[i] for i in np.argsort(late, kind="stable")[:count]]


def _size(e: Episode) -> float:
    """Mean |A| over its tokens."""
    return float(np.abs(e.notes["adv"].values).mean()) if "adv" in e.notes else 0.0


SSB = GRPO.but(
    name="ssb",
    paper="arXiv:2504.16656",
    checked=(
        "The abstract and secondary accounts were read; power = 1 is theirs. The size of the buffer, the share and "
        "the age could not be recovered: 512 answers, 25 % of the batch and five steps are ours. The preference "
        "model in the reward and the MPO stage before RL are not part of the buffer and are left out."
    ),
    confidence="notes",
    replay=Selective(share=0.25, power=1.0),
)
