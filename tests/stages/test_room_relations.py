"""Pairs of answers, what is told about them, sums over answers, and labels: by hand."""

from typing import Any

import pytest
import torch
from rooms import context, prompt, rolled, task

from gruppo.data import Batch, Episode, Source, Status, Use, pack
from gruppo.data.keyed import uniform
from gruppo.methods.kto import GoodOrBad, ProspectUtility
from gruppo.stages import Ask
from gruppo.stages.readouts import Stats
from gruppo.stages.relations import PairUp, answered_E, averaged, pair_terms, pair_values, summed
from gruppo.stages.rollout import Group

nan = float("nan")


def groups(*rewards: list[float]) -> list[Episode]:
    """A group for each list, an episode of three tokens for each number."""
    out = rolled(Group(), context(), [prompt(Ask(task(i), len(mine))) for i, mine in enumerate(rewards)])
    for e, r in zip(out, [r for mine in rewards for r in mine], strict=True):
        e.reward = {"task": r}
    return out


def packed(episodes: list[Episode], **columns: Any) -> Batch:
    made = pack(episodes, dtype=torch.float64)
    return made.with_columns(**{k: torch.tensor(v, dtype=torch.float64) for k, v in columns.items()})


def pairs(occupant: PairUp, batch: Batch, **ctx: Any) -> set[tuple[int, int, float]]:
    made = occupant(context(**ctx), batch)
    return {*zip(*(made[k].tolist() for k in ("win_P", "lose_P", "margin_P")), strict=True)}


def test_the_widest_gap_of_a_group() -> None:
    b = packed(groups([1.0, 3.0, 0.0], [2.0, 2.0], [5.0]))
    assert pairs(PairUp(), b) == {(1, 2, 3.0)}
    assert pairs(PairUp(most=2), b) == {(1, 2, 3.0), (1, 0, 2.0)}
    assert pairs(PairUp(most=0), b) == {(1, 2, 3.0), (1, 0, 2.0), (0, 2, 1.0)}


@pytest.mark.parametrize(("gap", "count"), [(0.0, 3), (0.99, 3), (1.0, 2), (2.0, 1), (3.0, 0)])
def test_a_gap_must_be_wider_than_that(gap: float, count: int) -> None:
    assert len(pairs(PairUp(most=0, min_gap=gap), packed(groups([1.0, 3.0, 0.0])))) == count


def test_luck_decides_between_equal_gaps() -> None:
    found = groups([1.0, 0.0, 0.0])
    b, seen = packed(found), set[int]()
    for seed in range(12):
        u = [uniform(seed, 0, "pair", found[0].uid, found[i].uid) for i in (1, 2)]
        [(_, lose, _)] = pairs(PairUp(), b, seed=seed)
        assert lose == 1 + (u[1] < u[0])
        seen.add(lose)
    assert seen == {1, 2}


def test_only_what_is_judged_and_learned_from_is_paired() -> None:
    found = groups([1.0, 0.0, 0.5])
    found[0].use, found[1].status = Use.BASELINE, Status.TIMEOUT
    assert pairs(PairUp(most=0), packed(found)) == set()


# sums over answers


def test_sums_and_means_of_an_answers_tokens() -> None:
    """Weighed; of the policy's tokens in episodes to learn from, that selection kept."""
    found = groups([1.0, 0.0, 0.0])
    found[2].status = Status.ENV_ERROR
    b = packed(found, weight_N=[2.0] + [1.0] * 8)
    b = b.with_columns(keep_N=torch.tensor([True] * 4 + [False] + [True] * 4))
    x = torch.arange(9, dtype=torch.float64) + 1
    assert summed(b, x).tolist() == [2 + 2 + 3, 4 + 6, 0]
    assert averaged(b, x).tolist() == [7 / 3, 5, 0]
    assert answered_E(b).tolist() == [True, True, False]
    assert summed(b.with_columns(source_N=torch.full_like(b.source_N, Source.HINT)), x).tolist() == [0, 0, 0]


