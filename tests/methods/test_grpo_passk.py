"""Evidence for grpo_passk: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import itertools
import math

import evidence
import pytest
import torch
from hand import batch_of, close, column, mean, objective, sample_std
from six_answers import LOGP, REF
from six_graded import GROUPS, LENGTHS, ONE_RIGHT, REWARDS, B, adv, clipped_by_loops, each_token, group, hand_batch

from gruppo.data import Key
from gruppo.methods import method
from gruppo.methods.grpo_passk import BestOfK
from gruppo.pieces import advantage

test_laws = evidence.laws("grpo_passk")
test_asks = evidence.asks("grpo_passk")
test_terms = evidence.terms("grpo_passk")
test_planted_mistakes = evidence.planted("grpo_passk")
test_equivalences = evidence.equivalences("grpo_passk")
test_resume = evidence.resume("grpo_passk")


def test_passk_of_whole_groups() -> None:
    """verl compute_grpo_passk_outcome_advantage (k = G), by hand: a single best has (r_max − r_second) / (std + 1e-6).

    [1, 0, 0, 0]: std .5 → 2. Two right: 0 for all. [.9, .5, .1]: std .4 → 1. All wrong, and one alone: 0.
    """
    for rewards, expected in (
        (ONE_RIGHT, [1 / (0.5 + 1e-6), 0, 0, 0]),
        ((1.0, 0.0, 1.0), [0, 0, 0]),
        ((0.5, 0.9, 0.1), [0, 0.4 / (0.4 + 1e-6), 0]),
        ((0.0, 0.0), [0, 0]),
        ((1.0,), [0]),
        ((-1.0, -3.0), [2 / (math.sqrt(2) + 1e-6), 0]),
    ):
        for k in (len(rewards), len(rewards) + 3):  # a group of less than k counts as a whole
            close(adv(BestOfK(k=max(k, 2)), batch_of(group(rewards))), expected)
    close(adv(BestOfK(k=4, eps=1.5), batch_of(group(ONE_RIGHT))), [0.5, 0, 0, 0])
    with pytest.raises(ValueError, match=r"k=1 is out of range: use a whole number >= 2"):
        BestOfK(k=1)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_passk_of_all_choices(k: int) -> None:
    """The mean over every choice of k − 1 companions, by loops; for rewards of 0 and 1 C(wrong, k−1) / C(n−1, k−1)."""
    rewards, key = [0.3, 1.0, -0.5, 1.0, 0.8], Key(torch.zeros(5, dtype=torch.int64), 1)
    for x in (rewards, [1.0, 0.0, 1.0, 0.0, 0.0]):
        expected = []
        for i in range(5):
            sets = list(itertools.combinations([j for j in range(5) if j != i], k - 1))
            expected.append(mean([max(x[i], *(x[j] for j in s)) - max(x[j] for j in s) for s in sets]))
        close(column(advantage.lead(torch.tensor(x, dtype=torch.float64), key, k)), expected)
    assert expected[0] == pytest.approx(math.comb(3, k - 1) / math.comb(4, k - 1))


def test_passk_gradient_is_that_of_the_best_of_k() -> None:
    """arXiv:2503.19595, 2505.15201: E[k/n Σ_i A_i ∇ log π(a_i)] = ∇ E[max of k R], by enumeration of all groups.

    Three arms of rewards 0, .4, 1; n = 3 answers, k = 2 and 3; before the division by the deviation.
    """
    logits = torch.tensor([0.3, -0.2, -1.0], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)
    logp, key = torch.log_softmax(logits, 0), Key(torch.zeros(3, dtype=torch.int64), 1)
    for k in (2, 3):
        tries = [torch.tensor(arms) for arms in itertools.product(range(3), repeat=k)]
        best = torch.stack([logp[rows].sum().exp() * reward[rows].max() for rows in tries]).sum()
        [true] = torch.autograd.grad(best, logits, retain_graph=True)
        estimate = torch.zeros(3, dtype=torch.float64)
        for arms in itertools.product(range(3), repeat=3):
            rows = torch.tensor(arms)
            worth = k / 3 * (advantage.lead(reward[rows], key, k) * logp[rows]).sum()
            [score] = torch.autograd.grad(worth, logits, retain_graph=True)
            estimate += logp[rows].sum().exp().detach() * score
        close(column(estimate), column(true))
        assert float(true.norm()) > 0.1


def test_passk() -> None:
    """The whole objective: 1/B Σ_i 1/T_i Σ_t [PPOclip(r, A_i) − .04 k3]; A by loops, k = 2: the mean over one other."""
    a = []
    for i in range(B):
        mine = [REWARDS[j] for j in range(B) if GROUPS[j] == GROUPS[i]]
        others = [REWARDS[j] for j in range(B) if GROUPS[j] == GROUPS[i] and j != i]
        a.append(mean([max(REWARDS[i] - r, 0.0) for r in others]) / (sample_std(mine) + 1e-6))
    assert a[0] > 1 and a[3] > a[4] > 0.4 and a[1] == a[2] == a[5] == 0.0
    weights = [1 / B / n for n in LENGTHS for _ in range(n)]
    value, slope = clipped_by_loops(each_token(a), weights)
    for t, (lp, ref, w) in enumerate(zip(LOGP, REF, weights, strict=True)):
        d = ref - lp
        value -= 0.04 * w * (math.exp(d) - d - 1)
        slope[t] -= 0.04 * w * (1 - math.exp(d))
    got, slopes = objective(method("grpo_passk"), hand_batch(), logp_N=LOGP)
    close(got, value, 1e-10)
    close(slopes["logp_N"], slope, 1e-10)
