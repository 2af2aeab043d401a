"""Worked numbers of gspo, cispo, gmpo, sapo and vapo, and their edge cases.

As in `test_golden_methods.py`: what is expected is computed by plain loops over lists, from the formula and its
derivative by hand. The same two groups of three answers.
"""

import math
from typing import Any

import pytest
import torch
from hand import Status, Use, answer, batch_of, by_episode, column, mean, objective, worked
from test_golden_methods import LENGTHS, LOGP, OLD, REWARDS, B, T, close, group_advantages, hand_batch

from gruppo.data import Source
from gruppo.lab.laws.world import World, random_episodes
from gruppo.methods import method
from gruppo.methods.cispo import ClippedWeight
from gruppo.methods.gmpo import GeometricMean
from gruppo.methods.gspo import SequenceClipped
from gruppo.methods.sapo import SoftGate
from gruppo.methods.vapo import CriticFirst, ImitateRight, LengthAdaptiveGae, adaptive_lambda
from gruppo.stages import Context

LN3 = math.log(3.0)
ADV = group_advantages(REWARDS)


def answers(*columns: list[float]) -> list[tuple[list[float], ...]]:
    """Columns of tokens, cut into answers."""
    return list(zip(*(by_episode(c, LENGTHS) for c in columns), strict=True))


# GSPO


