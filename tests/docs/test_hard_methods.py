"""Numbers of the ten hard methods, worked by hand, against the code on their page; and all of them train."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from doc_blocks import run

from gruppo.cli import overrides
from gruppo.data import Episode, Note, Turn, pack, single_turn
from gruppo.stages import Context, Memory
from gruppo.train.config import RunConfig
from gruppo.train.doctor import step_zero
from gruppo.train.loop import train_step
from gruppo.train.run import Run


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return run("design/hard-methods.md")


def walk(uid: int, states: list[str], rewards: list[float]) -> Episode:
    """One sequence a turn, as an environment that rebuilds the prompt makes them."""
    prompt, action = np.array([1, 2]), np.array([3])
    one = [single_turn(uid, "t", "g", prompt, action, np.zeros(1, np.float32), 0).sequences[0] for _ in states]
    turns = [
        Turn(2, 3, sequence=i, obs_stop=2, state=s, reward={"env": r})
        for i, (s, r) in enumerate(zip(states, rewards, strict=True))
    ]
    return Episode(uid, "t", "g", one, turns, reward={"task": 0.0})


def answers(rewards: list[float], **notes: list[float]) -> list[Episode]:
    def one(i: int, reward: float) -> Episode:
        note = {k: Note(np.array([v[i]], np.float32)) for k, v in notes.items()}
        logp = np.zeros(1, np.float32)
        return single_turn(i, "t", "g", np.array([1]), np.array([2]), logp, 0, reward={"task": reward}, notes=note)

    return [one(i, r) for i, r in enumerate(rewards)]


def test_gigpo_credits_the_shorter_path(page: dict[str, Any]) -> None:
    # Both reach the goal, in one and in two turns: returns at the shared state 1 and 0.95, so ±1/√2.
    batch = pack([walk(1, ["S"], [1.0]), walk(2, ["S", "T"], [0.0, 1.0])])
    adv_N = page["AnchorGroups"](gamma=0.95)(Context(), batch)["adv_N"]
    assert torch.allclose(adv_N, torch.tensor([0.7071, -0.7071, 0.0]), atol=1e-3)


@pytest.mark.parametrize(("last", "want"), [(1.0, [0.577, 0.577, -1.732, 0.577]), (0.0, [1.0, 1.0, -1.0, -1.0])])
def test_hgpo_nested_states(page: dict[str, Any], last: float, want: list[float]) -> None:
    # State S is reached by four walks; the first and the last of them came from the same state P.
    before, reward = ["P", "Q", "R", "P"], [1.0, 1.0, 0.0, last]
    walks = [walk(i, [p, "S"], [0.0, r]) for i, (p, r) in enumerate(zip(before, reward, strict=True))]
    adv_N = page["NestedAnchors"](history=1, alpha=1.0)(Context(), pack(walks))["adv_N"]
    assert torch.allclose(adv_N[1::2], torch.tensor(want), atol=1e-3)


def test_spear_recalibrates_and_ramps(page: dict[str, Any]) -> None:
    episodes = answers([1.0, 0.0])
    episodes[0].replayed = True
    batch = pack(episodes)
    for middle, want in ((0.4, 0.6), (1.0, 0.0)):
        ctx = Context(memory=Memory(group_means=torch.tensor([0.0, middle, 1.0])))
        assert page["Recalibrated"]()(ctx, batch)["adv_N"].tolist()[0] == pytest.approx(want)
    coef = page["NowAndThen"]().replay_coef
    assert [Context(step=s).at(coef) for s in (0, 50, 100, 200)] == pytest.approx([0, 0.5, 1, 1])


def test_chord_weight_of_the_expert(page: dict[str, Any]) -> None:
    surrogate, expert = page["FALLING"].objective
    at = [(Context(step=s).at(surrogate.coef), Context(step=s).at(expert.expert_coef)) for s in (0, 100, 200)]
    assert at == [pytest.approx(both) for both in ((0.1, 0.9), (0.525, 0.475), (0.95, 0.05))]


def test_poise_reads_the_other_sample(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    probe = page["StateProbe"]
    monkeypatch.setattr(probe, "features", lambda self, batch: torch.tensor([[0.6], [0.7]]))
    known = {"mean": torch.zeros(1), "scale": torch.ones(1), "weight": torch.ones(1), "intercept": torch.zeros(())}
    adv_N = probe()(Context(memory=Memory(probe=known)), pack(answers([1.0, 0.0])))["adv_N"]
    assert adv_N.tolist() == pytest.approx([0.3, -0.6])


def test_an_episodes_own_reward_comes_after_its_turns(page: dict[str, Any]) -> None:
    # Turns give 1 and 2, the episode itself 4: 1 on the first turn, 2 + 4 on the last, 7 in all.
    e = walk(1, ["S", "T"], [1.0, 2.0])
    e.reward["task"] = 4.0
    batch = pack([e])
    assert page["turn_reward"](batch).tolist() == [1.0, 6.0]
    assert batch.reward_E.tolist() == [7.0]


NAMES = ["gigpo", "hgpo", "spo_segment", "s_grpo", "seele", "disco", "chord", "poise", "archer", "spear"]


@pytest.mark.parametrize("name", NAMES)
def test_it_trains(page: dict[str, Any], name: str) -> None:
    fit = {
        "archer": {"update": page["CriticThenActor"](critic_epochs=2, utterances=8, warmup=0)},
        "spear": {"replay": page["GoodMemories"](capacity=2)},  # so that the second step replays
    }
    m = page[name.upper()].but(**fit.get(name, {}))
    small = ("task=chain", "task.level=1", "steps=2", "prompts=2", "samples=4", "model=tiny", "save.tensorboard=no")
    run = Run(replace(overrides.apply(RunConfig(), small), method=m), say=lambda said: None)
    try:
        assert [c.name for c in asyncio.run(step_zero(run)) if not c.ok] == []
        for step in range(2):
            record = asyncio.run(train_step(run, step))
            assert math.isfinite(record.facts["grad_norm"])
        assert record.batch is not None and (name != "spear" or bool(record.batch.replayed_E.any()))
    finally:
        run.close()
