"""Parts of a batch: minibatches are counted again, micro-batches keep the counts of the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import ALL, LAW, answer, contexts, episode_lists, random_episodes, rows_of_decisions
from test_batch import LEVELS, rows_in, same

from gruppo.data import Batch, Episode, gather, micro_batches, minibatches, pack, permutation

# ---- minibatches: counted again


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1), st.integers(0, 6))
def test_a_minibatch_is_the_pack_of_its_episodes(episodes, seed, take):
    rows = np.random.default_rng(seed).permutation(len(episodes))[:take]  # any rows, any order, groups scattered
    whole = pack(episodes, views=ALL)
    part = whole.minibatch(torch.from_numpy(rows))
    assert_like_pack(part, [episodes[i] for i in rows], whole)


def assert_like_pack(part: Batch, episodes: list[Episode], whole: Batch) -> None:
    want = pack(episodes, views=ALL)
    # numbered by the whole batch
    names = {"reward_EC", "paid_EC", "return_EC", "reward_KC", "reward_EA", "group_E", "agent_K", "drawn_G", "uid_G"}
    for name in (n for n in want.columns if n not in names):
        assert same(part.columns[name], want.columns[name]), name
    for c, name in enumerate(want.components):
        at = whole.components.index(name)
        for several in ("reward_EC", "paid_EC", "return_EC", "reward_KC"):
            assert same(part.columns[several][:, at], want.columns[several][:, c]), several
    agents = [[b.agents[a] for a in b.agent_K.tolist()] for b in (part, want)]
    assert agents[0] == agents[1]
    for a, name in enumerate(want.agents):
        assert same(part.reward_EA[:, whole.agents.index(name)], want.reward_EA[:, a]), name
    assert torch.equal(part.uid_G[part.group_E], want.uid_G[want.group_E])
    assert part.size("G") == want.size("G") == len({e.group for e in episodes})
    drawn = dict(zip(whole.uid_G.tolist(), whole.drawn_G.tolist(), strict=True))
    assert part.drawn_G.tolist() == [drawn[g] for g in part.uid_G.tolist()]
    for view in ALL:
        for name, x in vars(want.views[view]).items():
            # Nodes are numbered by the whole batch: test_shared.py says what must hold.
            assert x is None or name == "node_M" or torch.equal(getattr(part.views[view], name), x), (view, name)
    if want.allowed is not None:
        assert part.allowed is not None and torch.equal(part.allowed.values, want.allowed.values)
        assert torch.equal(part.allowed.length, want.allowed.length)


@LAW
@given(episode_lists(most=8), st.integers(1, 5), st.integers(0, 99))
def test_minibatches_share_out_whole_groups_and_all_that_was_drawn(episodes, count, seed):
    whole = pack(episodes, drawn={"gone": 4, "group 0": 9})
    cut = minibatches(whole, count, seed)
    assert sorted(u for b in cut for u in b.uid_E.tolist()) == sorted(e.uid for e in episodes)
    groups = [set(b.uid_G.tolist()) for b in cut]
    assert sum(map(len, groups)) == len(set().union(*groups)) == whole.size("G")
    assert len(cut) == min(count, whole.size("G"))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert sum(b.drawn for b in cut) == pytest.approx(whole.drawn)
    assert sum(int(b.drawn_G.sum()) for b in cut) == int(whole.drawn_G.sum())
    again = minibatches(whole, count, seed)
    assert all(torch.equal(a.uid_E, b.uid_E) for a, b in zip(cut, again, strict=True))


@LAW
@given(episode_lists(least=2, most=8), st.integers(0, 2**32 - 1))
def test_who_shares_a_minibatch_does_not_depend_on_the_order_of_the_episodes(episodes, seed):
    order = np.random.default_rng(seed).permutation(len(episodes))
    cuts = [minibatches(pack(e), 2, "step", seed) for e in (episodes, [episodes[i] for i in order])]
    a, b = ([sorted(part.uid_E.tolist()) for part in cut] for cut in cuts)
    assert a == b


def test_another_key_cuts_other_minibatches():
    whole = pack([answer(i, group=f"g{i}") for i in range(20)])
    first = {tuple(minibatches(whole, 2, "step", s)[0].uid_E.tolist()) for s in range(10)}
    assert len(first) == 10 and minibatches(whole, 1, "step", 0) == [whole]


def test_statistics_of_a_group_need_its_scattered_episodes_together():
    episodes = [answer(i, group="ab"[i % 2], reward={"task": float(i)}) for i in range(6)]
    for b in minibatches(pack(episodes), 2, 0):
        (uid,) = b.uid_G.tolist()
        want = {torch.tensor([0.0, 2, 4]).mean().item(), torch.tensor([1.0, 3, 5]).mean().item()}
        assert gather(b.reward_E, b.level("E", "G"), "mean").item() in want
        assert b.size("E") == 3 and uid in pack(episodes).uid_G.tolist()


def test_an_empty_minibatch_is_an_empty_batch():
    part = pack(random_episodes(0, 3)).minibatch(torch.zeros(0, dtype=torch.int64))
    assert all(part.size(level) == 0 for level in LEVELS)
    assert part.drawn == 0 and part.learn_N.shape == (0,)


@LAW
@given(episode_lists(), st.data())
def test_an_episode_named_twice_is_two_episodes(episodes, data):
    whole = pack(episodes, views=ALL)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, len(episodes) - 1), min_size=1, max_size=6)))
    part = whole.minibatch(rows)
    assert part.uid_E.tolist() == whole.uid_E[rows].tolist()
    ones = [whole.minibatch(row.view(1)) for row in rows]
    assert torch.equal(part.gather(part.token_N, "N", "E", "count"), torch.tensor([b.size("N") for b in ones]))
    for name in ("token_N", "uid_N", "action_key_K", "changed_S"):
        assert torch.equal(part.columns[name], torch.cat([b.columns[name] for b in ones])), name
    assert [s for b in ones for s in b.turn_index_K[b.turn_N].tolist()] == part.turn_index_K[part.turn_N].tolist()
    for view in ALL:
        assert contexts(part.views[view]) == [c for b in ones for c in contexts(b.views[view])]


# ---- micro-batches: counts stay


@LAW
@given(episode_lists(), st.integers(0, 60))
def test_every_decision_is_in_exactly_one_micro_batch_for_any_budget(episodes, tokens):
    whole = pack(episodes, views=ALL)
    cut = list(micro_batches(whole, tokens))
    assert sorted(r for b in cut for r in b.row_N.tolist()) == list(range(whole.size("N")))
    assert sorted(r for b in cut for r in b.row_S.tolist()) == list(range(whole.size("S")))
    for b in cut:
        for view in b.views.values():
            assert len(view.tree()[0].ids_M) <= tokens or b.size("S") == 1


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1), st.booleans())
def test_a_micro_batch_of_any_sequences_in_any_order_keeps_rows_contexts_and_counts(episodes, seed, again):
    whole = pack(episodes, views=ALL, drawn={"gone": 3})
    rng = np.random.default_rng(seed)
    rows = rng.permutation(whole.size("S"))[: rng.integers(1, whole.size("S") + 1)]
    part = whole.micro(torch.from_numpy(rows))
    row_N = part.row_N
    if again:  # a part of a part: rows count in the batch it was cut from
        inner = rng.permutation(len(rows))[: rng.integers(1, len(rows) + 1)]
        part = part.micro(torch.from_numpy(inner))
        row_N, rows = row_N[part.row_N], rows[inner]
    assert part.drawn == whole.drawn and part.size("E") == whole.size("E") and part.size("G") == whole.size("G")
    for name in (n for n in whole.columns if n.rpartition("_")[2][0] in "EG"):
        assert same(part.columns[name], whole.columns[name])
    for name in (n for n in whole.columns if n.endswith("_N") and n != "turn_N"):
        assert same(part.columns[name], whole.columns[name][row_N])
    for low, high, name in (("N", "K", "action_key_K"), ("N", "S", "changed_S"), ("N", "E", "uid_E")):
        x = whole.spread(whole.columns[name], high, low)[row_N]
        assert torch.equal(part.spread(part.columns[name], high, low), x)
    for view in ALL:
        want = contexts(whole.views[view])
        assert contexts(part.views[view]) == [want[i] for i in row_N]
        if not again:
            assert torch.equal(part.views[view].ids_M, whole.views[view].ids_M[part.views[view].row_M])
            assert torch.equal(part.views[view].pos_M, whole.views[view].pos_M[part.views[view].row_M])
    sets = [r["allowed"] for r in rows_of_decisions(episodes)]
    if part.allowed is not None:
        assert part.allowed.values.tolist() == [v for i in row_N for v in sets[i]]


@LAW
@given(episode_lists(), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_sums_over_micro_batches_are_sums_over_the_batch(episodes, tokens, seed):
    whole = pack(episodes, dtype=torch.float64)
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=whole.size("N")))
    whole = whole.with_columns(x_N=x)
    cut = list(micro_batches(whole, tokens))
    for level in "EG":
        total = sum(b.gather(b.x_N, "N", level, where=b.learn_N) for b in cut)
        assert torch.allclose(total, whole.gather(x, "N", level, where=whole.learn_N), rtol=0, atol=1e-12)


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1))
def test_a_minibatch_of_a_shuffled_part_is_still_the_pack_of_its_episodes(episodes, seed):
    rng = np.random.default_rng(seed)
    whole = pack(episodes, views=ALL)
    # Shuffle episodes, not the sequences inside one: those have an order.
    order = rng.permutation(len(episodes))
    rows = [i for e in order for i in rows_in(whole, "E", int(e), "S")]
    part = whole.micro(torch.tensor(rows, dtype=torch.int64)).minibatch(torch.arange(len(episodes)))
    assert_like_pack(part, episodes, whole)


def test_micro_batches_take_the_longest_first_and_fill_up():
    whole = pack([answer(i, n=n) for i, n in enumerate([1, 8, 2, 5])], share=2.0)  # inputs: 3, 10, 4, 7
    assert [b.row_S.tolist() for b in micro_batches(whole, 11)] == [[1], [2, 3], [0]]
    assert [b.row_S.tolist() for b in micro_batches(whole, 10**9)] == [[0, 1, 2, 3]]
    assert [b.size("S") for b in micro_batches(whole, 0)] == [1] * 4


def test_the_budget_holds_for_the_longest_view():
    long_prompt = answer(1, train_as=np.array([7]))
    long_prompt.sequences[0].ids[:2] = 3
    whole = pack([long_prompt, answer(2, train_as=np.array([7]))], views=("as_sampled",))
    assert [len(b.views["as_sampled"].ids_M) for b in micro_batches(whole, 8)] == [5, 5]


def test_an_empty_batch_loses_nothing_when_cut():
    assert sum(b.size("N") for b in micro_batches(pack([]), 100)) == 0
    assert sum(b.size("N") for b in minibatches(pack([]), 3)) == 0


def test_a_batch_moves_as_a_whole():
    whole = pack(random_episodes(2, 3), views=ALL)
    moved = whole.to("meta")
    assert {x.device.type for x in moved.columns.values()} == {"meta"}
    assert {x.device.type for v in moved.views.values() for x in vars(v).values() if x is not None} == {"meta"}
    micro = whole.micro(torch.tensor([0])).to("meta")
    assert micro.inputs.row_M is not None and micro.inputs.row_M.device.type == "meta"
    assert permutation(3).device.type == "cpu"
