"""Combinations that make no sense are refused before anything is trained, with a sentence that names the room, what
is missing there, and the remedy."""

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from gruppo.data import Batch, Episode, Status, Use, pack
from gruppo.lab.laws.world import World, random_episodes
from gruppo.methods import method
from gruppo.methods.disco import Discriminate, RightAgainstWrong
from gruppo.stages import Context, Memory, Method, Need, Occupant, Role, need
from gruppo.stages.check import check, check_first_batch, problems
from gruppo.stages.credit import Gae, GroupNormalised
from gruppo.stages.objective import ClippedSurrogate, ValueLoss
from gruppo.stages.reward import OverlongShaping
from gruppo.stages.select import RedrawEqualGroups, TopEntropy, TruncatedImportance

REMEDY = re.compile(r"\b(Use|Add|Choose|Give|Keep|Write|Look|Views|Take|Rename)\b")
GRPO, REINFORCE, PPO, DISCO = (method(n) for n in ("grpo", "reinforce", "ppo", "disco"))


@dataclass(frozen=True)
class Wants(Occupant):
    """A penalty that wants to know something."""

    readout: str = "logp"
    role: str = "ref"
    view: str = "as_trained"

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need(self.readout, self.role, view=self.view),)


@dataclass(frozen=True)
class ExpertGuide(Occupant):
    """Prompting that puts tokens of an expert into the context."""

    makes = frozenset({"expert"})


@dataclass(frozen=True)
class OwnCorrection(Occupant):
    """A selection that corrects the sampler itself."""

    current = False
    conflicts = ("truncated_importance",)


@dataclass(frozen=True)
class Steered(Occupant):
    """A rollout that steers the sampler."""

    capabilities = frozenset({"steer"})


# name: (method, samples, room, what is missing)
SENSELESS: dict[str, tuple[Method, int, str, str]] = {
    "one sample, compared": (GRPO, 1, "credit", "samples=1"),
    "one sample, redrawn for ever": (REINFORCE.but(select=RedrawEqualGroups()), 1, "select", "samples=1"),
    "gae without a critic": (GRPO.but(credit=Gae()), 4, "credit", "value@critic"),
    "a critic's objective without a critic": (
        GRPO.but(objective={"policy": ClippedSurrogate(), "critic": ValueLoss()}),
        4,
        "objective",
        "'critic'",
    ),
    "a critic that is not trained": (PPO.but(cast={"critic": Role(as_="head")}), 4, "objective", "not trained"),
    "values of a language model": (GRPO.but(penalties=(Wants("value", "ref"),)), 4, "penalties", "value@ref"),
    "tokens of a critic": (PPO.but(penalties=(Wants("logp", "critic"),)), 4, "penalties", "logp@critic"),
    "a role nobody plays": (GRPO.but(penalties=(Wants("logp", "reff"),)), 4, "penalties", "logp@reff"),
    "a teacher nobody gave": (method("kdrl"), 4, "penalties", "logp@teacher"),
    "a view nobody makes": (
        GRPO.but(penalties=(Wants("logp", "ref", "without_hint"),)),
        4,
        "penalties",
        "without_hint",
    ),
    "a discriminator that gets advantages": (GRPO.but(objective=Discriminate()), 4, "objective", "right_N"),
    "a surrogate that gets right and wrong": (GRPO.but(credit=RightAgainstWrong()), 4, "objective", "adv_N"),
    "a critic without returns": (PPO.but(credit=GroupNormalised()), 4, "objective", "ret_N"),
    "expert tokens that nobody minds": (GRPO.but(prompting=ExpertGuide()), 4, "prompting", "expert"),
    "corrected twice": (GRPO.but(select=(OwnCorrection(), TruncatedImportance())), 4, "select", "truncated_importance"),
    "an engine that cannot": (GRPO.but(rollout=Steered()), 4, "rollout", "'steer'"),
}


@pytest.mark.parametrize("case", SENSELESS)
def test_refused_before_the_run(case: str) -> None:
    method, samples, room, missing = SENSELESS[case]
    said = problems(method, Context(), samples=samples, can=frozenset({"score"}))
    fitting = [s for s in said if room in s and missing in s and REMEDY.search(s) and method.name in s]
    assert fitting, said
    with pytest.raises(ValueError, match=re.escape(fitting[0])):
        check(method, Context(), samples=samples, can=frozenset({"score"}))


def test_the_nearest_name_is_offered() -> None:
    [said] = problems(SENSELESS["a role nobody plays"][0], Context(), samples=4)
    assert "nearest: ref" in said
    [said] = problems(SENSELESS["a view nobody makes"][0], Context(), samples=4)
    assert "nearest: without_hints" in said


def test_sensible_ones_are_not_refused() -> None:
    for m in (
        GRPO,
        REINFORCE,
        PPO,
        DISCO,
        GRPO.but(select=TopEntropy()),
        PPO.but(penalties=(Wants("value", "critic"),)),
    ):
        assert problems(m, Context(), samples=2) == []
    assert problems(REINFORCE, Context(), samples=1) == []
    assert problems(PPO, Context(), samples=1) == []


# at the first batch, before the first update


