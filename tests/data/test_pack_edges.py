"""Packing by hand where random episodes seldom go: keys of rows, nothing at all, cuts, orders and types."""

from typing import Any

import numpy as np
import pytest
import torch
from making_episodes import answer

from gruppo.data import Batch, Episode, Note, Sequence, Turn, key_hash, micro_batches, minibatches, name_hash, pack
from gruppo.data.keyed import permutation, uniform
from gruppo.data.prefix import WORTH, prefix_nodes
from gruppo.data.views import VIEWS


def walker(uid: int, **fields: Any) -> Episode:
    """Two sequences of two turns each; ids tell the place."""
    parts = [
        Sequence(
            ids=np.arange(6) + 10 * j,
            source=np.array([0, 1, 1, 0, 1, 1], np.int8),
            logp=np.full(6, -1.0, np.float32),
            version=np.zeros(6, np.int32),
            prompt_len=1,
        )
        for j in range(2)
    ]
    turns = [Turn(1, 3, 0), Turn(1, 3, 1), Turn(4, 6, 0), Turn(4, 6, 1)]
    return Episode(uid, "t", "g", parts, turns, **fields)


def test_the_key_of_a_decision() -> None:
    """By episode, sequence and rank: the same wherever the episode lies in the batch, and shared by no other row."""
    for order in ([4, 9], [9, 4]):
        batch = pack([walker(uid) for uid in order])
        wanted = [key_hash(uid, j, rank) for uid in order for j in range(2) for rank in range(4)]
        assert batch.uid_N.tolist() == wanted and len(set(wanted)) == 16
        assert batch.node_N.tolist() == wanted, "no shared piece: each is its own"


def test_pieces_of_a_tree() -> None:
    shared, alone = walker(1), walker(2)
    shared.sequences[0].node = np.array([-1, 0, 5, -1, -1, 1])
    batch = pack([shared, alone])
    own = batch.uid_N.tolist()
    assert batch.node_N.tolist() == [0, 5, own[2], 1, *own[4:]]


def test_temperatures_where_only_some_are_told() -> None:
    warm, plain = walker(1), walker(2)
    warm.sequences[1].temperature = np.array([9, 0.5, 0.6, 9, 0.7, 0.8], np.float32)
    batch = pack([warm, plain], dtype=torch.float64)
    assert batch.temperature_N.tolist() == pytest.approx([1.0] * 4 + [0.5, 0.6, 0.7, 0.8] + [1.0] * 8)
    assert batch.temperature_N.dtype == batch.weight_N.dtype == batch.logp_gen_N.dtype == torch.float64
    alone = pack([plain], dtype=torch.float64).temperature_N
    assert alone.tolist() == [1.0] * 8 and alone.dtype == torch.float64


def test_truncation_sets_where_only_some_are_told() -> None:
    told = walker(1)
    told.sequences[1].allowed = {2: np.array([7, 8])}
    allowed = pack([told, walker(2)]).allowed
    assert allowed is not None and allowed.length.tolist() == [0] * 5 + [2] + [0] * 10
    assert allowed.values.tolist() == [7, 8] and allowed.values.dtype == torch.int64
    assert pack([walker(1)]).allowed is None


def test_states_of_turns() -> None:
    """A state that is named is shared by its name; one that is not is shared with no other turn."""
    e = walker(7)
    e.turns[0].state = e.turns[3].state = "here"
    states = pack([e]).state_K.tolist()  # rows: sequence 0 (turns 0 and 2), sequence 1 (turns 1 and 3)
    assert states == [name_hash("here"), key_hash("no state", 7, 2), key_hash("no state", 7, 1), name_hash("here")]


def test_turns_in_time_and_in_rows() -> None:
    e = walker(7)
    for i, t in enumerate(e.turns):
        t.reward, t.agent, t.flags = {"step": float(i)}, f"agent {i % 2}", frozenset({"void"} if i == 2 else ())
    e.turns[1].reward = {}
    e.reward = {"task": 0.5}
    batch = pack([e], dtype=torch.float64)
    assert batch.turn_index_K.tolist() == [0, 2, 1, 3] and batch.seq_K.tolist() == [0, 0, 1, 1]
    assert batch.turn_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batch.components == ("step", "task") and batch.agents == ("agent 0", "agent 1")
    assert batch.reward_K.tolist() == [0.0, 2.0, 0.0, 3.0] and batch.agent_K.tolist() == [0, 0, 1, 1]
    assert torch.isnan(batch.reward_KC).tolist() == [[False, True], [False, True], [True, True], [False, True]]
    assert torch.isnan(batch.reward_EC).tolist() == [[True, False]] and batch.reward_E.tolist() == [5.5]
    assert batch.flags_K.tolist() == [0, 1, 0, 0]


