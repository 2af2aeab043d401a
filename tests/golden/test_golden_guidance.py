"""Experts among the answers, whatever the method: who is imitated, refused and dropped."""

from dataclasses import replace

import pytest
from hand import FAILED, Use, answer, batch_of, by_expert, column
from with_experts import TASKS

from gruppo.data import Source
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.policies import load_tokenizer
from gruppo.stages import Ask, Context, Method, Sampling
from gruppo.stages.check import problems
from gruppo.stages.prompting import prompts_for
from gruppo.stages.recorded import RightExperts, expert, expert_N

# chord


def test_given_tokens_of_an_expert_are_not_imitated() -> None:
    """Only what stands in an answer of the expert's own."""
    hinted = answer(0, "g", 3, 1.0)
    hinted.sequences[0].source[2] = Source.EXPERT
    batch = batch_of([hinted, by_expert(answer(1, "g", 2, 1.0)), by_expert(answer(2, "g", 1, 1.0), Use.NONE)])
    assert column(expert_N(batch)) == [False] * 3 + [True] * 2 + [False]


# experts in a run


def test_a_task_without_an_answer_is_refused() -> None:
    ctx = Context(tokenizer=load_tokenizer("tiny-random"), sampling=Sampling(max_tokens=4))
    [prompt] = prompts_for(ctx, (), Ask(replace(TASKS[0], answer=""), 1))
    with pytest.raises(ValueError, match="'t0' has no recorded answer"):
        expert(ctx, prompt, 0, Use.APART)


def test_wrong_experts_are_dropped() -> None:
    """By the task's own component; sampled answers stay, whatever they are worth; an expert who was not judged goes."""
    wrong, right = by_expert(answer(0, "g", 1, 0.0)), by_expert(answer(1, "g", 1, 1.0))
    right.reward["overlong"] = -0.5
    lost, own = by_expert(answer(2, "g", 1, None, **FAILED)), answer(3, "g", 1, 0.0)
    assert RightExperts().episodes(Context(), [wrong, right, lost, own]) == ([False, True, False, True], [])


@pytest.mark.parametrize("name", ["chord", "rl_plus"])
def test_taking_one_room_takes_both(name: str) -> None:
    """A rollout with experts in a method that has no rule for them would be ignored: they come together."""
    m: Method = method(name)
    assert m.together == ("rollout", "objective")
    assert any("expert" in s for s in problems(method("grpo").but(rollout=m.rollout), Context(), samples=4))
    assert World(m, 0).ctx.samples == 4
