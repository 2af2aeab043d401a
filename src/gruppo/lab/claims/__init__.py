"""The board of claims: the main claim of each paper, tested at small scale by a rule fixed before the runs.

    claim.py      what is claimed, on what task, and the rule: claims/NAME.toml
    measures.py   numbers of a finished run: its last accuracy, the steps to a value, its worst drop
    verdict.py    reproduced, not reproduced or inconclusive, from paired intervals over seeds
    board.py      pilots, runs, results: claims/results/NAME.json
    page.py       the board in the documentation

docs/claims.md says how a claim is made.
"""
