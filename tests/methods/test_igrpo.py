"""Evidence for igrpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from random import Random

import evidence
import numpy as np
import pytest
from drawing import bench, equal, far_apart, prompt_of, rolled, steps_of, task
from scripted import GRPO, TASKS, in_turn

from gruppo.data import Use
from gruppo.methods.igrpo import IGRPO, DraftThenRefine, Refine

test_laws = evidence.laws("igrpo")
test_asks = evidence.asks("igrpo")
test_planted_mistakes = evidence.planted("igrpo")
test_equivalences = evidence.equivalences("igrpo")
test_resume = evidence.resume("igrpo")


@pytest.mark.parametrize(
    ("worth", "shown"),
    [
        ({"a": 0.0, "b": 1.0, "c": 0.5, "d": 1.0}, "b\nq0="),  # of two that are right, the first
        ({"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0}, "a\nq0="),  # all wrong: still the best
        ({"a": None, "b": None, "c": -1.0, "d": None}, "c\nq0="),  # what was not judged is no draft
        ({"a": None, "b": None, "c": None, "d": None}, "q0="),  # nothing to show
    ],
)
def test_the_best_draft_is_shown(worth: dict[str, float | None], shown: str) -> None:
    ctx = bench(IGRPO, in_turn("a", "b", "c", "d"), lambda e: worth.get(e.text, 1.0))
    episodes = rolled(IGRPO, ctx, TASKS[:1], samples=3)
    assert [e.text for e in episodes[:4]] == ["a", "b", "c", "d"]
    assert [prompt_of(e) for e in episodes] == ["q0="] * 4 + [shown] * 3
    assert [e.use for e in episodes] == [Use.NONE] * 4 + [Use.LEARN] * 3
    assert len({e.uid for e in episodes}) == 7 and {e.group for e in episodes} == {"t0"}


@pytest.mark.slow
def test_how_often_a_draft_is_right() -> None:
    """1 − (1 − 0.25)⁴ = 0.6836 of the prompts show a right draft."""
    ctx = bench(
        IGRPO,
        lambda prompt, r: "yes" if Random(r.key).random() < 0.25 else "no",
        lambda e: float(e.text == "yes"),
    )
    episodes = rolled(IGRPO, ctx, [task(i) for i in range(2000)], samples=1)
    shown = [prompt_of(e).startswith("yes\n") for e in episodes if e.use == Use.LEARN]
    assert len(shown) == 2000 and abs(np.mean(shown) - 0.6836) < 0.03
    assert 0.2 < np.mean([e.total for e in episodes if e.use == Use.NONE]) < 0.3


def test_a_draft_is_cut() -> None:
    cut = IGRPO.but(prompting=(Refine(template="{prompt}{draft}", draft_tokens=2),))
    ctx = bench(cut, lambda prompt, r: "abcd", lambda e: 1.0)
    assert {prompt_of(e) for e in rolled(cut, ctx, TASKS[:1])} == {"q0=", "q0=ab"}


def test_no_drafts_is_grpo_bit_for_bit() -> None:
    alone, _ = steps_of(IGRPO.but(rollout=DraftThenRefine(drafts=0)), steps=2)
    assert equal(alone, steps_of(GRPO, steps=2)[0])


def test_no_token_of_a_draft_is_learned() -> None:
    after, [record] = steps_of(IGRPO)
    assert record.batch is not None
    assert record.batch.size("E") == 12 and len(record.drawn) == 24
    learned = set(record.batch.uid_E.tolist())
    assert not learned & {e.uid for e in record.drawn if e.use == Use.NONE}
    spent = sum(e.tokens for e in record.drawn)
    assert record.facts["sampled"] == spent > record.facts["tokens"]  # what drafts cost is told
    assert far_apart(after, steps_of(GRPO)[0]) > 0
