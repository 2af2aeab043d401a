"""The board of claims: the headline of each paper in miniature, judged by a rule that was fixed before the runs.

    claim.py      what is claimed, on what task, by what rule: claims/NAME.toml
    measures.py   a number of a finished run: its last accuracy, the steps that it took, its worst drop
    verdict.py    reproduced, not reproduced or inconclusive, from paired intervals over seeds
    board.py      pilots, runs, results: claims/results/NAME.json
    page.py       the board in the documentation

docs/claims.md says how a claim is made.
"""
