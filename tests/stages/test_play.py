"""How an episode is played: starts and forks, in any mixture, in any order of ends; windows that leave one open."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rooms import TOKENS, Says, context, prompt, task

from gruppo.data import Episode, Note, Source, Status, pack
from gruppo.engines.base import Completion, Request
from gruppo.engines.native import NativeEngine
from gruppo.policies import TinyConfig, TinyTransformer
from gruppo.stages import Ask, Context, Sampling
from gruppo.stages.play import Fork, Start, episode_of, episode_uid, nodes_of, one_answer, sampling_for, starts_of

ASK = Ask(task(3), 2, index=3, notes={"level": 2.0})
LONG = Sampling(max_tokens=9, temperature=0.8)


def sampler(seed: int = 0) -> NativeEngine:
    """An engine that really samples, from a small random model to which <eos> is likely."""
    config = TinyConfig(vocab=TOKENS.vocab, dim=8, layers=1, heads=2, ffn=12, context=64)
    policy = TinyTransformer(config, seed).double()
    with torch.no_grad():
        for w in policy.parameters():
            if w.dim() > 1:
                w.mul_(20)
        policy.model.embed_tokens.weight[TOKENS.eos] *= 2.5
    return NativeEngine({"policy": policy}, eos=(TOKENS.eos,))


def played(ctx: Context, starts: Sequence[Any], window: int = 0) -> list[Episode]:
    return asyncio.run(ctx.play(starts, window=window))


def same(a: Episode, b: Episode) -> None:
    """Every token and every number of two episodes, bit for bit."""
    [s], [t] = a.sequences, b.sequences
    for name in ("ids", "source", "logp", "version", "temperature", "node"):
        x, y = getattr(s, name), getattr(t, name)
        assert (x is None) == (y is None), name
        assert x is None or (x.dtype == y.dtype and x.tobytes() == y.tobytes()), name
    assert (a.uid, a.task, a.group, a.status, a.text, a.index) == (b.uid, b.task, b.group, b.status, b.text, b.index)
    assert [(u.start, u.stop, u.obs_stop) for u in a.turns] == [(u.start, u.stop, u.obs_stop) for u in b.turns]


# starts


def test_one_start_for_every_sample_and_what_is_a_start_stays() -> None:
    ctx = context(sampling=LONG)
    p, q = prompt(ASK), prompt(Ask(task(1), 3, how={"top_k": 4, "hint": 1}))
    [own] = starts_of(ctx, [replace(p, samples=1)])
    assert isinstance(own, Start) and own.prefix is p.ids
    made = starts_of(ctx, [p, own, q])
    assert made[2] is own and [s.uid for s in made[:2]] == [episode_uid(ctx, p, 0, i) for i in range(2)]
    assert [s.uid for s in made[3:]] == [episode_uid(ctx, q, 1, i) for i in range(3)]  # starts have no number
    assert {s.sampling for s in made[3:]} == {sampling_for(ctx, q.ask)} == {replace(LONG, top_k=4)}


def test_an_episode_knows_what_asked_for_it() -> None:
    for e in played(context(step=5), [prompt(ASK)]):
        assert e.ask is ASK and (e.index, e.step, e.domain) == (3, 5, ASK.task.domain)
        assert e.notes["level"].values.tolist() == [2.0] and not e.rewarded


def test_an_episode_of_given_ids() -> None:
    e = episode_of(context(), prompt(ASK), 7, np.array([9, 2]), np.full(2, np.nan), -1, source=Source.EXPERT)
    assert (e.uid, e.source, e.ask) == (7, Source.EXPERT, ASK)
    assert e.sequences[0].source[-2:].tolist() == [Source.EXPERT] * 2


# order


class Late:
    """Ends requests in an order of its own; the ids of an answer say which request it was."""

    version, sampled = 0, 0

    def __init__(self, order: Sequence[int]) -> None:
        self.order = order

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Completion]]:
        for i in self.order:
            yield i, Completion(np.array([30 + i, TOKENS.eos]), np.full(2, -1.0), np.zeros(2, np.int32), "stop")


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]])
def test_results_are_in_the_order_of_the_starts_whatever_ends_first(order: list[int]) -> None:
    ctx = context(engine=Late(order))
    p, q = prompt(ASK), prompt(Ask(task(1), 1))
    path = played(context(), [prompt(Ask(task(7), 1))])[0]
    made = played(ctx, [p, Fork(path, len(path.sequences[0].ids) - 1, 55, LONG), q])
    assert [e.task for e in made] == ["t3", "t3", "t7", "t1"]
    assert [int(e.sequences[0].ids[-2]) for e in made] == [30, 31, 32, 33]
    assert [e.uid for e in made] == [*(episode_uid(ctx, p, 0, i) for i in range(2)), 55, episode_uid(ctx, q, 1, 0)]


def test_the_player_says_which_start_has_ended() -> None:
    async def pairs() -> list[tuple[int, Episode]]:
        ctx = context(engine=Late([1, 0]))
        return [pair async for pair in one_answer(ctx, starts_of(ctx, [prompt(ASK)]))]

    assert [(i, int(e.sequences[0].ids[-2])) for i, e in asyncio.run(pairs())] == [(1, 31), (0, 30)]


def test_nothing_to_play() -> None:
    assert played(context(), []) == []


# forks


def forked(given: str = "", source: Source = Source.INJECTED, uid: int = 99) -> tuple[Context, Episode, Episode]:
    """An answer of at least five tokens, and a sibling that parts from it after two."""
    ctx = context(engine=sampler(), sampling=replace(LONG, temperature=1.0))
    path = next(e for e in played(ctx, [prompt(replace(ASK, samples=8))]) if e.tokens > 4)
    at = path.sequences[0].prompt_len + 2
    path.reward, path.answer, path.rewarded = {"task": 1.0}, "6", True
    path.notes |= {"adv": Note(np.ones(path.tokens, np.float32), "N")}
    fork = Fork(path, at, uid, LONG, TOKENS.encode(given), source)
    assert fork.prefix.tolist() == [*path.sequences[0].ids[:at], *TOKENS.encode(given)]
    return ctx, path, played(ctx, [fork])[0]


def test_siblings_share_the_nodes_of_what_they_share_and_no_other() -> None:
    ctx, path, sibling = forked()
    third = played(ctx, [Fork(sibling, path.sequences[0].prompt_len + 3, 100, LONG)])[0]
    assert third.sequences[0].ids[: path.sequences[0].prompt_len + 2].tolist() == (
        path.sequences[0].ids[: path.sequences[0].prompt_len + 2].tolist()
    )
    batch = pack([replace(e, notes={}) for e in (path, sibling, third)])
    node = [batch.node_N[batch.episode_N == i].tolist() for i in range(3)]
    assert node[1][:2] == node[0][:2] and node[2][:3] == node[1][:3]
    alone = [*node[0], *node[1][2:], *node[2][3:]]
    assert len(set(alone)) == len(alone)
    for e, mine in zip((path, sibling, third), node, strict=True):
        made = nodes_of(e)
        assert made[made != -1].tolist() == mine


def test_a_sibling_is_a_new_episode_of_the_same_task() -> None:
    """It has neither the rewards nor the answer of the old ending, and of its notes those of the episode as a whole."""
    _, path, sibling = forked()
    assert (sibling.uid, sibling.task, sibling.group, sibling.index) == (99, path.task, path.group, 3)
    assert sibling.ask is path.ask and not sibling.rewarded and sibling.reward == {} and sibling.answer == ""
    assert list(sibling.notes) == ["level"] and path.reward == {"task": 1.0} and set(path.notes) == {"level", "adv"}
    s = sibling.sequences[0]
    assert sibling.text == TOKENS.decode(s.ids[s.prompt_len :])
    assert s.temperature is not None and s.temperature[: s.prompt_len + 2].tolist() == [1.0] * (s.prompt_len + 2)
    assert set(s.temperature[s.prompt_len + 2 :].tolist()) == {np.float32(0.8)}


@pytest.mark.parametrize("source", [Source.INJECTED, Source.HINT, Source.EXPERT])
def test_given_tokens_have_their_source_and_nobody_sampled_them(source: Source) -> None:
    _, path, sibling = forked("=7", source)
    s, at = sibling.sequences[0], path.sequences[0].prompt_len + 2
    assert s.ids[at : at + 2].tolist() == TOKENS.encode("=7").tolist()
    assert s.source[at - 1 : at + 3].tolist() == [Source.POLICY, source, source, Source.POLICY]
    assert np.isnan(s.logp[at : at + 2]).all() and np.isfinite(s.logp[at + 2 :]).all()
    assert s.version[at : at + 2].tolist() == [-1, -1] and "=7" in sibling.text
    assert s.node is not None and (s.node[: s.prompt_len] == -1).all() and (s.node[at:] == -1).all()


def test_given_tokens_are_injected_unless_told() -> None:
    _, path, sibling = forked("=")
    assert sibling.sequences[0].source[path.sequences[0].prompt_len + 2] == Source.INJECTED


def test_another_uid_has_luck_of_its_own() -> None:
    ends = {tuple(forked(uid=uid)[2].sequences[0].ids.tolist()) for uid in (5, 6, 7, 8)}
    assert len(ends) > 1


# windows


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("sampling", [LONG, Sampling(9, temperature=1.4, top_k=12)], ids=["warm", "truncated"])
def test_an_episode_goes_on_bit_for_bit_as_if_it_had_not_been_cut(window: int, sampling: Sampling) -> None:
    ctx = context(engine=sampler(), sampling=sampling)
    starts = starts_of(ctx, [prompt(replace(ASK, samples=12))])
    whole = played(ctx, starts)
    assert {e.status for e in whole} == {Status.OK, Status.TRUNCATED}  # of both kinds
    now, rounds = played(ctx, starts, window), 1
    assert any(e.status == Status.OPEN for e in now)
    while any(e.status == Status.OPEN for e in now):
        for e in (e for e in now if e.status == Status.OPEN):
            assert e.tokens == rounds * window < sampling.max_tokens and e.reward == {}
        further = [
            Fork(e, len(e.sequences[0].ids), e.uid, replace(sampling, max_tokens=sampling.max_tokens - e.tokens))
            if e.status == Status.OPEN
            else e
            for e in now
        ]
        forks = iter(played(ctx, [f for f in further if isinstance(f, Fork)], window))
        now, rounds = [next(forks) if isinstance(f, Fork) else f for f in further], rounds + 1
    assert rounds == -(-sampling.max_tokens // window)
    for a, b in zip(whole, now, strict=True):
        same(a, b)
        if sampling.top_k:
            assert a.sequences[0].allowed is not None and b.sequences[0].allowed is not None
            assert {k: sorted(v.tolist()) for k, v in a.sequences[0].allowed.items()} == {
                k: sorted(v.tolist()) for k, v in b.sequences[0].allowed.items()
            }


def test_a_window_that_is_as_long_as_the_answer_may_be_leaves_nothing_open() -> None:
    ctx = context(engine=sampler(), sampling=LONG)
    starts = starts_of(ctx, [prompt(replace(ASK, samples=12))])
    for a, b in zip(played(ctx, starts), played(ctx, starts, window=9), strict=True):
        same(a, b)


@pytest.mark.parametrize(("window", "statuses"), [(0, ["OK", "TRUNCATED"]), (2, ["OPEN", "OPEN"]), (3, ["OK", "OPEN"])])
def test_open_is_what_may_go_on(window: int, statuses: list[str]) -> None:
    """ "ab<eos>" in three tokens, and "abcd" that is cut off after four."""
    made = []
    for engine, most in ((Says("ab"), 4), (Says("abcd", eos=False), 4)):
        ctx = context(engine=engine, sampling=Sampling(max_tokens=most))
        made += played(ctx, [prompt(replace(ASK, samples=1))], window)
        assert engine.heard[0].max_tokens == (window or most)
    assert [e.status.name for e in made] == statuses


# mixed lists, as t_ppo plays them


def test_prompts_and_forks_of_open_answers_in_one_list_are_each_what_they_are_alone() -> None:
    ctx = context(engine=sampler(), sampling=LONG)
    p = prompt(replace(ASK, samples=6))
    first = [e for e in played(ctx, [p], window=3) if e.status == Status.OPEN]
    forks = [Fork(e, len(e.sequences[0].ids), e.uid, replace(LONG, max_tokens=6)) for e in first]
    q = prompt(Ask(task(1), 3))
    both = played(ctx, [*forks, q])
    for a, b in zip(both, [*played(ctx, forks), *played(ctx, [q])], strict=True):
        same(a, b)
    assert len(both) == len(forks) + 3 and len({e.uid for e in both}) == len(both)
