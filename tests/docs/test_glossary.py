"""One quantity, one name: strangers are rejected."""

import dataclasses
import re
from typing import get_type_hints

import pytest
import torch
from doc_blocks import DOCS, make_docs

from gruppo.data.batch import Columns
from gruppo.lab.laws.episodes import random_episodes
from gruppo.methods import built_in
from gruppo.stages import Method, Stats
from gruppo.stages.goal import Goal
from gruppo.train.metrics import known

GLOSSARY = (DOCS / "glossary.md").read_text()
MAKE = make_docs()
FIELDS = {f.name: cls.__qualname__ for cls in MAKE.occupants() for f in dataclasses.fields(cls)}


def test_every_field_is_explained() -> None:
    strangers = {n: FIELDS[n] for n in set(FIELDS) - set(MAKE.meanings(GLOSSARY))}
    assert not strangers, f"{strangers}: use a name of docs/glossary.md, or explain the new one there"


def test_every_explained_field_exists() -> None:
    assert not set(MAKE.meanings(GLOSSARY)) - set(FIELDS)


def test_every_column_is_explained() -> None:
    section = GLOSSARY.split("\n## Columns")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.M)
    given = {name for m in built_in().values() for name in m.credit.writes}
    assert len(listed) == len(set(listed))
    assert set(listed) == set(get_type_hints(Columns)) | given


@pytest.mark.parametrize("m", built_in().values(), ids=lambda m: m.name)
def test_every_term_is_a_known_metric(m: Method) -> None:
    world = pytest.importorskip("gruppo.lab.laws.world")
    w = world.World(m, 0)
    batch = w.prepared(w.packed(random_episodes(0)))
    for role in w.learner.trained:
        goal = Goal(m, w.ctx, role)
        stats = Stats({k: v.requires_grad_() for k, v in w.statistics(batch, role).items()})
        if "logp_N" in stats and "logp_old_N" not in batch.columns:
            batch = batch.with_columns(logp_old_N=stats["logp_N"].detach())
        terms = goal.terms(batch)
        values = goal.values(batch, stats, terms)
        assert [t.name for t in terms if not known(t.name)] == []
        assert len(values) == len(terms) and all(isinstance(value, torch.Tensor) for value in values)
