"""What the page of claims says about reading it."""

import re
from collections import Counter
from pathlib import Path

import pytest

from gruppo.lab.claims import board
from gruppo.lab.claims.claim import all_claims
from gruppo.lab.claims.gates import NO_REGIME
from gruppo.lab.claims.kinds import outcomes, totals
from gruppo.lab.claims.measures import MEASURES
from gruppo.tasks import load_task

ROOT = Path(__file__).parents[2]
HEAD = (ROOT / "docs" / "claims.md").read_text().partition("<!-- Below")[0]


def test_every_measure_of_the_board_is_explained() -> None:
    used = {c.measure.partition("(")[0] for claim in all_claims(ROOT / "claims").values() for c in claim.conditions}
    told = set(re.findall(r"`(\w+)\(", HEAD))
    assert used <= told <= MEASURES.keys()


@pytest.mark.parametrize(
    ("task", "sizes"), [("addition", {1: 11, 2: 819}), ("chain", {1: 33, 2: 257}), ("countdown", {1: 210})]
)
def test_tasks_with_few_held_out_problems(task: str, sizes: dict[int, int]) -> None:
    for level, size in sizes.items():
        assert len(load_task(task, level=level).held_out) == size and str(size) in HEAD


def test_the_readme_counts_as_the_board_does() -> None:
    claims = all_claims(ROOT / "claims")
    results = [board.load(ROOT / "claims", c) for c in claims.values()]
    found = Counter(r["verdict"] if r else "not run" for r in results)
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"what the papers of {len({c.method for c in claims.values()})} methods say" in text
    assert (
        f"Of {len(claims)} claims {found['reproduced']} are reproduced, {found['not reproduced']} are not, "
        f"{found['inconclusive']} are open, with {found['not run']} still to run" in text
    )
    gated, plain, fails, rest = totals(outcomes(claims, board.verdicts(ROOT / "claims", claims)))
    said = f"{gated} survive with gates, {plain} without them, {fails} do not survive, and {rest} are undecided"
    assert said in text


def test_the_first_table_comes_first_and_every_link_of_the_page_leads_somewhere() -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    assert len(page[: page.index("| kind |")].split()) < 120
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= {h.lower().replace(" ", "-") for h in headings}
    pictures = re.findall(r"\]\((claims/\w+\.png)\)", page)
    assert len(pictures) == len(set(pictures)) and all((ROOT / "docs" / p).is_file() for p in pictures)


def test_every_claim_with_a_result_has_a_picture() -> None:
    """That of gates is small; curves have several panels."""
    page = (ROOT / "docs" / "claims.md").read_text()
    for result in (ROOT / "claims" / "results").glob("*.json"):
        assert f"](claims/{result.stem}.png)" in page
        size = (ROOT / "docs" / "claims" / f"{result.stem}.png").stat().st_size
        assert size < (40_000 if f'"{NO_REGIME}"' in result.read_text() else 120_000)
