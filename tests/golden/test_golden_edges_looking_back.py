"""Edges of the methods that look back: dump, mmr1_vas, hapo_history, pipo, poise. Each number was worked by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hand import Status, Use, answer, batch_of, mean

from gruppo.data import Batch, Episode, Source
from gruppo.lab.laws.world import random_episodes
from gruppo.methods.drpo_decoupled import Decoupled
from gruppo.methods.dump import DomainUcb
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.methods.igrpo import DraftThenRefine
from gruppo.methods.mmr1_vas import VarianceAware
from gruppo.methods.pipo import LookBack, attributed, improvement
from gruppo.methods.poise import StateProbe
from gruppo.methods.spo_single import Tracked
from gruppo.methods.ssb import Selective
from gruppo.stages import Context, Memory, Occupant, StepRecord
from gruppo.stages.curriculum import in_turn
from gruppo.stages.tables import Table
from gruppo.tasks import Task

HINTED = {"prompt_source": np.array([Source.ENV, Source.HINT], np.int8)}  # one decision more, which is not its own


def seen(occupant: Occupant, *steps: list[Episode], batch: Batch | None = None) -> Memory:
    """Memory after these steps."""
    memory = Memory()
    for step, drawn in enumerate(steps):
        with memory.writing():
            occupant.observe(StepRecord(step, [], batch, {}, None, drawn), memory)
    return memory


# dump


def tasks_of(**domains: int) -> list[Task]:
    """So many tasks of each domain."""
    return [Task(f"{d}{i}", "?", "1", 1, d) for d, n in domains.items() for i in range(n)]


def places(tasks: list[Task], n: int, known: Memory | None = None, **where: int) -> list[int]:
    ctx = Context(prompts=n, memory=known or Memory(), **where)
    return [a.index for a in DomainUcb()(ctx, tasks)]


def test_dump_of_a_domain_that_was_not_seen() -> None:
    """L = 0 and n_j = 0: √(2 ln 11); of the other, seen ten times, .5 + √(2 ln 11 / 11)."""
    known = {"a": {"size": torch.full((10,), 0.5).double(), "samples": 10, "asked": 0}}
    chance = DomainUcb(domain_temperature=1.0).weights(known, ["a", "b"]).tolist()
    gap = 0.5 + math.sqrt(2 * math.log(11) / 11) - math.sqrt(2 * math.log(11))
    assert chance[0] / chance[1] == pytest.approx(math.exp(gap), rel=1e-12)


def test_dump_after_its_first_step() -> None:
    """Three samples of two prompts. |A| is that of the policy's own tokens, so the 9 on a hint does not count."""
    episodes = [answer(1, "p", 2, 1.0, domain="a", **HINTED), answer(2, "p", 1, 0.0, domain="a")]
    episodes += [answer(3, "q", 1, 1.0, domain="a")]
    batch = batch_of(episodes, adv_N=[9.0, 0.5, 1.5, -0.25, 0.0])
    [(name, held)] = seen(DomainUcb(), episodes, batch=batch)["domains"].items()
    assert name == "a" and held["size"].tolist() == pytest.approx([1.0, 0.25, 0.0])
    assert (held["samples"], held["asked"]) == (3, 2)


def test_dump_learns_nothing_from_failures() -> None:
    failed = [answer(1, "p", 2, None, domain="a", status=Status.ENV_ERROR)]
    assert dict(seen(DomainUcb(), failed, batch=batch_of(failed, adv_N=[0.0, 0.0]))["domains"]) == {}


def test_dump_goes_through_a_domain_in_another_order_each_time() -> None:
    """Every task once, then every task once in another order; another seed has another order, and so has another
    domain of as many tasks."""
    one, other = tasks_of(a=20), tasks_of(b=20)
    twice = places(one, 40)
    first, second = twice[:20], twice[20:]
    assert sorted(first) == sorted(second) == list(range(20)) and first != second
    assert places(one, 20) == first
    assert places(one, 20, seed=1) != first
    assert places(other, 20) != first


