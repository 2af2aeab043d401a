"""Which rows count, what is handed to the learner and what is asked of models: dmpo, drpo_decoupled, g2rpo, gdpo, kdrl,
kl_cov, llds, nft, ngrpo, oprl, reg_grpo. Each number was worked by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hand import Status, Use, Worked, answer, batch_of, column, worked
from test_golden_terms import Row, terms

from gruppo.data import Batch, Episode, Source
from gruppo.lab.laws.world import World, random_episodes
from gruppo.methods import all_methods, method
from gruppo.methods.dmpo import MatchDistribution
from gruppo.methods.g2rpo import EntropyBand, TrapezoidLength
from gruppo.methods.gdpo import DecoupledNormalised
from gruppo.methods.llds import HoldLikelihood
from gruppo.methods.nft import NegativeAware, RightRate
from gruppo.methods.ngrpo import VirtualBest
from gruppo.methods.oprl import PairLikelihood
from gruppo.methods.reg_grpo import Regression
from gruppo.stages import Context, Sampling
from gruppo.stages.readouts import READOUTS

FAILED = {"status": Status.ENV_ERROR}
HINTED = {"prompt_source": np.array([Source.ENV, Source.HINT], np.int8)}  # one decision more, which is not its own


def group(rewards: Sequence[float | None], name: str = "g", first: int = 0, **fields: Any) -> list[Episode]:
    return [answer(first + i, name, 1, r, **fields) for i, r in enumerate(rewards)]


def term_of(occupant: Any, name: str, batch: Batch, logp: Sequence[float], **stats: Sequence[float]) -> Worked:
    return worked(occupant, batch, logp_N=logp, **stats)[name]


# what the learner is handed: (name, level, mean, coefficient, additive), as in test_golden_terms

TERMS: dict[str, list[Row]] = {
    "drpo_decoupled": [("separate", "G", "drawn_group", 1.0, False), ("trust", "N", "token", 1.0, False)],
    "kl_cov": [("policy", "N", "token", 1.0, False), ("singled_out", "N", "token", 0.0, False)],
    "oprl prm": [
        ("preference", "P", "token", 1.0, False),
        ("margin", "P", "token", 0.0, False),
        ("preferred", "P", "token", 0.0, False),
    ],
}


@pytest.mark.parametrize("which", TERMS)
def test_the_terms(which: str) -> None:
    """The hinge, the means of a covariance and pairs reach over the whole step, so no micro-batch can tell its part."""
    name, _, role = which.partition(" ")
    found = terms(name, role or "policy")
    assert [(t.name, t.at, t.mean, t.coef, t.additive) for t in found] == TERMS[which]


# what is asked of models


def alone(world: World, batch: Batch, occupant: Any) -> Batch:
    """The batch as it is when nobody else asks for anything."""
    others = {n.column for _, _, n in world.method.needs(world.ctx) if n.when == "batch"}
    others -= {n.column for n in occupant.needs(world.ctx)}
    return replace(batch, columns={k: v for k, v in batch.columns.items() if k not in others}, _cache={})


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_an_occupant_asks_for_what_it_reads(name: str) -> None:
    """Of the models that are there, and of its own role where it has a gradient: in another method nobody else may."""
    world = World(method(name), 0)
    packed = world.packed(random_episodes(0))
    world.method.credit(world.ctx, alone(world, packed, world.method.credit))
    batch, generator = world.prepared(packed), torch.Generator().manual_seed(0)
    mine = [(role, o) for role, chain in world.method.objectives.items() for o in chain]
    for role, o in [*mine, *(("policy", p) for p in world.method.penalties)]:
        now = [n for n in o.needs(world.ctx) if n.when == "step"]
        assert {n.role for n in now} <= {role}
        stats = {n.column: READOUTS[n.readout].synthetic(generator, batch.size(n.at), torch.float64) for n in now}
        worked(o, alone(world, batch, o), world.ctx, **stats)


# which rows count


def test_dmpo_equal_groups_are_those_of_judged_answers() -> None:
    """(1, 0) varies. (1, 1) does not, whatever an answer apart is worth."""
    episodes = [*group([1.0, 0.0], "a"), *group([1.0, 1.0], "b", 2), *group([0.0], "b", 4, use=Use.APART)]
    batch = batch_of(episodes, adv_N=[0.0] * 5, logp_old_N=[-1.0] * 5)
    for equal_groups, over in ((False, [1, 1, 0, 0, 0]), (True, [1, 1, 1, 1, 0])):
        found = term_of(MatchDistribution(equal_groups=equal_groups), "match", batch, [-1.0] * 5)
        assert column(found.term.over) == over


def test_llds_watches_the_tokens_that_it_holds() -> None:
    """Falls of .25 where A ≥ 0 and of −.5 where A < 0, in one turn: the first fell. Falls of ±.25 add up to 0."""
    batch = batch_of([answer(0, "g", 2, 1.0)], logp_old_N=[-1.0] * 2, adv_N=[1.0, -1.0])
    assert column(term_of(HoldLikelihood(), "hold", batch, [-1.25, -0.5]).value) == [-0.25, 0.0]
    good = batch.with_columns(adv_N=torch.ones(2, dtype=torch.float64))
    assert column(term_of(HoldLikelihood(), "hold", good, [-1.25, -0.75]).value) == [0.0, 0.0]


def test_reg_grpo_of_a_hint() -> None:
    """ρ = .5 and −.5 of the answers' own tokens, however the hint before the first fares; ddof = 1: std = √½."""
    batch = batch_of(
        [answer(0, "g", 1, 1.0, **HINTED), answer(1, "g", 1, 0.0)], logp_old_N=[-1.0] * 3, adv_N=[0.0, 1.0, -1.0]
    )
    want = -((1 - 0.5 / (math.sqrt(0.5) + 0.01)) ** 2)
    for hint in (-1.0, -4.0):
        found = term_of(Regression(), "regression", batch, [hint, -0.5, -1.5])
        assert column(found.value) == pytest.approx([want, want])


