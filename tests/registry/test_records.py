"""A change of numbers is a version bump: the registry keeps the hash of every resolved record."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from gruppo.methods import built_in, method
from gruppo.stages import Method, Schedule
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.record import from_table, record_hash, to_table

ROOT = Path(__file__).parents[2]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("lock_records", ROOT / "scripts" / "lock_records.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lock = script()


@pytest.mark.parametrize("name", built_in())
def test_the_record_is_the_one_that_is_stored(name: str) -> None:
    stored, now = lock.read(), lock.resolved({name: built_in()[name]})
    wrong = [*lock.problems(stored, now), *(s for s in lock.differences(stored, now) if re.match(rf"{name}\W", s))]
    assert not wrong, "\n".join(wrong)


def test_no_record_is_left_of_a_method_that_is_gone() -> None:
    assert set(lock.read()) == set(built_in())


# the script


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.toml"
    assert lock.main(["--records", str(path)], {"grpo": method("grpo"), "dapo": method("dapo")}) == 0
    return path


def test_written_and_read_again(records: Path) -> None:
    assert lock.read(records) == {n: {"version": 1, "hash": record_hash(method(n))} for n in ("dapo", "grpo")}
    assert lock.main(["--records", str(records), "--check"], {n: method(n) for n in ("grpo", "dapo")}) == 0


def test_a_changed_hash_under_the_same_version_is_refused(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = records.read_text()
    changed = method("grpo").but(credit=GroupNormalised(eps=1e-4))
    assert lock.main(["--records", str(records)], {"grpo": changed, "dapo": method("dapo")}) == 1
    said = capsys.readouterr().err
    assert (
        "grpo@1: its record changed" in said
        and "Set version=2 in methods/grpo.py and run scripts/lock_records.py" in said
    )
    assert records.read_text() == before
    assert lock.main(["--records", str(records)], {"grpo": changed.but(version=2), "dapo": method("dapo")}) == 0
    assert lock.read(records)["grpo"] == {"version": 2, "hash": record_hash(changed.but(version=2))}


def test_a_version_that_goes_back_is_refused(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lock.main(["--records", str(records)], {"grpo": method("grpo").but(version=2), "dapo": method("dapo")}) == 0
    assert lock.main(["--records", str(records)], {"grpo": method("grpo"), "dapo": method("dapo")}) == 1
    assert "Set version=3" in capsys.readouterr().err


def test_new_and_old_names(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new method and one that is gone: --check says so, a run writes it."""
    now = {"grpo": method("grpo"), "rloo": method("rloo")}
    assert lock.main(["--records", str(records), "--check"], now) == 1
    said = capsys.readouterr().err
    assert "rloo: not in records.toml" in said and "dapo: in records.toml, but no longer a method" in said
    assert set(lock.read(records)) == {"grpo", "dapo"}
    assert lock.main(["--records", str(records)], now) == 0
    assert set(lock.read(records)) == {"grpo", "rloo"}


# the hash


CHANGES: dict[str, dict[str, Any]] = {
    "a field": {"credit": GroupNormalised(eps=1e-4)},
    "a schedule": {"penalties": (ReferenceKL(kl_coef=Schedule("linear(0.04, 0.0, steps=9)")),)},
    "a chain": {"penalties": ()},
    "the version": {"version": 2},
    "a declaration": {"breaks": {"order": "because"}},
    "rooms that belong together": {"together": ("credit", "objective")},
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_method_does_is_in_its_hash(what: str) -> None:
    assert record_hash(method("grpo").but(**CHANGES[what])) != record_hash(method("grpo"))


def test_what_is_said_about_a_method_is_not() -> None:
    m = method("grpo")
    assert record_hash(m.but(doc="other words", paper="another link", base="x")) == record_hash(m)
    assert record_hash(m.but(checked="something else", confidence="abstract")) == record_hash(m)


def test_a_chain_of_one_objective_has_the_hash_of_the_objective() -> None:
    """Records are older than chains of objectives, and most have not changed; two objectives are another record."""
    m = method("grpo")
    table = to_table(m)
    [table["objective"]] = table["objective"]
    assert from_table(table) == m and record_hash(from_table(table)) == record_hash(m)
    assert record_hash(m.but(objective=(*m.objective, *m.objective))) != record_hash(m)
    assert record_hash(m.but(objective=())) != record_hash(m)


def test_a_changed_base_shows_in_its_descendants() -> None:
    """DAPO takes its credit from GRPO: a change there cannot be silent."""

    def dapo_from(base: Method) -> Method:
        d = method("dapo")
        return base.but(
            name="dapo", reward=d.reward, select=d.select, objective=d.objective, penalties=d.penalties, update=d.update
        )

    assert record_hash(dapo_from(method("grpo"))) == record_hash(method("dapo"))
    changed = method("grpo").but(credit=GroupNormalised(eps=1e-4))
    stored = lock.resolved({"dapo": dapo_from(method("grpo"))})
    [said] = lock.problems(stored, lock.resolved({"dapo": dapo_from(changed)}))
    assert "look at the methods it is made from" in said


def test_the_version_of_an_occupant_is_in_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maths of a class changed: its version goes up, and with it the hash of all who use it."""
    before = {n: record_hash(m) for n, m in built_in().items()}
    monkeypatch.setattr(GroupNormalised, "version", 2)
    changed = {n for n, m in built_in().items() if record_hash(m) != before[n]}
    users = {n for n, m in built_in().items() if isinstance(m.credit, GroupNormalised)}
    assert changed == users and {"grpo", "dapo"} <= users


def test_a_field_that_came_later_leaves_the_hash_alone() -> None:
    """While it has the value that changes nothing; with another one the record is another."""
    grpo = method("grpo")
    assert to_table(grpo)["penalties"][0]["estimator"] == "k3"
    assert "estimator" not in to_table(grpo, brief=True)["penalties"][0]
    assert record_hash(grpo) != record_hash(grpo.but(penalties=ReferenceKL(estimator="k2")))
    assert from_table(to_table(grpo, brief=True)) == grpo  # as a run file from before the field was
