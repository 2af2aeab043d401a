"""Evidence for gdpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from dataclasses import replace
from typing import Any

import evidence
import pytest
from hand import FAILED, answer, batch_of, close, column, mean, sample_std
from small_batches import adv, group, paid, two

from gruppo.data import Episode, Status
from gruppo.methods import method
from gruppo.methods.gdpo import DecoupledNormalised
from gruppo.stages import Context
from gruppo.stages.check import check_first_batch
from gruppo.stages.credit import GroupNormalised

test_laws = evidence.laws("gdpo")
test_asks = evidence.asks("gdpo")
test_planted_mistakes = evidence.planted("gdpo")
test_equivalences = evidence.equivalences("gdpo")
test_resume = evidence.resume("gdpo")


def test_gdpo_card() -> None:
    """Card, figure 2 of the paper: two rewards of (0, 1) are worth twice one of them; GRPO gives ±0.707 to both."""
    both, single = two([0, 1], [0, 1]), two([0, 1], [0, 0], "h", 2)
    got = adv(DecoupledNormalised(eps=0.0), [*both, *single])
    spread = math.sqrt((2 * 2 + 2 * 0.5) / 3)  # of ±√2 and ±√½, n − 1
    close(got, [-math.sqrt(2) / spread, math.sqrt(2) / spread, -math.sqrt(0.5) / spread, math.sqrt(0.5) / spread])
    close(adv(GroupNormalised(eps=0.0), [*both, *single]), [-math.sqrt(0.5), math.sqrt(0.5)] * 2)


def test_gdpo_by_hand_with_eps_and_weights() -> None:
    task, style = [1.0, 0.0, 0.0, 1.0], [0.2, 0.9, 0.4, 0.1]
    z = [[(x - mean(c)) / (sample_std(c) + 1e-4) for x in c] for c in (task, style)]
    total = [a + 0.5 * b for a, b in zip(*z, strict=True)]
    want = [(x - mean(total)) / (sample_std(total) + 1e-4) for x in total]
    close(adv(DecoupledNormalised(weights={"style": 0.5}), two(task, style)), want)


def test_gdpo_minds_no_scale() -> None:
    """Card: a component times a constant changes nothing. A long scale does not drown a short one."""
    task, style = [1.0, 0.0, 0.0, 1.0], [0.2, 0.9, 0.4, 0.1]
    plain = adv(DecoupledNormalised(eps=0.0), two(task, style))
    close(adv(DecoupledNormalised(eps=0.0), two(task, [1000 * s for s in style])), plain)
    long = [1000 * s for s in style]
    close(adv(GroupNormalised(), two(task, long)), adv(GroupNormalised(), two([0] * 4, long)), 2e-3)  # GRPO: drowned


def test_gdpo_of_one_component_is_grpo() -> None:
    """Reference code: one reward is not whitened a second time."""
    groups = [*paid([{"task": r} for r in (1.0, 0.0, 0.0)]), *paid([{"task": r} for r in (1.0, 1.0)], "h", 3)]
    close(adv(DecoupledNormalised(eps=1e-6), groups), adv(GroupNormalised(), groups), 0.0)
    replaced = [replace(e, reward={"task": 1.0, **{"best": e.total}}, replaced=frozenset({"task"})) for e in groups]
    close(adv(DecoupledNormalised(eps=1e-6), replaced), adv(GroupNormalised(), groups), 0.0)


def test_gdpo_absent_constant_and_turn_rewards() -> None:
    """What is absent is 0; what is the same for a whole group adds exactly 0; turns pay into their component."""
    absent = paid([{"task": 1.0, "style": 0.5}, {"task": 0.0}, {"task": 0.0, "style": 0.5}])
    close(adv(DecoupledNormalised(), absent), adv(DecoupledNormalised(), two([1, 0, 0], [0.5, 0, 0.5])))
    flat = [*two([1, 0], [0.7, 0.7]), *two([0, 0], [0.1, 0.1], "h", 2)]
    got = adv(DecoupledNormalised(eps=0.0), flat)
    assert got[2:] == [0, 0] and got[0] == -got[1] > 0
    turns = two([1, 0, 0], [0, 0, 0])
    for e, r in zip(turns, (0.5, 0.0, 0.5), strict=True):
        e.turns = [replace(e.turns[0], reward={"style": r})]
    close(adv(DecoupledNormalised(), turns), adv(DecoupledNormalised(), two([1, 0, 0], [0.5, 0, 0.5])))


def test_gdpo_failed_and_alone() -> None:
    failed = [replace(e, status=Status.ENV_ERROR) for e in two([1, 1], [0.9, 0.9], "g", 10)]
    group = two([1, 0, 0], [0.5, 0, 0.5])
    close(adv(DecoupledNormalised(), [*group, *failed]), [*adv(DecoupledNormalised(), group), 0, 0])
    single = two([1], [0.5], "alone", 20)
    assert abs(adv(DecoupledNormalised(), [*group, *single])[3]) < 1e-15


def test_gdpo_over_tokens() -> None:
    """verl: mean and deviation over the tokens of the step, so that a long answer counts more often."""
    group = [replace(e, reward={"task": t, "style": s}) for e, t, s in
             zip([answer(0, "g", 3, 0.0), answer(1, "g", 1, 0.0)], (1.0, 0.0), (0.5, 0.0), strict=True)]  # fmt: skip
    z = math.sqrt(0.5)
    tokens = [2 * z, 2 * z, 2 * z, -2 * z]
    want = [(x - mean(tokens)) / sample_std(tokens) for x in tokens]
    batch = batch_of(group)
    close(column(DecoupledNormalised(over="token", eps=0.0)(Context(), batch)["adv_N"]), want)


def test_gdpo_refuses_a_component_that_is_not_there() -> None:
    m = method("gdpo").but(credit=DecoupledNormalised(weights={"stile": 0.5}))
    batch = batch_of(two([1, 0], [0.5, 0.0]))
    with pytest.raises(ValueError, match=r"weights has 'stile', which is no component .*nearest: style.*style, task"):
        check_first_batch(m, batch.with_columns(**m.credit(Context(), batch)))
    with pytest.raises(ValueError, match=r"weights={'style': 'much'} has no number"):
        DecoupledNormalised(weights={"style": "much"})  # type: ignore[dict-item]


def two_rewards(*rewards: tuple[float, float], **fields: Any) -> list[Episode]:
    episodes = group([task for task, _ in rewards], **fields)
    for e, (task, style) in zip(episodes, rewards, strict=True):
        e.reward = {"task": task, "style": style}
    return episodes


def test_gdpo_over_tokens_leaves_failures_out() -> None:
    """Sums of z-scores are ±√½ twice: with and without a third answer that failed, A = ±√½ of two tokens."""
    two, failed = two_rewards((1.0, 2.0), (0.0, 0.0)), two_rewards((1.0, 9.0), first=2, **FAILED)
    credit = DecoupledNormalised(over="token", eps=0.0)
    want = [math.sqrt(0.5), -math.sqrt(0.5)]
    assert column(credit(Context(), batch_of(two))["adv_N"]) == pytest.approx(want)
    assert column(credit(Context(), batch_of([*two, *failed]))["adv_N"]) == pytest.approx([*want, 0.0])


def test_gdpo_knows_its_components() -> None:
    batch = batch_of(two_rewards((1.0, 2.0), (0.0, 0.0)))
    for weights in ({}, {"style": 0.5}, {"style": 0.5, "task": 2.0}):
        assert DecoupledNormalised(weights=weights).unfit(batch) == ""
    assert "weights has 'stile'" in DecoupledNormalised(weights={"style": 1.0, "stile": 0.5}).unfit(batch)


def test_gdpo_is_a_value() -> None:
    """Like every occupant it can be asked for by a set or a dict, though its weights are a dict."""
    one, same, other = (DecoupledNormalised(weights={"style": w}) for w in (0.5, 0.5, 0.25))
    assert len({one, same, other}) == 2 and hash(method("gdpo").credit) == hash(DecoupledNormalised())
