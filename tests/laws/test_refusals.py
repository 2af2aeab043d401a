"""Combinations that make no sense are refused before anything is trained, with a sentence that names the room, what
is missing there, and the remedy."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import planted
import pytest
import torch
from wrong_objectives import AnotherName, OneValueTooFew, OneValueTooMany, TwoOfOneName

from gruppo.data import Batch, Episode, Status, Use, pack, single_turn
from gruppo.lab.laws.desk import Desk
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.disco import Discriminate, RightAgainstWrong
from gruppo.methods.seele import HintRounds
from gruppo.stages import Context, Memory, Method, Need, Occupant, Prompt, Role, Term, need, note, setting
from gruppo.stages.check import check, check_first_batch, problems
from gruppo.stages.credit import Gae, GroupNormalised
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient, ValueLoss
from gruppo.stages.play import episode_of, episode_uid
from gruppo.stages.requires import OfBatch
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

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return []


@dataclass(frozen=True)
class ExpertGuide(Occupant):
    """Prompting that puts tokens of an expert into the context."""

    writes = ("expert",)


@dataclass(frozen=True)
class OwnCorrection(Occupant):
    """A selection that corrects the sampler itself."""

    refuses = ("truncated_importance",)


@dataclass(frozen=True)
class HeldBack(ClippedSurrogate):
    """An objective that reads a note."""

    reads = ("adv_N", note("held"))


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
    "a note nobody writes": (GRPO.but(objective=HeldBack()), 4, "objective", "note_held_E"),
    "hints without a prompt that gives them": (
        GRPO.but(rollout=HintRounds()),
        4,
        "rollout",
        "hint_in_message in prompting",
    ),
    "an objective behind another that gets nothing": (
        GRPO.but(objective=(*GRPO.objective, Discriminate())),
        4,
        "objective",
        "right_N",
    ),
}


@pytest.mark.parametrize("case", SENSELESS)
def test_refused_before_the_run(case: str) -> None:
    method, samples, room, missing = SENSELESS[case]
    said = problems(method, Context(), samples=samples)
    fitting = [s for s in said if room in s and missing in s and REMEDY.search(s) and method.name in s]
    assert fitting, said
    with pytest.raises(ValueError, match=re.escape(fitting[0])):
        check(method, Context(), samples=samples)


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
    with pytest.raises(ValueError, match=r"right_against_wrong in credit requires binary_reward.*\. Use "):
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
        with pytest.raises(ValueError, match=r"right is above 0 and wrong is not.*Use a task or a reward of 0 and 1"):
            check_first_batch(DISCO, batch)


def test_one_group_where_groups_are_compared() -> None:
    def one_group(batch: Batch) -> str:
        return "" if batch.size("G") > 1 else "there is one group. Use more prompts"

    @dataclass(frozen=True)
    class BetweenGroups(GroupNormalised):
        requires = (*GroupNormalised.requires, OfBatch("several_groups", one_group))

    m = GRPO.but(credit=BetweenGroups())
    with pytest.raises(ValueError, match=r"between_groups in credit requires several_groups.*Use more prompts\.$"):
        check_first_batch(m, first_batch(m, lambda e: replace(e, group="g")))
    check_first_batch(m, first_batch(m))


def test_nothing_judged() -> None:
    batch = first_batch(REINFORCE, lambda e: replace(e, status=Status.ENV_ERROR))
    with pytest.raises(ValueError, match=r"no episode of the first batch was judged.*Look at"):
        check_first_batch(REINFORCE, batch)


def test_nothing_to_learn_from() -> None:
    for batch in (
        first_batch(REINFORCE).with_columns(use_E=torch.full_like(first_batch(REINFORCE).use_E, int(Use.BASELINE))),
        first_batch(REINFORCE).with_columns(keep_N=torch.zeros(first_batch(REINFORCE).size("N"), dtype=torch.bool)),
    ):
        with pytest.raises(ValueError, match=r"no token to learn from: every mask is empty. Look at"):
            check_first_batch(REINFORCE, batch)


def test_equal_rewards_are_a_warning_only() -> None:
    [said] = check_first_batch(REINFORCE, first_batch(REINFORCE, lambda e: replace(e, reward={"task": 1.0})))
    assert "every reward of the first batch is 1" in said


def test_something_that_is_no_occupant() -> None:
    with pytest.raises(ValueError, match=r"room credit holds .* (no|not an) occupant.*Write a @dataclass"):
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
    world = World(GRPO.but(objective=ClippedSurrogate(mean="tokens")), 0)
    with pytest.raises(ValueError, match=r"mean='tokens' is no way to average. Use one of"):
        world.gradient(random_episodes(0))
    with pytest.raises(ValueError, match=r"mean=0.0 is out of range: use a number > 0"):
        ClippedSurrogate(mean=0.0)
    unbounded = World(GRPO.but(objective=AnyMean(mean=0.0)), 0)  # of somebody's own, without bounds in its field
    with pytest.raises(ValueError, match=r"mean=0.0.*above 0"):
        unbounded.gradient(random_episodes(0))


@dataclass(frozen=True)
class AnyMean(ClippedSurrogate):
    mean: Any = "token"


def test_a_step_of_baselines_makes_no_batch() -> None:
    """Nothing is packed where nothing could be learned: a step of the trainer goes on without an update."""
    world = World(REINFORCE, 0)
    asleep = [replace(e, use=Use.BASELINE if i % 2 else Use.NONE) for i, e in enumerate(random_episodes(0))]
    assert world.walk.batch_of(world.ctx, asleep, asleep) is None
    assert world.walk.batch_of(world.ctx, [], []) is None


# terms that are declared, and values that are given


def refused(m: Method) -> str:
    with pytest.raises(ValueError) as error:
        World(m, 0).gradient(random_episodes(0))
    return str(error.value)


def test_two_terms_of_one_name() -> None:
    twice = (*GRPO.objective, PolicyGradient())
    for m in (planted.spoiled(objective=TwoOfOneName()), GRPO.but(objective=twice)):
        said = refused(m)
        assert f"{m.name}: two terms of policy are called 'policy'" in said and REMEDY.search(said), said


def test_a_penalty_may_not_have_the_name_of_an_objective() -> None:
    @dataclass(frozen=True)
    class AlsoPolicy(PolicyGradient):
        """An objective in the room of penalties."""

    assert "two terms of policy are called 'policy'" in refused(GRPO.but(penalties=(AlsoPolicy(),)))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (AnotherName(), "another_name declares the terms policy and gives values for policies"),
        (OneValueTooMany(), "one_value_too_many declares the terms policy"),
        (
            OneValueTooFew(),
            "one_value_too_few declares the terms policy, bonus and gives values for policy",
        ),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_values_that_are_not_those_declared(mistake: Occupant, words: str, behind: bool) -> None:
    """Whatever stands behind it in the chain or in penalties: who is wrong is named."""
    said = refused(planted.spoiled(objective=mistake, penalties=GRPO.penalties if behind else ()))
    assert words in said and "Use the same names" in said, said


def test_fields_outside_their_bounds_are_refused_before_they_are_used() -> None:
    @dataclass(frozen=True)
    class InSteps(GroupNormalised):
        step: float = setting(0.1, above=0)

        def wrong(self) -> str:
            return "" if 1 / self.step < 1000 else "too many steps. Use a larger one."

    with pytest.raises(ValueError, match=r"step=0.0 is out of range: use a number > 0"):
        InSteps(step=0.0)
    with pytest.raises(ValueError, match=r"too many steps"):
        InSteps(step=1e-4)


# episodes that no ask has made


@dataclass(frozen=True)
class ByHand(Occupant):
    """A rollout that makes its episodes without ctx.play; with an ask if `asked`."""

    asked: bool = False

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        ids, logp = np.array([3, 4]), np.full(2, -1.0, np.float32)
        uids = [episode_uid(ctx, p, i, 0) for i, p in enumerate(prompts)]
        if self.asked:
            return [episode_of(ctx, p, uid, ids, logp, 0) for p, uid in zip(prompts, uids, strict=True)]
        return [
            single_turn(uid, p.ask.task.uid, p.group, p.ids, ids, logp, 0) for p, uid in zip(prompts, uids, strict=True)
        ]


def test_episodes_without_an_ask_cannot_be_scored() -> None:
    for asked in (False, True):
        world = World(GRPO.but(rollout=ByHand(asked)), 0)
        desk = Desk(world)
        draw = world.walk.drawn(desk.ctx, desk.prompts(()), world.method.rollout)
        if asked:
            assert all("task" in e.reward and e.ask is not None for e in asyncio.run(draw))
        else:
            with pytest.raises(ValueError, match=r"task 't-g0' of an episode is not in the training set.*ctx\.play"):
                asyncio.run(draw)


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
