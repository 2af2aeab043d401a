"""Stop runs at random moments, resume them each time, and compare with the run that nothing happened to: bit for bit.

    python scripts/kill_runs.py                    1,000 stops: kill -9, SIGTERM, SIGINT, or two signals in a row
    python scripts/kill_runs.py --count 100 --jobs 2 --seed 1
    python scripts/kill_runs.py --count 40 --device cuda   with deterministic=true
    python scripts/kill_runs.py --count 40 --settings ahead=2

Four methods with state: pipo (replay), ppo (critic), grpo with a reference that is an EMA of the policy, and spo_single
(memory of tasks). A run of twelve steps is started, stopped at a random moment of its life (while it starts, samples,
learns, evaluates, saves or finishes), and resumed until it ends; then the next one begins. Weights, optimisers, memory,
replay, metrics and the saved policy must be equal. Each life is a fork of a process that has imported everything, so a
stop costs a few seconds. Ends with 1 if anything differs, or if a run printed a traceback.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

from break_runs import _started, import_all, result

METHODS = {"pipo": "pipo", "ppo": "ppo", "ema": "./own.py:FOLLOWING", "spo_single": "spo_single"}
OWN = """
from gruppo.methods.grpo import GRPO
from gruppo.stages import Ema, Role

FOLLOWING = GRPO.but(name="following", cast={"ref": Role(refresh=Ema(tau=0.3))})
"""
SETTINGS = ("prompts=4", "samples=4", "steps=12", "save.checkpoint_every=3", "eval.prompts=4", "eval.every=4")
SETTINGS += ("save.episodes_every=4", "save.tensorboard=no", "threads=1", "task.train_size=8")
HELD = (signal.SIGINT, signal.SIGTERM)
STOPS = ("kill", "term", "int", "term twice", "int then kill")


DEVICES = {"cpu": ("model.device=cpu",), "cuda": ("model.device=cuda", "deterministic=true")}


def begin(*argv: str) -> int:
    """The command line in a fork; its words go to said.txt."""
    # Held back while Python forks: an interrupt then is dropped, with a traceback that is not the program's.
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        return pid
    os.setpgid(0, 0)
    words = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(words, 1)
    os.dup2(words, 2)
    code, over = 130, False  # 130 if a signal is there before the first line of the program

    def interrupt(*_: object) -> None:
        if not over:
            raise KeyboardInterrupt

    try:
        from gruppo.cli import main

        signal.signal(signal.SIGINT, interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        code = 99
        sys.argv = ["gruppo", *argv]  # as the process that a user has
        code = main()
    except BaseException as error:
        over = True  # before any call: Python looks for signals at calls, and who forked must not see one of these
        if isinstance(error, SystemExit):
            code = int(error.code or 0)
        elif _early(error):
            code = 130
        elif code not in (130, 143):
            traceback.print_exc()
    finally:
        over = True
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _early(error: BaseException) -> bool:
    """Whether a signal came at the first line of the program, before that hears any: as one while Python starts."""
    from gruppo.cli import main

    at = traceback.extract_tb(error.__traceback__)[-2:][0]  # the handler is behind it
    first = main.__code__.co_firstlineno
    there = at.name == "begin" or (at.name == "main" and at.lineno in (first, first + 1))
    return isinstance(error, KeyboardInterrupt) and there


def stopped(pid: int, seconds: float, how: str, draw: random.Random) -> int | None:
    """Waits, stops the process, and returns its exit code; None if it had come to its end before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return None if os.waitstatus_to_exitcode(status) == 0 else os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    first = {"kill": signal.SIGKILL, "int": signal.SIGINT, "int then kill": signal.SIGINT}.get(how, signal.SIGTERM)
    os.kill(pid, first)
    if how in ("term twice", "int then kill"):
        time.sleep(draw.uniform(0, 0.2))
        os.kill(pid, signal.SIGTERM if how == "term twice" else signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def words() -> str:
    """What the runs have said; a process may be killed before its first word."""
    return Path("said.txt").read_text() if Path("said.txt").is_file() else ""


def lives(name: str, count: int, settings: tuple[str, ...], draw: random.Random) -> tuple[int, str]:
    """Runs of a method, one after another, stopped `count` times in all: (runs that were compared, what is wrong)."""
    straight, run = Path("runs") / f"{name}-straight", Path("runs") / name
    begun = time.monotonic()
    os.waitpid(begin("train", *settings, f"method={METHODS[name]}", f"save.name={straight.name}"), 0)
    life, right = time.monotonic() - begun, result(straight)
    compared = 0
    while count > 0:
        shutil.rmtree(run, ignore_errors=True)
        Path("said.txt").unlink(missing_ok=True)
        ended: int | None = -1
        while ended is not None:
            resumed = (run / "config.toml").is_file()
            how_to = ("--resume", str(run)) if resumed else (*settings, f"method={METHODS[name]}", f"save.name={name}")
            # Once the stops are used up, the last run is left alone.
            wait, how = (draw.uniform(0, 0.6 * life) if count > 0 else 1e9), draw.choice(STOPS)
            ended = stopped(begin("train", *how_to), wait, how, draw)
            count -= ended is not None
            said = words()
            known = (None, 0, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
            if "Traceback" in said or ended not in known:
                return compared, f"{name}, stopped by {how} after {wait:.3f} s, exit code {ended}:\n{said}"
            if ended == 0 and (run / "summary.json").is_file():
                ended = None  # the signal came too late
        found = result(run)
        if found != right:
            wrong = sorted(k for k in found.keys() | right.keys() if found.get(k) != right.get(k))
            return compared, f"{name}: {', '.join(wrong)} differ:\n{words()}"
        compared += 1
    return compared, ""


def share(home: Path, job: int, jobs: int, count: int, seed: int, settings: tuple[str, ...]) -> None:
    here = home / str(job)
    here.mkdir()
    os.chdir(here)
    Path("own.py").write_text(OWN)
    draw, wrong = random.Random(seed * 1000 + job), 0
    for i, name in enumerate(METHODS):
        mine = count // len(METHODS) // jobs + (job + i * jobs < count % (len(METHODS) * jobs))
        if mine:
            compared, said = lives(name, mine, settings, draw)
            wrong += bool(said)
            print(said or f"{name}: stopped {mine} times in {compared} runs; no bit differs", flush=True)
    os._exit(int(bool(wrong)))


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--count", type=int, default=1000)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=1, help="processes at once")
    p.add_argument("--device", choices=DEVICES, default="cpu")
    p.add_argument("--settings", nargs="+", default=[], metavar="KEY=VALUE", help="of all runs, such as ahead=2")
    args = p.parse_args()
    import_all()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gruppo-kill-") as home:
        work = partial(share, Path(home), jobs=args.jobs, count=args.count, seed=args.seed)
        settings = (*SETTINGS, *DEVICES[args.device], *args.settings)
        pids = [_started(partial(work, job=j, settings=settings)) for j in range(args.jobs)]
        wrong = sum(bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in pids)
    print(f"{args.count} stops in {time.monotonic() - begun:.0f} s: {f'{wrong} FAILED' if wrong else 'all runs equal'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
