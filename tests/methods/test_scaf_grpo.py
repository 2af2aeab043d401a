"""Evidence for scaf_grpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from itertools import count
from typing import Any

import evidence
import pytest
from drawing import bench, equal, far_apart, prompt_of, rolled, steps_of, task
from scripted import GRPO, TASKS, uses

from gruppo.data import Episode, Source, Use, pack
from gruppo.methods.scaf_grpo import SCAF_GRPO, HelpFailedGroups, spaced

test_laws = evidence.laws("scaf_grpo")
test_asks = evidence.asks("scaf_grpo")
test_planted_mistakes = evidence.planted("scaf_grpo")
test_equivalences = evidence.equivalences("scaf_grpo")
test_resume = evidence.resume("scaf_grpo")


def helped(at: int, ctx_fields: dict[str, Any] | None = None, **fields: Any) -> list[Episode]:
    """Prompts 0 and 2 fail; answers that see the hint of level `at` or a stronger one are right."""
    m = SCAF_GRPO.but(rollout=HelpFailedGroups(**fields))

    def worth(e: Episode) -> float:
        return float(e.task == "t1" or len(e.text) - 1 >= at)

    ctx = bench(m, lambda prompt, r: "x", worth, **(ctx_fields or {}))
    return rolled(m, ctx, TASKS, samples=8)


def test_the_weakest_hint_that_helps_replaces_one_answer() -> None:
    episodes = helped(2)
    learned = [e for e in episodes if e.use == Use.LEARN]
    assert uses(episodes) == [24, 2 + 2 * 2, 0]  # groups keep their size; two levels of each failed group are unused
    for g in ("t0", "t2"):
        mine = [e for e in learned if e.group == g]
        assert sorted(e.total for e in mine) == [0.0] * 7 + [1.0]
        [right] = [e for e in mine if e.total > 0]
        assert right.text == "12x" and prompt_of(right).endswith("=12")
    assert not [e for e in episodes if e.group == "t1" and e.use == Use.NONE]  # a group with a right answer
    batch = pack([e for e in learned if e.group == "t0"])
    adv_N = GRPO.credit(bench(GRPO, lambda p, r: "", lambda e: 0.0), batch)["adv_N"]
    by_hand = {True: 2.475, False: -0.354}
    for n, e in enumerate(batch.episode_N.tolist()):
        assert float(adv_N[n]) == pytest.approx(by_hand[bool(batch.reward_E[e] > 0)], abs=1e-3)
    assert int(batch.policy_N.sum()) == 16  # x and eos of each; the hint is a decision that nobody learns
    assert batch.size("N") == 18


def test_when_nothing_is_replaced() -> None:
    assert uses(helped(9)) == [24, 2 * 3, 0]  # no level helps
    assert uses(helped(1, exempt_share=0.6)) == [24, 0, 0]  # half of the run is over
    assert uses(helped(1, exempt_share=0.5)) == [24, 2 + 2 * 2, 0]
    assert uses(helped(1, levels=0)) == [24, 0, 0]


def test_failures_are_no_wrong_answers() -> None:
    m = SCAF_GRPO
    ctx = bench(m, lambda prompt, r: "x", lambda e: None)
    episodes = rolled(m, ctx, TASKS)
    assert len(episodes) == 12 and uses(episodes) == [12, 0, 0]  # nobody was judged: nobody is helped
    first = count()
    ctx = bench(m, lambda prompt, r: "x", lambda e: None if next(first) % 4 else float(len(e.text) > 1))
    assert uses(rolled(m, ctx, TASKS[:1], samples=4))[0] == 4


@pytest.mark.parametrize(
    ("hints", "levels", "tried"), [(3, 12, [1, 2, 3]), (0, 12, []), (4, 2, [2, 4]), (5, 3, [2, 4, 5])]
)
def test_levels_that_are_tried(hints: int, levels: int, tried: list[int]) -> None:
    assert spaced(hints, levels) == tried


def test_scaf_grpo_without_help_is_grpo_bit_for_bit() -> None:
    plain, _ = steps_of(GRPO, "task.level=4", first=2)
    for rollout in (HelpFailedGroups(levels=0), HelpFailedGroups(exempt_share=0.9)):
        assert equal(steps_of(SCAF_GRPO.but(rollout=rollout), "task.level=4", first=2)[0], plain)
    helped_too, [record] = steps_of(SCAF_GRPO, "task.level=4", first=2)
    assert record.batch is not None and bool((record.batch.source_N == Source.HINT).any())
    assert far_apart(helped_too, plain) > 0


def test_scaf_a_lot_says_who_gives_its_place() -> None:
    """Twelve groups of four wrong answers: it is not always the same one that goes."""
    ctx = bench(SCAF_GRPO, lambda prompt, r: "x", lambda e: float(len(e.text) > 1))
    episodes = rolled(SCAF_GRPO, ctx, [task(i) for i in range(12)])
    gone = [i % 4 for i, e in enumerate(episodes[:48]) if e.use == Use.NONE]
    assert len(gone) == 12 and len(set(gone)) >= 3


def test_scaf_draws_nothing_where_nobody_needs_help() -> None:
    ctx = bench(SCAF_GRPO, lambda prompt, r: "x", lambda e: 1.0)
    ctx.draw = None  # type: ignore[assignment]
    assert len(rolled(SCAF_GRPO, ctx, [task(0)])) == 4
