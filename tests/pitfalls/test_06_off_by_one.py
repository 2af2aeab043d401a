"""Pitfall 6: "off-by-one between logits, labels, masks, values". Rule: "shift once, in one place; test with a model
whose logits encode the position".

The model below knows nothing but positions: at position p it is sure of the token p + 1, and its value is p.
Episodes hold at position q the token q. If the bug came back, log-probabilities would not be the best possible and
values would be one off.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Sequence, Source, Turn, pack, single_turn
from gruppo.stages import need
from gruppo.train import forward
from gruppo.train.forward import serve

VOCAB = 40


class Positions:
    """Hidden state: the position. Logits: −(token − position − 1)². Value: the position."""

    def __init__(self, values: bool = False) -> None:
        self.values, self.vocab = values, 1 if values else VOCAB

    def __call__(self, inputs: Any, collect: Any = ()) -> tuple[Tensor, dict[int, Tensor]]:
        return inputs.pos_M[:, None].double(), {}

    def head(self, hidden_XD: Tensor) -> Tensor:
        return hidden_XD if self.values else -((torch.arange(VOCAB) - hidden_XD - 1) ** 2)


def two_turns(uid: int) -> Episode:
    """Prompt 0-2, action 3-5, observation 6-7, a hint 8, action 9-11."""
    kinds = [Source.ENV] * 3 + [Source.POLICY] * 3 + [Source.ENV] * 2 + [Source.HINT] + [Source.POLICY] * 3
    source = np.array(kinds, np.int8)
    logp = np.where(source == Source.POLICY, -1.0, np.nan).astype(np.float32)
    s = Sequence(np.arange(12), source, logp, np.where(source == Source.POLICY, 0, -1).astype(np.int32), 3)
    return Episode(uid, "t", "g", [s], [Turn(3, 6), Turn(9, 12, obs_start=6, obs_stop=9)], {"task": 1.0})


def one_turn(uid: int, prompt: int, action: int) -> Episode:
    ids = np.arange(prompt + action)
    return single_turn(uid, "t", "g", ids[:prompt], ids[prompt:], np.zeros(action), 0, reward={"task": 0.0})


@pytest.fixture
def batch() -> Batch:
    return pack([one_turn(1, 4, 3), two_turns(2), one_turn(3, 1, 6)], dtype=torch.float64)


def parts(batch: Batch) -> list[Batch]:
    """The batch, and the ways in which it is cut."""
    one = torch.tensor([1])
    return [batch, batch.micro(torch.tensor([2, 0])), batch.minibatch(one), batch.micro(one)]


def worst(batch: Batch, model: Positions) -> float:
    """The largest distance from what a model that knows the position must say."""
    wanted = need("value" if model.values else "logp", "x")
    off = 0.0
    for part in parts(batch):
        got = serve(model, part, [wanted])[wanted.column]
        state = part.token_N.double() - 1  # a token is its position, and is decided one before it
        if not model.values:
            state = model.head(state[:, None]).log_softmax(-1).gather(1, part.token_N[:, None])[:, 0]
        off = max(off, float((got - state).abs().max()))
    return off


def test_logits_and_labels_meet(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert worst(batch, Positions()) == 0.0
    assert worst(batch, Positions(values=True)) == 0.0

    def late(b: Batch, inputs: Any, at: str) -> tuple[Tensor, Tensor]:  # the bug: read where the token itself stands
        return inputs.at_N, torch.arange(b.size("N"))

    monkeypatch.setattr(forward, "_positions", late)
    assert worst(batch, Positions()) > 0.5
    assert worst(batch, Positions(values=True)) == 1.0


def test_chunks_of_the_head_keep_their_rows(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "CHUNK_NUMBERS", {"cpu": 5 * VOCAB})
    assert worst(batch, Positions()) == 0.0


def test_masks_and_columns_stand_on_the_same_rows(batch: Batch) -> None:
    kinds = batch.source_N.tolist()
    assert batch.token_N.tolist() == [4, 5, 6, 3, 4, 5, 8, 9, 10, 11, 1, 2, 3, 4, 5, 6]
    assert [t for t, k in zip(batch.token_N.tolist(), kinds, strict=True) if k == Source.HINT] == [8]
    assert batch.turn_N.tolist() == [0] * 3 + [1] * 3 + [2] * 4 + [3] * 6
    assert torch.equal(batch.inputs.ids_M[batch.at_N], batch.token_N)
    assert torch.equal(batch.inputs.ids_M[batch.inputs.parent_M[batch.at_N]], batch.token_N - 1)


def test_a_value_of_a_turn_is_that_before_its_first_decision(batch: Batch) -> None:
    got = serve(Positions(values=True), batch, [need("value", "x", at="K")])["value_x_K"]
    assert got.tolist() == [3.0, 2.0, 7.0, 0.0]
