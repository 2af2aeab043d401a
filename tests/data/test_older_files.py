"""Files of earlier versions load: `files/episodes-2026-11.arrow` was written before turns had tags, times and texts."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_store import bits

from gruppo.data import Episode, Note, Sequence, Source, Status, ToolCall, Turn, Use, pack
from gruppo.data.store import load_episodes, save_episodes

FILE = Path(__file__).parent / "files" / "episodes-2026-11.arrow"


def contents() -> list[Episode]:
    """What the file was written from: two contexts with turns in both, and a single answer that failed."""
    source = np.array([0, 0, 1, 1, 0, 1], np.int8)
    logp = np.where(source == 1, -0.5, np.nan).astype(np.float32)
    version = np.where(source == 1, 3, -1).astype(np.int32)
    one = Sequence(np.arange(6), source, logp, version, 2, node=np.array([-1, -1, 7, 8, -1, -1]))
    two = Sequence(
        np.arange(10, 16), source, logp, version, 2, np.full(6, 0.5, np.float32), {2: np.array([12, 13])},
        train_as=np.array([9]),
    )  # fmt: skip
    turns = [
        Turn(2, 4, 0, 0, 2, "hall", "go north", "policy", {"step": 0.25}, (ToolCall("map", "{}", 0.5, False),)),
        Turn(2, 4, 1, 0, 2, "", "wait", "rival", {}, (), frozenset({"void", "invalid"})),
        Turn(5, 6, 0, 4, 5, "kitchen", "", "policy", {"step": -1.0, "form": 2.0}),
        Turn(5, 6, 1, 4, 5),
    ]
    long = Episode(
        2**53 + 1, "house-1", "house", [one, two], turns, {"task": 1.0}, Status.TRUNCATED, Use.APART, Source.POLICY,
        {"rate": Note(np.array([0.5], np.float32)), "adv": Note(np.arange(6, dtype=np.float32), "N", 3)},
        "what was said", "", "garden", True, 12, "house/2", 5, "7", frozenset({"form"}),
    )  # fmt: skip
    short = Episode(-4, "sum", "sum", [one], [Turn(2, 6, obs_stop=2)], status=Status.ENV_ERROR, error="it broke")
    return [long, short]


def test_an_old_file_has_all_it_had_and_the_new_fields_are_as_if_not_told() -> None:
    assert bits(load_episodes(FILE)) == bits(contents())


def test_it_is_an_old_file() -> None:
    """If somebody writes it anew, the test above says nothing."""
    with pa.ipc.open_file(FILE) as file:
        names = set(file.schema.names)
        turn = {f.name for f in file.schema.field("turns").type.value_type}
    assert not {"parent", "fork", "asked"} & names and not {"tag", "seconds", "text"} & turn


def test_it_packs_and_is_written_anew(tmp_path: Path) -> None:
    old = load_episodes(FILE)
    batch = pack(old)
    assert batch.tag_K.tolist() == [0] * 5 and batch.seconds_K.tolist() == [0.0] * 5
    assert batch.tools_K.tolist() == [1, 0, 0, 0, 0] and batch.tool_seconds_K.tolist() == [0.5, 0, 0, 0, 0]
    save_episodes(tmp_path / "new.arrow", old)
    assert bits(load_episodes(tmp_path / "new.arrow")) == bits(old)


@pytest.mark.parametrize("name", ["parent", "fork", "asked"])
def test_a_file_that_lacks_one_of_them(tmp_path: Path, name: str) -> None:
    save_episodes(tmp_path / "e.arrow", contents())
    with pa.ipc.open_file(tmp_path / "e.arrow") as file:
        table = file.read_all()
    with pa.ipc.new_file(tmp_path / "less.arrow", table.drop_columns([name]).schema) as out:
        out.write_table(table.drop_columns([name]))
    assert bits(load_episodes(tmp_path / "less.arrow")) == bits(contents())
