"""Several agents and turns in a batch: scans within keys, returns by agent, rewards of turns, what nobody decides."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making_episodes import LAW, answer, episode_lists, random_episodes

from gruppo.data import Batch, Episode, Growing, Key, Sequence, Source, Status, ToolCall, Use, name_hash, pack
from gruppo.methods import method
from gruppo.pieces import aggregate
from gruppo.stages import Context
from gruppo.stages.credit import Gae, GroupNormalised, in_time, return_to_go, token_reward, turn_reward

LEVELS = ("N", "K", "S", "E")


def time_of(batch: Batch, low: str) -> list[tuple[int, ...]]:
    """When a row is: (episode, turn, row); episodes follow each other in the order of the batch."""
    episode = batch.up(low, "E").tolist()  # type: ignore[arg-type]
    if low == "E":
        turn = [0] * len(episode)
    elif low == "S":
        turn = [min(batch.turn_index_K[batch.seq_K == s].tolist()) for s in range(len(episode))]
    else:
        turn = batch.spread(batch.turn_index_K, "K", low).tolist()  # type: ignore[arg-type]
    return [(e, t, i) for i, (e, t) in enumerate(zip(episode, turn, strict=True))]


def random_key(rng: np.random.Generator, batch: Batch, low: str) -> Key:
    """Parts that cut through episodes, groups and sequences."""
    return batch.key(low, torch.from_numpy(rng.integers(0, 3, batch.size(low))))  # type: ignore[arg-type]


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1), st.sampled_from(LEVELS), st.integers(-3, 3))
def test_scan_and_lag_within_a_key_are_a_loop_over_its_rows_in_time(episodes, seed, low, k):
    batch, rng = pack(episodes, dtype=torch.float64), np.random.default_rng(seed)
    key, n = random_key(rng, batch, low), batch.size(low)
    b, c = torch.from_numpy(rng.normal(size=n)), torch.from_numpy(rng.uniform(0, 1, n))
    when = time_of(batch, low)
    scan, lag = torch.zeros(n, dtype=torch.float64), torch.full((n,), -7.0, dtype=torch.float64)
    for part in range(key.size):
        rows = sorted((i for i in range(n) if key.index[i] == part), key=when.__getitem__)
        later = 0.0
        for i in reversed(rows):
            later = scan[i] = b[i] + c[i] * later
        for at, i in enumerate(rows):
            if 0 <= at - k < len(rows):
                lag[i] = b[rows[at - k]]
    assert torch.allclose(batch.scan(b, c, low, key), scan, atol=1e-12)
    assert torch.equal(batch.lag(b, k, low, key, fill=-7), lag)
    rows = batch.time_order(low, key).tolist()
    assert rows == sorted(range(n), key=lambda i: (int(key.index[i]), when[i]))


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1), st.sampled_from(LEVELS))
def test_gather_within_a_key_is_a_loop(episodes, seed, low):
    batch, rng = pack(episodes, dtype=torch.float64), np.random.default_rng(seed)
    key, x = random_key(rng, batch, low), torch.from_numpy(rng.normal(size=batch.size(low)))
    for how, f in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.max), ("min", torch.min)):
        want = [f(x[key.index == part]) for part in range(key.size)]
        assert torch.allclose(batch.gather(x, low, key, how), torch.stack(want) if want else x[:0])


@LAW
@given(episode_lists(), st.sampled_from(["K", "N", "S"]), st.sampled_from(["E", "G"]))
def test_within_the_key_of_a_level_is_within_the_level(episodes, low, high):
    batch = pack(episodes, dtype=torch.float64)
    x, key = torch.randn(batch.size(low), dtype=torch.float64), batch.level(low, high)
    assert torch.equal(batch.scan(x, 0.5, low, key), batch.scan(x, 0.5, low, high))
    assert torch.equal(batch.lag(x, 1, low, key), batch.lag(x, 1, low, high))


def test_a_key_of_another_level_is_refused():
    batch = pack(random_episodes(3, 6))
    assert batch.size("K") > 6
    for verb in (batch.scan, batch.lag):
        with pytest.raises(ValueError, match=r"a key of 6 rows does not divide level K, which has \d+: .* level K"):
            verb(batch.reward_K, 1, "K", batch.level("E", "G"))
    with pytest.raises(ValueError, match="does not divide level K"):
        batch.gather(batch.reward_K, "K", batch.level("E", "G"))


# ---- returns by agent


@LAW
@given(episode_lists())
def test_returns_by_agent_are_those_of_the_episodes(episodes):
    batch = pack(episodes, dtype=torch.float64)
    for e, row in zip(episodes, batch.reward_EA.tolist(), strict=True):
        want = [e.returns.get(agent, float("nan")) for agent in batch.agents]
        assert row == pytest.approx(want, nan_ok=True)
    if len(batch.agents) == 1:
        assert torch.equal(batch.reward_EA.nan_to_num(), batch.reward_E.nan_to_num()[:, None])
    said = [e.speaks for e in episodes]
    spoken = {a for s, e in zip(said, episodes, strict=True) for a in s if any_sampled(e)}
    assert {a for a, yes in zip(batch.agents, batch.speaks_A.tolist(), strict=True) if yes} == (
        spoken or set(batch.agents)
    )


def any_sampled(e: Episode) -> bool:
    """Whether the policy sampled a token in a turn of it. (A hint in a prompt belongs to the first turn.)"""
    return any((e.sequences[t.sequence].source[t.start : t.stop] == Source.POLICY).any() for t in e.turns)


@LAW
@given(episode_lists())
def test_rewards_of_turns_add_up_to_the_return(episodes):
    """Over an episode to `reward_E`; over each seat to `reward_EA`. Only of episodes in statistics."""
    batch = pack([replace(e, use=Use.LEARN) for e in episodes], dtype=torch.float64)
    judged = batch.judged_E
    total_E = batch.gather(turn_reward(batch), "K", "E")
    assert torch.allclose(total_E[judged], batch.reward_E[judged])
    first_K = batch.turn_index_K == 0
    to_go = batch.scan(turn_reward(batch), 1.0, "K", "E")[first_K]
    at = batch.up("K", "E")[first_K]
    assert torch.allclose(to_go[judged[at]], batch.reward_E[at][judged[at]])
    seats_EA = batch.gather(turn_reward(batch, batch.seats), "K", batch.seats).view(-1, len(batch.agents))
    known = ~batch.reward_EA.isnan() & judged[:, None]
    assert torch.allclose(seats_EA[known], batch.reward_EA[known])


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1))
def test_rewards_of_tokens_add_up_to_the_return(episodes, seed):
    """Also where turns are empty, or written by others; for any choice of decisions, if the agent has one of them."""
    batch = pack([replace(e, use=Use.LEARN) for e in episodes], dtype=torch.float64)
    some = torch.from_numpy(np.random.default_rng(seed).random(batch.size("N")) < 0.7)
    seat_K, agents = batch.seats.index, len(batch.agents)
    for where in (batch.sampled_N, batch.sampled_N & some):
        mine = in_time(batch, where)
        paid = torch.zeros(batch.seats.size, dtype=torch.float64)
        paid.index_add_(0, seat_K[batch.turn_N[mine]], token_reward(batch, mine, 0.0))
        there = batch.judged_E.repeat_interleave(agents) & (
            torch.bincount(seat_K[batch.turn_N[mine]], minlength=len(paid)) > 0
        )
        assert torch.allclose(paid[there], batch.reward_EA.flatten()[there])
    alone = pack(
        [replace(e, turns=[replace(t, agent="policy") for t in e.turns]) for e in episodes], dtype=torch.float64
    )
    mine = in_time(alone, alone.sampled_N)
    assert torch.equal(mine, alone.time_order("N", where=alone.sampled_N))
    paid_E = torch.zeros(alone.size("E"), dtype=torch.float64)
    paid_E.index_add_(0, alone.episode_N[mine], token_reward(alone, mine, 0.0))
    there = alone.judged_E & alone.gather(alone.sampled_N, "N", "E", "any")
    assert torch.allclose(paid_E[there], alone.reward_E[there])


def test_a_turn_without_tokens_is_paid_at_the_last_token_before_it():
    """r = .5, then four tokens in two turns with an empty one after each: 1 and 4 belong to the first, 2 and 8 to the
    second. Nothing was said before the first empty turn, so .5 is paid at the first token after it."""
    made = Growing(1, "t", "g", reward={"task": 100.0})
    made.begin(np.array([1]))
    for tokens, paid in ((0, 0.5), (2, 1.0), (0, 4.0), (2, 2.0), (0, 8.0)):
        made.act(np.full(tokens, 5), np.zeros(tokens, np.float32), 0, reward={"step": paid})
    batch = pack([made.finish(), answer(2, reward={"task": 7.0})], dtype=torch.float64)
    mine = batch.time_order("N", where=batch.sampled_N)
    assert token_reward(batch, mine, 0.0).tolist() == [0.5, 5.0, 0.0, 110.0, 0.0, 0.0, 7.0]
    assert turn_reward(batch).tolist() == [0.5, 1.0, 4.0, 2.0, 108.0, 7.0]
    silent = Growing(1, "t", "g")
    silent.begin(np.array([1]))
    silent.act(np.zeros(0, np.int64), np.zeros(0, np.float32), 0, reward={"step": 3.0})
    batch = pack([silent.finish(), answer(2, reward={"task": 7.0})], dtype=torch.float64)
    assert token_reward(batch, torch.arange(3), 0.0).tolist() == [0.0, 0.0, 7.0]  # nobody to pay, and nobody else is
    assert token_reward(batch, torch.arange(0), 0.0).tolist() == []


OF_CRITICS = ("ppo", "vapo", "poad", "t_ppo", "reinforce_pp", "remax")


@pytest.mark.parametrize("name", OF_CRITICS)
@settings(LAW, max_examples=12)
@given(st.integers(0, 2**32 - 1))
def test_what_another_seat_earns_or_is_worth_changes_nothing(name, seed):
    """The turns of the rival are paid otherwise and their values are others: every column of the policy's own tokens
    stays as it is, to the last bit. What both share, the reward of the episode, is left alone."""
    rng = np.random.default_rng(seed)
    plain = [replace(e, use=Use.LEARN, replaced=frozenset()) for e in random_episodes(seed, 4)]
    if name == "remax":
        plain[0].use = Use.BASELINE
    other = [replace(e, turns=[replace(t) for t in e.turns]) for e in plain]
    for e in other:
        for t in e.turns:
            if t.agent == "rival":
                t.reward = {"step": float(rng.normal())}
    a, b = (pack(es, dtype=torch.float64) for es in (plain, other))
    n = a.size("N")
    own_N = a.spread(a.agent_K == a.agents.index("policy"), "K", "N")
    value = torch.from_numpy(rng.normal(size=n))
    moved = torch.where(own_N, value, torch.from_numpy(rng.normal(size=n)))
    fixed = {"logp_old_N": torch.zeros(n).double(), "logp_ref_N": torch.zeros(n).double()}
    got = [
        method(name).credit(Context(), x.with_columns(value_critic_N=v, **fixed)) for x, v in ((a, value), (b, moved))
    ]
    for column in got[0]:
        assert torch.equal(got[0][column][own_N], got[1][column][own_N]), column


def test_two_seats_of_a_game_by_hand():
    """γ = λ = 1: the target of every token is the return of its own seat. With one recursion, a's first had 0."""
    batch = pack([game(1, 1.0), game(2, -1.0, own=0.5)], dtype=torch.float64)
    batch = batch.with_columns(value_critic_N=torch.tensor([0.1, 0.2, 0.3, 0.4] * 2, dtype=torch.float64))
    ret_N = Gae(gamma=1.0, lam=1.0)(Context(), batch)["ret_N"]
    assert ret_N.tolist() == pytest.approx([1, 1, 1, -1, -0.5, -0.5, -0.5, 1.5])  # three tokens of a, then that of b


