"""The laws that every method must satisfy, and the small world in which they are tested."""

from gruppo.lab.laws.laws import LAWS, ONCE, UNTESTED, check_laws, excused, law_by_law, verdict

__all__ = ["LAWS", "ONCE", "UNTESTED", "check_laws", "excused", "law_by_law", "verdict"]
