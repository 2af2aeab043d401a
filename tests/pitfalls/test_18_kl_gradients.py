"""Pitfall 18: "KL k1 as loss (zero-mean gradient), k3 off-policy bias, KL without grad, clamps that kill the
gradient". Rule: "test gradient of each estimator against exact KL gradient".

One categorical distribution is enough to be exact: every expectation below is a sum over all tokens. If the bug
came back, a penalty would have no gradient, that of another divergence, or none just where the policy is farthest
away.
"""

from dataclasses import dataclass

import pytest
import torch
from small_runs import answer
from torch import Tensor

from gruppo.data import Batch
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.pieces.divergence import k1, k2, k3
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need

Z = torch.tensor([0.3, -1.0, 1.2, 0.1, -0.4], dtype=torch.float64)
REF = torch.log_softmax(torch.tensor([-0.5, 0.6, 0.2, 1.0, 0.0], dtype=torch.float64), -1)
ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum()


def expected(name: str, behaviour: Tensor | None = None) -> tuple[float, Tensor]:
    """E[k] and E[dk/dz] under the policy, or under another behaviour."""
    z = Z.clone().requires_grad_()
    log_p = torch.log_softmax(z, -1)
    weight = (log_p if behaviour is None else behaviour).detach().exp()
    value = (weight * ESTIMATORS[name](log_p, REF)).sum()
    return float(value.detach()), torch.autograd.grad(value, z)[0]


def exact(forward: bool) -> Tensor:
    z = Z.clone().requires_grad_()
    log_p = torch.log_softmax(z, -1)
    return torch.autograd.grad(kl(REF, log_p) if forward else kl(log_p, REF), z)[0]


def test_values() -> None:
    true = float(kl(torch.log_softmax(Z, -1), REF))
    assert expected("k1")[0] == pytest.approx(true) and expected("k3")[0] == pytest.approx(true)
    assert abs(expected("k2")[0] - true) > 0.01  # biased, as its docstring does not deny


def test_gradients_as_a_loss() -> None:
    """k1: none. k2: that of KL(π ‖ ref). k3: that of KL(ref ‖ π), which is not the same."""
    assert float(expected("k1")[1].norm()) < 1e-12
    assert torch.allclose(expected("k2")[1], exact(forward=False))
    assert torch.allclose(expected("k3")[1], exact(forward=True))
    assert float((exact(True) - exact(False)).norm()) > 0.05


def test_off_policy_every_estimator_is_biased_until_it_is_weighted() -> None:
    true = float(kl(torch.log_softmax(Z, -1), REF))
    behaviour = torch.log_softmax(torch.tensor([1.0, 0.0, -0.5, 0.5, 0.7], dtype=torch.float64), -1)
    for name in ("k1", "k3"):
        assert abs(expected(name, behaviour)[0] - true) > 0.01
    log_p = torch.log_softmax(Z, -1)
    weighted = (behaviour.exp() * (log_p - behaviour).exp() * k3(log_p, REF)).sum()
    assert float(weighted) == pytest.approx(true)


def test_far_below_the_reference_the_pull_does_not_end() -> None:
    """A token that the reference holds for impossible: log π_ref = −45. The clamp there would kill the gradient."""
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    far = torch.tensor([-45.0], dtype=torch.float64)
    assert float(torch.autograd.grad(k3(logp, far).sum(), logp)[0]) == pytest.approx(1.0)
    d = torch.clamp(far - logp, -20.0, 20.0)  # the bug
    assert float(torch.autograd.grad((d.exp() - d - 1).sum(), logp)[0]) == 0.0
    assert bool(torch.isfinite(k3(far * 20, logp)).all())  # the other side is bounded: exp would overflow


@dataclass(frozen=True)
class Penalty(Occupant):
    """A penalty by any estimator (`frozen`: the bug of a KL without gradient)."""

    estimator: str = "k3"
    frozen: bool = False

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", when="step"), need("logp", "ref"))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("kl_ref", batch.policy_N, "sequence", coef=0.04)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        logp_N = stop(stats.logp_N) if self.frozen else stats.logp_N
        return {"kl_ref": -ESTIMATORS[self.estimator](logp_N, batch.logp_ref_N)}


def test_the_reference_penalty_has_the_gradient_of_k3() -> None:
    """Equal rewards: what is left in the weights is the penalty's gradient."""
    episodes = [answer(i, 1.0) for i in range(4)]

    def gradient(**changes: object) -> Tensor:
        world = World(method("grpo").but(**changes), seed=8)
        return world.gradient(episodes)

    ours = gradient()
    assert float(ours.norm()) > 1e-6
    assert torch.allclose(ours, gradient(penalties=(Penalty(),)), rtol=1e-9, atol=1e-15)
    assert float(gradient(penalties=(Penalty(frozen=True),)).norm()) == 0.0
    assert float((ours - gradient(penalties=(Penalty("k2"),))).norm()) > 1e-6
