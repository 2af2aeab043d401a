"""What drew an episode is stored with it: after a restart it can be asked again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gruppo.data import Episode, Growing, single_turn
from gruppo.data.store import load_episodes, save_episodes
from gruppo.engines.base import Completion
from gruppo.lab.laws.desk import Desk
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages import Ask
from gruppo.stages.play import Fork, ask_of, asked_of, request_after
from gruppo.stages.rollout import Group
from gruppo.stages.walk import Walk
from gruppo.tasks import Task

TASK = Task("sum-1", "1+1=", "2", 1, "sums")
ASKS = [
    Ask(TASK, 4),
    Ask(TASK, 1, "another", {"temperature": 0.7, "hint": 0.1 + 0.2, "draft": "ü\ud800", "at": [1]}, "k", {"x": 0.1}, 3),
    Ask(TASK, 8, how={"hint_level": np.int64(2)}, notes={"rate": np.float32(0.5)}),  # type: ignore[dict-item]
]  # fmt: skip


def of(ask: Ask, **fields: Any) -> Episode:
    logp = np.zeros(1, np.float32)
    rest = {"asked": asked_of(ask), "index": ask.index, **fields}
    return single_turn(1, ask.task.uid, ask.group, np.array([1]), np.array([2]), logp, 0, **rest)


@pytest.mark.parametrize("ask", ASKS)
def test_an_ask_comes_back_from_a_file(ask: Ask, tmp_path: Path) -> None:
    save_episodes(tmp_path / "e.arrow", [of(ask)])
    [e] = load_episodes(tmp_path / "e.arrow")
    assert e.ask is None and ask_of(e, TASK) == ask


def test_options_that_no_file_holds_are_named() -> None:
    e = of(Ask(TASK, 1, how={"hint": 1, "callback": print, "pair": (1, 2)}))
    with pytest.raises(
        ValueError, match=r"the options callback, pair, which no file can hold.*numbers, texts and lists"
    ):
        ask_of(e, TASK)


def test_of_an_older_file_it_is_the_task_alone() -> None:
    assert ask_of(replace(of(ASKS[1]), asked=""), TASK) == Ask(TASK, 1, "another", index=3)


def test_what_is_played_says_what_drew_it() -> None:
    made = Desk(World(method("grpo"), 0))
    for e in made.episodes(Group()):
        assert ask_of(e, e.ask.task) == e.ask
        at = len(e.sequences[0].ids)
        assert Fork(e, at, 99, made.ctx.sampling).grown().finish().asked == e.asked


def test_recalled_episodes_of_an_earlier_process_have_their_ask() -> None:
    """So that an update can draw at remembered states. Another task, or an option that was lost: none."""
    other = replace(of(ASKS[0]), index=0, task="sum-2")
    lost = of(Ask(TASK, 1, how={"f": print}, index=0))
    mine, unknown = of(Ask(TASK, 4, index=0)), of(Ask(TASK, 4))
    walk = Walk(method("grpo"), read=lambda *_: {}, tasks=[TASK])
    found = [walk.asked(e).ask for e in (mine, other, lost, unknown)]
    assert found == [Ask(TASK, 4, index=0), None, None, None]


def test_a_fork_in_any_sequence() -> None:
    """The second context goes on; the turn of the first, which came later, is dropped."""
    ctx = Desk(World(method("grpo"), 0)).ctx
    made = Growing(1, "t", "g")
    first = made.begin(np.array([1, 5]))
    made.act(np.array([6]), np.zeros(1, np.float32), 0, agent="a")
    made.begin(np.array([1, 7]))
    made.act(np.array([8, 9]), np.zeros(2, np.float32), 0, agent="b")
    made.switch(first)
    made.act(np.array([6]), np.zeros(1, np.float32), 0, agent="a")
    fork = Fork(made.finish(), 3, 9, ctx.sampling, sequence=1)
    assert fork.prefix.tolist() == [1, 7, 8]
    done = Completion(np.array([4]), np.zeros(1), np.zeros(1, np.int32), "stop")
    e = fork.ended(ctx, request_after(ctx, fork.prefix, 9, ctx.sampling), done)
    assert [s.ids.tolist() for s in e.sequences] == [[1, 5, 6], [1, 7, 8, 4]]
    assert [(t.agent, t.sequence, t.start, t.stop) for t in e.turns] == [("a", 0, 2, 3), ("b", 1, 2, 4)]
    assert (e.uid, e.parent, e.fork) == (9, 1, 1)
    with pytest.raises(ValueError, match=r"cannot be continued from position 1 of sequence 1.*its prompt would be cut"):
        replace(fork, at=1).grown()