def test_what_is_told_of_pairs() -> None:
    """The gap of implicit rewards, and 1, ½ or 0 for the right way round, even, and the wrong one; for the log."""
    b = packed(groups([3.0, 2.0, 1.0])).with_columns(
        win_P=torch.tensor([0, 0, 1]), lose_P=torch.tensor([1, 2, 2]), margin_P=torch.ones(3)
    )
    live = torch.tensor([True, True, False])
    implicit = torch.tensor([0.5, 0.5, 2.0], requires_grad=True)
    value = torch.arange(3.0)
    made = pair_values(b, value, implicit)
    assert made["preference"] is value
    assert made["margin"].tolist() == [0.0, -1.5, -1.5] and not made["margin"].requires_grad
    assert made["preferred"].tolist() == [0.5, 0.0, 0.0]
    assert pair_values(b, value, -implicit)["preferred"].tolist() == [0.5, 1.0, 1.0]
    small = pair_values(b, value, torch.tensor([0.5, 0.0, 0.0]))["preferred"]
    assert small.tolist() == [1.0, 1.0, 0.5], "half a point is a gap"
    preference, *told = pair_terms(live, "group", 0.25)
    assert [t.name for t in (preference, *told)] == list(made) and preference.over is live
    assert (preference.at, preference.mean, preference.coef, preference.additive) == ("P", "group", 0.25, False)
    for t in told:
        assert (t.at, t.mean, t.coef, t.additive, t.over is live) == ("P", "token", 0.0, False, True)
    assert [(t.mean, t.coef) for t in pair_terms(live)] == [("token", 1.0), ("token", 0.0), ("token", 0.0)]


# KTO's labels and point of reference


def labels(episodes: list[Episode], **fields: Any) -> tuple[list[int], list[bool]]:
    made = GoodOrBad(**fields)(context(), packed(episodes))
    return made["label_E"].tolist(), made["other_E"].tolist()


def test_above_the_mean_of_its_group_is_good() -> None:
    assert labels(groups([1.0, 0.0, 0.5], [4.0, 1.0, 1.0]))[0] == [1, -1, -1, 1, -1, -1]


def test_where_all_are_equal_the_threshold_decides() -> None:
    rewards = [[0.5, 0.5], [0.4, 0.4], [1.0]]
    assert labels(groups(*rewards))[0] == [1, 1, -1, -1, 1]
    assert labels(groups(*rewards), threshold=0.6)[0] == [-1, -1, -1, -1, 1]


def test_what_is_not_judged_neither_varies_a_group_nor_has_a_label() -> None:
    found = groups([0.2, 0.2, 9.0], [1.0, 0.0])
    found[2].status = Status.ENV_ERROR
    found[2].reward = {"task": 9.0}
    assert labels(found)[0] == [-1, -1, 0, 1, -1]


def test_a_failed_answer_does_not_hide_that_others_differ() -> None:
    found = groups([0.4, 0.2, 0.0])
    found[2].status = Status.ENV_ERROR
    assert labels(found)[0] == [1, -1, 0], "by the mean of the two, below the threshold as they are"


def test_another_prompt_is_one_of_another_group_that_learns() -> None:
    assert labels(groups([1.0, 0.0], [1.0, 0.0]))[1] == [True] * 4
    assert labels(groups([1.0, 0.0]))[1] == [False] * 2
    failed = groups([1.0, 0.0], [1.0])
    failed[2].status = Status.TIMEOUT
    assert labels(failed)[1] == [False] * 3
    apart = groups([1.0, 0.0], [1.0])
    apart[2].use = Use.APART
    assert labels(apart)[1] == [False] * 3, "its prompt is lent by no one"
    twice = groups([1.0, 0.0, 1.0])
    assert labels(twice)[1] == [False] * 3, "three answers of one prompt"


