"""Gruppo: policy optimisation for language models and agents, one page a method.

The package is light to import: torch is loaded by the rooms that use it.
"""

__version__ = "0.1.0"
