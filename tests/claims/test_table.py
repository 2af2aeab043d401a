"""The table of `gruppo claims`: its legend comes first, and a figure stands there once."""

from typing import Any

from gruppo.lab.claims.command import LEGEND, table


def condition(
    kind: str, size: float, holds: str, measure: str = "off(entropy, 0.5, 30)", **more: Any
) -> dict[str, Any]:
    return {
        "measure": measure, "kind": kind, "size": size, "holds": holds, "baseline": [0.659], "entrant": [0.0595], **more
    }  # fmt: skip


def row(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "aepo", "claim": "It holds.", "verdict": "reproduced", "ready": True, "seeds": 5, "gates": [],
        "conditions": list(conditions), "lacks": [],
    }  # fmt: skip


def test_the_legend_comes_first() -> None:
    text = table([row(condition("lower", 0.3, "yes"))])
    assert text.startswith(LEGEND + "\n\naepo ") and text.endswith("\n\n1 reproduced")
    assert max(map(len, LEGEND.splitlines())) <= 120
    assert "off(entropy, 0.5, 30) 0.659 → 0.0595 (yes)\n" in text


def test_two_conditions_about_one_figure_are_named() -> None:
    text = table(
        [row(condition("at_most", 0.1, "yes"), condition("lower", 0.3, "open"), condition("lower", 0.3, "no", "b"))]
    )
    assert "off(entropy, 0.5, 30) 0.659 → 0.0595 (at most 0.1: yes, lower 0.3: open); b 0.659 → 0.0595 (no)\n" in text


def test_a_comparison_with_the_placebo_is_marked() -> None:
    text = table([row(condition("lower", 0.3, "yes"), condition("lower", 0.2, "no", against="placebo"))])
    assert "30) 0.659 → 0.0595 (yes); off(entropy, 0.5, 30) placebo 0.659 → 0.0595 (no)\n" in text
