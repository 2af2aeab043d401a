"""Law: inserting tokens of the environment changes no advantage, no selection and no term of any method.

Models would say something else after other observations, so here they say the same for every row whatever precedes it:
what is left is how credit, selection and objectives count rows, turns and positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source
from gruppo.data import Sequence as Tokens
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import all_methods
from gruppo.stages import Context, Method, Need, Occupant

FILL = {"source": Source.ENV, "logp": np.nan, "version": -1, "temperature": 1.0, "node": -1}


class Deaf(World):
    """A world whose models do not listen: what they say depends on the row alone."""

    def _read(self, models: Mapping[str, Any], role: str, batch: Batch, needs: Sequence[Need]) -> dict[str, Tensor]:
        said: dict[str, Tensor] = {}
        for n in needs:
            like = replace(n, role="policy") if n.role == "old" else n
            said[n.column] = self.synthetic(like, batch, torch.Generator().manual_seed(crc32(str(n).encode())))
        return said


def longer(e: Episode, rng: np.random.Generator) -> Episode:
    """One to three tokens of the environment before every turn, and after the last one of every sequence."""
    sequences, turns = list[Tokens](), list(e.turns)
    for i, s in enumerate(e.sequences):
        cuts = sorted(t.start for t in e.turns if t.sequence == i)
        many = {at: int(rng.integers(1, 4)) for at in [*cuts, len(s.ids)]}

        def moved(at: int, inclusive: bool, many: dict[int, int] = many) -> int:
            return at + sum(n for cut, n in many.items() if cut < at or (inclusive and cut == at))

        at = np.repeat(list(many), list(many.values()))
        columns = {"ids": np.insert(s.ids, at, rng.integers(2, 12, len(at)))}
        for name, value in FILL.items():
            old = getattr(s, name)
            columns[name] = None if old is None else np.insert(old, at, value)
        allowed = None if s.allowed is None else {moved(p, True): ids for p, ids in s.allowed.items()}
        sequences.append(replace(s, **columns, allowed=allowed, prompt_len=moved(s.prompt_len, True)))
        for k, t in enumerate(e.turns):
            if t.sequence == i:
                seen = {"obs_start": moved(t.obs_start, False), "obs_stop": moved(t.obs_stop, True)}
                turns[k] = replace(t, start=moved(t.start, True), stop=moved(t.stop, False), **seen)
    return replace(e, sequences=sequences, turns=turns)


def told(method: Method, episodes: Sequence[Episode]) -> dict[str, Tensor]:
    """Everything that credit, both doors of selection and the objectives make of the rows."""
    world = Deaf(method, 0)
    batch = world.prepared(world.packed(episodes))
    out = {k: v for k, v in batch.columns.items() if k[-1] in "NKSEGP"}
    for role in world.learner.trained:
        stats = world.statistics(batch, role)
        out |= {f"{role} {k}": v for k, v in world.slopes(batch, stats, role).items()}
    return out


def differing(method: Method, seed: int) -> list[str]:
    episodes, rng = random_episodes(seed), np.random.default_rng(seed)
    plain, inserted = told(method, episodes), told(method, [longer(e, rng) for e in episodes])
    assert plain.keys() == inserted.keys() and {"token_N", "keep_N", "weight_N"} < plain.keys()
    return [k for k, x in plain.items() if not same(x, inserted[k])]


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a.double(), b.double(), rtol=1e-12, atol=0.0, equal_nan=True))


@pytest.mark.parametrize("name", all_methods())
def test_inserted_observations_change_no_advantage(name: str) -> None:
    assert differing(all_methods()[name], seed=crc32(name.encode()) % 2) == []


@dataclass(frozen=True)
class ByPosition(Occupant):
    """The bug (pitfall 7): a decay that counts what the environment said."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        reward_N = batch.spread(batch.reward_E, "E", "N").nan_to_num()
        return {"adv_N": reward_N * 0.9 ** batch.at_N.double()}


@dataclass(frozen=True)
class ByLength(Occupant):
    """The bug (pitfall 5): observations in the denominator."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        length_S = torch.bincount(batch.inputs.seq_M, minlength=batch.size("S")).double()
        reward_N = batch.spread(batch.reward_E, "E", "N").nan_to_num()
        return {"adv_N": reward_N / batch.spread(length_S, "S", "N")}


@pytest.mark.parametrize("credit", [ByPosition(), ByLength()])
def test_credit_that_counts_observations_is_seen(credit: Any) -> None:
    assert "adv_N" in differing(all_methods()["reinforce"].but(name="wrong", credit=credit), seed=0)
