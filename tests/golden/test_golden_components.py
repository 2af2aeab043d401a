"""Worked numbers of gdpo, copo, empo and unlikeliness: rewards of several components, and answers that agree.

Numbers marked "card" were worked from the authors' code or the paper's figure; the others are plain sums here.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hand import Status, Use, answer, batch_of, column, mean, objective, sample_std

from gruppo.data import Batch, Episode, Turn
from gruppo.methods import method
from gruppo.methods.bnpo import BetaNormalised
from gruppo.methods.copo import InsideAndBetween, answer_entropy
from gruppo.methods.empo import AgreeingAnswers
from gruppo.methods.gdpo import DecoupledNormalised
from gruppo.methods.unlikeliness import Unlikeliness, likelihood
from gruppo.stages import Context
from gruppo.stages.check import check_first_batch, problems
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.reward import add_components
from gruppo.stages.select import RedrawEqualGroups

FAILED = {"status": Status.ENV_ERROR}


def paid(rewards: Sequence[dict[str, float]], name: str = "g", first: int = 0, tokens: int = 1) -> list[Episode]:
    made = [answer(first + i, name, tokens, 0.0) for i in range(len(rewards))]
    return [replace(e, reward=dict(r)) for e, r in zip(made, rewards, strict=True)]


def two(task: Sequence[float], style: Sequence[float], name: str = "g", first: int = 0) -> list[Episode]:
    return paid([{"task": t, "style": s} for t, s in zip(task, style, strict=True)], name, first)


def said(answers: Sequence[str], rewards: Sequence[float] = (), name: str = "g", first: int = 0) -> list[Episode]:
    rewards = rewards or [0.0] * len(answers)
    made = [answer(first + i, name, 1, r) for i, r in enumerate(rewards)]
    return [replace(e, answer=a) for e, a in zip(made, answers, strict=True)]


def by_answer(batch: Batch, adv_N: torch.Tensor) -> list[float]:
    return column(batch.gather(adv_N, "N", "E", "mean"))


def adv(credit: Any, episodes: Sequence[Episode], name: str = "adv_N") -> list[float]:
    batch = batch_of(list(episodes))
    return by_answer(batch, credit(Context(), batch)[name])


def close(a: object, b: object, tol: float = 1e-12) -> None:
    assert a == pytest.approx(b, abs=tol, rel=0)


# gdpo


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


# copo


def test_copo_card_between_groups() -> None:
    """Card: mean rewards 1 and 0 give ±0.707 to all answers of the two groups; inside them there is nothing."""
    groups = [*said(["7"] * 2, [1, 1]), *said(["8"] * 3, [0, 0, 0], "h", 2)]
    credit = InsideAndBetween(eps=0.0)
    close(adv(credit, groups, "adv_global_N"), [math.sqrt(0.5)] * 2 + [-math.sqrt(0.5)] * 3)
    assert adv(credit, groups) == [0] * 5
    close(adv(credit, groups, "local_N"), [1 / (1 + math.exp(30))] * 5, 1e-25)
    assert adv(credit, groups, "local_N")[0] == pytest.approx(9.4e-14, rel=5e-3)


def test_copo_entropy_of_answers() -> None:
    """(7, 7, 12, none): p = ½, ¼, ¼, so H = 1.5 log 2. Two texts without an answer are one. Failed ones are out."""
    groups = [*said(["7", "7", "12", ""]), *said(["", "", "5", "6"], name="h", first=4)]
    groups += [replace(e, status=Status.ENV_ERROR) for e in said(["1", "2"], name="g", first=8)]
    close(column(answer_entropy(batch_of(groups))), [1.5 * math.log(2)] * 2)
    five = said([*"12345", "5"], [1, 0, 0, 0, 0, 0])
    assert adv(InsideAndBetween(), five, "local_N")[0] > 0.5, (
        "five different answers of six: the comparison inside wins"
    )
    four = said([*"1234", "4", "4"], [1, 0, 0, 0, 0, 0])
    assert adv(InsideAndBetween(), four, "local_N")[0] < 0.01


def test_copo_one_group_and_failed_members() -> None:
    one = said(["1", "2", "2"], [1, 0, 0])
    assert adv(InsideAndBetween(), one, "adv_global_N") == [0, 0, 0]
    more = [*one, *said(["3"] * 2, [1, 1], "h", 3)]
    failed = [replace(e, status=Status.TIMEOUT) for e in said(["9"], [1], "g", 9)]
    got = adv(InsideAndBetween(), [*more, *failed], "adv_global_N")
    close(got, [*adv(InsideAndBetween(), more, "adv_global_N"), 0])
    lost = [replace(e, status=Status.TIMEOUT) for e in said(["9", "9"], [1, 1], "lost", 20)]
    close(adv(InsideAndBetween(), [*more, *lost], "adv_global_N")[:5], got[:5])


def test_copo_blends_two_surrogates_and_not_two_advantages() -> None:
    """A token of ratio 1.5 in a right answer of a bad group: A > 0 is clipped, Ā < 0 is not."""
    groups = [*said(["1", "2"], [1, 0]), *said(["5", "6"], [1, 1], "h", 2)]
    credit = InsideAndBetween(blend_slope=0.0)  # w = ½
    r = [1.5, 0.9, 1.0, 1.1]
    batch = batch_of(groups, logp_old_N=[-1.0] * 4)
    value, slopes = objective(method("copo").but(credit=credit), batch, logp_N=[-1.0 + math.log(x) for x in r])
    a = [x / (math.sqrt(0.5) + 1e-6) for x in (0.5, -0.5)] + [0.0, 0.0]
    g = [x / (math.sqrt(0.125) + 1e-6) for x in (-0.25, -0.25, 0.25, 0.25)]

    def clip(x: float, y: float) -> float:
        return min(x * y, min(max(x, 0.8), 1.28) * y)

    close(value, mean([0.5 * clip(x, i) + 0.5 * clip(x, b) for x, i, b in zip(r, a, g, strict=True)]), 1e-9)
    close(slopes["logp_N"][0], 0.5 * 1.5 * g[0] / 4, 1e-9)  # only the half that is not clipped


# empo


def worth(occupant: Any, episodes: list[Episode], ctx: Context | None = None) -> list[float]:
    add_components(ctx or Context(), (occupant,), episodes, of_groups=True)
    return [e.total for e in episodes]


def test_empo_card() -> None:
    """Card: clusters of 4, 2 and 1: 0.571, 0.286, 0.143, H = 0.956 < log 7; A = 0.775, −0.775, −1.549."""
    group = said(["a"] * 4 + ["b"] * 2 + ["c"], [0, 0, 0, 0, 1, 1, 1])
    close(worth(AgreeingAnswers(), group), [4 / 7] * 4 + [2 / 7] * 2 + [1 / 7])
    close(column(answer_entropy(batch_of(group))), [0.9557], 1e-4)
    got = adv(method("empo").credit, group)
    assert [round(x, 3) for x in got] == [0.775] * 4 + [-0.775] * 2 + [-1.549]
    assert [e.reward["task"] for e in group] == [0, 0, 0, 0, 1, 1, 1], "labels are recorded, and not paid"


def test_empo_edges() -> None:
    def of(answers: Sequence[str], **fields: float) -> list[float]:
        return worth(AgreeingAnswers(**fields), said(answers))

    assert of(["a"] * 4) == [1] * 4 and adv(method("empo").credit, said(["a"] * 4)) == [0] * 4
    assert of(list("abcd")) == [0] * 4, "all differ"
    assert of(["a", "a", "", ""]) == [0.5, 0.5, 0, 0], "no answer is worth nothing, and counts"
    assert of(["a", "a", "b", "b"]) == [0.5] * 4, "two halves"
    assert of([""] * 3) == [0] * 3 and of(["a"]) == [0]
    assert of(["a", "a", "a", "b"], answer_entropy_low=0.4) == [0.75] * 3 + [0.25], "H = 0.562 = 0.406 log 4"
    assert of(["a", "a", "a", "b"], answer_entropy_low=0.41) == [0] * 4
    assert of(["a", "a", "b", "c"], answer_entropy_high=0.75) == [0] * 4, "H = 1.040 = 0.75 log 4"
    assert of(["a", "a", "b", "c"], answer_entropy_high=0.76) == [0.5, 0.5, 0.25, 0.25]


def test_empo_counts_who_is_in_statistics() -> None:
    group = said(["a", "a", "b", "b", "b"])
    group[2].use, group[3].use = Use.NONE, Use.APART
    group[4].status = Status.ENV_ERROR
    group[4].reward = {}
    add_components(Context(), (AgreeingAnswers(),), group, of_groups=True)
    assert [e.reward.get("agreement") for e in group] == [1, 1, None, None, None]
    assert group[2].replaced == frozenset() and group[0].replaced == {"task"}


def test_empo_is_refused_where_it_makes_no_sense() -> None:
    m = method("empo")
    assert any("Of two answers both agree or both differ" in s for s in problems(m, Context(), samples=2))
    [said_] = problems(m.but(select=RedrawEqualGroups()), Context(), samples=4)
    assert "agreeing_answers in reward and redraw_equal_groups in select conflict" in said_


# unlikeliness


def likely(logps: Sequence[float], rewards: Sequence[float]) -> list[Episode]:
    made = [answer(i, "g", 2, r) for i, r in enumerate(rewards)]
    for e, x in zip(made, logps, strict=True):
        e.sequences[0].logp[-2:] = np.array([x - 0.1, x + 0.1], np.float32)
    return made


def test_unlikeliness_card() -> None:
    """Card: ranks 3, 0, 1, 2 of R = (1, 1, 0, 0): R̃ = (0.8125, 1, 0, 0), A = (0.680, 1.034, −0.857, −0.857)."""
    group = likely([-0.5, -2.0, -1.5, -1.0], [1, 1, 0, 0])
    assert worth(Unlikeliness(), group) == [0.8125, 1, 0, 0]
    assert [round(x, 3) for x in adv(method("unlikeliness").credit, group)] == [0.680, 1.034, -0.857, -0.857]


def test_unlikeliness_edges() -> None:
    close([likelihood(e) for e in likely([-0.5, -2.0], [1, 1])], [-0.5, -2.0], 1e-6)
    right = likely([-1.0, -2.0, -3.0], [1, 1, 1])
    assert worth(Unlikeliness(rank_coef=0.3), right) == pytest.approx([0.8, 0.9, 1.0])
    falls = adv(method("unlikeliness").credit, right)
    assert falls[0] < falls[1] < falls[2], "all right: the rarest has the highest advantage"
    assert worth(Unlikeliness(), likely([-1.0, -2.0], [-1.0, 1.0])) == [-1.0, 1.0], "a wrong answer loses nothing"
    assert worth(Unlikeliness(), likely([-1.0], [1.0])) == [1.0]
    failed = likely([-1.0, -2.0, -0.1], [1, 1, 1])
    failed[1].status, failed[1].reward = Status.TIMEOUT, {}
    assert worth(Unlikeliness(), failed)[::2] == [1.0, 0.875], "ranks and G after failures"


def test_unlikeliness_of_equal_answers_is_equal() -> None:
    """One answer drawn twice holds two places and has the mean of them, also when a sampler's rows differ a little."""
    group = likely([-1.0, -1.0 + 1e-7, -2.0, -0.5], [1, 1, 1, 1])
    assert worth(Unlikeliness(), group) == pytest.approx([1 - 0.25 * 1.5 / 4] * 2 + [1.0, 1 - 0.25 * 3 / 4])
    assert worth(Unlikeliness(), likely([-1.0] * 3, [1, 1, 1])) == pytest.approx([1 - 0.25 / 3] * 3)


