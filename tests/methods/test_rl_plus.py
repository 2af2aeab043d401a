"""Evidence for rl_plus: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import answer, batch_of, by_expert, close, objective, worked
from with_experts import LOGP, OLD, TASKS, mixed, rolled_out

from gruppo.data import Source, Use
from gruppo.methods import method
from gruppo.methods.rl_plus import ExpertInGroup, MixedImportance

test_laws = evidence.laws("rl_plus")
test_asks = evidence.asks("rl_plus")
test_planted_mistakes = evidence.planted("rl_plus")
test_equivalences = evidence.equivalences("rl_plus")
test_resume = evidence.resume("rl_plus")


def test_rl_plus_card() -> None:
    """Card: π_old = .1, π = .2: ω = .55, w = .6154, weight .8944; at π = 1 the weight is 0."""
    old, now = [math.log(0.1), 0.0], [math.log(0.2), 0.0]
    batch = batch_of([by_expert(answer(0, "g", 2, 1.0))], logp_old_N=old, adv_N=[1.0, 1.0])
    [term] = worked(MixedImportance(mean="episode_sum"), batch, logp_N=now).values()
    w, weight = 0.4 / (0.1 + 0.55), math.sqrt(0.8)
    assert (round(w, 4), round(weight, 4)) == (0.6154, 0.8944)
    close(term.value.tolist(), [w * weight, 0.0])


def test_rl_plus_group() -> None:
    """The expert is in the mean of the group; the policy's ratio is not clipped; 1/3 answers, 1/10 the longest."""
    m = method("rl_plus").but(objective=MixedImportance(mean="episode_sum/10"), penalties=(), select=())
    value, slope = objective(m, mixed(Use.LEARN), logp_N=LOGP)
    up, down = 1 / 3, -2 / 3
    r = [math.exp(x - y) for x, y in zip(LOGP, OLD, strict=True)]
    p, old = [math.exp(x) for x in LOGP], [math.exp(x) for x in OLD]
    theirs = [2 * p[i] / (1.5 * old[i] + 0.5) * math.sqrt(1 - p[i]) * up for i in (3, 4)]
    terms = [r[0] * up, r[1] * up, r[2] * down, *theirs]
    close(value, sum(terms) / 30)
    close(slope["logp_N"], [t / 30 for t in terms])  # each is proportional to π of now: its slope is its value


def test_an_expert_in_the_group() -> None:
    """Two samples and an expert of three, learned from like the others; the samples are those of a group of two."""
    made, plain = rolled_out(ExpertInGroup(), 3), rolled_out(method("grpo").rollout, 2)
    experts = [e for e in made if e.source == Source.EXPERT]
    assert [e.group for e in experts] == [t.uid for t in TASKS] and {e.use for e in experts} == {Use.LEARN}
    assert [e.uid for e in made if e.source == Source.POLICY] == [e.uid for e in plain]
    assert [len([e for e in made if e.group == t.uid]) for t in TASKS] == [3, 3, 3]
