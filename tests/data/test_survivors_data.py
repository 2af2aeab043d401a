"""Data where a wrong number went unseen: `make mutants` had changed these lines, and no test failed."""

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from gruppo.data import pack, single_turn
from gruppo.data.files import _separate, system_errors, whole_folder
from gruppo.data.pack import micro_rows


def test_other_columns_are_not_read_through_what_was_found_before() -> None:
    """Which row belongs to which is remembered by the batch; a batch with other columns finds it anew."""
    batch = pack(
        [single_turn(i, "t", f"g{i}", np.array([1]), np.array([5]), np.zeros(1, np.float32), 0) for i in range(3)]
    )
    x = torch.tensor([1.0, 2.0, 4.0])
    assert batch.gather(x, "N", "G").tolist() == [1.0, 2.0, 4.0]
    assert batch.with_columns(group_E=torch.tensor([2, 2, 0])).gather(x, "N", "G").tolist() == [4.0, 0.0, 3.0]


def test_equal_sequences_keep_the_order_of_the_batch() -> None:
    """Fifty times the same answer: whichever share a sequence falls into, it is not by the luck of a sort."""
    same = [single_turn(i, "t", "g", np.arange(1, 9), np.array([5, 6]), np.zeros(2, np.float32), 0) for i in range(50)]
    shares = micro_rows(pack(same, share=0.0), 10**6, shares=2)
    assert [i for share in shares for rows in share for i in rows.tolist()] == list(range(50))


# files


def test_only_tensors_that_share_their_memory_are_copied() -> None:
    """Weights may fill the memory of a machine; a part of another tensor is stored without the rest."""
    x, y = torch.ones(4, 2), torch.zeros(3)
    found = _separate({"x": x, "y": y, "again": x, "part": y[1:]})
    assert found["x"].data_ptr() == x.data_ptr() and found["y"].data_ptr() == y.data_ptr()
    assert found["again"].data_ptr() != x.data_ptr() and found["part"].untyped_storage().nbytes() == 8
    alone = _separate({"part": y[1:]})["part"]
    assert alone.untyped_storage().nbytes() == 8 and alone.tolist() == [0.0, 0.0]


# whole folders


def test_an_empty_folder_becomes_whole_and_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("mine")
    for name in ("empty", "not/yet/there"):
        with whole_folder(tmp_path / name, "mark") as draft:
            (draft / "mark").write_text("done")
        assert (tmp_path / name / "mark").read_text() == "done"
    for name in ("file", "full"):
        with (
            pytest.raises(ValueError, match="has no mark: it holds something else"),
            whole_folder(tmp_path / name, "mark"),
        ):
            pass
    assert (tmp_path / "file").read_text() == (tmp_path / "full" / "x").read_text() == "mine"


def test_a_first_folder_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"), whole_folder(tmp_path / "a", "mark"):
        raise KeyError("mine")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "code"),
    [("I/O error: No space (os error 28)", 28), ("Os { code: 27, kind: FileTooLarge }", 27), ("odd", errno.EIO)],
)
def test_an_error_of_the_disk_has_its_number(said: str, code: int) -> None:
    with pytest.raises(OSError) as error, system_errors():
        raise SafetensorError(said)
    assert error.value.errno == code


def test_an_episode_does_not_print_its_ask() -> None:
    """It holds the task, with its whole prompt, and a row of episodes would fill the screen."""
    e = single_turn(1, "t", "g", np.array([1]), np.array([5]), np.zeros(1, np.float32), 0, ask="a long prompt")
    assert "long prompt" not in repr(e) and e == replace(e, ask=None)
