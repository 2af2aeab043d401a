"""Tables of memory: what was put is found, whatever the order; and rooms cannot write into what memory holds."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.stages import Memory
from gruppo.stages.tables import Table
from gruppo.train.checkpoint import pack_memory, unpack_memory

KEYS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), unique=True, max_size=12)


def ints(keys: list[int]) -> torch.Tensor:
    return torch.tensor(keys, dtype=torch.int64)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(steps=st.lists(KEYS, max_size=4), asked=KEYS)
def test_a_table_is_a_dict(steps: list[list[int]], asked: list[int]) -> None:
    table, plain = Table(), dict[int, float]()
    for n, keys in enumerate(steps):
        table = table.put(ints(keys), value=torch.arange(len(keys)) + 0.1 * n)
        plain |= {k: i + 0.1 * n for i, k in enumerate(keys)}
    assert len(table) == len(plain) and table.key_T.tolist() == sorted(plain)
    assert table.known(ints(asked)).tolist() == [k in plain for k in asked]
    assert table.look(ints(asked), "value", -1.0).tolist() == pytest.approx([plain.get(k, -1.0) for k in asked])


def test_what_is_not_named_stays_and_what_was_never_told_is_the_default() -> None:
    table = Table().put(ints([5, 2]), a=ints([50, 20])).put(ints([7, 2]), b=ints([70, 21]))
    assert table.look(ints([2, 5, 7, 9]), "a", 0.5).tolist() == [20, 50, 0.5, 0.5]
    assert table.look(ints([2, 5, 7, 9]), "b", 0.5).tolist() == [21, 0.5, 70, 0.5]
    assert table.look(ints([2]), "c").isnan().tolist() == [True]


def test_two_rows_of_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows of one key"):
        Table().put(ints([1, 1]), a=ints([1, 2]))


def test_a_table_survives_memory_and_a_checkpoint() -> None:
    memory = Memory()
    with memory.writing():
        memory["tasks"] = Table().put(ints([3, -8]), a=torch.tensor([1 / 3, float("nan")], dtype=torch.float64)).plain
    tensors: dict[str, torch.Tensor] = {}
    back = Memory(unpack_memory(pack_memory(memory.plain, tensors), tensors))
    for held in (memory, back):
        table = Table.of(held, "tasks")
        assert table.key_T.tolist() == [-8, 3] and table.look(ints([3, -8]), "a", 9.0).tolist() == [1 / 3, 9.0]
    assert len(Table.of(memory, "other")) == 0


def test_looking_up_ten_thousand_rows_takes_milliseconds() -> None:
    keys = torch.randperm(100_000)
    table = Table().put(keys, a=keys)
    times = []
    for _ in range(5):
        start = time.process_time()  # of this process alone, however busy the machine is
        found = table.look(keys[:10_000], "a")
        times.append(time.process_time() - start)
        assert torch.equal(found, keys[:10_000].double())
    assert min(times) < 0.1


def test_rooms_cannot_write_into_what_memory_holds() -> None:
    memory = Memory(table={"a": {"b": 1}}, rows=[{"c": 1}], number=2)
    for write in (
        lambda: memory["table"].__setitem__("x", 1),
        lambda: memory["table"]["a"].__setitem__("b", 2),
        lambda: memory["table"].__delitem__("a"),
        lambda: memory["rows"][0].__setitem__("c", 2),
        lambda: memory.get("table").__setitem__("x", 1),
        lambda: next(iter(memory.values())).__setitem__("x", 1),
        lambda: dict(memory.items())["table"].__setitem__("x", 1),
        lambda: dict(memory)["table"].__setitem__("x", 1),
        lambda: {**memory}["table"].__setitem__("x", 1),
        lambda: memory.copy()["rows"][0].__setitem__("c", 2),
        lambda: (memory | {"more": 1})["table"]["a"].__setitem__("b", 2),
    ):
        with pytest.raises(ValueError, match=r"memory\['(table|rows)'\] was written outside observe"):
            write()
    for missing in ("update", "setdefault", "pop", "clear"):
        assert not hasattr(memory["table"], missing)
    assert isinstance(memory["rows"], tuple) and memory["number"] == 2 and memory.get("none", 7) == 7
    assert memory.plain == memory == {"table": {"a": {"b": 1}}, "rows": [{"c": 1}], "number": 2}


def test_observe_writes_into_tables_and_rooms_see_it_without_a_copy() -> None:
    memory = Memory()
    with memory.writing():
        memory.setdefault("table", {})["x"] = {"y": 1}
        memory["table"]["x"]["y"] += 1
    assert memory["table"]["x"]["y"] == 2 and list(memory["table"]) == ["x"] and len(memory["table"]) == 1
    assert repr(memory["table"]) == "{'x': {'y': 2}}"
