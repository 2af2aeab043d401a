"""Training with models whose dialogues cannot be extended: several sequences an episode, learned from and resumed."""

import json
from pathlib import Path

import evidence
import lucky
import pytest

pytest.importorskip("transformers")

from chat_templates import STUCK
from hf_models import hf_folder

from gruppo.cli import overrides
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run


@pytest.fixture(params=["none", "gone"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, one_thread: None) -> tuple[str, ...]:
    model = hf_folder(tmp_path / "model", template=STUCK[request.param], max_position_embeddings=160)
    tasks = tmp_path / "levels.jsonl"
    tasks.write_text("\n".join(map(json.dumps, lucky.rows(f"{lucky.__file__}:Lucky"))))
    return f"model={model}", f"task={tasks}", "sampling.max_tokens=3", "accept=dead_groups,mask"


@pytest.mark.parametrize("name", [pytest.param("grpo", marks=pytest.mark.slow), "gigpo"])
def test_it_is_resumed_bit_for_bit(name: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    evidence.resumed(name, tmp_path, *settings)


def test_every_turn_is_learned_from_and_it_is_said_once(settings: tuple[str, ...]) -> None:
    said: list[str] = []
    config = overrides.apply(RunConfig(), ("method=grpo", *evidence.SMALL, *settings))
    run = Run(config, say=said.append)
    try:
        for step in range(2):
            taken = evidence.finished(train_step(run, step))
    finally:
        run.close()
    assert len([s for s in said if "every turn begins a new sequence of its episode" in s]) == 1
    assert taken.facts["turns"] == 3
    batch = taken.batch
    assert batch.size("S") == batch.size("K") == 3 * batch.size("E")
    one_E = batch.gather(batch.adv_N, "N", "E", "max"), batch.gather(batch.adv_N, "N", "E", "min")
    assert bool((one_E[0] == one_E[1]).all()) and bool(batch.adv_N.any())  # grpo: one advantage for all turns
