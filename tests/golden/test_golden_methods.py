"""What the methods on six_answers share: clips that bind, the first epoch, equal groups, and the papers' numbers.

The whole objective of each, by plain loops, is in its own file in tests/methods.
"""

import math

from hand import Use, answer, batch_of, by_episode, objective
from six_answers import GROUPS, LENGTHS, LOGP, OLD, REF, REWARDS, B, close, group_advantages, hand_batch

from gruppo.methods import method
from gruppo.methods.disco import Discriminate
from gruppo.stages.credit import LeaveOneOut
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL


def test_some_tokens_are_clipped_and_some_are_not() -> None:
    """The batch is worth something: both clips bind somewhere, for both signs of the advantage."""
    adv = group_advantages(REWARDS)
    seen = set()
    for lps, olds, a in zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), adv, strict=True):
        for lp, old in zip(lps, olds, strict=True):
            r = math.exp(lp - old)
            seen.add((a > 0, "high" if r > 1.2 else "low" if r < 0.8 else "inside"))
    assert seen >= {(True, "high"), (True, "inside"), (False, "low"), (False, "high"), (False, "inside")}


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
