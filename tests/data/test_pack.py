"""Packing against the obvious reading of the episodes, and what it refuses."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import (
    ALL,
    LAW,
    answer,
    contexts,
    episode_lists,
    random_episodes,
    rows_of_decisions,
    rows_of_turns,
)

from gruppo.data import Episode, Source, Status, name_hash, pack
from gruppo.data.episode import FLAGS

# ---- decisions, turns, episodes


@LAW
@given(episode_lists())
def test_every_decision_stands_where_the_episode_says(episodes):
    batch = pack(episodes)
    rows = rows_of_decisions(episodes)
    assert batch.size("N") == len(rows)
    for name, column in (("token", batch.token_N), ("source", batch.source_N), ("version", batch.version_N)):
        assert column.tolist() == [r[name] for r in rows]
    for name, column in (("logp_gen", batch.logp_gen_N), ("temperature", batch.temperature_N)):
        np.testing.assert_array_equal(column.numpy(), np.array([r[name] for r in rows], np.float32))
    assert batch.uid_E[batch.episode_N].tolist() == [r["uid"] for r in rows]
    assert batch.spread(batch.turn_index_K, "K", "N").tolist() == [r["turn_index"] for r in rows]
    assert len(set(batch.uid_N.tolist())) == len(rows)


@LAW
@given(episode_lists())
def test_a_decision_is_predicted_from_the_token_before_it_and_from_its_whole_context(episodes):
    """Pitfall 6: the ids say where they stand, so a model that reads them cannot be off by one."""
    batch = pack(episodes, views=ALL)
    rows = rows_of_decisions(episodes)
    assert batch.inputs.ids_M[batch.at_N].tolist() == batch.token_N.tolist()
    assert contexts(batch.inputs) == [r["context"] for r in rows]
    sampled = batch.views["as_sampled"]
    assert sampled.ids_M[sampled.at_N].tolist() == batch.token_N.tolist()
    assert sampled.pos_M[sampled.at_N].tolist() == [r["sampled_position"] for r in rows]
    before = sampled.parent_M[sampled.at_N]
    assert (sampled.pos_M[before] + 1 == sampled.pos_M[sampled.at_N]).all()
    assert (sampled.seq_M[before] == sampled.seq_M[sampled.at_N]).all()


@LAW
@given(episode_lists())
def test_without_hints_no_hint_is_read_and_every_other_decision_keeps_its_token(episodes):
    batch = pack(episodes, views=ALL)
    view = batch.views["without_hints"]
    hints = {int(i) for e in episodes for s in e.sequences for i in s.ids[s.source == Source.HINT]}
    assert not hints & set(view.ids_M.tolist())
    plain = batch.source_N != Source.HINT
    assert torch.equal(view.ids_M[view.at_N[plain]], batch.token_N[plain])
    want = [tuple(i for i in r["context"] if i not in hints) for r in rows_of_decisions(episodes)]
    assert [c for c, p in zip(contexts(view), plain.tolist(), strict=True) if p] == [
        c for c, p in zip(want, plain.tolist(), strict=True) if p
    ]


@LAW
@given(episode_lists())
def test_positions_count_from_zero_in_every_sequence_of_every_view(episodes):
    for view in pack(episodes, views=ALL).views.values():
        seen: dict[int, int] = {}
        for seq, pos, parent in zip(view.seq_M.tolist(), view.pos_M.tolist(), view.parent_M.tolist(), strict=True):
            assert pos == seen.get(seq, 0) and (parent == -1) == (pos == 0)
            seen[seq] = pos + 1


@LAW
@given(episode_lists())
def test_every_turn_stands_by_sequence_and_position_and_remembers_its_time(episodes):
    batch = pack(episodes, dtype=torch.float64)
    rows = [(e, s, i, t) for e in episodes for s, i, t in rows_of_turns(e)]
    assert batch.turn_index_K.tolist() == [i for _, _, i, _ in rows]
    assert batch.uid_E[batch.up("K", "E")].tolist() == [e.uid for e, *_ in rows]
    which = [(e.uid, j) for e in episodes for j in range(len(e.sequences))]
    assert [which[s] for s in batch.seq_K.tolist()] == [(e.uid, s) for e, s, _, _ in rows]
    assert batch.action_key_K.tolist() == [name_hash(t.action_key) for *_, t in rows]
    assert batch.flags_K.tolist() == [sum(FLAGS[f] for f in t.flags) for *_, t in rows]
    known = torch.tensor([bool(t.state) for *_, t in rows])
    assert batch.state_K[known].tolist() == [name_hash(t.state) for *_, t in rows if t.state]
    alone = set(batch.state_K[~known].tolist())
    assert len(alone) == int((~known).sum()) and not alone & set(batch.state_K[known].tolist())
    assert [batch.agents[a] for a in batch.agent_K.tolist()] == [t.agent for *_, t in rows]
    want = [[t.reward.get(c, math.nan) for c in batch.components] for *_, t in rows]
    np.testing.assert_array_equal(batch.reward_KC.numpy(), np.array(want).reshape(len(rows), -1))
    paid = [sum(v for c, v in t.reward.items() if c not in e.replaced) for e, *_, t in rows]
    assert batch.reward_K.tolist() == paid


@LAW
@given(episode_lists())
def test_every_episode_keeps_its_fields(episodes):
    batch = pack(episodes, dtype=torch.float64)
    assert batch.uid_E.tolist() == [e.uid for e in episodes]  # int64: beyond float64 on purpose
    assert batch.task_E.tolist() == [name_hash(e.task) for e in episodes]
    assert batch.uid_G[batch.group_E].tolist() == [name_hash(e.group) for e in episodes]
    assert batch.status_E.tolist() == [int(e.status) for e in episodes]
    assert batch.use_E.tolist() == [int(e.use) for e in episodes]
    assert batch.source_E.tolist() == [int(e.source) for e in episodes]
    assert batch.replayed_E.tolist() == [e.replayed for e in episodes]
    assert batch.final_state_E.tolist() == [name_hash(e.final_state) for e in episodes]
    assert batch.domain_E.tolist() == [name_hash(e.domain) for e in episodes]
    assert batch.index_E.tolist() == [e.index for e in episodes]
    assert batch.answer_E.tolist() == [name_hash(e.answer) if e.answer else 0 for e in episodes]
    np.testing.assert_array_equal(batch.reward_E.numpy(), np.array([e.total for e in episodes]))
    for i, e in enumerate(episodes):
        for c, name in enumerate(batch.components):
            np.testing.assert_array_equal(batch.reward_EC[i, c].item(), e.reward.get(name, math.nan))
            paid = sum(table.get(name, 0.0) for table in (e.reward, *(t.reward for t in e.turns)))
            there = any(name in table for table in (e.reward, *(t.reward for t in e.turns)))
            assert bool(batch.paid_EC[i, c]) == (there and name not in e.replaced)
            assert batch.return_EC[i, c].item() == pytest.approx(0.0 if name in e.replaced else paid)
    judged = ~batch.reward_E.isnan()  # the return is the sum of what its components pay
    assert torch.allclose(batch.reward_E[judged], batch.return_EC.sum(1)[judged])
    own_E = torch.where(batch.reward_EC.isnan() | (batch.return_EC == 0), 0.0, batch.reward_EC).sum(1)
    turns_E = batch.gather(batch.reward_K, "K", "E", "sum")
    assert torch.allclose(batch.reward_E[judged], (own_E + turns_E)[judged])
    changed = [s.train_as is not None for e in episodes for s in e.sequences]
    assert batch.changed_S.tolist() == changed


@LAW
@given(episode_lists())
def test_nodes_are_shared_ids_and_a_token_of_its_own_elsewhere(episodes):
    batch = pack(episodes)
    for row, node, own in zip(rows_of_decisions(episodes), batch.node_N.tolist(), batch.uid_N.tolist(), strict=True):
        e = next(e for e in episodes if e.uid == row["uid"])
        nodes = e.sequences[row["sequence"]].trained().node
        given_node = -1 if nodes is None else int(nodes[row["position"]])
        assert node == (given_node if given_node >= 0 else own)


@LAW
@given(episode_lists())
def test_the_truncation_set_stays_with_its_decision(episodes):
    batch = pack(episodes)
    rows = rows_of_decisions(episodes)
    if batch.allowed is None:
        assert all(s.allowed is None for e in episodes for s in e.sequences)
        return
    at = np.cumsum([0, *batch.allowed.length.tolist()])
    got = [batch.allowed.values[a:b].tolist() for a, b in itertools.pairwise(at)]
    assert got == [r["allowed"] for r in rows]


@LAW
@given(episode_lists())
def test_notes_of_every_level_land_on_their_rows(episodes):
    batch = pack(episodes, dtype=torch.float64)
    order = {"K": [(e, i) for e in episodes for _, i, _ in rows_of_turns(e)]}
    for level, size in (("E", lambda e: 1), ("S", lambda e: len(e.sequences)), ("N", None)):
        if size is not None:
            order[level] = [(e, i) for e in episodes for i in range(size(e))]
    counts = dict.fromkeys((e.uid for e in episodes), 0)
    by_uid = {e.uid: e for e in episodes}
    order["N"] = []
    for r in rows_of_decisions(episodes):
        order["N"].append((by_uid[r["uid"]], counts[r["uid"]]))
        counts[r["uid"]] += 1
    for level, rows in order.items():
        column = batch.columns.get(f"note_at_{level}_{level}")
        if column is None:
            assert not any(f"at_{level}" in e.notes for e in episodes)
            continue
        name = f"at_{level}"
        want = [e.notes[name].values[i] if name in e.notes else math.nan for e, i in rows]
        np.testing.assert_array_equal(column.numpy(), np.array(want, np.float64))


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1))
def test_the_order_of_the_episodes_only_moves_rows(episodes, seed):
    order = np.random.default_rng(seed).permutation(len(episodes))
    a, b = pack(episodes, views=ALL), pack([episodes[i] for i in order], views=ALL)
    assert a.components == b.components and a.agents == b.agents and a.drawn == b.drawn
    for level, name in (("N", "uid_N"), ("E", "uid_E"), ("G", "uid_G")):
        here, there = a.columns[name].argsort(), b.columns[name].argsort()
        skip = {"turn_N", "group_E"}
        for column in (c for c in a.columns if c.rpartition("_")[2][0] == level and c not in skip):
            x, y = a.columns[column][here], b.columns[column][there]
            assert torch.equal(x.nan_to_num(nan=-99.0), y.nan_to_num(nan=-99.0)), column
    here, there = a.uid_N.argsort(), b.uid_N.argsort()
    for low, high, name in (("N", "K", "turn_index_K"), ("N", "E", "uid_E"), ("N", "G", "uid_G")):
        x, y = (v.spread(v.columns[name], high, low) for v in (a, b))
        assert torch.equal(x[here], y[there])
    for view in ALL:
        x, y = contexts(a.views[view]), contexts(b.views[view])
        assert [x[i] for i in here] == [y[i] for i in there]


def test_turns_without_a_state_are_alone_in_every_step_and_every_order():
    states = [pack([a, b]).state_K.tolist() for a, b in ((answer(1), answer(2)), (answer(2), answer(3)))]
    assert states[0][1] == states[1][0] and len({*states[0], *states[1]}) == 3


def test_two_packs_of_one_list_share_nothing_that_one_could_change():
    episodes = random_episodes(1, 4)
    before = pack(episodes)
    changed = pack(episodes)
    for column in changed.columns.values():
        column.zero_()
    changed.inputs.ids_M.zero_()
    after = pack(episodes)
    assert torch.equal(before.uid_N, after.uid_N) and torch.equal(before.inputs.ids_M, after.inputs.ids_M)


# ---- groups that selection has thinned


def test_drawn_counts_what_was_drawn_before_selection():
    episodes = [answer(1, group="a"), answer(2, group="b"), answer(3, group="b")]
    batch = pack(episodes, drawn={"a": 4, "b": 1, "lost": 8})
    assert batch.drawn_G.tolist() == [4, 2]  # never fewer than are here
    assert batch.drawn == 3 and batch.size("G") == 2  # the lost group has no row, but it was drawn
    assert pack(episodes).drawn == 2 and pack(episodes).drawn_G.tolist() == [1, 2]


def test_a_step_that_lost_every_episode_still_knows_what_was_drawn():
    batch = pack([], drawn={"a": 4, "b": 4})
    assert batch.drawn == 2
    assert all(batch.size(level) == 0 for level in "NKSEG")
    assert batch.gather(batch.weight_N, "N", "E").shape == (0,) and batch.learn_N.shape == (0,)
    assert batch.scan(batch.weight_N, 0.9, "N").shape == (0,) and batch.lag(batch.reward_K, 1).shape == (0,)
    assert batch.key("K", batch.state_K).size == 0


def test_an_episode_that_failed_before_its_first_token_is_a_row_without_tokens():
    lost = Episode(7, "t", "g", [], [], status=Status.ENV_ERROR, error="the server is gone")
    batch = pack([answer(1), lost, answer(2)])
    assert batch.episode_S.tolist() == [0, 2] and math.isnan(batch.reward_E[1])
    assert batch.gather(batch.keep_N, "N", "E", "count").tolist() == [3, 0, 3]
    assert batch.minibatch(torch.tensor([1, 2])).episode_S.tolist() == [1]


def test_an_answer_without_tokens_is_a_turn_without_decisions():
    batch = pack([answer(1, n=0), answer(2)])
    assert batch.size("K") == 2 and batch.turn_N.tolist() == [1, 1, 1]