def test_a_reward_on_a_part_of_several_episodes_is_refused():
    batch = pack([answer(1, reward={"task": 1.0}), answer(2, reward={"task": 2.0})])
    with pytest.raises(ValueError, match=r"turns of several episodes.*batch\.seats"):
        turn_reward(batch, batch.level("K", "G"))


def game(uid: int, outcome: float, own: float | None = None, group: str = "g", who: Any = Source.POLICY) -> Episode:
    """Two seats in contexts of their own, three moves: a, b, a. The outcome lies on the last turn of each."""
    made = Growing(uid, "kuhn", group, reward={} if own is None else {"form": own})
    a = made.begin(np.array([1]))
    made.act(np.array([2, 3]), np.zeros(2, np.float32), 0, agent="a")
    made.begin(np.array([1]))
    made.act(np.array([4]), np.zeros(1, np.float32), 0, agent="b", reward={"task": -outcome}, source=who)
    made.switch(a)
    made.observe(np.array([5]))
    made.act(np.array([6]), np.zeros(1, np.float32), 0, agent="a", reward={"task": outcome})
    return made.finish()


def test_a_zero_sum_game():
    batch = pack([game(1, 1.0), game(2, -1.0)])
    assert batch.reward_E.tolist() == [0.0, 0.0] and batch.agents == ("a", "b")
    assert batch.reward_EA.tolist() == [[1.0, -1.0], [-1.0, 1.0]] and batch.speaks_A.tolist() == [True, True]
    # rows: both turns of a, then that of b
    assert turn_reward(batch, batch.seats).tolist() == [0, 1, -1, 0, -1, 1]
    assert batch.scan(turn_reward(batch, batch.seats), 0.5, "K", batch.seats).tolist() == [0.5, 1, -1, -0.5, -1, 1]
    assert batch.lag(batch.reward_K, -1, "K", batch.seats).tolist() == [1, 0, 0, -1, 0, 0]
    assert [e.returns for e in (game(1, 1.0),)] == [{"a": 1.0, "b": -1.0}] and game(1, 1.0).scores == {"a": 1, "b": -1}


