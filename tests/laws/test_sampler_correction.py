"""The sampler's correction keeps every law, in each of its forms, and stands in every method."""

import pytest
import torch
from sweeps import fourth

from gruppo.lab.laws import verdict
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World, random_cut
from gruppo.methods import all_methods, method
from gruppo.stages.select import SamplerGate, TruncatedImportance

FORMS = {
    "sequence": (TruncatedImportance(cap=5.0, level="sequence"),),
    "normalised, counted": (TruncatedImportance(self_normalised=True), SamplerGate(level="sequence", counted=True)),
    "geometric": (SamplerGate(gate_low=0.7, gate_high=1.5, level="geometric"),),
}
MEANT = ("micro_batches", "order", "nan_mask", "failures", "unused", "extremes", "fields_matter")
COMPARING = [name for name, m in all_methods().items() if {"adv_N", "right_N"} & set(m.credit.writes)]


@pytest.mark.parametrize("law", MEANT)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_the_laws(form: str, law: str) -> None:
    assert verdict(law, method("grpo").but(select=FORMS[form]), 0) == ""


@pytest.mark.parametrize("name", fourth(COMPARING, first=2))
def test_it_stands_in_every_method(name: str) -> None:
    """A sampler that computes what the trainer computes is left alone; another one is not, and any cut agrees."""
    plain = method(name)
    chain = (TruncatedImportance(cap=1.5, level="geometric"), SamplerGate(level="sequence", gate_high=50.0))
    left, right = World(plain, 5), World(plain.but(select=(*plain.select, *chain)), 5)
    batch = right.packed(random_episodes(5))
    exact_N = torch.where(torch.isnan(batch.logp_gen_N), batch.logp_gen_N, batch.logp_old_N)
    for gen_N, same in ((exact_N, True), (batch.logp_gen_N, False)):
        now = batch.with_columns(logp_gen_N=gen_N)
        ready = right.prepared(now)
        got = right.grad(ready, cut=random_cut(ready, 1))
        assert far(got, right.grad(ready)) < 1e-9
        off = far(got, left.grad(left.prepared(now)))
        assert off < 1e-9 if same else off > 1e-3
