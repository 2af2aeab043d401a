"""How many tokens an answer gets if no setting says so: by the task, the model and its context."""

import json
from dataclasses import replace
from pathlib import Path

import hf_models
import pytest

from gruppo.policies import CharTokenizer, load_tokenizer
from gruppo.stages.check import cut_off
from gruppo.tasks import BUILT_IN, TaskConfig
from gruppo.tasks.build import TEXT_LEAST, TEXT_MOST, TEXT_UNKNOWN, text_tokens
from gruppo.tasks.fit import most_tokens, refuse_unfit
from gruppo.tasks.load import load


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The tokenizer of a Hugging Face model."""
    return load_tokenizer(str(hf_models.hf_folder(tmp_path_factory.mktemp("hf"), template=hf_models.CHATML)))


def rows(folder: Path, *answers: str, prompt: str = "say") -> TaskConfig:
    path = folder / "rows.jsonl"
    lines = [json.dumps({"prompt": f"{prompt} {i}", "answer": a}) for i, a in enumerate(answers)]
    path.write_text("\n".join(lines))
    return TaskConfig(name=str(path))


def test_a_prompt_longer_than_the_context_is_not_helped_by_shorter_answers(tmp_path: Path) -> None:
    tasks = load(rows(tmp_path, *"abcdefghij", prompt="1" * 20))
    for context, helps in ((30, True), (20, False)):
        with pytest.raises(ValueError, match=f"more than the {context} of this model's context") as told:
            refuse_unfit(tasks, CharTokenizer(), context, 16)
        assert ("lower sampling.max_tokens" in str(told.value)) == helps


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_tasks_keep_their_number_with_every_model(name: str, words: object) -> None:
    tasks = load(TaskConfig(name=name))
    assert most_tokens(tasks, CharTokenizer(), 256) == most_tokens(tasks, words, 4096) == tasks.max_tokens


def test_a_model_that_writes_text_gets_more_and_the_built_in_one_does_not(tmp_path: Path, words: object) -> None:
    tasks = load(rows(tmp_path, "7", "9"))
    assert tasks.max_tokens == most_tokens(tasks, CharTokenizer(), 256) == 16
    assert most_tokens(tasks, words, 4096) == TEXT_LEAST == 256


def test_between_the_bounds_it_is_the_longest_reference(tmp_path: Path, words: object) -> None:
    assert text_tokens(0) == TEXT_UNKNOWN
    last = 0
    for longest in (1, 255, 256, 257, 700, 1024, 5000):
        assert TEXT_LEAST <= text_tokens(longest) <= TEXT_MOST and text_tokens(longest) >= last
        last = text_tokens(longest)
    assert most_tokens(load(rows(tmp_path, "x" * 700, "y")), words, 4096) == 700


def test_the_longest_prompt_and_the_answer_fit_the_context(tmp_path: Path, words: object) -> None:
    tasks = load(rows(tmp_path, "7", "9", prompt="p" * 50))
    prompt = len(words.chat(tasks.train[0].messages))  # type: ignore[attr-defined]
    for context in (prompt + 16, prompt + 17, prompt + 100, prompt + 256, prompt + 300):
        assert most_tokens(tasks, words, context) == min(context - prompt, 256)
    assert most_tokens(tasks, words, prompt) == tasks.max_tokens  # nothing fits: refuse_unfit says so


def test_an_own_number_of_the_task_stays(tmp_path: Path, words: object) -> None:
    assert most_tokens(replace(load(rows(tmp_path, "7", "9")), max_tokens=9, text_tokens=0), words, 4096) == 9


def test_the_cause_is_named_when_most_answers_are_cut_off() -> None:
    assert cut_off(0.5, 16) == cut_off(float("nan"), 16) == ""
    assert "94% of the answers were cut off at 16 tokens" in cut_off(0.94, 16)
    assert "sampling.max_tokens=64" in cut_off(0.94, 16)
