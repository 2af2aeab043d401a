"""Worked numbers of the methods whose difference is credit, curriculum or rollout.

Each docstring says where its numbers come from. Whole objectives are computed here by plain loops over lists, from the
formula and its derivative by hand; nothing of the package is used for it.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hand import Status, Use, answer, batch_of, by_episode, column, mean, objective, sample_std

from gruppo.data import Batch, Key
from gruppo.methods import method
from gruppo.methods.gpg import CentredPerUseful
from gruppo.methods.grpo_passk import BestOfK
from gruppo.methods.opo import LengthWeighted
from gruppo.methods.reinforce_pp import WhitenedReturn
from gruppo.methods.reinforce_pp_baseline import WhitenedCentred
from gruppo.methods.remax import AgainstGreedy
from gruppo.pieces import advantage
from gruppo.stages import Context
from gruppo.stages.credit import GroupCentred
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.requires import Samples

ONE_RIGHT = (1.0, 0.0, 0.0, 0.0)
GROUPED = [GroupCentred(), WhitenedCentred(), CentredPerUseful(), LengthWeighted(), BestOfK()]


def group(rewards: Sequence[float], tokens: int | Sequence[int] = 1, name: str = "g", first: int = 0) -> list:
    lengths = [tokens] * len(rewards) if isinstance(tokens, int) else tokens
    return [answer(first + i, name, n, r) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]


def adv(credit: object, batch: Batch) -> list[float]:
    return column(credit(Context(), batch)["adv_N"])  # type: ignore[operator]


def close(a: object, b: object, tol: float = 1e-12) -> None:
    assert a == pytest.approx(b, abs=tol, rel=0)


# Two groups of three answers, ratios on both sides of the clip.

LENGTHS, GROUPS = [2, 1, 3, 1, 2, 2], ["p", "p", "p", "q", "q", "q"]
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.5, 0.0]
LOGP = [-0.5, -1.0, -0.7, -1.2, -0.3, -2.0, -0.9, -1.5, -0.4, -0.8, -1.1]
OLD = [-0.9, -0.95, -0.7, -0.8, -0.6, -1.9, -1.3, -1.1, -0.45, -0.8, -1.6]
REF = [-0.6, -1.1, -0.2, -1.2, -0.9, -1.0, -0.9, -1.0, -1.4, -0.3, -1.1]
B, T = len(LENGTHS), sum(LENGTHS)


def hand_batch(*extra: object, old: Sequence[float] = (), ref: Sequence[float] = ()) -> Batch:
    answers = [answer(i, g, n, r) for i, (g, n, r) in enumerate(zip(GROUPS, LENGTHS, REWARDS, strict=True))]
    return batch_of([*answers, *extra], logp_old_N=[*OLD, *old], logp_ref_N=[*REF, *ref])  # type: ignore[list-item]


def each_token(per_answer: Sequence[float]) -> list[float]:
    return [a for a, n in zip(per_answer, LENGTHS, strict=True) for _ in range(n)]


def centred() -> list[float]:
    return [r - mean([REWARDS[j] for j in range(B) if GROUPS[j] == GROUPS[i]]) for i, r in enumerate(REWARDS)]


def whitened(x: Sequence[float]) -> list[float]:
    m = mean(x)
    return [(v - m) / math.sqrt(math.fsum((w - m) ** 2 for w in x) / (len(x) - 1) + 1e-8) for v in x]


def clip_term(lp: float, old: float, a: float) -> tuple[float, float]:
    """min(rA, clip(r, .8, 1.2) A), and its derivative by log π."""
    r = math.exp(lp - old)
    plain, clipped = r * a, min(max(r, 0.8), 1.2) * a
    return (plain, r * a) if plain <= clipped else (clipped, 0.0)


def clipped_by_loops(advs: Sequence[float], weights: Sequence[float]) -> tuple[float, list[float]]:
    """Σ_t w_t PPOclip(r_t, A_t), and its slope."""
    parts = [clip_term(lp, old, a) for lp, old, a in zip(LOGP, OLD, advs, strict=True)]
    return (
        math.fsum(w * v for w, (v, _) in zip(weights, parts, strict=True)),
        [w * d for w, (_, d) in zip(weights, parts, strict=True)],
    )


# REINFORCE++


@pytest.mark.parametrize("credit", [WhitenedReturn(), WhitenedCentred()], ids=["plain", "baseline"])
def test_reinforce_pp_of_four_answers(credit: object) -> None:
    """By hand: one token each, R = [1, 0, 0, 0]: mean .25, var .25 → [1.5, −.5, −.5, −.5]; 1e-8 moves it by 3e-8."""
    close(adv(credit, batch_of(group(ONE_RIGHT))), [1.5, -0.5, -0.5, -0.5], 1e-7)


@pytest.mark.parametrize("credit", [WhitenedReturn(), WhitenedCentred()], ids=["plain", "baseline"])
def test_reinforce_pp_is_white(credit: object) -> None:
    """verl masked_whiten: over the tokens the mean is 0 and the variance, with n − 1, is 1."""
    a = adv(credit, hand_batch())
    close(mean(a), 0.0)
    close(sample_std(a), 1.0, 1e-6)


@pytest.mark.parametrize("credit", [WhitenedReturn(), WhitenedCentred()], ids=["plain", "baseline"])
def test_reinforce_pp_edges(credit: object) -> None:
    """A batch of equal rewards: the numerator is 0, so A = 0 exactly. One valid token has no variance: A = 0."""
    assert adv(credit, batch_of([*group((0.7,) * 3, 2), *group((0.7,) * 2, 1, "h", 9)])) == [0.0] * 8
    assert adv(credit, batch_of([answer(1, "g", 1, 1.0)])) == [0.0]
    failed = answer(2, "g", 2, 1.0, status=Status.ENV_ERROR)
    assert adv(credit, batch_of([answer(1, "g", 1, 1.0), failed])) == [0.0] * 3


def test_reinforce_pp_return() -> None:
    """By hand: r_t = 1[t = T] R − β (log π_old − log π_ref)_t, G_t = r_t + γ G_{t+1}; γ = .5, β = .1.

    Answer 1, R = 1, KL (.4, −.2): r = (−.04, 1.02), G = (.47, 1.02). Answer 2, R = 0, KL (.2): G = (−.02).
    """
    batch = batch_of(
        [answer(1, "a", 2, 1.0), answer(2, "b", 1, 0.0)], logp_old_N=[-0.6, -1.2, -0.8], logp_ref_N=[-1.0, -1.0, -1.0]
    )
    close(adv(WhitenedReturn(gamma=0.5, kl_coef=0.1), batch), whitened([0.47, 1.02, -0.02]))


def test_reinforce_pp() -> None:
    """REINFORCE++ (arXiv:2501.03262, verl core_algos): token mean of PPOclip(r, whiten(G)), γ = 1, β = .001."""
    returns: list[float] = []
    for olds, refs, reward in zip(by_episode(OLD, LENGTHS), by_episode(REF, LENGTHS), REWARDS, strict=True):
        kl = [0.001 * (o - f) for o, f in zip(olds, refs, strict=True)]
        returns += [reward - math.fsum(kl[t:]) for t in range(len(kl))]
    value, slope = clipped_by_loops(whitened(returns), [1 / T] * T)
    got, slopes = objective(method("reinforce_pp"), hand_batch(), logp_N=LOGP)
    close(got, value, 1e-10)
    close(slopes["logp_N"], slope, 1e-10)


def test_reinforce_pp_baseline() -> None:
    """REINFORCE++-baseline (arXiv:2501.03262): token mean of PPOclip(r, whiten(R − group mean)) − β k2, β = .001."""
    value, slope = clipped_by_loops(whitened(each_token(centred())), [1 / T] * T)
    value -= math.fsum(0.001 * 0.5 * (lp - ref) ** 2 / T for lp, ref in zip(LOGP, REF, strict=True))
    slope = [s - 0.001 * (lp - ref) / T for s, lp, ref in zip(slope, LOGP, REF, strict=True)]
    got, slopes = objective(method("reinforce_pp_baseline"), hand_batch(), logp_N=LOGP)
    close(got, value, 1e-10)
    close(slopes["logp_N"], slope, 1e-10)


# Dr.GRPO


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


# ReMax


def greedy(uid: int, name: str, reward: float | None, **fields: object):
    return answer(uid, name, 2, reward, use=Use.BASELINE, **fields)


def test_remax_of_one_sample() -> None:
    """By hand, samples=1: R = 1, b = 1 → 0; R = 0, b = 1 → −1 on every token; R = 1, b = 0 → 1."""
    for reward, base, expected in ((1.0, 1.0, 0.0), (0.0, 1.0, -1.0), (1.0, 0.0, 1.0)):
        batch = batch_of([answer(1, "g", 3, reward), greedy(2, "g", base)])
        assert adv(AgainstGreedy(), batch)[:3] == [expected] * 3


def test_remax_baselines_belong_to_their_prompt() -> None:
    """By hand: g has b = 1, h has b = .25; two greedy answers to one group (two prompts) count with their mean."""
    batch = batch_of([answer(1, "g", 1, 0.5), greedy(2, "g", 1.0), answer(3, "h", 1, 0.5), greedy(4, "h", 0.25)])
    close([adv(AgainstGreedy(), batch)[i] for i in (0, 3)], [-0.5, 0.25])
    two = batch_of([answer(1, "g", 1, 1.0), greedy(2, "g", 1.0), greedy(3, "g", 0.0)])
    close(adv(AgainstGreedy(), two)[0], 0.5)


@pytest.mark.parametrize(
    "missing", [[], [greedy(2, "g", None, status=Status.TIMEOUT)], [greedy(2, "g", 1.0, status=Status.ENV_ERROR)]]
)
def test_remax_without_a_judged_greedy_answer_teaches_nothing(missing: list) -> None:
    """A failure is a status, never a reward of 0: there is no baseline, so A = 0, and not R."""
    batch = batch_of([answer(1, "g", 2, 1.0), *missing, answer(3, "h", 1, 1.0), greedy(4, "h", 0.0)])
    a = adv(AgainstGreedy(), batch)
    assert a[:2] == [0.0, 0.0] and a[-3] == 1.0


def test_remax_returns_to_go() -> None:
    """A_t = Σ_{s≥t} r_s − b (verl core_algos): a turn's reward of .5 at token 2 of 3 and 1 at the end; b = .25.

    G = (1.5, 1.5, 1), so A = (1.25, 1.25, .75).
    """
    e = answer(1, "g", 3, 1.0)
    start, stop = e.turns[0].start, e.turns[0].stop
    e.turns = [replace(e.turns[0], stop=stop - 1, reward={"tool": 0.5}), replace(e.turns[0], start=start + 2)]
    close(adv(AgainstGreedy(), batch_of([e, greedy(2, "g", 0.25)]))[:3], [1.25, 1.25, 0.75])


def test_remax() -> None:
    """ReMax (arXiv:2310.10505): J = 1/B Σ_i (R_i − b) Σ_t log π; greedy answers are in no mean and not learned."""
    base = {"p": 1.0, "q": 0.25}
    extra = [greedy(10, "p", 1.0), greedy(11, "q", 0.25)]
    a = [r - base[g] for r, g in zip(REWARDS, GROUPS, strict=True)]
    value = math.fsum(x * sum(lps) / B for x, lps in zip(a, by_episode(LOGP, LENGTHS), strict=True))
    batch = hand_batch(*extra, old=[0.0] * 4, ref=[0.0] * 4)
    got, slopes = objective(method("remax"), batch, logp_N=[*LOGP, *[0.0] * 4])
    close(got, value)
    close(slopes["logp_N"], [*(x / B for x in each_token(a)), *[0.0] * 4])


# GPG


def test_gpg_of_a_useful_and_a_dead_group() -> None:
    """By hand: B = 8, one useful group of 4 → α = 2, R = [1, 0, 0, 0] → [1.5, −.5, −.5, −.5].

    The dead group is all right: verl's M = count_nonzero(R) would be 5, and α = 8/5.
    """
    batch = batch_of([*group(ONE_RIGHT), *group((1.0,) * 4, 1, "dead", 9)])
    close(adv(CentredPerUseful(), batch), [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0])


def test_gpg_of_dead_groups_only() -> None:
    """M = 0: α = B/1, and A = 0 all the same."""
    batch = batch_of([*group((0.7,) * 3), *group((0.1,) * 3, 1, "h", 9)])
    assert adv(CentredPerUseful(), batch) == [0.0] * 6


def test_gpg() -> None:
    """GPG (arXiv:2504.02546): J = 1/Σ T_i Σ_i Σ_t α (R_i − mean) log π; a dead group of two answers makes α = 8/6."""
    extra, n = [answer(10, "dead", 1, 1.0), answer(11, "dead", 2, 1.0)], T + 3
    a = [8 / 6 * x for x in each_token(centred())]
    batch = hand_batch(*extra, old=[0.0] * 3, ref=[0.0] * 3)
    got, slopes = objective(method("gpg"), batch, logp_N=[*LOGP, -1.0, -1.0, -1.0])
    close(got, math.fsum(x * lp for x, lp in zip(a, LOGP, strict=True)) / n)
    close(slopes["logp_N"], [*(x / n for x in a), 0.0, 0.0, 0.0])


# OPO


def test_opo_of_two_answers() -> None:
    """By hand: R = (1, 0), lengths 1 and 3: b = (1 · 1 + 3 · 0) / 4 = .25, A = (.75, −.25); Σ_i |o_i| A_i = 0."""
    a = adv(LengthWeighted(), batch_of(group((1.0, 0.0), (1, 3))))
    close(a, [0.75, -0.25, -0.25, -0.25])
    close(sum(a), 0.0)


def test_opo_baseline_has_the_least_variance() -> None:
    """b minimises Σ_i |o_i| (R_i − b)², the variance of the gradient if |∇ log π|² is the length (arXiv:2505.23585)."""
    rewards, lengths = (1.0, 0.3, 0.0, 0.6), (2, 5, 9, 3)
    a = adv(LengthWeighted(), batch_of(group(rewards, lengths)))
    b = rewards[0] - a[0]

    def spread(at: float) -> float:
        return sum(n * (r - at) ** 2 for r, n in zip(rewards, lengths, strict=True))

    assert all(spread(b) < spread(b + step) for step in (-1e-3, 1e-3))
    assert abs(b - mean(rewards)) > 0.01  # and it is not the plain mean


def test_opo() -> None:
    """OPO (arXiv:2505.23585): J = 1/B Σ_i (R_i − b) Σ_t log π, b = Σ |o_j| R_j / Σ |o_j| of the group."""
    a = []
    for i, r in enumerate(REWARDS):
        rows = [j for j in range(B) if GROUPS[j] == GROUPS[i]]
        a.append(r - sum(LENGTHS[j] * REWARDS[j] for j in rows) / sum(LENGTHS[j] for j in rows))
    got, slopes = objective(method("opo"), hand_batch(), logp_N=LOGP)
    close(got, math.fsum(x * sum(lps) / B for x, lps in zip(a, by_episode(LOGP, LENGTHS), strict=True)))
    close(slopes["logp_N"], [x / B for x in each_token(a)])


# Pass@k


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
    with pytest.raises(ValueError, match=r"k=1 has no meaning here. Use a number >= 2"):
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


# what they share


@pytest.mark.parametrize("credit", GROUPED, ids=lambda c: type(c).__name__)
def test_equal_groups_and_groups_of_one(credit: object) -> None:
    """Equal rewards, here .7 whose mean is rounded, and a single answer: exactly 0, whatever the method."""
    assert adv(credit, batch_of(group((0.7,) * 3, (1, 2, 3)))) == [0.0] * 6
    assert adv(credit, batch_of(group((1.0,), 2))) == [0.0] * 2
    assert [r.least for r in credit.requires if isinstance(r, Samples)] == [2]  # type: ignore[attr-defined]


def test_fields_are_the_papers() -> None:
    """The numbers of the papers, or of verl, that the records claim."""
    pp, ppb, passk = (method(n) for n in ("reinforce_pp", "reinforce_pp_baseline", "grpo_passk"))
    assert pp.credit == WhitenedReturn(gamma=1.0, kl_coef=0.001) and pp.penalties == ()
    assert pp.objective == ppb.objective == (ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),)
    assert ppb.penalties == (ReferenceKL(kl_coef=0.001, mean="token", estimator="k2"),)
    assert method("dr_grpo").penalties == ()
    assert method("dr_grpo").objective == (ClippedSurrogate(0.2, 0.2, mean="episode_sum/max_tokens"),)
    assert method("gpg").objective == (PolicyGradient(mean="token"),)
    for name in ("opo", "gpg", "remax", "dr_grpo"):
        assert method(name).update.steps == 1, f"{name} is exactly on-policy"
    assert passk.objective == method("grpo").objective and passk.penalties == method("grpo").penalties