# bnpo


def test_bnpo_of_several_rewards_is_the_mean_of_each() -> None:
    """Card: A = 1/K Σ_k A^k. A component that nobody is paid is none of them; one outside the bounds is refused."""
    task, style = ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0]), ([0.5, 0.0, 1.0], [0.25, 0.5, 0.5])
    groups = [*two(task[0], style[0]), *two(task[1], style[1], "h", 3)]
    each = [
        [*paid([{"task": x} for x in part[0]]), *paid([{"task": x} for x in part[1]], "h", 3)] for part in (task, style)
    ]
    alone = [adv(BetaNormalised(), episodes) for episodes in each]
    close(adv(BetaNormalised(), groups), [(a + b) / 2 for a, b in zip(*alone, strict=True)])
    m = method("bnpo")
    wide = batch_of(two([1, 0], [5, 0]))
    with pytest.raises(ValueError, match="a reward is 5, outside 0 to 1"):
        check_first_batch(m, wide.with_columns(**m.credit(Context(), wide)))


# several rewards in one method


def test_components_are_learned_as_they_are_paid() -> None:
    """What another component replaces is in `reward_EC`, and in no return."""
    e = paid([{"task": 1.0, "form": 0.5}])[0]
    e.turns = [Turn(2, 3, reward={"form": 0.25, "step": 2.0})]
    e.replaced = frozenset({"task", "step"})
    batch = batch_of([e])
    assert batch.components == ("form", "step", "task") and e.total == 0.75
    assert batch.reward_EC.tolist()[0][::2] == [0.5, 1.0] and batch.return_EC.tolist() == [[0.75, 0, 0]]
    assert batch.paid_EC.tolist() == [[True, False, False]]
    assert batch.reward_E.tolist() == [0.75] and batch.reward_K.tolist() == [0.25]
