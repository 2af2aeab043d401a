"""Evidence for copo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from dataclasses import replace

import evidence
import pytest
from hand import answer, batch_of, column, mean, objective, worked
from hand import close as closer
from six_answers import close
from small_batches import adv, said

from gruppo.data import Status
from gruppo.methods import method
from gruppo.methods.copo import InsideAndBetween, TwoSurrogates, answer_entropy
from gruppo.stages import Context

test_laws = evidence.laws("copo")
test_asks = evidence.asks("copo")
test_planted_mistakes = evidence.planted("copo")
test_equivalences = evidence.equivalences("copo")
test_resume = evidence.resume("copo")


def test_copo_card_between_groups() -> None:
    """Card: mean rewards 1 and 0 give ±0.707 to all answers of the two groups; inside them there is nothing."""
    groups = [*said(["7"] * 2, [1, 1]), *said(["8"] * 3, [0, 0, 0], "h", 2)]
    credit = InsideAndBetween(eps=0.0)
    closer(adv(credit, groups, "adv_global_N"), [math.sqrt(0.5)] * 2 + [-math.sqrt(0.5)] * 3)
    assert adv(credit, groups) == [0] * 5
    closer(adv(credit, groups, "local_N"), [1 / (1 + math.exp(30))] * 5, 1e-25)
    assert adv(credit, groups, "local_N")[0] == pytest.approx(9.4e-14, rel=5e-3)


def test_copo_entropy_of_answers() -> None:
    """(7, 7, 12, none): p = ½, ¼, ¼, so H = 1.5 log 2. Two texts without an answer are one. Failed ones are out."""
    groups = [*said(["7", "7", "12", ""]), *said(["", "", "5", "6"], name="h", first=4)]
    groups += [replace(e, status=Status.ENV_ERROR) for e in said(["1", "2"], name="g", first=8)]
    closer(column(answer_entropy(batch_of(groups))), [1.5 * math.log(2)] * 2)
    five = said([*"12345", "5"], [1, 0, 0, 0, 0, 0])
    assert adv(InsideAndBetween(), five, "local_N")[0] > 0.5, (
        "five different answers of six: the comparison inside wins"
    )
    four = said([*"1234", "4", "4"], [1, 0, 0, 0, 0, 0])
    assert adv(InsideAndBetween(), four, "local_N")[0] < 0.01


def test_copo_one_group_and_failed_members() -> None:
    one = said(["1", "2", "2"], [1, 0, 0])
    assert adv(InsideAndBetween(), one, "adv_global_N") == [0, 0, 0]
    more = [*one, *said(["3"] * 2, [1, 1], "h", 3)]
    failed = [replace(e, status=Status.TIMEOUT) for e in said(["9"], [1], "g", 9)]
    got = adv(InsideAndBetween(), [*more, *failed], "adv_global_N")
    closer(got, [*adv(InsideAndBetween(), more, "adv_global_N"), 0])
    lost = [replace(e, status=Status.TIMEOUT) for e in said(["9", "9"], [1, 1], "lost", 20)]
    closer(adv(InsideAndBetween(), [*more, *lost], "adv_global_N")[:5], got[:5])


def test_copo_blends_two_surrogates_and_not_two_advantages() -> None:
    """A token of ratio 1.5 in a right answer of a bad group: A > 0 is clipped, Ā < 0 is not."""
    groups = [*said(["1", "2"], [1, 0]), *said(["5", "6"], [1, 1], "h", 2)]
    credit = InsideAndBetween(blend_slope=0.0)  # w = ½
    r = [1.5, 0.9, 1.0, 1.1]
    batch = batch_of(groups, logp_old_N=[-1.0] * 4)
    value, slopes = objective(method("copo").but(credit=credit), batch, logp_N=[-1.0 + math.log(x) for x in r])
    a = [x / (math.sqrt(0.5) + 1e-6) for x in (0.5, -0.5)] + [0.0, 0.0]
    g = [x / (math.sqrt(0.125) + 1e-6) for x in (-0.25, -0.25, 0.25, 0.25)]

    def clip(x: float, y: float) -> float:
        return min(x * y, min(max(x, 0.8), 1.28) * y)

    closer(value, mean([0.5 * clip(x, i) + 0.5 * clip(x, b) for x, i, b in zip(r, a, g, strict=True)]), 1e-9)
    closer(slopes["logp_N"][0], 0.5 * 1.5 * g[0] / 4, 1e-9)  # only the half that is not clipped


def test_copo_both_advantages_have_the_same_eps() -> None:
    """A = ±.5 / (√.5 + 1) inside; between groups of mean 1/2 and 0: ±.25 / (√.125 + 1)."""
    credit = InsideAndBetween(eps=1.0)
    batch = batch_of([*said(["7", "8"], [1, 0]), *said(["9", "9"], [0, 0], "h", 2)])
    got = credit(Context(), batch)
    a, b = 0.5 / (math.sqrt(0.5) + 1), 0.25 / (math.sqrt(0.125) + 1)
    close(column(got["adv_N"]), [a, -a, 0.0, 0.0])
    close(column(got["adv_global_N"]), [b, b, -b, -b])


def test_copo_counts_the_clip_of_either_surrogate_by_its_weight() -> None:
    """w = .25 and r = 1.5: caught inside, between, both, and neither (bad tokens are not caught above)."""
    old = [-1.0 - math.log(1.5)] * 4
    columns = {"adv_N": [1, -1, 1, -1], "adv_global_N": [-1, 1, 1, -1], "local_N": [0.25] * 4}
    batch = batch_of([answer(0, "g", 4, 1.0)], logp_old_N=old, **columns)
    terms = worked(TwoSurrogates(), batch, logp_N=[-1.0] * 4)
    close(column(terms["clip_fraction"].value), [0.25, 0.75, 1.0, 0.0])


def test_copo_logs_what_either_comparison_pushes_with() -> None:
    """w = ¼: a quarter of |A| inside, three quarters of |Ā| between; the objective has neither."""
    columns = {"adv_N": [2.0, -1.0, 0.0], "adv_global_N": [-4.0, 0.0, 1.0], "local_N": [0.25] * 3}
    batch = batch_of([answer(0, "g", 3, 1.0)], logp_old_N=[-1.0] * 3, **columns)
    terms = worked(TwoSurrogates(), batch, logp_N=[-1.0] * 3)
    close(column(terms["local_push"].value), [0.5, 0.25, 0.0])
    close(column(terms["between_push"].value), [3.0, 0.0, 0.75])
    assert all(terms[name].term.logged_only for name in ("local_push", "between_push"))
