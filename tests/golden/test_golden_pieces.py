"""Worked numbers of the pieces. Each docstring says where its numbers come from."""

import math

import numpy as np
import pytest
import torch
from hand import answer, batch_of, close, column
from small_batches import paid

from gruppo.data import Key, Turn, gather
from gruppo.methods import method
from gruppo.pieces import advantage, divergence, shaping, surrogate
from gruppo.pieces.advantage import weighted_centre
from gruppo.pieces.diversity import self_bleu
from gruppo.stages import Ask, Context, Sampling, Schedule
from gruppo.stages.credit import Gae, GroupNormalised, LeaveOneOut
from gruppo.stages.reward import OverlongShaping, add_components
from gruppo.stages.select import RedrawEqualGroups, share_of
from gruppo.tasks import Task

ONE_GROUP = Key(torch.zeros(4, dtype=torch.int64), 1)
R = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)


# PPO


@pytest.mark.parametrize(
    ("lam", "expected"),
    [(1.0, [0.8, 0.6, 0.4]), (0.95, [0.751, 0.58, 0.4]), (0.0, [0.2, 0.2, 0.4])],
)
def test_gae(lam: float, expected: list[float]) -> None:
    """PPO (arXiv:1707.06347, verl core_algos), by hand: V = [.2, .4, .6], r = [0, 0, 1], γ = 1.

    δ = [0 + .4 − .2, 0 + .6 − .4, 1 + 0 − .6] = [.2, .2, .4]; λ = .95: .2 + .95 · .4 = .58, .2 + .95 · .58 = .751.
    """
    value = torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64)
    reward = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    adv, ret = advantage.gae(reward, value, torch.zeros(3, dtype=torch.int64), 1.0, lam)
    close(column(adv), expected)
    close(column(ret), [a + v for a, v in zip(expected, column(value), strict=True)])


@pytest.mark.parametrize("lam", [1.0, 0.95, 0.0])
def test_gae_of_a_batch(lam: float) -> None:
    """The same numbers through the room: reward at the last token, returns before whitening, then masked_whiten.

    verl core_algos: Ret_t = Â_t + V_t before whitening; whiten(x) = (x − mean) / sqrt(var + 1e-8), var with n − 1.
    """
    batch = batch_of([answer(1, "g", 3, 1.0)], value_critic_N=[0.2, 0.4, 0.6])
    out = Gae(gamma=1.0, lam=lam)(Context(), batch)
    adv = {1.0: [0.8, 0.6, 0.4], 0.95: [0.751, 0.58, 0.4], 0.0: [0.2, 0.2, 0.4]}[lam]
    close(column(out["ret_N"]), [a + v for a, v in zip(adv, [0.2, 0.4, 0.6], strict=True)])
    m = sum(adv) / 3
    var = sum((a - m) ** 2 for a in adv) / 2
    close(column(out["adv_N"]), [(a - m) / math.sqrt(var + 1e-8) for a in adv])


