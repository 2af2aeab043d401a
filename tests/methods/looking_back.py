"""Memory, replays and tasks by hand, for methods that look back."""

from dataclasses import replace

import numpy as np

from gruppo.data import Batch, Episode, Note, Source, single_turn
from gruppo.stages import Memory, Occupant, StepRecord
from gruppo.tasks import Task


def seen(occupant: Occupant, *steps: list[Episode], memory: Memory | None = None, batch: Batch | None = None) -> Memory:
    """Memory after these steps."""
    memory = Memory() if memory is None else memory
    for step, drawn in enumerate(steps):
        with memory.writing():
            occupant.observe(StepRecord(step, [], batch, {}, None, drawn), memory)
    return memory


def credited(uid, adv=(1.0, 1.0), reward=1.0, group="g", step=0, **changes):
    prompt, ids = np.array([5, 6]), np.arange(7, 7 + len(adv))
    logp, version = np.full(len(ids), -0.5, np.float32), np.zeros(len(ids), np.int32)
    e = single_turn(uid, "t", group, prompt, ids, logp, version, reward={"task": reward})
    notes = {"adv": Note(np.array(adv, np.float32), "N", step)}
    return replace(e, step=step, notes=notes, **changes)


HINTED = {"prompt_source": np.array([Source.ENV, Source.HINT], np.int8)}  # one decision more, which is not its own


def tasks_of(**domains: int) -> list[Task]:
    """So many tasks of each domain."""
    return [Task(f"{d}{i}", "?", "1", 1, d) for d, n in domains.items() for i in range(n)]
