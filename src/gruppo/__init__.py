"""Gruppo: policy optimisation for language models and agents, one page per method.

Importing the package is cheap: torch is loaded only by the modules that use it.
"""

__version__ = "0.1.0"
