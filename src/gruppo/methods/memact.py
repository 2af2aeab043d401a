"""MemAct, memory as action, trained with DCPO (Zhang et al. 2025, arXiv:2510.12635).

    H' = H + (action, observation)  after an action in the world
    H' = edit(H)                    after an action on the context: `drop 1 2 note …` deletes records and adds a summary
    A(τ) = (R − mean R) / (std R + ε)       over the trajectories of the prompt, each counted once
    J = mean over drawn segments σ of Σ_{t in σ} A(τ) log π(y_t | H_t)          16 segments for each prompt

Differs from GRPO: the agent may rewrite its context, and every edit begins a new segment, a sequence with a prefix of
its own, so that each token is learned under exactly what the policy saw. The advantage of a trajectory goes to all
tokens of its segments. So that episodes of many edits do not crowd out the others, each trajectory gives one random
segment, then another, and so on round by round up to `segments`; a group with fewer segments uses each equally often,
as far as that goes. In half of the episodes the tool is withheld, so that groups hold both kinds. An episode that ran
out of turns or of room costs 0.1. Without edits there is one segment and this is GRPO. `memory_words` limits the
context (0: the model's own). Tasks that are one answer have nothing to edit; games are refused, because a memory is
for one agent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Status
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, Prompt, Stats, setting
from gruppo.stages.objective import PolicyGradient
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.play import Start, starts_of


@dataclass(frozen=True)
class WithMemory(Occupant):
    """Episodes in which the agent may edit its context; in a share of them, at random, it may not.

    memory_words   words that the context may have; 0: as many as the model takes
    withheld       share of episodes without the tool
    """

    memory_words: int = setting(0, low=0)
    withheld: float = setting(0.5, low=0, high=1)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        return await ctx.play([self.equipped(ctx, s) for s in starts_of(ctx, prompts) if isinstance(s, Start)])

    def equipped(self, ctx: Context, start: Start) -> Start:
        edits = bool(ctx.uniform("edits", start.uid) >= self.withheld)
        how = {**start.prompt.ask.how, "memory": {"words": self.memory_words, "edits": edits}}
        return replace(start, prompt=replace(start.prompt, ask=replace(start.prompt.ask, how=how)))


@dataclass(frozen=True)
class Overrun(Occupant):
    """Component `overrun`: −overrun_cost for an episode that ran out of turns, tokens or room."""

    overrun_cost: float = setting(0.1, low=0)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        return {"overrun": -self.overrun_cost * np.array([e.status == Status.TRUNCATED for e in episodes], np.float64)}


@dataclass(frozen=True)
class SomeSegments(Occupant):
    """`segments` sequences of every group, drawn round by round, one of each episode; those drawn twice count twice."""

    segments: int = setting(16, low=1, witness=[1, 2])

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        times_S = self.drawn(ctx, batch).to(batch.weight_N.dtype)
        total = times_S.sum().clamp(min=1)
        weight_S = times_S * (times_S > 0).sum() / total  # so that the mean over sequences is that over draws
        return batch.spread(times_S > 0, "S", "N"), batch.spread(weight_S, "S", "N")

    def drawn(self, ctx: Context, batch: Batch) -> Tensor:
        """How often each sequence is drawn."""
        usable_S = batch.gather(batch.policy_N, "N", "S", "any")
        first_E = batch.gather(number_S := torch.arange(batch.size("S"), device=batch.device), "S", "E", "min").long()
        uid_S, number_S = batch.spread(batch.uid_E, "E", "S"), number_S - batch.spread(first_E, "E", "S")
        noise_S, noise_E = ctx.uniform("segment", uid_S, number_S), ctx.uniform("trajectory", batch.uid_E)
        times = [0] * batch.size("S")
        groups: dict[int, dict[int, list[int]]] = {}
        usable: list[int] = torch.nonzero(usable_S)[:, 0].tolist()
        for s in sorted(usable, key=lambda s: float(noise_S[s])):
            e = int(batch.episode_S[s])
            groups.setdefault(int(batch.group_E[e]), {}).setdefault(e, []).append(s)
        for members in groups.values():
            order = [members[e] for e in sorted(members, key=lambda e: float(noise_E[e]))]
            rounds = [mine[r] for r in range(max(map(len, order))) for mine in order if r < len(mine)]
            for n in range(self.segments):
                times[rounds[n % len(rounds)]] += 1
        return torch.tensor(times, device=batch.device)


MEMACT = GRPO.but(
    name="memact",
    paper="arXiv:2510.12635",
    checked=(
        "Compared with a reading of YuxiangZhang0114/MemAct-Anonymized (compute_dcpo_outcome_advantage in "
        "core_algos.py, _sampling_random in agent_loop.py, mem_agent_loop.py and run_dcpo_7B.sh) that was noted "
        "before; the 0.1 for violations, 16 segments and the loss without a clip are from notes on the paper. The "
        "same in both: a trajectory counts once in mean and standard deviation (n - 1), segments round by round "
        "with each trajectory at least once, the tool withheld with probability 0.5, a KL of 0.001. Differences. "
        "(1) A group of one has A = R in the code and is refused here. (2) The code draws 12 segments (segments=12) "
        "and trains with verl's clipped loss; with one update a step the gradient is the same. (3) In a group of "
        "more trajectories than segments, random ones give one each, in both. (4) The start from demonstrations is "
        "left out."
    ),
    confidence="notes",
    rollout=WithMemory(),
    reward=Overrun(),
    select=SomeSegments(segments=16),
    objective=PolicyGradient(mean="sequence_sum"),
    penalties=ReferenceKL(kl_coef=0.001, mean="token"),
    together=("rollout", "select"),
    breaks={
        "fields_matter": "The laws' tasks are answered in one turn, so nothing is edited; its own tests show them."
    },
)