def test_whitening() -> None:
    """REINFORCE++ (verl core_algos), by hand: R = [1, 0, 0, 0]: mean .25, var .25 → [1.5, −.5, −.5, −.5]."""
    every = torch.ones(4, dtype=torch.bool)
    close(column(advantage.whiten(R, every)), [1.5, -0.5, -0.5, -0.5], 1e-7)
    masked = torch.tensor([1.0, 99.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    some = torch.tensor([True, False, True, True, True])
    close(column(advantage.whiten(masked, some)), [1.5, 0.0, -0.5, -0.5, -0.5], 1e-7)
    one = torch.tensor([False, True, False, False, False])
    close(
        column(advantage.whiten(masked, one)), [0.0, 99.0, 0.0, 0.0, 0.0]
    )  # PPO (arXiv:1707.06347, verl core_algos): one valid token is not whitened


def test_value_clip() -> None:
    """PPO (arXiv:1707.06347, verl core_algos): ½ max((V − R)², (clip(V, V_old ± c) − R)²), c = .5, by hand.

    V = 1, V_old = .2, R = 1.5: clip gives .7, (.5², .8²) → ½ · .64 = .32.  Inside the clip: V = .4 → ½ · 1.1² = .605.
    V = −1, V_old = .2, R = .5: clip gives −.3, (1.5², .8²) → ½ · 2.25 = 1.125.
    """
    value, old, target = (torch.tensor(x, dtype=torch.float64) for x in ([1.0, 0.4, -1.0], [0.2] * 3, [1.5, 1.5, 0.5]))
    close(column(surrogate.clipped_value_error(value, old, target, 0.5)), [0.32, 0.605, 1.125])


# GRPO


def test_group_normalised() -> None:
    """GRPO (arXiv:2402.03300), by hand: R = [1, 0, 0, 0] → sample std .5 → A = [1.5, −.5, −.5, −.5]; ΣA = 0.

    Population std would give 1.732, −.577 (a common slip); ε = 1e-6 in the denominator moves A by 3e-6.
    """
    batch = batch_of([answer(i, "g", 1, r) for i, r in enumerate((1.0, 0.0, 0.0, 0.0))])
    adv = column(GroupNormalised(eps=1e-6)(Context(), batch)["adv_N"])
    close(adv, [1.5, -0.5, -0.5, -0.5], 1e-5)
    close(sum(adv), 0.0)
    close(column(advantage.z_score(R, ONE_GROUP, eps=0.0)), [1.5, -0.5, -0.5, -0.5])
    close(column(advantage.z_score(R, ONE_GROUP, eps=0.0, ddof=0)), [math.sqrt(3), *[-math.sqrt(3) / 3] * 3])


def test_degenerate_groups() -> None:
    """GRPO (arXiv:2402.03300): an all-equal group gives exactly 0. A group of one: verl has A = R, ours is 0."""
    equal = torch.full((4,), 0.7, dtype=torch.float64)
    assert column(advantage.z_score(equal, ONE_GROUP)) == [0.0] * 4
    assert column(advantage.z_score(equal, ONE_GROUP, eps=0.0)) == [0.0] * 4  # no 0/0
    assert column(advantage.leave_one_out(equal, ONE_GROUP)) == [0.0] * 4
    alone = Key(torch.arange(4), 4)
    assert column(advantage.z_score(R, alone)) == [0.0] * 4
    assert column(advantage.leave_one_out(R, alone)) == [0.0] * 4


def test_kl_estimators() -> None:
    """GRPO (arXiv:2402.03300), by hand: π = .5, ref = .25: k3 = .19315, k1 = .69315, k2 = .24023.

    k1 = log 2; k2 = ½ log² 2; k3 = e^{−log 2} + log 2 − 1 = log 2 − ½.
    """
    logp, ref = torch.tensor([0.5]).double().log(), torch.tensor([0.25]).double().log()
    close(float(divergence.k1(logp, ref)), 0.69315, 1e-5)
    close(float(divergence.k2(logp, ref)), 0.24023, 1e-5)
    close(float(divergence.k3(logp, ref)), 0.19315, 1e-5)
    close(float(divergence.k3(logp, ref)), math.log(2) - 0.5)


def test_clipped_and_dual_clipped() -> None:
    """The usual surrogate: min(rA, clip(r, 1 − lo, 1 + hi) A); for A < 0 dual clip is max(·, cA), c = 3.

    r = 1.5, A = 1, hi = .28 → 1.28; r = 1.5, A = −1 → −1.5; r = .5, A = 1 → .5; r = .5, A = −1, lo = .2 → −.8;
    r = 5, A = −1 → −5, dual clipped −3.
    """
    r = torch.tensor([1.5, 1.5, 0.5, 0.5, 5.0], dtype=torch.float64)
    a = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    value = surrogate.clipped(r, a, 0.2, 0.28)
    close(column(value), [1.28, -1.5, 0.5, -0.8, -5.0])
    close(column(surrogate.dual_clipped(value, a, 3.0)), [1.28, -1.5, 0.5, -0.8, -3.0])
    assert column(surrogate.clip_fraction(r, a, 0.2, 0.28)) == [1, 0, 0, 1, 0]


# DAPO


def test_overlong() -> None:
    """DAPO (arXiv:2503.14476), by hand: Lmax = 20480, Lc = 4096: T = 16384 → 0; 18432 → −.5; 20480 → −1; above → −1."""
    lengths = np.array([1.0, 16384.0, 18432.0, 20480.0, 30000.0])
    close(shaping.overlong(lengths, 20480, 4096).tolist(), [0.0, 0.0, -0.5, -1.0, -1.0])


def test_overlong_of_episodes() -> None:
    """The same through the room; and with the run's budget: 10 tokens, of which a fifth (2) is the buffer."""
    episodes = [answer(i, "g", n, 1.0) for i, n in enumerate((16384, 18432, 20480, 20481))]
    shaped = OverlongShaping(budget_tokens=20480, buffer_tokens=4096)(Context(), episodes)
    close(list(shaped["overlong"]), [0.0, -0.5, -1.0, -1.0])
    short = [answer(i, "g", n, 1.0) for i, n in enumerate((8, 9, 10, 11))]
    ctx = Context(sampling=Sampling(max_tokens=10))
    close(list(OverlongShaping()(ctx, short)["overlong"]), [0.0, -0.5, -1.0, -1.0])


def test_the_filter_looks_at_the_task_not_at_the_shaped_reward() -> None:
    """DAPO (arXiv:2503.14476), by hand: filter on the metric, not on the shaped reward.

    g0: task (1, 1), lengths 2 and 10: shaped rewards differ (1 and 0), tasks do not → dropped.
    g1: task (1, 0), lengths 10 and 2: shaped rewards are equal (0 and 0), tasks differ → kept.
    """
    ctx = Context(sampling=Sampling(max_tokens=10))
    asked: list[int] = []
    task = Task("t", "1+1=", "2", 1, "hand")
    ctx.fresh = lambda n: asked.append(n) or [Ask(task, 2)] * n
    episodes = [answer(1, "g0", 2, 1.0), answer(2, "g0", 10, 1.0), answer(3, "g1", 10, 1.0), answer(4, "g1", 2, 0.0)]
    add_components(ctx, method("dapo").reward, episodes)
    assert [e.total for e in episodes] == [1.0, 0.0, 0.0, 0.0]
    keep, again = RedrawEqualGroups(max_rounds=3).episodes(ctx, episodes)
    assert keep == [False, False, True, True]
    assert asked == [1] and len(again) == 1
    ctx.round = 3
    assert RedrawEqualGroups(max_rounds=3).episodes(ctx, episodes) == (
        [False, False, True, True],
        [],
    )  # the cap is reached


# RLOO


def test_leave_one_out() -> None:
    """RLOO (arXiv:2402.14740), by hand: R = [1, 0, 0, 0] → [1, −1/3, −1/3, −1/3], G/(G−1) times [.75, −.25, …]."""
    batch = batch_of([answer(i, "g", 1, r) for i, r in enumerate((1.0, 0.0, 0.0, 0.0))])
    adv = column(LeaveOneOut()(Context(), batch)["adv_N"])
    close(adv, [1.0, -1 / 3, -1 / 3, -1 / 3])
    close(adv, [4 / 3 * x for x in (0.75, -0.25, -0.25, -0.25)])


def test_leave_one_out_with_kl_in_the_reward() -> None:
    """RLOO (arXiv:2402.14740): R_i − β Σ_t (log π_old − log π_ref). β = .5, two answers of two tokens, worked by hand.

    KL of the first: (−.5 + 1) + (−1 + 1) = .5, of the second: 0 + (−1 + 3) = 2. R = (1 − .25, 0 − 1) = (.75, −1).
    A = ±1.75. A third answer that is a baseline only counts with its KL too (here .5 · 1 = .5): R = (.75, −1, .5).
    """
    from hand import Use

    two = [answer(1, "g", 2, 1.0), answer(2, "g", 2, 0.0)]
    old, ref = [-0.5, -1.0, -2.0, -1.0], [-1.0, -1.0, -2.0, -3.0]
    batch = batch_of(two, logp_old_N=old, logp_ref_N=ref)
    close(column(LeaveOneOut(kl_coef=0.5)(Context(), batch)["adv_N"]), [1.75, 1.75, -1.75, -1.75])
    three = [*two, answer(3, "g", 1, 1.0, use=Use.BASELINE)]
    batch = batch_of(three, logp_old_N=[*old, -1.0], logp_ref_N=[*ref, -2.0])
    adv = column(LeaveOneOut(kl_coef=0.5)(Context(), batch)["adv_N"])
    close(adv[:4], [0.75 - (-1 + 0.5) / 2] * 2 + [-1 - (0.75 + 0.5) / 2] * 2)


# DisCO


def test_log_mean_exp() -> None:
    """DisCO (arXiv:2505.12366), by hand: s_neg = [0, −1], τ = 1: log-mean-exp = −.3799 = log((1 + e^{−1}) / 2).

    τ → ∞ is the mean (−.5), τ → 0 the hardest negative (0).
    """
    s, key = torch.tensor([0.0, -1.0], dtype=torch.float64), Key(torch.zeros(2, dtype=torch.int64), 1)

    def soft(tau: float) -> float:
        return tau * float(gather(s / tau, key, "logmeanexp"))

    close(soft(1.0), -0.3799, 5e-5)
    close(soft(1.0), math.log((1 + math.exp(-1)) / 2))
    close(soft(1e6), -0.5, 1e-6)
    close(soft(1e-3), 0.0, 1e-3)


# schedules


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("linear(0.1, 0.0, steps=4)", {0: 0.1, 1: 0.075, 4: 0.0, 100: 0.0}),
        ("cosine(1.0, 0.2, steps=10)", {0: 1.0, 5: 0.6, 10: 0.2, 11: 0.2}),
        ("warmup(0.4, steps=4)", {0: 0.1, 3: 0.4, 50: 0.4}),
        ("steps({0: 1.0, 10: 0.1})", {0: 1.0, 9: 1.0, 10: 0.1, 99: 0.1}),
        ("steps({5: 1.0, 10: 0.1})", {0: 1.0, 7: 1.0, 10: 0.1}),
        ("switch(3, 1.0, 0.0)", {0: 1.0, 2: 1.0, 3: 0.0}),
        ("linear(0.1, 0.5, steps=0)", {0: 0.5}),
    ],
)
def test_schedules_at_both_ends(text: str, points: dict[int, float]) -> None:
    """Straight from their definitions: linear and cosine end at `steps` and stay; warm-up begins at 1/steps."""
    for step, expected in points.items():
        close(Schedule(text).value(step, {}), expected)
        close(Context(step=step).at(text), expected)