def test_what_the_episode_earns_every_agent_has_once():
    batch = pack([game(1, 1.0, own=0.25)])
    assert batch.reward_E.tolist() == [0.25] and batch.reward_EA.tolist() == [[1.25, -0.75]]
    assert turn_reward(batch).tolist() == [0, 1.25, -1] and turn_reward(batch, batch.seats).tolist() == [0, 1.25, -0.75]


def test_an_opponent_that_is_not_the_policy():
    e = game(1, 1.0, who=Source.OPPONENT)
    assert (e.speaks, e.earned, e.scores, e.score) == ({"a"}, {"a": 1.0}, {"a": 1.0}, 1.0)
    assert pack([e]).speaks_A.tolist() == [True, False]
    failed = replace(e, status=Status.ENV_ERROR)
    assert np.isnan(list(failed.returns.values())).all() and pack([failed]).reward_EA.isnan().all()
    e.turns[0].reward = {"task": 0.5}
    assert replace(e, reward={"task": 4.0}).scores == {"a": 5.5}  # of the episode, and of both turns
    assert answer(1).scores == {} and np.isnan(answer(1).score)
    assert answer(1, reward={"task": 0.5}).scores == {"policy": 0.5}


# ---- columns of turns


def test_columns_of_turns():
    made = Growing(1, "t", "g")
    made.begin(np.array([1]))
    calls = (ToolCall("add", "1", 0.5), ToolCall("add", "2", 0.25, False))
    made.act(np.array([2]), np.zeros(1, np.float32), 0, tag="plan", seconds=2.0, tools=calls)
    made.act(np.array([3]), np.zeros(1, np.float32), 0, flags=frozenset({"repeated"}))
    batch = pack([made.finish()], dtype=torch.float64)
    assert batch.tag_K.tolist() == [name_hash("plan"), 0] and batch.seconds_K.tolist() == [2.0, 0.0]
    assert batch.tools_K.tolist() == [2, 0] and batch.tool_seconds_K.tolist() == [0.75, 0.0]
    assert batch.flags_K.tolist() == [0, 16] and batch.seconds_K.dtype == torch.float64


