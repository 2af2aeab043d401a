"""A cluster of Ray before it is one: what a run asks for, what is refused, and the words for it. No Ray is needed."""

import importlib.util
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starting import config

from gruppo.cli import main, overrides
from gruppo.cli.commands import _ranks
from gruppo.scale.cluster import Cluster, _refuse, current, lacking, opened, plan, refuse, told
from gruppo.scale.config import ScaleConfig
from gruppo.scale.launch import agreed
from gruppo.train import trainer
from gruppo.train.config import RunConfig

SCALE = ScaleConfig(ranks=2, address="local", samplers=2, judges=1, cpus=0.5)


def test_what_is_asked_for() -> None:
    cpu, gpu = plan(SCALE, False, "10.0.0.1"), plan(SCALE, True, "10.0.0.1")
    assert [p.name for p in cpu] == ["rank 1", "sampler 0", "sampler 1", "judge 0"]
    assert [p.bundle for p in cpu] == [{"CPU": 0.5}] * 4
    assert [p.name for p in gpu] == ["rank 0", "rank 1", "sampler 0", "sampler 1", "judge 0"]
    assert gpu[0].bundle == {"CPU": 0.5, "GPU": 1.0, "node:10.0.0.1": 0.001}  # this process keeps its own GPU
    assert [p.gpus for p in gpu] == [1, 1, 1, 1, 0]


def test_what_is_missing_is_said_with_a_remedy() -> None:
    parts = plan(SCALE, True, "10.0.0.1")
    assert not lacking(parts, {"CPU": 2.5, "GPU": 4.0})
    assert lacking(parts, {"CPU": 2.0}) == {"CPU": (2.5, 2.0), "GPU": (4.0, 0.0)}
    words = (
        r"asks for 2\.5 CPU where there are 2 and 4 GPU where there are none .rank 0, .*judge 0.*scale\.cpus=0\.4, or"
    )
    with pytest.raises(ValueError, match=words):
        _refuse(parts, SCALE, {"CPU": 2.0})
    _refuse(parts, replace(SCALE, cpus=0.4), {"CPU": 2.5, "GPU": 4.0})


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (ScaleConfig(samplers=1), r"scale\.samplers=1 without scale\.address"),
        (ScaleConfig(judges=2), r"scale\.judges=2 without scale\.address"),
        (ScaleConfig(address="local"), "nothing would be placed there"),
        (ScaleConfig(address="ray://host:10001", judges=1), "Ray Client is not"),
    ],
)
def test_settings_that_place_nothing_are_refused(scale: ScaleConfig, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        trainer.train(config(tmp_path, "x", 1, scale=scale), quiet=True)
    assert not list(tmp_path.iterdir())


def test_ray_starts_its_ranks_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(tmp_path, "x", 1, scale=SCALE)
    assert agreed(asked) is asked
    args: Any = SimpleNamespace(dry_run=False, resume=None, config=None, settings=["scale.ranks=2"])
    assert _ranks(args) == 2
    args.settings += ["scale.address=local"]
    assert _ranks(args) == 1
    (tmp_path / "config.toml").write_text('[scale]\nranks = 2\naddress = "local"\n')
    args.resume, args.settings = str(tmp_path), []
    assert _ranks(args) == 1
    args.settings = ["scale.address=", "scale.ranks=3"]
    assert _ranks(args) == 3
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"scale\.address=local in one of 2 processes that torchrun has started"):
        agreed(asked)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_remedy_is_its_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "scale.address=local", "scale.judges=1", f"save.folder={tmp_path}"]) != 0
    assert "pip install 'gruppo[ray]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_without_an_address_opens_nothing(tmp_path: Path) -> None:
    with opened(config(tmp_path, "x", 1), print):
        assert current() is None


class Group:
    """A placement group that is not there the first times that it is waited for."""

    def __init__(self, times: int) -> None:
        self.times, self.waited = times, list[float]()

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) > self.times


class Busy:
    """In place of Ray: others use two of three processors."""

    def __init__(self, times: int) -> None:
        self.group = Group(times)
        self.util = SimpleNamespace(
            placement_group=lambda bundles, strategy: self.group,
            placement_group_table=lambda group: {"bundles_to_node_id": {0: "a", 1: "b", 2: "b"}},
        )

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def nodes(self) -> list[dict[str, str]]:
        return [{"NodeID": x, "NodeManagerHostname": f"host-{x}"} for x in "ab"]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="10.0.0.1:6379")


def placed(times: int, tmp_path: Path) -> tuple[list[str], Busy]:
    said, ray = list[str](), Busy(times)
    scale = ScaleConfig(ranks=2, address="auto", samplers=1, judges=1)
    run = config(tmp_path, "x", 1, scale=scale)
    Cluster(ray, run, said.append, plan(scale, False, "10.0.0.1")).place()
    return said, ray


def test_it_is_said_where_everything_is(tmp_path: Path) -> None:
    said, _ = placed(0, tmp_path)
    assert len(said) == 1 and said[0].startswith("Ray at 10.0.0.1:6379: rank 0 on ")
    assert said[0].endswith("; rank 1 on host-a; sampler 0, judge 0 on host-b")


def test_nobody_waits_in_silence_nor_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, ray = placed(2, tmp_path)
    assert all("3 CPU (1 free); others use the rest" in words for words in said[:2]) and len(said) == 3
    assert ray.group.waited == [5.0, 10.0, 20.0]
    monkeypatch.setattr("gruppo.scale.cluster.PATIENCE", -1.0)
    with pytest.raises(ValueError, match=r"waiting for resources of Ray.*Free them, or ask for less"):
        placed(2, tmp_path)


def test_what_an_actor_raised_is_told_as_it_was() -> None:
    assert str(told(SimpleNamespace(cause=ValueError("mine")), "judge 0", "Mend it.")) == "mine"
    error = told(ConnectionError("The actor died.\nmore"), "sampler 1", "Mend it.")
    assert str(error) == "sampler 1 died 4 times over the same question: The actor died. Mend it."


def test_the_run_files_of_the_page_can_be_placed() -> None:
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text()
    files = [tomllib.loads(text) for text in re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)]
    read = [overrides.from_toml(table, RunConfig()).scale for table in files if "scale" in table]
    assert len(read) >= 3 and any(scale.address for scale in read)
    assert not any(scale.unplaced() for scale in read)


def test_what_fails_on_every_cluster_is_refused_before_one_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    there = ["scale.address=local", "scale.samplers=1"]
    for words, says in (
        (["scale.samplers=1"], "without scale.address"),
        (["scale.address=local"], "nothing would be placed there"),
        ([*there, "method=latr"], "needs an engine that promises .* Use scale.samplers=0"),
    ):
        with pytest.raises(ValueError, match=says):
            refuse(overrides.apply(RunConfig(), words))
    refuse(overrides.apply(RunConfig(), there))
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"ray is not installed, and scale.address=local .* pip install"):
        refuse(overrides.apply(RunConfig(), there))
    refuse(RunConfig())
    with pytest.raises(ValueError, match=r"engine=vllm with scale.samplers=1.* Use engine=native, or scale.samplers=0"):
        overrides.apply(RunConfig(), [*there, "engine=vllm"])
