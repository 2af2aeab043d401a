"""The script that makes the shipped weights: its corpus, and a run of two steps."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from gruppo.tasks import load_object, load_task

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_weights.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_weights", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_weights"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["make_weights"]


@pytest.fixture(scope="module")
def chunk(script):
    return script.make_chunk(seed=1, number=5, care=None)


def test_chunk_is_a_function_of_its_arguments(script, chunk) -> None:
    again, other = script.make_chunk(1, 5, None), script.make_chunk(1, 6, None)
    assert all(np.array_equal(getattr(chunk, k), getattr(again, k)) for k in vars(chunk))
    assert not np.array_equal(chunk.uids, other.uids)


def test_rows_are_prompt_answer_and_end(script, chunk) -> None:
    tokenizer, start = script.TOKENIZER, 0
    known = {script.hash64(t.uid): t for t in load_task("addition", level=1).train}
    for row, (length, prompt) in enumerate(zip(chunk.length[:200], chunk.prompt[:200], strict=True)):
        ids = chunk.ids[start : start + length]
        start += length
        name, level = script.CELLS[chunk.cell[row]]
        assert (ids == tokenizer.eos).nonzero()[0].tolist() == [length - 1]
        assert tokenizer.decode(ids[:prompt])[-1] in "=:"
        if (name, level) == ("addition", 1):
            a, b = sorted(tokenizer.decode(ids[: prompt - 1]).split("+"))
            task = known[script.hash64(f"addition/1/{a}+{b}")]
            score = load_object("gruppo.tasks.addition:score")
            assert score(task, tokenizer.decode(ids[prompt:])) == chunk.right[row]


def test_no_held_out_problem_is_in_the_corpus(script, chunk) -> None:
    for name, level in script.CELLS:
        held = load_task(name, level=level, held_out_size=3000).held_out
        assert not np.isin([script.hash64(t.uid) for t in held], chunk.uids).any()
    assert set(chunk.cell.tolist()) == set(range(len(script.CELLS)))


def test_an_intruder_is_found(script, chunk) -> None:
    corpus = script.Corpus.__new__(script.Corpus)
    corpus.uids = [chunk.uids]
    train = list(load_task("addition", level=1).train)
    with pytest.raises(AssertionError, match="held-out problems are in the corpus"):
        corpus.assert_unseen(train)


def test_inputs_mark_the_answers(script, chunk) -> None:
    inputs = script.inputs_of([(chunk, 10, 14), (chunk, 20, 22)])
    length = [*chunk.length[10:14], *chunk.length[20:22]]
    prompt = [*chunk.prompt[10:14], *chunk.prompt[20:22]]
    assert len(inputs.ids_M) == sum(length)
    assert len(inputs.at_N) == sum(length) - sum(prompt)
    assert (inputs.pos_M == 0).sum() == 6
    assert (inputs.ids_M[inputs.at_N] == script.TOKENIZER.eos).sum() == 6
    assert (inputs.seq_M[inputs.at_N] == inputs.seq_M[inputs.parent_M[inputs.at_N]]).all()


def test_rate_rises_and_falls(script) -> None:
    rates = [script.rate(s, 1000, 1.0) for s in range(1000)]
    assert max(rates) == pytest.approx(1.0)
    assert rates[0] < 0.05
    assert 0.005 < rates[-1] < 0.02


@pytest.mark.slow
def test_two_steps_write_a_folder(script, tmp_path, monkeypatch) -> None:
    out = tmp_path / "tiny"
    arguments = f"--steps 2 --batch 16 --prompts 4 --workers 1 --device cpu --out {out}"
    monkeypatch.setattr(sys, "argv", ["make_weights.py", *arguments.split()])
    script.main()
    recipe = json.loads((out / "recipe.json").read_text())
    assert recipe["steps"] == 2
    assert set(recipe["held_out_accuracy"]) == {f"{n}-{v}" for n, v in script.CELLS}
    assert sum(f.stat().st_size for f in out.iterdir()) < 5e6
