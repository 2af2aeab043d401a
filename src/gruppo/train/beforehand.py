"""What a run says, or refuses, before its first step: of its settings and of the machine."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gruppo.stages import kind
from gruppo.stages.requires import RecurringTasks
from gruppo.train.learner import OptimConfig

if TYPE_CHECKING:
    from gruppo.tasks import TaskSet
    from gruppo.train.config import RunConfig
    from gruppo.train.run import Run

# Bytes that a step keeps of an answer, and of each of its tokens, at least: 8,192 more answers of 3.5 tokens (16,384
# instead of 8,192, the built-in policy, one thread of a CPU) took 24 KiB each.
ANSWER, TOKEN = 12 << 10, 64
LARGE = 20_000_000  # trained weights
GIB = 1 << 30


def refuse_too_many(config: "RunConfig", tasks: "TaskSet") -> None:
    """Refuses a step, or an evaluation, whose answers this machine cannot hold, however short they are."""
    asked = min(config.eval.prompts, len(tasks.held_out))
    kinds = (
        (f"prompts={config.prompts} x samples={config.samples}", config.prompts, config.samples, "a step", ""),
        (f"{asked} held-out prompts x eval.samples={config.eval.samples}", asked, config.eval.samples,
         "an evaluation", "eval."),
    )  # fmt: skip
    memory = machine_memory()
    for said, prompts, samples, what, of in kinds:
        if prompts * samples * ANSWER > memory:
            raise ValueError(
                f"{said} are {prompts * samples:,} answers, and {what} holds all of its answers at once: at least "
                f"{_gib(prompts * samples * ANSWER)}, and this machine has {_gib(memory)}. Use fewer {of}prompts or "
                f"{of}samples, {int(memory // ANSWER):,} answers at most."
            )


def too_long(run: "Run") -> str:
    """Answers that can be held only if few of them are as long as they may be."""
    answers, tokens, memory = run.config.prompts * run.config.samples, run.sampling.max_tokens, machine_memory()
    if answers * (ANSWER + tokens * TOKEN) <= memory:
        return ""
    return (
        f"prompts={run.config.prompts} x samples={run.config.samples} answers of up to sampling.max_tokens={tokens} "
        f"tokens would need about {_gib(answers * (ANSWER + tokens * TOKEN))}, and this machine has {_gib(memory)}: if "
        "many of them are that long, the run is ended for want of memory. Use fewer prompts, or a smaller "
        "sampling.max_tokens."
    )


def machine_memory() -> float:
    """Bytes that this machine, or the container that this is, has in all; infinite where that is not known."""
    try:
        here = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        here = math.inf
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        return min(here, float(limit.read_text()))
    except (OSError, ValueError):  # there is none: "max"
        return here


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def said_beforehand(run: "Run") -> list[str]:
    """Warnings."""
    return list(filter(None, (few_recur(run), usual_rate(run), too_long(run), slow(run))))


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


def usual_rate(run: "Run") -> str:
    """The default learning rate is that of the built-in policies, and ten times what a pretrained model stands."""
    config = run.config
    numbers = sum(p.numel() for p in run.models["policy"].parameters() if p.requires_grad)
    if config.model.lora.rank or numbers < LARGE or config.optim.lr != OptimConfig().lr:
        return ""
    return (
        f"optim.lr={config.optim.lr:g} is the default, for the built-in policies of less than a million weights, and "
        f"all {numbers / 1e6:,.0f} million weights of {config.model.name} are trained with it: such a model may forget "
        "in a few steps what it could do. Use optim.lr=1e-5, or less for a larger model (docs/models.md); an adapter "
        "(model.lora.rank=16) stands 1e-4."
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
