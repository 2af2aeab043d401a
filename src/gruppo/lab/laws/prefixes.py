"""A law about prefixes that sequences share: the gradient is the same whether they are computed once or copied."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gruppo.data import Episode, Sequence
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import drifted, first, same
from gruppo.lab.laws.world import World, random_cut
from gruppo.stages import Method


def shared_prefixes(method: Method, seed: int) -> str:
    """A shared prefix that is computed once has the gradient of its copies, even if a micro-batch cuts through a group,
    in one fused pass and in two."""
    episodes = begun_alike(random_episodes(seed), seed)
    world = World(method, seed)
    copied, shared = (world.prepared(world.packed(episodes, share=share)) for share in (2.0, 0.0))
    if all(len(v.tree()[0].ids_M) == len(v.ids_M) for v in shared.views.values()):
        return "nothing was shared, so nothing was tested"

    def check(role: str) -> Iterable[str]:
        for k, (one, two) in enumerate(zip(drifted(copied), drifted(shared), strict=True)):
            want, cut = world.grad(one, role), random_cut(shared, seed + k)
            yield same(want, world.grad(two, role), f"{role} with shared prefixes")
            yield same(want, world.grad(two, role, cut, two_pass=k > 0), f"{role} with shared prefixes that are cut")

    return first(said for role in world.learner.trained for said in check(role))


def begun_alike(episodes: list[Episode], seed: int) -> list[Episode]:
    """The episodes, with sequences that begin like the first one of their group, for a random number of tokens."""
    rng = np.random.default_rng(seed)
    model: dict[str, Sequence] = {}
    out: list[Episode] = []
    for e in episodes:
        mine = [_like(s, model.setdefault(e.group, s), int(rng.integers(1, 8))) for s in e.sequences]
        out.append(replace(e, sequences=mine))
    return out


def _like(s: Sequence, model: Sequence, n: int) -> Sequence:
    """`s` with the first n ids of `model`; tokens from a truncation set on stay as they are."""
    n = min(n, len(s.ids), len(model.ids), *(s.allowed or {}), *([s.prompt_len] if s.train_as is not None else []))
    ids = np.concatenate([model.ids[:n], s.ids[n:]])
    return replace(s, ids=ids, train_as=None if s.train_as is None else np.concatenate([ids[:n], s.train_as[n:]]))
