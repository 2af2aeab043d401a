"""`key=value` on the tree of a run."""

import dataclasses
import itertools
import tomllib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from gruppo.cli.commands import configured
from gruppo.cli.overrides import apply, from_toml, paths
from gruppo.fields import LARGEST_REAL
from gruppo.methods import all_methods, method
from gruppo.stages import ROOMS, Method, Schedule, kind
from gruppo.stages.credit import LeaveOneOut
from gruppo.stages.record import record_hash, to_table
from gruppo.train.config import RunConfig

DEFAULT = RunConfig()
PATHS = tuple(paths(DEFAULT))


def at(node: Any, path: str) -> Any:
    """What stands at a path."""
    for key in path.split("."):
        if isinstance(node, tuple):
            node = {kind(o): o for o in node}[key]
        elif isinstance(node, Mapping):
            node = node[key]
        else:
            node = getattr(node, key)
    return node


def hint(path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return get_type_hints(type(at(DEFAULT, owner) if owner else DEFAULT))[name]


def bounds(path: str) -> dict[str, float]:
    """What the field says about its numbers."""
    owner, _, name = path.rpartition(".")
    node = at(DEFAULT, owner) if owner else DEFAULT
    said = next(f.metadata for f in dataclasses.fields(node) if f.name == name)
    return {k: said[k] for k in ("low", "above", "high", "below") if k in said}


def is_leaf(path: str) -> bool:
    value = at(DEFAULT, path)
    return (
        path.rpartition(".")[2] not in ROOMS and not dataclasses.is_dataclass(value) and not isinstance(value, Mapping)
    )


LEAVES = tuple(p for p in PATHS if is_leaf(p))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12).filter(lambda t: "(" not in t)
WORD = st.text("abcdefgh_", min_size=1, max_size=6)


def values(path: str) -> st.SearchStrategy[Any]:
    """Values that the field takes."""
    wanted: Any = hint(path)
    said: dict[str, Any] = bounds(path)
    low, high = said.get("low", said.get("above")), said.get("high", said.get("below"))
    edges: dict[str, Any] = {"exclude_min": "above" in said, "exclude_max": "below" in said}
    least, most = (-LARGEST_REAL if low is None else low), (LARGEST_REAL if high is None else high)
    numbers = st.floats(least, most, allow_nan=False, allow_infinity=False, **edges)
    if get_origin(wanted) is Literal:
        return st.sampled_from(get_args(wanted))
    if Schedule in get_args(wanted):
        return numbers | st.builds("linear({}, {}, steps={})".format, numbers, numbers, st.integers(1, 99)).map(
            Schedule
        )
    if wanted is Any:
        return st.floats(0, LARGEST_REAL, exclude_min=True) | st.sampled_from(["token", "sequence", "group_sum"])
    plain = {
        bool: st.booleans(),
        int: st.integers(-(2**63) if low is None else low, int(said.get("high", 10**9))),
        float: numbers,
        str: TEXT,
        float | str: TEXT,
    }
    if wanted == tuple[int, ...]:
        return st.lists(st.integers(1, 99), max_size=3).map(tuple)
    return plain[wanted] if wanted in plain else st.lists(WORD, max_size=3).map(tuple)


def written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_all_paths_are_here() -> None:
    assert {"method", "method.credit.eps", "method.penalties.reference_kl.kl_coef", "optim.lr", "save.name"} <= set(
        PATHS
    )
    objective = "method.objective.clipped_surrogate.mean"
    assert {"steps", "accept", "method.cast.ref.train", objective, "model.dtype"} <= set(LEAVES)
    assert len(LEAVES) > 50


@given(st.data(), st.sampled_from(LEAVES))
def test_what_is_set_is_there(data: st.DataObject, path: str) -> None:
    value = data.draw(values(path))
    config = apply(DEFAULT, [f"{path}={written(value)}"])
    assert at(config, path) == value and type(at(config, path)) is type(value)
    others = [p for p in LEAVES if p != path]
    assert [at(config, p) for p in others] == [at(DEFAULT, p) for p in others]


@given(st.data(), st.lists(st.sampled_from(LEAVES), unique=True, min_size=2, max_size=5))
def test_several_settings_in_any_order(data: st.DataObject, chosen: list[str]) -> None:
    drawn = {path: data.draw(values(path)) for path in chosen}
    config = applied([f"{path}={written(v)}" for path, v in drawn.items()])
    assert config == applied([f"{path}={written(v)}" for path, v in reversed(drawn.items())])
    if isinstance(config, str):
        assert " with " in config  # two that do not go together; alone each is taken, as above
    else:
        assert {path: at(config, path) for path in chosen} == drawn


def applied(settings: list[str]) -> RunConfig | str:
    """What they make of a run, or why it is refused."""
    try:
        return apply(DEFAULT, settings)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("path", [p for p in PATHS if p not in LEAVES])
def test_other_paths_take_a_name_or_say_so(path: str) -> None:
    """A room, a task, a method: never a traceback, never a silent nothing."""
    name = "rloo" if path == "method" or path.rpartition(".")[2] in ROOMS else "countdown"
    if path.endswith(".refresh"):
        name = "ema"
    try:
        config = apply(DEFAULT, [f"{path}={name}"])
    except ValueError as error:
        assert path in str(error) and len(str(error)) > 40
    else:
        same_by_nature = getattr(method("rloo"), path.rpartition(".")[2], None) == getattr(
            DEFAULT.method, path.rpartition(".")[2], 0
        )
        assert same_by_nature or at(config, path) != at(DEFAULT, path)


