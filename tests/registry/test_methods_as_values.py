"""Methods as values: `but`, `difference`, run files, names, files and entry points."""

import tomllib
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pytest
import tomli_w

import gruppo.methods as registry
from gruppo.methods import all_methods, method
from gruppo.stages import CHAINS, ROOMS, Every, Occupant, Role, Schedule, difference, kind
from gruppo.stages.credit import Gae, GroupNormalised, LeaveOneOut
from gruppo.stages.method import Confidence
from gruppo.stages.objective import ClippedSurrogate, ValueLoss
from gruppo.stages.penalties import EntropyBonus, ReferenceKL
from gruppo.stages.record import from_table, record_hash, to_table
from gruppo.stages.reward import OverlongShaping
from gruppo.stages.select import RedrawEqualGroups, TopEntropy, TruncatedImportance

GRPO, DAPO, PPO = method("grpo"), method("dapo"), method("ppo")


# but


def test_but_leaves_the_original_alone() -> None:
    before = record_hash(GRPO)
    GRPO.but(credit=LeaveOneOut(), penalties=())
    assert record_hash(GRPO) == before and GRPO.but() == GRPO


def test_a_bare_occupant_is_added_to_a_chain() -> None:
    more = DAPO.but(select=TopEntropy())
    assert more.select == (RedrawEqualGroups(max_rounds=3), TopEntropy())
    assert more.but(select=TruncatedImportance()).select[2:] == (TruncatedImportance(),)


def test_a_bare_occupant_replaces_one_of_its_own_class_in_its_place() -> None:
    both = GRPO.but(penalties=(ReferenceKL(kl_coef=0.1), EntropyBonus()))
    assert both.but(penalties=ReferenceKL(kl_coef=0.2)).penalties == (ReferenceKL(kl_coef=0.2), EntropyBonus())


def test_a_tuple_is_the_whole_chain() -> None:
    assert DAPO.but(select=(TopEntropy(),)).select == (TopEntropy(),)
    assert DAPO.but(select=()).select == ()


def test_a_bare_objective_is_the_whole_chain() -> None:
    """Two objectives are rarely meant; who means them writes both."""
    assert GRPO.objective == (ClippedSurrogate(),) and GRPO.objectives == {"policy": GRPO.objective}
    assert GRPO.but(objective=ValueLoss()).objective == (ValueLoss(),)
    assert GRPO.but(objective=(*GRPO.objective, ValueLoss())).objective == (ClippedSurrogate(), ValueLoss())
    by_role = GRPO.but(objective={"policy": ClippedSurrogate(), "critic": (ValueLoss(),)})
    assert by_role.objective == by_role.objectives == {"policy": (ClippedSurrogate(),), "critic": (ValueLoss(),)}
    assert [kind(o) for room, o in by_role.occupants() if room == "objective"] == ["clipped_surrogate", "value_loss"]


def test_what_is_no_occupant_is_refused() -> None:
    with pytest.raises(ValueError, match=r"room objective holds 'token', which is no occupant.*Write a @dataclass"):
        GRPO.but(objective=(*GRPO.objective, "token"))


def test_other_rooms_are_replaced() -> None:
    assert GRPO.but(credit=LeaveOneOut()).credit == LeaveOneOut()
    assert GRPO.but(objective={"policy": ClippedSurrogate(), "critic": ValueLoss()}).objectives.keys() == {
        "policy",
        "critic",
    }


def test_the_cast_is_added_to() -> None:
    more = GRPO.but(cast={"teacher": Role(start="tiny")})
    assert set(more.cast) == {"policy", "ref", "teacher"} and set(GRPO.cast) == {"policy", "ref"}
    assert more.but(cast={"teacher": Role(start="other")}).cast["teacher"].start == "other"


def test_an_unknown_room_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"but\(penalty=…\).*nearest: penalties.*Rooms: curriculum"):
        GRPO.but(penalty=())
    with pytest.raises(ValueError, match=r"nearest: objective"):
        GRPO.but(objectives=ClippedSurrogate())


def test_a_new_name_starts_a_new_story() -> None:
    """Version, words and declarations belong to the old name; the rooms are kept."""
    child = PPO.but(name="mine")
    assert (child.base, child.version, child.doc, child.paper, dict(child.breaks)) == ("ppo", 1, "", "", {})
    assert PPO.checked and (child.checked, child.confidence) == ("", "")
    assert difference(PPO, child) == []
    assert PPO.but(credit=Gae(lam=1.0)).breaks == PPO.breaks  # without a new name they stay


