"""Evidence for grpo_tis: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import answer, batch_of, objective
from six_answers import close
from small_batches import THREE, corrected

from gruppo.methods import method
from gruppo.stages.select import TruncatedImportance

test_laws = evidence.laws("grpo_tis")
test_asks = evidence.asks("grpo_tis")
test_terms = evidence.terms("grpo_tis")
test_planted_mistakes = evidence.planted("grpo_tis")
test_equivalences = evidence.equivalences("grpo_tis")
test_resume = evidence.resume("grpo_tis")


def test_tis_card() -> None:
    """Card B13 (verl rollout_corr_helper): log-ratio ln 3, C = 2 → w = 2; the product 3 of the sequence → 2 for all of
    its tokens; the geometric mean 3^(1/3) is below the cap. Equal log-probabilities → exactly 1."""
    close(corrected(TruncatedImportance(cap=2.0), THREE)[1], [2.0, 1 / 3, 2.0, 1.0])
    close(corrected(TruncatedImportance(cap=2.0, level="sequence"), THREE)[1], [2.0, 2.0, 2.0, 1.0])
    close(corrected(TruncatedImportance(cap=9.0, level="sequence"), THREE)[1], [3.0, 3.0, 3.0, 1.0])
    close(corrected(TruncatedImportance(level="geometric"), THREE)[1], [3 ** (1 / 3)] * 3 + [1.0])
    for level in ("token", "sequence", "geometric"):
        assert corrected(TruncatedImportance(level=level), [-1.0] * 4)[1] == [1.0] * 4


def test_tis_self_normalised() -> None:
    """w = 2, 1/3, 2, 1: the mean is 4/3."""
    close(corrected(TruncatedImportance(self_normalised=True), THREE)[1], [1.5, 0.25, 1.5, 0.75])


def test_tis_without_the_samplers_log_probabilities() -> None:
    """Missing ones weigh 1, and a sequence is made of those that are known: 3 · 3 = 9, and √9 = 3."""
    nan = float("nan")
    gen = [-1.0, nan, -1.0, nan]
    close(corrected(TruncatedImportance(cap=9.0), THREE, gen=gen)[1], [3.0, 1.0, 3.0, 1.0])
    close(corrected(TruncatedImportance(cap=9.0, level="sequence"), THREE, gen=gen)[1], [9.0, 9.0, 9.0, 1.0])
    close(corrected(TruncatedImportance(cap=9.0, level="geometric"), THREE, gen=gen)[1], [3.0, 3.0, 3.0, 1.0])


def test_no_gradient_flows_through_the_weight() -> None:
    """GRPO with w = 2, 1/3, 2 and 1, on-policy: dJ/dlog π = w A / T / B and nothing else."""
    batch = batch_of([answer(0, "g", 3, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=THREE, logp_ref_N=THREE)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    _, slope = objective(method("grpo_tis").but(penalties=()), batch, logp_N=THREE)
    close(slope["logp_N"], [2 * a / 6, a / 18, 2 * a / 6, -a / 2])
