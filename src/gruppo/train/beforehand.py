"""What a run says before its first step, of its settings and of the machine."""

import os
from typing import TYPE_CHECKING

import torch

from gruppo.stages import kind
from gruppo.stages.requires import RecurringTasks

if TYPE_CHECKING:
    from gruppo.train.run import Run


def said_beforehand(run: "Run") -> list[str]:
    """Warnings."""
    return list(filter(None, (few_recur(run), slow(run))))


def few_recur(run: "Run") -> str:
    """What is remembered about a task helps only if the task recurs."""
    drawn, tasks = run.config.steps * run.config.prompts, len(run.tasks.train)
    remembering = [(room, o) for room, o in run.method.occupants() if RecurringTasks() in o.requires]
    who = [f"{kind(o)} in {room}" for room, o in remembering]
    if not who or drawn >= 2 * tasks:
        return ""
    return (
        f"{', '.join(who)} learns from what was remembered of a task, and {drawn:,} prompts are drawn from "
        f"{tasks:,} tasks: few come twice. Use task.train_size={max(drawn // 4, 1)} or less, or more steps."
    )


def slow(run: "Run") -> str:
    """Threads that wait for each other are slow where others use the cores: eight times, as was seen."""
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if run.device.type != "cpu" or threads == 1 or busy <= cores + 0.5:
        return ""
    return (
        f"other processes use the cores (load {busy:.1f} on {cores}), and {threads} threads that wait for each "
        "other are then many times slower than one. Stop now (Ctrl-C), and start again with threads=1 "
        "(make train ARGS=threads=1)."
    )