def test_dump_draws_again_out_of_turn() -> None:
    """In each round of a step other tasks, and not from the first on: the tasks of the turn are asked already."""
    tasks = tasks_of(a=200)
    rounds = [places(tasks, 3, round=r) for r in range(6)]
    assert len({tuple(r) for r in rounds}) == 6
    order = places(tasks, 400)  # twice through, in two orders
    begins = [order.index(r[0]) for r in rounds[1:]]
    assert all(order[b : b + 3] == r for b, r in zip(begins, rounds[1:], strict=True))


# mmr1_vas


def tried(place: int, *scores: float | None, **fields: Any) -> list[Episode]:
    return [answer(10 * place + i, f"q{place}", 3, r, index=place, **fields) for i, r in enumerate(scores)]


def variance(vas: VarianceAware, *steps: list[Episode]) -> Table:
    return Table.of(seen(vas, *steps), "variance")


@pytest.mark.parametrize(
    ("rewards", "p"),
    [
        ([1.0, 0.0, 0.0], 1 / 3),
        ([1.5, 1.5], 1.0),  # p is a share, whatever a task pays
        ([-1.0, -1.0], 0.0),
        ([1.0, None], 0.5),  # one that has no score is not right
    ],
)
def test_vas_scores_by_the_share_of_right_answers(rewards: list[float | None], p: float) -> None:
    [score] = variance(VarianceAware(diversity_coef=0.0), tried(0, *rewards)).columns["score"].tolist()
    assert score == pytest.approx(0.8 * p * (1 - p), abs=1e-12)


def test_vas_counts_answers_that_are_a_baseline() -> None:
    """They are the policy's answers to the task; those apart are another's."""
    vas = VarianceAware(diversity_coef=0.0)
    based = [*tried(0, 1.0), *tried(0, 0.0, use=Use.BASELINE), *tried(0, 0.0, 0.0, use=Use.APART)]
    assert variance(vas, based).columns["score"].tolist() == pytest.approx([0.2])


def test_vas_weights_lie_between_the_least_and_the_most() -> None:
    """p = ½, ¼, ⅛: p (1 − p) = 16, 12 and 7 of 64, so w = (9, 5, 0)/9."""
    vas = VarianceAware(outcome_coef=1.0, diversity_coef=0.0)
    table = variance(vas, [*tried(0, 0.5), *tried(1, 0.25), *tried(2, 0.125)])
    assert vas.weights(table, 3).tolist() == pytest.approx([1.0, 5 / 9, 0.0], abs=1e-6)
    tiny = VarianceAware(outcome_coef=4e-8, diversity_coef=0.0)  # a spread of 1e-8, over 1e-8 + 1e-8
    assert tiny.weights(variance(tiny, [*tried(0, 0.5), *tried(1, 1.0)]), 2).tolist() == pytest.approx([0.5, 0.0])


def test_vas_gives_the_mean_to_what_was_never_weighed() -> None:
    """Weights are made at step 0 and then every 35. What is first drawn between is weighed later, and is until then
    like a task that was not drawn; nor does it count in the mean. Places that are no more are left out."""
    vas = VarianceAware(diversity_coef=0.0)
    table = variance(vas, [*tried(0, 1.0, 1.0), *tried(1, 0.0, 1.0)], tried(2, 0.0, 1.0))
    assert vas.weights(table, 4).tolist() == pytest.approx([0.0, 1.0, 0.5, 0.5], abs=1e-6)
    assert vas.weights(table, 1).tolist() == pytest.approx([0.0])
    assert len(set(vas.weights(Table(), 3).tolist())) == 1  # before the first step all are alike


def test_vas_remembers_the_same_after_a_step_without_answers() -> None:
    """Also the place of a task far behind, of which float32 would lose the last digit."""
    far, vas = 2**24 + 1, VarianceAware()
    first = [*tried(0, 0.0, 1.0), *tried(far, 1.0, 1.0)]
    for steps in ([first], [first, []]):
        assert variance(vas, *steps).key_T.tolist() == [0, far]


