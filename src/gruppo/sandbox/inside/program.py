"""The last step: the code itself, in its own process, when everything is locked."""

import ast
import atexit
import builtins
import io
import linecache
import os
import pickle
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

NAME, TESTS = "<program>", "<tests>"
LARGEST = 1 << 26  # bytes of a call or a result
OUT_OF_MEMORY = 77  # exit code; a program that exits with it only misnames its own failure


class Ended(Exception):
    """The other process of a program and its tests is gone."""


def standard_streams() -> None:
    """Text streams on the descriptors 0 to 2, which have just been replaced."""
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False), encoding="utf-8", errors="replace")
    for fd, name in ((1, "stdout"), (2, "stderr")):
        raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=fd == 2)
        setattr(sys, name, stream)


def run(code: str, value_fd: int, most: int) -> NoReturn:
    """Runs a program. The value of a last expression goes, as text, to `value_fd`."""

    def body() -> None:
        space = fresh_main()
        value = evaluated(code, NAME, space)
        if value is not None:
            os.write(value_fd, repr(value).encode(errors="backslashreplace")[:most])

    finish(body)


def offer(code: str, calls: int, replies: int) -> NoReturn:
    """Runs a program, then serves calls of its functions to the process of the tests."""

    def body() -> None:
        space = fresh_main()
        evaluated(code, NAME, space)
        send(replies, ("ready", None))
        while True:
            try:
                name, given, named = receive(calls)
            except Ended:
                return
            try:
                send(replies, ("value", plain(space[name](*given, **named))))
            except KeyError as error:
                missing = name not in space
                send(replies, ("raised", ("NameError" if missing else "KeyError", str(error))))
            except Exception as error:
                send(replies, ("raised", (type(error).__name__, str(error))))

    finish(body)


def test(prelude: str, tests: str, names: list[str], calls: int, replies: int) -> NoReturn:
    """Runs tests. The functions they call are those of the program, in its process; only plain values pass."""

    def body() -> None:
        space = fresh_main()
        if receive(replies)[0] != "ready":
            raise RuntimeError("the program sent something before it was ready")
        evaluated(prelude, TESTS, space)
        for name in names or free_names(prelude + "\n" + tests):
            space[name] = remote(name, calls, replies)
        evaluated(tests, TESTS, space)

    finish(body)


def fresh_main() -> dict[str, Any]:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = [NAME]
    return main.__dict__


def evaluated(code: str, name: str, space: dict[str, Any]) -> Any:
    """Executes the code; the value of its last statement, if that is an expression."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), space)
    return eval(compile(ast.Expression(last.value), name, "eval"), space) if isinstance(last, ast.Expr) else None


def finish(body: Callable[[], None]) -> NoReturn:
    """As the interpreter would: the traceback, threads, exit functions, buffers, and the exit code."""
    code = 1
    try:
        try:
            body()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
            if not isinstance(stop.code, int | None):
                print(stop.code, file=sys.stderr)
        except MemoryError:
            code = OUT_OF_MEMORY
            os.write(2, b"MemoryError\n")
        except Ended as end:
            print(end, file=sys.stderr)
        except BaseException as error:
            show(error)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # a closed stream, or exit functions that raise
        code = code or 1
    finally:
        os._exit(code & 0xFF)


def show(error: BaseException) -> None:
    """The traceback, without our own frames."""
    whole = traceback.TracebackException.from_exception(error, limit=-50)
    kept = [frame for frame in whole.stack if frame.filename != __file__]
    whole.stack = traceback.StackSummary.from_list(kept)
    print("".join(whole.format()), end="", file=sys.stderr)


def free_names(code: str) -> list[str]:
    """Names that the tests use and nothing defines."""
    nodes = list(ast.walk(ast.parse(code)))
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    made = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    made |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    made |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    imports = [a for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    made |= {(a.asname or a.name).partition(".")[0] for a in imports}
    made |= {n.name for n in nodes if isinstance(n, ast.ExceptHandler) and n.name}
    return sorted(used - made - set(dir(builtins)))


def remote(name: str, calls: int, replies: int) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        send(calls, (name, plain(given), plain(named)))
        kind, content = receive(replies)
        if kind == "value":
            return content
        error, said = content
        found: Any = getattr(builtins, str(error), None)
        fit = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, UNFIT)
        kind: Any = found if fit else RuntimeError
        raise kind(str(said))

    call.__name__ = name
    return call


# Those that take more than a text, and those that would end a `map` of the tests before they have seen everything.
UNFIT = (UnicodeError, BaseExceptionGroup, StopIteration, StopAsyncIteration)
PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes)


def plain(value: Any) -> Any:
    """The value in built-in types only, so that no class of the program, with its own `==`, reaches the tests."""
    if value is None:
        return None
    for kind in PLAIN:
        if isinstance(value, kind):
            return kind(value) if type(value) is not kind else value
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(plain(v) for v in value)
    raise TypeError(f"{type(value).__name__} is no plain value (numbers, texts, lists, tuples, sets, dicts)")


class Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "complex"):
            return complex
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def send(fd: int, message: Any) -> None:
    body = pickle.dumps(message)
    data = memoryview(len(body).to_bytes(8, "little") + body)
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Any:
    size = int.from_bytes(exactly(fd, 8), "little")
    if size > LARGEST:
        raise SystemExit(f"a message of {size} bytes between program and tests; at most {LARGEST} are read")
    return Plain(io.BytesIO(exactly(fd, size))).load()


def exactly(fd: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, min(size - len(parts), 1 << 20))
        if not part:
            raise Ended("the program ended before its tests did")
        parts += part
    return bytes(parts)
