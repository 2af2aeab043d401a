"""Evidence for otc: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from typing import Any

import evidence
import numpy as np
import pytest
from dialogues import calls, dialogue
from looking_back import seen
from small_batches import adv, worth

from gruppo.data import Episode, Source, Status, Use
from gruppo.methods import method
from gruppo.methods.otc import ToolEfficiency
from gruppo.pieces.shaping import tool_efficiency
from gruppo.stages import Context, Memory

test_laws = evidence.laws("otc")
test_asks = evidence.asks("otc")
test_planted_mistakes = evidence.planted("otc")
test_equivalences = evidence.equivalences("otc")
test_resume = evidence.resume("otc")


def rollouts(*told: tuple[int, float], group: str = "g", first: int = 0, **fields: Any) -> list[Episode]:
    """(calls, reward) of each; the calls lie on two turns."""
    return [
        dialogue(first + i, [calls(m // 2), calls(m - m // 2), 1], r, group, **fields) for i, (m, r) in enumerate(told)
    ]


def test_otc_card() -> None:
    """Card S138, c = 1: the factor of m calls where n suffice."""
    table = {(0, 0): 1.0, (1, 0): 0.5, (1, 1): 1.0, (2, 1): 0.866, (3, 1): 0.707, (4, 2): 0.866}
    m, n = (np.array(x, float) for x in zip(*table, strict=True))
    assert tool_efficiency(m, n, 1.0) == pytest.approx(list(table.values()), abs=5e-4)
    assert tool_efficiency(np.array([1e9]), np.array([3.0]), 1.0) == pytest.approx([0.0], abs=1e-6)
    many = tool_efficiency(np.arange(1.0, 40.0), np.full(39, 7.0), 1.0)
    assert many.argmax() == 6 and many[6] == 1.0 and (many[[5, 7]] < 1).all()


def test_otc_pays_right_rollouts_by_their_calls() -> None:
    """The fewest calls of a right rollout are 1: 1, sin(2π/3), sin(3π/4); the wrong one without calls has 0."""
    group = rollouts((1, 1.0), (2, 1.0), (3, 1.0), (0, 0.0))
    want = [1.0, math.sin(2 * math.pi / 3), math.sin(3 * math.pi / 4), 0.0]
    assert worth(ToolEfficiency(), group) == pytest.approx(want)
    a = adv(method("otc").credit, group)
    assert a[0] > a[1] > a[2] > a[3]
    assert all(e.reward["task"] in (0.0, 1.0) and e.replaced == {"task"} for e in group), "recorded, not paid"
    assert worth(ToolEfficiency(tool_coef=2.0), rollouts((2, 0.5), (1, 1.0))) == pytest.approx([math.sqrt(0.75), 2.0])
    assert worth(ToolEfficiency(smooth=2.0), rollouts((0, 1.0), (1, 1.0)))[1] == pytest.approx(math.cos(math.pi / 4))


def test_otc_remembers_the_fewest_calls_of_a_task() -> None:
    """Over steps, and never more again; wrong, failed, unused rollouts and an expert's say nothing about what is
    needed. The rollouts of the step count at once."""
    occupant = ToolEfficiency()
    others = [
        *rollouts((0, 0.0), first=10),
        *rollouts((0, 1.0), first=20, use=Use.NONE),
        *rollouts((0, 1.0), first=30, use=Use.APART),
        *rollouts((0, 1.0), first=40, source=Source.EXPERT),
        dialogue(50, [1], 1.0, status=Status.ENV_ERROR),
    ]
    memory = seen(occupant, [*rollouts((2, 1.0), (3, 1.0)), *others], rollouts((4, 1.0)))
    ctx = Context(memory=memory)
    assert worth(occupant, rollouts((4, 1.0)), ctx) == pytest.approx([math.sin(2 * math.pi / 3)])
    assert worth(occupant, rollouts((4, 1.0), group="h"), ctx) == [1.0], "another task has a record of its own"
    assert worth(occupant, rollouts((1, 1.0), (2, 1.0)), ctx) == pytest.approx([1.0, math.sin(2 * math.pi / 3)])
    assert memory["fewest_calls"]["calls"].tolist() == [2.0]


def test_otc_as_ppo_has_it() -> None:
    """Nobody to compare with: cos(m π / (2m + 1))."""
    ppo = ToolEfficiency(least="zero")
    want = [math.cos(math.pi / 3), math.cos(2 * math.pi / 5), 1.0]
    assert worth(ppo, rollouts((1, 1.0), (2, 1.0), (0, 1.0))) == pytest.approx(want)


def test_otc_where_every_turn_is_a_call() -> None:
    """All turns but the last: 2 and 4 calls, sin(4π/6)."""
    group = [dialogue(0, [1, 1, 1], 1.0), dialogue(1, [1] * 5, 1.0), dialogue(2, [1], 0.0)]
    assert worth(ToolEfficiency(counts="turns"), group) == pytest.approx([1.0, math.sin(2 * math.pi / 3), 0.0])
    assert worth(ToolEfficiency(counts="turns"), [dialogue(0, [1], 1.0)]) == [1.0]


def test_otc_edges() -> None:
    """A score on a turn is a score; a negative one stays; one rollout, no right rollout, nobody."""
    on_turn = dialogue(0, [calls(2), {"reward": {"task": 1.0}}], None)
    assert worth(ToolEfficiency(), [on_turn, *rollouts((1, 1.0), first=1)]) == pytest.approx([math.sqrt(0.75), 1.0])
    assert worth(ToolEfficiency(), rollouts((3, -1.0), (0, -1.0))) == [-1.0, -1.0]
    assert worth(ToolEfficiency(), rollouts((3, 1.0))) == [1.0]
    assert worth(ToolEfficiency(), rollouts((3, 0.0), (1, 0.0))) == [0.0, 0.0]
    assert len(ToolEfficiency()(Context(memory=Memory()), [])["efficient"]) == 0
