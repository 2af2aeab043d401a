"""Evidence for reinforce: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
import torch
from hand import answer, batch_of, by_episode, column, objective, worked
from hand import close as closer
from six_answers import LENGTHS, LOGP, REWARDS, B, close, hand_batch

from gruppo.methods import method
from gruppo.stages import Context, Memory
from gruppo.stages.credit import RunningBaseline
from gruppo.stages.objective import PolicyGradient

test_laws = evidence.laws("reinforce")
test_asks = evidence.asks("reinforce")
test_terms = evidence.terms("reinforce")
test_equivalences = evidence.equivalences("reinforce")
test_resume = evidence.resume("reinforce")


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


def test_two_armed_bandit() -> None:
    """REINFORCE (Williams 1992), by hand: π = (.5, .5), R = (1, 0), b = 0.

    The expected logit gradient on arm 1 is .5 · 1 · (1 − .5) = +.25.
    Two answers of one token, one for each arm, are the whole distribution, so their mean is the expectation.
    """
    batch = batch_of([answer(1, "g", 1, 1.0), answer(2, "g", 1, 0.0)])
    ctx = Context(memory=Memory({"baseline": 0.0}))
    batch = batch.with_columns(**RunningBaseline()(ctx, batch))
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    logp_N = torch.log_softmax(logits, 0)
    [term] = worked(PolicyGradient(mean="episode_sum"), batch, ctx, logp_N=logp_N).values()
    [slope] = torch.autograd.grad(term.total(batch), logits)
    closer(column(slope), [0.25, -0.25])


def test_running_baseline() -> None:
    """REINFORCE (Williams 1992), by hand: b ← d · b + (1 − d) · mean(R); R = (1, 0, 0, 0), so the mean is .25.

    Worked: first step A = R − .25; then b = .25; after a step with mean 1, b = .9 · .25 + .1 · 1 = .325.
    """
    from gruppo.stages import StepRecord

    credit, ctx = RunningBaseline(decay=0.9), Context()
    batch = batch_of([answer(i, "g", 1, r) for i, r in enumerate((1.0, 0.0, 0.0, 0.0))])
    closer(column(credit(ctx, batch)["adv_N"]), [0.75, -0.25, -0.25, -0.25])
    with ctx.memory.writing() as memory:
        credit.observe(StepRecord(0, [], batch, {}), memory)
    closer(ctx.memory["baseline"], 0.25)
    ones = batch_of([answer(i, "g", 1, 1.0) for i in range(3)])
    closer(column(credit(ctx, ones)["adv_N"]), [0.75] * 3)
    with ctx.memory.writing() as memory:
        credit.observe(StepRecord(1, [], ones, {}), memory)
    closer(ctx.memory["baseline"], 0.325)