def test_schedule_of_memory() -> None:
    """memory(name, default): the default while nothing is there."""
    close(Schedule('memory("entropy", 0.5)').value(0, {}), 0.5)
    close(Schedule('memory("entropy", 0.5)').value(7, {"entropy": 2.0}), 2.0)


# self-BLEU as nltk 3.9.2 computes it (weights 1/3, smoothing method 1)

BLEU = [
    ([[1, 7, 2, 2, 3, 2, 1], [4, 9], [0, 1, 5], [1, 3, 4, 3, 7, 4, 0, 0]], 0.08785104147243437),
    ([[0, 7, 1, 5, 1, 2, 0]], 0.0),
    ([[0, 1, 7, 1, 4, 1, 5, 3, 8], [0, 6, 4, 1, 0]], 0.08047685768277965),
    ([[4], [0, 2, 0, 2, 6, 8, 4, 0]], 0.0155931818630176),
    ([[4, 3, 5, 1, 1, 4, 5], [0, 4, 2, 1], [3, 0, 2], [2, 8, 1, 0], [9, 1, 1, 0], [0]], 0.15311436300183814),
    ([[1, 0], [6], [0, 0], [3, 0, 7, 2, 2], [1, 3, 2, 3, 2, 0, 4], [2, 1, 1, 6, 8]], 0.11573436585798957),
    ([[1, 2, 3, 4]] * 3, 1.0),
    ([[1, 2, 3], [4, 5, 6]], 0.0),
    ([[1, 2, 3], []], 0.0),
]


