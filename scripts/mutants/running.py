"""Runs mutants fast: everything is imported once, and each mutant is a fork.

live   a mutant of a function's body: the tests are collected once, a fork gets the mutated code objects and runs the
       tests that touch the mutated lines. Nothing is imported again: about 0.1 s of work and the time of one test
cold   other mutants (class bodies, records, defaults), and the second look at every survivor: a fork that has torch,
       but nothing of gruppo, imports the mutated source through a hook and collects its tests itself

What a run may use is CPU time, not time on the clock: the machine may be busy.
"""

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from making import PACKAGE, ROOT, Mutant

FLAGS = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:warnings", "--no-header", "--no-summary"]
TESTS = (
    "data",
    "stages",
    "golden",
    "methods",
    "equivalences",
    "registry/test_records.py",
    "registry/test_occupants.py",
    "registry/test_ranges.py",
    "registry/test_methods_as_values.py",
    "laws/test_laws.py",
    "laws/test_refusals.py",
    "tasks/test_recorded.py",
    "ranks/test_counts.py",
)  # in this process, and a second at most: a training run is no place to look for a wrong sign
BY_THE_CLOCK = (  # a busy machine fails these, and no mutant
    "tests/data/test_store.py::test_five_hundred_episodes_take_no_time",
    "tests/data/test_keyed.py::test_a_million_draws_take_less_than_a_second",
)
ENDED = (signal.SIGPROF, signal.SIGALRM, signal.SIGKILL)  # by its timers, or by us
WALL = 600.0  # seconds on the clock after which a fork is given up


def prepare() -> None:
    """What every fork shares. Nothing of gruppo: a cold fork must import it itself."""
    os.chdir(ROOT)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a fork cannot use a GPU, and the first backward would start one
    sys.path[:0] = [str(ROOT / "src")]
    import hypothesis
    import torch
    import torch._dynamo  # which every optimiser imports when it is made: two seconds of a fork
    import torch.utils.checkpoint

    torch.set_num_threads(1)
    few = hypothesis.settings(
        derandomize=True, max_examples=20, deadline=None, database=None, phases=[hypothesis.Phase.generate]
    )
    hypothesis.settings.register_profile("mutants", few)
    hypothesis.settings.load_profile("mutants")


def fork(work: Callable[[], Any]) -> tuple[int, int]:
    """(pid, pipe) of a child that does `work` in silence and writes its result as JSON."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.close(read)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # a mutant may ask for any amount
        result = work()
    except BaseException as error:
        result = {"status": "killed", "by": f"{type(error).__name__} before the tests: {error}"[:200]}
    with os.fdopen(write, "w") as pipe:
        json.dump(result, pipe)
    os._exit(0)


def apart(work: Callable[[], Any]) -> None:
    """Do `work` in a fork, so that what it imports stays there."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except KeyboardInterrupt:
            pass
        except BaseException as error:
            print(f"mutants: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stdout.flush()
        os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise ValueError("the run stopped, see above. What was done is kept: the same command goes on from here.")


def pool(jobs: Iterable[tuple[Any, Callable[[], Any]]], size: int, done: Callable[[Any, Any], None]) -> None:
    """Run jobs in at most `size` forks; `done(name, result)` as each ends. One that its timer killed says nothing."""
    waiting, running = iter(jobs), dict[int, tuple[Any, int, float]]()
    more = True
    while more or running:
        while more and len(running) < size:
            try:
                name, work = next(waiting)
            except StopIteration:
                more = False
                break
            pid, pipe = fork(work)
            running[pid] = (name, pipe, time.monotonic())
        for pid in list(running):
            name, pipe, start = running[pid]
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                with os.fdopen(pipe) as said:
                    text = said.read()
                del running[pid]
                done(name, json.loads(text) if text else _silent(os.waitstatus_to_exitcode(code)))
            elif time.monotonic() - start > WALL:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _silent(code: int) -> dict[str, Any]:
    """A fork that said nothing: its timer ended it, or it crashed (an index beyond a table, in C)."""
    return {"status": "timeout" if -code in ENDED else "crashed", "code": code}


def run_items(items: Sequence[pytest.Item], seconds: dict[str, float], usual: float = 1.0) -> dict[str, Any]:
    """The items until one fails. Each may take ten times the CPU time it took without a mutant, and three seconds.

    A mutant that waits for ever uses no CPU time: on the clock it may take twenty times as long. Either signal ends
    the process.
    """
    start = time.process_time()
    for i, item in enumerate(items):
        most = 3.0 + 10.0 * seconds.get(item.nodeid, usual)
        signal.setitimer(signal.ITIMER_PROF, most)
        signal.setitimer(signal.ITIMER_REAL, 20.0 * most)
        reports = runtestprotocol(item, log=False, nextitem=items[i + 1] if i + 1 < len(items) else None)
        if any(r.failed for r in reports):
            return {"status": "killed", "by": item.nodeid, "tests": i + 1, "cpu": time.process_time() - start}
    return {"status": "survived", "tests": len(items), "cpu": time.process_time() - start}


class Collected:
    """A pytest plugin that hands over the collected items instead of running them."""

    def __init__(self, work: Callable[[list[pytest.Item]], Any]) -> None:
        self.work, self.result = work, None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.testsfailed:  # so far only files that could not be imported: for a mutant that is a failure
            self.result = self.work(session.items)
        return True

    @staticmethod
    def on(paths: Sequence[str], work: Callable[[list[pytest.Item]], Any]) -> Any:
        me = Collected(work)
        code = pytest.main([*FLAGS, *(f"--deselect={t}" for t in BY_THE_CLOCK), *paths], plugins=[me])
        if me.result is None:
            raise RuntimeError(f"the tests could not be collected (pytest's exit code {int(code)})")
        return me.result


# ---- live


class Functions:
    """Every function of the four folders that lives in this process, by file and place."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str, int], list[FunctionType]] = {}
        self.caches: list[Any] = []
        for x in gc.get_objects():
            if type(x) is FunctionType and x.__code__.co_filename.startswith(str(PACKAGE)):
                code = x.__code__
                self.table.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(x)
            elif type(x) is type(_functions) and str(x.__module__).startswith("gruppo"):  # of lru_cache
                self.caches.append(x)

    def put(self, mutant: Mutant) -> bool:
        """Give the running functions the mutant's code; False where that cannot be done."""
        path = str(PACKAGE / mutant.file)
        old, new = (
            _functions(compile(Path(path).read_text(), path, "exec")),
            _functions(compile(mutant.source, path, "exec")),
        )
        if [c.co_qualname for c in old] != [c.co_qualname for c in new]:
            return False
        changed = 0
        for before, after in zip(old, new, strict=True):
            for function in self.table.get((path, before.co_qualname, before.co_firstlineno), ()):
                if after.co_freevars != before.co_freevars:
                    return False
                function.__code__ = after
                changed += before.co_code != after.co_code or before.co_consts != after.co_consts
        for cache in self.caches:
            cache.cache_clear()
        return changed > 0


@functools.lru_cache(maxsize=4096)
def _functions(code: CodeType) -> tuple[CodeType, ...]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return tuple(f for c in inner for f in (c, *_functions(c)))


def live(
    mutants: Sequence[Mutant], choose: Callable[[Mutant], list[str]], seconds: dict[str, float], jobs: int, done: Any
) -> None:
    """Run live mutants; those that cannot be put into a running process are reported as `cold`."""

    def work(items: list[pytest.Item]) -> bool:
        by_name = {i.nodeid: i for i in items}
        functions = Functions()
        gc.collect()
        gc.freeze()

        def one(mutant: Mutant, tests: list[str]) -> dict[str, Any]:
            if not functions.put(mutant):
                return {"status": "cold"}
            return run_items([by_name[t] for t in tests if t in by_name], seconds)

        todo = ((m, functools.partial(one, m, choose(m))) for m in mutants)
        pool(todo, jobs, done)
        return True

    Collected.on([f"tests/{t}" for t in TESTS], work)


# ---- cold


class _Loader(importlib.machinery.SourceFileLoader):
    source = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec")


class Hook(importlib.abc.MetaPathFinder):
    """Imports one module of gruppo from other source."""

    def __init__(self, file: str, source: str) -> None:
        parts = ["gruppo", *Path(file).with_suffix("").parts]
        self.package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.package else parts)
        self.path, self.source = str(PACKAGE / file), source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        loader = _Loader(fullname, self.path)
        loader.source = self.source
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


