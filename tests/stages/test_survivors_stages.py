"""Stages where a wrong number went unseen: `make mutants` had changed these lines, and no test failed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from rooms import context, prompt, task
from torch import Tensor

from gruppo.data import Batch, Episode, Note, Use, pack, single_turn
from gruppo.data.pack import micro_batches
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages import Ask, Context, Need, Occupant, Stats, Term, Values, need
from gruppo.stages.cast import Role
from gruppo.stages.check import problems
from gruppo.stages.curriculum import asked
from gruppo.stages.goal import Sum, zero_of
from gruppo.stages.method import Change, difference
from gruppo.stages.objective import NOW, OLD, ValueLoss
from gruppo.stages.play import Fork, one_answer, starts_of
from gruppo.stages.record import from_table, to_table
from gruppo.stages.replay import Recent
from gruppo.stages.terms import Counts
from gruppo.stages.walk import Walk, noted

GRPO, PPO = method("grpo"), method("ppo")


def world_of(furniture: Any, seed: int = 3) -> tuple[World, Batch]:
    world = World(furniture, seed)
    return world, world.prepared(world.packed(random_episodes(seed)))


# the goal of a role


@dataclass(frozen=True)
class Confident(Occupant):
    """Keeps the tokens that the current policy thinks likely, at half their weight."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("entropy", when="step"))

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return stats.logp_N > -1.0, torch.full_like(batch.weight_N, 0.5)


def test_selection_of_tokens_is_of_the_policy_alone() -> None:
    """A critic does not read what selection reads, is fused whatever it does, and learns from every token."""
    furniture = PPO.but(select=Confident())
    world, batch = world_of(furniture)
    policy, critic = world.goal(), world.goal("critic")
    assert need("entropy", when="step") in policy.needs()
    assert critic.needs() == [need("value", "critic", when="step")]
    assert not policy.fused(policy.terms(batch)) and critic.fused(critic.terms(batch))
    assert World(PPO, 3).goal().fused(policy.terms(batch))
    stats = Stats({"logp_N": torch.linspace(-2, 0, batch.size("N")), "value_N": torch.zeros(batch.size("N"))})
    chosen = policy.selected(batch, stats)
    assert torch.equal(chosen.keep_N, batch.keep_N & (stats.logp_N > -1.0))
    assert torch.equal(chosen.weight_N, 0.5 * batch.weight_N)
    assert critic.selected(batch, stats) is batch


def test_the_name_that_two_terms_share_is_said() -> None:
    world, batch = world_of(GRPO.but(objective=(*GRPO.objectives["policy"], Weighted("kl_ref"))))
    with pytest.raises(ValueError, match="two terms of policy are called 'kl_ref'"):
        world.goal().terms(batch)


@dataclass(frozen=True)
class Weighted(Occupant):
    """log π, with a coefficient for each token."""

    name: str = "mine"

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term(self.name, batch.learn_N, coef=torch.linspace(1, 2, batch.size("N"), dtype=torch.float64))]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {self.name: stats.logp_N}


def test_micro_batches_with_a_coefficient_for_each_token_add_up() -> None:
    world, batch = world_of(GRPO.but(objective=Weighted(), penalties=()))
    goal, stats = world.goal(), Stats({"logp_N": torch.linspace(-3, 0, batch.size("N"), dtype=torch.float64)})
    terms = goal.terms(batch)
    weights = goal.weights(batch, terms, goal.counts(batch, terms))
    whole, parts = goal.whole(batch, stats), Sum(terms, weights)
    numbered = batch.with_columns(row_N=torch.arange(batch.size("N")))
    made = []
    for micro in micro_batches(numbered, 12):
        mine = Stats({"logp_N": stats.logp_N[micro.columns["row_N"]]})
        made.append(parts.add_micro(goal.values(micro, mine, terms), micro, mine))
    assert len(made) > 2 and float(sum(made, torch.zeros(()))) == pytest.approx(float(whole.value))
    assert float(parts.totals["mine"]) == pytest.approx(float(whole.totals["mine"]))


def test_weights_are_those_of_the_counts_of_the_whole_step() -> None:
    world, batch = world_of(GRPO)
    goal = world.goal()
    terms = goal.terms(batch)
    counts = goal.counts(batch, terms)
    alone, twice = goal.weights(batch, terms, counts), goal.weights(batch, terms, counts + counts)
    assert all(torch.allclose(a, 2 * b) and bool(a.any()) for a, b in zip(alone, twice, strict=True))
    assert (counts + Counts()).of == counts.of == (Counts() + counts).of


