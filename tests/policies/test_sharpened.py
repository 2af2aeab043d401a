"""A start that is surer or less sure of itself: `model.sharpen`."""

import pytest
import torch
from hf_models import hf_folder

from gruppo.policies import Lora, load_policy, load_tokenizer, packed


def logits(policy):
    return policy.head(policy(packed([load_tokenizer("tiny").encode("12+34=46")]))[0])


@pytest.mark.parametrize("by", [8.0, 0.7])
def test_at_temperature_1_it_is_the_plain_one_at_1_over_sharpen(by, tmp_path):
    plain, sharp = load_policy("tiny", torch.float64), load_policy("tiny", torch.float64, sharpen=by)
    torch.testing.assert_close(logits(sharp).log_softmax(-1), (logits(plain) * by).log_softmax(-1))
    sharp.save(tmp_path)  # it is in the weights, so it stays
    torch.testing.assert_close(logits(load_policy(tmp_path, torch.float64)), logits(sharp))


def test_what_it_cannot_do_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model.sharpen=2 with model.lora.rank=4: the adapter .* Leave one out"):
        load_policy("tiny", lora=Lora(rank=4), sharpen=2.0)
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match=r"model.sharpen=2: .* runs on the modules of transformers"):
        load_policy(hf_folder(tmp_path, "granite"), sharpen=2.0)
