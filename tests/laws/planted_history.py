"""Mistakes of the methods that remember tasks, planted to see that the laws catch them: one for each method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gruppo.data import Episode, Status, gather, name_hash
from gruppo.methods import method
from gruppo.methods.dump import DomainUcb
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.methods.mmr1_vas import VarianceAware
from gruppo.methods.spo_single import Tracked
from gruppo.stages import Context, Memory, Method, StepRecord
from gruppo.stages.tables import Table, by_key


@dataclass(frozen=True)
class HistoryOfFailures(ShorterThanBefore):
    """HAPO against the mean length of all answers that were drawn, failed ones included."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        if not record.drawn:
            return
        keys, tasks = by_key(torch.tensor([name_hash(e.task) for e in record.drawn]))
        mean = gather(torch.tensor([float(e.tokens) for e in record.drawn]), tasks, "mean")
        memory["shortest"] = Table.of(memory, "shortest").put(keys, tokens=mean).plain


@dataclass(frozen=True)
class HistoryAtOnce(ShorterThanBefore):
    """HAPO that updates its history while it gives the rewards of the step."""

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Any:
        out = super().__call__(ctx, episodes)
        self.observe(StepRecord(0, [], None, {}, None, episodes), ctx.memory)
        return out


@dataclass(frozen=True)
class RemembersForEver(DomainUcb):
    """DUMP whose window is never cut: what a domain taught long ago counts for ever."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        DomainUcb(window=10**9).observe(record, memory)


@dataclass(frozen=True)
class AsksOfTheMoment(DomainUcb):
    """DUMP that counts its asks while it makes them."""

    def __call__(self, ctx: Context, tasks: Any) -> Any:
        for one in ctx.memory.get("domains", {}).values():
            one["asked"] += 1
        return super().__call__(ctx, tasks)


@dataclass(frozen=True)
class NeverAnew(VarianceAware):
    """VAS whose weights are made once and for all."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        replace(self, refresh_every=10**9).observe_as(record, memory)

    def observe_as(self, record: StepRecord, memory: Memory) -> None:
        super().observe(record, memory)


@dataclass(frozen=True)
class FailuresAreWrong(Tracked):
    """SPO that takes an answer that could not be judged for a wrong one: less is expected of its task."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        drawn = [e if e.status.judged else replace(e, status=Status.OK, reward={"task": 0.0}) for e in record.drawn]
        super().observe(replace(record, drawn=drawn), memory)


SPOILED: dict[str, tuple[str, Method]] = {
    "hapo_history: failures in the history": (
        "failures",
        method("hapo_history").but(name="spoiled", reward=(HistoryOfFailures(),)),
    ),
    "hapo_history: history in the call": (
        "memory",
        method("hapo_history").but(name="spoiled", reward=(HistoryAtOnce(),)),
    ),
    "dump: no window": ("fields_matter", method("dump").but(name="spoiled", curriculum=RemembersForEver())),
    "dump: counts in the call": ("fields_matter", method("dump").but(name="spoiled", curriculum=AsksOfTheMoment())),
    "mmr1_vas: never anew": ("fields_matter", method("mmr1_vas").but(name="spoiled", curriculum=NeverAnew())),
    "spo_single: failures are wrong": ("failures", method("spo_single").but(name="spoiled", credit=FailuresAreWrong())),
}
RAISES = {"hapo_history: history in the call", "dump: counts in the call"}
