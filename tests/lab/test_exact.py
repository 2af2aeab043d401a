"""The exact laboratory against sums by hand, against the trainer, and for every method there is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source
from gruppo.lab.exact import trial as trials
from gruppo.lab.exact.bench import Bench
from gruppo.lab.exact.figures import Lab, lab, true_gradient
from gruppo.lab.exact.groups import Unlike
from gruppo.lab.exact.trial import Trial
from gruppo.lab.exact.world import ExactWorld
from gruppo.methods import all_methods, method
from gruppo.methods.latr import LookaheadTree
from gruppo.stages import Context, Method, Need, Occupant, Prompt, Stats, Term, Values, need
from gruppo.stages.check import least_samples
from gruppo.stages.credit import LeaveOneOut
from gruppo.stages.objective import PolicyGradient
from gruppo.stages.penalties import EntropyBonus, ReferenceKL
from gruppo.stages.rollout import Group
from gruppo.stages.select import TopEntropy
from gruppo.train.learner import Learner, OptimConfig

SMALL = ExactWorld(rates=(0.1, 0.5), answers=("", "a", "bb"), right=("a", "bb"))
FLAT = ExactWorld(rates=(0.1, 0.3, 0.5), answers=("a", "b", "c"), right=("a", "b"))  # all answers have two tokens
RLOO = method("rloo").but(credit=LeaveOneOut())  # without the KL in its reward


def figures(result: Lab, i: int = 0) -> Any:
    f = result.rows[i].figures
    assert f is not None, result.rows[i].says
    return f


def away(result: Lab, i: int = 0) -> float:
    return float(np.abs(np.array(figures(result, i).expected) - np.array(result.true)).max())


# against sums by hand


@pytest.mark.parametrize("world", [SMALL, FLAT, ExactWorld(seed=2)])
def test_true_gradient(world: ExactWorld) -> None:
    """Two ways: central differences of the expected reward, and Σ P R ∇ log P."""
    theta, got = world.theta.numpy(), true_gradient(Bench(world), world.theta).numpy()
    step = np.eye(len(theta)) * 1e-5
    slope = [
        (by_hand.expected_reward(world, theta + e) - by_hand.expected_reward(world, theta - e)) / 2e-5 for e in step
    ]
    assert np.allclose(got, slope, atol=1e-9)
    mass, reward = by_hand.mass(world, theta), world.reward_QA.numpy()
    places = [(q, a) for q in range(len(world.rates)) for a in range(len(world.answers))]
    summed = sum(mass[q, a] * reward[q, a] * by_hand.score(world, theta, q, a) for q, a in places) / len(world.rates)
    assert np.allclose(got, summed, atol=1e-14)


@pytest.mark.parametrize("name", ["rloo", "reinforce", "remax"])
@pytest.mark.parametrize("shape", [{"samples": 4}, {"samples": 2, "prompts": 2}, {"samples": 3, "seed": 5}])
def test_unbiased_methods_have_the_true_gradient(name: str, shape: dict[str, int]) -> None:
    result = lab([name], SMALL, steps=0, **shape)  # type: ignore[arg-type]
    assert away(result) < 1e-9
    f = figures(result)
    assert f.cosine == pytest.approx(1.0) and f.scale == pytest.approx(1.0) and f.bias < 1e-9
    assert result.rows[0].exact


@pytest.mark.slow  # docs/lab.md is measured on it, and test_lab_page.py measures a line of it again
def test_rloo_on_the_default_bench() -> None:
    result = lab(["rloo"], steps=0)
    assert away(result) < 1e-9 and result.rows[0].draws == 840


def test_mean_and_variance_of_rloo_by_ordered_groups() -> None:
    result = lab(["rloo"], SMALL, samples=3, steps=0)
    mean, variance = by_hand.rloo_moments(SMALL, 3)
    assert np.allclose(figures(result).expected, mean, atol=1e-14)
    assert figures(result).variance == pytest.approx(variance, rel=1e-12)
    assert figures(result).noise == pytest.approx(variance**0.5 / np.linalg.norm(mean))


@pytest.mark.parametrize("samples", [2, 4])
def test_reinforce_at_its_first_step(samples: int) -> None:
    """With an empty memory the baseline is the mean of the batch, the sample itself included: (1 − 1/G) ∇J."""
    f = figures(lab(["reinforce"], SMALL, samples=samples, steps=0, warm=0))
    assert f.scale == pytest.approx(1 - 1 / samples) and f.cosine == pytest.approx(1.0)
    assert f.bias == pytest.approx(1 / samples)


@pytest.mark.parametrize("samples", [2, 3, 4, 8])
def test_grpo_weighs_a_prompt_by_its_binomial_sum(samples: int) -> None:
    """p = .1, .3, .5. All answers of FLAT have two tokens, so the mean over a sequence is half of its sum."""
    for p in figures(lab(["grpo"], FLAT, samples=samples, steps=0)).prompts:
        want = by_hand.grpo_contrast(p.rate, samples)
        assert p.contrast == pytest.approx(want, rel=1e-9)
        assert p.weight == pytest.approx(want / 2, rel=1e-9) and p.cosine == pytest.approx(1.0)


def test_the_binomial_sum_does_not_look_at_lengths() -> None:
    """The answers of SMALL have one, two and three tokens."""
    for p in figures(lab(["grpo"], SMALL, samples=4, steps=0)).prompts:
        assert p.contrast == pytest.approx(by_hand.grpo_contrast(p.rate, 4), rel=1e-9)


def test_a_large_group_divides_by_the_deviation() -> None:
    """G → ∞: E[A | right] − E[A | wrong] → 1 / sqrt(p (1 − p)); with two answers a group is a number."""
    world = ExactWorld(rates=(0.3, 0.5), answers=("a", "b"), right=("a",))
    result = lab(["grpo", "rloo"], world, samples=64, steps=0)
    for p in figures(result).prompts:
        assert p.contrast == pytest.approx((p.rate * (1 - p.rate)) ** -0.5, rel=0.02)
    assert away(result, 1) < 1e-9


def test_length_bias() -> None:
    """Answers that differ in length alone: GRPO pulls short right ones up more than long ones, RLOO does not."""
    world = ExactWorld(rates=(0.5,), answers=("a", "bbb", "c", "ddd"), right=("a", "bbb"), shares=(1.0,))
    result = lab(["grpo", "rloo", "dr_grpo"], world, steps=1)
    start = 0.25
    grown = [{a: m[-1] / start for a, m in figures(result, i).prompts[0].mass.items()} for i in range(3)]
    assert grown[0]["a"] > grown[0]["bbb"] > 1 > grown[0]["ddd"] > grown[0]["c"]
    for fair in grown[1:]:
        assert fair["a"] == pytest.approx(fair["bbb"]) and fair["c"] == pytest.approx(fair["ddd"])
    assert figures(result, 2).cosine == pytest.approx(1.0)


# small steps


def test_small_steps_go_along_the_expected_gradient() -> None:
    result = lab([RLOO], SMALL, samples=2, steps=2, size=0.3)
    f, bench, theta = figures(result), Bench(SMALL), SMALL.theta
    for step in range(3):
        mass = bench.log_mass(theta).exp()
        assert f.success[step] == pytest.approx(float((mass * SMALL.reward_QA).sum(1).mean()))
        plogp = -(mass * mass.log()).sum(1).mean()
        assert f.entropy[step] == pytest.approx(float(plogp))
        got = [[f.prompts[q].mass[a][step] for a in SMALL.answers] for q in range(2)]
        assert np.allclose(got, mass.numpy())
        true = true_gradient(bench, theta)
        theta = theta + 0.3 * true / true.norm()
    assert f.success[2] > f.success[1] > f.success[0]


def test_the_reference_stays_where_it_was() -> None:
    """At the start it is the policy, so a KL to it says nothing; after a step it pulls back."""
    near, far = (method("grpo").but(penalties=ReferenceKL(kl_coef=c)) for c in (0.0, 1e6))
    result = lab([near, far], SMALL, samples=2, steps=2)
    a, b = figures(result, 0), figures(result, 1)
    assert a.expected == pytest.approx(b.expected, abs=1e-12) and a.success[1] == pytest.approx(b.success[1])
    assert b.success[2] < b.success[1] < a.success[2]


def test_without_small_steps_there_is_the_start() -> None:
    f = figures(lab(["rloo"], SMALL, samples=2, steps=0))
    assert len(f.entropy) == len(f.success) == 1 and f.success[0] == pytest.approx(0.3)


# against the trainer


def _trial(m: Method, **options: Any) -> Trial:
    return Trial(m, Bench(SMALL, **options), 1, max(3, least_samples(m)))


def trained(trial: Trial, batch: Batch) -> Tensor:
    """The gradient that the trainer would leave on this batch."""
    learner = Learner(trial.method, trial.models, OptimConfig())
    learner.begin(trial.ctx)
    # A token that was put in is not learned, and the table has no column for one that is no letter.
    put_in_N = batch.source_N == Source.INJECTED
    read = batch.with_columns(token_N=torch.where(put_in_N, torch.zeros_like(batch.token_N), batch.token_N))
    return -learner.gradient("policy", read)


# What the laboratory cannot enumerate, it says.
REFUSED = {"archer": "its role critic has several outputs", "latr": "its rollout steers the engine"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_is_said(name: str) -> None:
    with pytest.raises(Unlike, match=REFUSED[name]):
        trial = _trial(all_methods()[name])
        trial.drawn(0)


# Every other method, half of them away from the policy that sampled; with the slow tests all of them in both ways.
BOTH = [
    pytest.param(m, drift, id=f"{m.name}-{drift}", marks=() if i % 4 == 2 * bool(drift) else pytest.mark.slow)
    for i, m in enumerate(m for m in all_methods().values() if m.name not in REFUSED)
    for drift in (0.0, 0.4)
]


@pytest.mark.parametrize("enough", [3, pytest.param(99, marks=pytest.mark.slow, id="all")])
@pytest.mark.parametrize(("m", "drift"), BOTH)
def test_the_gradient_of_a_draw_is_the_trainers(m: Method, drift: float, enough: int) -> None:
    """`Learner.grad` on the same batch: its micro-batches, its forward and its backward."""
    compared = 0
    trial = _trial(m, drift=drift)
    for c in sorted(range(len(trial.draws.places)), key=lambda c: (-c % 7, c)):  # of both prompts from the beginning
        d = trial.drawn(c) if compared < enough else None
        if d is None:
            continue
        batch = trial.prepared(d)
        want = trained(trial, batch)
        assert torch.allclose(trial.gradient(batch), want, atol=1e-12), c
        compared += bool(want.any())
    trial.close()
    assert compared > 1 or drift  # a narrow clip may stop everything once the policies differ


# every method

WITH_FIGURES = {"grpo", "dr_grpo", "rloo", "reinforce", "gspo", "dapo", "ppo", "disco"}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_method_is_accepted(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a bench for which two samples are enough. A method without figures says why."""
    monkeypatch.setattr(trials, "THROWS", 4)  # nothing here depends on how precise they are
    known = {name for i, name in enumerate(all_methods()) if i % every == 3 % every} | WITH_FIGURES
    result = lab(sorted(known), ExactWorld(rates=(0.3,), answers=("", "a"), right=("a",)), samples=2, steps=1)
    assert [r.method for r in result.rows] == sorted(known)
    for row in result.rows:
        assert row.figures is not None or row.says[-1].startswith("not done: "), row
    done = {r.method for r in result.rows if r.figures is not None}
    assert done >= WITH_FIGURES