def test_whole_before_part_in_any_order() -> None:
    settings = ["method=dapo", "method.credit=rloo", "method.credit.kl_coef=0.2", "method.objective.clip_high=0.4"]
    made = {str(apply(DEFAULT, order)) for order in itertools.permutations(settings)}
    assert len(made) == 1
    config = apply(DEFAULT, settings)
    assert config.method.credit == LeaveOneOut(kl_coef=0.2) and config.method.objective[0].clip_high == 0.4
    assert config.method.select == method("dapo").select


def test_a_world_is_played_by_the_policy_that_speaks_its_words() -> None:
    """Unless another one is named, now or before."""
    assert apply(DEFAULT, ["task=household"]).model.name == "tiny-agent"
    assert apply(DEFAULT, ["task=household"]).prompts == 16  # what its world says
    for other in (["optim.lr=1e-3"], ["model=tiny-agent", "optim.lr=1e-3"]):
        assert apply(DEFAULT, ["task=household", *other]).optim.lr == 1e-3
    assert apply(DEFAULT, ["task=mix:lake+household"]).optim.lr == apply(DEFAULT, ["task=lake"]).optim.lr == 1e-4
    assert apply(DEFAULT, ["task=household", "model=tiny"]).model.name == "tiny"
    assert apply(DEFAULT, ["task=addition"]).model.name == apply(DEFAULT, []).model.name == "tiny"
    named = apply(DEFAULT, ["task=kuhn", "model=tiny"])
    assert apply(named, ["steps=3"]) == replace(named, steps=3)
    assert from_toml({"task": {"name": "lake"}}, DEFAULT).model.name == "tiny-agent"


def test_what_is_usual_in_a_world_gives_way_to_a_run_file_and_to_a_given_configuration(tmp_path: Path) -> None:
    """The file was overruled in silence: prompts=4 became the 16 of the household, its rate the household's."""
    file = tmp_path / "c.toml"
    for text, prompts, lr in (("prompts = 4\n[optim]\nlr = 1e-3", 4, 1e-3), ("[optim]\nlr = 1e-4", 16, 1e-4)):
        file.write_text(text)
        config = configured(Namespace(config=str(file), settings=["task=household"]))
        assert (config.prompts, config.optim.lr, config.model.name) == (prompts, lr, "tiny-agent")
    mine = apply(replace(DEFAULT, prompts=4), ["task=household"])
    assert mine.prompts == 4 and mine.model.name == "tiny-agent"


@pytest.mark.parametrize(
    ("task", "row", "model"),
    [
        ("mix:lake+household@1-2", None, "tiny-agent"),
        ("mix:lake+addition", None, "tiny"),
        ("./levels.jsonl", '\n{"env": "guess", "secret": 5}\n', "tiny-agent"),
        ("./levels.jsonl", '{"env": "./mine.py:World", "prompt": "go"}', "tiny"),
        ("./levels.jsonl", '{"question": "1+1=", "answer": 2}', "tiny"),
        ("./levels.jsonl", "[" * 100_000, "tiny"),
        ("./levels.jsonl", "", "tiny"),
        ("./absent.jsonl", None, "tiny"),
    ],
)
def test_so_are_mixtures_and_levels_of_worlds(
    task: str, row: str | None, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with a file is said when it is read."""
    monkeypatch.chdir(tmp_path)
    if row is not None:
        Path("levels.jsonl").write_text(row)
    assert apply(DEFAULT, [f"task={task}"]).model.name == model


# Run files


def through_text(config: RunConfig) -> RunConfig:
    return from_toml(tomllib.loads(tomli_w.dumps(to_table(config))), DEFAULT)


@pytest.mark.parametrize("name", all_methods())
def test_every_method_survives_its_run_file(name: str) -> None:
    config = apply(DEFAULT, [f"method={name}", "optim.lr=cosine(1e-3, 1e-5, steps=7)", "accept=judged,ratio"])
    back = through_text(config)
    assert back == config and isinstance(back.method, Method) and to_table(back) == to_table(config)


def bare(objective: Any) -> Any:
    """Objectives as run files wrote them before they were chains."""
    if isinstance(objective, Mapping):
        return {role: bare(chain) for role, chain in objective.items()}
    return objective[0] if len(objective) == 1 else objective


@pytest.mark.parametrize("name", all_methods())
def test_a_run_file_from_before_objectives_were_chains_is_read(name: str) -> None:
    config = apply(DEFAULT, [f"method={name}"])
    table = to_table(config)
    for talk in ("checked", "confidence"):  # came with the chains
        del table["method"][talk]
    table["method"]["objective"] = bare(table["method"]["objective"])
    back = from_toml(tomllib.loads(tomli_w.dumps(table)), DEFAULT)
    same = dataclasses.replace(config.method, checked="", confidence="")
    assert back == dataclasses.replace(config, method=same) and record_hash(back.method) == record_hash(config.method)


@given(st.data(), st.sampled_from([p for p in LEAVES if p not in ("method.together",)]))
def test_every_value_survives_its_run_file(data: st.DataObject, path: str) -> None:
    config = apply(DEFAULT, [f"{path}={written(data.draw(values(path)))}"])
    assert through_text(config) == config


def test_a_short_run_file_is_the_same_as_settings() -> None:
    text = """
steps = 7
accept = ["judged"]

[method]
name = "dapo"
credit = "rloo"

[method.objective]
clip_high = 0.3

[optim]
lr = "linear(1e-3, 0, steps=10)"

[task]
name = "countdown"
level = "2"
"""
    settings = ["steps=7", "accept=judged", "method=dapo", "method.credit=rloo", "method.objective.clip_high=0.3"]
    settings += ["optim.lr=linear(1e-3, 0, steps=10)", "task=countdown", "task.level=2"]
    assert from_toml(tomllib.loads(text), DEFAULT) == apply(DEFAULT, settings)
