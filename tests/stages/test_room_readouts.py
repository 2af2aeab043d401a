"""Readouts by hand: three ids, two positions, one of them truncated; and the names of needs."""

import math
from dataclasses import replace

import pytest
import torch

from gruppo.data import Ragged
from gruppo.stages import need
from gruppo.stages.readouts import READOUTS, Chunk, Need, Stats

SCORES = [[1.0, 2.0, 0.0], [0.5, -0.5, 1.5]]
TOKEN = [1, 2]


def chunk(heat: float = 1.0, allowed: list[list[int]] | None = None) -> Chunk:
    sets = None
    if allowed is not None:
        length = torch.tensor([len(a) for a in allowed])
        sets = Ragged(length, torch.tensor([i for a in allowed for i in a], dtype=torch.int64))
    return Chunk(
        hidden_CD=torch.arange(4.0).view(2, 2),
        scores_CV=torch.tensor(SCORES, dtype=torch.float64),
        token_C=torch.tensor(TOKEN),
        temperature_C=torch.full((2,), heat, dtype=torch.float64),
        allowed=sets,
        other_CV=torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64),
    )


def p(scores: list[float], heat: float = 1.0, allowed: list[int] | None = None) -> list[float]:
    e = [math.exp(s / heat) if not allowed or i in allowed else 0.0 for i, s in enumerate(scores)]
    return [x / math.fsum(e) for x in e]


def read(name: str, c: Chunk, **params: float) -> list[float]:
    return READOUTS[name].read(c, **params).tolist()


SETS: list[list[list[int]] | None] = [None, [[1, 2], []], [[0, 1], [2]]]


@pytest.mark.parametrize("heat", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("allowed", SETS)
def test_by_hand(heat: float, allowed: list[list[int]] | None) -> None:
    """At the temperature and truncation of the sampler; an empty set allows everything."""
    c = chunk(heat, allowed)
    rows = [p(s, heat, (allowed or [[], []])[i]) for i, s in enumerate(SCORES)]
    assert read("logp", c) == pytest.approx([math.log(r[t]) for r, t in zip(rows, TOKEN, strict=True)])
    entropy = [-math.fsum(x * math.log(x) for x in r if x) for r in rows]
    assert read("entropy", c) == pytest.approx(entropy, abs=1e-12)
    norm = [math.fsum((float(i == t) - x) ** 2 for i, x in enumerate(r)) for r, t in zip(rows, TOKEN, strict=True)]
    assert read("score_norm", c) == pytest.approx(norm, abs=1e-12)
    other = [p(s, heat, (allowed or [[], []])[i]) for i, s in enumerate(c.other_CV.tolist())]  # type: ignore[union-attr]
    kl = [
        math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x) for a, b in zip(rows, other, strict=True)
    ]
    assert read("kl", c) == pytest.approx(kl, abs=1e-12)


@pytest.mark.parametrize("name", ["logp", "entropy", "kl"])
def test_another_temperature_instead_of_the_samplers(name: str) -> None:
    assert read(name, chunk(0.7), T=2.0) == pytest.approx(read(name, chunk(2.0)))


def test_greedy_tokens_are_read_at_temperature_one() -> None:
    """At 0 the distribution is a point: its log-probabilities teach nothing, and scores over 0 are NaN."""
    assert read("logp", chunk(0.0)) == read("logp", chunk(1.0))


def test_the_score_norm_is_the_gradients() -> None:
    c = chunk(1.0)
    scores = c.scores_CV.requires_grad_()
    READOUTS["logp"].read(replace(c, scores_CV=scores)).sum().backward()
    assert scores.grad is not None
    assert read("score_norm", c) == pytest.approx((scores.grad**2).sum(-1).tolist())


def test_values_and_pools() -> None:
    one = replace(chunk(), scores_CV=chunk().scores_CV[:, :1])
    assert read("value", one) == [1.0, 0.5]
    assert read("value", chunk()) == chunk().scores_CV.tolist()  # of a head with several outputs
    assert read("pool", chunk()) == [[0.0, 1.0], [2.0, 3.0]]
    heads = {name: r.head for name, r in READOUTS.items()}
    assert [n for n, h in heads.items() if h == "value"] == ["value"]
    assert [n for n, r in READOUTS.items() if r.pair] == ["kl"]
    assert all(r.name == n for n, r in READOUTS.items())


@pytest.mark.parametrize("name", ["logp", "entropy", "kl", "value", "score_norm"])
def test_stand_ins_are_like_the_real_ones(name: str) -> None:
    """So that a law can run without a model: as many numbers, of the type asked for, in the range they really have."""
    x = READOUTS[name].synthetic(torch.Generator().manual_seed(0), 500, torch.float64)
    assert x.shape == (500,) and x.dtype == torch.float64 and float(x.std()) > 0
    if name == "logp":
        assert float(x.max()) < 0
    elif name != "value":
        assert float(x.min()) > 0


NAMES = [
    (need("logp", "old"), "logp@old", "logp_old_N"),
    (need("logp", when="step"), "logp@policy", "logp_N"),
    (need("logp", "ref", T=1.2), "logp@ref(T=1.2)", "logp_ref_T1.2_N"),
    (need("logp", "ref", view="mismatched"), "logp@ref[mismatched]", "logp_ref_mismatched_N"),
    (need("kl", against="ref", when="step"), "kl@policy‖ref", "kl_ref_N"),
    (need("pool", "ref", at="S", last=3, layer=2), "pool@ref(last=3, layer=2)", "pool_ref_last3_layer2_S"),
]


@pytest.mark.parametrize(("wanted", "said", "column"), NAMES, ids=[said for _, said, _ in NAMES])
def test_the_names_of_a_need(wanted: Need, said: str, column: str) -> None:
    assert str(wanted) == said and wanted.column == column


def test_needs_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match=r"'logpp': no such readout .nearest: logp"):
        need("logpp")
    with pytest.raises(ValueError, match=r"it reads one role\. Leave against out"):
        need("logp", against="ref")
    with pytest.raises(ValueError, match="it reads two, so name the second"):
        need("kl")
    with pytest.raises(AttributeError, match="entropy_N was not asked for"):
        _ = Stats(logp_N=torch.zeros(1)).entropy_N


def test_one_log_softmax_serves_all_readouts() -> None:
    """It is kept for the chunk it was made of, each temperature by itself; another chunk makes its own."""
    c = chunk(0.7)
    assert c.log_p() is c.log_p() and c.log_p(2.0) is c.log_p(2.0)
    assert c.log_p().tolist() != c.log_p(2.0).tolist()
    moved = replace(c, scores_CV=c.scores_CV.flip(1))
    assert moved.log_p().tolist() != c.log_p().tolist()
