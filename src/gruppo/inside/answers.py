"""Answers of another trainer as our episodes, what the rooms make of them, and the parts that its processes forward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gruppo.data import Batch, Episode, Growing, Status, minibatches, name_hash
from gruppo.stages import Context, Memory, Method, StepRecord
from gruppo.stages.reward import add_components
from gruppo.stages.select import through_first_door
from gruppo.stages.walk import Walk


@dataclass
class Answer:
    """One row of another trainer: ids in, ids out. It travels between processes."""

    task: str  # the prompt, in words
    prompt: list[int]
    ids: list[int]
    mine: list[bool]  # which of the ids the policy sampled; the others are of tools or of an environment
    reward: dict[str, float] = field(default_factory=dict[str, float])  # empty: nobody could judge it
    logp: list[float] | None = None  # the sampler's, of every id
    truncated: bool = False
    text: str = ""
    answer: str = ""  # extracted from the text
    domain: str = ""

    @property
    def said(self) -> list[int]:
        """The ids that the policy sampled."""
        return [i for i, own in zip(self.ids, self.mine, strict=True) if own]


def episode_of(a: Answer, uid: int, group: str, ctx: Context) -> Episode:
    """The answer as an episode: every run of sampled tokens is a turn."""
    status = Status.TRUNCATED if a.truncated else Status.OK
    grown = Growing(
        uid,
        f"{name_hash(a.task):x}",
        group,
        reward=dict(a.reward),
        status=status if a.reward else Status.ENV_ERROR,
        error="" if a.reward else "no reward function has judged this answer",
        text=a.text,
        answer=a.answer,
        domain=a.domain,
        step=ctx.step,
    )
    grown.begin(np.array(a.prompt, np.int64))
    for own, run in groupby(range(len(a.ids)), key=lambda i: a.mine[i]):
        at = list(run)
        ids = np.array(a.ids, np.int64)[at]
        if own:
            logp = np.full(len(at), np.nan) if a.logp is None else np.array(a.logp)[at]
            grown.act(ids, logp.astype(np.float32), ctx.version, temperature=ctx.sampling.temperature)
        else:
            grown.observe(ids)
    return grown.finish()


def episodes_of(answers: Sequence[Answer], groups: Sequence[Any], method: Method, ctx: Context) -> list[Episode]:
    """The answers as episodes; those with the same word in `groups` are a group. Their uid is the place in the list."""
    made = [episode_of(a, i, f"{ctx.step}:{g}", ctx) for i, (a, g) in enumerate(zip(answers, groups, strict=True))]
    return [method.rollout.split(ctx, e) for e in made] if method.rollout.steps else made


def looks_at_episodes(method: Method) -> bool:
    """Whether rooms see episodes before the batch, and with them the sampler's log-probabilities."""
    return bool(method.reward) or any(hasattr(o, "episodes") for o in method.select)


def through_rooms(walk: Walk, ctx: Context, episodes: list[Episode]) -> tuple[list[Episode], Batch | None]:
    """What selection keeps, and its batch with credit; None: nothing is left to learn from."""
    method = walk.method
    add_components(ctx, method.reward, episodes)
    kept, _ = through_first_door(ctx, method.select, episodes)
    add_components(ctx, method.reward, kept, of_groups=True)
    batch = walk.batch_of(ctx, episodes, kept)
    return kept, None if batch is None else walk.credited(ctx, batch)


def observed(method: Method, memory: Memory, record: StepRecord) -> None:
    """After the last optimiser step of a batch: what the rooms remember of it."""
    with memory.writing():
        for _, occupant in method.occupants():
            occupant.observe(record, memory)


def spread(a: Answer, values: Tensor) -> list[float]:
    """Values of the ids that the policy sampled, at all ids of an answer; NaN at the others."""
    rest = iter(values.tolist())
    return [next(rest) if own else float("nan") for own in a.mine]


class Told:
    """What models have said about the answers of a step; the `read` of a walk. Rows are found by the uid."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.said = [torch.tensor(a.said) for a in answers]
        self.tables: dict[tuple[str, str], list[Tensor]] = {}

    def put(self, role: str, readout: str, values: Sequence[NDArray[Any] | Tensor]) -> None:
        """One value for each id of each answer that the policy sampled."""
        self.tables[role, readout] = [torch.as_tensor(x) for x in values]

    def rows(self, role: str, readout: str, batch: Batch) -> Tensor:
        uids = batch.uid_E[batch.episode_S].tolist()
        known = [self.said[u] for u in uids if 0 <= u < len(self.said)]
        if len(known) < len(uids) or not torch.equal(torch.cat(known or [batch.token_N]).cpu(), batch.token_N.cpu()):
            raise ValueError(
                f"{readout}@{role} is asked of tokens that are no answers of this step, and another trainer reads only "
                "these. Use a method whose rooms read the answers themselves, or `gruppo train`."
            )
        found = [self.tables[role, readout][u] for u in uids]
        return torch.cat(found or [torch.zeros(0)]).to(batch.device)


def parts_of(batch: Batch | None, method: Method, ctx: Context) -> list[Batch | None]:
    """The batch of every optimiser step, in order: epochs of minibatches of whole groups; None: nothing is left."""
    out: list[Batch | None] = []
    for epoch in range(method.update.epochs):
        count = method.update.minibatches
        parts = [] if batch is None else minibatches(batch, count, ctx.seed, ctx.step, epoch)
        out += [*parts, *[None] * (count - len(parts))]
    return out


def shares(batch: Batch | None, count: int) -> list[Tensor]:
    """The sequences of each of `count` forwards, of about equal number; some may be empty."""
    rows = torch.arange(0 if batch is None else batch.size("S"))
    return list(rows.tensor_split(count))


def components(values: Mapping[str, float], task: str) -> dict[str, float]:
    """Rewards by component: that of the task is called `task`; what was not judged (NaN) is left out."""
    return {"task" if name == task else name: float(x) for name, x in values.items() if not np.isnan(x)}
