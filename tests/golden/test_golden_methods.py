"""The whole objective of each method, and its gradient, on batches written by hand.

What is expected is computed here by plain loops over lists, from the formula of the paper and its derivative by hand;
nothing of the package is used for it. Two groups of three answers; ratios on both sides of the clip.
"""

import math

import pytest
from hand import Use, answer, batch_of, by_episode, mean, objective, sample_std

from gruppo.methods import method
from gruppo.methods.disco import Discriminate
from gruppo.stages.credit import LeaveOneOut
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL

LENGTHS = [2, 1, 3, 1, 2, 2]
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
GROUPS = ["p", "p", "p", "q", "q", "q"]
LOGP = [-0.5, -1.0, -0.7, -1.2, -0.3, -2.0, -0.9, -1.5, -0.4, -0.8, -1.1]
OLD = [-0.9, -0.95, -0.7, -0.8, -0.6, -1.9, -1.3, -1.1, -0.45, -0.8, -1.6]
REF = [-0.6, -1.1, -0.2, -1.2, -0.9, -1.0, -0.9, -1.0, -1.4, -0.3, -1.1]
B, T = len(LENGTHS), sum(LENGTHS)


def hand_batch(rewards: list[float] = REWARDS):
    return batch_of(
        [answer(i, g, n, r) for i, (g, n, r) in enumerate(zip(GROUPS, LENGTHS, rewards, strict=True))],
        logp_old_N=OLD,
        logp_ref_N=REF,
    )


def close(a: object, b: object) -> None:
    assert a == pytest.approx(b, abs=1e-10, rel=1e-10)


def clip_term(lp: float, old: float, a: float, low: float, high: float) -> tuple[float, float]:
    """min(rA, clip(r) A), and its derivative by log π: rA where the clip does not bind, else 0."""
    r = math.exp(lp - old)
    plain, clipped = r * a, min(max(r, 1 - low), 1 + high) * a
    return (plain, r * a) if plain <= clipped else (clipped, 0.0)


def group_advantages(rewards: list[float], eps: float = 1e-6) -> list[float]:
    out = []
    for g in ("p", "q"):
        mine = [r for r, name in zip(rewards, GROUPS, strict=True) if name == g]
        out += [(r - mean(mine)) / (sample_std(mine) + eps) for r in mine]
    return out


def test_some_tokens_are_clipped_and_some_are_not() -> None:
    """The batch is worth something: both clips bind somewhere, for both signs of the advantage."""
    adv = group_advantages(REWARDS)
    seen = set()
    for lps, olds, a in zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), adv, strict=True):
        for lp, old in zip(lps, olds, strict=True):
            r = math.exp(lp - old)
            seen.add((a > 0, "high" if r > 1.2 else "low" if r < 0.8 else "inside"))
    assert seen >= {(True, "high"), (True, "inside"), (False, "low"), (False, "high"), (False, "inside")}


