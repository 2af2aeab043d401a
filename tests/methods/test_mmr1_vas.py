"""Evidence for mmr1_vas: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
import pytest
from hand import answer
from looking_back import seen, tasks_of

from gruppo.data import Episode, Status, Use
from gruppo.methods.mmr1_vas import VarianceAware
from gruppo.stages import Context
from gruppo.stages.curriculum import Uniform, in_turn
from gruppo.stages.tables import Table
from gruppo.tasks import load_task

test_laws = evidence.laws("mmr1_vas")
test_asks = evidence.asks("mmr1_vas")
test_planted_mistakes = evidence.planted("mmr1_vas")
test_resume = evidence.resume("mmr1_vas")


def tried(place: int, *scores: float, uid: int = 0, **fields: object) -> list[Episode]:
    return [answer(100 * uid + 10 * place + i, f"q{place}", 3, r, index=place, **fields) for i, r in enumerate(scores)]


def test_vas_weighs_the_tasks_that_are_sometimes_right() -> None:
    vas = VarianceAware(diversity_coef=0.0)
    memory = seen(vas, [*tried(0, 0.0, 0.0), *tried(1, 0.0, 1.0), *tried(2, 1.0, 1.0)])
    assert Table.of(memory, "variance").columns["score"].tolist() == pytest.approx([0.0, 0.8 * 0.25, 0.0])
    assert vas.weights(Table.of(memory, "variance"), 3).tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)
    tasks = load_task("addition", train_size=3).train
    asks = vas(Context(step=1, prompts=5, samples=4, memory=memory), tasks)
    assert [a.index for a in asks[:2]] == [1, 1] and len({a.group for a in asks}) == 5  # floor(5 / 2) by weight


def test_vas_adds_how_different_the_answers_are() -> None:
    same, other = tried(0, 1.0, 1.0), tried(1, 1.0, 1.0)
    other[1].sequences[0].ids[-3:] = [7, 8, 9]
    memory = seen(VarianceAware(), [*same, *other])
    assert Table.of(memory, "variance").columns["score"].tolist() == pytest.approx([0.0, 0.2])


def test_vas_counts_judged_answers_only_and_gives_the_mean_to_what_it_never_saw() -> None:
    vas = VarianceAware(diversity_coef=0.0)
    failed = tried(1, 1.0, 1.0, uid=1, status=Status.ENV_ERROR) + tried(1, 1.0, uid=2, use=Use.NONE)
    memory = seen(vas, [*tried(0, 0.0, 0.0), *tried(1, 0.0, 1.0), *failed, *tried(-1, 1.0, 0.0)])
    assert vas.weights(Table.of(memory, "variance"), 5).tolist() == pytest.approx([0, 1, 0.5, 0.5, 0.5], abs=1e-6)


def test_vas_keeps_its_weights_until_they_are_made_anew() -> None:
    vas, later = VarianceAware(diversity_coef=0.0, refresh_every=2), [*tried(0, 0.0, 1.0), *tried(1, 1.0, 1.0)]
    first = [*tried(0, 0.0, 0.0), *tried(1, 0.0, 1.0)]
    for steps, wanted in (((first, later), [0, 1]), ((first, later, []), [1, 0])):
        assert vas.weights(Table.of(seen(vas, *steps), "variance"), 2).tolist() == pytest.approx(wanted, abs=1e-6)


def test_vas_is_uniform_without_a_share_and_where_all_weigh_the_same() -> None:
    tasks = load_task("addition", train_size=40).train
    memory = seen(VarianceAware(), [*tried(0, 0.0, 0.0), *tried(1, 0.0, 1.0)])
    for step in range(4):
        ctx = Context(step=step, prompts=6, memory=memory)
        plain = [(a.task, a.group, a.key, a.index) for a in Uniform()(ctx, tasks)]
        assert [(a.task, a.group, a.key, a.index) for a in VarianceAware(weighted_share=0.0)(ctx, tasks)] == plain
    equal = seen(VarianceAware(), [*tried(0, 0.0, 1.0), *tried(1, 0.0, 1.0)])
    places = [
        a.index
        for step in range(400)
        for a in VarianceAware(weighted_share=1.0)(Context(step=step, prompts=10, memory=equal), tasks)
    ]
    assert min(places.count(i) for i in range(40)) > 60  # 100 each, ± 10


def variance(vas: VarianceAware, *steps: list[Episode]) -> Table:
    return Table.of(seen(vas, *steps), "variance")


@pytest.mark.parametrize(
    ("rewards", "p"),
    [
        ([1.0, 0.0, 0.0], 1 / 3),
        ([1.5, 1.5], 1.0),  # p is a share, whatever a task pays
        ([-1.0, -1.0], 0.0),
        ([1.0, None], 0.5),  # one that has no score is not right
    ],
)
def test_vas_scores_by_the_share_of_right_answers(rewards: list[float | None], p: float) -> None:
    [score] = variance(VarianceAware(diversity_coef=0.0), tried(0, *rewards)).columns["score"].tolist()
    assert score == pytest.approx(0.8 * p * (1 - p), abs=1e-12)


def test_vas_counts_answers_that_are_a_baseline() -> None:
    """They are the policy's answers to the task; those apart are another's."""
    vas = VarianceAware(diversity_coef=0.0)
    based = [*tried(0, 1.0), *tried(0, 0.0, use=Use.BASELINE), *tried(0, 0.0, 0.0, use=Use.APART)]
    assert variance(vas, based).columns["score"].tolist() == pytest.approx([0.2])


def test_vas_weights_lie_between_the_least_and_the_most() -> None:
    """p = ½, ¼, ⅛: p (1 − p) = 16, 12 and 7 of 64, so w = (9, 5, 0)/9."""
    vas = VarianceAware(outcome_coef=1.0, diversity_coef=0.0)
    table = variance(vas, [*tried(0, 0.5), *tried(1, 0.25), *tried(2, 0.125)])
    assert vas.weights(table, 3).tolist() == pytest.approx([1.0, 5 / 9, 0.0], abs=1e-6)
    tiny = VarianceAware(outcome_coef=4e-8, diversity_coef=0.0)  # a spread of 1e-8, over 1e-8 + 1e-8
    assert tiny.weights(variance(tiny, [*tried(0, 0.5), *tried(1, 1.0)]), 2).tolist() == pytest.approx([0.5, 0.0])


def test_vas_gives_the_mean_to_what_was_never_weighed() -> None:
    """Weights are made at step 0 and then every 35. What is first drawn between is weighed later, and is until then
    like a task that was not drawn; nor does it count in the mean. Places that are no more are left out."""
    vas = VarianceAware(diversity_coef=0.0)
    table = variance(vas, [*tried(0, 1.0, 1.0), *tried(1, 0.0, 1.0)], tried(2, 0.0, 1.0))
    assert vas.weights(table, 4).tolist() == pytest.approx([0.0, 1.0, 0.5, 0.5], abs=1e-6)
    assert vas.weights(table, 1).tolist() == pytest.approx([0.0])
    assert len(set(vas.weights(Table(), 3).tolist())) == 1  # before the first step all are alike


def test_vas_remembers_the_same_after_a_step_without_answers() -> None:
    """Also the place of a task far behind, of which float32 would lose the last digit."""
    far, vas = 2**24 + 1, VarianceAware()
    first = [*tried(0, 0.0, 1.0), *tried(far, 1.0, 1.0)]
    for steps in ([first], [first, []]):
        assert variance(vas, *steps).key_T.tolist() == [0, far]


def test_vas_takes_half_of_an_even_batch_by_weight() -> None:
    """And the others in turn; at the first step too, where nothing is known."""
    vas, tasks = VarianceAware(diversity_coef=0.0), tasks_of(a=9)
    memory = seen(vas, [e for place in range(9) for e in tried(place, 0.0, float(place == 4))])
    ctx = Context(step=1, prompts=4, memory=memory)
    assert [a.index for a in vas(ctx, tasks)] == [4, 4, *in_turn(ctx, 9, 2)]
    first = Context(prompts=4)
    assert [a.index for a in vas(first, tasks)][2:] == in_turn(first, 9, 2)
