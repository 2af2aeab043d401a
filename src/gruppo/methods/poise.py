"""POISE, policy optimisation with internal state value estimation (Choi et al. 2026, arXiv:2605.07579).

    φ_i = [mean state of the last 10 prompt tokens; of the last 10 answer tokens; mean, std and maximum of entropies]
    b_i = mean over j ≠ i of clip(f(φ_j), 0, 1),      A_i = R_i − b_i
    after the step: f = ridge regression of mean_{j ≠ i} R_j on φ_i, over the last 5 steps

Differs from GRPO: the baseline comes from a linear probe on the policy's own hidden states, read in the forward pass
that gives log π_old. A baseline that sees the answer it judges would bias the gradient, so an answer is judged by the
probe's values of the other answers to its prompt. Two samples per prompt suffice (samples=2), which leaves room for
more prompts. The probe is never fitted on the step that it judges; before the first fit, b_i is the mean reward of the
other answers. An answer without another to its prompt has A = 0. Rewards must be 0 or 1, hence the clip of f. No
standard deviation, no KL; clips 0.2 and 0.28.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, key_hash
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage, probe
from gruppo.stages import Context, Memory, Need, Occupant, StepRecord, need, setting
from gruppo.stages.credit import COMPARES, judged_N, to_tokens
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.requires import BINARY_REWARD
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class StateProbe(Occupant):
    """A_i = R_i − mean value that a linear probe of hidden states gives the other answers to the prompt.

    depth     layer to read, from 0 (embedding) to 1 (last block)
    last      number of tokens to average over
    ridge     penalty of the regression
    window    number of steps to fit on
    examples  number of answers per step to fit on, at most
    """

    depth: float = setting(0.6, low=0, high=1)
    last: int = setting(10, low=1, witness=1)
    ridge: float = setting(0.01, above=0, witness=10.0)
    window: int = setting(5, low=1, witness=1)
    examples: int = setting(1024, low=2, witness=4)
    writes = ("adv_N",)
    requires = (COMPARES, BINARY_REWARD)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        answer, prompt = (need("pool", "old", at="S", depth=self.depth, last=self.last, prompt=p) for p in (0.0, 1.0))
        return (answer, prompt, need("entropy", "old"))

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        known, judged, groups = ctx.memory.get("probe"), batch.judged_E, batch.level("E", "G")
        if known is None:
            return to_tokens(batch, advantage.leave_one_out(batch.reward_E, groups, where=judged))
        guess_E = probe.predict(known, self.features(batch)).clamp(0.0, 1.0)
        gap_E = batch.reward_E - others(batch, guess_E)
        return to_tokens(batch, torch.where(paired(batch), gap_E, torch.zeros_like(gap_E)))

    def features(self, batch: Batch) -> Tensor:
        """φ, one row per episode; 0 for episodes that are in no statistic."""
        pools = [batch.gather(batch.columns[n.column], "S", "E", "mean") for n in self.needs(Context())[:2]]
        mine, entropy_N = judged_N(batch), batch.entropy_old_N
        stats = [batch.gather(entropy_N, "N", "E", how, where=mine)[:, None] for how in ("mean", "std", "max")]
        x_EF = torch.cat([p.to(entropy_N.dtype) for p in pools] + stats, 1)
        return torch.where(batch.judged_E[:, None], x_EF, torch.zeros_like(x_EF))

    def observe(self, record: StepRecord, memory: Memory) -> None:
        batch = record.batch
        if batch is None or int(paired(batch).sum()) < 2:
            return
        rows = torch.nonzero(paired(batch))[:, 0]
        noise = key_hash("poise", record.step, batch.uid_E[rows])
        rows = rows[torch.argsort(torch.as_tensor(noise))][
            : self.examples
        ]  # a random subset, whatever the order of rows
        now = {"x": self.features(batch)[rows].cpu(), "y": others(batch, batch.reward_E)[rows].cpu()}
        memory["examples"] = [*memory.get("examples", []), now][-self.window :]
        x_XF, y_X = (torch.cat([m[k] for m in memory["examples"]]) for k in "xy")
        memory["probe"] = probe.fit(x_XF, y_X, self.ridge)


def paired(batch: Batch) -> Tensor:
    """Judged episodes with another judged one in their group."""
    count_G = batch.gather(batch.judged_E, "E", "G", "count", where=batch.judged_E)
    return batch.judged_E & batch.spread(count_G > 1, "G", "E")


def others(batch: Batch, x_E: Tensor) -> Tensor:
    """Mean over the other judged episodes of the group; meaningless where there is none."""
    return x_E - advantage.leave_one_out(x_E, batch.level("E", "G"), where=batch.judged_E)


POISE = GRPO.but(
    name="poise",
    paper="arXiv:2605.07579",
    checked=(
        "Written from the text of the paper; no code of the authors could be obtained. From the paper: "
        "standardised features, ridge 0.01, layer 19 (of 28 and of 36 blocks; depth 0.6 is near both). It is not "
        "known which three statistics of the entropies are meant, nor over how many steps f is fitted: mean, "
        "standard deviation and maximum, and 5 steps, are ours. So is the bound of 1024 answers of a step to fit "
        "on, with which memory holds at most 5 · 1024 · (2 dim + 4) numbers. Mean over tokens and four minibatches "
        "as in dapo."
    ),
    confidence="paper",
    credit=StateProbe(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, mean="token"),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
)