def test_remarks() -> None:
    result = lab(["ppo", "dapo", "rloo"], SMALL, samples=2, steps=0)
    ppo, dapo, rloo = (" ".join(r.says) for r in result.rows)
    assert "critic knows the exact value" in ppo and "first of 2 optimiser steps" in ppo
    assert "not drawn again" in dapo and "overlong_shaping" in dapo and rloo == ""
    assert "says 0 everywhere" in " ".join(lab(["ppo"], SMALL, samples=2, steps=0, critic="zero").rows[0].says)


def test_dropped_draws_are_counted() -> None:
    """DAPO drops groups that are all right or all wrong: p^G + (1 − p)^G."""
    f = figures(lab(["dapo"], SMALL, samples=3, steps=0))
    assert f.dropped == pytest.approx(np.mean([p**3 + (1 - p) ** 3 for p in SMALL.rates]))


# what cannot be done, and what needs another step


@dataclass(frozen=True)
class After(Group):
    """Samples after other ids than the prompt's: as many of them, then these."""

    first: int = 99
    more: tuple[int, ...] = ()
    how: Any = ()

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        def other(p: Prompt) -> Prompt:
            ask = replace(p.ask, how=dict(self.how))
            return replace(p, ids=np.append(p.ids[: self.first], self.more).astype(np.int64), ask=ask)

        return await super().__call__(ctx, [other(p) for p in prompts])


