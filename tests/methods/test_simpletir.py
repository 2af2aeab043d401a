"""Evidence for simpletir: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from collections.abc import Sequence

import evidence
import pytest
from dialogues import dialogue
from hand import batch_of, close, objective
from six_answers import clip_term
from small_batches import adv, kept

from gruppo.data import Episode, Status
from gruppo.methods import method
from gruppo.methods.simpletir import MaskVoid

test_laws = evidence.laws("simpletir")
test_asks = evidence.asks("simpletir")
test_terms = evidence.terms("simpletir")
test_planted_mistakes = evidence.planted("simpletir")
test_equivalences = evidence.equivalences("simpletir")
test_resume = evidence.resume("simpletir")

VOID = {"flags": frozenset({"void"})}


def card(voids: Sequence[int] = (1,)) -> list[Episode]:
    """Four rollouts of two turns with R = (1, 0, 0, 1), the second with a void turn."""
    turns = [[{"tokens": 2}, {"tokens": 1, **VOID}] if i in voids else [2, 1] for i in range(4)]
    return [dialogue(i, t, r) for i, (t, r) in enumerate(zip(turns, [1.0, 0.0, 0.0, 1.0], strict=True))]


def test_simpletir_card() -> None:
    """Card S091: A = ±.87 whoever is void; the second rollout has no gradient, not one of its tokens."""
    a = adv(method("simpletir").credit, card())
    assert a == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=1e-3)
    logp, old = [-1.0] * 12, [-1.1, -0.9, -1.2] * 4
    value, slope = objective(method("simpletir"), batch_of(card(), logp_old_N=old), logp_N=logp)
    learned = [n for n in range(12) if n // 3 != 1]
    terms = {n: clip_term(logp[n], old[n], a[n // 3], 0.2, 0.28) for n in learned}
    close(value, sum(v for v, _ in terms.values()) / 9)
    close(slope["logp_N"], [terms[n][1] / 9 if n in terms else 0.0 for n in range(12)])


def test_simpletir_masks_the_whole_rollout_wherever_the_turn_is() -> None:
    """In the first turn, in a turn without tokens, in a turn of another context: all its tokens."""
    for turns in ([VOID, 2, 1], [2, {"tokens": 0, **VOID}, 2], [1, 1, {"tokens": 2, **VOID}]):
        for fresh in (False, True):
            batch = batch_of([dialogue(0, turns, 1.0, fresh=fresh), dialogue(1, [2], 0.0)])
            assert kept(MaskVoid(), batch) == [False] * (batch.size("N") - 2) + [True, True]


def test_simpletir_other_flags_mask_nothing() -> None:
    others = {"flags": frozenset({"invalid", "truncated", "patched", "repeated", "edit"})}
    assert kept(MaskVoid(), batch_of([dialogue(0, [others, 1], 1.0)])) == [True, True]
    both = {"flags": frozenset({"invalid", "void"})}
    assert kept(MaskVoid(), batch_of([dialogue(0, [both, 1], 1.0)])) == [False, False]


def test_simpletir_where_all_are_void_nothing_is_learned() -> None:
    batch = batch_of(card(range(4)), logp_old_N=[-1.0] * 12)
    value, slope = objective(method("simpletir"), batch, logp_N=[-0.5] * 12)
    assert value == 0.0 and slope["logp_N"] == [0.0] * 12


def test_simpletir_a_failed_rollout_masks_nobody() -> None:
    """One that the environment lost, void or not, is in no statistic; what is left is compared as it is."""
    lost = dialogue(9, [VOID], None, status=Status.TIMEOUT)
    assert adv(method("simpletir").credit, [*card(), lost])[:4] == adv(method("simpletir").credit, card())
    batch = batch_of([*card(()), lost], logp_old_N=[-1.0] * 13)
    assert kept(MaskVoid(), batch) == [True] * 12 + [False]
