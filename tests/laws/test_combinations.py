"""Rooms of different methods, put together at random: what is not refused keeps every law that needs no claim."""

from typing import Any

import pytest
from furniture import CRITIC, FEW, MANY, SEEDS, combinations, furniture
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gruppo.lab.laws import verdict
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.stages import Context, Method, Role, kind
from gruppo.stages.check import check_first_batch, problems

ALWAYS = (
    "micro_batches", "shared_prefixes", "fused_is_two_pass", "order", "nan_mask", "failures", "unused", "extremes",
    "finite_differences", "keep_and_weight", "memory", "record",
)  # fmt: skip
PATIENT = {"suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow]}


def sensible(method: Method) -> bool:
    """Not refused, neither before the run nor at the first batch."""
    if problems(method, Context(), samples=4):
        return False
    world = World(method, 0)
    try:
        check_first_batch(method, world.prepared(world.packed(random_episodes(0))))
    except ValueError:
        return False
    return True


def _objectives(method: Method) -> tuple[Any, ...]:
    """Of every role: what a second model learns by fits nowhere else."""
    return tuple(o for chain in method.objectives.values() for o in chain)


def broken(method: Method, seed: int) -> dict[str, str]:
    return {law: said for law in ALWAYS if (said := verdict(law, method, seed))}


def told(method: Method) -> str:
    return "\n".join(f"{room}: {o}" for room, o in method.occupants())


@settings(FEW, max_examples=3, **PATIENT)  # 400 others with the slow test below
@given(method=combinations(), seed=SEEDS)
def test_a_combination_keeps_the_laws(method: Method, seed: int) -> None:
    assume(sensible(method))
    assert broken(method, seed) == {}, told(method)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
@settings(MANY, derandomize=False, max_examples=40, **PATIENT)
@given(method=combinations(), seed=SEEDS)
def test_a_combination_keeps_the_laws_many(part: int, method: Method, seed: int) -> None:
    assume(sensible(method))
    assert broken(method, seed) == {}, told(method)


@pytest.mark.parametrize("room", ["credit", "objective", "penalties", "select", "reward", "update"])
def test_every_occupant_is_in_some_sensible_combination(room: str) -> None:
    """What can never be combined would never be tested."""
    from gruppo.methods import all_methods
    from gruppo.methods import method as named
    from gruppo.stages.credit import Gae
    from gruppo.stages.objective import ClippedSurrogate, ValueLoss

    hosts = [named("grpo"), named("disco"), named("ppo"), named("ppo").but(credit=Gae(), cast=CRITIC)]
    hosts.append(named("ppo").but(objective={"policy": ClippedSurrogate(), "critic": ValueLoss()}))
    hosts += [named("dpo"), named("kto"), named("sft"), named("grpo").but(cast={"teacher": Role()})]
    hosts += all_methods().values()  # at least where it is at home
    for o in furniture(room):
        put = {"policy": ClippedSurrogate(), "critic": o} if isinstance(o, ValueLoss) else o
        home = any(o in (getattr(h, room), *_objectives(h)) and sensible(h) for h in hosts)
        assert home or any(sensible(h.but(**{room: put})) for h in hosts), kind(o)


@FEW
@given(data=st.data())
def test_a_refusal_and_an_accident_are_different_things(data: st.DataObject) -> None:
    """What the check lets pass never raises in the walk: a combination is refused early or works."""
    method = data.draw(combinations())
    assume(not problems(method, Context(), samples=4))
    world = World(method, 1)
    batch = world.prepared(world.packed(random_episodes(1)))
    for role in world.learner.trained:
        world.grad(batch, role)
    world.method.update(world.ctx, world.learner, batch)
