"""The tools that come with gruppo: a calculator, Python in the sandbox, and a search in a small encyclopedia."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from gruppo.envs.corpus import corpus
from gruppo.sandbox import Ran, Sandbox, shared
from gruppo.tools.base import Limits, Tool, ToolError
from gruppo.tools.function import FunctionTool

LONGEST = 1_000  # letters of an expression
BITS = 20_000  # of a whole number

_TWO: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_ONE: dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau, "inf": math.inf}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
    **{
        n: getattr(math, n)
        for n in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "floor", "ceil", "gcd")
    },
}


def calculate(expression: str) -> str:
    """Computes an arithmetic expression such as (3 + 4) * 2 ** 5 / sqrt(2).

    Args:
        expression: numbers, + - * / // % **, brackets, pi, e, and functions such as sqrt, log, round
    """
    if len(expression) > LONGEST:
        raise ToolError(
            f"the expression has {len(expression)} letters, and {LONGEST} are the most. Compute it in parts."
        )
    text = expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/").replace("\u2212", "-")
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except ToolError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = "is no arithmetic expression" if isinstance(error, SyntaxError) else f"cannot be computed ({error})"
        raise ToolError(f"{expression!r} {what}.") from None
    except ZeroDivisionError:
        raise ToolError("division by zero.") from None
    except (OverflowError, TypeError) as error:
        raise ToolError(f"{expression!r} cannot be computed ({error}).") from None
    return _shown(value)


def _value(node: ast.expr) -> Any:
    """The value of a node. Only what is listed here exists, so no expression can reach anything else."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _ONE:
        return _ONE[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _TWO:
        a, b = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            _refuse_power(a, b)
        return _bounded(_TWO[type(node.op)](a, b))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id in _FUNCTIONS:
            return _bounded(_FUNCTIONS[node.func.id](*map(_value, node.args)))
        raise ToolError(f"there is no function {node.func.id!r}. There are: {', '.join(_FUNCTIONS)}.")
    raise ToolError(f"{ast.unparse(node)[:60]!r} is not allowed. Use numbers, + - * / // % **, brackets and functions.")


def _refuse_power(a: Any, b: Any) -> None:
    if isinstance(a, int) and isinstance(b, int) and b > 0 and a.bit_length() * b > BITS:
        raise ToolError(f"a power with more than {BITS} binary digits is too large.")
    if a < 0 and not float(b).is_integer():
        raise ToolError("a root of a negative number is not real.")


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > BITS:
        raise ToolError(f"a number with more than {BITS} binary digits is too large.")
    return value


def _shown(value: Any) -> str:
    """3.0 as 3, and 0.1 + 0.2 as 0.3: twelve digits are what a calculator shows."""
    if isinstance(value, float):
        if math.isfinite(value) and value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        return f"{value:.12g}"
    return str(value)


def calculator() -> Tool:
    """Safe arithmetic."""
    return FunctionTool(calculate, "calculator", Limits(seconds=5.0, cache=1_000))


def python(
    sandbox: Sandbox | None = None, seconds: float = 5.0, memory_mb: int = 256, output_bytes: int = 8_192
) -> Tool:
    """Python in the sandbox. Raises here and now if nothing can isolate programs on this machine."""
    box = sandbox or shared()
    box.start()

    async def run_python(code: str) -> str:
        """Runs a Python program with the standard library, and shows what it prints and the value of its last line.

        Every program starts anew. There is no network, and no file but a scratch folder.

        Args:
            code: the program
        """
        ran = await box.run(code, seconds=seconds, memory_mb=memory_mb, output_bytes=output_bytes)
        return _told(ran, seconds, memory_mb)

    # The sandbox has its own limit; this one only guards against a sandbox that hangs, or a long queue.
    return FunctionTool(run_python, "python", Limits(seconds=seconds + 60.0, cache=1_000))


def _told(ran: Ran, seconds: float, memory_mb: int) -> str:
    """What the agent reads; a program that failed is an error of the agent, a sandbox that failed is not."""
    if ran.status == "failed":
        raise RuntimeError(ran.why)
    said = "\n".join(part.rstrip("\n") for part in (ran.stdout, ran.value, ran.stderr) if part.strip())
    if ran.ok:
        return said
    why = {
        "timeout": f"the program ran longer than {seconds:g} s and was stopped.",
        "memory": f"the program used more than {memory_mb} MB and was stopped.",
        "output": "the program printed too much and was stopped.",
        "limit": f"the program was stopped: {ran.why}.",
        "killed": "the program crashed.",
    }.get(ran.status, "the program failed.")
    raise ToolError(f"{why}\n{said}".rstrip())


def search(key: int = 0) -> Tool:
    """The encyclopedia of the world `search`; it has as many editions as there are keys."""
    texts = corpus(key)

    async def search_texts(query: str) -> str:
        """Searches a small encyclopedia of people, cities and countries, and shows the three best sentences.

        Args:
            query: words, such as: city of leo
        """
        found = texts.search(query.lower().split()[:32])
        if not found:
            raise ToolError("nothing found. Use other words.")
        return "\n".join(texts.texts[i] for i in found)

    return FunctionTool(search_texts, "search", Limits(cache=1_000))


BUILT_IN: dict[str, Callable[[], Tool]] = {"calculator": calculator, "python": python, "search": search}
