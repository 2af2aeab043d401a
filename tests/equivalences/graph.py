"""The graph of equivalences, as data: which method is which other one when some of its furniture is changed.

`GRAPH` is a list of (name, left, right, note, …); the labels of a drawing are the names of left and right. It is the
union of the lists `GRAPH` of the files `graph_*.py` here, one for each family of methods. What they share, and the
type of an edge, is in `sides.py`.
"""

from importlib import import_module
from pathlib import Path

from sides import Equivalence

FAMILIES = sorted(path.stem for path in Path(__file__).parent.glob("graph_*.py"))
GRAPH: list[Equivalence] = [edge for family in FAMILIES for edge in import_module(family).GRAPH]
