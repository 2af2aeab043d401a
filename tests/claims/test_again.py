"""The table of claims that were judged again with gates."""

from pathlib import Path

from gruppo.lab.claims import again, board
from gruppo.lab.claims.claim import all_claims
from gruppo.lab.claims.gates import gates_of

CLAIMS = Path(__file__).parents[2] / "claims"


def test_every_claim_with_gates_of_a_method_that_was_judged_before_is_in_it() -> None:
    claims = all_claims(CLAIMS)
    verdicts = board.verdicts(CLAIMS, claims)
    text = again.table(claims, verdicts)
    before = {c.method for n, c in claims.items() if not gates_of(c) and verdicts[n] != "not run"}
    for name, claim in claims.items():
        assert (f"[{name}](#{name}) {verdicts[name]}" in text) == (
            claim.method in {c.method for c in claims.values() if gates_of(c)} & before
            and bool(gates_of(claim) or verdicts[name] != "not run")
        )


def test_decided_is_reproduced_or_not_reproduced() -> None:
    verdicts = {"nft": "not reproduced", "nft_exact": "reproduced", "llds": "reproduced", "llds_exact": "inconclusive"}
    claims = {n: c for n, c in all_claims(CLAIMS).items() if n in verdicts}
    assert "1 of 2 methods are decided with their gates passed" in again.table(claims, verdicts)
