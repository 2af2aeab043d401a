"""Rollouts of their own on the bench: hints, drafts, exits and temperatures.

Figures for all of them. The expected gradient of two once more by plain sampling: an engine that writes token by token,
and the trainer's own gradient.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import pack
from gruppo.engines.base import Completion, Request
from gruppo.lab.exact.figures import Row, lab
from gruppo.lab.exact.trial import ExactJudge
from gruppo.lab.exact.world import ExactWorld, TablePolicy
from gruppo.methods import method
from gruppo.stages import Ask, Context, Memory, Sampling
from gruppo.stages.walk import Walk
from gruppo.train.learner import Learner, OptimConfig

OWN = ("aepo", "igrpo", "s_grpo", "scaf_grpo", "seele")
THREE = ExactWorld(rates=(0.3, 0.6), answers=("", "a", "bb"), right=("a", "bb"))  # the hint of "bb" leaves one way
HARD = ExactWorld(rates=(0.1,), answers=("", "a", "bb"), right=("a", "bb"))
FIVE = ExactWorld(rates=(0.4,), answers=("a", "aa", "ab", "b", ""), right=("ab", "a"))  # after the hint "a" are three


def stated_error(row: Row) -> float:
    """What the row says of what it sampled, as a share of the expected gradient; 1 % more, since it is rounded."""
    said = re.findall(r"an error of about (\d+)%", " ".join(row.says))
    return float(said[0]) / 100 + 0.01 if said else 0.0


@pytest.mark.parametrize("name", OWN)
def test_a_rollout_of_its_own_has_figures(name: str) -> None:
    row = lab([name], FIVE, samples=3, steps=1).rows[0]
    f = row.figures
    assert f is not None, row.says
    assert not row.exact and 0 < stated_error(row) < 1 and "not done" not in " ".join(row.says)
    assert np.isfinite(f.expected).all() and float(np.abs(f.expected).max()) > 1e-4
    assert f.cosine is not None and -1 <= f.cosine <= 1 and f.variance > 0 and len(f.success) == 2
    assert all(sum(m[step] for m in p.mass.values()) == pytest.approx(1.0) for p in f.prompts for step in range(2))


def test_they_say_what_is_not_as_in_a_run() -> None:
    rows = {r.method: " ".join(r.says) for r in lab(OWN, FIVE, samples=2, steps=0).rows}
    assert all("draws random numbers of its own, which are sampled" in said for said in rows.values())
    assert {n for n, said in rows.items() if "reads over drafts and inducers" in said} == {"igrpo", "s_grpo"}


# by plain sampling


class Writes:
    """Samples every token from the table of a policy, by numpy: no draw, no enumeration."""

    can: frozenset[str] = frozenset()
    version = sampled = 0

    def __init__(self, world: ExactWorld, seed: int) -> None:
        self.world, self.rng = world, np.random.default_rng(seed)
        self.rows_XV = TablePolicy(world, world.theta).rows().detach().numpy()
        self.next_XV = world.next_XV.numpy()
        self.heated = self.begun = 0

    async def generate(self, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Completion]]:
        for i, request in enumerate(requests):
            self.heated += request.temperature != 1
            self.begun += len(request.prefix) > 2
            state, ids, logp = 0, list[int](), list[float]()
            for token in request.prefix.tolist():
                state = self.next_XV[state, token]
            while len(ids) < request.max_tokens and (not ids or ids[-1] != self.world.tokenizer.eos):
                z = self.rows_XV[state] / request.temperature
                p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
                ids.append(int(self.rng.choice(len(p), p=p)))
                logp.append(float(np.log(p[ids[-1]])))
                state = self.next_XV[state, ids[-1]]
            reason = "stop" if ids[-1] == self.world.tokenizer.eos else "length"
            yield i, Completion(np.array(ids), np.array(logp), np.zeros(len(ids), np.int32), reason)


def sampled(name: str, world: ExactWorld, samples: int, steps: int) -> tuple[Tensor, Writes]:
    """The gradients of so many steps, each with luck of its own: the rooms, and the trainer's gradient."""
    m = method(name)
    policy = TablePolicy(world, world.theta)
    models = {role: policy if role == "policy" else TablePolicy(world, world.theta) for role in m.cast}
    learner, engine = Learner(m, models, OptimConfig()), Writes(world, 0)

    def packed(episodes: Any, drawn: Any = None, views: Any = ()) -> Any:
        return pack(episodes, drawn=drawn, views=views, dtype=torch.float64)

    walk = Walk(m, learner.read, world.tasks, ExactJudge(world), packed)
    longest = max(map(len, world.answers)) + 1
    rows = []

    async def draw(ctx: Context, ask: Ask) -> Any:
        drawn = await walk.drawn(ctx, [ask], m.rollout)
        return drawn, await walk.compared(ctx, drawn)

    with asyncio.Runner() as runner:
        for step in range(steps):
            ctx = Context(seed=step, step=8, steps=40, memory=Memory(), engine=engine, tokenizer=world.tokenizer,
                          samples=samples, sampling=Sampling(max_tokens=longest + 1))  # fmt: skip
            walk.opened(ctx)
            learner.begin(ctx)
            q = step % len(world.rates)
            drawn, kept = runner.run(draw(ctx, Ask(world.tasks[q], samples, index=q)))
            batch = walk.batch_of(ctx, drawn, kept, lazy=False)
            assert batch is not None
            rows.append(-learner.gradient("policy", walk.credited(ctx, batch)))
    return torch.stack(rows), engine


