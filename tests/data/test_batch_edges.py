"""A batch at its edges: near names, time orders that are none, cuts of cuts, moving, views; and files of episodes."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from making_episodes import answer, random_episodes

from gruppo.data import Batch, Episode, Note, Sequence, Source, Status, Turn, Use, key_hash, name_hash, pack, store
from gruppo.data.keyed import uniform
from gruppo.data.store import load_episodes, save_episodes
from gruppo.data.views import mismatched, under, without_hints


def test_a_missing_column_names_its_neighbours() -> None:
    batch = pack([answer(1)])
    with pytest.raises(AttributeError, match=r"no column 'logp_gem_N'; nearest: logp_gen_N"):
        _ = batch.logp_gem_N
    with pytest.raises(AttributeError, match="nearest: none"):
        _ = batch.zzzzzzzz
    with pytest.raises(AttributeError) as error:
        _ = batch.reward_X
    assert str(error.value).partition("nearest: ")[2].partition(".")[0].count(", ") == 2, "three are enough"
    assert "_cache" not in repr(batch)
    with pytest.raises(AttributeError, match="nearest: none"):
        _ = Batch.__new__(Batch).anything  # half made, as by pickle: no endless search


def two_agents(uid: int, group: str = "g") -> Episode:
    """Two sequences whose turns go to and fro: 0 1 0 1."""
    parts = [
        Sequence(
            np.arange(5) + 10 * j, np.array([0, 1, 0, 1, 1], np.int8), np.zeros(5, np.float32), np.zeros(5, np.int32), 1
        )
        for j in range(2)
    ]
    turns = [Turn(1, 2, 0), Turn(1, 2, 1), Turn(3, 5, 0), Turn(3, 5, 1)]
    return Episode(uid, "t", group, parts, turns, reward={"task": 1.0})


def test_orders_of_time() -> None:
    plain, both = pack([answer(1), answer(2)]), pack([two_agents(1, "b"), answer(2, group="a"), two_agents(3, "b")])
    assert plain.time_order("N").tolist() == list(range(6))
    assert plain.time_order("N", where=plain.token_N > 10).tolist() == [1, 2, 4, 5]
    assert both.time_order("K").tolist() == [0, 2, 1, 3, 4, 5, 7, 6, 8]
    assert both.time_order("N").tolist() == [0, 3, 1, 2, 4, 5, 6, 7, 8, 9, 12, 10, 11, 13, 14]
    keep = torch.arange(15) % 2 == 0
    assert both.time_order("N", where=keep).tolist() == [0, 2, 4, 6, 8, 12, 10, 14]
    mixed = pack([answer(i, n=1, group=g) for i, g in enumerate("aba")])
    assert mixed.time_order("N", "G").tolist() == mixed.time_order("K", "G").tolist() == [0, 2, 1]
    assert both.time_order("K", "G").tolist() == [0, 2, 1, 3, 5, 7, 6, 8, 4], "one group after the other"
    assert both.time_order("S").tolist() == [0, 1, 2, 3, 4] and both.time_order("E", "G").tolist() == [0, 2, 1]


def test_scans_and_lags_go_by_time() -> None:
    batch = pack([two_agents(1)])
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])  # rows; in time 1, 3, 2, 4
    assert batch.lag(x, 1).tolist() == [0.0, 3.0, 1.0, 2.0] and batch.lag(x, -1, fill=-1.0).tolist() == [
        3.0,
        4.0,
        2.0,
        -1.0,
    ]
    assert batch.lag(x, 1, within="S").tolist() == [0.0, 1.0, 0.0, 3.0]
    half = torch.full((4,), 0.5)
    assert (
        batch.scan(x, 0.5, "K").tolist()
        == batch.scan(x, half, "K").tolist()
        == [1 + 1.5 + 0.5 + 0.5, 2 + 2, 3 + 1 + 1, 4]
    )
    assert batch.scan(x, torch.tensor([0.0, 0.5, 1.0, 0.5]), "K").tolist() == [1.0, 4.0, 7.0, 4.0]


def test_a_part_of_a_part() -> None:
    """Groups and episodes are numbered anew, from 0, in the order asked for; nothing is left of the others."""
    batch = pack(
        [answer(1, group="a"), two_agents(2, "b"), answer(3, group="c"), answer(4, group="b")],
        drawn={"a": 5, "b": 2, "c": 3},
    )
    part = batch.minibatch(torch.tensor([3, 2, 1]))
    assert part.uid_E.tolist() == [4, 3, 2] and part.group_E.tolist() == [0, 1, 0]
    assert part.uid_G.tolist() == [name_hash("b"), name_hash("c")] and part.drawn_G.tolist() == [2, 3]
    assert part.episode_S.tolist() == [0, 1, 2, 2] and part.drawn == pytest.approx(2.0)
    again = part.minibatch(torch.tensor([2, 0]))
    assert again.uid_E.tolist() == [2, 4] and again.episode_S.tolist() == [0, 0, 1] and again.group_E.tolist() == [0, 0]
    assert again.uid_N.tolist() == [*batch.uid_N[3:9].tolist(), *batch.uid_N[12:].tolist()]
    assert batch.size("E") == 4 and batch.up("N", "G").tolist() == [0] * 3 + [1] * 6 + [2] * 3 + [1] * 3
    assert again.up("N", "G").tolist() == [0] * 9, "made anew, not taken over"


def test_a_moved_batch_is_the_same() -> None:
    truncated = answer(1)
    truncated.sequences[0].allowed = {3: np.array([4, 5])}
    batch = pack([truncated, answer(2)])
    _ = batch.learn_N, batch.up("N", "E")
    moved = batch.to("cpu")
    assert moved.allowed is not None and moved.allowed.length.tolist() == [0, 2, 0, 0, 0, 0]
    assert moved._cache == {} and moved.columns.keys() == batch.columns.keys()
    assert pack([answer(1)]).to("cpu").allowed is None


def test_parts_know_nothing_of_what_the_whole_remembers() -> None:
    batch = pack([answer(i, group=g, reward={"task": 1.0}) for i, g in enumerate("ab")])
    assert batch.learn_N.tolist() == [True] * 6 and batch.up("N", "E").tolist() == [0] * 3 + [1] * 3
    for part in (batch.minibatch(torch.tensor([1])), batch.micro(torch.tensor([1]))):
        assert part.learn_N.tolist() == [True] * 3 and len(part.up("N", "E")) == 3
    assert batch.with_columns(keep_N=torch.zeros(6, dtype=torch.bool)).learn_N.tolist() == [False] * 6


# keys


@pytest.mark.parametrize("number", [0, 1, -1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64 - 1])
def test_a_number_is_the_same_in_a_tensor_and_beside_one(number: int) -> None:
    """Also the one whose two's complement has its first bit alone."""
    signed = number - 2**64 if number >= 2**63 else number
    row = torch.tensor([3])
    one = key_hash(number, 3)
    assert isinstance(one, int) and -(2**63) <= one < 2**63
    assert key_hash(number, row).tolist() == [one] == key_hash(torch.tensor([signed]), 3).tolist()  # type: ignore[union-attr]
    assert uniform(number, row).tolist() == [uniform(number, 3)]  # type: ignore[union-attr]
    assert key_hash(row, number).tolist() == [key_hash(3, number)]  # type: ignore[union-attr]


