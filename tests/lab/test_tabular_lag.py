"""Answers of older policies in an exact world, and what π_old is of them."""

from math import inf
from typing import Any

import pytest
import torch

from gruppo.data import uniform
from gruppo.lab.claims.in_tables import apply
from gruppo.lab.exact.groups import Unlike
from gruppo.lab.tabular import Setup, World, train_exact
from gruppo.lab.tabular.quick import Quick
from gruppo.lab.tabular.setup import setup_of
from gruppo.lab.tabular.tables import Tables
from gruppo.methods import method
from gruppo.train.config import RunConfig

WORLD = World(prompts=3, answers=9, depth=2, right=2)
STEPS = 7
PLAIN = method("grpo").but(penalties=())


def setup(**more: Any) -> Setup:
    return Setup(WORLD, steps=STEPS, prompts=3, samples=6, every=1, **more)


class Seen(Quick):
    """Keeps what each step's sampler was, and what the batch says of it."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.samplers: list[torch.Tensor] = []
        self.starts: list[torch.Tensor] = []

    def step(self, step: int) -> Any:
        self.starts.append(self.theta.clone())
        out = super().step(step)
        self.samplers.append(self.learner._sampler.clone())
        return out


def followed(lag: int, old: Any = "step") -> Seen:
    worlds = [WORLD.of(s) for s in (0, 1)]
    tables = Tables(worlds[0])
    made = setup(lag=lag, old=old)
    quick = Seen(PLAIN, made, tables, tables.start(worlds), torch.tensor([0, 1]))
    quick.together = False  # the last part stepped is that of the last seed
    for step in range(STEPS):
        quick.step(step)
    return quick


@pytest.mark.parametrize("lag", [1, 3])
def test_a_step_learns_from_answers_of_the_policy_of_so_many_steps_ago(lag: int) -> None:
    quick = followed(lag)
    for step, sampler in enumerate(quick.samplers):
        assert torch.equal(sampler[0], quick.starts[max(step - lag, 0)][1])
    assert not torch.equal(quick.starts[0], quick.starts[1])


def test_no_lag_is_training_as_it_was() -> None:
    plain, lag, ratios = (
        train_exact(PLAIN, setup(**more), seeds=2, lr=0.1) for more in ({}, {"lag": 2}, {"lag": 2, "old": "sampler"})
    )
    assert torch.equal(followed(0).samplers[-1][0], followed(0).starts[-1][1])
    first = [t.of("reward")[1] for t in (plain, lag, ratios)]  # before the first step every policy is the initial one
    assert (first[0] == first[1]).all() and (first[0] == first[2]).all()
    assert len({float(t.last("reward")[0]) for t in (plain, lag, ratios)}) == 3


def test_ratios_see_the_lag_only_where_old_is_the_sampler() -> None:
    """One update a batch: with π_old of the step every ratio is 1, and nothing is clipped."""
    one = {"lr": 0.5, "clip_norm": inf}
    step, sampler = (train_exact(PLAIN, setup(lag=3, old=old), seeds=2, **one) for old in ("step", "sampler"))
    assert step.how == sampler.how == "together"
    assert (step.of("clip_fraction")[1:] == 0).all()
    assert (sampler.of("clip_fraction")[1] == 0).all() and (sampler.of("clip_fraction")[2:].max(0) > 0.1).all()


def test_a_stale_step_by_hand() -> None:
    """Two answers, one prompt, plain steps: Σ r_i A_i ∇log π with r = π/π_sampler, by pencil."""
    world = World(prompts=1, answers=2, right=1, low=0.3, high=0.3)
    made = Setup(world, steps=2, prompts=1, samples=4, every=1, lag=1, old="sampler", optimiser="sgd")
    trained = train_exact(PLAIN, made, seeds=1, lr=0.01, clip_norm=inf)  # steps so small that no ratio is clipped
    theta, right = Tables(world.of(0)).start([world.of(0)])[0, 0], world.of(0).right_A.double()
    first = theta
    for step in range(2):
        p_first, p = torch.softmax(first, 0), torch.softmax(theta, 0)  # the sampler is the initial policy in both steps
        noise = uniform("answer", step, torch.arange(4))
        assert isinstance(noise, torch.Tensor)
        picked = (noise.double() > p_first[0]).long()
        reward = right[picked]
        adv = (reward - reward.mean()) / (reward.std() + 1e-6)
        ratio = (p / p_first)[picked]
        theta = theta + 0.01 * ((ratio * adv)[:, None] * (torch.eye(2).double()[picked] - p)).mean(0) / 2
    assert (theta - first).norm() > 1e-4
    assert torch.allclose(torch.log_softmax(trained.theta[0, 0], 0), torch.log_softmax(theta, 0), atol=1e-9)


def test_ahead_of_a_claim_is_the_lag() -> None:
    words = ["task=gruppo.lab.tabular:exact", "ahead=16", "task.options.old=sampler", "steps=40", "prompts=8"]
    made = setup_of(apply(RunConfig(), words))
    assert (made.lag, made.old) == (16, "sampler")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"lag": STEPS}, "every answer would be one of the initial policy"),
        ({"old": "sampler"}, "no effect with lag=0"),
        ({"lag": 1, "noise": 4}, "no effect on noise"),
        ({"lag": 1, "gradient": "expected"}, "no lag"),
    ],
)
def test_lags_without_effect_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        setup(**more)


def test_the_loop_has_no_lag() -> None:
    with pytest.raises(Unlike, match=r"the loop, which has no lag here \(it rewards or selects episodes\)"):
        train_exact("dapo", setup(lag=1), seeds=1)