def test_vas_takes_half_of_an_even_batch_by_weight() -> None:
    """And the others in turn; at the first step too, where nothing is known."""
    vas, tasks = VarianceAware(diversity_coef=0.0), tasks_of(a=9)
    memory = seen(vas, [e for place in range(9) for e in tried(place, 0.0, float(place == 4))])
    ctx = Context(step=1, prompts=4, memory=memory)
    assert [a.index for a in vas(ctx, tasks)] == [4, 4, *in_turn(ctx, 9, 2)]
    first = Context(prompts=4)
    assert [a.index for a in vas(first, tasks)][2:] == in_turn(first, 9, 2)


# hapo_history


def test_hapo_of_an_answer_of_one_token() -> None:
    """Half the length of the shortest: cos(π/4)."""
    memory = seen(ShorterThanBefore(), [answer(0, "q", 2, 1.0)])
    found = ShorterThanBefore()(Context(memory=memory), [answer(1, "q", 1, 1.0)])["length"]
    assert found == pytest.approx([math.sqrt(0.5)])


def test_hapo_remembers_the_same_after_a_step_without_answers() -> None:
    history = [answer(0, "q", 7, 1.0), answer(1, "p", 3, 1.0)]
    before, after = (seen(ShorterThanBefore(), *steps)["shortest"] for steps in ([history], [history, []]))
    assert {k: v.tolist() for k, v in before.items()} == {k: v.tolist() for k, v in after.items()}


# pipo


@pytest.mark.parametrize(("mean", "factor"), [(0.43, 0.5), (0.42, 0.0), (0.41, -0.05)])
def test_pipo_of_a_small_improvement(mean: float, factor: float) -> None:
    """Past means of .42 ± .02: half a deviation up counts whole, half a deviation down a tenth."""
    assert improvement(mean, [0.40, 0.44, 0.42], undo=0.1, limit=3.0) == pytest.approx(factor, abs=1e-6)


def shared(episodes: Sequence[Episode], adv: list[float]) -> list[float]:
    return attributed(batch_of(episodes, adv_N=adv), 1.0).adv_N.tolist()


def test_pipo_of_small_advantages() -> None:
    """A = ±1/8: Σ|A| = ¼, G = 2, so a = ±1."""
    assert shared([answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0)], [0.125, -0.125]) == pytest.approx([1.0, -1.0])


def test_pipo_sizes_are_those_of_tokens_that_are_learned() -> None:
    """|A| = 1 and 3, so a = (½, −3/2): neither the 9 on a hint nor the 5 of an answer apart is in the sum."""
    episodes = [answer(0, "g", 1, 1.0, **HINTED), answer(1, "g", 1, 0.0), answer(2, "g", 1, 1.0, use=Use.APART)]
    found = shared(episodes, [9.0, 1.0, -3.0, 5.0])
    assert [found[1], found[2]] == pytest.approx([0.5, -1.5])


def test_pipo_of_a_group_without_advantages() -> None:
    """It says nothing, whatever stands apart in it."""
    episodes = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 1.0), answer(2, "g", 1, 1.0, use=Use.APART)]
    assert shared(episodes, [0.0, 0.0, 0.5]) == [0.0] * 3


class Steps:
    """A learner that says what it was told."""

    trained = ("policy",)

    def __init__(self) -> None:
        self.told = list[tuple[list[float], float | None, bool]]()

    def lr(self, role: str) -> float:
        return 0.25

    def step(self, role: str, batch: Batch, lr: float | None = None, penalties: bool = True) -> None:
        self.told.append((batch.adv_N.tolist(), lr, penalties))


def looked_back(
    past: list[float], replay: list[Episode], status: Status = Status.OK
) -> list[tuple[list[float], float | None, bool]]:
    """Steps on a batch of mean .5, when two answers with A = ±2 were learned from before."""
    learner, two = Steps(), [answer(0, "g", 1, 1.0, status=status), answer(1, "g", 1, 0.0, status=status)]
    ctx = Context(memory=Memory(batch_means=past), replay=replay)
    ctx.read = lambda episodes, readouts: batch_of(episodes, note_adv_N=[2.0, -2.0])
    LookBack(window=2, lr_scale=0.5)(ctx, learner, batch_of(two, adv_N=[0.7, -0.7]))
    return learner.told