# views


def hinted(source: list[int], prompt: int) -> Sequence:
    n = len(source)
    return Sequence(
        np.arange(n) + 50, np.array(source, np.int8), np.zeros(n, np.float32), np.zeros(n, np.int32), prompt
    )


def test_a_view_without_hints() -> None:
    """The hint leaves; its decisions are scored at the place after it, inside the sequence."""
    hint = int(Source.HINT)
    ids, at = without_hints(hinted([0, 0, hint, hint, 1, 1], 4))
    assert ids.tolist() == [50, 51, 54, 55] and at.tolist() == [2, 2, 2, 3]
    ids, at = without_hints(hinted([0, 1, 1, hint], 1))
    assert ids.tolist() == [50, 51, 52] and at.tolist() == [1, 2, 2], "at the end there is no place after it"
    ids, at = without_hints(hinted([0, hint, 1, hint, 1], 2))
    assert ids.tolist() == [50, 52, 54] and at.tolist() == [1, 1, 2, 2]


def test_an_answer_under_another_prompt() -> None:
    ids, at = under(hinted([0, 1, 1, 1], 2), np.array([7, 8, 9]))
    assert ids.tolist() == [7, 8, 9, 52, 53] and at.tolist() == [3, 3, 4]
    ids, at = under(hinted([0, 1], 2), np.array([7, 8]))
    assert ids.tolist() == [7, 8] and at.tolist() == [1], "no answer: at the last position there is"


