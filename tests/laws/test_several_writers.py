"""Laws of several writers, in the laws' world: what one role wrote does not reach another, and each counts its own."""

from dataclasses import replace

import pytest
import torch

from gruppo.data import Batch, Source
from gruppo.data.episode import FLAGS
from gruppo.lab.laws import verdict
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import same
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.stages import Ema, Method, Role, need
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.select import TopEntropy, share_of
from gruppo.stages.writers import by_writer, with_companions, writers_of, written, written_S
from gruppo.train import learner as learning

WRITERS = {"a": "a", "b": "b"}
# Additive, with turns, with a critic, the whole step, selection by current statistics, a memory, a full KL.
NAMES = ("grpo", "drmas", "ppo", "disco", "clip_cov", "spiral", "reinforce")


def own(name: str) -> Method:
    given = method(name)
    return given.but(name="own", writers=WRITERS, breaks=given.breaks)


def prepared(m: Method, seed: int = 0) -> tuple[World, Batch]:
    world = World(m, seed)
    return world, world.prepared(world.packed(random_episodes(seed)))


def others_N(m: Method, batch: Batch, role: str) -> torch.Tensor:
    return ~batch.spread(written_S(m, batch, role), "S", "N")


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_one_writer_have_no_gradient_in_another(name: str) -> None:
    """Whatever credit, weights and log-probabilities the rows of the others have."""
    world, batch = prepared(own(name))
    for role in writers_of(world.method):
        strange = others_N(world.method, batch, role)
        assert bool(strange.any()) and not bool(strange.all())
        columns = {
            k: x for k, x in batch.columns.items() if k.endswith("_N") and x.is_floating_point() and x.dim() == 1
        }
        columns.pop("temperature_N")
        garbled = batch.with_columns(**{k: torch.where(strange, 3.0 * x + 1.0, x) for k, x in columns.items()})
        assert same(world.grad(batch, role), world.grad(garbled, role), role, 0.0) == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_writer_learns_as_a_policy_to_which_all_others_are_opponents(name: str) -> None:
    """Another way to say whose rows are whose: the same gradient, so the same denominators."""
    world, batch = prepared(own(name))
    assert any(float(world.grad(batch, role).norm()) > 0 for role in ("a", "b"))
    for role in writers_of(world.method):
        alone = World(method(name), 0)
        alone.models["policy"].load_state_dict(world.models[role].state_dict())
        for other in alone.models.keys() & world.models.keys() - {"policy"}:
            alone.models[other].load_state_dict(world.models[other].state_dict())
        wrote = (batch.source_N == Source.POLICY) & others_N(world.method, batch, role)
        hidden = batch.with_columns(source_N=torch.where(wrote, Source.OPPONENT, batch.source_N))
        assert same(world.grad(batch, role), alone.grad(hidden), role) == ""


@pytest.mark.parametrize("law", ["micro_batches", "roles", "keep_and_weight", "record"])
def test_the_laws_hold_for_every_writer(law: str) -> None:
    """`gruppo methods check` gives every writer a part of the episodes."""
    assert verdict(law, own("disco")) == ""


def test_a_gradient_from_all_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two laws can fail."""
    monkeypatch.setattr(learning, "written", lambda method, batch, role: batch)
    with pytest.raises(AssertionError):
        test_rows_of_one_writer_have_no_gradient_in_another("grpo")
    with pytest.raises(AssertionError):
        test_a_writer_learns_as_a_policy_to_which_all_others_are_opponents("grpo")


@pytest.mark.parametrize("estimator", ["k3", "full"])
def test_the_penalty_of_a_row_is_to_the_reference_of_its_writer(estimator: str) -> None:
    """Also the one that reads both roles at every optimiser step: other weights of `ref@a` change a's step alone."""
    m = method("grpo").but(
        name="follow",
        writers={"a": "a"},
        penalties=(ReferenceKL(kl_coef=1.0, estimator=estimator),),  # type: ignore[arg-type]
        cast={"ref": Role(refresh=Ema())},
    )
    world = World(m, 0)
    assert "ref@a" in world.models and world.method.cast["ref@a"].start == "a"

    def gradients() -> dict[str, torch.Tensor]:
        batch = world.prepared(world.packed(random_episodes(0)))
        return {role: world.grad(batch, role) for role in ("policy", "a")}

    before = gradients()
    with torch.no_grad():
        for model in {id(x): x for x in (world.models["ref@a"], world.before["ref@a"])}.values():
            model.output.weight.mul_(1.5)
    after = gradients()
    assert torch.equal(before["policy"], after["policy"]) and not torch.equal(before["a"], after["a"])


