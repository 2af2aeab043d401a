"""Evidence for dr_grpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
from hand import batch_of, close, objective
from six_answers import LOGP
from six_graded import ONE_RIGHT, B, T, adv, centred, clipped_by_loops, each_token, group, hand_batch

from gruppo.methods import method
from gruppo.stages.credit import GroupCentred
from gruppo.stages.objective import ClippedSurrogate

test_laws = evidence.laws("dr_grpo")
test_asks = evidence.asks("dr_grpo")
test_terms = evidence.terms("dr_grpo")
test_planted_mistakes = evidence.planted("dr_grpo")
test_equivalences = evidence.equivalences("dr_grpo")
test_resume = evidence.resume("dr_grpo")


def test_dr_grpo_of_four_answers() -> None:
    """By hand: R = [1, 0, 0, 0] → [.75, −.25, −.25, −.25]; times G/(G−1) = 4/3 it is RLOO's [1, −1/3, −1/3, −1/3]."""
    a = adv(GroupCentred(), batch_of(group(ONE_RIGHT)))
    close(a, [0.75, -0.25, -0.25, -0.25])
    rloo = method("rloo").but(credit=method("rloo").credit.__class__(kl_coef=0.0)).credit
    close([4 / 3 * x for x in a], adv(rloo, batch_of(group(ONE_RIGHT))))


def test_dr_grpo() -> None:
    """Dr.GRPO (arXiv:2503.20783): J = mean over q of 1/G Σ_i Σ_t PPOclip(r, R_i − mean) / C, C = the run's 8 tokens."""
    value, slope = clipped_by_loops(each_token(centred()), [1 / B / 8] * T)
    got, slopes = objective(method("dr_grpo"), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)
    other = method("dr_grpo").but(objective=ClippedSurrogate(mean="episode_sum/5"))
    close(objective(other, hand_batch(), logp_N=LOGP)[0], value * 8 / 5)


def test_dr_grpo_has_no_length_in_it() -> None:
    """Every answer twice as long, by repetition: twice the loss. GRPO's mean per sequence stays the same."""
    once = batch_of(group((1.0, 0.0), (2, 3)), logp_old_N=[-1.0] * 5)
    twice = batch_of(group((1.0, 0.0), (4, 6)), logp_old_N=[-1.0] * 10)
    logp = [-0.9, -1.1, -0.95, -1.05, -1.0]
    doubled = [*logp[:2] * 2, *logp[2:] * 2]
    values = {n: [objective(method(n).but(penalties=()), b, logp_N=x)[0] for b, x in ((once, logp), (twice, doubled))]
              for n in ("dr_grpo", "grpo")}  # fmt: skip
    close(values["dr_grpo"][1], 2 * values["dr_grpo"][0])
    close(values["grpo"][1], values["grpo"][0])
    assert abs(values["dr_grpo"][0]) > 1e-3 and abs(values["grpo"][0]) > 1e-3
