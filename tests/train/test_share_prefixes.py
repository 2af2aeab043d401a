"""`optim.share_prefixes`: a run learns the same with it and without it, and computes fewer rows with it."""

import asyncio

import torch

from gruppo.policies import TinyTransformer
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig, SaveConfig
from gruppo.train.learner import OptimConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run


def two_steps(share: bool, monkeypatch) -> tuple[torch.Tensor, int, list[float]]:
    """(weights, rows that forwards of whole sequences computed, what was logged) in float64."""
    rows: list[int] = []
    good = TinyTransformer.forward

    def counted(self, inputs, *args, **kept):
        rows.append(len(inputs.ids_M) if self.training else 0)  # not while sampling
        return good(self, inputs, *args, **kept)

    with monkeypatch.context() as patched:
        patched.setattr(TinyTransformer, "forward", counted)
        run = Run(
            RunConfig(
                model=ModelConfig("tiny-random", dtype="float64", device="cpu"),
                optim=OptimConfig(lr=0.01, micro_tokens=120, share_prefixes=share),
                eval=EvalConfig(every=0, prompts=4),
                save=SaveConfig(tensorboard="no"),
                prompts=4,
                samples=4,
            ),
            say=lambda _: None,
        )
        try:
            facts = [asyncio.run(train_step(run, step)).facts for step in range(2)]
            weights = torch.cat([p.detach().flatten() for p in run.models["policy"].parameters()])
        finally:
            run.close()
    return weights, sum(rows), [f[k] for f in facts for k in ("policy", "grad_norm", "reward", "tokens")]


def test_a_run_learns_the_same_and_computes_less(monkeypatch):
    (one, few, told), (two, many, also) = (two_steps(share, monkeypatch) for share in (True, False))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.tensor(told), torch.tensor(also), rtol=1e-6, atol=1e-9)
    assert few < 0.8 * many
