"""Rooms of three methods and more, taken by lot as the command line takes them: refused in words, or it trains.

What trains for two steps also keeps the laws of micro-batches, of masked NaN and of memory that is saved and loaded.
"""

import asyncio
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from gruppo.cli import overrides
from gruppo.lab.laws import verdict
from gruppo.methods import all_methods
from gruppo.stages import CHAINS, ROOMS, Method
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run

NUMBERS, ENOUGH = range(8), 3
MORE = range(8, 80)
LAWS = ("micro_batches", "nan_mask", "memory")
REMEDY = re.compile(r"\b(Use|Add|Choose|Give|Keep|Write|Look|Take|Put|Rename)\b")
REWARD = f"{Path(__file__).parents[1] / 'pitfalls' / 'scorers.py'}:luck"
SMALL = ("model=tiny-random", "prompts=3", "samples=4", "steps=2", "sampling.max_tokens=6", f"task.reward={REWARD}",
         "save.tensorboard=no", "eval.every=0", "threads=1")  # fmt: skip


def taken(number: int) -> tuple[list[str], Method | str]:
    """The settings of a number, and the method they make; or the words in which they are refused."""
    draw, known = Random(f"rooms {number}"), all_methods()
    said = [f"method={draw.choice(sorted(known))}"]
    for room in sorted(draw.sample(ROOMS, draw.choice([2, 3]))):  # of a method that has something there
        name = draw.choice([n for n in sorted(known) if getattr(known[n], room) != overrides.PLAIN.get(room)])
        said.append(f"method.{room}{'+=' if room in CHAINS and draw.random() < 0.7 else '='}{name}")
    try:
        made = overrides.apply(RunConfig(), said).method
    except ValueError as error:
        return said, str(error)
    if hasattr(made.update, "critic_epochs"):  # archer's has fifty optimiser steps a step
        made = made.but(update=replace(made.update, critic_epochs=2))
    absent = {k: replace(role, start="policy") for k, role in made.cast.items() if not role.start}  # a teacher
    return said, made.but(cast=absent) if absent else made


@cache
def outcome(number: int) -> str:
    """ "" if it trained for two steps, else the refusal."""
    said, made = taken(number)
    if isinstance(made, str):
        return made
    run = None
    try:
        run = Run(replace(overrides.apply(RunConfig(), SMALL), method=made), say=lambda text: None)
        for step in range(2):
            facts = asyncio.run(train_step(run, step)).facts
            assert all(math.isfinite(v) for k, v in facts.items() if k.startswith("grad_norm")), said
            assert facts.get("bad_gradients", 0) == 0, said
    except ValueError as error:
        return str(error)
    finally:
        if run is not None:
            run.close()
    return ""


@pytest.mark.parametrize("number", [*NUMBERS, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_it_is_refused_in_words_or_trains_and_keeps_the_laws(number: int) -> None:
    refusal, (said, made) = outcome(number), taken(number)
    if refusal:
        assert any(room in refusal for room in ROOMS) and REMEDY.search(refusal), (said, refusal)
        return
    assert isinstance(made, Method)
    assert {law: words for law in LAWS if (words := verdict(law, made, number))} == {}, said


def test_most_of_them_train() -> None:
    trained = [n for n in NUMBERS if not outcome(n)]
    assert len(trained) >= ENOUGH, {n: outcome(n) for n in NUMBERS if n not in trained}
