"""The calculator, which computes nothing but arithmetic, and Python in the sandbox."""

import asyncio
import time
from typing import Any

import pytest

from gruppo.sandbox import NoIsolation, Ran, Sandbox
from gruppo.tools import Tool, ToolResult, calculator, python


def ask(one: Tool, **arguments: Any) -> ToolResult:
    return asyncio.run(one(arguments))


@pytest.mark.parametrize(
    "expression, text",
    [
        ("1 + 1", "2"),
        ("(3 + 4) * 2 ** 5 / 7", "32"),
        ("0.1 + 0.2", "0.3"),
        ("7 // 2 + 7 % 2", "4"),
        ("2 ^ 10", "1024"),
        ("6 × 7 ÷ 2 \u2212 1", "20"),
        ("-3 ** 2", "-9"),
        ("1 / 3", "0.333333333333"),
        ("sqrt(16) + max(1, 2) + round(2.6)", "9"),
        ("sin(pi / 2)", "1"),
        ("2 ** 100", str(2**100)),
        (" 1e3 ", "1000"),
    ],
)
def test_the_calculator_computes(expression: str, text: str) -> None:
    assert ask(calculator(), expression=expression).text == text


@pytest.mark.parametrize(
    "expression, said",
    [
        ("1 / 0", "division by zero"),
        ("1 +", "is no arithmetic expression"),
        ("", "is no arithmetic expression"),
        ("x + 1", "'x' is not allowed"),
        ("'a' * 9", "is not allowed"),
        ("True + 1", "'True' is not allowed"),
        ("__import__('os')", "there is no function '__import__'"),
        ("(1).__class__", "is not allowed"),
        ("[x for x in (1, 2)]", "is not allowed"),
        ("abs.__self__", "is not allowed"),
        ("9 ** 9 ** 9", "too large"),
        ("2 ** 20000 * 2 ** 20000", "too large"),
        ("(-8) ** 0.5", "not real"),
        ("sqrt(-1)", "cannot be computed"),
        ("10.0 ** 400", "cannot be computed"),
        ("max()", "cannot be computed"),
        ("(" * 500 + "1" + ")" * 500, ""),
        ("1+" * 490 + "1", ""),
        ("1" * 2_000, "Compute it in parts"),
        ("\0", ""),
    ],
)
def test_the_calculator_does_nothing_else(expression: str, said: str) -> None:
    begun = time.process_time()
    result = ask(calculator(), expression=expression)
    assert result.status == "error" if said else result.status in ("ok", "error")
    assert said in result.text and time.process_time() - begun < 3


@pytest.fixture(scope="module")
def tool_python() -> Any:
    with Sandbox() as sandbox:
        try:
            yield python(sandbox, seconds=2.0, memory_mb=64)
        except NoIsolation as error:
            pytest.skip(str(error))


@pytest.mark.parametrize(
    "code, status, text",
    [
        ("print('hi')\n6 * 7", "ok", "hi\n42"),
        ("x = 1", "ok", "(no output)"),
        ("1 / 0", "error", "ZeroDivisionError: division by zero"),
        ("while True: pass", "error", "longer than 2 s"),
        ("x = bytearray(10 ** 9)", "error", "more than 64 MB"),
        ("while True: print('x' * 999)", "error", "printed too much"),
        ("import ctypes; ctypes.string_at(0)", "error", "crashed"),
        ("open('/etc/passwd')", "error", "Error"),
    ],
)
def test_python_shows_what_happened(tool_python: Tool, code: str, status: str, text: str) -> None:
    result = ask(tool_python, code=code)
    assert result.status == status and text in result.text


def test_a_sandbox_that_fails_is_not_the_agents_error() -> None:
    class Broken(Sandbox):
        def start(self) -> Any:
            return None

        async def run(self, code: str, **limits: Any) -> Ran:
            return Ran("failed", why="no memory for a process")

    result = ask(python(Broken()), code="1")
    assert result.status == "failed" and result.ours and "no memory for a process" in result.text


def test_without_isolation_there_is_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(NoIsolation, match="no program was run"):
        python(Sandbox())