def test_oprl_of_a_hint() -> None:
    """S = β (.5) against β (−.5): log σ(.5 · 1), however the hint before the first fares."""
    episodes = [answer(0, "g", 1, 1.0, **HINTED), answer(1, "g", 1, 0.0)]
    batch = batch_of(episodes, logp_old_N=[-1.0] * 3, beta_E=[0.5, 0.5])
    batch = batch.with_columns(win_P=torch.tensor([0]), lose_P=torch.tensor([1]), margin_P=torch.tensor([1.0]))
    for hint in (-1.0, -4.0):
        found = term_of(PairLikelihood(), "preference", batch, [hint, -0.5, -1.5])
        assert column(found.value) == pytest.approx([-math.log1p(math.exp(-0.5))])


# nft


def test_nft_right_answers_are_judged() -> None:
    """One that failed is not right, whatever it had, and not in the share."""
    made = RightRate()(Context(), batch_of([*group([1.0, 0.0]), *group([1.0], first=2, **FAILED)]))
    assert column(made["right_N"]) == [1.0, 0.0, 0.0] and column(made["rate_N"]) == [0.5] * 3


def test_nft_counts_what_is_judged_and_learned() -> None:
    """A baseline answer is judged and not learned from, one apart is learned from and not judged here."""
    episodes = [*group([1.0, 0.0]), *group([1.0], first=2, use=Use.BASELINE), *group([1.0], first=3, use=Use.APART)]
    batch = batch_of(episodes, logp_old_N=[-1.0] * 4, right_N=[1.0, 0.0, 1.0, 1.0], rate_N=[0.5] * 4)
    assert column(term_of(NegativeAware(), "policy", batch, [-1.0] * 4).term.over) == [1, 1, 0, 0]


def test_nft_bounds_the_log_ratio() -> None:
    """log R is at most 10, as in the authors' code, and at least −20, as every log-ratio here; times w = ½."""
    batch = batch_of(group([1.0] * 3), logp_old_N=[-50.0, -50.0, -1.0], right_N=[1.0] * 3, rate_N=[0.5] * 3)
    found = term_of(NegativeAware(), "policy", batch, [-35.0, -42.0, -31.0])
    assert column(found.value) == pytest.approx([5.0, 4.0, -10.0])


