"""What a step counts: copied prefixes once, and no group that the replay or experts alone have made."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from making_episodes import answer, random_episodes

from gruppo.data import Growing, Source, Use, minibatches, pack, tokens_once
from gruppo.pieces import aggregate
from gruppo.train.metrics import batch_metrics, episode_metrics


@pytest.mark.parametrize("seed", range(20))
def test_tokens_of_branches_are_those_that_were_sampled(seed: int) -> None:
    """Law: over a tree of branches, as many tokens as somebody sampled; and never more than all copies have."""
    rng, sampled = np.random.default_rng(seed), 0
    root = Growing(0, "t", "g")
    root.begin(np.array([1, 2]))
    tree = [root]
    for _ in range(12):
        now = tree[int(rng.integers(len(tree)))]
        n = int(rng.integers(0, 4))
        now.act(np.full(n, 5), np.full(n, -1.0, np.float32), 0)
        sampled += n
        if rng.random() < 0.2:
            now.begin(np.array([7]))
        if rng.random() < 0.5:
            tree.append(now.fork(len(tree), int(rng.integers(len(now.turns)))))
    episodes = [g.finish(reward={"task": 1.0}) for g in tree if g.turns]
    assert tokens_once(episodes) == tokens_once(episodes, Source.POLICY) == sampled <= sum(e.tokens for e in episodes)
    assert tokens_once(episodes, Source.EXPERT) == tokens_once([]) == 0
    assert episode_metrics(episodes)["tokens"] == sampled
    for e in episodes:
        assert tokens_once([e]) == e.tokens
    assert tokens_once(random_episodes(seed, 4), Source.POLICY) <= sum(e.tokens for e in random_episodes(seed, 4))


def test_a_shared_prefix_counts_once_although_its_first_author_is_not_there() -> None:
    root = Growing(0, "t", "g")
    root.begin(np.array([1]))
    root.act(np.full(5, 3), np.zeros(5, np.float32), 0)
    one, two = (root.fork(uid, 0, 4) for uid in (1, 2))
    for g in (one, two):
        g.act(np.full(2, 4), np.zeros(2, np.float32), 0)
    made = [g.finish() for g in (root, one, two)]
    assert [e.tokens for e in made] == [5, 5, 5]
    assert (tokens_once(made), tokens_once(made[1:]), tokens_once(made[:2])) == (9, 7, 7)
    assert episode_metrics(made)["shared"] == pytest.approx(6 / 15)  # of 15 tokens nine were sampled
    assert "shared" not in episode_metrics(made[:1])  # nothing has branched


@pytest.mark.parametrize("others", [{"replayed": True}, {"use": Use.APART}, {"use": Use.APART, "replayed": True}])
def test_groups_that_this_step_did_not_draw_are_not_counted(others: dict[str, object]) -> None:
    """Law: with them or without, the step has drawn as many groups, and its rows weigh as much in their mean."""
    mine = [answer(i, 2, group=f"g{i // 2}", reward={"task": float(i % 2)}) for i in range(6)]
    past = [answer(10 + i, 3, group=f"g{i}@0", reward={"task": 1.0}) for i in range(3)]
    past = [replace(e, **others) for e in past]
    among = replace(answer(20, 1, group="g0", reward={"task": 1.0}), **others)
    drawn = {"g0": 2, "g1": 4, "g2": 2, "gone": 2}
    alone, joined = pack(mine, drawn=drawn), pack([*mine, *past, among], drawn=drawn)
    assert joined.drawn == alone.drawn == 4 and joined.drawn_G.tolist() == [2, 4, 2, 0, 0, 0]
    assert batch_metrics(joined)["groups"] == batch_metrics(alone)["groups"] == 3.0
    first = torch.arange(joined.size("N")) < alone.size("N")
    over = torch.ones(alone.size("N"), dtype=torch.bool)
    weight = aggregate.weights(joined, "N", first, "drawn_group")
    assert torch.equal(weight[first], aggregate.weights(alone, "N", over, "drawn_group"))
    shares = [batch_metrics(b, recalls=True)["replayed"] for b in (alone, joined)]
    assert shares == pytest.approx([0.0, 0.4 if others.get("replayed") else 0.0])
    assert "replayed" not in batch_metrics(joined)
    parts = minibatches(joined, 3, 0)
    assert len(parts) == 3 and sum(p.drawn for p in parts) == pytest.approx(joined.drawn)
    nothing, every = pack(past), torch.ones(9, dtype=torch.bool)
    assert nothing.drawn == 0 and batch_metrics(nothing)["groups"] == 0.0
    assert torch.isfinite(aggregate.weights(nothing, "N", every, "drawn_group")).all()