def test_reinforce() -> None:
    """REINFORCE (Williams 1992): J = 1/B Σ_i (R_i − b) Σ_t log π, b = .3 (memory); dJ/dlog π_it = (R_i − b) / B."""
    b = 0.3
    value, slope = 0.0, []
    for lps, r in zip(by_episode(LOGP, LENGTHS), REWARDS, strict=True):
        value += (r - b) * sum(lps) / B
        slope += [(r - b) / B] * len(lps)
    got, slopes = objective(method("reinforce"), hand_batch(), memory={"baseline": b}, logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_rloo() -> None:
    """RLOO (arXiv:2402.14740): R_i = r_i − β Σ_t (log π_old − log π_ref), A_i = R_i − mean of the others.

    J = 1/B Σ_i A_i Σ_t log π
    """
    beta = 0.03
    olds, refs = by_episode(OLD, LENGTHS), by_episode(REF, LENGTHS)
    total = [r - beta * (sum(o) - sum(f)) for r, o, f in zip(REWARDS, olds, refs, strict=True)]
    value, slope = 0.0, []
    for i, lps in enumerate(by_episode(LOGP, LENGTHS)):
        others = [total[j] for j in range(B) if GROUPS[j] == GROUPS[i] and j != i]
        a = total[i] - sum(others) / 2
        value += a * sum(lps) / B
        slope += [a / B] * len(lps)
    got, slopes = objective(method("rloo"), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_grpo() -> None:
    """GRPO (arXiv:2402.03300): J = mean over q of 1/G Σ_i 1/T_i Σ_t [PPOclip(r, A_i) − β k3], β = .04, ε = .2.

    d k3/dlog π = 1 − e^d, d = log π_ref − log π
    """
    adv, beta = group_advantages(REWARDS), 0.04
    value, slope = 0.0, []
    for lps, olds, refs, a in zip(*(by_episode(x, LENGTHS) for x in (LOGP, OLD, REF)), adv, strict=True):
        for lp, old, ref in zip(lps, olds, refs, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.2)
            d = ref - lp
            k3, dk3 = math.exp(d) - d - 1, 1 - math.exp(d)
            value += (v - beta * k3) / len(lps) / 3 / 2  # tokens, answers of a group, groups
            slope.append((dv - beta * dk3) / len(lps) / 3 / 2)
    got, slopes = objective(method("grpo"), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_dapo() -> None:
    """DAPO (arXiv:2503.14476): 1/Σ T_i Σ_i Σ_t PPOclip(r, A_i), ε_lo = .2, ε_hi = .28; shaped rewards."""
    shaped = [1.0, 0.0, -0.5, 1.0, 0.25, 0.0]
    adv = group_advantages(shaped)
    value, slope = 0.0, []
    for lps, olds, a in zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), adv, strict=True):
        for lp, old in zip(lps, olds, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.28)
            value += v / T
            slope.append(dv / T)
    got, slopes = objective(method("dapo"), hand_batch(shaped), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_dapo_dual_clip() -> None:
    """Where A < 0, max(PPOclip, cA) (arXiv:1912.09729); verl's DAPO has c = 10, here it is 1.3 so that it binds."""
    adv, c = group_advantages(REWARDS), 1.3
    value, slope, bound = 0.0, [], 0
    for lps, olds, a in zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), adv, strict=True):
        for lp, old in zip(lps, olds, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.28)
            if a < 0 and v < c * a:
                v, dv, bound = c * a, 0.0, bound + 1
            value += v / T
            slope.append(dv / T)
    assert bound > 0
    dual = method("dapo").but(objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, clip_dual=c, mean="token"))
    got, slopes = objective(dual, hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


V_OLD = [0.2, 0.4, 0.1, -0.3, 0.0, 0.6, 0.5, 0.9, 0.2, 0.3, -0.1]
V_NEW = [0.9, 0.3, 0.1, 0.4, 0.05, -0.2, 1.4, 0.8, 0.2, -0.5, 0.7]


def gae_by_loops(gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """(whitened advantages, returns): δ_t = r_t + γ V_{t+1} − V_t, Â_t = δ_t + γλ Â_{t+1}, reward at the last token."""
    adv, ret = [], []
    for values, reward in zip(by_episode(V_OLD, LENGTHS), REWARDS, strict=True):
        mine, following, running = [], 0.0, 0.0
        for t in reversed(range(len(values))):
            delta = (reward if t == len(values) - 1 else 0.0) + gamma * following - values[t]
            running = delta + gamma * lam * running
            following = values[t]
            mine.insert(0, running)
        adv += mine
        ret += [a + v for a, v in zip(mine, values, strict=True)]
    m = mean(adv)
    scale = math.sqrt(math.fsum((a - m) ** 2 for a in adv) / (len(adv) - 1) + 1e-8)
    return [(a - m) / scale for a in adv], ret


def test_ppo_policy() -> None:
    """PPO (arXiv:1707.06347, verl core_algos): token-mean PPOclip(r, whiten(Â)), γ = 1, λ = .95, ε = .2."""
    adv, _ = gae_by_loops(1.0, 0.95)
    value, slope = 0.0, []
    for lp, old, a in zip(LOGP, OLD, adv, strict=True):
        v, dv = clip_term(lp, old, a, 0.2, 0.2)
        value += v / T
        slope.append(dv / T)
    batch = batch_of(
        [answer(i, g, n, r) for i, (g, n, r) in enumerate(zip(GROUPS, LENGTHS, REWARDS, strict=True))],
        logp_old_N=OLD,
        value_critic_N=V_OLD,
    )
    got, slopes = objective(method("ppo"), batch, logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_ppo_critic() -> None:
    """PPO (arXiv:1707.06347, verl core_algos): J_V = −½ token-mean max((V − R̂)², (clip(V, V_old ± .5) − R̂)²)."""
    _, ret = gae_by_loops(1.0, 0.95)
    value, slope, clips = 0.0, [], 0
    for v, old, target in zip(V_NEW, V_OLD, ret, strict=True):
        near = min(max(v, old - 0.5), old + 0.5)
        plain, clipped = (v - target) ** 2, (near - target) ** 2
        value -= 0.5 * max(plain, clipped) / T
        slope.append(-(v - target) / T if plain >= clipped else 0.0)
        clips += clipped > plain
    assert clips > 0
    batch = batch_of(
        [answer(i, g, n, r) for i, (g, n, r) in enumerate(zip(GROUPS, LENGTHS, REWARDS, strict=True))],
        logp_old_N=OLD,
        value_critic_N=V_OLD,
    )
    got, slopes = objective(method("ppo"), batch, role="critic", value_N=V_NEW)
    close(got, value)
    close(slopes["value_N"], slope)


def test_the_critic_learns_only_where_the_return_is_known() -> None:
    """An answer apart has no return in the batch, so it is no target of 0 for the critic (found by reading)."""
    alone = [answer(1, "p", 2, 1.0)]
    both = [*alone, answer(2, "p", 2, 1.0, use=Use.APART)]
    one = objective(
        method("ppo"),
        batch_of(alone, logp_old_N=[-1.0] * 2, value_critic_N=[0.2, 0.4]),
        role="critic",
        value_N=[0.9, 0.3],
    )
    two = objective(
        method("ppo"),
        batch_of(both, logp_old_N=[-1.0] * 4, value_critic_N=[0.2, 0.4, 0.5, 0.5]),
        role="critic",
        value_N=[0.9, 0.3, 0.5, 0.5],
    )
    close(two[0], one[0])
    close(two[1]["value_N"], [*one[1]["value_N"], 0.0, 0.0])


# DisCO: a third group is all right; it has no wrong answer to compare with, and still counts in Q.


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


# what the methods share


def test_first_epoch_gradient_is_the_advantage() -> None:
    """Schulman et al. 2017: in the first epoch the ratio is 1, so the gradient is A ∇ log π; here GRPO's, per token."""
    grpo = method("grpo").but(penalties=())
    adv = group_advantages(REWARDS)
    batch = batch_of(
        [answer(i, g, n, r) for i, (g, n, r) in enumerate(zip(GROUPS, LENGTHS, REWARDS, strict=True))], logp_old_N=LOGP
    )
    _, slopes = objective(grpo, batch, logp_N=LOGP)
    close(slopes["logp_N"], [a / n / B for a, n in zip(adv, LENGTHS, strict=True) for _ in range(n)])


def test_equal_groups_leave_only_the_kl() -> None:
    """GRPO (arXiv:2402.03300), by hand: all-equal rewards, so only the KL acts: −β (1 − e^d) / T_i / B."""
    _, slopes = objective(method("grpo"), hand_batch([1.0] * 6), logp_N=LOGP)
    expected = []
    for lps, refs in zip(by_episode(LOGP, LENGTHS), by_episode(REF, LENGTHS), strict=True):
        expected += [-0.04 * (1 - math.exp(r - lp)) / len(lps) / B for lp, r in zip(lps, refs, strict=True)]
    close(slopes["logp_N"], expected)


def test_fields_are_the_papers() -> None:
    """The numbers of the papers (of verl for clip_value) that the records claim."""
    grpo, dapo, ppo, rloo, disco = (method(n) for n in ("grpo", "dapo", "ppo", "rloo", "disco"))
    assert grpo.objective == (ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="sequence"),)
    assert grpo.penalties == (ReferenceKL(kl_coef=0.04, mean="sequence"),)
    assert dapo.objective == (ClippedSurrogate(clip_low=0.2, clip_high=0.28, mean="token"),) and dapo.penalties == ()
    assert (ppo.credit.gamma, ppo.credit.lam, ppo.objective["critic"][0].clip_value) == (1.0, 0.95, 0.5)
    assert rloo.credit == LeaveOneOut(kl_coef=0.03)
    assert disco.objective == (Discriminate(tau=10.0, trust_coef=1e3, kl_limit=1e-4),)
