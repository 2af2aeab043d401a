"""The laws are only as good as the batches they look at: every batch holds every kind of row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from furniture import FEW, SEEDS
from hypothesis import given
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status, Use, pack
from gruppo.lab.laws import verdict
from gruppo.lab.laws.episodes import UNJUDGED, random_episodes
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import method
from gruppo.stages import Context, Memory, Occupant, StepRecord, note
from gruppo.stages.check import problems
from gruppo.stages.replay import Recent, as_learned
from gruppo.stages.rollout import Group
from gruppo.stages.update import Passes


def kinds(batch: Batch) -> dict[str, bool]:
    """What a batch holds. Rows of learned episodes, unless said otherwise."""
    learn_E, learn_S = batch.learn_E, batch.spread(batch.learn_E, "E", "S")
    alive_N = batch.spread(learn_E, "E", "N")
    sequences_E = batch.gather(torch.ones(batch.size("S")), "S", "E", "sum")
    turns_S = batch.gather(torch.ones(batch.size("K")), "K", "S", "sum")
    early = batch.gather(batch.turn_index_K, "K", "S", "max") - batch.gather(batch.turn_index_K, "K", "S", "min")
    judged_G = batch.gather(batch.judged_E, "E", "G", "sum")
    spread_G = batch.gather(batch.reward_E, "E", "G", "std", where=batch.judged_E)
    same = batch.key("E", batch.group_E, batch.answer_E)
    alike_E = same.spread(batch.gather(batch.judged_E & (batch.answer_E != 0), "E", same, "sum"))
    assert batch.allowed is not None
    out = {f"source {s.name}": bool((alive_N & (batch.source_N == s)).any()) for s in Source if s != Source.ENV}
    out |= {f"status {s.name}": bool((batch.status_E == s).any()) for s in Status}
    out |= {f"use {u.name}": bool((batch.use_E == u).any()) for u in Use}
    return out | {
        "several sequences": bool((sequences_E[learn_E] > 1).any()),
        "several turns": bool((turns_S[learn_S] > 1).any()),
        "turns to and fro": bool((early[learn_S] > turns_S[learn_S] - 1).any()),
        "another prompt": bool(batch.changed_S[learn_S].any()),
        "temperature": bool((batch.temperature_N[alive_N] != 1).any()),
        "truncation set": bool((batch.allowed.length[alive_N] > 0).any()),
        "turn reward": bool((batch.spread(batch.reward_K, "K", "N")[alive_N] != 0).any()),
        "replayed": bool(batch.replayed_E.any()),
        "a judged baseline": bool((batch.judged_E & ~learn_E).any()),
        "an expert's episode": bool((batch.source_E == Source.EXPERT).any()),
        "a failed one with a reward": bool(
            (~torch.isnan(batch.reward_EC[:, 0]) & (batch.status_E > Status.INVALID)).any()
        ),
        "answers that agree": bool((alike_E > 1).any()),
        "answers that differ": bool((alike_E < batch.spread(judged_G, "G", "E"))[batch.judged_E].any()),
        "no answer": bool((batch.judged_E & (batch.answer_E == 0)).any()),
        "right and wrong": int((spread_G > 0).sum()) >= 2,
        "an equal group": bool(((spread_G == 0) & (judged_G > 1)).any()),
        "a group of one": bool((judged_G == 1).any()),
        "a token that is learned and one that is not": bool(batch.learn_N.any()) and not bool(batch.learn_N.all()),
    }


@FEW
@given(seed=SEEDS)
def test_every_batch_holds_every_kind_of_row(seed: int) -> None:
    missing = [k for k, there in kinds(pack(random_episodes(seed), dtype=torch.float64)).items() if not there]
    assert not missing


@pytest.mark.slow
@given(seed=SEEDS)
def test_every_batch_holds_every_kind_of_row_many(seed: int) -> None:
    missing = [k for k, there in kinds(pack(random_episodes(seed), dtype=torch.float64)).items() if not there]
    assert not missing


def test_with_an_odd_seed_rewards_have_two_components_that_add_up() -> None:
    for seed in range(8):
        batch = pack(random_episodes(seed), dtype=torch.float64)
        assert ("style" in batch.components) == bool(seed % 2)
        known = batch.reward_E[batch.judged_E]
        assert set(known.tolist()) == {0, 1}, "right is 1 and wrong is 0 in all"
        task_E = batch.return_EC[:, batch.components.index("task")][batch.judged_E]
        assert torch.equal(task_E > 0, known > 0)
        if seed % 2:
            style_E = batch.return_EC[:, batch.components.index("style")]
            assert bool((batch.gather(style_E, "E", "G", "std", where=batch.judged_E) > 0).any())


@dataclass(frozen=True)
class ReadsNotes(Occupant):
    """A credit of notes that a rollout would make."""

    writes = ("adv_N",)
    reads = (note("gain", "N"), note("exit"), note("extra", "K", among=(0.0, 1.0)))

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {"adv_N": batch.note_gain_N + batch.spread(batch.note_exit_E, "E", "N")}


@dataclass(frozen=True)
class GivesNotes(Group):
    writes = ("note_gain_N", "note_exit_E", "note_extra_K")


def test_notes_that_an_occupant_reads_are_made_up_and_must_be_given() -> None:
    m = method("grpo").but(credit=ReadsNotes())
    batch = World(m, 0).packed(random_episodes(0))
    judged_N = batch.spread(batch.status_E <= 1, "E", "N")
    assert not bool(batch.note_gain_N[judged_N].isnan().any()) and bool(batch.note_gain_N.isnan().any())
    assert 0 <= float(batch.note_exit_E.nan_to_num().min()) <= float(batch.note_exit_E.nan_to_num().max()) < 1
    assert set(batch.note_extra_K[~batch.note_extra_K.isnan()].tolist()) == {0, 1}
    said = problems(m, Context(), samples=4)
    assert len(said) == 3 and "reads note_gain_N, and no room writes it" in said[0] and "hoose the rollout" in said[0]
    assert problems(m.but(rollout=GivesNotes()), Context(), samples=4) == []


@dataclass(frozen=True)
class Remembers(Occupant):
    """A reward that remembers: each task's best reward so far, of all that was drawn."""

    factor: float = 1.0

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        best = ctx.memory.get("best", {})
        return {"best": [self.factor * best.get(e.task, 0.0) for e in episodes]}

    def observe(self, record: StepRecord, memory: Memory) -> None:
        assert record.ctx is not None and record.facts["drawn_groups"] > 0 and len(record.drawn) >= len(record.episodes)
        seen = {e.task: e.reward.get("task", 0.0) for e in record.drawn if e.status.judged}
        memory["best"] = {k: max(v, seen.get(k, 0.0)) for k, v in {**seen, **memory.get("best", {})}.items()}


