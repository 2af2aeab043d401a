"""The instruments: what looks at methods and runs from outside. The core imports none of them.

laws/         what every method must keep, whatever it furnishes: gruppo methods check
exact/        the exact laboratory, bias and variance by enumeration: gruppo lab
compare/      runs side by side, with their statistics and processes: gruppo compare
claims/       the papers' claims in miniature: gruppo claims
variance.py   how noisy the gradient of a run is
"""
