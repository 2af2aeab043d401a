"""Evidence for ppo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import answer, batch_of, by_episode, mean, objective
from six_answers import GROUPS, LENGTHS, LOGP, OLD, REWARDS, T, clip_term, close

from gruppo.methods import method

test_laws = evidence.laws("ppo")
test_asks = evidence.asks("ppo")
test_terms = evidence.terms("ppo")
test_equivalences = evidence.equivalences("ppo")
test_resume = evidence.resume("ppo")


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
