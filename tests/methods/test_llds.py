"""Evidence for llds: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from typing import Any

import evidence
import numpy as np
import pytest
import torch
from hand import FAILED, answer, batch_of, close, column, group, worked
from small_batches import term_of
from with_experts import _leaf

from gruppo.data import Episode, Source, Turn
from gruppo.data import Sequence as Tokens
from gruppo.methods.llds import HoldLikelihood

test_laws = evidence.laws("llds")
test_asks = evidence.asks("llds")
test_planted_mistakes = evidence.planted("llds")
test_equivalences = evidence.equivalences("llds")
test_resume = evidence.resume("llds")


def turns(uid: int, reward: float, *lengths: int) -> Episode:
    """An answer of several turns, one token of an environment before each."""
    source, spans = [np.full(2, Source.ENV, np.int8)], []
    for n in lengths:
        start = sum(map(len, source)) + 1
        source += [np.full(1, Source.ENV, np.int8), np.full(n, Source.POLICY, np.int8)]
        spans.append((start, start + n))
    who = np.concatenate(source)
    logp = np.where(who == Source.POLICY, -1.0, np.nan).astype(np.float32)
    version = np.where(who == Source.POLICY, 0, -1).astype(np.int32)
    tokens = Tokens(np.arange(1, len(who) + 1), who, logp, version, prompt_len=spans[0][0])
    return Episode(uid, "t", "g", [tokens], [Turn(a, b, 0) for a, b in spans], {"task": reward}, text="")


def held(gate: Any, episodes: list[Episode], fall: list[float], adv: list[float]) -> tuple[float, list[float]]:
    """The penalty alone, and its slopes."""
    batch = batch_of(episodes, logp_old_N=[-1.0] * len(fall), adv_N=adv)
    [term] = worked(HoldLikelihood(gate=gate), batch, **(stats := _leaf([-1.0 - d for d in fall]))).values()
    total = term.total(batch)
    total.backward()
    return float(total.detach()), stats.logp_N.grad.tolist()


def test_llds_card() -> None:
    """Card: falls of (.3, −.5) add up to less than 0: nothing; of (.3, −.1): .3 of the first token, of two tokens."""
    value, slope = held("turn", group([1.0], 2), [0.3, -0.5], [0.0, 0.0])
    close([value, *slope], [0.0, 0.0, 0.0])
    value, slope = held("turn", group([1.0], 2), [0.3, -0.1], [0.5, 0.5])
    close([value, *slope], [-0.2 * 0.3 / 2, 0.1, 0.0])


def test_llds_gates() -> None:
    """Two turns: the first fell, the second rose by more. By turns the first is held, by the answer nothing is."""
    falls, up = [0.3, 0.1, -0.9], [1.0] * 3
    value, slope = held("turn", [turns(0, 1.0, 2, 1)], falls, up)
    close([value, *slope], [-0.2 * 0.4 / 3, 0.2 / 3, 0.2 / 3, 0.0])
    assert held("answer", [turns(0, 1.0, 2, 1)], falls, up) == (0.0, [0.0] * 3)
    value, slope = held("answer", [turns(0, 1.0, 2, 1)], [0.3, -0.2, 0.2], up)
    close([value, *slope], [-0.2 * 0.5 / 3, 0.2 / 3, 0.0, 0.2 / 3])


def test_llds_edges() -> None:
    """Bad answers may fall, and their tokens are counted; tokens of failed ones are not; no fall, and rounding, have
    no slope."""
    two = [*group([1.0, 0.0], [1, 2]), answer(2, "g", 3, None, **FAILED)]
    value, slope = held("turn", two, [0.3, 0.5, 0.5, 9.0, 9.0, 9.0], [1.0, -1.0, -1.0, 0.0, 0.0, 0.0])
    close([value, *slope], [-0.2 * 0.3 / 3, 0.2 / 3, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert held("turn", group([1.0], 2), [0.0, 1e-7], [1.0, 1.0]) == (0.0, [0.0, 0.0])
    with pytest.raises(ValueError, match=r"gate='turns'.*nearest: turn"):
        HoldLikelihood(gate="turns")  # type: ignore[arg-type]


def test_llds_watches_the_tokens_that_it_holds() -> None:
    """Falls of .25 where A ≥ 0 and of −.5 where A < 0, in one turn: the first fell. Falls of ±.25 add up to 0."""
    batch = batch_of([answer(0, "g", 2, 1.0)], logp_old_N=[-1.0] * 2, adv_N=[1.0, -1.0])
    assert column(term_of(HoldLikelihood(), "hold", batch, [-1.25, -0.5]).value) == [-0.25, 0.0]
    good = batch.with_columns(adv_N=torch.ones(2, dtype=torch.float64))
    assert column(term_of(HoldLikelihood(), "hold", good, [-1.25, -0.75]).value) == [0.0, 0.0]