def test_self_bleu_of_many_groups_at_once() -> None:
    rows = [(row, g) for g, (group, _) in enumerate(BLEU) for row in group]
    token_N = torch.tensor([t for row, _ in rows for t in row])
    part_N = torch.tensor([i for i, (row, _) in enumerate(rows) for _ in row])
    got = self_bleu(token_N, part_N, Key(torch.tensor([g for _, g in rows]), len(BLEU)))
    assert got.tolist() == pytest.approx([bleu for _, bleu in BLEU], abs=1e-12)


def test_the_share_is_rounded_up() -> None:
    """ceil(ρ n), as the authors' code has it; 0.29 · 100 = 28.999… is 29; at least one, at most all."""
    assert [share_of(0.2, n) for n in (1, 4, 5, 6, 7, 10, 11)] == [1, 1, 1, 2, 2, 2, 3]
    assert (share_of(0.29, 100), share_of(0.07, 100), share_of(1.0, 7), share_of(0.0, 7), share_of(0.2, 0)) == (
        29, 7, 7, 1, 0,
    )  # fmt: skip


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1 / 3, 1.1])
def test_equal_rewards_have_a_weighted_baseline_of_exactly_themselves(reward: float) -> None:
    """Rounding would leave 1e-17, and a method that divides by a deviation makes an advantage of it (pitfall 16)."""
    key, weight = Key(torch.zeros(5, dtype=torch.int64), 1), torch.tensor([3.0, 7.0, 11.0, 2.0, 5.0])
    for dtype in (torch.float32, torch.float64):
        x = torch.full((5,), reward, dtype=dtype)
        assert weighted_centre(x, weight.to(dtype), key).tolist() == [0.0] * 5


def test_components_are_learned_as_they_are_paid() -> None:
    """What another component replaces is in `reward_EC`, and in no return."""
    e = paid([{"task": 1.0, "form": 0.5}])[0]
    e.turns = [Turn(2, 3, reward={"form": 0.25, "step": 2.0})]
    e.replaced = frozenset({"task", "step"})
    batch = batch_of([e])
    assert batch.components == ("form", "step", "task") and e.total == 0.75
    assert batch.reward_EC.tolist()[0][::2] == [0.5, 1.0] and batch.return_EC.tolist() == [[0.75, 0, 0]]
    assert batch.paid_EC.tolist() == [[True, False, False]]
    assert batch.reward_E.tolist() == [0.75] and batch.reward_K.tolist() == [0.25]
