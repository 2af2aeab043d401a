"""What all tests share: a small policy, `--method NAME`, `--shuffle SEED`, and the seconds by folder at the end."""

import gc
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from gruppo.methods import all_methods
from gruppo.policies import TinyConfig, TinyTransformer
from gruppo.stages.names import nearest
from gruppo.tasks import judge
from gruppo.train import slow

HERE = Path(__file__).parent
# Helpers that tests of other folders read: batches by hand, planted mistakes, the graph of equivalences, small runs.
for folder in ("train", "laws", "equivalences", "methods"):
    if str(HERE / folder) not in sys.path:
        sys.path.insert(0, str(HERE / folder))

# Files need not be on the disk: a test kills processes, never the machine. A tenth of the time of runs that save.
os.fsync = lambda handle: None

# What a run says where something takes long is not said here, unless a test sets the time: a busy machine is no bug.
slow.PATIENCE = judge.SILENCE = judge.SLOW = 1e6

# Nor is it one for hypothesis: an example may take as long as it takes. Examples are others every time, so `make test`
# has fewer of them than `make test-all`.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("some", **PATIENT, max_examples=40)
settings.register_profile("many", **PATIENT, max_examples=100)
settings.load_profile("some")


def pytest_addoption(parser: pytest.Parser) -> None:
    said = "only what concerns this method: its file in tests/methods, and tests whose id holds its name as a word"
    parser.addoption("--method", action="append", default=[], metavar="NAME", help=said)
    parser.addoption("--shuffle", type=int, metavar="SEED", help="the files of tests, and the tests in them, shuffled")


def pytest_configure(config: pytest.Config) -> None:
    """Without `-m gpu` no test sees a GPU: on any machine the suite is that of a CPU."""
    if not re.search(r"(?<!or )not slow\b", config.option.markexpr):  # the slow tests are wanted, too
        settings.load_profile("many")
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def concerns(item: pytest.Item, method: str) -> bool:
    if item.path == HERE / "methods" / f"test_{method}.py":
        return True
    return method in re.findall(r"\w+", item.name.partition("[")[2])


LONG = ("train", "scale", "tasks", "api", "cli")  # folders whose files take longest, so they go first


def _late(item: pytest.Item) -> bool:
    return item.path.relative_to(HERE).parts[0] not in LONG


LONG_TESTS = {line for line in (HERE / "long.txt").read_text().splitlines() if not line.startswith("#")}


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.removeprefix("tests/") in LONG_TESTS:
            item.add_marker(pytest.mark.slow)
    items.sort(key=_late)
    names, seed = config.getoption("--method"), config.getoption("--shuffle")
    if seed is not None:  # files stay together, because their fixtures are expensive
        draw = random.Random(seed)
        key = {item: draw.random() for item in items}
        files = {path: draw.random() for path in dict.fromkeys(item.path for item in items)}
        items.sort(key=lambda item: (files[item.path], key[item]))
    if not names:
        return
    for name in names:
        if name not in all_methods():
            raise pytest.UsageError(f"--method {name}: no such method{nearest(name, all_methods())}.")
    kept = [item for item in items if any(concerns(item, name) for name in names)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


SECONDS: Counter[str] = Counter()


def pytest_collection_finish() -> None:
    """The garbage collector need not look at ten thousand tests again and again.

    107 tests that free memory took 93 s of CPU time before, and 39 s now.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Set-up, call and tear-down of every test; with xdist this runs in the process that prints the summary, too."""
    parts = report.nodeid.partition("::")[0].split("/")
    SECONDS["/".join(parts[1:-1]) or parts[-1]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SECONDS:
        return
    total = sum(SECONDS.values())
    said = ", ".join(f"{folder} {seconds:.1f}" for folder, seconds in SECONDS.most_common())
    terminalreporter.write_line(f"seconds by folder of tests/: {said}; together {total:.1f}")


@pytest.fixture(autouse=True)
def modules_of_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test imported from its folder is forgotten: the folder is removed, and the next test has its own."""
    path, count, folder = list(sys.path), len(sys.modules), tmp_path_factory.getbasetemp()
    yield
    sys.path[:] = [p for p in sys.path if p in path or not Path(p).is_relative_to(folder)]
    for name in list(sys.modules)[count:]:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(folder):
            del sys.modules[name]


@pytest.fixture
def make() -> Callable[..., TinyTransformer]:
    """A small policy whose distributions are far from uniform."""

    def build(dtype: torch.dtype = torch.float64, seed: int = 0, **config: Any) -> TinyTransformer:
        shape: dict[str, Any] = {
            "vocab": 23,
            "dim": 32,
            "layers": 2,
            "heads": 4,
            "kv_heads": 2,
            "ffn": 48,
            "context": 64,
        } | config
        policy = TinyTransformer(TinyConfig(**shape), seed)
        with torch.no_grad():
            for w in policy.parameters():
                if w.dim() > 1:
                    w.mul_(10)
        return policy.to(dtype)

    return build
