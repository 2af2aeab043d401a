"""Episodes in a file: every bit comes back, half a file is refused, and a crash leaves the old one."""

import contextlib
import dataclasses
import gc
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import LAW, answer, episode_lists, random_episodes

from gruppo.data import Episode, Note, Sequence, Source, Status, ToolCall, Turn, Use
from gruppo.data import store as store_module
from gruppo.data.store import load_episodes, save_episodes


def bits(x: Any) -> Any:
    """A value that is equal exactly when type, order and every bit are: NaN too."""
    if dataclasses.is_dataclass(x):
        return (type(x), [(f.name, bits(getattr(x, f.name))) for f in dataclasses.fields(x)])
    if isinstance(x, np.ndarray):
        return (x.dtype, x.shape, x.tobytes())
    if isinstance(x, dict):
        return [(bits(k), bits(v)) for k, v in x.items()]
    if isinstance(x, list | tuple):
        return (type(x), [bits(v) for v in x])
    if isinstance(x, float):
        return np.float64(x).tobytes()
    return (type(x), x)


def round_trip(episodes: list[Episode]) -> list[Episode]:
    with tempfile.TemporaryDirectory() as folder:
        save_episodes(Path(folder) / "e.arrow", episodes)
        return load_episodes(Path(folder) / "e.arrow")


@LAW
@given(episode_lists(least=0))
def test_every_field_of_every_episode_comes_back(episodes):
    assert bits(round_trip(episodes)) == bits(episodes)


ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)  # half surrogates, too
ANY_FLOAT = st.floats(width=64)
REWARDS = st.dictionaries(ANY_TEXT, ANY_FLOAT, max_size=4)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOOLS = st.lists(st.builds(ToolCall, ANY_TEXT, ANY_TEXT, ANY_FLOAT, st.booleans()), max_size=2).map(tuple)
TURNS = st.builds(
    Turn, INT64, INT64, INT64, INT64, INT64, ANY_TEXT, ANY_TEXT, ANY_TEXT, REWARDS, TOOLS,
    st.frozensets(ANY_TEXT, max_size=3), ANY_TEXT, ANY_FLOAT, ANY_TEXT,
)  # fmt: skip
NOTES = st.builds(
    Note,
    st.lists(st.floats(width=32), max_size=4).map(lambda v: np.array(v, np.float32)),
    st.sampled_from(["E", "N", "strange"]),
    INT64,
)


@st.composite
def sequences(draw: Any) -> Sequence:
    n = draw(st.integers(0, 5))

    def column(values: Any, dtype: Any) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype)

    ids = st.lists(INT64, max_size=3).map(lambda v: np.array(v, np.int64))
    return Sequence(
        column(INT64, np.int64),
        column(st.sampled_from(Source), np.int8),
        column(st.floats(width=32), np.float32),
        column(st.integers(-(2**31), 2**31 - 1), np.int32),
        draw(INT64),
        column(st.floats(width=32), np.float32) if draw(st.booleans()) else None,
        draw(st.none() | st.dictionaries(INT64, ids, max_size=3)),
        column(INT64, np.int64) if draw(st.booleans()) else None,
        draw(st.none() | ids),
    )


@LAW
@given(
    st.lists(
        st.builds(
            Episode, INT64, ANY_TEXT, ANY_TEXT, st.lists(sequences(), max_size=2), st.lists(TURNS, max_size=2),
            REWARDS, st.sampled_from(Status), st.sampled_from(Use), st.sampled_from(Source),
            st.dictionaries(ANY_TEXT, NOTES, max_size=2), ANY_TEXT, ANY_TEXT, ANY_TEXT, st.booleans(), INT64,
            ANY_TEXT, INT64, ANY_TEXT, st.frozensets(ANY_TEXT, max_size=2), INT64, INT64, ANY_TEXT,
        ),
        max_size=3,
    )
)  # fmt: skip
def test_any_values_come_back_bit_by_bit(episodes):
    assert bits(round_trip(episodes)) == bits(episodes)


def test_odd_values_come_back():
    e = answer(-(2**63), reward={"z": math.nan, "a": -0.0, "m": math.inf})
    quiet = np.array([0x7FC00001, 0xFFC12345], np.uint32).view(np.float32)  # NaN with a message
    e.sequences[0].logp[:2] = quiet
    e.turns[0].reward = {"b": 1.0, "a": 5e-324}
    e.notes = {
        "zero": Note(np.array(3, np.float32), "E", 2**40),
        "wide": Note(np.array([math.pi, math.nan]), "E"),
        "whole": Note(np.array([[1, 2**53 - 1]]), "E"),
        "bits": Note(np.array([True, False]), "E"),
        "none": Note(np.zeros(0, np.float32), "N"),
    }
    (back,) = round_trip([e])
    assert bits(back) == bits(e)
    assert list(back.reward) == ["z", "a", "m"] and list(back.turns[0].reward) == ["b", "a"]


