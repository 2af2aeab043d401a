"""Evidence for chord: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
import torch
from drawing import bench, rolled
from hand import answer, batch_of, by_expert, close, group, objective
from scripted import TASKS as SCRIPTED
from scripted import in_turn
from with_experts import LOGP, OLD, TASKS, mixed, rolled_out

from gruppo.data import Source, Use
from gruppo.methods import method
from gruppo.methods.chord import PHI, ExpertLikelihood, WithExperts
from gruppo.stages import Context, Schedule
from gruppo.stages.objective import ClippedSurrogate

test_laws = evidence.laws("chord")
test_asks = evidence.asks("chord")
test_planted_mistakes = evidence.planted("chord")
test_equivalences = evidence.equivalences("chord")
test_resume = evidence.resume("chord")


def test_chord_weights() -> None:
    """Card: φ has its peak of .25 at p = .5 and is 0 at both ends; CHORD-μ's weight at steps 0, 100 and 200."""
    p = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    close(PHI["uncertain"](p).tolist(), [0.0, 0.1875, 0.25, 0.0])
    close(PHI["one"](p).tolist(), [1.0] * 4)
    close(PHI["probability"](p).tolist(), p.tolist())
    mu = Schedule("cosine(0.9, 0.05, steps=200)")
    close([Context(step=s, steps=300).at(mu) for s in (0, 100, 200, 250)], [0.9, 0.475, 0.05, 0.05])
    with pytest.raises(ValueError, match=r"phi='certain'.*nearest: uncertain"):
        ExpertLikelihood(phi="certain")  # type: ignore[arg-type]


def test_chord_two_means() -> None:
    """Three tokens of the policy, two of the expert, each divided by their own number."""
    both = (ClippedSurrogate(mean="token", coef=0.75), ExpertLikelihood(expert_coef=0.25))
    value, slope = objective(method("chord").but(objective=both, select=()), mixed(Use.APART), logp_N=LOGP)
    a = math.sqrt(0.5) / (1 + math.sqrt(2) * 1e-6)
    r = [math.exp(x - y) for x, y in zip(LOGP, OLD, strict=True)]
    own = [1.2 * a, r[1] * a, -r[2] * a]  # the first is clipped
    p = [math.exp(x) for x in LOGP[3:]]
    theirs = [q * (1 - q) * x for q, x in zip(p, LOGP[3:], strict=True)]
    close(value, 0.75 * sum(own) / 3 + 0.25 * sum(theirs) / 2)
    close(slope["logp_N"], [0.0, 0.25 * own[1], 0.25 * own[2], *(0.125 * q * (1 - q) for q in p)])


def test_chord_without_one_of_the_two() -> None:
    """A batch without experts, or of experts only: the other term is 0, and nothing is NaN."""
    chord = method("chord").but(select=())
    alone = batch_of([by_expert(answer(0, "g", 2, 1.0), Use.APART)], logp_old_N=OLD[:2])
    value, slope = objective(chord, alone, logp_N=LOGP[:2])
    p = [math.exp(x) for x in LOGP[:2]]
    close(slope["logp_N"], [0.1 * q * (1 - q) / 2 for q in p])
    assert math.isfinite(value)
    none = batch_of(group([1.0, 0.0], [2, 1]), logp_old_N=OLD[:3])
    plain = method("grpo").but(objective=ClippedSurrogate(mean="token"), penalties=())
    close(objective(chord, none, logp_N=LOGP[:3])[0], 0.9 * objective(plain, none, logp_N=LOGP[:3])[0])


def test_experts_beside_the_samples() -> None:
    """Three samples a prompt and an expert apart, who writes the answer and not the steps; none has a reward yet."""
    made = rolled_out(WithExperts(), 3)
    experts = [e for e in made if e.source == Source.EXPERT]
    assert [e.group for e in made if e.source == Source.POLICY] == [t.uid for t in TASKS for _ in range(3)]
    assert [e.text for e in experts] == [t.answer for t in TASKS] and {e.use for e in experts} == {Use.APART}
    assert len({e.uid for e in made}) == len(made) and all(e.reward == {} for e in made)
    assert [e for e in rolled_out(WithExperts(expert_share=0.0), 3) if e.source == Source.EXPERT] == []
    some = [len(rolled_out(WithExperts(expert_share=0.5), 1, seed)) - 3 for seed in range(6)]
    assert set(some) <= {0, 1, 2, 3} and 0 < sum(some) < 18


def test_chord_experts_are_drawn_by_prompt() -> None:
    """Of three prompts, with a share of a half, now and then one or two have an expert."""

    def experts(share: float, seed: int) -> int:
        m = method("chord").but(rollout=WithExperts(expert_share=share))
        made = rolled(m, bench(m, in_turn("1"), lambda e: 1.0, seed=seed), SCRIPTED, 2)
        return sum(e.source == Source.EXPERT for e in made)

    assert {experts(0.5, seed) for seed in range(8)} & {1, 2}
    assert {experts(1.0, seed) for seed in range(3)} == {3}
