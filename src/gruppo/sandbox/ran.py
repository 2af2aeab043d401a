"""What a program is given, and what became of it."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

Status = Literal["ok", "error", "timeout", "memory", "output", "limit", "killed", "failed"]

LEAST_MEMORY = 16  # MB
LARGEST_FILES = 32 << 20  # bytes that a program can be given; its scratch folder holds twice as much


@dataclass(frozen=True)
class Ran:
    """How a program ended.

    - ok: exit code 0; error: an exception, or another exit code.
    - timeout, memory, output, limit (threads or files): it exceeded a limit.
    - killed: by a signal, such as that of a segmentation fault.
    - failed: the sandbox itself failed, and `why` says how. Nothing is known about the program.

    `value` is the value of a last line that is an expression, as text. The program writes it, so it may be anything.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    seconds: float = 0.0
    why: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Tests:
    """Tests of a program, which run in a process of their own; their end is the outcome.

    `calls` are the program's functions that they call (none: all names that nothing defines). Arguments and results are
    plain values: numbers, texts, lists, tuples, sets, dicts. So a program can neither end the tests early nor return an
    object that equals everything. `prelude` is trusted code that runs before the functions are put in place.
    """

    __test__ = False  # for pytest: no tests of ours

    code: str
    prelude: str = ""
    calls: Sequence[str] = ()


def request(
    code: str,
    seconds: float,
    memory_mb: int,
    output_bytes: int,
    processes: int,
    stdin: str | bytes,
    files: Mapping[str, str | bytes],
    tests: Tests | None,
) -> bytes:
    """The message to a supervisor; a ValueError says what cannot be run."""
    _refuse(code, seconds, memory_mb, output_bytes, processes)
    size = sum(len(content) for content in (stdin, *files.values()))
    if size > LARGEST_FILES:
        raise ValueError(
            f"stdin and files have {size:,} bytes, and a program can be given {LARGEST_FILES:,}. Give it less."
        )
    body: dict[str, Any] = {
        "code": _text(code),
        "seconds": seconds,
        "memory_mb": memory_mb,
        "output_bytes": output_bytes,
        "processes": processes,
        "stdin": _bytes(stdin),
        "files": {_inside(name): _bytes(content) for name, content in files.items()},
    }
    if tests is not None:
        body |= {"tests": _text(tests.code), "prelude": _text(tests.prelude), "calls": list(tests.calls)}
    raw = json.dumps(body).encode()
    return len(raw).to_bytes(8, "little") + raw


def _refuse(code: str, seconds: float, memory_mb: int, output_bytes: int, processes: int) -> None:
    if not isinstance(code, str):
        raise ValueError(f"the program is {type(code).__name__} and not a text, so it cannot be run. Give its source.")
    for name, value, least, most in (
        ("seconds", seconds, 0.01, 3600),
        ("memory_mb", memory_mb, LEAST_MEMORY, 1 << 20),
        ("output_bytes", output_bytes, 1, 1 << 30),
        ("processes", processes, 1, 1000),
    ):
        whole = name == "seconds" or (isinstance(value, int) and not isinstance(value, bool))
        if not whole or not least <= value <= most:
            kind = "a number" if name == "seconds" else "a whole number"
            raise ValueError(f"{name}={value!r}: no program can run like this. Use {kind} from {least} to {most}.")


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
        raise ValueError(
            f"files: {name!r} would be outside the scratch folder. Use a relative name without '..': data/a.txt."
        )
    return str(path)


def _text(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()  # halves of characters cannot be sent


def _bytes(content: str | bytes) -> str:
    return base64.b64encode(content.encode(errors="replace") if isinstance(content, str) else content).decode()
