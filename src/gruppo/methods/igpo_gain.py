"""IGPO, information gain-based policy optimisation (Wang et al. 2025, arXiv:2510.14967).

    p_t = exp( 1/|a| Σ_j log π_old(a_j | all that is seen after turn t, a_<j) )        a: the right answer, in words
    r_t = p_t − p_{t−1}  for every turn but the last,      r_T = R, the outcome
    r̃ = (r − mean r) / (std r + ε)  over all turns of all rollouts of the task
    A_t = Σ_{k ≥ t} γ^{k−t} r̃_k,   γ = 1,   for every token of turn t

Differs from GRPO: a turn is paid for what it adds to the policy's own probability of the right answer, so that a group
in which every rollout fails still has a gradient. The gains of an episode add up to p_{T−1} − p_0. They are computed by
one more forward pass with the weights that sampled, over what was seen before each turn followed by the answer; they
have no gradient themselves. `template` puts the answer into the words in which an agent gives it, for example
`method.reward.information_gain.template="answer {answer}"` in the world `search`.

Outcomes are normalised together with the gains, so that equal outcomes at the end of episodes are no longer nothing.
With one turn there is no gain, and this is GRPO. A task of several turns without an answer in words is refused.
`normalise="position"` is the released code's: no standard deviation, each token against the tokens at its position in
the other rollouts, and no return across an observation. A group of one is refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from gruppo.data import Batch, Episode, Growing, Source, centre
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES, judged_N, turn_reward
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.requires import FactsOfTurns


@dataclass(frozen=True)
class InformationGain(Occupant):
    """Component `gain` of turns: how much a turn raises the policy's probability of the right answer; 0 for the last.

    The probability is the geometric mean over the tokens of `template` with the answer in it.
    """

    template: str = setting("{answer}", witness="so {answer}")
    requires = (FactsOfTurns("what stood before each turn, with the answer of the task"),)

    def wrong(self) -> str:
        there = "{answer}" in self.template
        return "" if there else (
            f"template={self.template!r} has no {{answer}}, so every task would have the same answer. Put it where the "
            "answer stands, such as 'answer {answer}'."
        )  # fmt: skip

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        several = [e for e in episodes if len(e.turns) > 1]
        chance = dict(zip([e.uid for e in several], self.chances(ctx, several), strict=True))
        return {"gain": [gains(chance.get(e.uid, [0.0] * len(e.turns))) for e in episodes]}

    def chances(self, ctx: Context, episodes: Sequence[Episode]) -> list[list[float]]:
        """The probability of the right answer before each turn of each episode."""
        if not episodes:
            return []
        batch = ctx.read([asked_before_turns(e, ctx.tokenizer.encode(self.answer(e))) for e in episodes])
        mean_S = batch.gather(batch.logp_policy_N, "N", "S", "mean").tolist()
        return [[math.exp(mean_S.pop(0)) for _ in e.turns] for e in episodes]

    def answer(self, e: Episode) -> str:
        answer = "" if e.ask is None else str(e.ask.task.answer)
        if not answer:
            raise ValueError(
                f"task {e.task!r} has no answer in words, so no turn can bring it nearer. Use a task whose rows have "
                "an answer, such as task=search, or a method without it such as method=grpo."
            )
        return self.template.replace("{answer}", answer)


def gains(chance: list[float]) -> list[float]:
    """What each turn adds to what was there before it; 0 for the last."""
    return [after - before for before, after in zip(chance, [*chance[1:], *chance[-1:]], strict=True)]


def asked_before_turns(e: Episode, answer: Any) -> Episode:
    """What stood before each turn, each in a sequence of its own, followed by the answer."""
    grown = Growing(e.uid, e.task, e.group)
    for t in e.turns:
        grown.begin(e.sequences[t.sequence].ids[: t.start])
        grown.act(answer, source=Source.EXPERT)
    return grown.finish()


@dataclass(frozen=True)
class JointReturns(Occupant):
    """A_t = Σ_{k ≥ t} gamma^(k−t) z(r_k), z over all turns of the group; r: rewards of turns, the outcome on the last.

    normalise  joint: as above; position: r_t less its mean over the tokens at the same position of the group
    """

    gamma: float = setting(1.0, low=0, high=1)
    eps: float = setting(1e-6, low=0, witness=1.0)
    normalise: Literal["joint", "position"] = "joint"
    writes = ("adv_N",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        reward_K, judged_K = turn_reward(batch), batch.spread(batch.judged_E, "E", "K")
        if self.normalise == "joint":
            z_K = advantage.z_score(reward_K, batch.level("K", "G"), where=judged_K, eps=self.eps)
            return {"adv_N": batch.spread(batch.scan(z_K, self.gamma, "K", "E"), "K", "N")}
        here_N = batch.inputs.pos_M[batch.at_N]
        first_N = batch.spread(batch.gather(here_N, "N", "S", "min").long(), "S", "N")
        places = batch.key("N", batch.up("N", "G"), here_N - first_N)
        return {"adv_N": centre(batch.spread(reward_K, "K", "N"), places, where=judged_N(batch))}


IGPO_GAIN = GRPO.but(
    name="igpo_gain",
    paper="arXiv:2510.14967",
    checked=(
        "Compared with GuoqingWang1/IGPO: scrl/llm_agent/generation.py, verl/utils/reward_score/info_gain.py, "
        "verl/trainer/ppo/core_algos.py and policy_optimization.sh (γ = 1, β = 0.001). The joint normalisation is the "
        "paper's; the code has none of it (here normalise=position, for γ = 1). The outcome is the task's, there an F1 "
        "score; the paper's penalty for a wrong format has a value that was not read, and is left out. Of several "
        "right answers the task's one is taken."
    ),
    confidence="code",
    reward=InformationGain(),
    credit=JointReturns(gamma=1.0),
    penalties=ReferenceKL(kl_coef=0.001),
    together=("reward", "credit"),
    breaks={"equal_rewards": "Equal outcomes are paid against the gains of the turns before them, all turns together."},
)
