"""A file that was written for an older gruppo is answered with a sentence, never computed as something else."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from gruppo.cli import overrides
from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.gspo import SequenceClipped
from gruppo.stages import Context, Occupant, Stats, Term
from gruppo.stages.occupant import RENAMED
from gruppo.stages.record import from_table
from gruppo.train.config import RunConfig


@pytest.mark.parametrize("name", RENAMED)
def test_an_attribute_of_before_names_what_to_write(name: str) -> None:
    with pytest.raises(ValueError, match=f"Old.{name} is an attribute of an older gruppo and would be ignored. Write"):
        type("Old", (Occupant,), {name: ("adv_N",)})


def test_a_class_variable_of_before_is_seen_and_a_field_of_that_name_is_not() -> None:
    with pytest.raises(ValueError, match=r"Write writes = "):

        class Old(Occupant):
            gives: ClassVar[tuple[str, ...]] = ("adv_N",)

    @dataclass(frozen=True)
    class Own(Occupant):
        roles: int = 3

    assert Own().roles == 3


def test_refuses_was_a_method() -> None:
    with pytest.raises(ValueError, match=r"is unfit\(batch\) now"):
        type("Old", (Occupant,), {"refuses": lambda self, batch: ""})


def test_nan_is_no_value_also_without_bounds() -> None:
    with pytest.raises(ValueError, match="clip_low=nan is not a number"):
        SequenceClipped(clip_low=float("nan"))


def test_a_chain_that_is_empty_adds_nothing_and_says_where_the_others_are() -> None:
    with pytest.raises(ValueError, match=r"aepo has nothing in penalties.*method\.objective\+=aepo"):
        overrides.apply(RunConfig(), ["method=dapo", "method.penalties+=aepo"])


def test_a_record_with_a_class_that_is_gone_has_a_remedy() -> None:
    with pytest.raises(ValueError, match="may be of an older gruppo: use that version, or start again"):
        from_table({"kind": "gruppo.methods.dr_grpo:OverConstant@1", "clip_low": 0.2})


@dataclass(frozen=True)
class Listed(Occupant):
    """Values as they were returned before: a list."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("x", batch.policy_N)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Any:
        return [torch.zeros_like(batch.weight_N)]


def test_values_need_names() -> None:
    world = World(method("grpo").but(penalties=(Listed(),)), 0)
    batch = world.prepared(world.packed(random_episodes(0)))
    with pytest.raises(ValueError, match="listed returned list, so its values have no names"):
        world.grad(batch)