def cold(file: str, source: str, tests: Sequence[str], seconds: dict[str, float]) -> dict[str, Any]:
    """Import gruppo with this source of one file, collect, and run these tests in this order."""
    sys.meta_path.insert(0, Hook(file, source))
    signal.setitimer(signal.ITIMER_PROF, 120.0)

    def work(items: list[pytest.Item]) -> dict[str, Any]:
        by_name = {i.nodeid: i for i in items}
        return run_items([by_name[t] for t in tests if t in by_name], seconds)

    if not tests:
        return {"status": "survived", "tests": 0}
    try:
        return Collected.on(list(dict.fromkeys(t.split("::")[0] for t in tests)), work)
    except RuntimeError as error:
        return {"status": "killed", "by": str(error), "tests": 0}


def in_order(paths: Sequence[str]) -> dict[str, Any]:
    """The tests of these files and folders, here, until one fails."""
    try:
        return Collected.on(list(paths), lambda items: run_items(items, {}, usual=20.0))
    except RuntimeError as error:
        return {"status": "killed", "by": str(error), "tests": 0}


# ---- which test touches which line


def measure(known: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """{test: {seconds, lines: {file: [line]}}} for tests that are not known; what fails without a mutant is out."""
    import coverage

    def work(items: list[pytest.Item]) -> dict[str, Any]:
        out, start = dict[str, dict[str, Any]](), time.monotonic()
        todo = [i for i in items if i.nodeid not in known]
        watch = coverage.Coverage(data_file=None, include=[f"{PACKAGE}/*"], config_file=False, messages=False)
        watch.start()
        for i, item in enumerate(todo):
            watch.switch_context(item.nodeid)
            before = time.process_time()
            reports = runtestprotocol(item, log=False, nextitem=todo[i + 1] if i + 1 < len(todo) else None)
            if all(r.passed for r in reports):
                out[item.nodeid] = {"seconds": round(time.process_time() - before, 4), "lines": {}}
            if i % 50 == 0 and i:
                left = (time.monotonic() - start) / i * (len(todo) - i)
                say(f"which test touches what: {i} of {len(todo)} tests, {left:.0f} s left, {item.nodeid}")
        watch.stop()
        data = watch.get_data()
        for file in data.measured_files():
            name = Path(file).relative_to(PACKAGE).as_posix()
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    if test in out:
                        out[test]["lines"].setdefault(name, []).append(line)
        return {"here": [i.nodeid for i in items], "new": out}

    return Collected.on([f"tests/{t}" for t in TESTS], work)