@dataclass(frozen=True)
class FirstTwice(Group):
    """The first answer counts twice: by its order, not by what it is."""

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        out = await super().__call__(ctx, prompts)
        return [*out, replace(out[0], uid=7)]


@dataclass(frozen=True)
class Dice(LeaveOneOut):
    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        adv = super().__call__(ctx, batch)["adv_N"]
        return {"adv_N": adv * 2 * (ctx.uniform("dice", batch.uid_E)[batch.episode_N] < 0.5)}


@dataclass(frozen=True)
class Broken(LeaveOneOut):
    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        raise RuntimeError("no such thing here.\nsecond line")


@dataclass(frozen=True)
class Pooled(PolicyGradient):
    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (*super().needs(ctx), need("pool", when="step", at="S"))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"rollout": After(first=1)}, "samples after texts without a prompt of the laboratory"),
        ({"rollout": After(more=(0, 0))}, "goes on from texts that begin no answer of the laboratory"),
        ({"rollout": After(how=(("top_k", 1),))}, "samples from a truncated distribution"),
        ({"rollout": LookaheadTree()}, "steers the engine"),
        ({"rollout": FirstTwice()}, "by their order"),
        ({"credit": Broken()}, "no such thing here$"),
        ({"objective": Pooled()}, "at level S"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(change: dict[str, Any], said: str) -> None:
    result = lab([RLOO.but(**change), "rloo"], SMALL, samples=3, steps=0)
    row = result.rows[0]
    assert row.figures is None and not row.exact
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(row.says[-1])
    assert away(result, 1) < 1e-9  # and the next one goes on


def test_dice_are_owned_up_to() -> None:
    row = lab([RLOO.but(credit=Dice())], SMALL, samples=2, steps=0).rows[0]
    assert not row.exact and row.figures is not None and "draws random numbers of its own" in row.says[-1]
    assert row.figures.cosine == pytest.approx(1.0, abs=0.1) and row.figures.bias > 1e-6


def test_more_samples_where_a_method_needs_them() -> None:
    row = lab(["grpo"], SMALL, samples=1, steps=0).rows[0]
    assert row.samples == 2 and "which it needs" in row.says[0]


def test_selection_of_tokens_and_a_statistic_of_the_step() -> None:
    """A second door, and a penalty that reads another statistic than logp."""
    m = RLOO.but(select=(TopEntropy(share=0.5),), penalties=(EntropyBonus(entropy_coef=0.3),))
    trial = _trial(m)
    d = trial.drawn(4)
    assert d is not None
    batch = trial.prepared(d)
    assert torch.allclose(trial.gradient(batch), trained(trial, batch), atol=1e-12)
    assert not bool(batch.keep_N.all()) and {n.readout for n in trial.goal.needs()} == {"logp", "entropy"}
    logp = {n.column: trial.looked_up(batch, n, trained=True).requires_grad_() for n in trial.goal.needs()}
    assert all(bool(slope.any()) for slope in trial.goal.slopes(batch, logp)[0].values())


# off-policy


@dataclass(frozen=True)
class WholeRatio(Occupant):
    """Σ over answers of π(o)/π_old(o) · A: importance sampling of whole answers, unbiased and unclipped."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", when="step"), need("logp", "old"))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_E, at="E", additive=False)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        ratio_E = batch.gather(stats.logp_N - batch.logp_old_N, "N", "E", "sum").exp()
        return {"policy": ratio_E * batch.gather(batch.adv_N, "N", "E", "mean")}


def test_off_policy() -> None:
    """Draws come from another policy: a ratio of whole answers repairs it exactly, no ratio does not."""
    whole = RLOO.but(objective=WholeRatio())
    result = lab([whole, RLOO, "gspo"], SMALL, samples=3, steps=0, off_policy=0.7)
    assert away(result, 0) < 1e-9
    assert away(result, 1) > 1e-3 and away(result, 2) > 1e-3
    assert away(lab([whole], SMALL, samples=3, steps=0), 0) < 1e-9


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"steps": -1}, "0 or more"),
        ({"size": 0.0}, "stand still"),
        ({"off_policy": -1.0}, "on-policy"),
        ({"critic": "good"}, "exact or zero"),
        ({"samples": 40}, "Use fewer samples"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        lab(["rloo"], **wrong)
