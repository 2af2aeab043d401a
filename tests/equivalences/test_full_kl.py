"""The KL over the vocabulary through the real learner: both heads on one chunk, by gradient the whole table."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.lab.laws import verdict
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import method
from gruppo.pieces.divergence import full
from gruppo.stages import Context, Role, Stats, need
from gruppo.stages.check import problems
from gruppo.stages.penalties import ReferenceKL
from gruppo.train import forward
from gruppo.train.cast import build_cast

FULL = method("grpo").but(name="full", penalties=ReferenceKL(kl_coef=1.0, mean="token", estimator="full"))


def whole_table(model: Any, batch: Batch) -> Tensor:
    """log π of every token of the vocabulary at every decision, all at once, from the temperature and the set."""
    scores_NV = model.head(model(batch.inputs)[0])[batch.inputs.parent_M[batch.at_N]]
    scores_NV = scores_NV / batch.temperature_N[:, None]
    assert batch.allowed is not None
    start = 0
    for n, length in enumerate(batch.allowed.length.tolist()):
        if length:
            outside = torch.ones(scores_NV.shape[1], dtype=torch.bool)
            outside[batch.allowed.values[start : start + length]] = False
            scores_NV = scores_NV.masked_fill(outside & (torch.arange(len(scores_NV)) == n)[:, None], float("-inf"))
        start += length
    return torch.log_softmax(scores_NV, -1)


def expected(world: World, batch: Batch) -> tuple[Tensor, Tensor]:
    """(KL of each decision, gradient of its mean over policy tokens)."""
    kl_N = full(whole_table(world.models["policy"], batch), whole_table(world.models["ref"], batch).detach())
    params = [p for p in world.models["policy"].parameters() if p.requires_grad]
    slopes = torch.autograd.grad(kl_N[batch.policy_N].mean(), params)
    return kl_N.detach(), torch.cat([g.flatten() for g in slopes])


@pytest.mark.parametrize("chunk", [1 << 23, 24], ids=["one chunk", "two positions a chunk"])
def test_the_penalty_is_the_whole_table(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "CHUNK_NUMBERS", {"cpu": chunk})
    world = World(FULL, 3)
    batch = world.prepared(world.packed(random_episodes(3)))
    batch = batch.with_columns(adv_N=torch.zeros_like(batch.weight_N))  # what is left is the penalty
    kl_N, want = expected(world, batch)
    assert float(kl_N.min()) > 0 and float(want.norm()) > 1e-3
    got = forward.serve(world.models["policy"], batch, [need("kl", against="ref", when="step")], cast=world.models)
    assert torch.allclose(got["kl_ref_N"], kl_N, rtol=1e-10)
    for cut in (None, random_cut(batch, 1)):  # the learner leaves −dJ, and J = −KL
        assert far(world.grad(batch, cut=cut), want) < 1e-9


def test_no_table_of_tokens_times_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of either head sees a chunk, also when the gradient is made."""
    monkeypatch.setattr(forward, "CHUNK_NUMBERS", {"cpu": 48})
    world = World(FULL, 1)
    batch = world.prepared(world.packed(random_episodes(1)))
    seen: dict[str, list[int]] = {"policy": [], "ref": []}
    for role, rows in seen.items():
        world.models[role].head.register_forward_pre_hook(lambda _, args, r=rows: r.append(len(args[0])))
    world.grad(batch)
    assert batch.size("N") > 40 and max(seen["policy"]) == max(seen["ref"]) == 4


def test_the_second_role_has_no_gradient() -> None:
    world = World(FULL, 1)
    ref = world.models["ref"].requires_grad_(True)
    world.grad(world.prepared(world.packed(random_episodes(1))))
    assert all(p.grad is None for p in ref.parameters())


def test_once_a_batch_it_is_a_column() -> None:
    world = World(FULL, 2)
    batch = world.packed(random_episodes(2))
    n = need("kl", "old", against="ref")
    assert str(n) == "kl@old‖ref"
    got = forward.serve(world.before["old"], batch, [n], cast=world.models)["kl_old_ref_N"]
    with torch.no_grad():
        want = full(*(whole_table(m, batch) for m in (world.before["old"], world.models["ref"])))
    assert torch.allclose(got, want, rtol=1e-10)


@pytest.mark.parametrize("estimator", ["k1", "k2", "full"])
@pytest.mark.parametrize("law", ["micro_batches", "fused_is_two_pass", "nan_mask", "failures", "extremes"])
def test_every_estimator_keeps_the_laws(estimator: str, law: str) -> None:
    grpo = method("grpo").but(penalties=ReferenceKL(estimator=estimator))
    assert verdict(law, grpo, 4) == ""


def test_the_cast_has_the_second_role() -> None:
    policy = World(FULL, 0).models["policy"]
    assert set(build_cast(FULL, policy, Context())) == {"policy", "ref"}


def test_refusals() -> None:
    with pytest.raises(ValueError, match="name the second: against='ref'"):
        need("kl", when="step")
    with pytest.raises(ValueError, match="it reads one role"):
        need("logp", against="ref")
    without = replace(FULL, cast={"policy": Role(train=True), "reff": Role()})
    [said] = problems(without, Context(), samples=4)
    assert "'ref' is no language model of the cast" in said and "reff" in said
    head = FULL.but(cast={"ref": Role(as_="head")})
    assert any("'ref' is no language model" in s for s in problems(head, Context(), samples=4))
    with pytest.raises(AttributeError, match="kl_ref_N was not asked for"):
        _ = Stats().kl_ref_N
