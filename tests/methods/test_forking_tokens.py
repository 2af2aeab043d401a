"""Evidence for forking_tokens: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import FAILED, answer, batch_of, by_expert, close, column, group, objective
from small_batches import kept

from gruppo.methods import method
from gruppo.stages import Context, Stats
from gruppo.stages.select import TopEntropy, through_second_door

test_laws = evidence.laws("forking_tokens")
test_asks = evidence.asks("forking_tokens")
test_planted_mistakes = evidence.planted("forking_tokens")
test_equivalences = evidence.equivalences("forking_tokens")
test_resume = evidence.resume("forking_tokens")


def test_forking_tokens_card() -> None:
    """Card: H = (.1, .2, 2, .05, .3) and ρ = .2: the third token only, and the mean is that token's, not a fifth."""
    entropy = [0.1, 0.2, 2.0, 0.05, 0.3]
    batch = batch_of(group([1.0], 5), entropy_old_N=entropy)
    assert kept(TopEntropy(share=0.2), batch) == [False, False, True, False, False]
    two = batch_of(group([1.0, 0.0], [5, 1]), entropy_old_N=[*entropy, 0.0], logp_old_N=[-1.0] * 6)
    m = method("forking_tokens").but(reward=())
    _, slope = objective(m.but(select=(TopEntropy(share=0.1),)), two, logp_N=[-1.0] * 6)
    a = math.sqrt(0.5) / (1 + math.sqrt(2) * 1e-6)
    close(slope["logp_N"], [0.0, 0.0, a, 0.0, 0.0, 0.0])
    _, counted = objective(m.but(select=(TopEntropy(share=0.1, counted=True),)), two, logp_N=[-1.0] * 6)
    close(counted["logp_N"], [x / 6 for x in slope["logp_N"]])  # TRL: a sixth, that of all tokens


def test_forking_tokens_edges() -> None:
    """Ties at the bar all stay; equal entropies keep all; tokens of failed answers set no bar; nothing to choose from
    is no error; what experts wrote is no part of the choice."""
    flat = batch_of(group([1.0, 0.0], 3), entropy_old_N=[0.5] * 6)
    assert kept(TopEntropy(share=0.2), flat) == [True] * 6
    ties = batch_of(group([1.0], 5), entropy_old_N=[0.1, 2.0, 2.0, 0.3, 0.2])
    assert kept(TopEntropy(share=0.2), ties) == [False, True, True, False, False]
    failed = batch_of([*group([1.0], 2), answer(1, "g", 2, None, **FAILED)], entropy_old_N=[0.1, 0.2, 5.0, 6.0])
    assert kept(TopEntropy(share=0.5), failed) == [False, True, False, False]
    assert kept(TopEntropy(), batch_of([answer(0, "g", 2, None, **FAILED)], entropy_old_N=[1.0, 2.0])) == [False] * 2
    theirs = batch_of([*group([1.0], 2), by_expert(answer(1, "g", 1, 1.0))], entropy_old_N=[0.1, 0.2, 0.0])
    chosen = through_second_door(Context(), (TopEntropy(share=0.5),), theirs, Stats(), current=False)
    assert column(chosen.keep_N) == [False, True, True]
