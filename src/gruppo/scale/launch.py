"""`gruppo train scale.ranks=4`: the ranks of one machine as processes, and what is said when one of them dies.

torch's own launcher (`torch.distributed.elastic`) starts and ends them. The first rank is the run, so signals go to it
alone, and its exit code is that of the command. If this process is gone (a closed terminal, kill -9), the ranks notice.
"""

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gruppo.train.config import RunConfig

Steps = Generator[Any, None, dict[str, Any]]  # of a run; its value is the summary

NOTE = "GRUPPO_RANKS_NOTE"  # the file in which the first rank writes the name of its run folder
LAUNCHER = "GRUPPO_RANKS_LAUNCHER"  # the process that has started the ranks
LOOK = 0.2  # seconds between two looks at the processes
A_CORE = 4  # ranks that may share a core; more would need all memory before the first step
FAREWELL = 10.0  # seconds in which the others may end by themselves once one has ended: all is over within 20


def agreed(config: RunConfig) -> RunConfig:
    """The configuration with the ranks that there are; a ValueError if it asks for others."""
    size, wanted = int(os.environ.get("WORLD_SIZE", "1")), config.scale.ranks
    if said := config.scale.unplaced():
        raise ValueError(said)
    if config.scale.address and size > 1:
        raise ValueError(
            f"scale.address={config.scale.address} in one of {size} processes that torchrun has started: Ray starts "
            "the ranks itself, and there would be too many. Start one process, or leave scale.address out."
        )
    if config.scale.address:
        return config
    if wanted == 1:
        return replace(config, scale=replace(config.scale, ranks=size)) if size > 1 else config
    if wanted != size:
        raise ValueError(
            f"scale.ranks={wanted}, and there {f'are {size} processes' if size > 1 else 'is one process'}, so nothing "
            f"was started. The command `gruppo train scale.ranks={wanted}` starts them itself; a script of yours is "
            f"started with  torchrun --nproc_per_node={wanted} SCRIPT.py"
        )
    return config


def note(folder: Path) -> None:
    """For whoever has started the ranks: where this run is."""
    if path := os.environ.get(NOTE):
        Path(path).write_text(str(folder), encoding="utf-8")


def end_with_launcher() -> None:
    """If the launcher is gone, this rank ends as by SIGTERM: the first one finishes its step, saves, ends the others.

    torch gives every rank a session of its own, so nothing else would tell them.
    """
    if launcher := int(os.environ.get(LAUNCHER, "0")):
        threading.Thread(target=_end_without, args=(launcher,), name="launcher", daemon=True).start()


def _end_without(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGTERM)


def _refuse_too_many(size: int) -> None:
    import torch

    cores, gpus = os.cpu_count() or 1, torch.cuda.device_count()
    if size > max(gpus, A_CORE * cores):
        raise ValueError(
            f"scale.ranks={size} on a machine with {gpus} GPUs and {cores} cores: every rank is a process that loads "
            f"all models, and memory would run out before the first step. Use scale.ranks={gpus or cores} or less."
        )


def launch(size: int, argv: Sequence[str]) -> int:
    """`gruppo ARGV` on so many ranks of this machine; the exit code."""
    import torch.distributed as dist
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    _refuse_too_many(size)
    # Here, so that nobody else gets its port.
    meet = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # we say what happened
    with tempfile.TemporaryDirectory(prefix="gruppo-ranks-") as folder:
        where = Path(folder) / "run"
        processes: Any = start_processes(
            name="gruppo",
            entrypoint=sys.executable,
            args={rank: ("-m", "gruppo", *argv) for rank in range(size)},
            envs={rank: _env(rank, size, meet.port, where) for rank in range(size)},
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        ranks = [processes.subprocess_handlers[rank].proc for rank in range(size)]
        for number in (signal.SIGINT, signal.SIGTERM):  # a terminal reaches only this process
            signal.signal(number, lambda number, _: ranks[0].poll() is None and ranks[0].send_signal(number))
        dead = _first_to_end(ranks)
        _wait(ranks if dead == 0 else ranks[:1])
        processes.close(signal.SIGKILL, timeout=int(FAREWELL))
        return _last_words(ranks, dead, where)


def _env(rank: int, size: int, port: int, where: Path) -> dict[str, str]:
    cores = os.environ.get("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // size, 1)))
    counts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    named = {"MASTER_ADDR": "127.0.0.1", NOTE: str(where), "OMP_NUM_THREADS": cores}
    counts |= {"MASTER_PORT": port, LAUNCHER: os.getpid(), "TORCHELASTIC_USE_AGENT_STORE": True}  # that of `meet`
    return {**{k: str(v) for k, v in counts.items()}, **named}


def _first_to_end(ranks: Sequence[Any]) -> int:
    """Waits until the first rank has ended, or another one has ended badly."""
    while True:
        for rank in reversed(range(len(ranks))):  # the first one last: it ends at once if another dies
            code = ranks[rank].poll()
            if code is not None and (rank == 0 or code != 0):
                return rank
        time.sleep(LOOK)


def _wait(ranks: Sequence[Any]) -> None:
    until = time.monotonic() + FAREWELL
    while time.monotonic() < until and any(process.poll() is None for process in ranks):
        time.sleep(LOOK)


def _last_words(ranks: Sequence[Any], dead: int, where: Path) -> int:
    """The exit code. What the first rank says by itself is not said again."""
    code = ranks[dead].poll()
    if dead == 0 and code >= 0:
        return code
    from gruppo.train.folder import RunFolder
    from gruppo.train.opening import NOTHING, what_is_saved

    how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with code {code}"
    folder = RunFolder(Path(where.read_text(encoding="utf-8"))) if where.is_file() else None
    saved = what_is_saved(folder) if folder else NOTHING
    print(f"gruppo: rank {dead} of {len(ranks)} was ended {how}, and the run with it. {saved}", file=sys.stderr)
    return 128 - code if code < 0 else code


def on_ranks(steps: Steps) -> Steps:
    """A run in one process, or on the first of several ranks; on the others what that one says, without steps.

    All of them have its summary; where it failed, those that only followed have none.
    """
    size, rank = (int(os.environ.get(name, "0")) for name in ("WORLD_SIZE", "RANK"))
    if size < 2:
        return (yield from steps)
    end_with_launcher()
    from gruppo.scale.ranks import follow, leading

    if rank > 0:
        return follow()
    with leading() as channel:
        summary = yield from steps
        channel.end(summary)
        return summary
