"""Pitfall 20: "truncated completions: masked, penalised or bootstrapped? length metrics after masking". Rule: "stop
reason is a field; three named policies".

If the bug came back, an answer whose <eos> is its last allowed token would pass as truncated, one that was cut off
as finished, or the logged length would be that of the answers that happened to be learned.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import EOS, answer, batch_of, drawn, in_world, running, take_step
from torch import Tensor

from gruppo.data import Batch, Status, pack
from gruppo.methods import method
from gruppo.stages import Context, Occupant, Sampling, Stats
from gruppo.stages.credit import Gae
from gruppo.stages.reward import OverlongShaping


def test_the_stop_reason_is_what_the_sampler_said(policy: Path) -> None:
    """The same answers (same keys) under a shorter limit: an <eos> on the very last place is an end."""
    with running(policy, sampling=Sampling(8)) as run:
        long = drawn(run)
    ended = [e for e in long if e.status == Status.OK]
    limit = sorted({e.tokens for e in ended})[1]
    with running(policy, sampling=Sampling(limit)) as run:
        short = {e.uid: e for e in drawn(run)}
    edge = [short[e.uid] for e in ended if e.tokens == limit]
    assert edge and all(e.status == Status.OK and e.sequences[0].ids[-1] == EOS for e in edge)
    assert all(e.tokens == limit for e in edge)  # the bug, "as long as the limit, so truncated", would be wrong here
    cut = [e for e in short.values() if e.sequences[0].ids[-1] != EOS]
    assert cut and all(e.status == Status.TRUNCATED for e in cut)


def test_as_it_is(policy: Path) -> None:
    """The plain default: judged and learned like any other."""
    with running(policy) as run:
        batch = batch_of(run, drawn(run))
        cut = batch.status_E == Status.TRUNCATED
        assert bool(cut.any()) and bool(batch.judged_E[cut].all()) and bool(batch.learn_E[cut].all())


def test_penalised(policy: Path) -> None:
    with running(policy, method("grpo").but(reward=OverlongShaping(buffer_tokens=4))) as run:
        for e in drawn(run):
            assert e.reward["overlong"] == pytest.approx(-max(e.tokens - 4, 0) / 4)
            assert e.total == pytest.approx(e.reward["task"] + e.reward["overlong"])


@dataclass(frozen=True)
class WithoutTruncated(Occupant):
    """Cut-off answers stay in the statistics, but nothing is learned from them."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        keep = batch.spread(batch.status_E != Status.TRUNCATED, "E", "N")
        return keep, torch.ones_like(batch.weight_N)


def test_masked_without_touching_the_metrics(policy: Path) -> None:
    rows = []
    for select in ((), (WithoutTruncated(),)):
        with running(policy, method("grpo").but(select=select)) as run:
            rows.append(take_step(run))
    plain, masked = rows
    for name in ("length", "truncated", "tokens", "reward", "entropy"):
        assert plain.facts[name] == masked.facts[name]
    assert masked.facts["kept"] < 0.7 < plain.facts["kept"] == 1.0
    cut_N = masked.batch.spread(masked.batch.status_E == Status.TRUNCATED, "E", "N")
    assert not bool((masked.batch.learn_N & cut_N).any()) and torch.equal(plain.batch.adv_N, masked.batch.adv_N)
    learned = np.mean([e.tokens for e in masked.episodes if e.status == Status.OK])
    assert learned < masked.facts["length"] - 1  # the bug: lengths of what was learned


def test_bootstrapped() -> None:
    """As Gae's docstring promises: an unfinished episode goes on with the value it has."""
    episodes = [answer(1, {}, status=Status.OPEN, tokens=3), answer(2, 1.0, tokens=3)]
    batch = pack(episodes, dtype=torch.float64)
    batch = batch.with_columns(value_critic_N=torch.full_like(batch.weight_N, 0.7))
    ret = Gae(gamma=1.0, lam=1.0)(Context(), batch)["ret_N"]
    assert ret[:3].tolist() == pytest.approx([0.7] * 3)


def test_an_open_episode_has_no_reward_and_teaches_nothing() -> None:
    batch = pack([replace(answer(1, 1.0), status=Status.OPEN), answer(2, 0.0)])
    assert batch.judged_E.tolist() == [False, True] and bool(torch.isnan(batch.reward_E[0]))


def test_an_action_that_was_cut_off_is_no_episode_that_was(policy: Path, tmp_path: Path) -> None:
    """In a world the flag is of the turn: the world hears what there is, and the episode goes on to its end."""
    with running(policy, task=in_world(tmp_path), sampling=Sampling(4)) as run:
        episodes = drawn(run)
    turns = [(e, t) for e in episodes for t in e.turns]
    cut = [t for e, t in turns if e.sequences[0].ids[t.stop - 1] != EOS]
    assert 0 < len(cut) < len(turns) and all(("truncated" in t.flags) == (t in cut) for _, t in turns)
    assert {e.status for e in episodes} == {Status.OK} and {len(e.turns) for e in episodes} == {3}
