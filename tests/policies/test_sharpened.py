"""A start that is surer or less sure of itself: `model.sharpen`."""

import json

import pytest
import torch
from hf_models import hf_folder

from gruppo.cli import main
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


def test_what_a_run_has_left_is_evaluated_as_it_was_saved(tmp_path, monkeypatch, capsys):
    """Its weights are sharpened already, and --config RUN/config.toml brings model.sharpen along."""
    monkeypatch.chdir(tmp_path)
    small = ("steps=1", "prompts=2", "samples=2", "eval.prompts=4", "threads=1", "save.tensorboard=no")
    assert main(["train", "save.name=a", "model.sharpen=8", "optim.lr=1e-9", *small]) == 0
    assert "the logits of tiny are multiplied by 8 at the start" in capsys.readouterr().out
    found = []
    for words in (["runs/a"], ["runs/a", "--config", "runs/a/config.toml"], ["tiny", "--config", "runs/a/config.toml"]):
        assert main(["eval", *words, "--json"]) == 0
        out, err = capsys.readouterr()
        found.append(json.loads(out)["entropy"])
        assert ("the logits of tiny are multiplied by 8" in err) == (words[0] == "tiny")
        assert ("runs/a is evaluated as it was saved" in err) == (len(words) > 1 and words[0] == "runs/a")
    assert found[1] == found[0] == pytest.approx(found[2], rel=1e-3)  # the start is sharpened, once