def test_pipo_steps_back_when_its_window_is_full_and_something_is_remembered() -> None:
    """Past means .2 and .4: ξ = .2/√.02 = √2, a = ±1, at half the policy's learning rate, without penalties."""
    two, forward = [answer(8, "h", 1, 1.0), answer(9, "h", 1, 0.0)], ([0.7, -0.7], None, True)
    assert looked_back([0.4], two) == [forward]
    assert looked_back([0.2, 0.4], []) == [forward]
    assert looked_back([0.2, 0.4], two, Status.TIMEOUT) == [forward]  # nothing was judged, so nothing rose or fell
    [(adv, lr, penalties), after] = looked_back([0.2, 0.4], two)
    assert adv == pytest.approx([math.sqrt(2), -math.sqrt(2)], rel=1e-6) and (lr, penalties) == (0.125, False)
    assert after == forward


# poise


def pools(batch: Batch) -> Batch:
    """With states of two numbers a sequence, and entropies, of any size."""
    generator = torch.Generator().manual_seed(0)
    states = {
        n.column: torch.randn(batch.size("S"), 2, generator=generator).double()
        for n in StateProbe().needs(Context())[:2]
    }
    return batch.with_columns(entropy_old_N=torch.rand(batch.size("N"), generator=generator).double(), **states)


@pytest.mark.parametrize("seed", [0, 1])
def test_poise_features_of_answers_in_several_sequences(seed: int) -> None:
    """The mean over its sequences; mean, deviation and maximum over the tokens that the policy wrote in it."""
    batch = pools(batch_of(random_episodes(seed)))
    answer_S2, prompt_S2 = (batch.columns[n.column].tolist() for n in StateProbe().needs(Context())[:2])
    found, split = StateProbe().features(batch).tolist(), 0
    for e in range(batch.size("E")):
        if not batch.judged_E[e]:
            continue
        rows_S = [s for s, owner in enumerate(batch.episode_S.tolist()) if owner == e]
        split += len(rows_S) > 1
        mine = [
            h
            for h, owner, who in zip(
                *(x.tolist() for x in (batch.entropy_old_N, batch.episode_N, batch.source_N)), strict=True
            )
            if owner == e and who == Source.POLICY
        ]
        want = [mean([x[s][i] for s in rows_S]) for x in (answer_S2, prompt_S2) for i in range(2)]
        want += [mean(mine), float(np.std(mine)), max(mine)] if mine else [0.0] * 3
        assert found[e] == pytest.approx(want, abs=1e-12)
    assert split > 1


def test_poise_learns_from_a_single_pair() -> None:
    """Of two answers each is an example of what the other earned; of one alone nothing is learned."""
    pair = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0)]
    memory = seen(StateProbe(), pair, batch=pools(batch_of(pair)))
    assert sorted(memory["examples"][0]["y"].tolist()) == [0.0, 1.0] and "probe" in memory
    assert dict(seen(StateProbe(), pair[:1], batch=pools(batch_of(pair[:1])))) == {}


def test_poise_takes_other_examples_in_another_step() -> None:
    """Two of sixteen, of an episode that comes again too."""
    episodes = [answer(i, f"g{i // 2}", 1, float(i % 2)) for i in range(16)]
    memory = seen(StateProbe(examples=2, window=5), *[episodes] * 5, batch=pools(batch_of(episodes)))
    assert len({tuple(m["x"].flatten().tolist()) for m in memory["examples"]}) > 1


# settings that mean nothing


@pytest.mark.parametrize(
    ("occupant", "fields"),
    [
        (VarianceAware, {"weighted_share": -0.1}),
        (VarianceAware, {"weighted_share": 1.1}),
        (VarianceAware, {"refresh_every": 0}),
        (DomainUcb, {"window": 0}),  # the last none of a list is all of it
        (DomainUcb, {"domain_temperature": 0.0}),
        (Selective, {"capacity": 0}),
        (Tracked, {"drift_half": 0.0}),  # a policy that stands still: 0/0
        (Tracked, {"keep_low": 0.97}),
        (Tracked, {"keep_high": 1.5}),
        (Decoupled, {"budget_tokens": -5}),
        (DraftThenRefine, {"drafts": -1}),
    ],
)
def test_settings_that_mean_nothing_are_refused(occupant: Any, fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(fields))}=.*Use "):
        occupant(**fields)
