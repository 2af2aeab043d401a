"""`gruppo push` with a hub of our own: what is uploaded, and what is refused."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gruppo.cli import main
from gruppo.cli import push as module

hub = pytest.importorskip("huggingface_hub")

CONFIG = """
steps = 60
prompts = 64
seed = 0
[method]
name = "grpo"
paper = "arXiv:2402.03300"
[task]
name = "/home/me/secret/sums.jsonl"
level = "2"
[task.args]
key = "sk-123"
[model]
name = "/home/me/models/small"
dtype = "float32"
[model.lora]
rank = 4
[optim]
kind = "gruppo.train.learner:OptimConfig@1"
lr = 0.0001
"""


class Hub:
    """A hub with some repositories: {name: private}."""

    def __init__(self, repos: dict[str, bool] | None = None, fails: Exception | None = None, slow: float = 0.0) -> None:
        self.repos, self.fails, self.slow = dict(repos or {}), fails, slow
        self.files: dict[str, dict[str, bytes]] = {}

    def whoami(self) -> dict[str, str]:
        time.sleep(self.slow)
        if self.fails:
            raise self.fails
        return {"name": "ann"}

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        if name.startswith("other/"):
            raise PermissionError("403 Forbidden: you have no rights")
        assert exist_ok
        self.repos.setdefault(name, private)
        return f"hub/{name}"

    def repo_info(self, name: str) -> Any:
        return SimpleNamespace(private=self.repos[name])

    def create_commit(self, name: str, operations: list[Any], *, commit_message: str) -> None:
        assert name not in self.files and commit_message  # everything at once
        read = {o.path_in_repo: o.path_or_fileobj for o in operations}
        self.files[name] = {k: Path(v).read_bytes() if isinstance(v, str) else v for k, v in read.items()}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "a"
    (folder / "policy").mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "summary.json").write_text(
        json.dumps({"method": "grpo", "accuracy_before": 0.384, "accuracy_after": 0.986})
    )
    (folder / "policy" / "config.json").write_text("{}")
    (folder / "policy" / "model.safetensors").write_bytes(b"weights")
    (folder / "policy" / ".hidden").touch()
    return folder


def on(monkeypatch: pytest.MonkeyPatch, fake: Hub, token: str | None = "t") -> Hub:
    monkeypatch.setattr(hub, "HfApi", lambda: fake)
    monkeypatch.setattr(hub, "get_token", lambda: token)
    return fake


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["push", *argv]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("source", ["runs/a", "runs/a/policy"])
def test_a_run_is_uploaded_with_its_card(run: Path, monkeypatch: Any, capsys: Any, source: str) -> None:
    fake = on(monkeypatch, Hub())
    before = sorted(p.name for p in (run / "policy").iterdir())
    assert main(["push", source, "sums"]) == 0
    assert "runs/a/policy is at hub/ann/sums (private)" in capsys.readouterr().out
    assert fake.repos == {"ann/sums": True}
    files = fake.files["ann/sums"]
    assert set(files) == {"config.json", "model.safetensors", "README.md"} and files["model.safetensors"] == b"weights"
    card = files["README.md"].decode()
    rows = ["method | grpo (arXiv:2402.03300)", "task | sums.jsonl, level 2", "steps | 60", "seed | 0"]
    rows += ["held-out accuracy before | 0.384", "held-out accuracy after | 0.986"]
    rows += ["model.name | small", "model.lora.rank | 4", "optim.lr | 0.0001"]
    for row in rows:
        assert f"| {row} |" in card
    assert card.startswith("---\nlibrary_name: transformers\n") and 'from_pretrained("ann/sums")' in card
    assert "/home" not in card and "sk-123" not in card and "base_model" not in card  # nothing of this machine
    assert sorted(p.name for p in (run / "policy").iterdir()) == before  # the folder stays as it is


def test_public_only_if_asked(run: Path, monkeypatch: Any, capsys: Any) -> None:
    fake = on(monkeypatch, Hub({"ann/open": False, "ann/shut": True}))
    assert main(["push", "runs/a", "ann/new", "--public"]) == 0 and fake.repos["ann/new"] is False
    assert "(public)" in capsys.readouterr().out
    assert "ann/open exists and is public" in refused(capsys, "runs/a", "ann/open")
    assert "ann/open" not in fake.files
    assert main(["push", "runs/a", "ann/open", "--public"]) == 0 and "ann/open" in fake.files
    assert main(["push", "runs/a", "ann/shut", "--public"]) == 0
    assert "(private)\nthe repository was there before and is private" in capsys.readouterr().out


def test_a_card_of_the_user_stays(run: Path, monkeypatch: Any) -> None:
    fake = on(monkeypatch, Hub())
    (run / "policy" / "README.md").write_text("mine")
    assert main(["push", "runs/a", "x"]) == 0 and fake.files["ann/x"]["README.md"] == b"mine"


def test_a_folder_without_a_run(run: Path, monkeypatch: Any, tmp_path: Path) -> None:
    fake = on(monkeypatch, Hub())
    (run / "policy").rename(tmp_path / "alone")
    (tmp_path / "alone" / "chat_template.jinja").touch()
    assert main(["push", "alone", "x"]) == 0
    card = fake.files["ann/x"]["README.md"].decode()
    assert "accuracy" not in card and "apply_chat_template" in card


def test_adapters(run: Path, monkeypatch: Any, capsys: Any) -> None:
    fake = on(monkeypatch, Hub())
    (run / "adapter").mkdir()
    config = run / "adapter" / "adapter_config.json"
    for base in ("/home/me/models/small", None):
        config.write_text(json.dumps({"base_model_name_or_path": base}))
        assert "Push runs/a/policy, which has the adapter merged" in refused(capsys, "runs/a/adapter", "x")
    config.write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-0.5B"}))
    assert main(["push", "runs/a/adapter", "x"]) == 0
    card = fake.files["ann/x"]["README.md"].decode()
    assert "library_name: peft\n" in card and "base_model: Qwen/Qwen2.5-0.5B\n" in card and "PeftModel" in card


def test_without_a_token(run: Path, monkeypatch: Any, capsys: Any) -> None:
    on(monkeypatch, Hub(), token=None)
    assert "there is no token of the hub on this machine" in refused(capsys, "runs/a", "x")


@pytest.mark.parametrize(("fails", "slow"), [(ConnectionError("no route"), 0.0), (None, 60.0)])
def test_offline_it_is_refused_within_seconds(
    run: Path, monkeypatch: Any, capsys: Any, fails: Any, slow: float
) -> None:
    fake = on(monkeypatch, Hub(fails=fails, slow=slow))
    monkeypatch.setattr(module, "SECONDS", 0.2)
    begun = time.monotonic()
    said = refused(capsys, "runs/a", "x")
    assert f"the hub cannot be reached ({'ConnectionError' if fails else 'TimeoutError'})" in said
    assert time.monotonic() - begun < 50 and not fake.repos  # a hub that is slow would take 60


def test_what_cannot_be_pushed(run: Path, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    fake = on(monkeypatch, Hub())
    assert "neither a run with a policy nor a folder" in refused(capsys, "runs/b", "x")
    assert "is no name of a repository" in refused(capsys, "runs/a", "a/b/c")
    assert "other/x could not be uploaded (403 Forbidden: you have no rights)" in refused(capsys, "runs/a", "other/x")
    (run / "policy").rename(tmp_path / "moved")
    assert "has not saved its policy yet" in refused(capsys, "runs/a", "x")
    assert not fake.files


def test_the_real_package_without_a_token(run: Path, tmp_path: Path) -> None:
    """In a process of its own, where nothing else has imported the package before."""
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    for env, said in (({}, "there is no token of the hub"), ({"HF_TOKEN": "hf_x"}, "the hub cannot be reached")):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))} | home | env
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "gruppo", "push", "runs/a", "x"], env=clean, capture_output=True, text=True
        )
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
        assert time.monotonic() - begun < 60