@LAW
@given(episode_lists())
def test_columns_of_turns_go_with_their_turns(episodes):
    batch = pack(episodes, dtype=torch.float64)
    for k in range(batch.size("K")):
        t = episodes[int(batch.up("K", "E")[k])].turns[int(batch.turn_index_K[k])]
        assert int(batch.tag_K[k]) == (name_hash(t.tag) if t.tag else 0)
        assert float(batch.seconds_K[k]) == t.seconds and int(batch.tools_K[k]) == len(t.tools)
        assert float(batch.tool_seconds_K[k]) == pytest.approx(sum(c.seconds for c in t.tools))


# ---- the mean over turns


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1))
def test_a_mean_over_turns_is_that_of_their_means(episodes, seed):
    batch, rng = pack(episodes, dtype=torch.float64), np.random.default_rng(seed)
    n = batch.size("N")
    over, x = torch.from_numpy(rng.random(n) < 0.6), torch.from_numpy(rng.normal(size=n))
    rows = [x[over & (batch.turn_N == k)] for k in range(batch.size("K"))]
    for mean, inside in (("turn", torch.mean), ("turn_sum", torch.sum), ("turn_sum/8", lambda r: r.sum() / 8)):
        means = [inside(r) for r in rows if len(r)]
        want = torch.stack(means).mean() if means else torch.zeros((), dtype=torch.float64)
        weight = aggregate.weights(batch, "N", over, mean)
        assert torch.allclose(aggregate.weighted_sum(x, weight), want)
        whole = aggregate.count(batch, "N", over, mean)  # split into forwards, the weights are the same
        for s in range(batch.size("S")):
            part = batch.micro(torch.tensor([s]))
            mine = aggregate.weights(part, "N", over[part.row_N], mean, whole)
            assert torch.allclose(mine, weight[part.row_N])


