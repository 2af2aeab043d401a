"""Evidence for kto: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
import pytest
import torch
from hand import answer, batch_of, objective
from pairs_by_hand import close, sigma

from gruppo.data import Batch, Source, Use
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.kto import ProspectUtility

test_laws = evidence.laws("kto")
test_asks = evidence.asks("kto")
test_terms = evidence.terms("kto")
test_planted_mistakes = evidence.planted("kto")
test_equivalences = evidence.equivalences("kto")
test_resume = evidence.resume("kto")


def kto(batch: Batch, logp: list[float], other: list[float], **fields: float) -> tuple[float, list[float]]:
    """`other`: log π under another task's prompt; the reference gives 0 there."""
    batch = batch.with_columns(logp_ref_mismatched_N=torch.zeros(len(other), dtype=torch.float64))
    m = method("kto").but(objective=ProspectUtility(**fields))
    value, slopes = objective(m, batch, logp_N=logp, logp_mismatched_N=other)
    assert slopes["logp_mismatched_N"] == [0.0] * len(other), "z is not differentiated"
    return value, slopes["logp_N"]


def test_kto_card() -> None:
    """B16: ρ_D = 2 and z = .3: L_D = .4576; ρ_U = 1: L_U = .5175. Two prompts, one answer each."""
    made = [answer(0, "p", 2, 1.0, source=Source.EXPERT), answer(1, "q", 1, 0.0, source=Source.EXPERT)]
    batch = batch_of(made, logp_ref_N=[-2.0, -2.0, -2.0])
    value, slope = kto(batch, [-1.0, -1.0, -1.0], [0.1, 0.1, 0.4])  # ρ under the other prompt: .2 and .4
    close(-value, (0.4576 + 0.5175) / 2, 1e-4)
    down = sigma(0.1 * 0.7) * sigma(-0.1 * 0.7)
    close(slope, [0.1 * sigma(0.17) * sigma(-0.17) / 2] * 2 + [-0.1 * down / 2])


def test_kto_at_the_reference() -> None:
    """B16: ρ = z = 0: .5 each."""
    made = [answer(i, g, 1, float(i), source=Source.EXPERT) for i, g in enumerate("pq")]
    value, _ = kto(batch_of(made, logp_ref_N=[-1.0, -1.0]), [-1.0, -1.0], [0.0, 0.0])
    close(-value, 0.5)


def test_kto_weights_and_a_negative_mean() -> None:
    """z is at least 0; λ_D = 4/3 weighs good answers. L = (4/3 (1 − σ(.2)) + (1 − σ(−.1))) / 2."""
    made = [answer(0, "p", 2, 1.0, source=Source.EXPERT), answer(1, "q", 1, 0.0, source=Source.EXPERT)]
    batch = batch_of(made, logp_ref_N=[-2.0, -2.0, -2.0])
    value, _ = kto(batch, [-1.0, -1.0, -1.0], [-5.0, 1.0, 1.0], good_coef=4 / 3)
    close(-value, (4 / 3 * (1 - sigma(0.2)) + (1 - sigma(-0.1))) / 2)


def test_kto_one_prompt_has_no_reference_point() -> None:
    """B16, edge: without another prompt z is 0, whatever the statistics say."""
    made = [answer(i, "p", 1, float(i), source=Source.EXPERT) for i in range(2)]
    batch = batch_of(made, logp_ref_N=[-2.0, -2.0])
    value, _ = kto(batch, [-1.0, -1.0], [3.0, 3.0])
    close(-value, ((1 - sigma(-0.1)) + (1 - sigma(0.1))) / 2)


@pytest.mark.parametrize(("reward", "sign"), [(1.0, 1), (0.0, -1)])
def test_kto_one_kind_of_label(reward: float, sign: int) -> None:
    """B16, edge: all good, or all bad, is a lesson too."""
    made = [answer(i, g, 1, reward, source=Source.EXPERT) for i, g in enumerate("pq")]
    value, slope = kto(batch_of(made, logp_ref_N=[-2.0, -2.0]), [-1.0, -1.0], [0.0, 0.0])
    close(-value, 1 - sigma(sign * 0.1))
    assert all(sign * s > 0 for s in slope)


def test_kto_labels_go_by_the_group() -> None:
    """Of a pair the better one is good, also when both rewards are small or both are large."""
    made = [answer(0, "p", 1, 0.75), answer(1, "p", 1, 0.5), answer(2, "q", 1, 0.25), answer(3, "q", 1, 0.0)]
    made += [answer(4, "r", 1, 0.75), answer(5, "s", 1, None), answer(6, "p", 1, 0.9, use=Use.BASELINE)]
    labels = method("kto").credit(World(method("kto"), 0).ctx, batch_of(made))
    assert labels["label_E"].tolist() == [1, -1, 1, -1, 1, 0, 0]  # the mean of p is .717, with its baseline
    assert labels["other_E"].tolist() == [True] * 7
