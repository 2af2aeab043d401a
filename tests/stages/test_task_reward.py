"""Law: whether the reward of the task lies on the episode or on its turns, methods see the same."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from drawing import Judged, bench, rolled
from scripted import TASKS

from gruppo.data import Episode, Growing, Note, Source, key_of
from gruppo.methods import method
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.methods.mmr1_vas import MMR1_VAS
from gruppo.methods.ngrpo import DropSolvedGroups
from gruppo.methods.otc import ToolEfficiency
from gruppo.methods.s_grpo import FirstRight
from gruppo.methods.unlikeliness import Unlikeliness
from gruppo.stages import Context, Memory, StepRecord
from gruppo.stages.recorded import RightExperts
from gruppo.stages.reward import task_reward

RIGHT = [1.0, 0.0, 0.5, -1.0, 1.0, 1.0, 0.0, 0.0]


def on_turns(e: Episode) -> Episode:
    """The same, its task paid half on the first and half on the last turn."""
    made = Growing.of(e).finish()
    task = made.reward.pop("task", None)
    for t in (made.turns[0], made.turns[-1]) if task is not None else ():
        t.reward["task"] = t.reward.get("task", 0.0) + task / 2
    return made


def episodes(source: Source = Source.POLICY) -> list[Episode]:
    out: list[Episode] = []
    for uid, right in enumerate(RIGHT):
        made = Growing(uid, f"t{uid // 4}", f"g{uid // 4}", index=uid // 4, source=source)
        made.begin(np.array([1, 2]))
        for t in range(2):
            made.act(
                np.full(1 + uid % 3 + t, 5), np.full(1 + uid % 3 + t, -0.1 * uid - 0.1, np.float32), 0, source=source
            )
        out.append(made.finish(reward={"task": right}, notes={"exit": Note(np.array([float(uid)], np.float32))}))
    return out


def hapo(ctx: Context, some: Sequence[Episode]) -> Any:
    memory = Memory()
    with memory.writing():
        ShorterThanBefore().observe(StepRecord(0, some, None, {}, drawn=some), memory)
    return ShorterThanBefore()(replace(ctx, memory=memory), some)


def mmr1(ctx: Context, some: Sequence[Episode]) -> Any:
    curriculum: Any = MMR1_VAS.curriculum
    return curriculum.scores(some, key_of(torch.tensor([e.index for e in some]))).tolist()


LOOKS: dict[str, Any] = {
    "unlikeliness": lambda ctx, some: Unlikeliness()(ctx, some)["unlikely"].tolist(),
    "hapo_history": hapo,
    "mmr1_vas": mmr1,
    "s_grpo": FirstRight(),
    "ngrpo": lambda ctx, some: DropSolvedGroups(top_reward=0.0).episodes(ctx, some),
    "otc": lambda ctx, some: ToolEfficiency()(ctx, some)["efficient"].tolist(),
    "chord": lambda ctx, some: RightExperts().episodes(ctx, some),
}


@pytest.mark.parametrize("name", LOOKS)
def test_rooms_see_the_task_on_turns(name: str) -> None:
    own = episodes(Source.EXPERT if name == "chord" else Source.POLICY)
    got = [LOOKS[name](Context(), some) for some in (own, list(map(on_turns, own)))]
    assert got[0] == got[1]
    nothing = LOOKS[name](Context(), [replace(e, reward={"task": 0.0}) for e in own])
    assert got[0] != nothing, "the task's reward has no effect here, so the test says nothing"


@pytest.mark.parametrize("name", ["scaf_grpo", "seele"])
def test_rollouts_see_the_task_on_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hint answers are right. Helped ones, rates of hints and uses are the same."""
    m, scored = method(name), Judged.scored

    async def scored_on_turns(self: Judged, ctx: Any, some: Sequence[Episode]) -> None:
        new = [e for e in some if not e.scores]
        await scored(self, ctx, new)
        for e in new:
            e.turns, e.reward = on_turns(e).turns, {}

    def drawn() -> list[Any]:
        ctx = bench(m, lambda prompt, r: "x", lambda e: float(len(e.text) > 2), samples=8)
        return [(e.uid, e.use, e.score, e.text) for e in rolled(m, ctx, TASKS, samples=8)]

    whole = drawn()
    monkeypatch.setattr(Judged, "scored", scored_on_turns)
    assert drawn() == whole and {score for _, _, score, _ in whole} == {0.0, 1.0}


def test_the_task_of_a_game_is_the_mean_over_our_seats() -> None:
    e = on_turns(episodes()[0])
    assert (task_reward(e), task_reward(replace(e, reward={"task": 0.25}))) == (1.0, 1.25)
    e.turns[0].agent = "other"
    assert e.scores == {"other": 0.5, "policy": 0.5} and task_reward(e) == 0.5
    none = replace(episodes()[0], reward={})
    assert (task_reward(none), task_reward(none, -1.0)) == (0.0, -1.0)