def test_selection_chooses_among_the_tokens_of_one_writer() -> None:
    """A share of each, however unsure the others are; an episode that is dropped is dropped for all."""
    world, batch = prepared(own("grpo").but(select=TopEntropy(share=0.2)))
    for role in writers_of(world.method):
        mine_N = batch.policy_N & ~others_N(world.method, batch, role)
        assert int((mine_N & batch.keep_N).sum()) == share_of(0.2, int(mine_N.sum()))
    _, batch = prepared(own("simpletir"))
    void_E = batch.gather((batch.flags_K & FLAGS["void"]) > 0, "K", "E", "any")
    several_E = batch.gather(batch.agent_K, "K", "E", "max") > batch.gather(batch.agent_K, "K", "E", "min")
    assert bool((void_E & several_E).any())
    assert torch.equal(batch.keep_N, batch.spread(~void_E, "E", "N"))


def test_parts_are_disjoint_and_whole() -> None:
    world, batch = prepared(own("grpo").but(writers={**WRITERS, "c": "policy"}))
    parts = dict(by_writer(world.method, batch))
    assert list(parts) == ["policy", "a", "b"]
    rows = torch.cat([part.row_N for part in parts.values()])
    assert torch.equal(rows.sort().values, torch.arange(batch.size("N")))
    assert all(part.size("E") == batch.size("E") and part.drawn == batch.drawn for part in parts.values())
    assert written(world.method, batch, "critic") is batch  # a role that does not write learns from all rows
    whole = parts["a"]
    assert written(world.method, whole, "a") is whole


def test_what_is_read_of_a_part_is_what_is_read_of_the_whole() -> None:
    """At decisions, turns, sequences and input positions, each from its own writer."""
    world, batch = prepared(own("ppo"))
    wanted = {"old": [need("logp", "old"), need("pool", "old", at="S", last=3)], "critic": [need("value", "critic")]}
    for role, needs in wanted.items():
        whole = world.learner.read(role, batch, needs)
        for writer, part in by_writer(world.method, batch):
            found = world.learner.read(role, part, needs)
            for n in needs:
                rows = part.columns[f"row_{n.at}"]
                torch.testing.assert_close(whole[n.column][rows], found[n.column], msg=f"{n} of {writer}")


def test_a_context_of_two_writers_is_refused() -> None:
    world, batch = prepared(own("grpo"))
    mixed = replace(batch, agents=("a", "b"), columns={**batch.columns, "agent_K": batch.turn_index_K % 2}, _cache={})
    with pytest.raises(ValueError, match="one sequence has turns of agents with different writers"):
        written(world.method, mixed, "a")


def test_a_reference_that_never_moves_is_shared() -> None:
    plain = with_companions(own("grpo"))
    assert list(plain.cast) == ["policy", "ref", "a", "b"]
    elsewhere = with_companions(own("grpo").but(cast={"a": Role(start="FOLDER", train=True)}))
    assert elsewhere.cast["ref@a"] == Role(start="a") and "ref@b" not in elsewhere.cast
    following = with_companions(own("grpo").but(cast={"ref": Role(start="FOLDER", refresh=Ema())}))
    assert following.cast["ref@b"] == Role(start="FOLDER", refresh=Ema(source="b"))
