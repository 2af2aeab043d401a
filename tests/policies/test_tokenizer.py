import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.policies import CharTokenizer
from gruppo.policies.tokenizer import CHARACTERS

TOKENIZER = CharTokenizer()


@given(st.text(st.sampled_from(CHARACTERS)))
def test_round_trip(text):
    ids = TOKENIZER.encode(text)
    assert ids.dtype == np.int64
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text
    assert (ids > TOKENIZER.eos).all()  # nothing added, and text never becomes a special


def test_ids():
    assert (TOKENIZER.pad, TOKENIZER.bos, TOKENIZER.eos, TOKENIZER.vocab) == (0, 1, 2, 99)
    assert TOKENIZER.encode("\n ~").tolist() == [3, 4, 98]
    assert TOKENIZER.encode("<eos>").tolist() != [TOKENIZER.eos]
    assert TOKENIZER.decode([1, *TOKENIZER.encode("7+5"), 2, 0, 0]) == "7+5"


def test_unknown_characters_and_ids_are_refused():
    with pytest.raises(ValueError, match="'é' at position 3"):
        TOKENIZER.encode("caféé")
    with pytest.raises(ValueError, match="id 99 at position 1"):
        TOKENIZER.decode([5, 99])
    with pytest.raises(ValueError, match="id -1 at position 0"):
        TOKENIZER.decode([-1])


def test_save_and_load(tmp_path):
    TOKENIZER.save(tmp_path)
    assert CharTokenizer.load(tmp_path).encode("a").tolist() == TOKENIZER.encode("a").tolist()
    path = tmp_path / "tokenizer.json"
    other = json.loads(path.read_text())
    other["model"]["vocab"]["a"] = 5
    path.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="another vocabulary"):
        CharTokenizer.load(tmp_path)
