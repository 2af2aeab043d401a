"""SPIRAL, self-play on zero-sum games with role-conditioned advantages (Liu et al. 2025, arXiv:2506.24119).

    A_Gp(τ) = R_p(τ) − b_Gp,   then   b_Gp ← 0.95 b_Gp + 0.05 R_p(τ)          for every role p of game G; b = 0 at first
    ∇J = E_τ Σ_p Σ_{turns t of p} A_Gp(τ) ∇ log π(y_t | s_t, p, G)

Differs from REINFORCE: one policy plays all seats, and every seat has a baseline of its own in every game, since a seat
may be worth more than another (Kuhn poker is worth −1/18 to the first). A baseline is read before the episode changes
it; the episodes of a step follow each other in the order of their random numbers, uid. What a role earned in an episode
is the credit of all its turns there. Clip of 0.2 and two passes over every batch; in the first, all ratios are 1. Turns
that ran out of tokens are not learned from. No groups: `samples=1` is enough. In a task of one answer it is
REINFORCE with a baseline for every domain; worlds with one seat are refused. A baseline of 0 at first is the paper's;
in a game with two roles the mean is near it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gruppo.data import Batch, key_hash, name_hash, segment
from gruppo.methods.reinforce import REINFORCE
from gruppo.stages import Context, Memory, Occupant, StepRecord, setting
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.requires import SeveralSeats
from gruppo.stages.select import WholeTurns
from gruppo.stages.tables import Table
from gruppo.stages.update import Passes

ROLES = "roles"  # in memory: the baseline of every role


@dataclass(frozen=True)
class RoleBaseline(Occupant):
    """A = R of the role − b, b a running mean of what the role earned in earlier episodes.

    baseline_of  game_role: one b for each role of each domain; role: one for each role (the authors' code)
    """

    decay: float = setting(0.95, low=0, high=1)
    baseline_of: Literal["game_role", "role"] = "game_role"
    writes = ("adv_N",)
    requires = (SeveralSeats(),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rows, reward, _, before, _ = self.passed(batch, ctx.memory)
        adv_EA = torch.zeros_like(batch.reward_EA).flatten()
        adv_EA = adv_EA.index_copy(0, rows, (reward - before).to(adv_EA.dtype))
        return {"adv_N": batch.spread(adv_EA[batch.seats.index], "K", "N")}

    def passed(self, batch: Batch, memory: Memory) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(seat, reward, role, baseline before it, baseline after it) of every judged seat, role by role, in order."""
        seats = batch.seats
        turns = batch.gather(torch.ones_like(batch.reward_K), "K", seats, "count")
        judged = batch.judged_E.repeat_interleave(len(batch.agents))
        rows = torch.nonzero((turns > 0) & judged)[:, 0]
        episode, agent = rows // len(batch.agents), rows % len(batch.agents)
        names = torch.tensor([name_hash(a) for a in batch.agents], dtype=torch.int64, device=batch.device)
        role = names[agent]
        if self.baseline_of == "game_role":
            mixed = key_hash(role, batch.domain_E[episode])
            assert isinstance(mixed, Tensor)
            role = mixed
        order = torch.argsort(batch.uid_E[episode], stable=True)
        order = order[torch.argsort(role[order], stable=True)]
        rows, role = rows[order], role[order]
        reward = batch.reward_EA.flatten()[rows].double()
        start = Table.of(memory, ROLES).look(role, "baseline", 0.0)
        first = segment.lag(torch.ones_like(reward), 1, role) == 0
        step = (1 - self.decay) * reward + torch.where(first, self.decay * start, 0.0)
        after = segment.scan(step.flip(0), self.decay, role.flip(0)).flip(0)
        return rows, reward, role, torch.where(first, start, segment.lag(after, 1, role)), after

    def observe(self, record: StepRecord, memory: Memory) -> None:
        if record.batch is not None:
            _, _, role, _, after = self.passed(record.batch, memory)
            last = segment.lag(torch.ones_like(after), -1, role) == 0
            memory[ROLES] = Table.of(memory, ROLES).put(role[last], baseline=after[last]).plain


SPIRAL = REINFORCE.but(
    name="spiral",
    paper="arXiv:2506.24119",
    checked=(
        "Compared with spiral-rl/spiral, train_spiral.py, spiral/utils.py and run.sh, read at commit a02d0ed. The "
        "same in both: α = 0.95, b = 0 at first and read before it is updated, two epochs, no KL, γ = 1, truncated "
        "turns left out. Differences. (1) The code has one baseline for each role, whatever the game "
        "(baseline_of=role), and one set of them in every actor process; here one set, in memory. (2) A sample of "
        "the code is one turn, and 128 of them are a batch; here the mean is over episodes, as in the paper's "
        "gradient. (3) The code drops turns whose advantage is exactly 0, which changes only what it divides by. "
        "(4) An illegal move ends the code's games with -1.5 against 0.5; here the world says."
    ),
    confidence="code",
    select=WholeTurns(),
    credit=RoleBaseline(decay=0.95),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="episode_sum"),
    update=Passes(epochs=2, minibatches=1),
    breaks={"equal_rewards": "Every baseline is 0 before the first episode, so any other reward is news."},
)