def test_a_turn_of_a_sequence_that_is_not_there() -> None:
    for wrong in (2, -1):
        e = walker(1)
        e.turns[3].sequence = wrong
        with pytest.raises(ValueError, match=f"turn 3 says sequence={wrong}, but there are 2"):
            pack([e])


def test_two_turns_in_one_sequence_each() -> None:
    """As many turns as sequences, and yet not one each: tokens go to the turn that ends after them."""
    e = walker(1)
    e.turns = [Turn(1, 3, 0), Turn(4, 6, 0)]
    e.sequences = e.sequences[:1]
    assert pack([e]).turn_N.tolist() == [0, 0, 1, 1]
    two = walker(2)
    two.turns = [Turn(1, 6, 1), Turn(1, 6, 0)]
    assert pack([two]).turn_N.tolist() == [0] * 4 + [1] * 4 and pack([two]).turn_index_K.tolist() == [1, 0]


def test_nothing_at_all() -> None:
    """An empty batch has every column, of its type."""
    empty, some = pack([]), pack([walker(1)])
    assert set(empty.columns) == set(some.columns)
    for name, column in empty.columns.items():
        assert len(column) == 0 and column.dtype == some.columns[name].dtype, name
    assert empty.inputs.ids_M.dtype == torch.int64 and len(empty.inputs.ids_M) == len(empty.at_N) == empty.drawn == 0
    assert [len(b.uid_E) for b in micro_batches(empty, 8)] == [0] and minibatches(empty, 3) == []


def test_groups_that_selection_has_thinned_out() -> None:
    batch = pack([answer(1, group="a"), answer(2, group="b"), answer(3, group="b")], drawn={"a": 4, "b": 1, "gone": 2})
    assert batch.drawn_G.tolist() == [4, 2] and batch.drawn == 3
    assert pack([answer(1, group="a")]).drawn_G.tolist() == [1]
    assert pack([answer(1, group="a")], drawn={"b": 5}).drawn_G.tolist() == [1]


def test_an_unknown_view_names_its_neighbours() -> None:
    with pytest.raises(ValueError, match="Use mismatched"):
        pack([answer(1)], views=("mismatch",))
    with pytest.raises(ValueError, match=f"Use {', '.join(VIEWS)}"):
        pack([answer(1)], views=("zzz",))


def test_notes_of_any_kind_become_numbers_of_the_batch() -> None:
    e, without = walker(1), walker(2)
    e.notes = {
        "wide": Note(np.array([[0.1]]), "E"),
        "whole": Note(np.array([1, 2, 3, 4]), "K"),
        "two": Note(np.array([5.0, 6.0], np.float32), "S"),
    }
    batch = pack([e, without], dtype=torch.float64)
    assert batch.note_wide_E.dtype == torch.float64 and batch.note_wide_E[0] == np.float32(0.1)
    assert torch.isnan(batch.note_wide_E).tolist() == [False, True]
    assert batch.note_whole_K[:4].tolist() == [1, 3, 2, 4], "in the order of the rows"
    assert batch.note_two_S[:2].tolist() == [5, 6] and torch.isnan(batch.note_two_S[2:]).all()
    with pytest.raises(ValueError, match="has 2 values, its level K has 4 rows"):
        pack([walker(3, notes={"bad": Note(np.zeros(2, np.float32), "K")})])


# minibatches


