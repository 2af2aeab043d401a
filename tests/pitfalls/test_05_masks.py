"""Pitfall 5: "masks: tool/user/pad tokens in loss, in KL, in entropy, in the denominator, in metrics". Rule: "one
mask per purpose; property: changing a masked-out token's logp never changes the loss".

If the bug came back, given tokens (hints here), unused and failed episodes would move J, carry a gradient, be
counted in a denominator or in a mean that is logged.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import answer, batch_of, drawn, far, grad_of, in_world, running

from gruppo.data import Batch, Source, pack
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages.penalties import EntropyBonus
from gruppo.train.metrics import batch_metrics, episode_metrics

NAMES = ("reinforce", "rloo", "grpo", "dapo", "ppo", "disco")


def moved(batch: Batch, stats: dict[str, Any]) -> tuple[Batch, dict[str, Any]]:
    """Every number of a masked-out token is another one."""
    out = (batch.source_N != Source.POLICY) | ~batch.spread(batch.learn_E, "E", "N")
    assert bool(out.any()) and bool((out & batch.spread(batch.learn_E, "E", "N")).any())  # hints in live episodes too
    names = ("logp_old_N", "logp_ref_N", "adv_N", "ret_N", "value_critic_N")
    columns = {k: torch.where(out, v + 3.0, v) for k, v in batch.columns.items() if k in names}
    return batch.with_columns(**columns), {k: torch.where(out, v - 2.5, v) for k, v in stats.items()}


@pytest.mark.parametrize("name", NAMES)
def test_masked_out_tokens_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def values() -> list[float]:
        """J of each role, with the numbers of masked-out tokens as they are and with others."""
        world = World(method(name).but(penalties=EntropyBonus(entropy_coef=0.1)), seed=1)
        batch = world.prepared(world.packed(random_episodes(1)))
        out = []
        for role in world.learner.trained:
            stats = world.statistics(batch, role)
            out += [float(world.value(*pair, role)) for pair in ((batch, stats), moved(batch, stats))]
        return out

    right = values()
    assert right[0::2] == right[1::2]
    monkeypatch.setattr(Batch, "policy_N", property(lambda b: torch.ones_like(b.keep_N)))  # the bug: one mask of ones
    assert max(abs(a - b) for a, b in zip(right, values(), strict=True)) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_denominators_count_what_is_learned(name: str) -> None:
    world = World(method(name).but(penalties=EntropyBonus()), seed=1)
    batch = world.prepared(world.packed(random_episodes(1)))
    for role in world.learner.trained:
        terms = world.goal(role).terms(batch)
        for term in (t for t in terms if t.at == "N"):
            weight = term.weights(batch)
            assert float(weight[~batch.policy_N].abs().sum()) == 0.0
            if term.mean == "token":
                assert float(weight.sum()) == pytest.approx(1.0)
                assert torch.equal(weight > 0, term.over) and int(term.over.sum()) < batch.size("N")


def test_a_token_that_selection_dropped_leaves_the_objective_but_not_the_penalties() -> None:
    """Two purposes, two masks."""
    world = World(method("dapo").but(penalties=EntropyBonus()), seed=1)
    batch = world.prepared(world.packed(random_episodes(1)))
    half = batch.with_columns(keep_N=torch.arange(batch.size("N")) % 2 == 0)
    policy, _, bonus = world.goal().terms(half)
    assert torch.equal(policy.over, half.policy_N & half.keep_N)
    assert torch.equal(bonus.over, half.policy_N) and int(bonus.over.sum()) > int(policy.over.sum())


def test_metrics_count_sampled_tokens() -> None:
    hinted = np.array([Source.ENV, Source.HINT, Source.HINT], np.int8)
    episodes = [answer(1, 1.0, tokens=4, prompt_source=hinted), answer(2, 0.0, tokens=2)]
    facts = episode_metrics(episodes)
    assert facts["length"] == 3.0 and facts["tokens"] == 6.0
    assert np.mean([len(e.sequences[0].ids) for e in episodes]) == 6.0  # the bug: prompts in the length
    sampled = np.concatenate([e.sequences[0].logp[3:] for e in episodes])
    assert facts["entropy"] == pytest.approx(-sampled.mean(), rel=1e-6)
    batch = pack(episodes)
    assert batch.size("N") == 8 and batch_metrics(batch)["kept"] == 1.0  # two hints are decisions, never learned


def test_the_share_of_live_advantages_looks_at_learned_tokens() -> None:
    """2 of 4 learned tokens have an advantage; the dropped one, which has another, does not count."""
    batch = pack([answer(1, 1.0, tokens=3), answer(2, 0.0, tokens=2)])
    adv_N = torch.tensor([0.0, 0.5, 0.0, -0.5, 7.0])
    facts = batch_metrics(batch.with_columns(adv_N=adv_N, keep_N=torch.tensor([True] * 4 + [False])))
    assert facts["adv_live"] == 0.5
    assert batch_metrics(batch.with_columns(adv_N=torch.zeros(5)))["adv_live"] == 0.0


def test_the_longest_answer_of_a_step_has_no_tokens_of_earlier_steps() -> None:
    """Six tokens, of which four are of older weights, against three of this step."""
    old, new = answer(1, 1.0, tokens=6), answer(2, 0.0, tokens=3)
    old.sequences[0].version[-6:] = [4, 4, 4, 4, 5, 5]
    new.sequences[0].version[-3:] = 5
    assert episode_metrics([old, new])["longest"] == 3.0 and episode_metrics([old])["longest"] == 2.0


def test_what_a_world_says_is_neither_learned_nor_counted(policy: Path, tmp_path: Path) -> None:
    with running(policy, task=in_world(tmp_path)) as run:
        episodes = drawn(run)
        batch = batch_of(run, episodes)
        sampled = sum(t.stop - t.start for e in episodes for t in e.turns)
        heard = sum(len(s.ids) - s.prompt_len for e in episodes for s in e.sequences) - sampled
        assert heard >= 4 * len(episodes) and batch.size("N") == int(batch.learn_N.sum()) == sampled
        assert episode_metrics(episodes)["tokens"] == sampled

        wrong = [replace(e, sequences=[all_learned(s) for s in e.sequences]) for e in episodes]  # the bug
        bugged = batch_of(run, wrong)
        assert bugged.size("N") == sampled + heard
        assert far(grad_of(run, batch), grad_of(run, bugged)) > 0.05


def all_learned(s: Any) -> Any:
    """Everything after the prompt passes as sampled."""
    after = np.arange(len(s.ids)) >= s.prompt_len
    return replace(
        s,
        source=np.where(after, Source.POLICY, s.source).astype(np.int8),
        logp=np.where(after & np.isnan(s.logp), -1.0, s.logp).astype(np.float32),
        version=np.where(after, 0, s.version).astype(np.int32),
    )
