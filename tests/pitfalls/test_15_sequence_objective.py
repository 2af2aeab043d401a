"""Pitfall 15: "GSPO with token-sum". Rule: "sequence loss".

Its parts, a ratio a sequence and a term on the level of sequences, and the method itself, which is written per token.
If the bug came back, an answer would be pushed in proportion to its length.
"""

from dataclasses import dataclass

import pytest
import torch
from small_runs import answer, far

from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import method
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import sequence_ratio
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need


@dataclass(frozen=True)
class SequenceClipped(Occupant):
    """min(s A, clip(s) A) with s = exp(mean log-ratio), once a sequence (`by_token`: the bug)."""

    by_token: bool = False
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", when="step"), need("logp", "old"))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        if self.by_token:
            return [Term("policy", batch.learn_N, "sequence_sum")]
        return [Term("policy", batch.gather(batch.learn_N, "N", "S", "any"), "sequence", at="S")]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        mine, key = batch.learn_N, batch.level("N", "S")
        ratio_S = sequence_ratio(stats.logp_N, batch.logp_old_N, key, mine)
        if self.by_token:
            return {"policy": surrogate.clipped(key.spread(ratio_S), batch.adv_N, 0.2, 0.2)}
        adv_S = batch.gather(batch.adv_N, "N", "S", "mean", where=mine)
        return {"policy": surrogate.clipped(ratio_S, adv_S, 0.2, 0.2)}


def world_of(by_token: bool, seed: int = 7) -> World:
    return World(method("grpo").but(objective=SequenceClipped(by_token), penalties=()), seed, on_policy=True)


def pushes(world: World, episodes: list) -> list[float]:
    """Σ_t dJ/dlogp_t of each episode, on-policy."""
    batch = world.prepared(world.packed(episodes))
    leaf = world.statistics(batch)["logp_N"].requires_grad_()
    batch = batch.with_columns(logp_old_N=leaf.detach())
    slope = torch.autograd.grad(world.value(batch, {"logp_N": leaf}), leaf)[0]
    return batch.gather(slope, "N", "E").tolist()


def test_length_does_not_multiply_the_push() -> None:
    rows = ((1.0, 2), (0.0, 20), (1.0, 20), (0.0, 2))
    episodes = [answer(i, reward, tokens=n) for i, (reward, n) in enumerate(rows)]
    z = 0.5 / (3**-0.5 + 1e-6)  # (1 − mean) / (std + eps)
    assert pushes(world_of(False), episodes) == pytest.approx([z / 4, -z / 4, z / 4, -z / 4])
    assert pushes(World(method("gspo"), 7, on_policy=True), episodes) == pytest.approx([z / 4, -z / 4, z / 4, -z / 4])
    assert pushes(world_of(True), episodes) == pytest.approx([2 * z / 4, -20 * z / 4, 20 * z / 4, -2 * z / 4])


def test_terms_of_sequences_survive_any_cut() -> None:
    world = world_of(False)
    batch = world.prepared(world.packed(random_episodes(7)))
    whole = world.grad(batch)
    assert float(whole.norm()) > 0
    assert far(whole, world.grad(batch, cut=random_cut(batch, 2))) < 1e-9
    assert far(whole, world.grad(batch, two_pass=True)) < 1e-9