def test_minibatches_by_their_key() -> None:
    """Whole groups, in the order of their draws, cut into equal parts."""
    batch = pack([answer(i, group=f"g{i}") for i in range(5)])
    for key in range(6):
        u = uniform("minibatch", key, 4, batch.uid_G)
        assert isinstance(u, torch.Tensor)
        place = torch.argsort(torch.argsort(u))
        wanted = [sorted(i for i in range(5) if int(place[i]) * 2 // 5 == part) for part in range(2)]
        assert [m.uid_E.tolist() for m in minibatches(batch, 2, key, 4)] == wanted
    one = pack([answer(1, group="a"), answer(2, group="a")])
    assert [m.uid_E.tolist() for m in minibatches(one, 3, 0)] == [[1, 2]], "fewer groups than parts"


# micro-batches: forwards that hold few rows


def sizes(batch: Batch, tokens: int) -> list[list[int]]:
    """The uids in each forward."""
    return [m.uid_E[m.episode_S].tolist() for m in micro_batches(batch, tokens)]


def test_longest_first_and_at_least_one() -> None:
    batch = pack([answer(n, n=n) for n in (2, 9, 4, 6, 1)], share=2.0)  # and a prompt of two
    assert sizes(batch, 11) == [[9], [6], [2, 4], [1]]
    assert sizes(batch, 1) == [[9], [6], [4], [2], [1]] and sorted(sizes(batch, 99)[0]) == [1, 2, 4, 6, 9]
    equal = pack([answer(uid, n=3 + uid % 2) for uid in range(100)], share=2.0)
    assert sizes(equal, 5) == [[uid] for uid in (*range(1, 100, 2), *range(0, 100, 2))], (
        "then in the order of the batch"
    )


def trees() -> list[Episode]:
    """Two prompts of four tokens with three answers each, in mixed order; the second tree has the longest answer."""
    out: list[Episode] = []
    for uid, (prompt, n) in enumerate([(1, 2), (2, 3), (1, 3), (2, 5), (1, 4), (2, 2)]):
        ids = np.array([100 * prompt + i for i in range(4)])
        tail = 1000 * (uid + 1) + np.arange(n)
        e = Episode(uid, "t", f"g{prompt}", [], [Turn(4, 4 + n)])
        source = np.array([0] * 4 + [1] * n, np.int8)
        e.sequences = [
            Sequence(np.concatenate([ids, tail]), source, np.zeros(4 + n, np.float32), np.zeros(4 + n, np.int32), 4)
        ]
        out.append(e)
    return out


def test_those_of_one_prompt_follow_each_other_and_it_counts_once() -> None:
    batch = pack(trees())
    assert batch.inputs.node_M is not None
    # Tree of prompt 2 first: 4 + 3, + 5, + 2 rows; then that of prompt 1: 4 + 2, + 3, + 4.
    assert sizes(batch, 14) == [[1, 3, 5], [0, 2, 4]]
    assert sizes(batch, 13) == sizes(batch, 12) == [[1, 3], [0, 5], [2, 4]], "4 + 3 + 5; 4 + 2 and 4 + 2; 4 + 3 + 4"
    assert sizes(batch, 27) == [[0, 1, 2, 3, 4, 5]] and sizes(batch, 26) == [[0, 1, 2, 3, 5], [4]]
    for tokens in range(1, 28):
        cut = [m for m in micro_batches(batch, tokens)]
        rows = [len(m.inputs.tree()[0].ids_M) for m in cut]
        assert all(r <= tokens or len(m.episode_S) == 1 for r, m in zip(rows, cut, strict=True)), tokens
        assert sorted(u for m in cut for u in m.uid_E[m.episode_S].tolist()) == list(range(6))


def test_a_sequence_that_begins_another_comes_before_it() -> None:
    """123, 12345 and 127 are six rows in one forward: each shares with the one before it what it can."""
    rows: list[Episode] = []
    for uid, ids in enumerate(([1, 2, 3], [1, 2, 7], [1, 2, 3, 4, 5])):
        n = len(ids)
        s = Sequence(
            np.array(ids), np.array([0] + [1] * (n - 1), np.int8), np.zeros(n, np.float32), np.zeros(n, np.int32), 1
        )
        rows.append(Episode(uid, "t", "g", [s], [Turn(1, n)]))
    assert sizes(pack(rows), 6) == [[0, 1, 2]] and len(sizes(pack(rows), 5)) == 2


def test_what_is_too_little_to_share_is_not_shared() -> None:
    ids, length = np.array([1, 2, 3, 4, 5, 6, 7, 8, 1, 9, 9, 9, 9, 9, 9, 9]), np.array([8, 8])
    assert WORTH == 1 / 8
    node = prefix_nodes(ids, length, 1 / 8)
    assert node is not None and node[0] == node[8] and len(set(node.tolist())) == 15, "an eighth is enough"
    assert prefix_nodes(ids, length, 1 / 8 + 1e-9) is None
    pair = [answer(1, n=14), answer(2, n=14)]  # two of sixteen
    pair[1].sequences[0].ids = pair[1].sequences[0].ids + np.array([0, 0] + [50] * 14)
    assert pack(pair).inputs.node_M is not None and pack(pair, share=0.126).inputs.node_M is None
    assert pack(pair, share=1.0).inputs.node_M is None and pack(pair, share=2.0).inputs.node_M is None
    twins = [answer(1), answer(2)]
    assert pack(twins, share=1.0).inputs.node_M is not None and pack(twins, share=1.5).inputs.node_M is None


def test_a_tree_counts_its_trees_from_zero() -> None:
    inputs, row_M = pack(trees()).inputs.tree()
    assert row_M is not None
    assert inputs.seq_M.tolist() == [0] * 13 + [1] * 14 and inputs.parent_M[[0, 13]].tolist() == [-1, -1]


def test_a_permutation_is_a_sort_of_draws() -> None:
    u = uniform(3, "x", torch.arange(50))
    assert isinstance(u, torch.Tensor)
    assert permutation(50, 3, "x").tolist() == sorted(range(50), key=lambda i: float(u[i]))