def test_what_is_loaded_may_be_changed_and_shares_nothing():
    episodes = round_trip([answer(1), answer(2)])
    episodes[0].sequences[0].logp[:] = 5
    assert episodes[0].sequences[0].logp.base is None
    assert not (episodes[1].sequences[0].logp == 5).any()


def test_any_reader_of_arrow_sees_the_columns(tmp_path):
    episodes = random_episodes(0, 3)
    save_episodes(tmp_path / "e.arrow", episodes)
    with pa.ipc.open_file(tmp_path / "e.arrow") as reader:
        rows = reader.read_all().to_pylist()
    assert [r["uid"] for r in rows] == [e.uid for e in episodes]
    assert [s["ids"] for r in rows for s in r["sequences"]] == [s.ids.tolist() for e in episodes for s in e.sequences]
    assert [t["agent"] for r in rows for t in r["turns"]] == [t.agent for e in episodes for t in e.turns]


def test_a_file_in_several_pieces_is_read_too(tmp_path):
    episodes = random_episodes(0, 4)
    for i, part in enumerate((episodes[:1], episodes[1:])):
        save_episodes(tmp_path / f"{i}.arrow", part)
    tables = [pa.ipc.open_file(tmp_path / f"{i}.arrow").read_all() for i in range(2)]
    with pa.ipc.new_file(tmp_path / "both.arrow", tables[0].schema) as writer:
        for t in tables:
            writer.write_table(t)
    assert bits(load_episodes(tmp_path / "both.arrow")) == bits(episodes)


def test_a_file_from_before_a_field_was_there_is_read_too(tmp_path):
    episodes = random_episodes(0, 4)
    save_episodes(tmp_path / "new.arrow", episodes)
    table = pa.ipc.open_file(tmp_path / "new.arrow").read_all()
    with pa.ipc.new_file(tmp_path / "old.arrow", table.drop_columns(list(store_module._LATER)).schema) as writer:
        writer.write_table(table.drop_columns(list(store_module._LATER)))
    plain = {f.name: f.default for f in dataclasses.fields(Episode)}
    assert {name: plain[name] for name in store_module._LATER} == store_module._LATER
    wanted = [dataclasses.replace(e, **store_module._LATER) for e in episodes]
    assert bits(load_episodes(tmp_path / "old.arrow")) == bits(wanted) != bits(episodes)


def test_the_index_of_a_task_had_another_name_in_older_files(tmp_path):
    """`place` until the refit; in files from before that it is not there at all, and -1."""
    episodes = random_episodes(0, 5)
    assert len({e.index for e in episodes}) > 2
    save_episodes(tmp_path / "new.arrow", episodes)
    table = pa.ipc.open_file(tmp_path / "new.arrow").read_all()
    assert table.column("index").to_pylist() == [e.index for e in episodes]
    old = table.rename_columns(["place" if name == "index" else name for name in table.column_names])
    old = old.replace_schema_metadata(table.schema.metadata)
    with pa.ipc.new_file(tmp_path / "old.arrow", old.schema) as writer:
        writer.write_table(old)
    assert bits(load_episodes(tmp_path / "old.arrow")) == bits(load_episodes(tmp_path / "new.arrow")) == bits(episodes)
    without = table.drop_columns(["index"])
    with pa.ipc.new_file(tmp_path / "older.arrow", without.schema) as writer:
        writer.write_table(without)
    assert {e.index for e in load_episodes(tmp_path / "older.arrow")} == {-1}


def test_what_belongs_to_a_process_is_not_stored(tmp_path):
    """The ask that an episode came from, and whether it has been through the reward room."""
    e = dataclasses.replace(answer(1), ask=object(), rewarded=True, index=3)
    save_episodes(tmp_path / "e.arrow", [e])
    [back] = load_episodes(tmp_path / "e.arrow")
    assert (back.ask, back.rewarded, back.index) == (None, False, 3)
    with pa.ipc.open_file(tmp_path / "e.arrow") as reader:
        assert not {"ask", "rewarded", "place"} & set(reader.schema.names)


# ---- files that are not what they should be


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "step 3" / "episodes.arrow"
    save_episodes(path, random_episodes(0, 4))
    return path


