"""What occupants require: said before the run or at the first batch, with the room, the consequence and a remedy."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.data import Batch, Status, Use, pack, single_turn
from gruppo.methods import all_methods, method
from gruppo.stages import Context, Method, Occupant, Term
from gruppo.stages.check import check, check_first_batch, least_samples, problems
from gruppo.stages.credit import COMPARES, GroupNormalised, LeaveOneOut, RunningBaseline
from gruppo.stages.objective import PolicyGradient
from gruppo.stages.requires import (
    BASELINE_EPISODES,
    BINARY_REWARD,
    PAIRS,
    InRoom,
    OfBatch,
    RecurringTasks,
    Requirement,
    Samples,
)

GRPO = method("grpo")


def plain(**rooms: Any) -> Method:
    return Method(**{"name": "m", "credit": RunningBaseline(), "objective": PolicyGradient(), **rooms})


def batch(*rewards: float, **fields: Any) -> Batch:
    made = [
        single_turn(i, "t", f"g{i % 2}", np.array([1, 3]), np.array([4, 5]), np.full(2, -1.0), 0, reward={"task": r})
        for i, r in enumerate(rewards)
    ]
    return pack([replace(e, **fields) for e in made], dtype=torch.float64)


@dataclass(frozen=True)
class Needy(Occupant):
    requires = (Samples(4, "Four is a quartet."),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Any]:
        return {}


# samples


@pytest.mark.parametrize(("samples", "fine"), [(1, False), (2, True), (8, True)])
def test_so_many_samples_of_a_prompt(samples: int, fine: bool) -> None:
    said = Samples(2, "Why so.").before(GRPO, "credit", "group_normalised", samples)
    wanted = (
        f"samples={samples}: grpo has group_normalised in credit. Why so. Use samples >= 2, or a method without "
        "groups such as method=reinforce."
    )
    assert said == ("" if fine else wanted)


def test_the_usual_reason_is_that_samples_are_compared() -> None:
    assert Samples() == COMPARES and COMPARES.least == 2
    assert COMPARES.why == "It compares the samples of one prompt, so a single sample has no advantage."
    [said] = problems(GRPO, Context(), samples=1)
    assert said == f"samples=1: grpo has group_normalised in credit. {COMPARES.why} Use samples >= 2, or a method " \
                   "without groups such as method=reinforce."  # fmt: skip
    with pytest.raises(ValueError, match="samples=1: grpo has group_normalised"):
        check(GRPO, Context(), samples=1)
    check(GRPO, Context(), samples=2)


def test_the_fewest_samples_that_a_method_can_learn_from() -> None:
    assert least_samples(plain()) == 1 and least_samples(GRPO) == 2
    assert least_samples(GRPO.but(reward=Needy())) == 4  # the most that any room wants
    assert least_samples(plain(credit=LeaveOneOut())) == 2
    for m in all_methods().values():
        said = problems(m, Context(), samples=least_samples(m))
        assert not [s for s in said if s.startswith("samples=")], m.name
        if least_samples(m) > 1:
            assert [s for s in problems(m, Context(), samples=least_samples(m) - 1) if s.startswith("samples=")], m.name


# other rooms


@dataclass(frozen=True)
class Half(Occupant):
    requires = (InRoom("replay", ("open_pool", "recent")),)

    async def __call__(self, ctx: Context, prompts: Any) -> list[Any]:
        return []


@dataclass(frozen=True)
class Adds(Occupant):
    requires = (InRoom("penalties", ("entropy_bonus",)),)


def test_the_other_half_of_a_mechanism() -> None:
    from gruppo.stages.penalties import EntropyBonus, ReferenceKL
    from gruppo.stages.replay import Recent

    @dataclass(frozen=True)
    class Younger(Recent):
        """A class derived from a half is one."""

    [said] = problems(plain(rollout=Half()), Context(), samples=2)
    assert said == (
        "m: half in rollout requires open_pool or recent in replay, which has forget: it would not do what it says. "
        "Use method.replay=open_pool, or another rollout."
    )
    assert problems(plain(rollout=Half(), replay=Recent()), Context(), samples=2) == []
    assert problems(plain(rollout=Half(), replay=Younger()), Context(), samples=2) == []
    [said] = problems(plain(reward=Adds(), penalties=ReferenceKL()), Context(), samples=2)
    assert "requires entropy_bonus in penalties, which has reference_kl:" in said
    assert "Use method.penalties+=entropy_bonus, or another reward." in said
    [said] = problems(plain(reward=Adds()), Context(), samples=2)
    assert "in penalties, which has nothing:" in said
    assert problems(plain(reward=Adds(), penalties=(ReferenceKL(), EntropyBonus())), Context(), samples=2) == []


# the first batch


@dataclass(frozen=True)
class Right(Occupant):
    requires = (BINARY_REWARD,)
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("rewards", [(0.0, 1.0, 1.0), (1.0, 1.0), (0.0, 0.0), (-1.0, 1.0), (-0.5, 0.25), (0.7,)])
def test_a_reward_of_right_and_wrong(rewards: tuple[float, ...]) -> None:
    assert BINARY_REWARD.at_first_batch(batch(*rewards)) == ""
    check_first_batch(plain(credit=Right()), batch(*rewards))


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        (
            (0.0, 0.5, 1.0),
            "rewards have 3 different values, and it takes right or wrong. Use a task or a reward with two values.",
        ),
        (
            (1.0, 2.0),
            "rewards are 1 and 2, but right is above 0 and wrong is not: all would be the same. Use a task or a reward "
            "of 0 and 1.",
        ),
        (
            (-2.0, -0.5),
            "rewards are -2 and -0.5, but right is above 0 and wrong is not: all would be the same. Use a task or a "
            "reward of 0 and 1.",
        ),
    ],
)
def test_a_reward_of_more_is_refused_with_a_sentence(rewards: tuple[float, ...], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_first_batch(plain(credit=Right()), batch(*rewards))
    assert str(caught.value) == f"m: right in credit requires binary_reward: {says}"


def test_what_was_not_judged_has_no_reward_that_counts() -> None:
    odd = batch(0.0, 1.0, 0.5)
    status = torch.tensor([Status.OK, Status.OK, Status.TIMEOUT]).to(odd.status_E.dtype)
    assert BINARY_REWARD.at_first_batch(odd.with_columns(status_E=status)) == ""


def test_requirements_have_names_and_say_nothing_where_nothing_is_to_be_said() -> None:
    assert [r.called for r in (BINARY_REWARD, PAIRS, BASELINE_EPISODES)] == [
        "binary_reward",
        "pairs",
        "baseline_episodes",
    ]
    for r in (Requirement(), RecurringTasks(), Samples(), InRoom("replay", ("recent",))):
        assert r.at_first_batch(batch(1.0)) == ""
    for r in (Requirement(), RecurringTasks(), BINARY_REWARD):
        assert r.before(GRPO, "credit", "x", 1) == ""
    assert RecurringTasks() == RecurringTasks() and RecurringTasks() in (RecurringTasks(),)


def test_a_requirement_of_ones_own() -> None:
    """Any predicate of the first batch; it is named in the refusal."""

    @dataclass(frozen=True)
    class Picky(Occupant):
        requires = (OfBatch("company", lambda b: "" if b.size("E") > 2 else f"{b.size('E')} is no company"),)

    m = plain(reward=Picky())
    check_first_batch(m, batch(0.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=r"^m: picky in reward requires company: 2 is no company\.$"):
        check_first_batch(m, batch(0.0, 1.0))


@dataclass(frozen=True)
class Unfit(Occupant):
    def unfit(self, batch: Batch) -> str:
        return "" if batch.size("E") > 2 else "too few, use more"


def test_an_occupant_may_refuse_a_batch_itself() -> None:
    check_first_batch(plain(reward=Unfit()), batch(0.0, 1.0, 1.0))
    with pytest.raises(
        ValueError, match=r"^m: unfit in reward cannot learn from the first batch: too few, use more\.$"
    ):
        check_first_batch(plain(reward=Unfit()), batch(0.0, 1.0))


def test_baselines_must_be_there_and_judged() -> None:
    assert "no episode is one" in BASELINE_EPISODES.at_first_batch(batch(1.0, 0.0))
    assert BASELINE_EPISODES.at_first_batch(batch(1.0, use=Use.BASELINE)) == ""
    assert "none was judged" in BASELINE_EPISODES.at_first_batch(batch(1.0, use=Use.BASELINE, status=Status.TIMEOUT))


# what does not go together


@dataclass(frozen=True)
class Refuses(Occupant):
    refuses = ("group_normalised",)


def test_kinds_that_may_not_stand_in_the_same_method() -> None:
    [said] = problems(GRPO.but(reward=Refuses()), Context(), samples=2)
    assert said == (
        "grpo: refuses in reward and group_normalised in credit conflict: the one undoes or doubles the other. Keep "
        "one: method.reward-=refuses or method.credit-=group_normalised."
    )
    assert problems(plain(reward=Refuses()), Context(), samples=2) == []


@dataclass(frozen=True)
class Column(Occupant):
    reads = ("adv_M", "note_exit_E")

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return []


@dataclass(frozen=True)
class Writes(Occupant):
    writes = ("note_exit_E",)


@dataclass(frozen=True)
class Undeclared(Occupant):
    """As penalties were written before terms were declared."""


def test_who_is_maximised_declares_terms() -> None:
    [said] = problems(plain(penalties=Undeclared()), Context(), samples=2)
    assert said.startswith("m: undeclared in penalties has no method terms(ctx, batch)")


def test_what_is_read_must_be_written() -> None:
    first, second = problems(plain(penalties=Column()), Context(), samples=2)
    assert "column in penalties reads adv_M, but credit running_baseline writes adv_N." in first
    assert "column in penalties reads note_exit_E, and no room writes it" in second
    assert len(problems(plain(penalties=Column(), rollout=Writes()), Context(), samples=2)) == 1
    [none] = problems(plain(credit=Needy()), Context(), samples=4)
    assert (
        'but credit needy writes nothing. If needy writes it, declare that in the class: writes = ("adv_N",).' in none
    )
    assert "Otherwise choose a credit that writes adv_N (" in none and "group_normalised" in none


def test_grouped_credits_and_those_that_remember_tasks_say_so() -> None:
    assert COMPARES in GroupNormalised.requires and COMPARES in LeaveOneOut.requires
    remembering = {
        name for name, m in all_methods().items() for _, o in m.occupants() if RecurringTasks() in o.requires
    }
    assert "spo_single" in remembering and "grpo" not in remembering
