"""One forward, and one run of the head, for everything that is read of a model at one level."""

from typing import Any

import pytest
import torch

from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages import Need, need
from gruppo.train import forward
from gruppo.train.forward import layer_of, serve


class Counted:
    """A policy that counts how often its head and its trunk run."""

    def __init__(self, model: Any) -> None:
        self.model, self.heads, self.forwards = model, 0, 0
        self.vocab, self.layers = model.vocab, model.layers

    def __call__(self, *args: Any) -> Any:
        self.forwards += 1
        return self.model(*args)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        self.heads += 1
        return self.model.head(x)


@pytest.fixture
def world() -> World:
    return World(method("grpo"), 0)


def ready(world: World) -> Batch:
    return world.prepared(world.packed(random_episodes(0)))


NEEDS: list[Need] = [
    need("logp", "old"),
    need("logp", "old", T=1.0),
    need("entropy", "old"),
    need("score_norm", "old"),
    need("kl", "old", against="ref"),
    need("entropy", "old", at="K"),
    need("pool", "old", at="S", depth=1.0),
]


@pytest.mark.parametrize("chunk", [10**9, 5])
def test_needs_together_are_needs_one_by_one(world: World, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit, whatever the size of a chunk; with one run of the head a chunk and a level."""
    batch = ready(world)
    monkeypatch.setattr(forward, "CHUNK_NUMBERS", {"cpu": chunk * world.models["policy"].vocab})
    model = Counted(world.models["policy"])
    together = serve(model, batch, NEEDS, cast=world.models)
    assert model.forwards == 1
    assert model.heads == sum(-(-batch.size(level) // chunk) for level in ("N", "K"))  # type: ignore[arg-type]
    for n in NEEDS:
        alone = serve(world.models["policy"], batch, [n], cast=world.models)
        assert torch.equal(together[n.column], alone[n.column]), n


def test_gradients_add_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of all needs, recomputed in backward, has the gradient of the sum of its needs'."""
    batch, model = ready(world), world.models["policy"]
    monkeypatch.setattr(forward, "CHUNK_NUMBERS", {"cpu": 5 * model.vocab})
    needs = [need("logp", when="step"), need("entropy", when="step")]

    def gradient(some: list[Need]) -> torch.Tensor:
        total = sum(x.sum() for x in serve(model, batch, some, grad=True).values())
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])  # type: ignore[arg-type]

    torch.testing.assert_close(gradient(needs), gradient(needs[:1]) + gradient(needs[1:]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("depth", "layer"), [(0.0, 0), (0.5, 18), (0.53, 19), (1.0, 36)])
def test_a_depth_is_a_layer(depth: float, layer: int) -> None:
    """19 of 36 blocks is a depth of 0.53; 0 is the embedding, 1 the last block."""

    class Deep:
        layers = 36

    assert layer_of(Deep(), need("pool", "old", at="S", depth=depth)) == layer
    assert layer_of(Deep(), need("pool", "old", at="S", layer=7)) == 7
    assert layer_of(Deep(), need("pool", "old", at="S")) == layer_of(Deep(), need("logp")) == -1


@pytest.mark.parametrize("params", [{"depth": 1.2}, {"depth": -0.1}, {"depth": 0.5, "layer": 3}])
def test_a_depth_outside_is_refused(world: World, params: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        serve(world.models["policy"], ready(world), [need("pool", at="S", **params)])
