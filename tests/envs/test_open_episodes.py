"""An episode that is left open and goes on is the episode that was never left: ids, turns, rewards, words.

`turns_a_step` in runs: tests/train/test_open_runs.py.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gruppo.data import Episode, Growing, Status
from gruppo.data.store import load_episodes, save_episodes
from gruppo.envs.base import Seen
from gruppo.envs.guess import Guess
from gruppo.stages import Context, Sampling
from gruppo.stages.context import Ask
from gruppo.stages.converse import Converse
from gruppo.stages.play import Further, Start, further
from gruppo.stages.prompting import plain
from gruppo.stages.unfinished import in_free_slots, not_waiting, parted
from gruppo.stages.walk import without_clock
from gruppo.tasks import Task, load_task

pytest.importorskip("transformers")

from test_token_laws import Heard, anything, template, trained_is_sampled

TURNS = 7  # of an episode at most


def context(tokenizer: Any, engine: Any) -> Context:
    return Context(engine=engine, tokenizer=tokenizer, sampling=Sampling(max_tokens=9))


def played(ctx: Context, play: Converse, start: Any, turns: int = 0) -> Episode:
    async def all_of_them() -> list[Episode]:
        return [e async for _, e in play(ctx, [start], turns=turns)]

    [e] = asyncio.run(asyncio.wait_for(all_of_them(), 60))
    return e


def begun(ctx: Context, play: Converse, task: Task, **how: Any) -> Start:
    return Start(plain(ctx, Ask(play.shown(task), 1, how={"turns": TURNS, **how}))[0], 100, ctx.sampling)


def stored(e: Episode, folder: Path) -> Episode:
    """As another process reads it from a checkpoint."""
    save_episodes(folder / "open.arrow", [without_clock(e)])
    [again] = load_episodes(folder / "open.arrow")
    return replace(again, ask=e.ask)


def offers(tokenizer: Any) -> Any:
    """An offer, another one at each length of the dialogue: an illegal action would end the game."""
    return lambda request: [*tokenizer.encode(f"offer {len(request.prefix) % 10}"), tokenizer.eos]


def in_pieces(ctx: Context, play: Converse, start: Any, turns: int, folder: Path) -> tuple[Episode, int]:
    """The episode, left open after so many turns again and again and stored each time; and how often it was."""
    e, pauses = played(ctx, play, start, turns), 0
    while e.status == Status.OPEN:
        pauses += 1
        assert len(e.turns) == turns * pauses and "task" not in e.reward
        assert all(s.ids.size == max(t.stop for t in e.turns if t.sequence == i) for i, s in enumerate(e.sequences))
        e = played(ctx, play, further(ctx, stored(e, folder)), turns)
    return e, pauses


@pytest.mark.parametrize(
    ("world", "name", "window"),
    [(w, n, -1) for w in ("household", "negotiation") for n in ("none", "chatml")]
    + [("household", "chatml", 1), ("calculator", "chatml", -1), ("lake", "open", -1)],
)
@pytest.mark.parametrize("turns", [1, 3])
def test_an_episode_goes_on_as_if_it_had_not_been_left(
    world: str, name: str, window: int, turns: int, tmp_path: Path
) -> None:
    """In one growing context, in windows, and where every turn is rendered anew; with one agent or two."""
    tokenizer, task = template(name), load_task(world).train[1]
    play = Converse(window=window, say=lambda said: None)
    say = offers(tokenizer) if world == "negotiation" else anything(tokenizer)
    whole, pieces = (context(tokenizer, Heard(say)) for _ in range(2))
    start = begun(whole, play, task)
    e = played(whole, play, start)
    again, pauses = in_pieces(pieces, play, start, turns, tmp_path)
    assert pauses == (len(e.turns) - 1) // turns > 0
    trained_is_sampled(again, pieces.engine.heard)
    assert [(r.prefix.tolist(), r.key) for r, _ in pieces.engine.heard] == [
        (r.prefix.tolist(), r.key) for r, _ in whole.engine.heard
    ]
    for field in ("turns", "reward", "status", "text", "final_state", "uid", "group", "step", "error", "asked"):
        assert getattr(again, field) == getattr(e, field), field


@pytest.mark.parametrize("turns", [TURNS, TURNS + 1])
def test_a_limit_that_is_not_reached_leaves_nothing_open(turns: int) -> None:
    tokenizer, play = template("chatml"), Converse(say=lambda said: None)
    for seed in range(3):
        ctx = context(tokenizer, Heard(anything(tokenizer, seed)))
        assert played(ctx, play, begun(ctx, play, load_task("household").train[seed]), turns).status != Status.OPEN


def test_what_does_not_fit_ends_the_episode_when_it_goes_on(tmp_path: Path) -> None:
    tokenizer, play = template("none"), Converse(say=lambda said: None)
    task = load_task("household").train[0]
    whole, pieces = (context(tokenizer, Heard(anything(tokenizer), context=130)) for _ in range(2))
    start = begun(whole, play, task, turns=30)
    e = played(whole, play, start)
    again, _ = in_pieces(pieces, play, start, 1, tmp_path)
    assert again.status == e.status == Status.TRUNCATED and "overflow" in again.notes and again.turns == e.turns


class Forgets(Guess):
    """Another world each time it is reset."""

    resets = 0

    def reset(self, task: Task) -> Seen:
        self.resets += 1
        return replace(super().reset(task), state=f"born {self.resets}")


class Falls(Guess):
    """Cannot be reset a second time."""

    resets = 0

    def reset(self, task: Task) -> Seen:
        self.resets += 1
        if self.resets > 2:  # the first is for the prompt
            raise OSError("gone")
        return super().reset(task)


def test_a_world_that_is_another_one_when_it_is_played_again_is_refused(tmp_path: Path) -> None:
    tokenizer, play = template("chatml"), Converse(say=lambda said: None)
    play.free["guess"] = [Forgets()]
    ctx = context(tokenizer, Heard(anything(tokenizer)))
    start = begun(ctx, play, load_task("guess").train[0])
    with pytest.raises(ValueError, match=r"the state 'born 3' before turn 0, which was 'born 2'.*turns_a_step=0"):
        in_pieces(ctx, play, start, 1, tmp_path)


def test_a_world_that_fails_when_it_is_played_again_costs_its_episode(tmp_path: Path) -> None:
    tokenizer, play = template("chatml"), Converse(say=lambda said: None)
    play.free["guess"] = [Falls()]
    ctx = context(tokenizer, Heard(anything(tokenizer)))
    e, pauses = in_pieces(ctx, play, begun(ctx, play, load_task("guess").train[0]), 1, tmp_path)
    assert pauses == 1 and e.status == Status.ENV_ERROR and "gone" in e.error and len(e.turns) == 1


# ---- groups


def member(uid: int, group: str, status: Status = Status.OK) -> Episode:
    grown = Growing(uid, group, group, ask=Ask(Task(group, "1", "1", 1, "test"), 2))
    grown.begin(template("none").encode("a"))
    grown.act(template("none").encode("b"))
    return grown.finish(status, reward={"task": 1.0} if status.judged else {})


def test_a_group_waits_for_its_last_episode() -> None:
    a, b, c, d = member(1, "g"), member(2, "g", Status.OPEN), member(3, "h"), member(4, "h", Status.ENV_ERROR)
    whole, waiting = parted([], [a, b, c, d])
    assert whole == [c, d] and waiting == [a, b]
    still = replace(b, turns=b.turns * 2)
    assert parted(waiting, [still, member(5, "i")])[1] == [a, still]
    over = replace(b, status=Status.TRUNCATED)
    whole, waiting = parted(waiting, [over, member(5, "i", Status.OPEN)])
    assert [e.uid for e in whole] == [1, 2] and [e.uid for e in waiting] == [5]
    whole[0].reward["more"] = 1.0
    assert a.reward == {"task": 1.0}  # the step may fail: what waited is as it was


def test_open_episodes_keep_their_slots_and_groups_that_wait_their_tasks() -> None:
    asks = [Ask(Task(name, "1", "1", 1, "test"), 2) for name in "abcd"]
    three = [member(1, "b", Status.OPEN), member(2, "b"), member(3, "x", Status.OPEN), member(4, "x", Status.OPEN)]
    for waiting, new in ((three[:2], "acd"), (three[:3], "acd"), (three, "ac"), ([], "abcd")):
        assert "".join(a.group for a in in_free_slots(Context(open=waiting), asks)) == new
    assert [a.group for a in not_waiting(Context(open=three), asks)] == ["a", "c", "d"]
    assert not in_free_slots(Context(open=[member(i, f"w{i}", Status.OPEN) for i in range(7)]), asks)


def test_what_was_asked_must_be_known() -> None:
    lost = replace(member(1, "g", Status.OPEN), ask=None)
    with pytest.raises(ValueError, match=r"open episode 1 \(task 'g'\) is not known any more.*Put the data back"):
        further(Context(), lost)
    assert isinstance(further(Context(), member(1, "g", Status.OPEN)), Further)
