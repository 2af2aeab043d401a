"""Instruments that examine methods and runs from outside. The core imports none of them.

laws/         what every method must satisfy, whatever is in its rooms: gruppo methods check
exact/        the exact laboratory, bias and variance by enumeration: gruppo lab
tabular/      a trainer on exact worlds, 100 seeds at once: gruppo lab --train
compare/      several methods side by side, with statistics: gruppo compare
claims/       small-scale tests of the papers' claims: gruppo claims
variance.py   how noisy the gradient of a run is
"""
