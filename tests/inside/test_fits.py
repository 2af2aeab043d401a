"""Which methods fit another trainer: laws about the refusals, and the step that is taken in parts."""

from dataclasses import replace

import pytest
import torch

from gruppo.data import Episode, Turn
from gruppo.inside.fits import PLAIN, TRL, draws_again, reads, refusals, refuse, whole_step
from gruppo.inside.step import OneStep
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import all_methods, method
from gruppo.stages import Method, Role
from gruppo.stages.cast import Every
from gruppo.stages.penalties import EntropyBonus, ReferenceKL

ALL = list(all_methods().values())
FITS = [m for m in ALL if not refusals(m, TRL)]
GRPO = method("grpo")


def of(m: Method, seed: int = 3) -> tuple[World, list[Episode]]:
    return World(m, seed), random_episodes(seed)


# what is refused


@pytest.mark.parametrize("m", ALL, ids=lambda m: m.name)
def test_a_refusal_names_the_method_what_it_needs_and_a_remedy(m: Method) -> None:
    for said in refusals(m, TRL):
        assert said.startswith(f"{m.name}: ") and "TRL" in said and said.endswith(".")
        assert "gruppo train" in said and any(room in said for room in (*PLAIN, "prompting", "credit", "objective",
                                                                        "penalties", "reward", "select"))  # fmt: skip


@pytest.mark.parametrize("m", ALL, ids=lambda m: m.name)
def test_fitting_is_a_property_of_the_rooms_not_of_the_name(m: Method) -> None:
    assert bool(refusals(m.but(name="mine"), TRL)) == bool(refusals(m, TRL))


def same_without(m: Method, seed: int) -> bool:
    """Whether credit, reward and weights stay as they are without states, tools, tags and flags of turns."""
    full, less = World(m, seed), World(m, seed)
    bare = [replace(e, final_state="", turns=[_bare(t) for t in e.turns]) for e in random_episodes(seed)]
    a, b = full.prepared(full.packed(random_episodes(seed))), less.prepared(less.packed(bare))
    names = (*m.credit.writes, "keep_N", "weight_N", "reward_E")
    return all(torch.equal(torch.nan_to_num(a.columns[n]), torch.nan_to_num(b.columns[n])) for n in names)


def _bare(turn: Turn) -> Turn:
    return replace(turn, state="", action_key="", tools=(), tag="", text="", flags=turn.flags & {"truncated"})


@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_what_fits_reads_nothing_that_only_our_worlds_record(m: Method) -> None:
    assert same_without(m, 3)


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "salt", "rlvmr", "simpletir", "otc"])
def test_what_reads_them_is_refused(name: str) -> None:
    m = method(name)
    assert not all(same_without(m, seed) for seed in range(4))
    assert any("TRL does not record" in said for said in refusals(m, TRL))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cast": {"ref": Role(refresh=Every(5))}}, "the role 'ref'"),
        ({"writers": {"verifier": "verifier"}}, "writers has 'verifier'"),
        ({"penalties": ReferenceKL(estimator="full")}, r"reference_kl in penalties needs kl@policy‖ref"),
        ({"credit": method("ppo").credit}, "gae in credit needs value@critic"),
    ],
)
def test_a_room_that_does_not_map_is_refused(change: dict[str, object], said: str) -> None:
    refuse(GRPO, TRL)
    with pytest.raises(ValueError, match=said):
        refuse(GRPO.but(**change), TRL)


def test_a_moving_reference_that_nobody_reads_is_no_obstacle() -> None:
    m = GRPO.but(penalties=(), cast={"ref": Role(refresh=Every(5))})
    assert not reads(m, "ref") and not refusals(m, TRL)


def test_whoever_asks_to_draw_again_is_found() -> None:
    assert draws_again(method("dapo")) == ["redraw_equal_groups"] and draws_again(GRPO) == []
    assert draws_again(method("ngrpo")) == []  # drops, and asks for nothing


# a step in parts


@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_parts_of_a_step_add_up_to_the_whole(m: Method) -> None:
    """The value, where rows are not coupled, and dJ/dstatistic for all: of any cut."""
    for seed in (2, 3):
        world, episodes = of(m, seed)
        batch = world.prepared(world.packed(episodes))
        stats = world.statistics(batch)
        leaves = {k: v.clone().requires_grad_() for k, v in stats.items()}
        step, value = OneStep(world.goal(), batch), torch.zeros(())
        if step.whole:
            step.begin(stats)
        for rows_S in random_cut(batch, seed):
            here = batch.micro(rows_S).columns["row_N"]
            value = value + step.part(rows_S, {k: v[here] for k, v in leaves.items()})
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        wanted = world.slopes(batch, stats)
        for name, slope in zip(leaves, found, strict=True):
            slope = torch.zeros_like(wanted[name]) if slope is None else slope
            assert torch.allclose(slope, wanted[name], atol=1e-12, rtol=1e-9), (m.name, name)
        whole = world.value(batch, stats)
        assert torch.allclose((step.total.value if step.whole else value).double(), whole, atol=1e-12, rtol=1e-9)


def test_the_first_step_takes_the_present_for_the_past() -> None:
    """Ratios are exactly 1 there, whatever rounding the reading had."""
    world, episodes = of(GRPO)
    batch = world.prepared(world.packed(episodes))
    stats = world.statistics(batch)
    first = OneStep(world.goal(), batch, first=True).part(torch.arange(batch.size("S")), stats)
    same = batch.with_columns(logp_old_N=stats["logp_N"])
    assert float(first) == float(OneStep(world.goal(), same).part(torch.arange(batch.size("S")), stats))
    assert float(first) != float(OneStep(world.goal(), batch).part(torch.arange(batch.size("S")), stats))


@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_a_step_that_is_whole_is_known_before(m: Method) -> None:
    world, episodes = of(m)
    batch = world.prepared(world.packed(episodes))
    assert whole_step(m) == OneStep(world.goal(), batch).whole


def test_needs_of_a_step_are_its_columns() -> None:
    world = World(GRPO.but(penalties=EntropyBonus()), 3)
    batch = world.prepared(world.packed(random_episodes(3)))
    assert OneStep(world.goal(), batch).columns() == ["logp_N", "entropy_N"]
