"""`lab.agents`: the gradients of agents add up, one agent is paid in another currency, and nothing else changes."""

import asyncio
from typing import Any

import pytest
import torch

from gruppo.lab.agents import AgentPasses, CommonCentred, CommonNormalised, NoisePasses, SeatScale
from gruppo.methods import method
from gruppo.stages.update import Passes
from gruppo.tasks import TaskConfig
from gruppo.train import loop
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig, SaveConfig
from gruppo.train.run import Run


class Kept(AgentPasses):
    """Keeps the whole gradient, and that of each agent."""

    def __call__(self, ctx: Any, learner: Any, batch: Any) -> None:
        self.found["all"] = learner.gradient("policy", batch, penalties=False)
        agent_N = batch.spread(batch.agent_K, "K", "N")
        for i, name in enumerate(batch.agents):
            mine = batch.with_columns(adv_N=torch.where(agent_N == i, batch.adv_N, 0.0))
            self.found[name] = learner.gradient("policy", mine, penalties=False)
        super().__call__(ctx, learner, batch)

    found: dict[str, torch.Tensor] = {}


def step(update: Any, name: str = "drmas", **rooms: Any) -> tuple[torch.Tensor, Any]:
    run = Run(
        RunConfig(
            method=method(name).but(update=update, **rooms),
            task=TaskConfig("kuhn"),
            model=ModelConfig("tiny-agent", dtype="float64", device="cpu"),
            eval=EvalConfig(every=0, prompts=4),
            save=SaveConfig(tensorboard="no"),
            prompts=4,
            samples=6,
        ),
        say=lambda _: None,
    )
    try:
        made = asyncio.run(loop.train_step(run, 0))
        return torch.cat([p.detach().flatten() for p in run.models["policy"].parameters()]), made
    finally:
        run.close()


def test_the_gradients_of_agents_add_up_and_learning_is_the_same() -> None:
    plain, _ = step(Passes())
    measured, made = step(Kept())
    assert torch.equal(plain, measured)
    whole, parts = Kept.found["all"], {a: Kept.found[a] for a in ("first", "second")}
    assert float((sum(parts.values()) - whole).norm()) < 1e-9 * float(whole.norm())
    for name, grad in parts.items():
        assert made.facts[f"grad_norm_{name}"] == pytest.approx(float(grad.norm())) and float(grad.norm()) > 0


def test_one_agent_is_paid_in_another_currency() -> None:
    _, made = step(AgentPasses(), reward=SeatScale("second", factor=10.0, shift=-5.0))
    batch = made.batch
    first, second = (batch.reward_EA[:, i] for i in range(2))
    assert torch.allclose(second, -10 * first - 5)  # a game of nought, but for the currency
    assert float(first.abs().max()) in (1.0, 2.0)


def test_one_mean_and_one_deviation_for_all() -> None:
    _, made = step(AgentPasses(), credit=CommonNormalised())
    batch = made.batch
    adv_K = batch.gather(batch.adv_N, "N", "K", "max")
    group_K = batch.spread(batch.group_E, "E", "K")
    for g in range(int(group_K.max()) + 1):
        mine = adv_K[group_K == g]
        assert float(mine.mean()) == pytest.approx(0, abs=1e-9) and float(mine.std()) == pytest.approx(1, abs=1e-4)


def test_one_mean_for_all_players_leaves_each_its_own_offset() -> None:
    """The second is paid 3 more: the own mean takes that off, the common one does not."""
    paid = SeatScale("second", shift=3.0)
    (own, made), (_, common) = (
        step(NoisePasses(parts=2), "mars", reward=paid, **credit) for credit in ({}, {"credit": CommonCentred()})
    )
    plain, _ = step(Passes(), "mars", reward=paid)
    assert torch.equal(own, plain)  # what is measured is not learned
    assert max(abs(made.facts[f"adv_mean_{name}"]) for name in ("first", "second")) < 0.1
    assert common.facts["adv_mean_first"] < -0.5 and common.facts["adv_mean_second"] > 0.5
    assert 0 < made.facts["grad_variance"] < common.facts["grad_variance"] and made.facts["grad_norm_first"] > 0
    judged_K = common.batch.gather(common.batch.adv_N, "N", "K", "max")
    assert float(judged_K.mean()) == pytest.approx(0, abs=1e-6)
