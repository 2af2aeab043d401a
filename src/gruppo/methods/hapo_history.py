"""HAPO: History-Aware Policy Optimization (Huang, Zhang, Cardie 2025, arXiv:2505.11225).

    h_q = tokens of the shortest right answer to q so far                    undefined before the first one
    f   = cos( min(π/2 · |o| / h_q, π) )                                     1 at no length, 0 at h_q, −1 from 2 h_q on
    R   = 1[right] + w · ( max(f, c) if right, min(f, 0) if wrong, 0 without a history ),      w = 1, c = −0.7

Differs from GRPO: a second reward for being shorter than the shortest right answer so far. A right answer always scores
more than a wrong one (1 − 0.7 > 0), and a short wrong answer is not penalised. The history is updated after the rewards
of a step, from every judged rollout, including groups that selection dropped; h_q never increases. Lengths count the
tokens that the policy sampled, including the end-of-sequence token. Tasks must recur, so train for several epochs, for
example with task.train_size=256.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Episode, Source, Use, name_hash
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Memory, Occupant, StepRecord, setting
from gruppo.stages.requires import RecurringTasks
from gruppo.stages.reward import task_reward
from gruppo.stages.tables import Table

SHORTEST = "shortest"  # tokens of the shortest right answer, by task


@dataclass(frozen=True)
class ShorterThanBefore(Occupant):
    """Reward component `length`: length_coef · cos(π/2 · |o| / h_q), h_q the shortest right answer to the task so far.

    least  lower bound for a right answer; a wrong answer gets at most 0, one without a history 0
    """

    length_coef: float = setting(1.0, low=0, witness=0.3)
    least: float = setting(-0.7, witness=-0.1)
    requires = (RecurringTasks(),)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        key_E, length_E, right_E = _columns(episodes)
        before_E = Table.of(ctx.memory, SHORTEST).look(key_E, "tokens")
        f_E = torch.cos((math.pi / 2 * length_E / before_E).clamp(max=math.pi))
        value_E = torch.where(right_E, f_E.clamp(min=self.least), f_E.clamp(max=0.0))
        known_E = ~before_E.isnan() & (length_E > 0)  # an expert's answer has no sampled token
        return {"length": (self.length_coef * torch.where(known_E, value_E, 0.0)).tolist()}

    def observe(self, record: StepRecord, memory: Memory) -> None:
        drawn = [e for e in record.drawn if e.status.judged and e.use <= Use.BASELINE and e.source == Source.POLICY]
        key_E, length_E, right_E = _columns(drawn)
        memory[SHORTEST] = Table.of(memory, SHORTEST).lowered(key_E[right_E], "tokens", length_E[right_E]).plain


def _columns(episodes: Sequence[Episode]) -> tuple[Tensor, Tensor, Tensor]:
    """Key of the task, number of sampled tokens, whether the answer is right."""
    key_E = torch.tensor([name_hash(e.task) for e in episodes], dtype=torch.int64)
    length_E = torch.tensor([e.tokens for e in episodes], dtype=torch.float64)
    return key_E, length_E, torch.tensor([task_reward(e) > 0 for e in episodes], dtype=torch.bool)


HAPO_HISTORY = GRPO.but(
    name="hapo_history",
    paper="arXiv:2505.11225",
    checked=(
        "Compared with HCY123902/HAPO: utils.py, compute_len_reward, and grpo_trainer.py, combined_reward_func "
        "(mode min). There a length is that of the text after encoding it again; here it is the number of tokens "
        "that the policy sampled, the end included. Their penalty on repeated n-grams is off by default and is "
        "left out."
    ),
    confidence="code",
    reward=(ShorterThanBefore(),),
)
