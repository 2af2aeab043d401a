"""MMR1-VAS: Variance-Aware Sampling (Leng et al. 2025, arXiv:2509.21268).

    VPS_q = 0.8 · p_q (1 − p_q) + 0.2 · (1 − self-BLEU_q)        p_q: mean score of the answers to q
    w_q   = (VPS_q − min) / (max − min + 1e-8)                    over all tasks, every 35 steps
    a batch of B prompts: ⌊B/2⌋ drawn by w with replacement, the others in turn

Differs from GRPO: which tasks are drawn. A task whose answers vary in reward and in wording is drawn more often,
because a group of equal rewards has no gradient. The score of a task comes from the answers that training sampled last;
a task without a score has the mean weight of the others. The first weights are computed after the first step. A task
that is drawn twice in a step has two groups. Tasks must recur.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Episode, Key, Source, Use, gather
from gruppo.methods.grpo import GRPO
from gruppo.pieces.diversity import self_bleu
from gruppo.stages import Ask, Context, Memory, Occupant, StepRecord, setting
from gruppo.stages.curriculum import asked, in_turn, weighted
from gruppo.stages.requires import RecurringTasks
from gruppo.stages.reward import task_reward
from gruppo.stages.tables import Table, by_key

MEMORY = "variance"  # by task index: `score` of its last answers, and its `weight`


@dataclass(frozen=True)
class VarianceAware(Occupant):
    """Draw `weighted_share` of the prompts by the variance and diversity of their last answers, the others in turn.

    outcome_coef    weight of p (1 − p) in a task's score
    diversity_coef  weight of 1 − self-BLEU in it
    refresh_every   steps between two updates of the weights
    """

    weighted_share: float = setting(0.5, low=0, high=1, witness=1.0)
    outcome_coef: float = setting(0.8, low=0, witness=0.0)
    diversity_coef: float = setting(0.2, low=0, witness=3.0)
    refresh_every: int = setting(35, low=1, witness=1)
    requires = (RecurringTasks(),)

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        chosen = int(self.weighted_share * ctx.prompts + 1e-9)
        weight_T = self.weights(Table.of(ctx.memory, MEMORY), len(tasks))
        indices = weighted(ctx, weight_T, chosen, "variance", replace=True)
        return asked(ctx, tasks, indices + in_turn(ctx, len(tasks), ctx.prompts - chosen))

    def weights(self, table: Table, size: int) -> Tensor:
        """The weight of every task; the mean weight for a task that has none yet."""
        weight_T = table.look(torch.arange(size), "weight")
        return torch.where(weight_T.isnan(), weight_T.nanmean().nan_to_num(), weight_T)

    def observe(self, record: StepRecord, memory: Memory) -> None:
        drawn = [e for e in record.drawn if e.status.judged and e.use <= Use.BASELINE and e.index >= 0]
        keys, tasks = by_key(torch.tensor([e.index for e in drawn], dtype=torch.int64))
        table = Table.of(memory, MEMORY).put(keys, score=self.scores(drawn, tasks))
        if record.step % self.refresh_every == 0 and len(table):
            score = table.columns["score"]
            table = table.put(table.key_T, weight=(score - score.min()) / (score.max() - score.min() + 1e-8))
        memory[MEMORY] = table.plain

    def scores(self, episodes: Sequence[Episode], tasks: Key) -> Tensor:
        """The variance promotion score of each task."""
        right = torch.tensor([task_reward(e) for e in episodes], dtype=torch.float64)
        p = gather(right, tasks, "mean").clamp(0.0, 1.0)
        written = [np.concatenate([s.ids[s.source == Source.POLICY] for s in e.sequences]) for e in episodes]
        token_N = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *written]))
        part_N = torch.arange(len(written)).repeat_interleave(
            torch.tensor([len(w) for w in written], dtype=torch.int64)
        )
        return self.outcome_coef * p * (1 - p) + self.diversity_coef * (1 - self_bleu(token_N, part_N, tasks))


MMR1_VAS = GRPO.but(
    name="mmr1_vas",
    paper="arXiv:2509.21268",
    checked=(
        "Compared with LengSicong/MMR1, verl/curriculum/metrics.py and samplers.py. Their self-BLEU enters as it "
        "is (higher is less diverse), here as 1 - self-BLEU; their shipped settings use p (1 - p) alone. They "
        "answer every task 32 times in a sweep for the scores; here a score is that of the answers that training "
        "sampled last. Their momentum of the weights is 0 and is left out."
    ),
    confidence="code",
    curriculum=VarianceAware(),
)
