"""How are episodes made? A coroutine: it may wait for an engine, an environment or a reward."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from gruppo.data import Episode, Note, Source, Status, Turn, in_steps, key_hash, single_turn
from gruppo.data.views import as_sampled
from gruppo.engines.base import Completion, Request, complete
from gruppo.stages.context import Ask, Context, Prompt, Sampling
from gruppo.stages.occupant import Occupant, added


class Rollout(Protocol):
    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]: ...


def sampling_for(ctx: Context, ask: Ask) -> Sampling:
    """The run's sampling, with what the ask says about it."""
    said = {k: v for k, v in ask.how.items() if k in Sampling.__dataclass_fields__}
    return replace(ctx.sampling, **said)


def episode_uid(ctx: Context, prompt: Prompt, place: int, sample: int) -> int:
    ask = prompt.ask
    how = ",".join(f"{k}={ask.how[k]}" for k in sorted(ask.how))
    uid = key_hash(ctx.seed, ctx.step, "episode", ctx.round, prompt.group, ask.key, how, place, sample)
    assert isinstance(uid, int)
    return uid


def requests_for(ctx: Context, prompts: Sequence[Prompt]) -> list[tuple[Prompt, int, Request]]:
    """(prompt, episode uid, request) for every sample of every prompt."""
    out: list[tuple[Prompt, int, Request]] = []
    for place, prompt in enumerate(prompts):
        how = sampling_for(ctx, prompt.ask)
        for sample in range(prompt.samples):
            uid = episode_uid(ctx, prompt, place, sample)
            out.append((prompt, uid, request_after(ctx, prompt.ids, uid, how)))
    return out


def request_after(ctx: Context, prefix: Any, key: Any, how: Sampling) -> Request:
    """What comes after these ids, with the luck of this key."""
    return Request(prefix, key=int(key), stop=(ctx.tokenizer.eos,), **vars(how))


def asks_of(prompts: Sequence[Prompt]) -> list[Ask]:
    """The asks behind these prompts, each once: for a rollout that draws by `ctx.draw`."""
    return list({id(p.ask): p.ask for p in prompts}.values())


def anew(ask: Ask, key: str, samples: int, how: Mapping[str, Any], notes: Mapping[str, float] | None = None) -> Ask:
    """An ask once more, with luck of its own, and told more."""
    return replace(
        ask, samples=samples, key=f"{ask.key} {key}", how={**ask.how, **how}, notes={**ask.notes, **(notes or {})}
    )


def prompt_source(prompt: Prompt) -> Any:
    source = np.full(len(prompt.ids), Source.ENV, np.int8)
    for start, stop, name in prompt.given:
        source[start:stop] = Source[name.upper()]
    return source


def step_ends(ctx: Context, ids: Any, separator: str) -> list[int]:
    """Where the steps of an answer end: after the token in which a separator ends; it may begin in an earlier one.

    The token that ends the answer is no step of its own.
    """
    pieces = {i: ctx.tokenizer.decode([i]) for i in np.unique(ids).tolist()}
    text = "".join(pieces[i] for i in ids.tolist())
    length = np.cumsum([len(pieces[i]) for i in ids.tolist()])
    ends = np.array([match.end() for match in re.finditer(re.escape(separator), text)])
    return [end for end in sorted({*(np.searchsorted(length, ends) + 1).tolist()}) if end < len(ids) - 1]


@dataclass(frozen=True)
class Group(Occupant):
    """`samples` answers to every prompt: the plain default. An answer is one turn, or with `steps` a turn for each
    piece that ends in this text."""

    steps: str = added("")
    witness: ClassVar[dict[str, Any]] = {"steps": ["0", "a", "e", "t", "+"]}

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        wanted = requests_for(ctx, prompts)
        done = await complete(ctx.engine, [request for _, _, request in wanted])
        return [
            self.episode(ctx, prompt, uid, request, completion)
            for (prompt, uid, request), completion in zip(wanted, done, strict=True)
        ]

    def episode(self, ctx: Context, prompt: Prompt, uid: int, request: Request, completion: Completion) -> Episode:
        episode = single_turn(
            uid,
            prompt.ask.task.uid,
            prompt.group,
            prompt.ids,
            completion.ids,
            completion.logp,
            completion.version,
            temperature=request.temperature,
            allowed=completion.allowed,
            prompt_source=prompt_source(prompt) if prompt.given else None,
            train_as=prompt.train_as,
            status=Status.OK if completion.reason == "stop" else Status.TRUNCATED,
            text=ctx.tokenizer.decode(np.concatenate([prompt.begun, completion.ids])),
            notes={k: Note(np.array([v], np.float32)) for k, v in prompt.ask.notes.items()},
            step=ctx.step,
        )
        if not self.steps:
            return episode
        return in_steps(episode, [len(prompt.ids) + end for end in step_ends(ctx, completion.ids, self.steps)])


def continued(
    ctx: Context,
    episode: Episode,
    at: int,
    request: Request,
    completion: Completion,
    *,
    given: Source = Source.INJECTED,
    uid: int | None = None,
    **changes: Any,
) -> Episode:
    """An episode of one sequence up to position `at`, what the request added to it, and what was sampled then.

    Added tokens are `given`: part of the answer, not the policy's. Under another `uid` it is a sibling, and `node`
    says which decisions it shares. Rewards and notes were those of the old ending, and stay behind.
    """
    [sequence] = episode.sequences
    kept, uid = sequence.upto(at), request.key if uid is None else uid
    if uid != episode.uid:
        kept = replace(kept, node=nodes_of(episode)[:at])
    added_ids = request.prefix[at:]
    whole = kept.extended(added_ids, given).extended(
        completion.ids, Source.POLICY, completion.logp, completion.version, request.temperature, completion.allowed
    )
    start = whole.prompt_len
    now: dict[str, Any] = {
        "uid": uid,
        "sequences": [whole],
        "turns": [Turn(start=start, stop=len(whole.ids), obs_stop=start)],
        "status": Status.OK if completion.reason == "stop" else Status.TRUNCATED,
        "text": ctx.tokenizer.decode(whole.ids[whole.source != Source.ENV]),
        "reward": {},
        "replaced": frozenset[str](),
        "answer": "",
        "notes": {},
    }
    return replace(episode, **(now | changes))


def nodes_of(episode: Episode) -> Any:
    """The id of every decision of an episode of one sequence, as packing gives them (`node_N`); -1 for other tokens."""
    [s] = episode.sequences
    decided = as_sampled(s)[1]
    own = key_hash(episode.uid, 0, torch.arange(len(decided)))
    assert isinstance(own, torch.Tensor)
    node = np.full(len(s.ids), -1)
    node[decided] = own.numpy()
    return node if s.node is None else np.where(s.node == -1, node, s.node)
