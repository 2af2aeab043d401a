"""Learning from recorded answers: a rollout that reads them, a selection of good ones, and their likelihood.

The author of a recorded answer is an `expert`, not the policy, and masks depend on the author of a token. `answer_N`
are the tokens that these occupants learn: those of the policy and of experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status, Use
from gruppo.stages.context import Ask, Context, Prompt
from gruppo.stages.objective import NOW
from gruppo.stages.occupant import Occupant, setting
from gruppo.stages.play import episode_of, episode_uid, sampling_for
from gruppo.stages.readouts import Need, Stats
from gruppo.stages.reward import task_reward
from gruppo.stages.terms import Term, Values
from gruppo.tasks.recorded import NO_ANSWER, Answer, demonstration, recorded


def answer_N(batch: Batch) -> Tensor:
    """Tokens written by the policy or an expert, in episodes to learn from, that selection kept."""
    wrote_N = (batch.source_N == Source.POLICY) | (batch.source_N == Source.EXPERT)
    return wrote_N & batch.spread(batch.learn_E, "E", "N") & batch.keep_N


@dataclass(frozen=True)
class Recorded(Occupant):
    """The recorded answers of the tasks, without sampling: at most `samples` per prompt, the best and the worst.

    Each ends in eos, like a sampled answer; one longer than `max_tokens` is cut, with status `truncated`. An answer
    with a recorded reward keeps it; the scorer scores the others.
    """

    writes = ("expert",)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        out: list[Episode] = []
        for number, prompt in enumerate(prompts):
            answers = recorded(prompt.ask.task)
            if not answers:
                raise ValueError(NO_ANSWER.format(prompt.ask.task.uid))
            for i, answer in enumerate(from_both_ends(answers, prompt.samples)):
                out.append(self.episode(ctx, prompt, episode_uid(ctx, prompt, number, i), answer))
        return out

    def episode(self, ctx: Context, prompt: Prompt, uid: int, answer: Answer) -> Episode:
        most = sampling_for(ctx, prompt.ask).max_tokens
        ids = np.concatenate([ctx.tokenizer.encode(answer.text), [ctx.tokenizer.eos]]).astype(np.int64)
        status = Status.OK if len(ids) <= most else Status.TRUNCATED
        reward = {"task": answer.reward} if isfinite(answer.reward) else {}
        nothing = np.full(len(ids[:most]), np.nan, np.float32)
        return episode_of(
            ctx, prompt, uid, ids[:most], nothing, -1, source=Source.EXPERT, status=status, reward=reward
        )  # fmt: skip


def expert(ctx: Context, prompt: Prompt, number: int, use: Use) -> Episode:
    """The best recorded answer to a prompt, as one more sample of prompt `number`; the scorer scores it.

    `Task.solution` is not used: it also holds the steps, which most scorers do not accept as an answer.
    """
    uid = episode_uid(ctx, prompt, number, prompt.samples)  # samples are numbered from 0
    return replace(Recorded().episode(ctx, prompt, uid, Answer(demonstration(prompt.ask.task))), use=use)


def expert_N(batch: Batch) -> Tensor:
    """Tokens of experts in their own episodes, to learn from and kept; not those given inside other answers."""
    wrote_E = batch.learn_E & (batch.source_E == Source.EXPERT)
    return (batch.source_N == Source.EXPERT) & batch.spread(wrote_E, "E", "N") & batch.keep_N


@dataclass(frozen=True)
class RightExperts(Occupant):
    """Drop answers of experts with a task reward below `threshold`: recorded answers may be wrong, and would be
    imitated, or pushed down as if they had been sampled."""

    threshold: float = setting(1.0, witness=2.0)

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
        def stays(e: Episode) -> bool:
            return e.source != Source.EXPERT or (e.status.judged and task_reward(e, -inf) >= self.threshold)

        return [stays(e) for e in episodes], []


def from_both_ends(answers: Sequence[Answer], most: int) -> list[Answer]:
    """All of them in their order or, if there are more than `most`, the best, the worst, the second best and so on."""
    if len(answers) <= most:
        return list(answers)
    ranked = sorted(answers, key=lambda a: -a.reward if isfinite(a.reward) else 0.0)
    return [ranked[i // 2] if i % 2 == 0 else ranked[-1 - i // 2] for i in range(most)]


@dataclass(frozen=True)
class Accepted(Occupant):
    """Keep answers with a reward of at least `threshold`: each text once per group, the `most` best ones (0: all)."""

    threshold: float = setting(1.0, witness=2.0)
    most: int = setting(0, low=0)

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
        unused = [e.use not in (Use.LEARN, Use.APART) for e in episodes]
        good = [i for i, e in enumerate(episodes) if not unused[i] and e.status.judged and e.total >= self.threshold]
        if self.most:
            noise = ctx.uniform("accepted", torch.tensor([e.uid for e in episodes])).tolist()
            good.sort(key=lambda i: (-episodes[i].total, noise[i]))
        keep, seen = unused, dict[str, set[Any]]()
        for i in good:
            mine = seen.setdefault(episodes[i].group, set())
            words = tuple(s.ids[s.prompt_len :].tobytes() for s in episodes[i].sequences)
            if words not in mine and not (self.most and len(mine) >= self.most):
                mine.add(words)
                keep[i] = True
        return keep, []


@dataclass(frozen=True)
class Alike(Occupant):
    """No credit: all tokens that selection kept count the same."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True)
class Likelihood(Occupant):
    """mean_t log π(o_t) over the tokens of answers, of the policy and of experts."""

    mean: Any = setting("token", above=0)
    reads = ("expert",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("likelihood", answer_N(batch), self.mean)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"likelihood": batch.weight_N * stats.logp_N}