def agree(row: Row, got: Tensor, prompts: int) -> tuple[Tensor, float]:
    """The mean of these steps, and how far from it the row's expected gradient may be, which it is checked to be: the
    error that the row states, and four standard errors of the mean."""
    assert row.figures is not None
    mean, want = got.mean(0), torch.tensor(row.figures.expected, dtype=torch.float64)
    by_prompt = [got[q::prompts] for q in range(prompts)]
    noise = sum(float(g.var(0).sum()) / len(g) for g in by_prompt) / prompts**2
    assert noise == pytest.approx(row.figures.variance / len(got), rel=0.25)  # so the variance is right, too
    allowed = 4 * noise**0.5 + stated_error(row) * float(want.norm())
    assert float((mean - want).norm()) < allowed
    return mean, allowed


def test_the_expected_gradient_with_hints_is_the_mean_of_many_steps() -> None:
    """Nearly all groups are wrong at first, so most of the gradient comes from hints: GRPO's is far away from it."""
    steps = 250  # 1,500 with the slow test below
    ours, plain = lab(["scaf_grpo", "grpo"], HARD, samples=2, steps=0).rows
    got, engine = sampled("scaf_grpo", HARD, 2, steps)
    assert engine.begun > steps / 2  # answers that begin with a hint
    mean, allowed = agree(ours, got, 1)
    assert plain.figures is not None
    other = torch.tensor(plain.figures.expected, dtype=torch.float64)
    assert float((mean - other).norm()) > allowed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mechanism"), [("scaf_grpo", "begun"), ("aepo", "heated")], ids=["hints", "temperatures"]
)
def test_the_expected_gradient_is_the_mean_of_many_steps(name: str, mechanism: str) -> None:
    got, engine = sampled(name, THREE, 4, 1500)
    assert getattr(engine, mechanism) > len(got) / 20  # the rollout did what it is for
    agree(lab([name], THREE, samples=4, steps=0).rows[0], got, 2)


# as before the refit

# (cosine, scale, bias, variance) of `lab([name], THREE, samples=4, steps=0, off_policy=…)`, as the tree of commit
# 783825d printed them, the last one before the laboratory was written on `stages.walk` and `stages.goal`.
BEFORE = {
    ("grpo", 0.0): (0.9921802264536391, 1.0045792632202468, 0.12645615727360116, 0.025213541696042032),
    ("rloo", 0.3): (0.9811535062157491, 0.9103135021627284, 0.20046065017793055, 0.03993201266477911),
    ("reinforce", 0.3): (0.9961424301741171, 1.01211111615739, 0.08997663650487221, 0.008570840951917258),
    ("gspo", 0.0): (0.9921802264536391, 1.0045792632202468, 0.12645615727360116, 0.025213541696042032),
    ("dapo", 0.3): (0.7663133695501543, 0.297282583143465, 0.7456079660743187, 0.007168245790794772),
    ("ppo", 0.0): (0.9998729851304241, 1.2787961943753432, 0.2795403673834245, 0.04974213192423469),
}


@pytest.mark.parametrize(("name", "off_policy"), list(BEFORE))
def test_figures_are_those_of_before_the_refit(name: str, off_policy: float) -> None:
    f = lab([name], THREE, samples=4, steps=0, off_policy=off_policy).rows[0].figures
    assert f is not None
    assert (f.cosine, f.scale, f.bias, f.variance) == pytest.approx(BEFORE[name, off_policy], rel=1e-9)
