"""Evidence for disco: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import answer, batch_of, by_episode, mean, objective
from six_answers import GROUPS, LENGTHS, LOGP, OLD, REWARDS, close
from small_batches import told

from gruppo.methods import method
from gruppo.methods.disco import Discriminate

test_laws = evidence.laws("disco")
test_asks = evidence.asks("disco")
test_terms = evidence.terms("disco")
test_equivalences = evidence.equivalences("disco")
test_resume = evidence.resume("disco")


def disco_batch(old: list[float]):
    episodes = [answer(i, g, n, r) for i, (g, n, r) in enumerate(zip(GROUPS, LENGTHS, REWARDS, strict=True))]
    return batch_of([*episodes, answer(6, "dead", 1, 1.0), answer(7, "dead", 2, 1.0)], logp_old_N=old)


DEAD_LOGP, DEAD_OLD = [-0.6, -0.2, -1.0], [-0.6, -0.9, -1.4]


def disco_by_loops(
    logp: list[float], old: list[float], tau: float, beta: float, delta: float
) -> tuple[float, list[float], float]:
    """(J, dJ/dlog π, KL): J = 1/Q Σ_q [mean_pos s − τ log mean_neg e^{s/τ}] − sg(β [KL − δ]_+) KL, s = mean_t log π."""
    lengths, rewards, groups = [*LENGTHS, 1, 2], [*REWARDS, 1.0, 1.0], [*GROUPS, "dead", "dead"]
    scores = [mean(x) for x in by_episode(logp, lengths)]
    value, slope_of_score, q = 0.0, [0.0] * len(lengths), 3
    for g in ("p", "q"):
        pos = [i for i in range(len(lengths)) if groups[i] == g and rewards[i] > 0]
        neg = [i for i in range(len(lengths)) if groups[i] == g and rewards[i] == 0]
        soft = [math.exp(scores[j] / tau) for j in neg]
        value += (mean([scores[i] for i in pos]) - tau * math.log(sum(soft) / len(soft))) / q
        for i in pos:
            slope_of_score[i] += 1 / len(pos) / q
        for j, e in zip(neg, soft, strict=True):
            slope_of_score[j] -= e / sum(soft) / q
    kl = mean([o - lp for o, lp in zip(old, logp, strict=True)])
    hinge = beta * max(kl - delta, 0.0)
    value -= hinge * kl
    slope = []
    for n, ds in zip(lengths, slope_of_score, strict=True):
        slope += [ds / n + hinge / len(logp)] * n
    return value, slope, kl


@pytest.mark.parametrize("drift", [-0.3, 0.3])
def test_disco(drift: float) -> None:
    """DisCO (arXiv:2505.12366), τ = 10, β = 1e3, δ = 1e-4, with the hinge asleep (KL < δ) and awake.

    Q = 3 counts the dead group.
    """
    logp, old = [*LOGP, *DEAD_LOGP], [o + drift for o in [*OLD, *DEAD_OLD]]
    value, slope, kl = disco_by_loops(logp, old, 10.0, 1e3, 1e-4)
    assert (kl > 1e-4) == (drift > 0)
    got, slopes = objective(method("disco"), disco_batch(old), logp_N=logp)
    close(got, value)
    close(slopes["logp_N"], slope)


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_disco_other_temperatures(tau: float) -> None:
    """The same loops with a temperature at which wrong answers weigh differently."""
    logp, old = [*LOGP, *DEAD_LOGP], [*OLD, *DEAD_OLD]
    value, slope, _ = disco_by_loops(logp, old, tau, 1e3, 1e-4)
    sharp = method("disco").but(objective=Discriminate(tau=tau))
    got, slopes = objective(sharp, disco_batch(old), logp_N=logp)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_disco_inside_the_trust_region_is_purely_discriminative() -> None:
    """DisCO (arXiv:2505.12366), by hand: KL ≤ δ → the gradient of the discriminator alone."""
    logp, old = [*LOGP, *DEAD_LOGP], [o - 0.3 for o in [*OLD, *DEAD_OLD]]
    free = method("disco").but(objective=Discriminate(trust_coef=0.0))
    left, right = (objective(m, disco_batch(old), logp_N=logp) for m in (method("disco"), free))
    close(left[0], right[0])
    close(left[1]["logp_N"], right[1]["logp_N"])


def test_disco_limits() -> None:
    """DisCO (arXiv:2505.12366), by hand: τ → ∞ is the difference of means (DisCO-b), τ → 0 the hardest wrong answer."""
    logp, old = [*LOGP, *DEAD_LOGP], [o - 0.3 for o in [*OLD, *DEAD_OLD]]
    scores = [mean(x) for x in by_episode(LOGP, LENGTHS)]
    p, q = (scores[0], scores[1:3]), (mean(scores[3:5]), scores[5:])
    means = ((p[0] - mean(p[1])) + (q[0] - mean(q[1]))) / 3
    hardest = ((p[0] - max(p[1])) + (q[0] - max(q[1]))) / 3
    for tau, expected, tol in ((1e7, means, 1e-7), (1e-4, hardest, 1e-3)):
        got, _ = objective(method("disco").but(objective=Discriminate(tau=tau)), disco_batch(old), logp_N=logp)
        assert got == pytest.approx(expected, abs=tol)


def test_disco_weighs_a_question_whatever_its_difficulty() -> None:
    """DisCO (arXiv:2505.12366), by hand: a question's weight does not depend on its share p of right answers.

    GRPO's is √(p (1 − p)), here with n − 1.
    """
    for right in (1, 2, 3):
        episodes = [answer(i, "q", 1, float(i < right)) for i in range(4)]
        batch = batch_of(episodes, logp_old_N=[-1.0] * 4)
        _, slopes = objective(method("disco"), batch, logp_N=[-1.0] * 4)
        assert sum(abs(s) for s in slopes["logp_N"]) == pytest.approx(2.0)
        grpo = method("grpo").but(penalties=())
        _, slopes = objective(grpo, batch, logp_N=[-1.0] * 4)
        p = right / 4
        bessel = math.sqrt(3 / 4)
        assert sum(abs(s) for s in slopes["logp_N"]) == pytest.approx(2 * math.sqrt(p * (1 - p)) * bessel, rel=1e-5)


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_discos_trust_region_by_hand(tokens: int) -> None:
    """trust_coef (mean drift − kl_limit)₊ times the drift of each token, over the tokens that are learned."""
    right = [1.0] * tokens
    batch = batch_of([answer(1, "g", tokens, 1.0)], right_N=right, logp_old_N=[-1.0] * tokens)
    logp = [-1.5] * tokens
    drift, hinge = 0.5, 10.0 * (0.5 - 0.1)
    found = told(Discriminate(trust_coef=10.0, kl_limit=0.1), batch, logp, "trust")
    assert found == pytest.approx([-hinge * drift] * tokens)
