"""ReMax (Li et al. 2023, arXiv:2310.10505).

    b = R(greedy answer to q),      A_t = Σ_{s≥t} r_s − b
    J = 1/B Σ_i Σ_t A_it log π(o_it | q, o_i<t)

Differs from REINFORCE: the baseline is the reward of the policy's own greedy answer to the same prompt, one more
rollout per prompt at temperature 0. It is an episode of use `baseline`: none of its tokens is learned or counted, and
it enters no mean but b. Neither a critic nor groups are needed; the paper uses samples=1. Where a sample scores as much
as the greedy answer, A = 0. A prompt whose greedy answer could not be judged has no baseline and is not learned: a
failure is not a reward of 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Use, segment
from gruppo.methods.reinforce import REINFORCE
from gruppo.stages import Context, Occupant, Prompt
from gruppo.stages.credit import judged_in_time, return_to_go, seat_N
from gruppo.stages.requires import BASELINE_EPISODES
from gruppo.stages.rollout import Group
from gruppo.stages.turns import seats_of_groups


@dataclass(frozen=True)
class WithGreedy(Group):
    """`samples` answers to each prompt, and a greedy one as their baseline."""

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        episodes = await super().__call__(ctx, [*prompts, *map(greedy, prompts)])
        for e in episodes[len(episodes) - len(prompts) :]:
            e.use = Use.BASELINE
        return episodes


def greedy(prompt: Prompt) -> Prompt:
    """The same prompt in the same group, answered once at temperature 0."""
    how = {**prompt.ask.how, "temperature": 0.0, "top_k": 0, "top_p": 1.0}
    return replace(prompt, samples=1, ask=replace(prompt.ask, samples=1, how=how, key=f"{prompt.ask.key} greedy"))


@dataclass(frozen=True)
class AgainstGreedy(Occupant):
    """A_t = return-to-go − reward of the group's baseline episode, of the same agent; 0 if none was judged."""

    writes = ("adv_N",)
    ignores = ("shift",)
    requires = (BASELINE_EPISODES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine, seats = judged_in_time(batch), seats_of_groups(batch)
        greedy_E = batch.judged_E & (batch.use_E == Use.BASELINE)
        greedy = (greedy_E[:, None] & ~batch.reward_EA.isnan()).flatten()
        base = segment.gather(batch.reward_EA.flatten(), seats, "mean", where=greedy)
        known = segment.gather(greedy, seats, "any")
        base, known = (seats.spread(x)[seat_N(batch)[mine]] for x in (base, known))
        adv = torch.where(known, return_to_go(batch, mine) - base, torch.zeros_like(base))
        return {"adv_N": torch.zeros_like(batch.weight_N).index_copy(0, mine, adv)}


_NO_GREEDY = "This law's answers come without greedy ones; where no baseline was judged, ReMax learns nothing."

REMAX = REINFORCE.but(
    name="remax",
    paper="arXiv:2310.10505",
    checked=(
        "Compared with liziniu/ReMax, step3_rlhf_finetuning/remax_trainer.py, and verl core_algos.py, "
        "compute_remax_outcome_advantage. The authors average the loss over tokens and add a KL to the reference "
        "to each token's return (verl: to its reward); the paper's estimator, which is implemented here, has "
        "neither. objective.mean=token and method.penalties+=reference_kl give both."
    ),
    confidence="code",
    rollout=WithGreedy(),
    credit=AgainstGreedy(),
    together=("rollout", "credit"),
    breaks={"direction": _NO_GREEDY, "alone": _NO_GREEDY},
)
