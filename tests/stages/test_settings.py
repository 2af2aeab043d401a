"""Fields of occupants: bounds, names among which one chooses, and what is impossible together; checked in one place."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from gruppo.methods import all_methods
from gruppo.stages import Occupant, note, setting
from gruppo.stages.occupant import NoteColumn
from gruppo.stages.record import from_table, to_table


@dataclass(frozen=True)
class Bounded(Occupant):
    share: float = setting(0.5, low=0, high=1)
    cap: float = setting(2.0, above=0)
    rate: float = setting(0.5, above=0, below=1)
    count: int = setting(3, low=1)
    free: float = 0.0
    flag: bool = setting(True, low=5)  # a flag is no number
    kind: Literal["token", "sequence", "geometric"] = "token"
    sched: Any = setting(0.1, low=0)
    table: Any = setting({"a": 1.0})

    def wrong(self) -> str:
        return "" if self.count * self.share < 10 else f"count={self.count}, share={self.share}: too many. Use fewer."


@pytest.mark.parametrize(
    "fields",
    [
        {"share": 0.0}, {"share": 1.0}, {"cap": 1e-9}, {"rate": 0.999}, {"count": 1}, {"free": -1e9}, {"flag": False},
        {"kind": "geometric"}, {"sched": "linear(0.1, 0.0, steps=3)"}, {"sched": 0}, {"share": 1},
    ],
)  # fmt: skip
def test_values_at_the_edge_are_values(fields: dict[str, Any]) -> None:
    made = Bounded(**fields)
    assert all(getattr(made, k) == v for k, v in fields.items())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"share": -0.1}, "share=-0.1 is out of range: use a number >= 0 and <= 1."),
        ({"share": 1.0001}, "share=1.0001 is out of range: use a number >= 0 and <= 1."),
        ({"cap": 0.0}, "cap=0.0 is out of range: use a number > 0."),
        ({"rate": 0.0}, "rate=0.0 is out of range: use a number > 0 and < 1."),
        ({"rate": 1.0}, "rate=1.0 is out of range: use a number > 0 and < 1."),
        ({"count": 0}, "count=0 is out of range: use a whole number >= 1."),
        ({"share": float("nan")}, "share=nan is not a number: use a number >= 0 and <= 1."),
        ({"cap": float("nan")}, "cap=nan is not a number: use a number > 0."),
        ({"sched": -0.1}, "sched=-0.1 is out of range: use a number >= 0."),
        (
            {"kind": "geometirc"},
            "kind='geometirc' is not one of its values (nearest: geometric), so nothing could be computed. Use token, "
            "sequence, geometric.",
        ),
        ({"kind": 3}, "kind=3 is not one of its values, so nothing could be computed. Use token, sequence, geometric."),
        ({"count": 20, "share": 1.0}, "count=20, share=1.0: too many. Use fewer."),
    ],
)
def test_values_beyond_are_refused_with_a_sentence(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        Bounded(**fields)
    assert str(caught.value) == says
    with pytest.raises(ValueError):  # also by a change, and from a file
        dataclasses.replace(Bounded(), **fields)
    with pytest.raises(ValueError):
        from_table({**to_table(Bounded()), **fields})


def test_a_wrong_field_is_said_before_a_wrong_combination() -> None:
    with pytest.raises(ValueError, match=r"share=2\.0 is out of range"):
        Bounded(share=2.0, count=99)


def test_what_a_field_says_about_itself() -> None:
    @dataclass(frozen=True)
    class Own(Occupant):
        a: float = setting(0.5, low=0, witness=3)
        b: int = setting(2, witness=[1, 4])
        c: str = setting("", added=True)
        d: Any = setting({"x": 1})

    said = {f.name: dict(f.metadata) for f in dataclasses.fields(Own)}
    assert said == {"a": {"low": 0, "witness": [3]}, "b": {"witness": [1, 4]}, "c": {"neutral": ""}, "d": {}}
    one, two = Own(), Own()
    assert one == two and one.d == {"x": 1} and one.d is not two.d and hash(one) == hash(two)


def test_the_column_of_a_note() -> None:
    heated = note("heated", among=(0, 1))
    assert heated == "note_heated_E" and heated.among == (0, 1) and isinstance(heated, NoteColumn)
    assert note("exit", "N") == "note_exit_N" and note("exit").among == ()


def test_every_occupant_that_ships_is_within_its_own_bounds_and_has_bounds_that_refuse() -> None:
    """Each bound of each occupant is tried just outside; a subclass that forgets to call the base would let it pass."""
    tried = 0
    for m in all_methods().values():
        for _, o in m.occupants():
            assert dataclasses.replace(o) == o
            for f in dataclasses.fields(o):
                for name, outside in (("low", -1.0), ("above", 0.0), ("high", 1.0), ("below", 0.0)):
                    if name in f.metadata and isinstance(getattr(o, f.name), int | float):
                        with pytest.raises(
                            ValueError, match=f"^{f.name}=.* is out of range.*: use (0, or )?a (whole )?number"
                        ):
                            dataclasses.replace(o, **{f.name: f.metadata[name] + outside})
                        tried += 1
    assert tried > 100