def kto(episodes: list[Episode], drift: list[float], other: bool = True, **fields: Any) -> Any:
    """(z, terms, values) where tokens drift by so much under the other prompt, and by twice that under their own."""
    per = torch.tensor(drift, dtype=torch.float64).repeat_interleave(3)
    b = packed(episodes, logp_ref_N=[-2.0] * len(per), logp_ref_mismatched_N=[-3.0] * len(per))
    made = GoodOrBad()(context(), b)
    b = b.with_columns(label_E=made["label_E"], other_E=torch.full((len(episodes),), other))
    stats = Stats(logp_N=-2.0 + 2 * per, logp_mismatched_N=-3.0 + per)
    objective = ProspectUtility(**fields)
    z = float(objective.reference_point(b, stats))
    return z, objective.terms(context(), b), objective(context(), b, stats)


def test_the_point_of_reference() -> None:
    """max(0, mean of Σ_t over the answers that were judged, have tokens, and were put under another prompt)."""
    found = groups([1.0, 0.0], [1.0, 0.0])
    assert kto(found, [0.1, 0.2, 0.3, 0.6])[0] == pytest.approx(3 * 0.3)
    assert kto(found, [-0.1, 0.2, -0.3, -0.6])[0] == 0.0
    assert kto(found, [0.1, 0.2, 0.3, 0.6], other=False)[0] == 0.0
    found[3].status = Status.TIMEOUT
    assert kto(found, [0.1, 0.2, 0.3, 0.6])[0] == pytest.approx(3 * 0.2)
    one = groups([1.0], [0.0])
    one[1].status = Status.TIMEOUT
    assert kto(one, [0.1, 0.2])[0] == pytest.approx(3 * 0.1), "a mean over one"


def test_utilities_by_hand() -> None:
    found = groups([1.0, 0.0], [1.0, 0.0])
    found[3].use = Use.APART
    found[3].reward = {}
    z, (utility, reference), value = kto(found, [0.1, 0.2, 0.3, 0.6], beta=0.5, good_coef=2.0, bad_coef=3.0)
    assert z == pytest.approx(3 * (0.1 + 0.2 + 0.3) / 3)
    gap = [0.5 * (6 * d - z) for d in (0.1, 0.2, 0.3)]
    sigmoid = [float(torch.sigmoid(torch.tensor(g, dtype=torch.float64))) for g in gap]
    wanted = [2 * (sigmoid[0] - 1), 3 * (1 - sigmoid[1] - 1), 2 * (sigmoid[2] - 1)]
    assert list(value) == [utility.name, reference.name] == ["utility", "reference_point"]
    assert value["utility"][:3].tolist() == pytest.approx(wanted)
    assert utility.over.tolist() == reference.over.tolist() == [True, True, True, False], "without a label, no utility"
    assert value["reference_point"].tolist() == pytest.approx([z] * 4)
    assert not value["reference_point"].requires_grad
    for t, coef in ((utility, 1.0), (reference, 0.0)):
        assert (t.at, t.additive, t.coef, t.mean) == ("E", False, coef, "token")


def test_an_answer_without_tokens_has_no_utility() -> None:
    found = groups([1.0, 0.0], [1.0, 0.0])
    for t in (0, 1, 2):
        found[0].sequences[0].source[found[0].sequences[0].prompt_len + t] = Source.ENV
    b = pack(found, dtype=torch.float64)
    n = len(b.token_N)
    full = {k: torch.zeros(n, dtype=torch.float64) for k in ("logp_ref_N", "logp_ref_mismatched_N")}
    b = b.with_columns(**full, **GoodOrBad()(context(), b))
    stats = Stats(logp_N=torch.zeros(n, dtype=torch.float64), logp_mismatched_N=torch.ones(n, dtype=torch.float64))
    assert ProspectUtility().terms(context(), b)[0].over.tolist() == [False, True, True, True]
    assert float(ProspectUtility().reference_point(b, stats)) == pytest.approx(3.0)
