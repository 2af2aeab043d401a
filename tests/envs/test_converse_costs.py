"""What episodes in worlds cost: new tokens alone, a branch its own, and a slow world its own time."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_converse import context, engine_of, played, starts_of, tasks_of

from gruppo.data import Episode, pack
from gruppo.envs.base import Seen
from gruppo.envs.hosted import Hosted
from gruppo.envs.registry import made
from gruppo.policies import CharTokenizer, TinyConfig, TinyTransformer
from gruppo.stages.converse import Converse
from gruppo.stages.play import Fork
from gruppo.tasks import Task

MANY = 64


@pytest.fixture(scope="module")
def policy() -> TinyTransformer:
    config = TinyConfig(vocab=CharTokenizer().vocab, dim=16, layers=1, heads=2, kv_heads=1, ffn=16, context=1024)
    return TinyTransformer(config)


def computed(engine: Any) -> int:
    return engine.prefilled + engine.decoded


def written(episodes: Sequence[Episode]) -> int:
    return sum(len(s.ids) for e in episodes for s in e.sequences)


@pytest.mark.parametrize("lockstep", [True, False])
def test_sixty_four_episodes_of_eight_turns_compute_what_is_new(policy: TinyTransformer, lockstep: bool) -> None:
    engine, play = engine_of(policy, lockstep=lockstep), Converse()
    ctx = context(engine)
    found = played(ctx, play, starts_of(ctx, play, tasks_of("household", MANY), turns=8))
    assert len(found) == MANY and {len(e.turns) for e in found} == {8}
    again = sum(t.stop for e in found for t in e.turns)  # without what is kept from turn to turn
    assert computed(engine) <= 1.05 * written(found) < 0.3 * again


def test_a_branch_computes_nothing_again(policy: TinyTransformer) -> None:
    """Law: a fork at any turn computes what it adds, and not one token of what it goes on from."""
    engine, play = engine_of(policy), Converse()
    ctx = context(engine)
    [e] = played(ctx, play, starts_of(ctx, play, tasks_of("household", 1), turns=8))
    for number in (1, 4, 7):
        before, at = computed(engine), e.turns[number].start
        [branch] = played(ctx, play, [Fork(e, at, 1000 + number, ctx.sampling)])
        assert branch.parent == e.uid and branch.fork == number and len(branch.turns) == 8
        assert branch.sequences[0].ids[:at].tolist() == e.sequences[0].ids[:at].tolist()
        assert computed(engine) - before <= len(branch.sequences[0].ids) - at


class Waits(Hosted):
    """`guess` as if in a process: its steps are waited for in a thread. `wait` is called in each."""

    def __init__(self, wait: Any = lambda: None) -> None:
        super().__init__("guess")
        self.world, self.wait, self.steps = made("guess"), wait, 0
        self._offers = frozenset(self.world.can), ("policy",)

    def reset(self, task: Task) -> Seen:
        return self.world.reset(task)

    def step(self, action: str) -> Seen:
        self.steps += 1
        self.wait()
        return self.world.step(action)


def with_worlds(policy: TinyTransformer, worlds: Sequence[Any], **options: Any) -> list[Episode]:
    """As many episodes of three turns as there are worlds; they are taken from the end."""
    engine, play = engine_of(policy, **options), Converse()
    ctx, tasks = context(engine, tokens=2), tasks_of("guess", len(worlds))
    starts = starts_of(ctx, play, tasks, turns=3)
    play.close()
    play.free["guess"] = list(worlds)
    try:
        return played(ctx, play, starts)
    finally:
        play.close()


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("process", [True, False])
def test_a_world_that_sleeps_costs_its_own_time(policy: TinyTransformer, lockstep: bool, process: bool) -> None:
    """One of 64 sleeps in each step. If the others waited in line for it, it would be 64 times its time."""

    class Sleeps:
        def __init__(self) -> None:
            self.world = made("guess")

        def __getattr__(self, name: str) -> Any:
            return getattr(self.world, name)

        def step(self, action: str) -> Seen:
            time.sleep(0.2)
            return self.world.step(action)

    def took(slow: Any) -> tuple[float, list[Episode]]:
        others = [Waits() if process else made("guess") for _ in range(MANY - 1)]
        begun = time.monotonic()
        found = with_worlds(policy, [*others, slow], lockstep=lockstep)
        return time.monotonic() - begun, found

    plain, same = took(Waits() if process else made("guess"))
    slept, found = took(Waits(lambda: time.sleep(0.2)) if process else Sleeps())
    turns = max(len(e.turns) for e in found)
    assert 0.2 * turns <= slept <= plain + MANY * 0.2 * turns / 4  # a busy machine has its share of that
    if lockstep:
        assert [written([e]) for e in same] == [written([e]) for e in found]
    seconds = sorted(e.turns[0].seconds for e in found)
    assert seconds[-1] >= 0.2 and all(t.seconds > 0 for e in found for t in e.turns)


def test_processes_of_worlds_start_beside_one_another(policy: TinyTransformer) -> None:
    """The first one before anything is played; the others in threads that wait for them, when they are reset."""
    started: list[bool] = []

    class Notes(Waits):
        def start(self) -> None:
            started.append(threading.current_thread() is threading.main_thread())

        def reset(self, task: Task) -> Seen:
            self.start()
            return super().reset(task)

    play = Converse(make=lambda name, hosted: Notes())
    ctx = context(engine_of(policy), tokens=2)
    played(ctx, play, starts_of(ctx, play, tasks_of("guess", 8), turns=1))
    play.close()
    first, shown = started[0], started[1:9]  # `shown` resets one world for each task, to see what is asked
    assert first and all(shown) and started[9:] == [False] * 8


def test_in_free_order_the_others_end_while_one_waits(policy: TinyTransformer) -> None:
    """The slow one goes on when all others have taken their last step. If one waited for it, this would not end."""
    left, rest = threading.Semaphore(0), 7

    def wait() -> None:
        assert all(left.acquire(timeout=30) for _ in range(rest))
        left.release(rest)

    class Last(Waits):
        def step(self, action: str) -> Seen:
            seen = super().step(action)
            if self.steps == 3 or seen.done:
                left.release()
            return seen

    found = with_worlds(policy, [*(Last() for _ in range(rest)), Waits(wait)], lockstep=False)
    assert all(e.status.judged for e in found) and len(found) == rest + 1


def test_slow_worlds_are_waited_for_at_once(policy: TinyTransformer) -> None:
    """Every step waits until all 48 are in theirs: with fewer threads than worlds none would go on."""
    together = threading.Barrier(48, timeout=30)
    worlds = [Waits(together.wait) for _ in range(48)]
    found = with_worlds(policy, worlds, lockstep=True)
    assert all(e.status.judged for e in found) and not together.broken


def test_seconds_of_turns_are_measured_and_compared_by_nobody(policy: TinyTransformer) -> None:
    engine, play = engine_of(policy, lockstep=True), Converse()
    ctx = context(engine)
    first, again = (played(ctx, play, starts_of(ctx, play, tasks_of("guess", 3), turns=3)) for _ in range(2))
    assert [e.turns for e in first] == [e.turns for e in again]
    spent = pack(first).seconds_K
    assert bool((spent > 0).all())
    assert np.allclose(spent.numpy(), [t.seconds for e in first for t in e.turns])