# ngrpo, gdpo


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_ngrpo_of_a_group_that_is_all_right(copies: int) -> None:
    """Nothing lies between the answers and the virtual ones: A = 0, also where nothing is added to the deviation."""
    batch = batch_of([*group([1.0, 1.0], "a"), *group([1.0], "b", 2), *group([None], "c", 3, **FAILED)])
    assert column(VirtualBest(copies=copies, eps=0.0)(Context(), batch)["adv_N"]) == [0.0] * 4


def two_rewards(*rewards: tuple[float, float], **fields: Any) -> list[Episode]:
    episodes = group([task for task, _ in rewards], **fields)
    for e, (task, style) in zip(episodes, rewards, strict=True):
        e.reward = {"task": task, "style": style}
    return episodes


def test_gdpo_over_tokens_leaves_failures_out() -> None:
    """Sums of z-scores are ±√½ twice: with and without a third answer that failed, A = ±√½ of two tokens."""
    two, failed = two_rewards((1.0, 2.0), (0.0, 0.0)), two_rewards((1.0, 9.0), first=2, **FAILED)
    credit = DecoupledNormalised(over="token", eps=0.0)
    want = [math.sqrt(0.5), -math.sqrt(0.5)]
    assert column(credit(Context(), batch_of(two))["adv_N"]) == pytest.approx(want)
    assert column(credit(Context(), batch_of([*two, *failed]))["adv_N"]) == pytest.approx([*want, 0.0])


def test_gdpo_knows_its_components() -> None:
    batch = batch_of(two_rewards((1.0, 2.0), (0.0, 0.0)))
    for weights in ({}, {"style": 0.5}, {"style": 0.5, "task": 2.0}):
        assert DecoupledNormalised(weights=weights).unfit(batch) == ""
    assert "weights has 'stile'" in DecoupledNormalised(weights={"style": 1.0, "stile": 0.5}).unfit(batch)


def test_gdpo_is_a_value() -> None:
    """Like every occupant it can be asked for by a set or a dict, though its weights are a dict."""
    one, same, other = (DecoupledNormalised(weights={"style": w}) for w in (0.5, 0.5, 0.25))
    assert len({one, same, other}) == 2 and hash(method("gdpo").credit) == hash(DecoupledNormalised())


# g2rpo: what is not in the record


def test_g2rpo_length_reward_as_it_comes() -> None:
    """Of 16 tokens: it rises to 1 at two, stays to eight, and falls to 0 at sixteen."""
    episodes = [answer(n, "g", n, 0.0) for n in (1, 2, 4, 8, 12, 16)]
    got = TrapezoidLength()(Context(sampling=Sampling(max_tokens=16)), episodes)["length"]
    assert np.asarray(got).tolist() == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.5, 0.0])
    for edges in ({"zero_below": 0.25, "full_from": 0.25}, {"full_to": 0.75, "zero_above": 0.75}):
        with pytest.raises(ValueError, match="does not rise and fall"):
            TrapezoidLength(**edges)


@pytest.mark.parametrize(("tokens", "entropy", "outside"), [(1, 1.5, 0.5), (2, 0.05, 0.05), (2, 1.0, 0.0), (1, 0.1, 0)])
def test_g2rpo_entropy_band_as_it_comes(tokens: int, entropy: float, outside: float) -> None:
    """From .1 to 1 nat, .01 for each nat outside: the same for every answer, since it is the mean of the step's."""
    batch = batch_of([answer(0, "g", tokens, 1.0), answer(1, "g", 1, None, **FAILED)])
    rows = tokens + 1
    found = term_of(EntropyBand(), "entropy_band", batch, [-1.0] * rows, entropy_N=[entropy] * tokens + [9.0])
    assert (found.term.at, found.term.mean, found.term.coef, found.term.additive) == ("E", "token", 0.01, False)
    assert column(found.value) == pytest.approx([-outside] * 2) and column(found.term.over) == [True, False]


def test_g2rpo_entropy_band_that_is_a_point() -> None:
    with pytest.raises(ValueError, match="the band is empty"):
        EntropyBand(entropy_low=0.5, entropy_high=0.5)
