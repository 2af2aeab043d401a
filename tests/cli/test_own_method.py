"""Methods and rewards outside the package: the files in examples/, by path and as an installed entry point."""

import ast
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import EXAMPLES, SMALL, refused, rows, strict_json, trained

import gruppo.methods
from gruppo.cli import main
from gruppo.cli.commands import CONFIDENCE
from gruppo.lab import laws
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method

MEDIAN = "./examples/median_baseline.py:MEDIAN_BASELINE"


@pytest.fixture(autouse=True)
def examples(here: Path) -> None:
    shutil.copytree(EXAMPLES, "examples", ignore=shutil.ignore_patterns("__pycache__"))


def typed_in(file: str) -> list[list[str]]:
    """The commands in the docstring of an example."""
    doc = ast.get_docstring(ast.parse((EXAMPLES / file).read_text())) or ""
    return [shlex.split(line)[1:] for line in doc.splitlines() if line.startswith("gruppo ")]


def test_it_is_short_and_says_what_it_is() -> None:
    text = (EXAMPLES / "median_baseline.py").read_text()
    assert len(text.splitlines()) <= 40
    assert "median R) / (std R + ε)" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize("seed", range(4))
def test_it_computes_the_median(seed: int) -> None:
    """Against torch, group by group; failed episodes are in no group's median."""
    world = World(method(MEDIAN), seed)
    batch = world.packed(random_episodes(seed))
    adv_E = batch.gather(world.method.credit(world.ctx, batch)["adv_N"], "N", "E", "max")
    seen = 0
    for g in range(batch.size("G")):
        mine = (batch.group_E == g) & batch.judged_E
        reward = batch.reward_E[mine]
        if len(reward) > 1:
            wanted = (reward - torch.quantile(reward, 0.5)) / (reward.std() + 1e-6)
            assert torch.allclose(adv_E[mine], wanted, atol=1e-12)
            seen += len(reward)
    assert seen and not adv_E[~batch.judged_E].any()


