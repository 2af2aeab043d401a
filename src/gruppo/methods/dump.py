"""DUMP: Distribution-level UCB curriculum (Wang et al. 2025, arXiv:2504.09710).

    L_j   = mean |A| over the last 300 samples of domain j,      n_j = its samples so far,      n = Σ_j n_j
    UCB_j = L_j + √( 2 ln(n + 1) / (n_j + 1) )
    domain ~ softmax(UCB / 0.1),      then a prompt of it, uniformly

Differs from GRPO: the curriculum, and a KL coefficient of 0.001. Domains with large advantages, or with few samples so
far, are drawn more often. A domain is a task at a level: `task=mix:addition@1+addition@3+chain` has three,
`task.level=1-4` four. With one domain nothing is left to choose.

Within a domain no task recurs before all have been drawn. A sample that selection dropped counts with |A| = 0;
otherwise a domain of equal groups would keep its old estimate. With GRPO's advantage a group with a share p of correct
responses has a mean |A| of 2√(p(1 − p)); batch-whitened advantages compare domains with each other instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Use, name_hash, permutation
from gruppo.methods.grpo import GRPO
from gruppo.stages import Ask, Context, Memory, Occupant, StepRecord, setting
from gruppo.stages.curriculum import asked, weighted
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.tables import Table
from gruppo.tasks.base import domains_of

MEMORY = "domains"  # {domain: {"size": the last |A|, "samples": n_j, "asked": prompts so far}}


@dataclass(frozen=True)
class DomainUcb(Occupant):
    """Draws domains from softmax(UCB / domain_temperature), UCB = L + √(2 ln(n + 1) / (n_j + 1)).

    window              L is the mean |A| over the last so many samples of the domain
    domain_temperature  small: nearly always the domain with the largest bound; large: nearly uniform
    """

    window: int = setting(300, low=1, witness=2)
    domain_temperature: float = setting(0.1, above=0, witness=100.0)
    reads = ("adv_N",)

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        known, domains = ctx.memory.get(MEMORY, {}), domains_of(tasks)
        chosen = weighted(ctx, self.weights(known, list(domains)), ctx.prompts, "domain", replace=True)
        chosen_T: list[int] = []
        for j, (name, mine) in enumerate(domains.items()):
            first = known[name]["asked"] if name in known else 0
            chosen_T += _in_turn(ctx, name, mine, first, chosen.count(j))
        return asked(ctx, tasks, chosen_T)

    def weights(self, known: Mapping[str, Any], names: Sequence[str]) -> Tensor:
        """The probability of each domain."""
        mean = torch.tensor([float(known[j]["size"].mean()) if j in known else 0.0 for j in names], dtype=torch.float64)
        n = torch.tensor([known[j]["samples"] if j in known else 0 for j in names], dtype=torch.float64)
        ucb = mean + (2 * torch.log(n.sum() + 1) / (n + 1)).sqrt()
        return torch.softmax(ucb / self.domain_temperature, 0)

    def observe(self, record: StepRecord, memory: Memory) -> None:
        drawn = [e for e in record.drawn if e.status.judged and e.use == Use.LEARN]
        size_E = _sizes(record).look(torch.tensor([e.uid for e in drawn], dtype=torch.int64), "size", 0.0)
        domain_E = torch.tensor([name_hash(e.domain) for e in drawn], dtype=torch.int64)
        groups = {(e.domain, e.group) for e in record.drawn}
        out: dict[str, Any] = dict(memory.get(MEMORY, {}))
        for name in sorted({e.domain for e in drawn}):
            now = size_E[domain_E == name_hash(name)]
            old = out.get(name, {"size": now[:0], "samples": 0, "asked": 0})
            out[name] = {
                "size": torch.cat([old["size"], now])[-self.window :],
                "samples": old["samples"] + len(now),
                "asked": old["asked"] + sum(domain == name for domain, _ in groups),
            }
        memory[MEMORY] = out


def _sizes(record: StepRecord) -> Table:
    """Mean |A| over the tokens of each episode in the batch."""
    if record.batch is None:
        return Table()
    b = record.batch
    return Table().put(b.uid_E, size=b.gather(b.adv_N.abs(), "N", "E", "mean", where=b.policy_N))


def _in_turn(ctx: Context, name: str, mine: Sequence[int], first: int, n: int) -> list[int]:
    """The next n task indices of a domain: one random permutation after the other. A redraw starts at a random one."""
    if ctx.round > 0:
        first = int(ctx.uniform("again", ctx.round, name) * len(mine))
    turns = range(first, first + n)
    orders = {k: permutation(len(mine), ctx.seed, "domain", name, k) for k in {t // len(mine) for t in turns}}
    return [mine[int(orders[t // len(mine)][t % len(mine)])] for t in turns]


DUMP = GRPO.but(
    name="dump",
    paper="arXiv:2504.09710",
    checked=(
        "Compared with ZhentingWang/DUMP, verl/utils/curriculum_learning.py, and its scripts (KL coefficient 0.001). "
        "As in the paper, |A| is that of the training samples; the code uses validation samples. The code draws the "
        "prompts of a domain with replacement; here no task of a domain recurs before all have been drawn. Counting "
        "dropped samples with |A| = 0 is ours."
    ),
    confidence="code",
    curriculum=DomainUcb(),
    penalties=(ReferenceKL(kl_coef=0.001),),
)