def test_an_answer_is_one_turn():
    batch = pack([answer(1, 3), answer(2, 5)])
    every = torch.ones(8, dtype=torch.bool)
    for unit in ("turn", "turn_sum"):
        same = aggregate.weights(batch, "N", every, unit.replace("turn", "sequence"))
        assert torch.equal(aggregate.weights(batch, "N", every, unit), same)


# ---- observations are nobody's decision


def with_observations(rng: np.random.Generator, e: Episode) -> Episode:
    """The same actions, with other and longer observations before some turns."""
    e = Growing.of(e).finish()
    for j, s in enumerate(e.sequences):
        for t in [t for t in e.turns if t.sequence == j]:
            n = int(rng.integers(0, 4))
            at = t.start
            e.sequences[j] = s = inserted(s, at, rng.integers(0, 9, n))
            for other in e.turns:
                if other.sequence == j and (other is t or other.start > at or other.obs_start > at):
                    other.obs_start += n if other.obs_start > at else 0
                    other.obs_stop, other.start, other.stop = other.obs_stop + n, other.start + n, other.stop + n
    return e


def inserted(s: Sequence, at: int, ids: np.ndarray) -> Sequence:
    blank = {"ids": ids, "source": Source.ENV, "logp": np.nan, "version": -1, "temperature": 1.0, "node": -1}
    columns = {f.name: getattr(s, f.name) for f in fields(s) if f.name in blank}
    longer: dict[str, Any] = {
        name: np.insert(x, at, np.broadcast_to(np.asarray(blank[name], x.dtype), len(ids)))
        for name, x in columns.items()
        if x is not None
    }
    allowed = None if s.allowed is None else {p + len(ids) * (p >= at): x for p, x in s.allowed.items()}
    return replace(s, allowed=allowed, **longer)


@LAW
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_inserting_observations_changes_no_advantage(seed, count):
    rng = np.random.default_rng(seed)
    plain = [spread_turns(e) for e in random_episodes(seed, count)]
    longer = [with_observations(rng, e) for e in plain]
    a, b = (pack(es, dtype=torch.float64) for es in (plain, longer))
    assert torch.equal(a.turn_N, b.turn_N) and torch.equal(a.token_N, b.token_N) and torch.equal(a.uid_N, b.uid_N)
    value = torch.from_numpy(rng.normal(size=a.size("N")))
    ctx = Context()
    for credit in (GroupNormalised(), Gae(gamma=0.9, lam=0.8)):
        got = [credit(ctx, x.with_columns(value_critic_N=value)) for x in (a, b)]
        assert all(torch.equal(got[0][name].nan_to_num(), got[1][name].nan_to_num()) for name in got[0])
    for f in (lambda x: x.scan(turn_reward(x, x.seats), 0.9, "K", x.seats), lambda x: turn_reward(x)):
        assert torch.equal(f(a), f(b))
    to_go = [return_to_go(x, in_time(x, x.sampled_N), 0.9) for x in (a, b)]
    assert torch.equal(*to_go)


def spread_turns(e: Episode) -> Episode:
    """Without empty actions: two turns at one place would change their order."""
    for s in e.sequences:
        s.train_as = None
    keep = [t for t in e.turns if t.stop > t.start]
    there = sorted({t.sequence for t in keep})
    if not keep:
        return answer(e.uid, 3, group=e.group)
    for t in keep:
        t.sequence = there.index(t.sequence)
    return replace(e, sequences=[e.sequences[j] for j in there], turns=keep, notes={})
