"""Edges of rollouts that go on from what was drawn: s_grpo's exits, spo_segment's continuations, t_ppo's windows."""

import asyncio
import math
import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest
from drawing import TOKENS, Scripted, bench, rolled, task
from hand import answer

from gruppo.data import Episode, Note, Status, Use
from gruppo.engines.base import Completion, Request
from gruppo.methods import method
from gruppo.methods.s_grpo import S_GRPO, SerialGroup, exit_at
from gruppo.methods.spo_segment import SPO_SEGMENT, Segments, gains
from gruppo.methods.t_ppo import T_PPO, Windowed, further, goes_on
from gruppo.stages import Ask, Context, Method, Sampling
from gruppo.stages.prompting import prompts_for

TASKS = [task(i) for i in range(3)]


class Cut(Scripted):
    """Says what it is told, and stops where the request ends."""

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Completion]]:
        async for i, c in super().generate(requests):
            n = requests[i].max_tokens
            yield i, c if len(c.ids) <= n else Completion(c.ids[:n], c.logp[:n], c.version[:n], "length")


def writes(text: str) -> Any:
    """A script that writes this after every prompt, and goes on with it where a part stands there already."""
    return lambda prompt, request: text[len(prompt.split("=", 1)[1]) :]


def cutting(m: Method, text: str, max_tokens: int, **fields: Any) -> Context:
    ctx = bench(m, lambda p, r: "", lambda e: 1.0, sampling=Sampling(max_tokens=max_tokens), **fields)
    ctx.engine = Cut(writes(text))
    return ctx


# s_grpo


def test_s_grpo_a_path_is_left_at_samples_less_one_places() -> None:
    """A path of nine tokens, an inducer of two, nine in all: it can be left after one to six of its tokens."""
    m = S_GRPO.but(rollout=SerialGroup(inducer=";;", answer_tokens=99))
    for samples, exits in ((2, 1), (3, 2), (7, 6), (99, 6)):
        ctx = cutting(m, "abcdefgh", 9)
        episodes = rolled(m, ctx, TASKS, samples)
        assert len(episodes) == len({e.uid for e in episodes}) == 3 * (1 + exits)  # each with luck of its own
        for path in episodes[:3]:
            mine = [e for e in episodes[3:] if e.group == path.group]
            at = [int(e.notes["exit"].values[0]) - path.sequences[0].prompt_len for e in mine]
            assert at == (sorted(set(at)) if exits < 6 else [1, 2, 3, 4, 5, 6]) and len(at) == exits
            assert path.notes["exit"].values.tolist() == [len(path.sequences[0].ids)]
        start = len(ctx.engine.heard[0].prefix)
        for r in ctx.engine.heard[3:]:  # what the path has used and the inducer are not there to answer in
            assert len(r.prefix) - start + r.max_tokens == 9
    assert exit_at(7).values.tolist() == [7.0] and exit_at(7).values.dtype == np.float32


def test_s_grpo_every_path_is_left_at_places_of_its_own() -> None:
    episodes = rolled(S_GRPO, cutting(S_GRPO, "abcdefghijklm", 16), [task(i) for i in range(10)], 3)
    places: dict[str, list[float]] = {}
    for e in episodes[10:]:
        places.setdefault(e.group, []).append(float(e.notes["exit"].values[0]))
    assert len(places) == 10 and len({tuple(p) for p in places.values()}) > 5


def test_s_grpo_needs_a_token_of_the_path_and_one_to_answer() -> None:
    rollout, given = SerialGroup(inducer=";;"), TOKENS.encode(";;")
    assert rollout.room(Sampling(max_tokens=4), given) == 2
    with pytest.raises(ValueError, match="has 2 tokens, and an answer max_tokens=3: no exit"):
        rollout.room(Sampling(max_tokens=3), given)


# spo_segment


def test_spo_tries_every_state_with_luck_of_its_own() -> None:
    """Five unsure tokens, cuts at the prompt and before the second and the fourth: three states a task, as both answers
    are the same. What is tried is no answer of the group, and no longer than one may be."""
    m = SPO_SEGMENT.but(rollout=Segments(interval=2, probes=3))
    ctx = cutting(m, "abcd", 7)
    episodes = rolled(m, ctx, TASKS, 2)
    paths, probes = episodes[:6], episodes[6:]
    assert [e.use for e in episodes] == [Use.LEARN] * 6 + [Use.NONE] * 27
    assert len({e.uid for e in episodes}) == 33
    start = paths[0].sequences[0].prompt_len
    assert [len(r.prefix) - start for r in ctx.engine.heard[6:15]] == [0, 0, 0, 1, 1, 1, 3, 3, 3]
    assert {len(r.prefix) - start + r.max_tokens for r in ctx.engine.heard} == {7}
    assert all(e.sequences[0].ids.tolist() == paths[0].sequences[0].ids.tolist() for e in probes if e.task == "t0")
    for path in paths:
        for name, values in (("gain", [0.0] * 5), ("unsure", [1.0] * 5)):  # right always: no piece changes the odds
            note = path.notes[name]
            assert (note.values.tolist(), note.level, note.values.dtype) == (values, "N", np.float32)