@dataclass(frozen=True)
class FromTheStore(Passes):
    """An update that looks at what was remembered."""

    lookback: int = 1

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        super().__call__(ctx, learner, batch)
        past = as_learned(ctx, ctx.replay[: self.lookback])
        learner.step("policy", past.with_columns(logp_ref_N=past.logp_old_N))


def test_fields_that_act_by_memory_or_by_the_store_matter() -> None:
    assert verdict("fields_matter", method("grpo").but(reward=Remembers())) == ""
    m = method("grpo").but(update=FromTheStore(), replay=Recent(capacity=40, take=2))
    assert verdict("fields_matter", m) == ""


def test_without_the_dead_all_are_judged_and_mixed() -> None:
    for seed in range(20):
        batch = pack(random_episodes(seed, dead=False), dtype=torch.float64)
        assert bool(batch.judged_E.all())
        assert bool((batch.gather(batch.reward_E, "E", "G", "std") > 0).all())
        assert set(batch.status_E.tolist()).isdisjoint(map(int, UNJUDGED))


def test_ratios_are_neither_one_nor_wild() -> None:
    """Off-policy, some tokens are clipped and some are not; on-policy, every ratio is 1."""
    for seed in range(5):
        for on_policy in (False, True):
            world = World(method("grpo"), seed, on_policy=on_policy)
            batch = world.packed(random_episodes(seed))
            now = world.goal().needs()
            from gruppo.train.forward import serve

            ratio = torch.exp(serve(world.models["policy"], batch, now)["logp_N"] - batch.logp_old_N)[batch.learn_N]
            assert bool(torch.isfinite(ratio).all())
            if on_policy:
                assert torch.allclose(ratio, torch.ones_like(ratio), rtol=1e-12)
            else:
                clipped = ((ratio > 1.2) | (ratio < 0.8)).double().mean()
                assert 0.1 < float(clipped) < 0.9


def test_a_random_cut_holds_every_sequence_once_and_cuts_episodes() -> None:
    cut_episodes = 0
    for seed in range(10):
        batch = pack(random_episodes(seed), dtype=torch.float64)
        cut = random_cut(batch, seed)
        assert sorted(torch.cat(cut).tolist()) == list(range(batch.size("S")))
        homes = [set(batch.episode_S[rows].tolist()) for rows in cut]
        cut_episodes += sum(len(a & b) for i, a in enumerate(homes) for b in homes[:i])
    assert cut_episodes > 0
