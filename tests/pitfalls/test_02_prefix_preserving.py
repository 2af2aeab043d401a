"""Pitfall 2: "chat template not prefix-preserving". Rule: "incremental rendering …; else fork the row, never mask
silently".

Here the prompts that a room rewrites (hints), and a template that cannot be extended; others in several turns:
tests/policies/test_chat.py and tests/envs/test_token_laws.py. If the bug came back, a prompt would be rendered anew
instead of extended, or a sequence learned under another prompt would pass as on-policy: its log-probabilities would be
compared with a sampler that saw something else.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import batch_of, drawn, in_world, running, take_step

from gruppo.methods import method
from gruppo.stages import Ask, Context
from gruppo.stages.curriculum import Uniform
from gruppo.stages.prompting import Hint, plain, prompts_for


@dataclass(frozen=True)
class Hinted(Uniform):
    """Half of the solution is given."""

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        return [replace(ask, how={"hint": 0.5}) for ask in super().__call__(ctx, tasks)]


def test_a_hint_extends_the_prompt(policy: Path) -> None:
    with running(policy) as run:
        ctx, task = run.context(0), run.tasks.train[0]
        short = plain(ctx, Ask(task, 1))[0].ids
        for share in (0.0, 0.3, 1.0):
            long = prompts_for(ctx, (Hint(),), Ask(task, 1, how={"hint": share}))[0].ids
            assert np.array_equal(long[: len(short)], short)
        anew = ctx.tokenizer.encode(task.solution[:3] + task.prompt)  # the bug: rendered with the hint in front
        assert not np.array_equal(anew[: len(short)], short)


def test_another_prompt_is_a_marked_row(policy: Path) -> None:
    furniture = method("grpo").but(curriculum=Hinted(), prompting=Hint(learn_without=True))
    with running(policy, furniture) as run:
        batch = batch_of(run, drawn(run))
        assert bool(batch.changed_S.all()) and not bool(batch.on_policy_N.any())
        assert bool(batch.learn_N.all())  # marked, not masked: the tokens are learned
        assert gap_of(run, batch) is None

        unmarked = batch.with_columns(changed_S=torch.zeros_like(batch.changed_S))  # the bug
        assert gap_of(run, unmarked) > 0.1


def gap_of(run: Any, batch: Any) -> float | None:
    run.learner.grad("policy", batch)
    return run.learner.tally.means().get("sampler_gap")


def test_a_hint_that_stays_is_on_policy(policy: Path) -> None:
    furniture = method("grpo").but(curriculum=Hinted(), prompting=Hint())
    with running(policy, furniture) as run:
        batch = batch_of(run, drawn(run))
        assert not bool(batch.changed_S.any())
        assert gap_of(run, batch) < 1e-4
        assert torch.equal(batch.on_policy_N, batch.learn_N)  # hints are decisions, but nobody sampled them


def test_a_template_that_cannot_be_extended_begins_a_new_row(tmp_path: Path) -> None:
    """Every turn is a row with the prompt it was sampled under: nothing is masked, and the sampler agrees."""
    pytest.importorskip("transformers")
    from chat_templates import GONE
    from hf_models import hf_folder

    folder = hf_folder(tmp_path / "model", template=GONE, max_position_embeddings=160)
    with running(folder, task=in_world(tmp_path)) as run:
        batch = batch_of(run, drawn(run))
        assert batch.size("S") == batch.size("K") == 3 * batch.size("E")
        assert bool(batch.learn_N.all()) and torch.equal(batch.on_policy_N, batch.learn_N)
        assert gap_of(run, batch) < 1e-4
        take_step(run)
