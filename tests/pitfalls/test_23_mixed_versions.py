"""Pitfall 23: "mixed-version trajectories in async". Rule: "per-token weight version".

If the bug came back, a token would not know which weights sampled it: a batch of fresh and remembered answers would
look as if all came from one policy, and the sampler gap would take age for a fault.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import batch_of, running, take_step

from gruppo.data import Source, minibatches, pack, single_turn
from gruppo.data.store import load_episodes, save_episodes
from gruppo.methods import method
from gruppo.stages import need
from gruppo.stages.replay import Recent
from gruppo.stages.walk import recalled
from gruppo.train.forward import serve
from gruppo.train.learner import Tally, sampler_gap

REMEMBERING = method("grpo").but(replay=Recent(take=16, max_age=3))


def test_a_batch_knows_the_version_of_every_token(policy: Path) -> None:
    with running(policy, REMEMBERING) as run:
        batches = [take_step(run, step).batch for step in range(3)]
        for step, batch in enumerate(batches):
            fresh = ~batch.spread(batch.replayed_E, "E", "N")
            assert bool((batch.version_N[fresh] == step).all())
            assert bool((batch.version_N[~fresh] < step).all())
        assert len(set(batches[2].version_N.tolist())) == 3


def test_the_sampler_gap_looks_at_fresh_tokens_only(policy: Path) -> None:
    with running(policy, REMEMBERING) as run:
        take_step(run, 0)
        aged = [recalled(e, "now") for e in run.replay]
        assert take_step(run, 1).facts["sampler_gap_max"] < 1e-3
        batch = batch_of(run, aged, step=2)
        assert "sampler_gap" not in run.learner.tally.means()
        disguised = batch.with_columns(replayed_E=torch.zeros_like(batch.replayed_E))  # the bug: all are fresh
        tally, now = Tally(), serve(run.models["policy"], batch, [need("logp", "old")])["logp_old_N"]
        sampler_gap(tally, disguised, now)
        assert tally.means()["sampler_gap_max"] > 1e-3


def test_an_answer_of_several_versions_keeps_them(tmp_path: Path) -> None:
    """Weights changed while it was written (asynchronous runs): pack, cuts and storage keep each token's."""
    version = np.array([3, 3, 4, 6], np.int32)
    mixed = [
        single_turn(i, "t", f"g{i}", np.array([1, 5]), np.arange(4) + 10, np.full(4, -1.0), version + i)
        for i in range(3)
    ]
    save_episodes(tmp_path / "a.arrow", mixed)
    for episodes in (mixed, load_episodes(tmp_path / "a.arrow")):
        batch = pack(episodes)
        assert batch.version_N.tolist() == [3, 3, 4, 6, 4, 4, 5, 7, 5, 5, 6, 8]
        assert batch.micro(torch.tensor([2])).version_N.tolist() == [5, 5, 6, 8]
        parts = minibatches(batch, 3, "x")
        assert sorted(v for p in parts for v in p.version_N.tolist()) == sorted(batch.version_N.tolist())
    s = mixed[0].sequences[0]
    assert s.version[:2].tolist() == [-1, -1] and bool((s.source[:2] == Source.ENV).all())


def test_one_version_for_an_answer_would_lose_it() -> None:
    """The bug, planted: the version of the end for all tokens."""
    version = np.array([3, 3, 4, 6], np.int32)
    last = single_turn(1, "t", "g", np.array([1]), np.arange(4), np.zeros(4), int(version[-1]))
    assert pack([last]).version_N.tolist() != version.tolist()


@pytest.mark.parametrize("proximal", ["stored", "now"])
def test_remembered_answers_say_which_old_is_meant(policy: Path, proximal: str) -> None:
    with running(policy, method("grpo").but(replay=Recent(take=16, proximal=proximal))) as run:
        take_step(run, 0)
        batch = batch_of(run, [recalled(e, "now") for e in run.replay], step=1)
        gap = (batch.logp_old_N - batch.note_logp_old_N).abs().max()
        assert (float(gap) < 1e-6) == (proximal == "stored")