def test_a_file_cut_off_anywhere_is_refused_with_a_sentence(file):
    whole = file.read_bytes()
    for n in [*range(0, 16), *np.linspace(16, len(whole) - 1, 60).astype(int)]:
        file.write_bytes(whole[:n])
        with pytest.raises(ValueError, match="no whole Arrow file"):
            load_episodes(file)


@pytest.mark.parametrize("content", [b"{}", b"PK\x03\x04" * 99, b"ARROW1\0\0" + b"x" * 500 + b"ARROW1"])
def test_a_foreign_file_is_refused_with_a_sentence(file, content):
    file.write_bytes(content)
    with pytest.raises(ValueError, match="no whole Arrow file"):
        load_episodes(file)


def rewrite(file: Path, metadata: dict[bytes, bytes]) -> None:
    table = pa.ipc.open_file(file.read_bytes()).read_all().replace_schema_metadata(metadata)
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def test_an_arrow_file_of_something_else_is_refused_with_a_sentence(file):
    rewrite(file, {})
    with pytest.raises(ValueError, match="not one of episodes"):
        load_episodes(file)


def test_a_version_of_the_future_is_refused_with_both_numbers(file):
    rewrite(file, {b"gruppo.format": b"episodes", b"gruppo.version": b"77"})
    with pytest.raises(ValueError, match="format 77, and this gruppo reads 1"):
        load_episodes(file)


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_episodes(tmp_path / "none.arrow")


def test_a_flipped_bit_never_crashes_the_process(file):
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(whole)
        broken[rng.integers(len(broken))] ^= 1 << int(rng.integers(8))
        file.write_bytes(broken)
        with contextlib.suppress(ValueError):
            load_episodes(file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda e: setattr(e.sequences[0], "logp", np.zeros(5)), "Sequence.logp is float64.* holds float32"),
        (lambda e: setattr(e.sequences[0], "train_as", np.zeros(2)), "Sequence.train_as is float64"),
        (lambda e: e.notes.update(n=Note(np.array([2**60]), "E")), "Note.values is int64"),
    ],
)
def test_a_type_that_would_lose_digits_is_refused(tmp_path, change, says):
    e = answer(1)
    change(e)
    with pytest.raises(ValueError, match=says):
        save_episodes(tmp_path / "e.arrow", [e])
    assert list(tmp_path.iterdir()) == []


def test_narrower_numbers_are_taken_as_they_are(tmp_path):
    e = answer(1)
    e.sequences[0].ids = e.sequences[0].ids.astype(np.int32)
    (back,) = round_trip([e])
    assert back.sequences[0].ids.dtype == np.int64 and (back.sequences[0].ids == e.sequences[0].ids).all()


# ---- whole or not at all


def test_a_write_that_fails_leaves_the_old_file_and_no_other(file, monkeypatch):
    before = file.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(store_module.os, name, full)
            with pytest.raises(OSError, match="No space"):
                save_episodes(file, random_episodes(9, 2))
        assert file.read_bytes() == before and os.listdir(file.parent) == [file.name]


def test_the_file_is_on_disk_before_it_has_its_name(file, monkeypatch):
    order: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(store_module.os, name, lambda *a, n=name, f=real: (order.append(n), f(*a)))
    save_episodes(file, random_episodes(9, 2))
    assert order[:2] == ["fsync", "replace"] and len(load_episodes(file)) == 2


def test_saving_replaces_and_leaves_no_litter(file):
    for n in (3, 0, 5):
        save_episodes(str(file), random_episodes(1, n))
        assert len(load_episodes(str(file))) == n
    assert os.listdir(file.parent) == [file.name]


def test_the_garbage_collector_is_left_as_it_was(file):
    load_episodes(file)
    assert gc.isenabled()
    gc.disable()
    try:
        load_episodes(file)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_data_imports_without_pyarrow_and_says_what_is_missing(tmp_path):
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from gruppo.data.store import load_episodes\n"
        "try: load_episodes('x')\n"
        "except ModuleNotFoundError as e: print(e)"
    )
    env = {"PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert "pyarrow is not installed" in said and "pip install pyarrow" in said


def test_five_hundred_episodes_take_no_time(tmp_path):
    episodes = random_episodes(0, 512)
    for f in (lambda: save_episodes(tmp_path / "e", episodes), lambda: load_episodes(tmp_path / "e")):
        times = []
        for _ in range(5):
            start = time.process_time()  # of this process alone, however busy the machine is
            f()
            times.append(time.process_time() - start)
        assert min(times) < 0.2  # about 0.01 s