def test_rooms_and_chains_are_what_the_design_says() -> None:
    assert len(ROOMS) == 10 and set(CHAINS) <= set(ROOMS)
    assert [room for room, _ in DAPO.occupants()] == [
        "curriculum", "rollout", "reward", "select", "credit", "objective", "update", "replay",
    ]  # fmt: skip


# difference


def test_difference_of_dapo_is_what_its_file_says() -> None:
    said = {c.where: (c.before, c.after) for c in difference(GRPO, DAPO)}
    assert said == {
        "reward": ("nothing", OverlongShaping()),
        "select": ("nothing", RedrawEqualGroups(max_rounds=3)),
        "objective.clipped_surrogate.clip_high": (0.2, 0.28),
        "objective.clipped_surrogate.mean": ("sequence", "token"),
        "penalties": (ReferenceKL(kl_coef=0.04, mean="sequence"), "nothing"),
        "update.passes.minibatches": (1, 4),
    }


def test_difference_goes_both_ways_and_is_empty_for_equals() -> None:
    there, back = difference(GRPO, DAPO), difference(DAPO, GRPO)
    assert {c.where for c in there} == {c.where for c in back}
    assert {(c.where, str(c.before), str(c.after)) for c in there} == {
        (c.where, str(c.after), str(c.before)) for c in back
    }
    assert all(difference(m, m) == [] for m in all_methods().values())


def test_difference_of_roles() -> None:
    said = {c.where: c.after for c in difference(GRPO, PPO)}
    assert said["objective.critic"] == ValueLoss(clip_value=0.5)
    assert said["cast.critic"] == Role(as_="head", train=True)
    assert said["objective.policy.clipped_surrogate.mean"] == "token"
    assert str(next(c for c in difference(GRPO, DAPO) if c.where.endswith("clip_high"))).endswith(
        "clip_high: 0.2 → 0.28"
    )


# run files


@pytest.mark.parametrize("name", all_methods())
def test_round_trip_through_toml(name: str) -> None:
    m = all_methods()[name]
    text = tomli_w.dumps(to_table(m))
    back = from_table(tomllib.loads(text))
    assert back == m and record_hash(back) == record_hash(m)
    assert tomli_w.dumps(to_table(back)) == text
    assert isinstance(back.cast, MappingProxyType)


def test_round_trip_of_everything_a_field_may_hold() -> None:
    m = PPO.but(
        name="mine",
        penalties=(ReferenceKL(kl_coef=Schedule("cosine(0.1, 0.01, steps=100)"), mean=12.0),),
        cast={
            "ref": Role(refresh=Every(steps=5)),
            "teacher": Role(start="./a folder", lr=Schedule("warmup(1e-4, steps=10)")),
        },
        together=("credit", "objective"),
        breaks={"order": 'it says "why", in two\nlines'},
    )
    assert from_table(tomllib.loads(tomli_w.dumps(to_table(m)))) == m


def test_a_record_of_another_version_is_refused() -> None:
    table = to_table(GRPO)
    table["credit"]["kind"] = table["credit"]["kind"].replace("@1", "@7")
    with pytest.raises(ValueError, match=r"written with version 7, the code is version 1; numbers would change"):
        from_table(table)


def test_an_unknown_field_is_answered_with_the_nearest() -> None:
    table = to_table(GRPO)
    table["credit"]["epz"] = 1.0
    with pytest.raises(ValueError, match=r"GroupNormalised has no field 'epz' \(nearest: eps\)"):
        from_table(table)


def test_what_cannot_be_repeated_is_refused() -> None:
    @dataclass(frozen=True)
    class Odd(Occupant):
        f: Any = print

    with pytest.raises(ValueError, match=r"cannot be written to a run file"):
        to_table(GRPO.but(penalties=Odd()))


# names


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (GroupNormalised, "group_normalised"), (ReferenceKL, "reference_kl"), (Gae, "gae"), (TopEntropy, "top_entropy"),
        (RedrawEqualGroups, "redraw_equal_groups"), (ValueLoss, "value_loss"), (LeaveOneOut, "leave_one_out"),
    ],
)  # fmt: skip
def test_kind(cls: type, name: str) -> None:
    assert kind(cls) == name and kind(cls()) == name