def asked(uid: int, group: str, prompt: int, **fields: Any) -> Episode:
    ids = np.array([prompt, prompt])
    e = Episode(
        uid,
        "t",
        group,
        [
            Sequence(
                np.append(ids, [5]), np.array([0, 0, 1], np.int8), np.zeros(3, np.float32), np.zeros(3, np.int32), 2
            )
        ],
        [Turn(2, 3)],
    )
    for name, value in fields.items():
        setattr(e, name, value)
    return e


def prompts(episodes: list[Episode]) -> list[int]:
    return [int(ids[0]) for ids, _ in mismatched(episodes)]


def test_every_answer_under_the_prompt_of_the_next_group() -> None:
    names = sorted("abcde", key=name_hash)
    own = {name: 10 + i for i, name in enumerate(names)}
    following = {name: own[names[(i + 1) % 5]] for i, name in enumerate(names)}
    episodes = [asked(i, g, own[g]) for i, g in enumerate("cabbcaed")]
    assert prompts(episodes) == [following[g] for g in "cabbcaed"]
    assert "".join(names) not in "abcdeabcde", "by their hashes, so that a name says nothing"


def test_the_lender_is_the_first_that_is_judged_and_learns() -> None:
    a, b = sorted("ab", key=name_hash)
    rows = [
        asked(9, b, 29), asked(4, b, 24), asked(1, b, 21, status=Status.TIMEOUT), asked(2, b, 22, use=Use.APART),
        asked(5, a, 15),
    ]  # fmt: skip
    assert prompts(rows) == [15, 15, 15, 15, 24]
    assert prompts([asked(1, "x", 31), asked(2, "x", 32)]) == [31, 31], "one group: the prompt stays its own"
    failed = asked(1, "x", 31, status=Status.TIMEOUT)
    assert prompts([failed]) == [31], "nobody lends"
    assert prompts([asked(1, "x", 31, status=Status.TIMEOUT), asked(2, "y", 42)]) == [42, 42], "what failed borrows"


# files


def round_trip(path: Path, episodes: list[Episode]) -> list[Episode]:
    save_episodes(path, episodes)
    return load_episodes(path)


def test_folders_are_made_and_files_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "step.arrow"
    assert round_trip(path, [answer(1)])[0].uid == 1 and round_trip(path, [answer(2)])[0].uid == 2
    assert [p.name for p in path.parent.iterdir()] == ["step.arrow"]
    assert round_trip(path, []) == []


def test_a_folder_that_cannot_be_written_to_says_so_itself(tmp_path: Path) -> None:
    """Nothing was begun, so there is nothing to clear away: the first error is the one that is told."""
    (tmp_path / "folder.arrow").mkdir()
    with pytest.raises(OSError, match=r"folder\.arrow"):
        save_episodes(tmp_path / "folder.arrow", [answer(1)])
    assert [p.name for p in tmp_path.iterdir()] == ["folder.arrow"]


def test_what_could_not_be_begun_says_why_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(store, "open", full, raising=False)
    with pytest.raises(OSError, match="no space left"):
        save_episodes(tmp_path / "f", [answer(1)])


def test_a_file_and_its_name_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    save_episodes(tmp_path / "f", [answer(1)])
    assert len(synced) == (2 if os.name == "posix" else 1)


def test_columns_have_the_same_types_whatever_is_in_them(tmp_path: Path) -> None:
    """So that the files of many steps are one table."""
    schemas: list[Any] = []
    for name, episodes in (("none", []), ("one", [answer(1)]), ("all", random_episodes(3, 5))):
        save_episodes(tmp_path / name, episodes)
        with pa.ipc.open_file(tmp_path / name) as reader:
            schemas.append(reader.schema)
    assert schemas[0] == schemas[1] == schemas[2]


