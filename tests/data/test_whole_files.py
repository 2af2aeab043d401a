"""Files and folders appear whole or not at all, and follow the umask."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gruppo.data.files import follow_umask, whole_folder, write_tensors


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size`: the nearest thing to a full disk that needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_tensors_follow_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        write_tensors({"x": torch.ones(3)}, tmp_path / "a.safetensors")
        save_file({"x": torch.ones(3)}, tmp_path / "b.safetensors")
        follow_umask(tmp_path / "b.safetensors")
    assert mode(tmp_path / "a.safetensors") == mode(tmp_path / "b.safetensors") == 0o666 & ~mask
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_the_file_has_the_bytes_of_safetensors(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(2, dtype=torch.bfloat16)}
    write_tensors(tensors, tmp_path / "ours", {"format": "pt"})
    save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_views_shared_and_empty_tensors_are_stored_whole(tmp_path: Path) -> None:
    x = torch.arange(12.0).view(3, 4)
    given = {
        "x": x,
        "again": x,
        "turned": x.T,
        "row": x[1],
        "none": x[:0],
        "none2": torch.zeros(0),
        "w": torch.nn.Parameter(x),
    }
    write_tensors(given, tmp_path / "t")
    found = load_file(tmp_path / "t")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[k], given[k]) for k in given)


def test_a_full_disk_is_an_os_error_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_tensors({"x": torch.ones(3)}, path)
    with small_disk(10_000), pytest.raises(OSError) as error:
        write_tensors({"x": torch.zeros(100_000)}, path)
    assert error.value.errno == errno.EFBIG
    assert torch.equal(load_file(path)["x"], torch.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_a_folder_appears_when_the_block_has_ended(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "policy"
    with umask(0o027), whole_folder(target, "config.json") as draft:
        (draft / "config.json").write_text("1")
        (draft / "sub").mkdir()
        save_file({"x": torch.ones(3)}, draft / "sub" / "w.safetensors")
        assert not target.exists()
    assert [p.name for p in target.parent.iterdir()] == ["policy"]
    assert {mode(p) for p in target.rglob("*") if p.is_file()} == {0o640}
    assert {mode(p) for p in (target, target / "sub")} == {0o750}


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "policy"
    for name in ("one", "two"):
        with whole_folder(target, "config.json") as draft:
            (draft / "config.json").write_text(name)
            (draft / name).touch()
    assert sorted(p.name for p in target.iterdir()) == ["config.json", "two"]
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_folder(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "policy"
    with whole_folder(target, "config.json") as draft:
        (draft / "config.json").write_text("old")
    with pytest.raises(type(error)), whole_folder(target, "config.json") as draft:
        (draft / "config.json").write_text("new")
        raise error
    assert (target / "config.json").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_a_failed_rename_brings_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, rename = tmp_path / "policy", Path.rename
    with whole_folder(target, "config.json") as draft:
        (draft / "config.json").write_text("old")

    def failing(self: Path, to: Path) -> Path:
        if self.name.startswith(".draft"):
            raise OSError(errno.EIO, "no")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"), whole_folder(target, "config.json") as draft:
        (draft / "config.json").write_text("new")
    assert (target / "config.json").read_text() == "old"


def test_a_kill_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / ".before-policy").mkdir()
    (tmp_path / ".before-policy" / "config.json").write_text("old")
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "policy", "config.json"):
        raise KeyboardInterrupt
    assert (tmp_path / "policy" / "config.json").read_text() == "old"


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="it holds something else"), whole_folder(tmp_path / "policy", "config.json"):
        pass
    assert (tmp_path / "policy" / "thesis.txt").exists()
