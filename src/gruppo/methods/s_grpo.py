"""S-GRPO, serial-group decaying-reward policy optimisation (Dai et al. 2025, arXiv:2505.07686).

    o_0 one path,   o_i = (o_0 up to t_i, inducer, an answer),   t_1 < t_2 < … drawn from the path's tokens
    R_i = 2^−(n_i − 1) if o_i is right, else 0;   n_i = right ones among the exits up to o_i, the path being the last
    A_i = R_i − mean R,     J = 1/G Σ_i 1/|o_i| Σ_t min(r_it A_i, clip(r_it, 1 ± 0.2) A_i)

Differs from GRPO: the group is serial. One path is sampled and left early `samples` − 1 times: an inducer text makes
the policy answer at once. The earliest right answer has the highest reward, so a policy that has thought enough learns
to stop. No standard deviation, no KL. Each member learns its own copy of the path up to its exit; the inducer is
context. The default inducer is a line break, because the built-in policy has never seen the paper's. Exits are at
distinct positions, so a short path has fewer. `by="exit"` halves the reward with every exit, not with every right one.
`later_worth` takes the place of the paper's 1/2; with 1 nothing is paid for being early. One sample is refused. Not
"Stable GRPO" (arXiv:2508.05928), also called S-GRPO.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from gruppo.data import Episode, Note, key_hash
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, Prompt, Sampling, note, setting
from gruppo.stages.credit import GroupCentred
from gruppo.stages.play import Fork, sampling_for
from gruppo.stages.requires import OneTurn, Samples
from gruppo.stages.reward import task_reward

By = Literal["right", "exit"]


@dataclass(frozen=True)
class SerialGroup(Occupant):
    """One path per prompt and `samples` − 1 exits from it: a prefix of the path, the inducer, then an answer.

    inducer        text that makes the policy answer
    answer_tokens  longest answer after the inducer; the whole of an exit stays within the run's max_tokens
    """

    inducer: str = setting("\n", witness="=")
    answer_tokens: int = setting(16, low=1, witness=1)
    writes = ("note_exit_E", "injected")
    reads = ("injected",)  # as context, never learned
    requires = (Samples(2, "It compares a path with early exits from it."), OneTurn())

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        paths = await ctx.play([replace(p, samples=1) for p in prompts])
        given = ctx.tokenizer.encode(self.inducer)
        forks: list[Fork] = []
        for prompt, path in zip(prompts, paths, strict=True):
            path.notes["exit"] = exit_at(len(path.sequences[0].ids))
            how, start = sampling_for(ctx, prompt.ask), path.sequences[0].prompt_len
            room = self.room(how, given)
            for at in cuts(ctx, path, prompt.samples - 1, room):
                brief = replace(how, max_tokens=min(self.answer_tokens, room - (at - start)))
                forks.append(Fork(path, at, int(key_hash(path.uid, "exit", at)), brief, given))
        exits = await ctx.play(forks)
        for fork, episode in zip(forks, exits, strict=True):
            episode.notes["exit"] = exit_at(fork.at)
        return [*paths, *exits]

    def room(self, how: Sampling, given: np.ndarray) -> int:
        """Token budget of prefix and answer: an exit is no longer than any other answer may be."""
        left = how.max_tokens - len(given)
        if left < 2:
            raise ValueError(
                f"inducer={self.inducer!r} has {len(given)} tokens, and an answer max_tokens={how.max_tokens}: no exit "
                "has room to answer. Use a shorter inducer, or more sampling.max_tokens."
            )
        return left


def exit_at(position: int) -> Note:
    return Note(np.array([position], np.float32))


def cuts(ctx: Context, path: Episode, count: int, room: int) -> list[int]:
    """`count` distinct positions in the path, after its first token and before its last; all if there are fewer."""
    s = path.sequences[0]
    positions = torch.arange(s.prompt_len + 1, min(len(s.ids), s.prompt_len + room))
    noise = ctx.uniform("exit", path.uid, positions)
    return sorted(positions[torch.argsort(noise)[:count]].tolist())


@dataclass(frozen=True)
class FirstRight(Occupant):
    """Component `serial`, which replaces `task`: 2^−(n − 1) for the n-th right answer of the group, in order of exit.

    by           right: n counts right answers; exit: n counts all answers
    later_worth  w^(n − 1) instead: what a right answer is worth of the right one before it
    """

    by: By = "right"
    later_worth: float = setting(0.5, low=0, high=1, added=True)
    of_groups = True
    replaces = ("task",)
    reads = (note("exit"),)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, list[float]]:
        worth, seen = dict[int, float](), dict.fromkeys((e.group for e in episodes), 0)
        for e in sorted(episodes, key=lambda e: (float(e.notes["exit"].values[0]), e.uid)):
            right = task_reward(e) > 0
            worth[e.uid] = self.later_worth ** seen[e.group] if right else 0.0
            seen[e.group] += right or self.by == "exit"
        return {"serial": [worth[e.uid] for e in episodes]}


S_GRPO = GRPO.but(
    name="s_grpo",
    paper="arXiv:2505.07686",
    checked=(
        "Compared with a review of the paper; the exponent and the missing standard deviation are recalled. The "
        "paper's inducer is 'Time is limited, stop thinking and start answering.' and the end of the thought; a "
        "line break is ours, and so is answer_tokens = 16. A port for verl halves by the exit, not by the right "
        "ones: the field `by`."
    ),
    confidence="notes",
    rollout=SerialGroup(inducer="\n", answer_tokens=16),
    reward=FirstRight(by="right"),
    credit=GroupCentred(),
    penalties=(),
    together=("rollout", "reward", "credit"),
)