def test_a_goal_shows_its_occupants_only_what_may_be_learned_from() -> None:
    """0 for tokens of failed episodes, of sources that nobody reads, and, unless it reads them, dropped ones."""
    world, batch = world_of(PPO)
    n = batch.size("N")
    keep_N = torch.arange(n) % 3 > 0
    batch = batch.with_columns(
        keep_N=keep_N, adv_N=torch.full((n,), 2.0), own_N=torch.ones(n, 4), count_N=torch.ones(n, dtype=torch.int64)
    )
    stats = Stats({"logp_N": torch.full((n,), -1.0), "wide_N": torch.ones(n, 3), "other_E": torch.ones(2)})
    mine_N = batch.spread(batch.alive_E, "E", "N") & (batch.source_N == 1)
    assert int(batch.source_N[batch.policy_N][0]) == 1 and 0 < int(mine_N.sum()) < n
    for role, dropped, alive_N in (
        ("policy", False, mine_N & keep_N), ("policy", True, mine_N), ("critic", False, mine_N)
    ):  # fmt: skip
        seen, said = world.goal(role)._clean(batch, stats, dropped)
        assert seen.adv_N.tolist() == (2.0 * alive_N).tolist()
        assert torch.equal(seen.columns["own_N"], alive_N[:, None].float().expand(n, 4))
        assert torch.equal(said["wide_N"], alive_N[:, None].float().expand(n, 3))
        assert torch.equal(said["logp_N"], -1.0 * alive_N) and torch.equal(said["other_E"], torch.ones(2))
        assert torch.equal(seen.columns["count_N"], batch.columns["count_N"])
        for name in ("logp_gen_N", "temperature_N"):  # as stored: NaN says that nothing was sampled
            assert torch.equal(seen.columns[name].nan_to_num(9.0), batch.columns[name].nan_to_num(9.0)), name


def test_nothing_read_is_a_zero_that_can_be_added_to() -> None:
    assert isinstance(zero_of({}), Tensor) and float(zero_of({})) == 0


def test_the_mean_of_the_critic_is_the_one_that_it_is_told() -> None:
    _, batch = world_of(PPO)
    assert [t.mean for t in ValueLoss(mean="episode").terms(Context(), batch)] == ["episode"]


# what a check says


