"""Evidence for memact: laws, mistakes, equivalences, resume, edited contexts, and numbers worked by hand."""

from typing import Any

import evidence
import numpy as np
import pytest
import torch
from drawing import IN_A_WORLD, steps_of
from hand import answer, batch_of, close
from in_worlds import Told, played, real_engine

from gruppo.data import Batch, Episode, Growing, Source, Status, pack
from gruppo.engines import Request
from gruppo.methods import method
from gruppo.methods.memact import Overrun, SomeSegments, WithMemory
from gruppo.policies import CharTokenizer
from gruppo.stages import Context
from gruppo.stages.credit import GroupNormalised

test_laws = evidence.laws("memact")
test_asks = evidence.asks("memact")
test_planted_mistakes = evidence.planted("memact")
test_equivalences = evidence.equivalences("memact")
test_resume = evidence.resume("memact")

MEMACT = method("memact")


class Script(Told):
    """Says these actions, one after the other; for one episode."""

    def __init__(self, *actions: str) -> None:
        left = iter(actions)
        super().__init__(lambda r: next(left))


def episode(*actions: str, **fields: Any) -> tuple[Episode, Script]:
    engine = Script(*actions)
    rollout = WithMemory(**{"withheld": 0.0, **fields})
    [e] = played(MEMACT.but(rollout=rollout), engine, "guess", samples=1, turns=len(actions))
    return e, engine


def text(ids: Any) -> str:
    return CharTokenizer().decode(ids)


def test_every_edit_begins_a_segment() -> None:
    """Two guesses, an edit, a guess: the second context is the goal, the note in place of the first record, and the
    rest with their numbers. Every sampled token is in one segment, once, and the prefix is what the engine saw."""
    e, engine = episode("9", "8", "drop 1 note not nine", "7")
    assert len(e.sequences) == 2 and [t.sequence for t in e.turns] == [0, 0, 0, 1]
    assert [set(t.flags) & {"edit", "void", "invalid"} for t in e.turns] == [set(), set(), {"edit"}, set()]
    goal, *lines = text(e.sequences[1].ids[: e.sequences[1].prompt_len]).splitlines()
    assert goal and [line.split(" : ")[0] for line in lines] == ["1", "2", "3"] and lines[0] == "1 : not nine"
    assert text(e.sequences[0].ids[: e.sequences[0].prompt_len]).splitlines()[-1].startswith("1 : ")
    for t, request in zip(e.turns, engine.asked, strict=True):
        assert e.sequences[t.sequence].ids[: t.start].tolist() == request.prefix.tolist()
    said = [text(e.sequences[t.sequence].ids[t.start : t.stop]) for t in e.turns]
    assert said == ["9", "8", "drop 1 note not nine", "7"]
    assert sum(int((s.source == Source.POLICY).sum()) for s in e.sequences) == sum(t.stop - t.start for t in e.turns)


@pytest.mark.parametrize("wrong", ["drop 9", "drop 2", "drop", "drop 0"])
def test_an_edit_that_cannot_be_is_said_and_cuts_nothing(wrong: str) -> None:
    """No such record, the newest one, none at all, or the task itself."""
    e, _ = episode("9", wrong, "7")
    assert len(e.sequences) == 1 and "invalid" in e.turns[1].flags and "edit" not in e.turns[1].flags


def test_without_edits_there_is_one_segment() -> None:
    assert len(episode("9", "8", "7")[0].sequences) == 1
    e, _ = episode("9", "8", "drop 1 note not nine", "7", withheld=1.0)  # the tool is not there
    assert len(e.sequences) == 1 and "edit" not in e.turns[2].flags


def test_the_tool_is_withheld_in_half_of_the_episodes() -> None:
    def edits(r: Request) -> str:
        return "drop 1" if text(r.prefix).count("9") else "9"

    found = played(MEMACT, Told(edits), "guess", samples=60, turns=3)
    assert 20 <= sum(len(e.sequences) > 1 for e in found) <= 40


def test_a_context_that_outgrows_its_words_ends_the_episode() -> None:
    short, _ = episode("9", "8", "7", "6", memory_words=18)
    assert short.status == Status.TRUNCATED and len(short.turns) < 4
    assert short.reward == {"task": 0.0, "overrun": -0.1} and not any(t.reward for t in short.turns)
    longer, _ = episode("9", "drop 1", "8", "6", memory_words=30)
    assert len(longer.turns) == 4


