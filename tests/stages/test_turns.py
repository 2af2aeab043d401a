"""What credits of turns share: observations change no advantage, contexts change none, and large steps are quick."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.data import Batch, Episode, Growing, pack
from gruppo.methods import method
from gruppo.stages import Context
from gruppo.stages.turns import anchor_K, judged_K, seat_return, stateless_K, turn_return

OF_TURNS = ("gigpo", "hgpo", "salt", "drmas", "mars", "poad")


def episodes(seed: int, seen: int, apart: bool) -> list[Episode]:
    """Random walks in six states, with `seen` tokens of observation between turns, or a context for every turn."""
    rng = np.random.default_rng(seed)
    out: list[Episode] = []
    for uid in range(12):
        made = Growing(uid, f"t{uid // 6}", f"g{uid // 6}", domain="d")
        made.begin(np.array([1, 2]))
        for t in range(int(rng.integers(1, 6))):
            if t and apart:
                made.begin(np.array([1, *[3] * seen]))
            elif t:
                made.observe(np.full(seen, 7))
            n, paid = int(rng.integers(1, 4)), {"task": float(rng.integers(3))}
            state, action, agent = f"s{rng.integers(3)}", f"a{rng.integers(2)}", ("one", "two")[int(rng.integers(2))]
            logp = np.full(n, -1.0, np.float32)
            made.act(np.full(n, 5), logp, 0, state=state, action_key=action, agent=agent, reward=paid)
        out.append(made.finish(final_state=f"s{rng.integers(2)}"))
    return out


def credited(name: str, batch: Batch) -> list[float]:
    values = torch.linspace(-1.0, 1.0, batch.size("N"), dtype=torch.float64)
    return method(name).credit(Context(), batch.with_columns(value_critic_N=values))["adv_N"].tolist()


@pytest.mark.parametrize("name", OF_TURNS)
@pytest.mark.parametrize("seed", [0, 1])
def test_observations_and_contexts_change_no_advantage(name: str, seed: int) -> None:
    ways = [(1, False), (9, False), (2, True), (6, True)]
    found = [credited(name, pack(episodes(seed, *way), dtype=torch.float64)) for way in ways]
    assert all(f == found[0] for f in found[1:]) and any(found[0])


@pytest.mark.parametrize("name", OF_TURNS)
def test_the_order_of_contexts_is_not_that_of_time(name: str) -> None:
    """Turns of an episode lie in two contexts that take turns: the credit goes by time, not by row."""
    straight, twisted = (alternating(seed=3, twisted=t) for t in (False, True))
    by_uid = [dict(zip(times(b), credited_by_turn(name, b), strict=True)) for b in (straight, twisted)]
    assert by_uid[0] == pytest.approx(by_uid[1])


def alternating(seed: int, twisted: bool) -> Batch:
    out: list[Episode] = []
    rng = np.random.default_rng(seed)
    for uid in range(6):
        made = Growing(uid, "t", "g")
        contexts = [made.begin(np.array([1, 2])) for _ in range(2 if twisted else 1)]
        for t in range(4):
            made.switch(contexts[t % len(contexts)])
            made.observe(np.array([7]))
            paid = {"task": float(rng.integers(2))}
            where: dict[str, Any] = {"state": f"s{rng.integers(2)}", "action_key": f"a{rng.integers(2)}"}
            made.act(np.array([5]), np.array([-1.0], np.float32), 0, reward=paid, **where)
        out.append(made.finish(final_state="end"))
    return pack(out, dtype=torch.float64)


def times(batch: Batch) -> list[tuple[int, int]]:
    return list(zip(batch.up("K", "E").tolist(), batch.turn_index_K.tolist(), strict=True))


def credited_by_turn(name: str, batch: Batch) -> list[float]:
    """Every turn has one token; its value is a function of episode and time."""
    values = [0.1 * e - 0.2 * t for e, t in times(batch)]
    ready = batch.with_columns(value_critic_N=torch.tensor(values, dtype=torch.float64))
    return method(name).credit(Context(), ready)["adv_N"].tolist()


def test_returns_and_seats() -> None:
    batch = pack(episodes(0, 1, False), dtype=torch.float64)
    for row, (e, a) in enumerate(zip(batch.up("K", "E").tolist(), batch.agent_K.tolist(), strict=True)):
        assert seat_return(batch)[row] == batch.reward_EA[e, a]
    first = torch.zeros_like(batch.reward_EA)
    rows = batch.time_order("K").tolist()
    for row in reversed(rows):  # what remains is the first turn of each seat
        first[batch.up("K", "E")[row], batch.agent_K[row]] = turn_return(batch, 1.0)[row]
    known = ~batch.reward_EA.isnan()
    assert torch.allclose(first[known], batch.reward_EA[known])
    assert bool(judged_K(batch).all()) and not bool(stateless_K(batch).any())
    assert torch.equal(anchor_K(batch), batch.state_K)


def test_what_has_no_state() -> None:
    """Turns whose state nobody told, also after a minibatch was taken; the first begins at the task."""
    blank = [replace(e, turns=[replace(t, state="") for t in e.turns]) for e in episodes(1, 1, False)]
    batch = pack(blank, dtype=torch.float64)
    part = batch.minibatch(torch.tensor([3, 5]))
    assert bool(stateless_K(batch).all()) and bool(stateless_K(part).all())
    start = anchor_K(batch)[batch.turn_index_K == 0]
    assert len(set(start.tolist())) == 1
    later = anchor_K(batch)[batch.turn_index_K > 0].tolist()
    assert len(set(later)) == len(later)


def test_ten_thousand_turns_are_quick() -> None:
    """Keys, histories and graphs; the limit is ten times what it takes on one slow core."""
    one = np.array([5])
    logp = np.array([-1.0], np.float32)
    made: list[Any] = []
    for uid in range(400):
        e = Growing(uid, f"t{uid // 8}", f"g{uid // 8}", reward={"task": float(uid % 3)})
        e.begin(np.array([1, 2]))
        for t in range(25):
            e.act(one, logp, 0, state=f"s{(uid * t) % 20}", action_key=f"a{t % 3}")
        made.append(e.finish())
    batch = pack(made, dtype=torch.float64)
    assert batch.size("K") == 10_000
    for name in ("gigpo", "hgpo", "salt", "drmas", "mars"):
        begun = time.process_time()  # of this process alone: others may be busy
        adv_N = method(name).credit(Context(), batch)["adv_N"]
        took = time.process_time() - begun
        assert bool(torch.isfinite(adv_N).all()) and took < 1.0, f"{name}: {took:.2f} s"
