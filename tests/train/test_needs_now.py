"""What is read from models at every optimiser step, and where: other roles, before and after turns, several outputs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import Batch, Growing, Status, pack
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import method
from gruppo.methods.ppo import PPO
from gruppo.policies import Critic
from gruppo.stages import ByUpdate, Context, Ema, Method, Need, Occupant, Role, Stats, Term, Values, need
from gruppo.stages.check import problems
from gruppo.stages.goal import Goal
from gruppo.stages.objective import NOW, PolicyGradient
from gruppo.stages.record import record_hash
from gruppo.train.cast import build_cast
from gruppo.train.forward import serve

MINE, SLOW = need("value", "critic", when="step"), need("value", "target", when="step")
AFTER = need("value", "critic", at="K", side="after")


@dataclass(frozen=True)
class FollowTheTarget(Occupant):
    """−(V − V of the target)²: a critic that learns from another one, read at every optimiser step."""

    additive: bool = True

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (MINE, SLOW)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("value", batch.policy_N, additive=self.additive)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"value": -((stats.value_N - stats.value_target_N) ** 2)}


def following(additive: bool = True, **target: Any) -> Method:
    return PPO.but(
        name="following",
        objective={"policy": PolicyGradient(), "critic": FollowTheTarget(additive)},
        cast={"target": Role(start="critic", as_="head", refresh=ByUpdate(), **target)},
    )


def ready(world: World) -> Batch:
    return world.prepared(world.packed(random_episodes(0)))


# another role at every optimiser step


def test_another_role_has_its_full_name() -> None:
    goal = Goal(following(), Context(), "critic")
    assert goal.needs() == [MINE] and goal.others() == [replace(SLOW, when="batch")]
    assert [n.column for n in (*goal.needs(), *goal.others())] == ["value_N", "value_target_N"]
    assert Goal(following(), Context()).others() == []


@pytest.mark.parametrize("additive", [True, False])
def test_another_role_is_read_as_it_is_now_and_without_gradient(additive: bool) -> None:
    """By hand: dJ/dθ = −2 mean (V − V') dV/dθ, in one pass and in two, and again after the target has moved."""
    world = World(following(additive), 0)
    batch, critic = ready(world), world.models["critic"]
    for _ in range(2):
        value_N, slow_N = (serve(world.models[r], batch, [replace(MINE, role=r)], grad=True)["value_N"] for r in
                           ("critic", "target"))  # fmt: skip
        mine = batch.policy_N
        (((value_N - slow_N.detach()) ** 2)[mine].sum() / mine.sum()).backward()
        want = torch.cat([p.grad.flatten() for p in critic.parameters()])
        critic.zero_grad(set_to_none=True)
        assert far(want, world.grad(batch, "critic", random_cut(batch, 1))) < 1e-12
        assert all(p.grad is None for p in world.models["target"].parameters())
        world.learner.copy("critic", "target", tau=0.5)
    world.learner.copy("critic", "target")
    assert float(world.grad(batch, "critic").norm()) == 0.0  # they agree, so there is nothing to learn


def test_another_role_that_cannot_be_read_is_refused() -> None:
    said = problems(following().but(objective={"policy": Asks("old")}), Context(), samples=4)
    assert any("logp@old at every optimiser step, but old is the policy at the start of the step" in s for s in said)
    said = problems(following().but(credit=Credits()), Context(), samples=4)
    assert any("value@target at every optimiser step, but credit works once a batch" in s for s in said)
    assert problems(following(), Context(), samples=4) == []


@dataclass(frozen=True)
class Asks(PolicyGradient):
    role: str = "old"

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("logp", self.role, when="step"))


@dataclass(frozen=True)
class Credits(Occupant):
    writes = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (SLOW,)


def test_a_role_that_an_update_moves_must_say_so() -> None:
    world = World(PPO, 0)
    with pytest.raises(ValueError, match=r"role 'ref' keeps its weights, so no checkpoint .*ByUpdate"):
        world.learner.copy("policy", "ref")
    moving = PPO.but(name="moving", cast={"ref": Role(refresh=Ema(tau=0.5))})
    World(moving, 0).learner.copy("policy", "ref")


# before and after


def dialogue(*turns: tuple[int, int], uid: int = 1) -> Any:
    """Turns of (tokens seen, tokens said) in one context."""
    rng, made = np.random.default_rng(uid), Growing(uid, "t", "g")
    made.begin(np.array([1, 2]))
    for seen, said in turns:
        made.observe(rng.integers(3, 12, seen))
        made.act(rng.integers(3, 12, said), np.full(said, -1.0, np.float32), 0)
    return made.finish(Status.OK, reward={"task": 1.0})


@pytest.fixture
def critic() -> Critic:
    return World(PPO, 0).models["critic"]