def first_batch(m: Method, change: Any = lambda e: e, **columns: Any) -> Batch:
    world = World(m, 0)
    batch = world.packed([change(e) for e in random_episodes(0)])
    return world.prepared(batch.with_columns(**columns))


def test_many_rewards_where_right_or_wrong_is_wanted() -> None:
    shaped = DISCO.but(reward=OverlongShaping(budget_tokens=8, buffer_tokens=6))
    with pytest.raises(ValueError, match=r"right_against_wrong in credit expects binary_reward.*\. Use "):
        check_first_batch(shaped, first_batch(shaped))
    check_first_batch(DISCO, first_batch(DISCO))


@pytest.mark.parametrize(
    ("wrong", "right", "sense"), [(0.0, 1.0, True), (-1.0, 1.0, True), (0.5, 1.0, False), (-1.0, 0.0, False)]
)
def test_two_rewards_that_are_no_right_and_wrong(wrong: float, right: float, sense: bool) -> None:
    def change(e: Episode) -> Episode:
        return replace(e, reward={"task": right if e.reward.get("task") else wrong})

    batch = first_batch(DISCO, change)
    if sense:
        check_first_batch(DISCO, batch)
    else:
        with pytest.raises(ValueError, match=r"right is above 0 and wrong is not.*Use a task or reward of 0 and 1"):
            check_first_batch(DISCO, batch)


def test_one_group_where_groups_are_compared() -> None:
    @dataclass(frozen=True)
    class BetweenGroups(GroupNormalised):
        expects = ("several_groups",)

    m = GRPO.but(credit=BetweenGroups())
    with pytest.raises(ValueError, match=r"between_groups in credit expects several_groups.*Use more prompts"):
        check_first_batch(m, first_batch(m, lambda e: replace(e, group="g")))
    check_first_batch(m, first_batch(m))


def test_nothing_judged() -> None:
    batch = first_batch(REINFORCE, lambda e: replace(e, status=Status.ENV_ERROR))
    with pytest.raises(ValueError, match=r"no episode of the first batch was judged.*Look at"):
        check_first_batch(REINFORCE, batch)


def test_nothing_to_learn_from() -> None:
    for batch in (
        first_batch(REINFORCE, lambda e: replace(e, use=Use.BASELINE)),
        first_batch(REINFORCE).with_columns(keep_N=torch.zeros(first_batch(REINFORCE).size("N"), dtype=torch.bool)),
    ):
        with pytest.raises(ValueError, match=r"no token to learn from: every mask is empty. Look at"):
            check_first_batch(REINFORCE, batch)


def test_equal_rewards_are_a_warning_only() -> None:
    [said] = check_first_batch(REINFORCE, first_batch(REINFORCE, lambda e: replace(e, reward={"task": 1.0})))
    assert "every reward of the first batch is 1" in said


def test_something_that_is_no_occupant() -> None:
    with pytest.raises(ValueError, match=r"room credit holds .* no occupant.*Write a @dataclass"):
        GRPO.but(credit=lambda ctx, batch: {})


def test_two_writers_of_one_component() -> None:
    @dataclass(frozen=True)
    class TaskAgain(Occupant):
        def __call__(self, ctx: Context, episodes: Any) -> dict[str, Any]:
            return {"task": [0.0] * len(episodes)}

    with pytest.raises(ValueError, match=r"'task' is written by two occupants.*Rename"):
        World(GRPO.but(reward=TaskAgain()), 0).packed(random_episodes(0))


def test_a_component_that_slips() -> None:
    @dataclass(frozen=True)
    class OneTooFew(Occupant):
        def __call__(self, ctx: Context, episodes: Any) -> dict[str, Any]:
            return {"form": [0.0] * (len(episodes) - 1)}

    with pytest.raises(ValueError, match=r"'form' has \d+ values for \d+ episodes.*Return one value per episode"):
        World(GRPO.but(reward=OneTooFew()), 0).packed(random_episodes(0))


def test_a_way_to_average_that_is_none() -> None:
    for mean, said in (("tokens", r"mean='tokens' is no way to average. Use one of"), (0.0, r"mean=0.0.*above 0")):
        world = World(GRPO.but(objective=ClippedSurrogate(mean=mean)), 0)
        with pytest.raises(ValueError, match=said):
            world.gradient(random_episodes(0))


def test_pack_makes_no_batch_of_one_uid_twice() -> None:
    episodes = random_episodes(0)
    with pytest.raises(ValueError, match=r"appears twice.*Give each its own"):
        pack([*episodes, episodes[0]])


WAYS = {
    "set": lambda m: m.__setitem__("a", 1),
    "delete": lambda m: m.__delitem__("there"),
    "update": lambda m: m.update(a=1),
    "setdefault": lambda m: m.setdefault("a", 1),
    "pop": lambda m: m.pop("there"),
    "popitem": lambda m: m.popitem(),
    "clear": lambda m: m.clear(),
    "or": lambda m: m.__ior__({"a": 1}),
}


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_written_in_observe_only(way: str) -> None:
    memory = Memory({"there": 0})
    with pytest.raises(ValueError, match=r"written outside observe\(\).*write it in observe"):
        WAYS[way](memory)
    assert memory == {"there": 0}
    with memory.writing() as state:
        WAYS[way](state)
    assert memory != {"there": 0} and isinstance(memory, Memory)
