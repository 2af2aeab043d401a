"""The board of claims: the main claim of each paper, tested at small scale by a rule fixed before the runs.

    claim.py      what is claimed, on what task, and the rule: claims/NAME.toml
    measures.py   numbers of a finished run: its last accuracy, the steps to a value, its worst drop
    gates.py      what pilot seeds must show before a verdict may be made
    kinds.py      kinds of claims, and what of each survives
    sense.py      rules that cannot fail or cannot hold are refused
    unjudged.py   what a file must have before its verdict
    verdict.py    reproduced, not reproduced or inconclusive, from paired intervals over seeds
    in_tables.py  claims whose task is an exact world
    board.py      pilots, runs, results: claims/results/NAME.json
    recheck.py    a result says only what follows from its own values
    ledger.py     claims/ledger.jsonl: what was written, and that it was not changed since
    page.py       the board in the documentation

docs/claims.md says how a claim is made.
"""