def test_objectives_of_a_role_that_the_other_has_not() -> None:
    said = [str(c) for c in difference(GRPO, PPO) if c.where == "objective.critic"]
    assert said == [f"objective.critic: + {ValueLoss(clip_value=0.5)}"]
    assert [str(c) for c in difference(method("grpo"), method("chord")) if "expert" in str(c)][-1].startswith(
        "objective: + ExpertLikelihood("
    )


# What was changed by the refit: their fields have other names, so a run file that says @1 is refused.
SECOND = ("aepo", "chord", "dmpo", "dr_grpo", "grpo_passk", "rl_plus", "seele", "vapo")


@pytest.mark.parametrize("name", SECOND)
def test_the_first_version_is_not_taken_for_the_second(name: str) -> None:
    assert method(f"{name}@{method(name).version}").version >= 2
    with pytest.raises(ValueError, match=rf"method='{name}@1': this gruppo has {name}@\d.*Its numbers differ"):
        method(f"{name}@1")


def test_versions_by_name() -> None:
    assert method("grpo@1") == GRPO
    with pytest.raises(ValueError, match=r"method='grpo@9': this gruppo has grpo@1"):
        method("grpo@9")
    with pytest.raises(ValueError, match=r"method='grpo@new': this gruppo has grpo@1"):
        method("grpo@new")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"method='gpro' is not known \(nearest: grpo.*gruppo methods"):
        method("gpro")


def test_every_method_tells_its_story() -> None:
    """Docstring with a formula, a paper, a base that exists, and a name that is its file's."""
    for name, m in all_methods().items():
        assert m.name == name and m.paper and "=" in m.doc, name
        assert not m.base or m.base in all_methods(), name
        assert not m.base or "Differs from" in m.doc, f"{name} does not say how it differs from {m.base}"
        assert len(m.checked) > 20 and m.confidence in get_args(Confidence)[1:], f"{name}: what was it compared with?"


# files and entry points

FILE = '''"""MINE: words about it."""

from gruppo.methods.grpo import GRPO
from gruppo.stages.credit import LeaveOneOut

MINE = GRPO.but(name="mine", credit=LeaveOneOut())
SOMETHING = 3
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_method_of_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    for name in (f"{file}:MINE", "./mine.py:MINE"):
        m = method(name)
        assert (m.name, m.base, m.credit) == ("mine", "grpo", LeaveOneOut())
        assert m.doc == "MINE: words about it."


def test_what_a_file_may_get_wrong(file: Path) -> None:
    with pytest.raises(ValueError, match=r"is int, no Method.*Name a Method"):
        method(f"{file}:SOMETHING")
    with pytest.raises(ValueError, match=r"there is no 'MINEE'.*Did you mean 'MINE'"):
        method(f"{file}:MINEE")
    with pytest.raises(ValueError, match=r"there is no file .*mime.py.*Did you mean 'mine.py'"):
        method(f"{file.parent / 'mime.py'}:MINE")


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Entry points as if packages had been installed."""

    def install(**entries: str) -> None:
        found = [EntryPoint(name, value, registry.ENTRY_POINTS) for name, value in entries.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.ENTRY_POINTS else [])
        registry.plugged_in.cache_clear()

    yield install
    registry.plugged_in.cache_clear()


def test_entry_points_are_found(plugins: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.rename(file.parent / "plugin_of_mine.py")
    monkeypatch.syspath_prepend(file.parent)
    plugins(mine="plugin_of_mine:MINE")
    assert "mine" in all_methods() and method("mine").doc == "MINE: words about it."
    assert set(registry.built_in()) < set(all_methods())


def test_entry_points_that_are_wrong(plugins: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.rename(file.parent / "plugin_gone_wrong.py")
    monkeypatch.syspath_prepend(file.parent)
    for value, said in {
        "plugin_gone_wrong:SOMETHING": r"gives 3, which is no Method",
        "plugin_gone_wrong:NOTHING": r"cannot be loaded",
        "no_such_module:X": r"cannot be loaded",
        "gruppo.methods.grpo:GRPO": r"second method called 'grpo'",
    }.items():
        plugins(wrong=value)
        with pytest.raises(ValueError, match=said):
            all_methods()


def test_without_plugins_again() -> None:
    """The fixture cleans up after itself."""
    assert "mine" not in all_methods()