@dataclass(frozen=True)
class Wants(Occupant):
    """A penalty that reads a column nobody writes, and what a role that is not there says."""

    role: str = "critic"
    readout: str = "value"
    reads = ("mine_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need(self.readout, self.role),)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return []


def test_the_remedy_for_a_missing_role_is_that_of_its_kind() -> None:
    """A critic comes with two rooms; another language model is a role of the cast."""
    said = {r: " ".join(problems(GRPO.but(penalties=Wants(*r)), Context(), samples=4)) for r in
            (("critic", "value"), ("teacher", "logp"))}  # fmt: skip
    assert "method.credit=ppo method.objective=ppo" in said["critic", "value"]
    assert "method.cast.teacher=FOLDER" in said["teacher", "logp"]
    assert "method.credit=ppo method.objective=ppo" not in said["teacher", "logp"]
    assert all("Choose a credit that writes mine_N, or another penalties." in x for x in said.values())


# what differs


def test_changes_show_what_cannot_be_seen() -> None:
    assert str(Change("x", "", "a\nb")) == "x: '' → 'a\\nb'"
    assert str(Change("x", " ", "ab")) == "x: ' ' → ab" and str(Change("x", 1, None)) == "x: 1 → None"


def test_a_role_that_was_not_there_was_nothing() -> None:
    [change] = difference(GRPO, GRPO.but(cast={"judge": Role(start="x")}))
    assert (change.where, change.before) == ("cast.judge", "nothing")
    found = difference(GRPO, GRPO.but(objective={"judge": Weighted()}))
    assert ("objective.judge", "nothing") in [(c.where, c.before) for c in found]


def test_a_value_that_a_table_cannot_have_is_named_by_its_path() -> None:
    """In a room, in a chain of a role, and in a list that holds no occupants at all."""
    table, kl = to_table(GRPO), to_table(GRPO.penalties[0])
    for change, path in (
        ({"update": {**to_table(GRPO.update), "epochs": 0}}, "method.update.epochs=0"),
        ({"penalties": [{**kl, "kl_coef": -1.0}]}, "method.penalties.reference_kl.kl_coef=-1.0"),
        ({"objective": {"policy": [{**to_table(GRPO.objectives["policy"][0]), "clip_low": -1.0}]}},
         "method.objective.policy.clipped_surrogate.clip_low=-1.0"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            from_table({**table, **change}, "method.")
        assert str(error.value).startswith(path), error.value
    assert from_table([1, "kind", {"x": [2]}]) == (1, "kind", {"x": (2,)})


# from asks to episodes


def test_a_task_that_is_drawn_twice_has_a_key_and_a_group_of_its_own() -> None:
    out = asked(context(samples=2), [task(0), task(1)], [0, 1, 0, 0])
    assert [(a.group, a.key, a.index) for a in out] == [
        ("t0", "", 0),
        ("t1", "", 1),
        ("t0#2", "#2", 0),
        ("t0#3", "#3", 0),
    ]


def test_prompts_of_one_group_have_different_luck() -> None:
    same = [prompt(Ask(task(0), 2, index=0)) for _ in range(4)]
    uids = [s.uid for s in starts_of(context(), same)]
    assert len(set(uids)) == len(uids) == 8


def test_a_fork_forgets_what_its_old_ending_was_paid_for() -> None:
    ctx = context()
    [first] = asyncio.run(ctx.play([prompt(Ask(task(1), 1, index=1))]))
    first = replace(first, reward={"task": 1.0}, replaced=frozenset({"task"}), answer="2", rewarded=True)
    first.notes = {"e": Note(np.ones(1, np.float32)), "n": Note(np.ones(3, np.float32), "N")}
    [second] = asyncio.run(ctx.play([Fork(first, first.sequences[0].prompt_len + 1, 99, ctx.sampling)]))
    assert (second.reward, second.replaced, second.answer, second.rewarded) == ({}, frozenset(), "", False)
    assert list(second.notes) == ["e"]


def no_read(role: str, batch: Batch, needs: Sequence[Need]) -> dict[str, Tensor]:
    return {n.column: torch.zeros(batch.size("N")) for n in needs}


@dataclass(frozen=True)
class Heard(Occupant):
    """A curriculum that says for which round it was asked, and for how many prompts."""

    def __call__(self, ctx: Context, tasks: Any) -> list[Any]:
        return [(ctx.round, ctx.prompts)]


def test_fresh_asks_are_those_of_the_next_round() -> None:
    walk = Walk(GRPO.but(curriculum=Heard()), no_read, tasks=[task(0)])
    ctx = walk.opened(context(prompts=2))
    ctx.round = 4
    assert ctx.fresh(3) == [(5, 3)] and (ctx.round, ctx.prompts) == (4, 2)


def plain(i: int, group: str, **fields: Any) -> Episode:
    return single_turn(
        i, group, group, np.array([1]), np.array([5, 6]), np.zeros(2, np.float32), 0, reward={"task": 1.0}, **fields
    )


def test_the_first_task_of_a_training_set_is_found_by_its_index() -> None:
    walk = Walk(GRPO, no_read, tasks=[task(0), task(1)])
    assert walk.task_of(plain(0, "t0", index=0)).uid == "t0"


def test_a_batch_knows_how_many_of_a_group_were_drawn() -> None:
    drawn = [plain(i, "a") for i in range(4)] + [plain(9, "b")] + [plain(10 + i, "c") for i in range(2)]
    walk = Walk(GRPO, no_read)
    batch = walk.batch_of(walk.opened(context()), drawn, drawn[2:5])
    assert batch is not None and batch.drawn_G.tolist() == [4, 1] and batch.drawn == 3


@dataclass(frozen=True)
class Once(Occupant):
    """An update that does not say how many steps it takes."""

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        learner.step("policy", batch)


def test_old_log_probabilities_are_read_where_they_are_used_or_stored() -> None:
    sft, ctx = method("sft"), context()
    assert OLD not in Walk(sft, no_read).needs(ctx)
    assert Walk(sft.but(replay=Recent()), no_read).needs(ctx)[-1] == OLD
    assert Walk(GRPO.but(update=Once()), no_read).lazy_old(ctx) == frozenset()


def test_a_note_of_the_replay_says_of_which_step_it_is() -> None:
    e = replace(plain(0, "a"), step=6, use=Use.LEARN)
    batch = pack([e]).with_columns(adv_N=torch.tensor([1.0, 2.0]))
    [kept] = noted(batch, [e], ("adv_N",))
    assert (kept.notes["adv"].version, kept.notes["adv"].level) == (6, "N")
    assert kept.notes["adv"].values.tolist() == [1.0, 2.0]


def test_an_answer_is_played_to_its_end_unless_a_window_is_said() -> None:
    async def lengths(**options: int) -> list[int]:
        ctx = context()
        starts = starts_of(ctx, [prompt(Ask(task(0), 1, index=0))])
        return [e.tokens async for _, e in one_answer(ctx, starts, **options)]

    assert asyncio.run(lengths()) == [3] and asyncio.run(lengths(window=2)) == [2]
