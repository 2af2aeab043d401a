import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gruppo.engines.base import Request
from gruppo.engines.sampling import draw, kept, settings_of

CPU = torch.device("cpu")
P = torch.tensor([[0.4, 0.1, 0.3, 0.15, 0.05]], dtype=torch.float64)


def settings(**how):
    return settings_of([Request(np.array([1]), 1, 0, **how)], (), CPU)


@pytest.mark.parametrize(
    ("how", "ids"),
    [
        ({"top_k": 2}, [0, 2]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.39}, [0]),
        ({"top_p": 0.41}, [0, 2]),
        ({"top_p": 0.8}, [0, 2, 3]),
        ({"top_p": 1e-9}, [0]),
        ({"top_k": 3, "top_p": 0.8}, [0, 2]),  # of the 0.85 left by top-k, 0 and 2 hold 0.82
        ({"temperature": 0.0}, [0]),
    ],
    ids=str,
)
def test_what_is_kept(how, ids):
    assert torch.nonzero(kept(P.log(), settings(**how))[0])[:, 0].tolist() == ids


def test_ties_with_the_kth_are_kept_and_greedy_takes_the_first():
    logp = torch.tensor([[0.1, 0.3, 0.3, 0.3]]).log()
    assert kept(logp, settings(top_k=2))[0].tolist() == [False, True, True, True]
    assert kept(logp, settings(temperature=0.0))[0].tolist() == [False, True, False, False]


@given(
    key=st.integers(-(2**70), 2**70),
    logits=st.lists(st.floats(-80, 80, width=32), min_size=2, max_size=12),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.integers(0, 5),
    top_p=st.floats(0.01, 1.0),
)
def test_a_draw_has_probability_and_its_logp(key, logits, temperature, top_k, top_p):
    request = Request(np.array([1]), 1, key, temperature, top_k, top_p)
    z = torch.tensor([logits], dtype=torch.float32)
    d = draw(z, settings_of([request], (), CPU), torch.tensor([1]))
    token = int(d.token_B)
    assert d.logp_B.isfinite().all()
    keep = torch.ones(len(logits), dtype=torch.bool) if d.keep_BV is None else d.keep_BV[0]
    assert keep[token]
    expected = (z[0] / (temperature or 1.0)).masked_fill(~keep, float("-inf")).log_softmax(-1)[token]
    torch.testing.assert_close(d.logp_B[0], expected, rtol=1e-4, atol=1e-4)
