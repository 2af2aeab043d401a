"""Prefixes that sequences share: which positions are one node, the tree of a forward, and how it is cut."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import ALL, LAW, answer, contexts, episode_lists, random_episodes

from gruppo.data import Batch, Inputs, micro_batches, pack, single_turn
from gruppo.data.prefix import WORTH, common_with_previous, prefix_nodes

ANY, NEVER = 0.0, 2.0
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9)


def pasts(sequences: list[list[int]]) -> list[tuple[int, ...]]:
    """What every position has read, itself included."""
    return [tuple(s[: i + 1]) for s in sequences for i in range(len(s))]


def nodes_of(sequences: list[list[int]], worth: float = ANY) -> list[int] | None:
    ids, length = np.array([t for s in sequences for t in s], np.int64), [len(s) for s in sequences]
    node = prefix_nodes(ids, np.array(length, np.int64), worth)
    return None if node is None else node.tolist()


def group(number: int, prompt: int, lengths: list[int], seed: int = 0) -> list:
    """Episodes of one prompt, which begins with BOS; their answers differ from the first token on."""
    rng = np.random.default_rng([seed, number])
    ids = np.concatenate([[1], rng.integers(2, 50, prompt - 1)])
    return [
        single_turn(100 * number + i, "t", f"g{number}", ids, np.arange(n) + 60 + 20 * i, np.zeros(n, np.float32), 0)
        for i, n in enumerate(lengths)
    ]


@LAW
@given(SEQUENCES)
def test_positions_are_one_node_exactly_where_token_and_past_are_the_same(sequences):
    past, node = pasts(sequences), nodes_of(sequences)
    if node is None:
        assert len(set(past)) == len(past)
        return
    assert len(set(node)) == len(set(past)) == len(set(zip(node, past, strict=True)))


@LAW
@given(SEQUENCES, st.floats(0, 1))
def test_numbers_rise_along_a_sequence_and_depth_first(sequences, worth):
    node = nodes_of(sequences, worth)
    if node is None:
        return
    start, ends = 0, []
    for s in sequences:
        mine = node[start : start + len(s)]
        assert all(a < b for a, b in pairwise(mine))
        ends.append((mine[-1], s))
        start += len(s)
    assert [s for _, s in sorted(ends)] == sorted(sequences)


@LAW
@given(SEQUENCES, st.floats(0, 1))
def test_what_is_not_worth_it_is_not_shared(sequences, worth):
    """And whatever is shared is the same."""
    past, node = pasts(sequences), nodes_of(sequences, worth)
    if node is None:
        return
    assert len(set(zip(node, past, strict=True))) == len(set(node))
    owner = [i for i, s in enumerate(sequences) for _ in s]
    sizes: dict[int, set[int]] = {}
    for n, i in zip(node, owner, strict=True):
        sizes.setdefault(n, set()).add(i)
    for i, s in enumerate(sequences):  # a sequence that shares anything shares enough, or is what others share
        mine = [n for n, o in zip(node, owner, strict=True) if o == i]
        common = sum(len(sizes[n]) > 1 for n in mine)
        others = {o for n in mine for o in sizes[n]} - {i}
        assert common == 0 or common >= worth * len(s) or any(common >= worth * len(sequences[o]) for o in others)


def test_a_common_bos_is_copied_and_a_common_prompt_is_not():
    bos = [[1, *range(10 * i, 10 * i + 9)] for i in range(1, 4)]
    assert nodes_of(bos, WORTH) is None and nodes_of(bos, ANY) is not None
    assert nodes_of([[1, 5, 6, 7], [1, 5, 6, 8]], WORTH) == [0, 1, 2, 3, 0, 1, 2, 7]


@pytest.mark.parametrize("sequences", [[], [[4]], [[1, 2], [3]]])
def test_nothing_in_common_is_no_node_table(sequences):
    assert nodes_of(sequences) is None


def test_common_with_previous_counts_leading_equals():
    values, length = np.array([1, 2, 3, 1, 2, 1, 2, 9, 7]), np.array([3, 2, 3, 1])
    assert common_with_previous(values, np.cumsum(length) - length, length).tolist() == [0, 2, 2, 0]


# ---- the tree


def reads(inputs: Inputs) -> list[tuple[int, ...]]:
    """What every row of a tree has read."""
    read: list[tuple[int, ...]] = []
    for m, parent in enumerate(inputs.parent_M.tolist()):
        assert parent < m  # parents come first
        read.append((*(read[parent] if parent >= 0 else ()), int(inputs.ids_M[m])))
    return read


@LAW
@given(episode_lists(), st.integers(0, 2**32 - 1))
def test_a_tree_holds_every_past_once_and_every_position_finds_its_own(episodes, seed):
    for e in episodes:  # few tokens, so that much is shared
        for s in e.sequences:
            s.ids %= 2
    whole = pack(episodes, views=ALL, share=ANY)
    rows = np.random.default_rng(seed).permutation(whole.size("S"))[: 1 + seed % whole.size("S")]
    for batch in (whole, whole.micro(torch.from_numpy(rows))):
        for view in batch.views.values():
            tree, row_M = view.tree()
            read = reads(tree)
            assert len(set(read)) == len(read)
            at = torch.arange(len(read)) if row_M is None else row_M
            assert [read[i] for i in at.tolist()] == reads(view)
            assert contexts(tree) == contexts(view)
            assert tree.pos_M.tolist() == [len(r) - 1 for r in read]
            inside = tree.parent_M >= 0
            assert (tree.seq_M[tree.parent_M[inside]] == tree.seq_M[inside]).all()
            assert len(tree.seq_M.unique()) == int((~inside).sum())


def test_without_sharing_the_tree_is_the_table_itself():
    batch = pack(group(0, 12, [4, 5]), share=NEVER)
    assert batch.inputs.node_M is None and batch.inputs.tree() == (batch.inputs, None)
    part = pack(group(0, 12, [4, 5])).micro(torch.tensor([1]))  # alone it shares with nobody
    assert part.inputs.node_M is not None and part.inputs.tree()[1] is None


@LAW
@given(episode_lists(), st.sampled_from([ANY, WORTH]))
def test_no_level_and_no_row_changes_by_sharing(episodes, share):
    plain, shared = pack(episodes, views=ALL, share=NEVER), pack(episodes, views=ALL, share=share)
    for name, x in plain.columns.items():
        assert torch.equal(x.nan_to_num(), shared.columns[name].nan_to_num()), name
    for view in ALL:
        mine = vars(replace(shared.views[view], node_M=None))
        assert all(x is mine[k] is None or torch.equal(x, mine[k]) for k, x in vars(plain.views[view]).items())


# ---- micro-batches


def computed(batch: Batch) -> int:
    return max(len(v.tree()[0].ids_M) for v in batch.views.values())


def test_the_budget_counts_a_shared_prompt_once():
    whole = pack(group(0, 44, [16] * 8))
    assert len(whole.inputs.ids_M) == 480 and computed(whole) == 44 + 8 * 16
    assert [b.size("S") for b in micro_batches(whole, 172)] == [8]
    assert [b.size("S") for b in micro_batches(pack(group(0, 44, [16] * 8), share=NEVER), 172)] == [2, 2, 2, 2]


def test_a_cut_through_a_group_gives_each_side_the_prompt():
    cut = list(micro_batches(pack(group(0, 44, [16] * 8)), 100))
    assert [b.size("S") for b in cut] == [3, 3, 2]
    assert [computed(b) for b in cut] == [92, 92, 76]


def test_groups_that_lie_scattered_stay_together():
    whole = pack([e for pair in zip(group(0, 20, [5] * 6), group(1, 20, [5] * 6), strict=True) for e in pair])
    for b in micro_batches(whole, 60):
        assert len(b.group_E[b.episode_S].unique()) == 1 and computed(b) == 50


def test_the_longest_come_first_and_their_group_with_them():
    whole = pack([*group(0, 10, [3, 4]), *group(1, 10, [3, 40]), *group(2, 10, [6, 2])])
    assert [b.row_S.tolist() for b in micro_batches(whole, 53)] == [[2, 3], [0, 1, 4, 5]]


GROUP = st.tuples(st.integers(2, 30), st.lists(st.integers(1, 12), min_size=1, max_size=5))


@LAW
@given(st.lists(GROUP, min_size=1, max_size=5), st.integers(0, 80))
def test_every_sequence_is_in_one_micro_batch_within_the_budget_and_few_are_cut(groups, tokens):
    episodes = [e for i, (prompt, lengths) in enumerate(groups) for e in group(i, prompt, lengths)]
    plain, whole = pack(episodes, share=NEVER), pack(episodes)
    cut = list(micro_batches(whole, tokens))
    assert sorted(r for b in cut for r in b.row_S.tolist()) == list(range(len(episodes)))
    assert all(computed(b) <= tokens or b.size("S") == 1 for b in cut)
    assert sum(computed(b) for b in cut) <= sum(computed(b) for b in micro_batches(plain, tokens))
    for b in cut:  # positions of the whole batch
        assert torch.equal(b.inputs.ids_M, whole.inputs.ids_M[b.inputs.row_M])


def test_two_views_share_each_in_its_own_way():
    """Sampled under different hints, learned under one prompt."""
    hinted = group(0, 8, [4] * 3) + [replace_prompt(e, i) for i, e in enumerate(group(1, 8, [4] * 3))]
    whole = pack(hinted, views=("as_sampled",))
    sampled, trained = whole.views["as_sampled"], whole.inputs
    assert len(trained.tree()[0].ids_M) == 2 * (8 + 3 * 4)
    assert len(sampled.tree()[0].ids_M) == 8 + 3 * 4 + 3 * 14
    assert sum(b.size("S") for b in micro_batches(whole, 30)) == 6


def replace_prompt(e, number: int):
    """The same episode, sampled after a hint of its own and learned without it."""
    s = e.sequences[0]
    s.train_as = s.ids[: s.prompt_len].copy()
    for name, fill in (("source", 0), ("logp", np.nan), ("version", -1)):
        old = getattr(s, name)
        setattr(s, name, np.concatenate([np.full(2, fill, old.dtype), old]))
    s.ids = np.concatenate([[60 + number, 70], s.ids])
    s.prompt_len += 2
    e.turns[0].start, e.turns[0].stop = e.turns[0].start + 2, e.turns[0].stop + 2
    return e


def test_a_tree_moves_with_its_batch():
    whole = pack([answer(i) for i in range(3)])
    assert whole.inputs.node_M is not None
    assert whole.to("meta").inputs.node_M.device.type == "meta"


def test_packing_twice_gives_the_same_nodes():
    episodes = random_episodes(3, 5)
    a, b = (pack(episodes, share=ANY).inputs.node_M for _ in range(2))
    assert a is not None and torch.equal(a, b)
