"""Terms are logged under their own names, so none may have the name of a metric."""

from dataclasses import dataclass, replace

import pytest
from term_table import TERMS
from test_refusals import GRPO, REMEDY, refused

from gruppo.data import Batch
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.stages import Context, Stats, Term, Values
from gruppo.stages.objective import PolicyGradient
from gruppo.train.metrics import TERMS as TERM_METRICS
from gruppo.train.metrics import refuse_metrics


@dataclass(frozen=True)
class Named(PolicyGradient):
    """REINFORCE whose term has a name of your choice."""

    name: str = "policy"

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [replace(t, name=self.name) for t in super().terms(ctx, batch)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        [value] = super().__call__(ctx, batch, stats).values()
        return {self.name: value}


@pytest.mark.parametrize("name", ["reward", "entropy", "grad_norm_mine", "turns/mine", "lr"])
def test_a_term_may_not_have_the_name_of_a_metric(name: str) -> None:
    """At step zero, so before anything is learned. It replaced the metric."""
    said = refused(GRPO.but(objective=Named(name=name), penalties=()))
    assert f"a term of policy is called {name!r}" in said and REMEDY.search(said), said


def test_terms_of_all_methods_have_names_of_their_own() -> None:
    """Law: no term of a method is a metric of something else, and metrics of terms are those that methods have."""
    names = {row[0] for rows in TERMS.values() for row in rows}
    assert names <= set(TERM_METRICS)
    refuse_metrics("any", "policy", [*names, "mine", "rewards", "kl"])
    World(GRPO.but(objective=Named(name="mine"), penalties=()), 0).gradient(random_episodes(0))