def test_spo_a_value_that_nobody_knows_is_quiet() -> None:
    path = answer(0, "g", 4, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gains(path, {2: [math.nan], 4: [0.25]})
    assert np.isnan(found[:4]).all() and found[4:].tolist() == [0.75] * 2 and found.dtype == np.float32


def test_spo_settings_at_their_bounds() -> None:
    """sure = 1: every token that was sampled with a probability below 1."""
    path = answer(0, "g", 3, 1.0)
    path.sequences[0].logp[2:] = [-1e-3, 0.0, -2.0]
    assert Segments(sure=1.0, interval=1, probes=1).unsure(path)[2:].tolist() == [True, False, True]
    for wrong in ({"sure": 0.0}, {"sure": 1.5}, {"interval": 0}, {"probes": 0}):
        [(name, value)] = wrong.items()
        with pytest.raises(ValueError, match=f"{name}={value} has no meaning here"):
            Segments(**wrong)


# t_ppo


def windows(ctx: Context, samples: int = 1, m: Method = T_PPO) -> list[Episode]:
    return asyncio.run(m.rollout(ctx, prompts_for(ctx, m.prompting, Ask(TASKS[0], samples))))


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("ab", [Status.OK]),
        ("abcdefgh", [Status.OPEN, Status.OK]),
        ("abcdefghijkl", [Status.OPEN, Status.TRUNCATED]),  # its second window ends where any answer must
    ],
)
def test_t_ppo_what_is_not_finished_goes_on(text: str, ends: list[Status]) -> None:
    """Nine tokens at most, so windows of five and four. It is the same answer: its number and its notes stay."""
    replay: list[Episode] = []
    for step, status in enumerate(ends):
        ctx = cutting(T_PPO, text, 9, step=step, replay=replay)
        [e] = windows(ctx)
        assert e.status == status and e.text == text[: 5 if status == Status.OPEN else 9]
        e.notes = {"of": Note(np.ones(1, np.float32)), "adv": Note(np.ones(e.tokens, np.float32), "N")}
        if replay:
            assert e.uid == replay[0].uid and ctx.engine.heard[0].max_tokens == 4
        replay = [e]


def test_t_ppo_notes_of_the_answer_go_on_and_those_of_its_tokens_do_not() -> None:
    [e] = windows(cutting(T_PPO, "abcdefgh", 9))
    e.notes = {"of": Note(np.full(1, 3.0, np.float32)), "adv": Note(np.ones(e.tokens, np.float32), "N")}
    [on] = windows(cutting(T_PPO, "abcdefgh", 9, replay=[e]))
    assert on.tokens == 9 and set(on.notes) == {"of"} and on.notes["of"].values.tolist() == [3.0]


@pytest.mark.parametrize(
    ("waiting", "round", "fresh", "on"), [(0, 0, 4, 0), (1, 0, 3, 1), (4, 0, 0, 4), (5, 0, 0, 5), (2, 1, 4, 0)]
)
def test_t_ppo_fills_the_places_that_are_free(waiting: int, round: int, fresh: int, on: int) -> None:
    """Of four places; a draw again of the same step does not go on a second time."""
    before = windows(cutting(T_PPO, "abcdefgh", 9), samples=5)[:waiting]
    store = T_PPO.replay.put(Context(), [], [*before, answer(99, "g", 3, 1.0)])  # what has ended does not go on
    replay = T_PPO.replay.get(Context(step=6), store)
    got = windows(cutting(T_PPO, "abcdefgh", 9, step=6, round=round, replay=replay), samples=4)
    assert [e.tokens for e in got] == [5] * fresh + [9] * on
    assert [e.uid for e in got[fresh:]] == [e.uid for e in before[:on]]


@pytest.mark.parametrize(("most", "window"), [(1, 1), (2, 1), (8, 4), (9, 5)])
def test_t_ppo_a_window_is_half_of_an_answer_and_never_nothing(most: int, window: int) -> None:

    def heard(m: Method, allowed: int) -> list[int]:
        ctx = cutting(m, "abcdefghijkl", most)
        asyncio.run(m.rollout(ctx, prompts_for(ctx, m.prompting, Ask(TASKS[0], 1, how={"max_tokens": allowed}))))
        return [r.max_tokens for r in ctx.engine.heard]

    assert heard(T_PPO, 99) == [window]
    assert heard(T_PPO.but(rollout=Windowed(window_tokens=3)), 2) == [2]


def test_t_ppo_who_goes_on_and_how() -> None:
    """An open answer of one sequence, at the temperature of its last token, as far as an answer may go."""
    e = answer(7, "g", 3, None, status=Status.OPEN)
    two = answer(8, "g", 3, None, status=Status.OPEN)
    two.sequences = two.sequences * 2
    assert goes_on(e) and not goes_on(two) and not goes_on(answer(9, "g", 3, 1.0))
    ctx = Context(tokenizer=TOKENS, sampling=Sampling(max_tokens=9, temperature=0.25))
    r = further(ctx, e)
    assert (r.sampling.max_tokens, r.sampling.temperature, r.uid) == (6, 1.0, 7)
    assert r.prefix.tolist() == e.sequences[0].ids.tolist()
    e.sequences[0].temperature = np.array([1.0, 1.0, 0.5, 0.5, 0.75], np.float32)
    assert further(ctx, e).sampling.temperature == 0.75
    for most, left in ((4, 1), (3, 1), (2, 1)):  # it is as long as it may be, or longer since the run was changed
        ctx.sampling = Sampling(max_tokens=most)
        assert further(ctx, e).sampling.max_tokens == left


def test_t_ppo_asks_the_critic() -> None:
    assert [n.column for n in method("t_ppo").credit.needs(Context())] == ["value_critic_N"]
