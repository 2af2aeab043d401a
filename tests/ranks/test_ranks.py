"""Two processes learn one step together (gloo, CPU): the same gradient, the same run, and no rank hangs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from warm import ranks

from gruppo.methods import all_methods
from gruppo.train.ranks import Ranks

WORKER = Path(__file__).with_name("rank_worker.py")
FAST = ("grpo", "ppo", "disco", "kto", "oprl")  # additive, with a critic, whole-step, another view, a second model


def distances(folder: Path, names: list[str], size: int = 2) -> dict[str, dict[str, float]]:
    """How far the ranks together are from one process: with all sequences, and with one."""
    ranks(size, folder, WORKER, "gradients", str(folder / "found.json"), *names)
    return json.loads((folder / "found.json").read_text())


SEVERAL = """
from gruppo.methods import method

WRITERS = method("drmas").but(name="several", writers={"a": "a", "b": "b"})
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Of one start of the ranks: it takes longer than what they compute."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "mine.py").write_text(SEVERAL)
    return distances(folder, [*FAST, f"{folder}/mine.py:WRITERS"])


def test_gradients_are_those_of_one_process(found: dict[str, dict[str, float]]) -> None:
    near = found["gradients"]
    assert len(near) == len(FAST) + 1 and set(FAST) < set(near) and max(near.values()) <= 1e-9, near


def test_a_rank_without_sequences_does_not_hang(found: dict[str, dict[str, float]]) -> None:
    near = found["few"]
    assert set(near) == {"grpo", "disco"} and max(near.values()) <= 1e-9, near


@pytest.mark.slow
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("size", [2, 3])
def test_gradients_of_all_methods_are_those_of_one_process(size: int, tmp_path: Path) -> None:
    found = distances(tmp_path, sorted(all_methods()), size)["gradients"]
    assert set(found) == set(all_methods()) and max(found.values()) <= 1e-9, found


@pytest.mark.slow
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("name", ["grpo", "disco", "ppo", "bapo"])
def test_a_run_of_twenty_steps_is_that_of_one_process(name: str, tmp_path: Path) -> None:
    for size in (1, 2):
        ranks(size, tmp_path, WORKER, "steps", str(tmp_path / f"{size}.safetensors"), name, "20")
    one, two = (load_file(tmp_path / f"{size}.safetensors") for size in (1, 2))
    off = max(float((one[k] - two[k]).abs().max()) for k in one)
    assert off <= 1e-6, off


def test_every_rank_has_as_many_micro_batches() -> None:
    shares = [[1, 2, 3], [4], []]
    mine = [Ranks(rank, 3).mine(shares, 0) for rank in range(3)]
    assert [[part for part, counts in m if counts] for m in mine] == shares
    assert {len(m) for m in mine} == {3}


def test_one_process_adds_nothing() -> None:
    x = torch.ones(2)
    Ranks().added([x])
    assert x.tolist() == [1.0, 1.0]