def test_values_before_and_after_turns(critic: Critic) -> None:
    """By positions: 1 2 | seen 2, said 3 | seen 1, said 1. Before a turn is the token before its first; after it, its
    last one. What was seen lies between the end of a turn and the beginning of the next."""
    batch = pack([dialogue((2, 3), (1, 1))], dtype=torch.float64)
    value = need("value", "critic")
    needs = [value, replace(value, at="M"), replace(value, side="after"), AFTER, replace(AFTER, side="before")]
    read = serve(critic, batch, needs)
    every = read["value_critic_M"]
    torch.testing.assert_close(read["value_critic_K"], every[[3, 7]])
    torch.testing.assert_close(read["value_critic_after_K"], every[[6, 8]])
    torch.testing.assert_close(read["value_critic_after_N"], every[[4, 5, 6, 8]])
    torch.testing.assert_close(read["value_critic_N"], every[[3, 4, 5, 7]])


def test_after_is_read_once_a_batch_and_at_every_step(critic: Critic) -> None:
    world = World(method("ppo"), 0)
    batch = ready(world)
    for n in (AFTER, need("value", "critic", side="after")):
        once, now = world.read("critic", batch, [n]), serve(world.before["critic"], batch, [replace(n, when="step")])
        assert torch.equal(once[n.column], now[n.column.replace("_critic", "")])
    by_parts: dict[str, Tensor] = {}
    for rows in random_cut(batch, 2):
        micro = batch.micro(rows)
        part = serve(critic, micro, [AFTER])["value_critic_after_K"]
        by_parts.setdefault("x", torch.zeros(batch.size("K"), dtype=torch.float64))[micro.row_K] = part
    torch.testing.assert_close(by_parts["x"], serve(critic, batch, [AFTER])["value_critic_after_K"])


def test_a_turn_without_tokens_has_no_value(critic: Critic) -> None:
    both = [AFTER, replace(AFTER, side="before")]
    read = serve(critic, pack([dialogue((1, 2), (1, 0), (1, 1))], dtype=torch.float64), both)
    assert [bool(x) for x in read["value_critic_after_K"]] == [bool(x) for x in read["value_critic_K"]] == [1, 0, 1]
    silent = serve(critic, pack([dialogue((1, 0))], dtype=torch.float64), both)
    assert all(x.tolist() == [0.0] for x in silent.values())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: need("logp", side="after"), "only values are read after a token"),
        (lambda: need("value", "critic", at="M", side="after"), "only values are read after a token"),
        (lambda: need("value", "critic", side="afterr"), "no such side.*'after'"),  # type: ignore[arg-type]
    ],
)
def test_sides_that_make_no_sense_are_refused(made: Callable[[], Need], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made()


def test_names_of_sides() -> None:
    assert (str(AFTER), AFTER.column) == ("value@critic after", "value_critic_after_K")
    assert replace(AFTER, when="step").column == "value_after_K"
    assert str(need("value", "critic")) == "value@critic"  # as before


# several outputs

TWO = {"critic": Role(as_="head", train=True, outputs=3), "target": Role(start="critic", as_="head", outputs=3)}


def models_of(cast: dict[str, Role], seed: int = 0) -> dict[str, Any]:
    m = following().but(cast=cast)
    return build_cast(m, World(PPO, 0).models["policy"], Context(seed=seed))


def test_several_outputs_are_columns_with_a_width() -> None:
    models, batch = models_of(TWO), pack([dialogue((2, 3), (1, 1))], dtype=torch.float64)
    read = serve(models["critic"], batch, [need("value", "critic"), AFTER])
    assert read["value_critic_N"].shape == (4, 3) and read["value_critic_after_K"].shape == (2, 3)
    by_hand = models["critic"].head(models["critic"](batch.inputs)[0])
    torch.testing.assert_close(read["value_critic_after_K"], by_hand[[6, 8]].detach())
    joined = batch.with_columns(**read)
    assert torch.equal(joined.micro(torch.tensor([0])).value_critic_N, read["value_critic_N"])


def test_several_outputs_begin_small_and_apart() -> None:
    """Equal ones with equal targets would stay equal for ever. The same seed gives the same, another seed others."""
    weight = models_of(TWO)["critic"].value.weight.detach()
    assert len({tuple(row.tolist()) for row in weight}) == 3 and 0 < float(weight.abs().max()) < 0.2
    assert torch.equal(weight, models_of(TWO)["critic"].value.weight)
    assert not torch.equal(weight, models_of(TWO, seed=1)["critic"].value.weight)
    assert torch.equal(weight, models_of(TWO)["target"].value.weight)  # a copy
    assert not models_of({"critic": Role(as_="head", train=True), "target": Role(start="critic", as_="head")})[
        "critic"
    ].value.weight.any()  # as before: one output begins at 0


def test_outputs_that_make_no_sense_are_refused() -> None:
    [said] = problems(PPO.but(cast={"ref": Role(outputs=2)}), Context(), samples=4)
    assert "role 'ref' has outputs=2, and a language model has one for each token" in said
    with pytest.raises(ValueError, match="'target' has outputs=1 and starts as a copy of 'critic', which has 3"):
        models_of({"critic": TWO["critic"], "target": Role(start="critic", as_="head")})


def test_one_output_changes_no_record() -> None:
    assert record_hash(PPO.but(cast={"critic": Role(as_="head", train=True, outputs=1)})) == record_hash(PPO)
    assert record_hash(PPO.but(cast={"critic": TWO["critic"]})) != record_hash(PPO)
