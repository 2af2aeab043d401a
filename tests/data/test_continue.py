"""A sequence is cut and goes on; an answer of one turn becomes one of several."""

import asyncio
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import LAW, answer, random_sequence

from gruppo.data import Episode, Note, Sequence, Source, Status, in_steps, pack
from gruppo.engines.base import Completion, complete
from gruppo.lab.laws.desk import Desk
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.policies import CharTokenizer
from gruppo.stages import Context, Sampling
from gruppo.stages.play import Fork, nodes_of, request_after
from gruppo.stages.rollout import Group, step_ends


def same(a: Sequence, b: Sequence) -> bool:
    def equal(x: object, y: object) -> bool:
        if isinstance(x, dict) and isinstance(y, dict):
            return x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x)
        return (x is None and y is None) or bool(np.array_equal(x, y, equal_nan=isinstance(x, np.ndarray)))  # type: ignore[arg-type]

    return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Sequence))


# ---- upto and extended


@LAW
@given(st.integers(0, 2**32 - 1), st.data())
def test_a_sequence_that_was_cut_and_goes_on_is_the_sequence(seed: int, data: st.DataObject) -> None:
    whole, _ = random_sequence(np.random.default_rng(seed), 7)
    whole = replace(whole, node=None if whole.node is None else np.full(len(whole.ids), -1))
    at = data.draw(st.integers(whole.prompt_len, len(whole.ids)))
    back = whole.upto(at)
    assert len(back.ids) == at and not any(p >= at for p in back.allowed or {})
    for i in range(at, len(whole.ids)):
        warm = 1.0 if whole.temperature is None else float(whole.temperature[i])
        some = None if whole.allowed is None else [whole.allowed[i]] if i in whole.allowed else []
        back = back.extended(
            whole.ids[i : i + 1], Source(int(whole.source[i])), whole.logp[i : i + 1], int(whole.version[i]), warm, some
        )
    assert same(back, whole)


def test_tokens_that_nobody_sampled() -> None:
    s = answer(1, 2).sequences[0].extended(np.array([5, 6]), Source.INJECTED)
    assert s.ids.tolist() == [1, 2, 10, 11, 5, 6] and s.source.tolist()[-2:] == [Source.INJECTED] * 2
    assert np.isnan(s.logp[-2:]).all() and s.version.tolist() == [-1, -1, 0, 0, -1, -1]
    assert s.temperature is None and s.allowed is None and s.node is None


def test_a_temperature_or_a_truncation_comes_with_the_first_token_that_has_one() -> None:
    warm = (
        answer(1, 2).sequences[0].extended(np.array([5]), Source.POLICY, np.array([-1.0]), 3, 0.5, [np.array([5, 6])])
    )
    assert warm.temperature is not None and warm.temperature.tolist() == [1, 1, 1, 1, 0.5]
    assert warm.allowed is not None and {p: x.tolist() for p, x in warm.allowed.items()} == {4: [5, 6]}
    cold = warm.upto(4).extended(np.array([9]), Source.POLICY, np.array([-2.0]), 4)
    assert cold.temperature is not None and cold.temperature.tolist() == [1, 1, 1, 1, 1] and cold.allowed == {}
    assert cold.version.tolist() == [-1, -1, 0, 0, 4]


@pytest.mark.parametrize("at", [1, 6])
def test_a_prompt_is_never_cut(at: int) -> None:
    with pytest.raises(ValueError, match=f"of 5 ids, 2 of them its prompt, cannot be cut at {at}.*Use 2 to 5"):
        answer(1, 3).sequences[0].upto(at)


# ---- forks


def desk() -> Desk:
    return Desk(World(method("grpo"), 0))


def fork(made: Desk, cut: int, uid: int, given: str = "") -> tuple[Episode, Episode, Completion]:
    """The first episode that is long enough, and its sibling that parts from it after `cut` tokens."""
    path, ctx = next(e for e in made.episodes(Group()) if e.tokens > cut + 1), made.ctx
    path.reward, path.answer = {"task": 1.0}, "7"
    path.notes = {"rate": Note(np.ones(1, np.float32)), "adv": Note(np.ones(path.tokens, np.float32), "N")}
    at, how = path.sequences[0].prompt_len + cut, Sampling(4, temperature=0.7)
    parted = Fork(path, at, uid, how, ctx.tokenizer.encode(given))
    request = request_after(ctx, parted.prefix, uid, how)
    assert (request.key, request.max_tokens, request.temperature) == (uid, 4, 0.7)
    assert request.prefix.tolist() == [*path.sequences[0].ids[:at], *ctx.tokenizer.encode(given)]
    [done] = asyncio.run(complete(ctx.engine, [request]))
    return path, parted.ended(ctx, request, done), done


