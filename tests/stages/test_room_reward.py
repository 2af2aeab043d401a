"""Reward components and prompts with hints, by hand: who gets which number, and what the policy sees."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from rooms import TOKENS, Says, context, prompt, rolled, task

from gruppo.data import Episode, Source, Status, Turn
from gruppo.methods import all_methods
from gruppo.stages import Ask, Context, Occupant, Sampling
from gruppo.stages.prompting import Hint, HintInMessage, plain, prompts_for
from gruppo.stages.reward import OverlongShaping, add_components
from gruppo.stages.rollout import Group


def answers(*lengths: int) -> list[Episode]:
    out: list[Episode] = []
    for i, n in enumerate(lengths):
        ctx = context(engine=Says("x" * n, eos=False), sampling=Sampling(max_tokens=n))
        out += rolled(Group(), ctx, [prompt(Ask(task(i), 1))])
    return out


@pytest.mark.parametrize(
    ("budget", "buffer", "most", "values"),
    [
        (10, 4, 99, {5: 0.0, 6: 0.0, 7: -0.25, 10: -1.0, 12: -1.0}),
        (10, 0, 99, {8: 0.0, 9: -0.5, 10: -1.0}),  # a fifth
        (12, 0, 99, {10: 0.0, 11: -0.5, 12: -1.0}),  # a fifth in whole tokens: two
        (4, 0, 99, {3: 0.0, 4: -1.0}),  # at least one
        (0, 0, 10, {8: 0.0, 9: -0.5, 10: -1.0}),  # the run's own budget
    ],
)
def test_long_answers_lose(budget: int, buffer: int, most: int, values: dict[int, float]) -> None:
    shaping = OverlongShaping(budget_tokens=budget, buffer_tokens=buffer)
    made = shaping(context(sampling=Sampling(max_tokens=most)), answers(*values))
    assert list(made) == ["overlong"] and made["overlong"].tolist() == pytest.approx(list(values.values()))


@dataclass(frozen=True)
class Component(Occupant):
    """A component with these values."""

    name: str = ""
    values: Any = ()

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, Any]:
        return {self.name: self.values}


def test_components_go_to_judged_episodes_in_order() -> None:
    found = answers(1, 2, 3)
    found[1].status = Status.ENV_ERROR
    for i, e in enumerate(found):
        e.reward = {"task": float(i)}
    add_components(context(), [Component("a", [0.5, 0.25]), Component("b", [1, 2])], found)
    assert [e.reward for e in found] == [{"task": 0, "a": 0.5, "b": 1}, {"task": 1}, {"task": 2, "a": 0.25, "b": 2}]
    assert all(type(v) is float for v in found[0].reward.values())


@pytest.mark.parametrize("of_groups", [False, True])
def test_a_step_in_which_everything_failed(of_groups: bool) -> None:
    """No component of any method trips over it, and nothing is written."""
    found = answers(1, 2)
    for e in found:
        e.status = Status.ENV_ERROR
    for m in all_methods().values():
        add_components(context(), m.reward, found, of_groups)
    assert [(e.reward, e.replaced) for e in found] == [({}, frozenset())] * 2


def test_one_number_a_turn_goes_to_the_turns() -> None:
    [e] = answers(4)
    first = e.turns[0]
    e.turns = [Turn(first.start, first.start + 2), Turn(first.start + 2, first.stop)]
    add_components(context(), [Component("step", [[0.5, 2.0]]), Component("whole", [3.0])], [e])
    assert [t.reward for t in e.turns] == [{"step": 0.5}, {"step": 2.0}] and e.reward == {"whole": 3.0}
    with pytest.raises(ValueError, match="has 1 values for the 2 turns"):
        add_components(context(), [Component("other", [[0.5]])], [e])
    with pytest.raises(ValueError, match="written by two occupants"):
        add_components(context(), [Component("whole", [3.0])], [e])
    with pytest.raises(ValueError, match="is inf for an episode"):
        add_components(context(), [Component("more", [float("inf")])], [e])
    with pytest.raises(ValueError, match="has 2 values for 1 episodes"):
        add_components(context(), [Component("more", [1.0, 2.0])], [e])
    add_components(context(), [Component("unknown", [float("nan")])], [e])
    assert np.isnan(e.reward["unknown"])


# prompts


def hinted(share: float | None, **fields: Any) -> Any:
    ask = Ask(task(7), 3, how={} if share is None else {"hint": share})
    [p] = prompts_for(context(), (Hint(**fields),), ask)
    return p, plain(context(), ask)[0]


SOLUTION = "7 and 7"


@pytest.mark.parametrize(("share", "length"), [(0.17, 1), (0.3, 1), (0.49, 1), (0.5, 5), (1.0, 5)])
def test_a_hint_is_the_start_of_the_solution(share: float, length: int) -> None:
    """Three words: half a step is a step, and the last is never given."""
    p, without = hinted(share)
    start = len(without.ids)
    assert p.ids.tolist() == [*without.ids, *TOKENS.encode(SOLUTION[:length])]
    assert p.given == ((start, start + length, "hint"),) and p.train_as is None
    assert p.samples == 3 and p.group == "t7"
    [e] = rolled(Group(), context(engine=Says("z")), [prompt(p.ask, ids=p.ids, given=p.given, samples=1)])
    assert (e.sequences[0].source == Source.HINT).sum() == length


@pytest.mark.parametrize("share", [None, 0.0, 0.01, 0.16])
def test_no_hint_no_change(share: float | None) -> None:
    p, without = hinted(share)
    assert p.ids.tolist() == without.ids.tolist() and p.given == () and p.train_as is None


def test_learned_without_the_hint() -> None:
    p, without = hinted(0.5, learn_without=True)
    assert p.train_as.tolist() == without.ids.tolist() and p.given == ()
    assert p.ids.tolist() == [*without.ids, *TOKENS.encode(SOLUTION[:5])]
    [e] = rolled(Group(), context(engine=Says("z")), [replace(p, samples=1)])
    assert e.text == "7 andz"  # judged with the hint, learned without
    assert e.sequences[0].trained().ids.tolist() == [*without.ids, *TOKENS.encode("z"), TOKENS.eos]


@pytest.mark.parametrize(("level", "hint"), [(0, ""), (1, "7"), (2, "7 and"), (9, "7 and")])
def test_a_hint_by_its_level(level: int, hint: str) -> None:
    ask = Ask(task(7), 3, how={"hint_level": level, "hint": 0.9})  # the level says it
    [p], [without] = prompts_for(context(), (Hint(),), ask), plain(context(), ask)
    assert p.ids.tolist() == [*without.ids, *TOKENS.encode(hint)]


@pytest.mark.parametrize("how", [{}, {"hint": 0.5}, {"hint_level": 1}])
@pytest.mark.parametrize("solution", ["", "14"])
def test_a_task_without_a_solution_is_named(how: dict[str, Any], solution: str) -> None:
    for occupant in (Hint(), HintInMessage()):
        ask = Ask(replace(task(7), solution=solution), 3, how=how)
        with pytest.raises(ValueError, match=r"task 't7' has no worked solution.*Give its row a solution"):
            prompts_for(context(), (occupant,), ask)
    whole = replace(task(7), solution="7+7=14\n14", meta={"hints": []})  # a solution that has no beginning is one
    assert prompts_for(context(), (Hint(),), Ask(whole, 3, how=how))[0].given == ()


def test_a_hint_in_the_message() -> None:
    ask = Ask(replace(task(7), system="Add."), 1, how={"hint_level": 2})
    without = plain(context(), ask)[0]
    [p] = prompts_for(context(), (HintInMessage(),), ask)
    assert TOKENS.decode(p.ids) == "Add.\n\n7+7=\n\nHint: 7 and" and p.given == () and p.train_as is None
    [e] = rolled(Group(), context(engine=Says("z")), [p])
    assert e.text == "z" and (e.sequences[0].source == Source.HINT).sum() == 0
    [q] = prompts_for(context(), (HintInMessage(learn_without=True),), ask)
    assert q.ids.tolist() == p.ids.tolist() and q.train_as.tolist() == without.ids.tolist()
    assert (
        prompts_for(context(), (HintInMessage(),), Ask(task(7), 1))[0].ids.tolist()
        == TOKENS.chat(task(7).messages).tolist()
    )


@pytest.mark.parametrize("template", ["{prompt}", "{hint}", "{prompt} {hint} {more}", "{prompt} {hint} {"])
def test_a_template_says_where_both_texts_stand(template: str) -> None:
    with pytest.raises(ValueError, match=r"template=.*Write \{prompt\} and \{hint\}"):
        HintInMessage(template=template)


def test_hints_add_up() -> None:
    ask = Ask(task(7), 3, how={"hint": 1.0})
    [p] = prompts_for(context(), (Hint(), Hint()), ask)
    assert [name for _, _, name in p.given] == ["hint", "hint"] and p.given[1][0] == p.given[0][1]