def test_texts_that_are_no_unicode_come_back(tmp_path: Path) -> None:
    """Half of a surrogate pair, as a cut stream of bytes leaves it; beside whole texts and empty ones."""
    odd, plain = answer(1, text="a\ud800b", error="ü"), answer(2, text="", error="\udfff")
    odd.turns[0].state = "\ud801"
    odd.reward, plain.reward = {"x\ud800": 1.0}, {"é": 2.0}
    back = round_trip(tmp_path / "f", [odd, plain])
    assert [(e.text, e.error, e.reward) for e in back] == [(e.text, e.error, e.reward) for e in (odd, plain)]
    assert back[0].turns[0].state == "\ud801" and back[1].turns[0].state == ""


@pytest.mark.parametrize(
    "values",
    [
        np.array([[1.5, 2.5]], np.float32), np.array([math.pi]), np.array([7], np.int64), np.array([7], np.int16),
        np.array([2**53 - 1, -(2**53) + 1]), np.zeros((0, 3), np.float32),
        np.array([True]), np.array([0.5], np.float16),
        np.array([2**24 + 1], np.int32), np.array([3], np.uint8), np.zeros(0, np.int64),
    ],
    ids=lambda v: f"{v.dtype}{v.shape}",
)  # fmt: skip
def test_notes_of_any_kind_come_back(tmp_path: Path, values: Any) -> None:
    for others in ({}, {"wide": Note(np.array([math.pi]), "E")}):
        e = answer(1, notes={"x": Note(values, "E", 3), **others})
        back = round_trip(tmp_path / "f", [e])[0].notes["x"]
        assert back.values.dtype == values.dtype and back.values.shape == values.shape
        assert np.array_equal(back.values, values) and (back.level, back.version) == ("E", 3)


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**60])
def test_a_whole_number_that_a_float_cannot_hold_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(ValueError, match=r"Note\.values is int64 and reaches .* it would lose digits"):
        save_episodes(tmp_path / "f", [answer(1, notes={"x": Note(np.array([number]), "E")})])
    assert not (tmp_path / "f").exists()


def test_floats_are_small_in_the_file(tmp_path: Path) -> None:
    """Notes are float32 unless one is wider; columns have the types that readers of Arrow are promised."""
    save_episodes(tmp_path / "f", [answer(1, notes={"x": Note(np.ones(1, np.float32), "E")})])
    table = pa.ipc.open_file(tmp_path / "f").read_all()
    notes, sequences = table.schema.field("notes").type.value_type, table.schema.field("sequences").type.value_type
    assert notes.field("values").type.value_type == pa.float32() and notes.field("shape").type.value_type == pa.int64()
    assert sequences.field("logp").type.value_type == pa.float32()
    assert table.schema.field("status").type == pa.int8() and table.schema.field("uid").type == pa.int64()


def test_a_column_that_would_lose_digits_is_refused(tmp_path: Path) -> None:
    e = answer(1)
    e.sequences[0].logp = e.sequences[0].logp.astype(np.float64)
    with pytest.raises(ValueError, match=r"Sequence\.logp is float64, and the file holds float32"):
        save_episodes(tmp_path / "f", [e])
    e.sequences[0].logp = np.zeros(len(e.sequences[0].ids), np.float16)
    assert round_trip(tmp_path / "f", [e])[0].sequences[0].logp.dtype == np.float32


def test_files_in_several_pieces(tmp_path: Path) -> None:
    """Another program may have written the same table in pieces."""
    found = random_episodes(3, 4)
    save_episodes(tmp_path / "f", found)
    with pa.ipc.open_file(tmp_path / "f") as reader:
        table = reader.read_all()
    with pa.ipc.new_file(tmp_path / "g", table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    assert [e.uid for e in load_episodes(tmp_path / "g")] == [e.uid for e in found]
    assert [len(e.turns) for e in load_episodes(tmp_path / "g")] == [len(e.turns) for e in found]