def test_gspo_card() -> None:
    """Card B09 (verl compute_policy_loss_gspo): log-ratios .2, −.1, .05 → s = e^.05 = 1.0513 for all three tokens, and
    the gradient of a token is s A / T. Without a clip, so that A = ±1/√2 and two answers, J = mean of s A."""
    free = method("gspo").but(objective=SequenceClipped(clip_low=1.0, clip_high=1.0))
    batch = batch_of([answer(0, "g", 3, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=[-1.0, -1.0, -1.0, -2.0])
    value, slope = objective(free, batch, logp_N=[-0.8, -1.1, -0.95, -2.0])
    a, s = 0.5 / (math.sqrt(0.5) + 1e-6), 1.0512710963760241
    close(value, (s * a - a) / 2)
    close(slope["logp_N"], [s * a / 3 / 2] * 3 + [-a / 2])


def test_gspo_clips_a_whole_answer() -> None:
    """s = 1.0513 is above 1 + 4e-4: with A > 0 all three tokens lose their gradient, with A < 0 none does."""
    for reward, clipped in ((1.0, True), (0.0, False)):
        batch = batch_of([answer(0, "g", 3, reward), answer(1, "g", 1, 1 - reward)], logp_old_N=[-1.0] * 3 + [-2.0])
        _, slope = objective(method("gspo"), batch, logp_N=[-0.8, -1.1, -0.95, -2.0])
        assert [x == 0 for x in slope["logp_N"]] == [clipped] * 3 + [False]


def test_gspo() -> None:
    """GSPO (arXiv:2507.18071): 1/B Σ_i min(s A, clip(s, 1 ± .1) A), s = exp(mean l); ds/dlog π_t = s / T."""
    value, slope, seen = 0.0, [], set()
    for (lps, olds), a in zip(answers(LOGP, OLD), ADV, strict=True):
        s = math.exp(mean([lp - old for lp, old in zip(lps, olds, strict=True)]))
        bound = min(max(s, 0.9), 1.1)
        free = s * a <= bound * a
        value += min(s * a, bound * a) / B
        slope += [s * a / len(lps) / B if free else 0.0] * len(lps)
        seen.add((free, a > 0))
    assert {free for free, _ in seen} == {up for _, up in seen} == {True, False}
    gspo = method("gspo").but(objective=SequenceClipped(clip_low=0.1, clip_high=0.1))
    got, slopes = objective(gspo, hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_gspo_counts_the_policys_kept_tokens_only() -> None:
    """A dropped token, and one that somebody else wrote, is in neither the sum nor the length: s = e^.2."""
    batch = batch_of([answer(0, "g", 3, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=[-1.0] * 3 + [-2.0])
    keep_N = torch.tensor([True, False, True, True])
    source_N = batch.source_N.clone()
    source_N[2] = Source.HINT
    batch = batch.with_columns(keep_N=keep_N, source_N=source_N)
    free = method("gspo").but(objective=SequenceClipped(clip_low=1.0, clip_high=1.0))
    _, slope = objective(free, batch, logp_N=[-0.8, -9.0, -9.0, -2.0])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    close(slope["logp_N"], [math.exp(0.2) * a / 2, 0.0, 0.0, -a / 2])


# CISPO


def test_cispo_card() -> None:
    """Card B10 (verl compute_policy_loss_cispo): r = 3, ε_high = .28, A = 1: gradient 1.28 ∇ log π; PPO's is 0."""
    batch = batch_of([answer(0, "g", 1, 1.0)], logp_old_N=[-1.0 - LN3], adv_N=[1.0])
    for objective_of, want in ((ClippedWeight(1.0, 0.28), 1.28), (method("dapo").objective[0], 0.0)):
        logp_N = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
        [slope] = torch.autograd.grad(worked(objective_of, batch, logp_N=logp_N)["policy"].total(batch), logp_N)
        close(column(slope), [want])


def test_cispo() -> None:
    """CISPO (arXiv:2506.13585): token-mean sg(clip(r, .9, 1.2)) A log π; d/dlog π = clip(r) A / T."""
    value, slope, sides = 0.0, [], set()
    for (lps, olds), a in zip(answers(LOGP, OLD), ADV, strict=True):
        for lp, old in zip(lps, olds, strict=True):
            r = math.exp(lp - old)
            w = min(max(r, 0.9), 1.2)
            sides.add((r > w) - (r < w))
            value += w * a * lp / T
            slope.append(w * a / T)
    assert sides == {-1, 0, 1}
    got, slopes = objective(method("cispo").but(objective=ClippedWeight(0.1, 0.2)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_cispo_clips_from_above_only() -> None:
    """The record: weights from 0 to 5. r = e^−6 stays, r = e^6 is 5."""
    batch = batch_of([answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=[-7.0, -1.0])
    _, slope = objective(method("cispo"), batch, logp_N=[-1.0, -7.0])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    close(slope["logp_N"], [5.0 * a / 2, -math.exp(-6.0) * a / 2])


# GMPO


def test_gmpo_by_hand() -> None:
    """GMPO (arXiv:2507.20673), by hand: log-ratios 1, −1, .1 and A > 0 are clipped to .4, −1, .1: the mean is −1/6.

    With A < 0 they are 1, −.4, .1, the mean is .7/3: a clip never helps."""
    logp, old = [-1.0, -2.0, -0.9, -2.0], [-2.0, -1.0, -1.0, -2.0]
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    for reward, logs, free in ((1.0, [0.4, -1.0, 0.1], [0, 1, 1]), (0.0, [1.0, -0.4, 0.1], [1, 0, 1])):
        batch = batch_of([answer(0, "g", 3, reward), answer(1, "g", 1, 1 - reward)], logp_old_N=old)
        value, slope = objective(method("gmpo"), batch, logp_N=logp)
        adv, s = (a, -a) if reward else (-a, a), math.exp(mean(logs))
        close(value, (s * adv[0] + adv[1]) / 2)
        close(slope["logp_N"], [s * adv[0] * f / 3 / 2 for f in free] + [adv[1] / 2])


def test_gmpo() -> None:
    """The same by loops over the two groups, with clips of e^−.3 and e^.35."""
    value, slope, bound = 0.0, [], 0
    for (lps, olds), a in zip(answers(LOGP, OLD), ADV, strict=True):
        logs = [lp - old for lp, old in zip(lps, olds, strict=True)]
        kept = [min(x, 0.35) if a > 0 else max(x, -0.3) for x in logs]
        s = math.exp(mean(kept))
        value += s * a / B
        slope += [s * a / len(lps) / B if x == k else 0.0 for x, k in zip(logs, kept, strict=True)]
        bound += sum(x != k for x, k in zip(logs, kept, strict=True))
    assert bound >= 2
    got, slopes = objective(method("gmpo").but(objective=GeometricMean(0.3, 0.35)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


# SAPO


def test_sapo_gate_by_hand() -> None:
    """SAPO (arXiv:2511.20347), by hand: at r = 1 σ = ½, so f = 2/τ and the slope by log π is 1.

    At r = 2 with τ = ln 3: σ = ¾, f = 3/ln 3, slope 4 · ¾ · ¼ · 2 = 1.5."""
    for r, tau, value, slope in ((1.0, 1.0, 2.0, 1.0), (1.0, 1.05, 2 / 1.05, 1.0), (2.0, LN3, 3 / LN3, 1.5)):
        batch = batch_of([answer(0, "g", 1, 1.0)], logp_old_N=[-1.0 - math.log(r)], adv_N=[1.0])
        logp_N = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
        [term] = worked(SoftGate(tau_pos=tau, tau_neg=9.0), batch, logp_N=logp_N).values()
        total = term.total(batch)
        close(float(total.detach()), value)
        close(column(torch.autograd.grad(total, logp_N)[0]), [slope])


def test_sapo() -> None:
    """1/B Σ_i 1/T_i Σ_t 4/τ σ(τ(r − 1)) A, τ = 2 where A > 0, 3 where not; d/dlog π = 4σ(1 − σ) r A."""
    value, slope = 0.0, []
    for (lps, olds), a in zip(answers(LOGP, OLD), ADV, strict=True):
        tau = 2.0 if a > 0 else 3.0
        for lp, old in zip(lps, olds, strict=True):
            r = math.exp(lp - old)
            gate = 1.0 / (1.0 + math.exp(-tau * (r - 1)))
            value += 4 / tau * gate * a / len(lps) / B
            slope.append(4 * gate * (1 - gate) * r * a / len(lps) / B)
    got, slopes = objective(method("sapo").but(objective=SoftGate(2.0, 3.0)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_sapo_refuses_a_temperature_of_zero() -> None:
    with pytest.raises(ValueError, match=r"tau_neg=0\.0 .*> 0"):
        SoftGate(tau_neg=0.0)


# VAPO


def test_vapo_card() -> None:
    """Card B12: l = 20 → λ = 0, 100 → .8, 1000 → .98; shorter answers are held at 0."""
    lengths = torch.tensor([0.0, 1.0, 20.0, 100.0, 1000.0], dtype=torch.float64)
    close(column(adaptive_lambda(lengths, 0.05)), [0.0, 0.0, 0.0, 0.8, 0.98])


def vapo_credit(credit: LengthAdaptiveGae, *episodes: Any, values: list[float]) -> dict[str, list[float]]:
    batch = batch_of(list(episodes), value_critic_N=values)
    return {k: column(v) for k, v in credit(Context(), batch).items()}


def test_vapo_decouples_the_two_lambdas() -> None:
    """V = .2, .4, .6, reward 1 at the end (card B03). The critic's target is the return, 1, at every token.

    The policy's λ: 3 tokens with length_share 1 → 1 − 1/3 = 2/3. δ = .2, .2, .4, so Â_3 = .4,
    Â_2 = .2 + 2/3 · .4 = 7/15, Â_1 = .2 + 2/3 · 7/15 = 23/45; whitened: (x − m) / sqrt(var + 1e-8)."""
    out = vapo_credit(LengthAdaptiveGae(length_share=1.0), answer(0, "g", 3, 1.0), values=[0.2, 0.4, 0.6])
    close(out["ret_N"], [1.0, 1.0, 1.0])
    raw = [23 / 45, 7 / 15, 0.4]
    scale = math.sqrt(sum((x - mean(raw)) ** 2 for x in raw) / 2 + 1e-8)
    close(out["adv_N"], [(x - mean(raw)) / scale for x in raw])


def test_vapo_has_a_lambda_for_each_answer() -> None:
    """Length_share 1: an answer of 2 tokens has λ = ½, one of 4 has ¾. Before whitening, V = 0: Â of the first token
    is λ^(T−1) R: ½ and 27/64; so the whitened ones have these distances."""
    two, four = answer(0, "g", 2, 1.0), answer(1, "g", 4, 1.0)
    out = vapo_credit(LengthAdaptiveGae(length_share=1.0), two, four, values=[0.0] * 6)["adv_N"]
    raw = [0.5, 1.0, 27 / 64, 9 / 16, 3 / 4, 1.0]
    unit = (out[1] - out[0]) / (raw[1] - raw[0])
    close([(x - out[0]) / unit for x in out], [x - raw[0] for x in raw])


def test_vapo_marks_right_answers() -> None:
    """Judged, and above 0. A failed answer, and one apart, is not right whatever reward it had."""
    episodes = [answer(0, "g", 2, 1.0), answer(1, "g", 1, 0.0), answer(2, "g", 1, -1.0)]
    episodes += [answer(3, "g", 1, 1.0, status=Status.ENV_ERROR), answer(4, "g", 1, 1.0, use=Use.APART)]
    out = vapo_credit(LengthAdaptiveGae(), *episodes, values=[0.0] * 6)
    assert out["right_N"] == [1, 1, 0, 0, 0, 0]


def imitation(rewards: list[float]) -> tuple[float, list[float]]:
    episodes = [answer(i, "g", n, r) for i, (n, r) in enumerate(zip((2, 3, 1), rewards, strict=True))]
    batch = batch_of(episodes, value_critic_N=[0.0] * 6)
    batch = batch.with_columns(**LengthAdaptiveGae()(Context(), batch))
    logp_N = torch.tensor([-1.0, -2.0, -3.0, -1.0, -1.0, -0.5], dtype=torch.float64, requires_grad=True)
    [term] = worked(ImitateRight(nll_coef=0.1), batch, logp_N=logp_N).values()
    total = term.total(batch)
    return float(total.detach()), column(torch.autograd.grad(total, logp_N)[0])


def test_vapo_imitates_right_answers() -> None:
    """Card B12: μ Σ log π of right answers / their tokens: .1 · (−1 − 2 − .5) / 3; nothing when none is right."""
    value, slope = imitation([1.0, 0.0, 1.0])
    close(value, -0.35 / 3)
    close(slope, [0.1 / 3, 0.1 / 3, 0, 0, 0, 0.1 / 3])
    value, slope = imitation([0.0, 0.0, 0.0])
    assert value == 0.0 and slope == [0.0] * 6


def flat(world: World, role: str) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in world.models[role].parameters()])


@pytest.mark.parametrize("step", [0, 2, 3])
def test_vapo_trains_the_critic_alone_first(step: int) -> None:
    """warmup = 3: at steps 0 to 2 only the critic moves, from step 3 on both do."""
    vapo = method("vapo").but(update=CriticFirst(minibatches=2, warmup=3))
    world = World(vapo, 0)
    world.ctx.step = step
    batch = world.prepared(world.packed(random_episodes(0)))
    before = {role: flat(world, role) for role in ("policy", "critic")}
    vapo.update(world.ctx, world.learner, batch)
    moved = {role: not torch.equal(x, flat(world, role)) for role, x in before.items()}
    assert moved == {"policy": step >= 3, "critic": True}


def test_without_a_critic_there_is_no_warm_up() -> None:
    grpo = method("grpo").but(update=CriticFirst(warmup=3))
    world = World(grpo, 0)
    before = flat(world, "policy")
    grpo.update(world.ctx, world.learner, world.prepared(world.packed(random_episodes(0))))
    assert not torch.equal(before, flat(world, "policy"))