def test_overrun() -> None:
    episodes = [answer(i, "g", 1, 0.0, status=s) for i, s in enumerate((Status.OK, Status.TRUNCATED, Status.INVALID))]
    close(Overrun()(Context(), episodes)["overrun"].tolist(), [0.0, -0.1, 0.0])


def in_segments(uid: int, segments: int, group: str = "g", reward: float = 1.0, **fields: Any) -> Episode:
    grown = Growing(uid, "t", group)
    for i in range(segments):
        grown.begin(np.array([1, 2 + i]))
        grown.act(np.array([5]), np.full(1, -1.0, np.float32), 0)
    return grown.finish(fields.pop("status", Status.OK), reward={"task": reward}, **fields)


def times(segments: int, *episodes: Episode, step: int = 0) -> list[list[int]]:
    """How often each segment of each episode is drawn."""
    batch = pack(episodes)
    drawn = SomeSegments(segments).drawn(Context(step=step), batch)
    return [drawn[batch.episode_S == e].tolist() for e in range(len(episodes))]


def test_a_trajectory_counts_once_however_many_segments_it_has() -> None:
    """R = 1 in three segments, 0 and 0: mean 1/3, std 1/√3: A = 2/√3 in all three, −1/√3."""
    episodes = [in_segments(0, 3), in_segments(1, 1, reward=0.0), in_segments(2, 1, reward=0.0)]
    adv = GroupNormalised()(Context(), pack(episodes))["adv_N"].tolist()
    close(adv, [2 / 3**0.5] * 3 + [-1 / 3**0.5] * 2, 1e-5)


def test_segments_are_drawn_round_by_round() -> None:
    three = (in_segments(0, 4), in_segments(1, 1), in_segments(2, 2))
    for step in range(5):
        assert [sum(t) for t in times(3, *three, step=step)] == [1, 1, 1]  # one each
        assert sorted(sum(t) for t in times(2, *three, step=step)) == [0, 1, 1]  # fewer than trajectories
        assert [sum(t) for t in times(5, *three, step=step)] == [2, 1, 2] and max(times(5, *three, step=step)[0]) == 1
        assert times(7, *three, step=step) == [[1] * 4, [1], [1] * 2]  # all of them
        assert sum(map(sum, times(9, *three, step=step))) == 9  # two of them again
    assert len({str(times(3, *three, step=s)) for s in range(20)}) > 3


def test_groups_are_drawn_from_apart_and_failed_episodes_never() -> None:
    found = times(4, in_segments(0, 2), in_segments(1, 1, "h"), in_segments(2, 2, status=Status.ENV_ERROR))
    assert [sum(t) for t in found] == [4, 4, 0]
    nothing = in_segments(3, 1)
    nothing.sequences[0].source[:] = Source.ENV
    assert times(4, nothing) == [[0]] or sum(times(4, nothing)[0]) == 0


def test_a_mean_over_draws() -> None:
    """Three draws of two segments: weights 4/3 and 2/3, so that a mean over sequences divides by three."""
    batch: Batch = batch_of([in_segments(0, 2)])
    keep, weight = SomeSegments(3).tokens(Context(), batch, None)  # type: ignore[arg-type]
    assert keep.tolist() == [True, True]
    close(sorted(weight.tolist()), [2 / 3, 4 / 3])
    one, _ = SomeSegments(1).tokens(Context(), batch, None)  # type: ignore[arg-type]
    assert sorted(one.tolist()) == [False, True]


def test_what_is_learned_is_what_was_sampled() -> None:
    """With a real engine, under the prefix that the policy saw, records and their numbers included."""
    engine = real_engine()
    for e in played(MEMACT, engine, "guess", samples=4, turns=3):
        for t in e.turns:
            s = e.sequences[t.sequence]
            [logp] = engine.logprobs([s.ids[: t.start]], [s.ids[t.start : t.stop]])
            np.testing.assert_allclose(logp, s.logp[t.start : t.stop], atol=1e-6)


def test_games_are_refused_and_windows_too() -> None:
    with pytest.raises(ValueError, match="a memory is for one agent"):
        played(MEMACT, real_engine(), "kuhn", samples=1)
    with pytest.raises(ValueError, match=r"task\.window=1.*Leave the window out"):
        steps_of(MEMACT, *IN_A_WORLD, "task.window=1")


def test_it_trains_in_a_world() -> None:
    _, records = steps_of(MEMACT, *IN_A_WORLD, "sampling.max_tokens=6", steps=2)
    assert records[1].facts["turns"] > 1 and records[1].facts["reward/overrun"] < 0
    assert torch.isfinite(torch.tensor(records[1].facts["grad_norm"]))
