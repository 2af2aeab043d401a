"""Metrics of an update, added up over its optimiser steps."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Sums and counts of metrics over the optimiser steps of one batch."""

    sums: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, name: str, value: float, count: float = 1.0) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value
        self.counts[name] = self.counts.get(name, 0.0) + count

    def merge(self, other: "Tally") -> None:
        for name, value in other.sums.items():
            self.most(name, value) if name.endswith("_max") else self.add(name, value, other.counts[name])

    def most(self, name: str, value: float) -> None:
        """Keep the largest value instead of a mean."""
        self.sums[name], self.counts[name] = max(self.sums.get(name, 0.0), value), 1.0

    def means(self) -> dict[str, float]:
        return {k: v / self.counts[k] if self.counts[k] else 0.0 for k, v in self.sums.items()}
