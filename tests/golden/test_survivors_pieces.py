"""Pieces and methods where a wrong number went unseen: `make mutants` had changed these lines, and no test failed."""

from itertools import combinations
from typing import Any

import pytest
import torch
from hand import answer, batch_of, close, column, worked
from looking_back import seen

from gruppo.data import Batch, Key, Use, minibatches
from gruppo.methods import method, refurnished
from gruppo.methods.bapo import MOST_RUNGS, BalancedClip
from gruppo.methods.d3s import most_varied
from gruppo.methods.g2rpo import EntropyBand
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.methods.pipo import LookBack
from gruppo.methods.spo_single import SPO_SINGLE
from gruppo.methods.unlikeliness import Unlikeliness
from gruppo.methods.vapo import CriticFirst
from gruppo.pieces.advantage import z_score
from gruppo.pieces.aggregate import Count
from gruppo.pieces.preference import hinge
from gruppo.stages import Context, Memory, need
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.reward import add_components


def doubles(*x: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


# pieces


def test_hinge_by_hand() -> None:
    """−max(0, 1 − h): −0.6 at 0.4, nothing from 1 on, −3 at −2; the slope is 1 below and 0 above."""
    gap = doubles(0.4, 1.2, -2.0).requires_grad_()
    close(column(hinge(gap.detach())), [-0.6, 0.0, -3.0])
    hinge(gap).sum().backward()
    assert gap.grad is not None and gap.grad.tolist() == [1.0, 0.0, 1.0]


def test_dpo_with_a_hinge_has_no_smoothing() -> None:
    [objective] = method("dpo").objectives["policy"]
    with pytest.raises(ValueError, match=r"loss='hinge', smoothing=0\.1: only the sigmoid loss has smoothing"):
        type(objective)(loss="hinge", smoothing=0.1)
    assert type(objective)(loss="hinge").smoothing == 0 and type(objective)(smoothing=0.1).loss == "sigmoid"


def test_z_scores_of_several_columns_are_those_of_each() -> None:
    """Also with as many parts as columns, and where one part is a single row."""
    x, key = doubles(*[[i * i, 1.0 - i, i % 3] for i in range(7)]), Key(torch.tensor([0, 0, 1, 1, 1, 1, 2]), 3)
    alone = torch.stack([z_score(x[:, c], key) for c in range(3)], 1)
    torch.testing.assert_close(z_score(x, key), alone, rtol=0, atol=0)
    assert bool((alone[-1] == 0).all()) and bool((alone[:2].abs().sum() > 0).all())


@pytest.mark.parametrize("estimator", ["k1+", "k3+"])
def test_a_plus_estimator_has_the_value_of_its_own_and_the_slope_of_k2(estimator: Any) -> None:
    """log π − log π_ref = ½ and −1: k1 is ½ and −1, k3 is e^−½ − ½ and e − 2; the slope is that of ½ d², so d."""
    batch = batch_of([answer(0, "g", 2, 1.0)], logp_ref_N=[-2.0, -1.0])
    logp_N = doubles(-1.5, -2.0).requires_grad_()
    kl_N = -worked(ReferenceKL(estimator=estimator), batch, logp_N=logp_N)["kl_ref"].value
    plain_N = doubles(0.5, -1.0) if estimator == "k1+" else doubles(-0.5, 1.0).exp() - doubles(-0.5, 1.0) - 1
    torch.testing.assert_close(kl_N.detach(), plain_N)
    kl_N.sum().backward()
    assert logp_N.grad is not None
    close(column(logp_N.grad), [0.5, -1.0])


# methods


def test_d3s_finds_the_widest_of_all_subsets_in_every_part() -> None:
    """Against all subsets of three of six, in three parts that are far from each other."""
    x = torch.rand(18, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 5.0
    part = torch.arange(3).repeat_interleave(6)
    chosen = most_varied(x, Key(part, 3), 0.5, torch.arange(18.0), torch.ones(18, dtype=torch.bool))
    for p in range(3):
        mine = x[part == p]
        best = max(float(mine[list(c)].var()) for c in combinations(range(6), 3))
        assert float(x[(part == p) & chosen].var()) == pytest.approx(best) and int(chosen[part == p].sum()) == 3


def test_bapo_by_value_counts_a_clipped_token_with_its_bound() -> None:
    """A = 1 at r = 2, A = −1 at r = 1: at 1.2 the good one is worth 1.2 of 2.2, which is .545; .6 needs 1.5 of 2.5."""
    r_N, adv_N, one_N = doubles(2.0, 1.0), doubles(1.0, -1.0), doubles(1.0, 1.0)
    settings: dict[str, Any] = {"clip_high": 0.2, "clip_high_most": 1.0, "clip_step": 0.1, "contribution": "value"}
    for share, high in ((0.54, 1.2), (0.599, 1.5)):
        found = BalancedClip(positive_share=share, **settings).bounds(r_N, adv_N, one_N)
        assert float(found[1]) == pytest.approx(high)


def test_bapo_without_a_share_does_not_search() -> None:
    """positive_share = 0 is reached at once, also where no token has a share yet: a good token beyond every bound."""
    off = BalancedClip(positive_share=0.0).bounds(doubles(1.48), doubles(1.0), doubles(1.0))
    some = BalancedClip(positive_share=0.1).bounds(doubles(1.48), doubles(1.0), doubles(1.0))
    assert float(off[1]) == pytest.approx(1.2) and float(some[1]) == pytest.approx(1.5)


def test_bapo_takes_as_many_rungs_as_it_can_hold() -> None:
    """From .5 to .25 below and from .25 to .5 above is a way of .5; one rung more is refused."""
    way: dict[str, Any] = {"clip_low": 0.5, "clip_low_least": 0.25, "clip_high": 0.25, "clip_high_most": 0.5}
    assert MOST_RUNGS * (0.5 / MOST_RUNGS) == 0.5
    assert BalancedClip(clip_step=0.5 / MOST_RUNGS, **way).clip_high == 0.25
    with pytest.raises(ValueError, match="the search would never end"):
        BalancedClip(clip_step=0.499 / MOST_RUNGS, **way)


def test_g2rpo_band_reads_the_entropy_of_the_current_policy() -> None:
    assert EntropyBand().needs(Context()) == (need("entropy", when="step"),)


def test_hapo_remembers_the_length_of_a_baseline_answer() -> None:
    [shorter] = (o for o in method("hapo_history").reward if isinstance(o, ShorterThanBefore))
    e = answer(9, "q", 5, 1.0)
    add_components(Context(memory=seen(shorter, [answer(0, "q", 10, 1.0, use=Use.BASELINE)])), (shorter,), [e])
    assert e.reward["length"] == pytest.approx(0.5**0.5)
    other = answer(9, "q", 5, 1.0)
    add_components(Context(memory=seen(shorter, [answer(0, "q", 10, 1.0, use=Use.NONE)])), (shorter,), [other])
    assert other.reward["length"] == 0


def test_unlikeliness_ranks_answers_of_one_token() -> None:
    group = [answer(i, "g", 1, 1.0) for i in range(2)]
    group[0].sequences[0].logp[-1] = -0.5
    assert list(Unlikeliness()(Context(), group)["unlikely"]) == pytest.approx([-0.125, 0.0])


def test_spo_single_with_one_weight_of_the_past() -> None:
    tracked = type(SPO_SINGLE.credit)(keep_low=0.9, keep_high=0.9)  # the weight is a constant then
    assert tracked.keep_low == tracked.keep_high


class Learner:
    """Notes the episodes of each optimiser step."""

    def __init__(self, *trained: str) -> None:
        self.trained, self.writers, self.steps = trained, ("policy",), list[tuple[str, list[int]]]()

    def step(self, role: str, part: Batch) -> None:
        self.steps.append((role, part.uid_E.tolist()))


@pytest.mark.parametrize("update", [LookBack(epochs=3, minibatches=2), CriticFirst(epochs=3, minibatches=2, warmup=0)])
def test_passes_are_split_by_seed_step_and_epoch(update: Any) -> None:
    batch = batch_of([answer(i, f"g{i}", 1, 1.0) for i in range(8)])
    for step in (3, 4):
        learner = Learner("policy")
        update(Context(seed=7, step=step, memory=Memory()), learner, batch)
        wanted = [p.uid_E.tolist() for epoch in range(3) for p in minibatches(batch, 2, 7, step, epoch)]
        assert learner.steps == [("policy", uids) for uids in wanted]


def test_refurnished_says_what_was_changed_in_a_known_method() -> None:
    grpo = method("grpo")
    assert refurnished(grpo) == []
    assert refurnished(grpo.but(name="mine", penalties=())) == []
    first, *changes = refurnished(grpo.but(penalties=ReferenceKL(kl_coef=0.5)))
    assert first == "grpo, with these changes:" and len(changes) == 1
    assert "kl_coef" in changes[0] and changes[0].endswith("→ 0.5")


def test_nothing_counts_nothing() -> None:
    assert Count() == Count(0.0, 0.0, 0.0) and Count(1, 2, 3) + Count(10, 20, 30) == Count(11, 22, 33)
    assert Count() + Count(1, 2, 3) == Count(1, 2, 3)