def test_the_commands_in_the_examples_work(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [c for file in ("median_baseline.py", "own_reward.py") for c in typed_in(file)]
    assert [c[0] for c in commands] == ["methods", "train", "train"]
    for command in commands:
        assert main([*command, *(SMALL if command[0] == "train" else ())]) == 0
    out = capsys.readouterr().out
    assert out.count("ok   ") >= 18 and "FAIL" not in out


def test_laws_that_cannot_be_tested_are_not_called_broken(capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("examples/median_baseline.py").read_text()
    assert ", where=judged_E" in text
    Path("bad.py").write_text(text.replace(", where=judged_E", ""))
    assert main(["methods", "check", "./bad.py:MEDIAN_BASELINE"]) == 1
    first, *others, last = capsys.readouterr().out.splitlines()
    assert first.startswith("FAIL") and "adv_N of median_baseline is not finite" in first
    assert all(line.startswith("--  ") and "is not finite" in line for line in others)
    assert last.endswith(f"0 laws hold, 1 broken, {len(others)} not tested or broken on purpose")


UNDECLARED = """from dataclasses import dataclass
from gruppo.data import centre
from gruppo.methods import method
from gruppo.stages import Occupant
from gruppo.stages.credit import COMPARES, to_tokens

@dataclass(frozen=True)
class HalfWay(Occupant):
    writes = ("advantage_N",)
    requires = (COMPARES,)

    def __call__(self, ctx, batch):
        return to_tokens(batch, centre(batch.reward_E, batch.level("E", "G"), where=batch.judged_E))

MINE = method("grpo").but(name="mine", credit=HalfWay())
"""


def test_check_refuses_what_a_run_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    Path("half.py").write_text(UNDECLARED)
    assert main(["methods", "check", "./half.py:MINE"]) == 1
    first, *others, last = capsys.readouterr().out.splitlines()
    assert (
        first.startswith("FAIL ./half.py:MINE: refused")
        and "reads adv_N, but credit half_way writes advantage_N" in first
    )
    assert 'If half_way writes it, declare that in the class: writes = ("adv_N",). Otherwise choose a credit' in first
    assert others and all(line.startswith("--  ") and "a run would refuse" in line for line in others)
    assert last.endswith(f"0 laws hold, 1 broken, {len(others)} not tested or broken on purpose")
    assert (
        main(["train", "method=./half.py:MINE", *SMALL]) == 2
        and first.partition("refused  ")[2] in capsys.readouterr().err
    )


def test_a_declared_column_that_is_not_returned_breaks_a_law(
    one_seed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("half.py").write_text(UNDECLARED.replace('("advantage_N",)', '("adv_N", "extra_N")'))
    assert main(["methods", "check", "./half.py:MINE"]) == 1
    broken = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(broken) == 1 and "columns  half_way declares extra_N in its writes and returns adv_N" in broken[0]


@pytest.fixture
def one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three: these tests are about the words, and the laws of the other seeds are in tests/methods."""
    monkeypatch.setattr(laws, "law_by_law", partial(laws.law_by_law, seeds=(0,)))


def test_a_law_that_was_not_tested_is_not_called_ok(one_seed: None, capsys: pytest.CaptureFixture[str]) -> None:
    claims = method("remax").credit.ignores
    assert main(["methods", "check", "remax"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("remax: ")  # the count
    marks = {line.split()[2]: line for line in lines}
    for law in ("shift", "scale"):
        assert marks[law].startswith("ok" if law in claims else "--") and ("not tested" in marks[law]) != (
            law in claims
        )
    assert {"shift", "scale"} - set(claims)


def test_it_trains_and_is_stored_with_the_run() -> None:
    run = trained("a", f"method={MEDIAN}", "model=tiny", "prompts=8", "samples=8")
    assert (run / "code/median_baseline.py").read_text() == (EXAMPLES / "median_baseline.py").read_text()
    grpo = trained("b", "model=tiny", "prompts=8", "samples=8")
    assert rows(run)[1]["adv_std"] != rows(grpo)[1]["adv_std"] and rows(run)[1]["reward"] == rows(grpo)[1]["reward"]


def test_it_is_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["methods", "list", MEDIAN], ["methods", MEDIAN]):
        assert main(argv) == 0
        line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("median_baseline"))
        assert "GRPO with the group's median as the baseline" in line
    assert main(["methods", "show", MEDIAN]) == 0
    assert "credit: GroupNormalised(eps=1e-06) → MedianBaseline(eps=1e-06)" in capsys.readouterr().out
    assert main(["methods", "diff", "grpo", MEDIAN, "--json"]) == 0
    [change] = strict_json(capsys.readouterr().out)
    assert change["where"] == "credit"


def test_what_it_was_checked_against_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """How sure we are, in words, and what was compared; nothing is claimed of a method that does not say."""
    for name in ("grpo", "t_ppo"):
        assert main(["methods", "show", name]) == 0
        said, m = capsys.readouterr().out, method(name)
        assert f"\nchecked against: {CONFIDENCE[m.confidence]}.\n" in said
        assert " ".join(m.checked.split()) in " ".join(said.split())
    assert "notes on the paper" in said and max(map(len, said.partition("differs from")[0].splitlines())) <= 120
    assert main(["methods", "show", MEDIAN]) == 0
    assert "checked against" not in capsys.readouterr().out


def test_what_is_shown_beside_the_rooms(capsys: pytest.CaptureFixture[str]) -> None:
    """Roles, rooms that belong together, laws; a line break is seen as one."""
    for name, words in {
        "kdrl": ["roles beside the policy: teacher not trained, at first nobody: give one\n", "laws: no exception"],
        "oprl": [
            "  rollout.group.steps: '' → '\\n'\n",
            "roles beside the policy: prm trained, at first a copy of the policy\n",
            "rooms that only make sense together: credit, objective\n",
            "breaks the law equal_rewards: ",
        ],
        "reinforce": ["roles beside the policy: none\n"],
    }.items():
        assert main(["methods", "show", name]) == 0
        out = capsys.readouterr().out
        assert all(w in out for w in words), out


def test_alone_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "median of a single answer" in refused(capsys, "train", *SMALL, f"method={MEDIAN}", "samples=1")


def test_a_broken_method_fails_the_check(one_seed: None, capsys: pytest.CaptureFixture[str]) -> None:
    """The reward itself as the advantage: there is no baseline."""
    text = (EXAMPLES / "median_baseline.py").read_text()
    text = text.replace("torch.where(judged_E, adv_E, 0.0)", "torch.where(judged_E, batch.reward_E, 0.0)")
    Path("broken.py").write_text(text)
    assert main(["methods", "check", "./broken.py:MEDIAN_BASELINE"]) == 1
    assert "FAIL ./broken.py:MEDIAN_BASELINE: equal_rewards" in capsys.readouterr().out


@pytest.mark.parametrize("function", ["near", "near_all"])
def test_own_reward(function: str) -> None:
    run = trained("a", f"task.reward=./examples/own_reward.py:{function}", "model=tiny")
    for row in rows(run)[1:]:
        assert row["reward"] == pytest.approx(row["reward/task"] + row["reward/near"])
        assert row["accuracy"] == row["reward/task"] and row["failed"] == 0


# As an installed package


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`installed("module:NAME")` pretends that a package offers it."""
    offered: list[EntryPoint] = []
    monkeypatch.setattr(gruppo.methods, "entry_points", lambda group: [e for e in offered if e.group == group])
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path("examples").resolve())])

    def install(value: str) -> None:
        offered.append(EntryPoint("some_name", value, "gruppo.methods"))
        gruppo.methods.plugged_in.cache_clear()

    yield install
    gruppo.methods.plugged_in.cache_clear()
    sys.modules.pop("median_baseline", None)


def test_entry_point(installed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    installed("median_baseline:MEDIAN_BASELINE")
    assert main(["methods"]) == 0
    assert re.search(r"median_baseline +GRPO with the group.s median", capsys.readouterr().out)
    assert main(["methods", "show", "median_baseline"]) == 0
    run = trained("a", "method=median_baseline")
    assert not (run / "code").exists()  # a package has a version of its own
    assert main(["train", "--resume", "runs/a", "steps=3", "--allow-changes"]) == 0
    trained("b", "method=dapo", "method.credit=median_baseline")
    assert "(nearest: median_baseline" in refused(capsys, "train", *SMALL, "method=median_baselin")


@pytest.mark.parametrize(
    ("value", "words"),
    {
        "not_installed_at_all:X": "cannot be loaded",
        "median_baseline:MedianBaseline": "no Method",
        "gruppo.methods.grpo:GRPO": "second method called 'grpo'",
    }.items(),
)
def test_bad_entry_point(installed: Any, value: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    installed(value)
    said = refused(capsys, "methods")
    assert "some_name" in said and words in said
