"""The settings of a run that takes more than one process."""

from dataclasses import dataclass

from gruppo.fields import Checked, setting


@dataclass(frozen=True)
class ScaleConfig(Checked):
    """How many processes, and what they share."""

    ranks: int = setting(1, low=1, high=1024)  # processes that learn together, one GPU each, with sharded weights