def test_a_sibling_is_the_path_up_to_the_cut_then_what_was_given_then_what_was_sampled() -> None:
    made = desk()
    path, sibling, done = fork(made, 3, 99, given="=")
    s, t, at = path.sequences[0], sibling.sequences[0], path.sequences[0].prompt_len + 3
    assert (sibling.uid, sibling.task, sibling.group, sibling.use) == (99, path.task, path.group, path.use)
    assert sibling.ask is path.ask and sibling.index == path.index and not sibling.rewarded
    assert t.ids.tolist() == [*s.ids[:at], *made.ctx.tokenizer.encode("="), *done.ids]
    assert t.source[at:].tolist() == [Source.INJECTED] + [Source.POLICY] * len(done.ids)
    assert np.array_equal(t.logp[: at + 1], [*s.logp[:at], np.nan], equal_nan=True)
    assert np.array_equal(t.logp[at + 1 :], done.logp.astype(np.float32))
    assert t.temperature is not None and t.temperature[: at + 1].tolist() == [1.0] * (at + 1)
    assert np.allclose(t.temperature[at + 1 :], 0.7)
    assert sibling.text == made.ctx.tokenizer.decode(t.ids[t.prompt_len :]) and sibling.reward == {}
    assert sibling.answer == "" and list(sibling.notes) == ["rate"]  # of the episode as a whole
    assert sibling.status == (Status.OK if done.reason == "stop" else Status.TRUNCATED)
    [turn] = sibling.turns
    assert (turn.start, turn.stop, turn.obs_stop) == (t.prompt_len, len(t.ids), t.prompt_len)


def test_what_siblings_share_has_one_node_and_nothing_else_has() -> None:
    made = desk()
    path, sibling, _ = fork(made, 3, 99)
    grandchild_at = sibling.sequences[0].prompt_len + 4
    last = sibling.sequences[0].ids[grandchild_at:]
    tail = Completion(last + 1, np.full(len(last), -1.0), np.zeros(len(last), np.int32), "length")
    third = Fork(sibling, grandchild_at, 100, Sampling(4))
    request = request_after(made.ctx, third.prefix, third.uid, third.sampling)
    batch = pack([replace(e, notes={}) for e in (path, sibling, third.ended(made.ctx, request, tail))])
    node = [batch.node_N[batch.episode_N == e].tolist() for e in range(3)]
    assert node[0] == batch.uid_N[batch.episode_N == 0].tolist()  # the path itself needs no mark
    assert node[1][:3] == node[0][:3] and node[2][:4] == node[1][:4]
    alone = [*node[0], *node[1][3:], *node[2][4:]]
    assert len(set(alone)) == len(alone)


def test_nodes_are_those_of_packing_also_where_the_prompt_is_another() -> None:
    hinted = answer(5, 3, prompt_source=np.array([Source.ENV, Source.HINT], np.int8))
    for e in (hinted, replace(hinted, sequences=[replace(hinted.sequences[0], train_as=np.array([1, 2, 3]))])):
        batch = pack([e])
        mine = nodes_of(e)
        assert mine[mine != -1].tolist() == batch.node_N.tolist()


def test_an_episode_that_goes_on_under_its_own_name_shares_nothing() -> None:
    e = answer(5, 3, reward={"task": 1.0}, answer="7")
    done = Completion(np.array([20, 2]), np.array([-1.0, -1.0]), np.full(2, 3, np.int32), "stop")
    ctx, rest = desk().ctx, Fork(e, len(e.sequences[0].ids), e.uid, Sampling(2))
    on = rest.ended(ctx, request_after(ctx, rest.prefix, rest.uid, rest.sampling), done)
    assert on.uid == 5 and on.sequences[0].node is None and on.reward == {} and on.answer == ""
    assert on.sequences[0].version.tolist() == [-1, -1, 0, 0, 0, 3, 3]
    assert pack([on]).uid_N[:3].tolist() == pack([e]).uid_N.tolist()  # its decisions keep their keys


# ---- steps of an answer


def test_steps_end_after_the_separator() -> None:
    ctx, tokenizer = Context(tokenizer=CharTokenizer()), CharTokenizer()

    def ends(text: str, separator: str) -> list[int]:
        return step_ends(ctx, np.append(tokenizer.encode(text), tokenizer.eos), separator)

    assert ends("13 22 26", " ") == [3, 6]
    assert ends("a\n\nb\n\nc", "\n\n") == [3, 6]  # two tokens
    assert ends("26", " ") == []
    assert ends("13 ", " ") == []  # what is left is the end of the answer alone
    assert step_ends(ctx, tokenizer.encode(" "), " ") == []


def test_steps_are_turns_without_observations() -> None:
    e = answer(1, 6, reward={"task": 1.0})
    e.turns[0].reward = {"tool": 0.5}
    steps = in_steps(e, [4, 4, 6, 99, 2])
    assert [(t.start, t.stop) for t in steps.turns] == [(2, 4), (4, 6), (6, 8)]
    assert [(t.obs_start, t.obs_stop) for t in steps.turns] == [(0, 2), (4, 4), (6, 6)]
    assert [t.reward for t in steps.turns] == [{}, {}, {"tool": 0.5}] and steps.total == 1.5
    batch = pack([steps, answer(2, 2)])
    assert batch.turn_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and batch.turn_index_K.tolist() == [0, 1, 2, 0]


def test_a_group_in_steps_draws_what_a_group_draws() -> None:
    """The same tokens and the same luck; only the turns differ, and they cover the answer."""
    plain = desk().episodes(Group())
    letter = next(e.text[1] for e in plain if len(e.text) > 4)
    steps = desk().episodes(Group(steps=letter))
    assert [e.uid for e in plain] == [e.uid for e in steps]
    assert all(same(a.sequences[0], b.sequences[0]) for a, b in zip(plain, steps, strict=True))
    for e in steps:
        s = e.sequences[0]
        assert [t.start for t in e.turns] == [s.prompt_len, *(t.stop for t in e.turns[:-1])]
        assert e.turns[-1].stop == len(s.ids)
    assert {len(e.turns) for e in plain} == {1} and max(len(e.turns) for e in steps) > 1
