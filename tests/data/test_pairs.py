"""Pairs of episodes: made without loops, carried through minibatches, micro-batches and files; the mismatched view."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.data import VIEWS, Batch, Episode, Key, Pairs, Status, Use, minibatches, pack, single_turn
from gruppo.data.pairs import inside, widest
from gruppo.data.store import load_episodes, save_episodes
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import method
from gruppo.stages import Context
from gruppo.stages.relations import PairUp

CTX = Context(step=3, seed=1)


def answer(uid: int, group: str, reward: float, prompt: tuple[int, ...] = (1, 2), length: int = 2) -> Episode:
    ids = np.arange(5, 5 + length)
    return single_turn(uid, "t", group, np.array(prompt), ids, np.zeros(length), 0, reward={"task": reward})


def paired(episodes: list[Episode], most: int = 0) -> Batch:
    batch = pack(episodes, dtype=torch.float64)
    return batch.with_columns(**PairUp(most=most)(CTX, batch))


def by_uid(batch: Batch) -> set[tuple[int, int, float]]:
    p, uid = batch.pairs, batch.uid_E
    return {*zip(uid[p.win_P].tolist(), uid[p.lose_P].tolist(), p.margin_P.tolist(), strict=True)}


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=0, max_size=12)


@settings(deadline=None)
@given(ROWS, st.integers(0, 2))
def test_inside_is_every_pair_of_a_part_whose_values_differ(rows: list[tuple[int, int, bool]], gap: int) -> None:
    part = torch.tensor([p for p, _, _ in rows], dtype=torch.int64)
    value = torch.tensor([float(v) for _, v, _ in rows], dtype=torch.float64)
    where = torch.tensor([w for _, _, w in rows], dtype=torch.bool)
    found = inside(Key(part, 4), value, where, float(gap))
    wanted = [
        (i, j)
        for i, (p, v, w) in enumerate(rows)
        for j, (q, u, x) in enumerate(rows)
        if p == q and w and x and v - u > gap
    ]
    assert sorted(zip(found.win_P.tolist(), found.lose_P.tolist(), strict=True)) == sorted(wanted)
    assert torch.equal(found.margin_P, found.gap(value))


@settings(deadline=None)
@given(ROWS, st.integers(1, 3))
def test_widest_keeps_the_widest_of_each_part(rows: list[tuple[int, int, bool]], most: int) -> None:
    part = torch.tensor([p for p, _, _ in rows], dtype=torch.int64)
    value = torch.tensor([float(v) for _, v, _ in rows], dtype=torch.float64)
    every = inside(Key(part, 4), value, torch.ones(len(rows), dtype=torch.bool))
    some = widest(every, part[every.win_P], most, torch.rand(len(every)))
    for p in range(4):
        all_, kept = (sorted(x.margin_P[part[x.win_P] == p].tolist(), reverse=True) for x in (every, some))
        assert kept == all_[:most]
    assert len(widest(every, part[every.win_P], 0, torch.rand(len(every)))) == len(every)


def test_equal_gaps_are_drawn_by_key_and_not_by_place() -> None:
    episodes = [answer(i, "g", float(i % 2)) for i in range(8)]
    first = by_uid(paired(episodes, most=1))
    assert first == by_uid(paired(episodes[::-1], most=1)) and len(first) == 1
    batch = pack(episodes, dtype=torch.float64)
    drawn = {PairUp()(replace(CTX, step=s), batch)["win_P"].item() for s in range(30)}
    assert len(drawn) > 1, "another step draws another pair"


def test_minibatches_count_again_and_number_anew() -> None:
    episodes = [answer(10 * g + i, f"g{g}", float(i)) for g in range(5) for i in range(3)]
    whole = paired(episodes)
    parts = minibatches(whole, 3, 7)
    assert len(parts) == 3
    assert set.union(*map(by_uid, parts)) == by_uid(whole) and sum(p.size("P") for p in parts) == 15
    for part in parts:
        assert torch.equal(part.pairs.gap(part.reward_E), part.pairs.margin_P)
        assert len(part.pairs) == 3 * part.size("G")


def test_a_minibatch_of_half_a_pair_has_no_pair() -> None:
    whole = paired([answer(i, "g", float(i)) for i in range(3)])
    part = whole.minibatch(torch.tensor([2, 0]))
    assert by_uid(part) == {(2, 0, 2.0)}
    assert (part.pairs.win_P.tolist(), part.pairs.lose_P.tolist()) == ([0], [1])
    assert whole.minibatch(torch.tensor([1])).size("P") == 0


def test_a_pair_of_two_groups_is_not_lost_in_silence() -> None:
    batch = pack([answer(i, f"g{i}", float(i)) for i in range(4)], dtype=torch.float64)
    rows = {"win_P": torch.tensor([3]), "lose_P": torch.tensor([0]), "margin_P": torch.tensor([3.0])}
    batch = batch.with_columns(**rows)
    assert minibatches(batch, 1)[0].size("P") == 1
    with pytest.raises(ValueError, match=r"minibatches=4 would part episodes .* a pair"):
        minibatches(batch, 4, 0)


def test_a_micro_batch_keeps_all_pairs() -> None:
    whole = paired([answer(i, "g", float(i)) for i in range(3)])
    micro = whole.micro(torch.tensor([1]))
    assert (micro.size("N"), micro.size("P")) == (2, 3)
    assert torch.equal(micro.pairs.win_P, whole.pairs.win_P)


def test_pairs_go_to_a_device_and_through_columns() -> None:
    whole = paired([answer(i, "g", float(i)) for i in range(3)])
    assert by_uid(whole.to("cpu")) == by_uid(whole)
    assert by_uid(whole.with_columns(x_P=torch.zeros(3))) == by_uid(whole)
    assert whole.with_columns(x_P=torch.arange(3.0)).minibatch(torch.tensor([0, 1])).x_P.shape == (1,)
    with pytest.raises(ValueError, match="column x_P has 2 rows, level P has 3"):
        whole.with_columns(x_P=torch.zeros(2))
    with pytest.raises(ValueError, match=r"lies in no level above it.*pairs\.gap"):
        whole.up("P", "E")
    assert pack([answer(0, "g", 1.0)]).size("P") == 0
    with pytest.raises(ValueError, match=r"no pairs.*pair_up"):
        _ = pack([answer(0, "g", 1.0)]).pairs


def test_pairs_survive_save_and_load(tmp_path: Path) -> None:
    """Pairs are a function of groups, rewards and uids: episodes that come back make the same ones."""
    episodes = random_episodes(3)
    save_episodes(tmp_path / "e.arrow", episodes)
    assert by_uid(paired(load_episodes(tmp_path / "e.arrow"))) == by_uid(paired(episodes)) != set()


@pytest.mark.parametrize("name", ["dpo", "ipo", "orpo", "simpo", "kto"])
@pytest.mark.parametrize("seed", range(3))
def test_minibatches_add_up_to_the_whole(name: str, seed: int) -> None:
    """Means over the pairs of a minibatch, weighed by their number, are the mean over all pairs.

    Not for KTO's point of reference and ORPO's likelihood, which have counts of their own: there it is the number of
    rows only.
    """
    world = World(method(name), seed)
    batch = world.prepared(world.packed(random_episodes(seed, groups=4)))
    parts = minibatches(batch, 2, seed)
    assert sum(p.size("P") for p in parts) == batch.size("P")
    if name in ("kto", "orpo"):
        return
    whole = world.grad(batch, cut=random_cut(batch, seed)) * batch.size("P")
    added = sum(world.grad(p, cut=random_cut(p, seed)) * p.size("P") for p in parts)
    assert torch.allclose(whole, added, rtol=1e-9, atol=1e-11) and float(whole.norm()) > 0


# the mismatched view


def view(episodes: list[Episode]) -> list[tuple[list[int], list[int]]]:
    return [(ids.tolist(), at.tolist()) for ids, at in VIEWS["mismatched"](episodes)]


def test_answers_stand_under_the_prompt_of_another_group() -> None:
    episodes = [answer(i, g, 0.0, prompt, 1 + i) for i, (g, prompt) in enumerate([("a", (1, 3)), ("b", (1, 4, 4))])]
    assert view(episodes) == [([1, 4, 4, 5], [3]), ([1, 3, 5, 6], [2, 3])]
    three = [answer(i, g, 0.0, (1, 20 + i)) for i, g in enumerate("abc")]
    lent = [ids[1] for ids, _ in view(three)]
    assert sorted(lent) == [20, 21, 22] and all(p != 20 + i for i, p in enumerate(lent))
    assert [ids[1] for ids, _ in view(three[::-1])] == lent[::-1], "the order of the episodes does not matter"


def test_failed_and_unused_episodes_lend_no_prompt() -> None:
    good = [answer(5, "a", 1.0, (1, 7)), answer(6, "b", 1.0, (1, 8))]
    for change in ({"status": Status.ENV_ERROR}, {"use": Use.NONE}, {"use": Use.BASELINE}, {"status": Status.OPEN}):
        bad = [replace(answer(0, "a", 1.0, (1, 9)), **change), replace(answer(1, "c", 1.0, (1, 9)), **change)]
        assert view([*bad, *good])[2:] == view(good)
    assert view([replace(e, status=Status.TIMEOUT) for e in good]) == [([1, 7, 5, 6], [2, 3]), ([1, 8, 5, 6], [2, 3])]


def test_with_one_group_the_prompt_is_its_own() -> None:
    assert view([answer(0, "a", 1.0, (1, 7))]) == [([1, 7, 5, 6], [2, 3])]
    assert view([]) == []


def test_the_view_is_scored_as_the_answer_under_that_prompt() -> None:
    """log π of the view is log π of a sequence written so."""
    from gruppo.stages import need
    from gruppo.train.forward import serve

    world = World(method("kto"), 0)
    episodes = [answer(0, "a", 1.0, (1, 7, 3)), answer(1, "b", 0.0, (1, 8), 3)]
    batch = pack(episodes, views=["mismatched"], dtype=torch.float64)
    got = serve(world.models["policy"], batch, [need("logp", when="step", view="mismatched")])["logp_mismatched_N"]
    swapped = pack([answer(0, "a", 1.0, (1, 8)), answer(1, "b", 0.0, (1, 7, 3), 3)], dtype=torch.float64)
    wanted = serve(world.models["policy"], swapped, [need("logp", when="step")])["logp_N"]
    assert torch.allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_every_decision_has_a_place_in_the_view(seed: int) -> None:
    """Given tokens, several sequences, prompts to learn under: as many places as decisions, none the very first."""
    batch = pack(random_episodes(seed), views=["mismatched"])
    inputs = batch.views["mismatched"]
    assert len(inputs.at_N) == batch.size("N") and bool((inputs.parent_M[inputs.at_N] >= 0).all())
    mine = batch.source_N == 1
    assert torch.equal(inputs.ids_M[inputs.at_N][mine], batch.token_N[mine])


def test_pairs_is_a_small_table() -> None:
    pairs = Pairs(torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))
    assert len(pairs) == 2 and pairs.both(torch.tensor([True, True, False])).tolist() == [True, False]
    assert pairs.gap(torch.tensor([3.0, 1.0, 0.0])).tolist() == [2.0, -1.0]
