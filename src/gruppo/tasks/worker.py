"""The process in which a scorer runs. Its parent is `judge.py`; light to import, since a hang restarts it.

Requests are length-prefixed pickles on stdin (they come from our own parent). Replies are lines of JSON: what
a scorer returns, or any code it calls, can never make the parent unpickle something.
"""

import inspect
import json
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from math import isfinite
from numbers import Real
from queue import SimpleQueue
from typing import Any, BinaryIO

from gruppo.tasks.answers import answers
from gruppo.tasks.imports import load_object, nearest

Row = tuple[dict[str, float], str, str]  # components, status, error

_REMEDY = (
    "Return a finite number, or a dict of names to finite numbers; raise an exception if the answer cannot be judged."
)


def main() -> None:
    """Serves requests until stdin ends. The first request is the import path of the scorer, and its arguments."""
    requests, replies = take_pipes()
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(requests, inbox), daemon=True).start()
    try:
        path, args = pickle.loads(inbox.get())
        scorer = made(load_object(path), path, args)
        batch = is_batch(scorer)
    except ValueError as error:
        _send(replies, ["refused", str(error)])
        return
    _send(replies, ["ready", batch])
    while True:
        _serve(scorer, batch, inbox.get(), replies)


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Moves the protocol off stdin and stdout: a scorer's prints go to stderr, its input() is empty."""
    requests, replies = os.dup(0), os.dup(1)  # copies that a process started by the scorer does not get
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # the parent has no stderr
        os.dup2(nothing, 1)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb", buffering=0)


def _receive(requests: BinaryIO, inbox: "SimpleQueue[bytes]") -> None:
    """A thread of its own, so that the worker ends with its parent even while a scorer hangs."""
    while True:
        head = requests.read(8)
        body = requests.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
        if not body:
            end_group()
        inbox.put(body)


def end_group() -> None:
    """Ends this process and, where it leads its own process group, what the scorer has started."""
    if hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _send(replies: BinaryIO, message: Any) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[replies.write(data) :]


def _serve(scorer: Callable[..., Any], batch: bool, request: bytes, replies: BinaryIO) -> None:
    try:
        kind, items = pickle.loads(request)
    except Exception as error:
        said = f"The scorer's process cannot read the tasks: {error!r}. Put plain values into Task.meta."
        return _send(replies, ["unread", said])
    _send(replies, ["begun", None])  # from here on, an end of this process is the fault of an answer
    if kind == "answers":
        for group in items:
            _send(replies, ["one", _answers(scorer, group)])
        return None
    if batch:
        return _send(replies, ["all", _batch_rows(scorer, items)])
    for task, text in items:
        _send(replies, ["one", _row(scorer, task, text)])


def _answers(scorer: Callable[..., Any], group: list[tuple[Any, str]]) -> list[str] | None:
    """None: the scorer cannot say."""
    try:
        return answers(scorer, group)
    except BaseException:
        return None


def made(found: Any, path: str, args: dict[str, Any]) -> Any:
    """The scorer of an import path, with its arguments: a class or a factory is called with them, once.

    A factory is a function that cannot be called with an answer: `def make(*, scale)`.
    """
    if not callable(found):
        return found  # refused by is_batch
    if not inspect.isclass(found) and _fits(found, (None, None), args) is None:
        return partial(found, **args) if args else found
    trouble = _fits(found, (), args)
    if trouble is not None:
        if not args and not inspect.isclass(found):
            return found  # a function with the wrong parameters: is_batch says so
        raise ValueError(_misfit(found, path, args, trouble))
    try:
        return found(**args)
    except ValueError as error:  # it says itself what is wrong with its arguments
        raise ValueError(f"{path}: {error}" if path not in str(error) else str(error)) from None
    except BaseException as error:
        raise ValueError(f"{path} could not be made with {_written(args)}. {_last_lines(error)}") from None


def _fits(found: Callable[..., Any], values: tuple[None, ...], args: dict[str, Any]) -> str | None:
    """None if it can be called so, else why not."""
    try:
        inspect.signature(found).bind(*values, **args)
    except TypeError as error:
        return str(error)
    except ValueError:  # a built-in without a signature
        return None
    return None


def _misfit(found: Callable[..., Any], path: str, args: dict[str, Any], trouble: str) -> str:
    names = [n for n in inspect.signature(found).parameters if n not in ("task", "text", "tasks", "texts", "self")]
    strange = [a for a in args if a not in names]
    near = nearest(strange[0], names) if strange else ""
    return (
        f"{path} cannot be called with {_written(args)} ({trouble}), so nothing can be judged.{near} "
        f"Its arguments: {', '.join(names) or 'none'}. Set them with task.args.NAME=VALUE."
    )


def _written(args: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in args.items()) or "no arguments"


def is_batch(scorer: Any) -> bool:
    """Whether the scorer takes (tasks, texts) and not (task, text): its parameter names say so."""
    if not callable(scorer):
        raise ValueError(
            f"The scorer is {type(scorer).__name__} and cannot be called, so nothing can be judged. "
            "Name a function (task, text) or (tasks, texts)."
        )
    try:
        signature = inspect.signature(scorer)
        signature.bind(None, None)
    except TypeError:
        raise ValueError(
            f"The scorer has the parameters {inspect.signature(scorer)}: it cannot be called with an answer. "
            "Write (task, text) for one answer, or (tasks, texts) for many at once."
        ) from None
    except ValueError:  # a built-in without a signature
        return False
    plural = [name in ("tasks", "texts") for name in list(signature.parameters)[:2]]
    if any(plural) and not all(plural):
        raise ValueError(
            f"The scorer has the parameters {signature}: one of many answers, one of a single one. "
            "Write (task, text) for one answer, or (tasks, texts) for many at once."
        )
    return all(plural) and len(plural) == 2


def _row(scorer: Callable[..., Any], task: Any, text: str) -> Row:
    try:
        return components(scorer(task, text))
    except BaseException as error:  # sys.exit in a scorer is the scorer's failure too
        return {}, "env_error", _last_lines(error)


def _batch_rows(scorer: Callable[..., Any], items: list[tuple[Any, str]]) -> list[Row]:
    try:
        values = scorer([task for task, _ in items], [text for _, text in items])
        found = None if isinstance(values, (str, bytes, dict)) else list(values)
    except BaseException as error:
        return [({}, "env_error", _last_lines(error))] * len(items)
    if found is None or len(found) != len(items):
        got = f"{type(values).__name__} and not a list" if found is None else f"{len(found)} values"
        said = (
            f"The scorer returned {got} for {len(items)} answers: which value is whose cannot be known. "
            "Return a list with one value for each answer, in their order."
        )
        return [({}, "env_error", said)] * len(items)
    return [components(value) for value in found]


def components(value: Any) -> Row:
    """What a scorer returned, as named finite numbers; or an env_error that says what is wrong with it."""
    named = value if isinstance(value, dict) else {"task": value}
    if not named:
        return {}, "env_error", f"The scorer returned {{}}: the answer has no reward. {_REMEDY}"
    out: dict[str, float] = {}
    for name, one in named.items():
        number = _number(one)
        if not isinstance(name, str) or number is None or not isfinite(number):
            of = "" if named is not value else f" for the component {name!r}"
            many = " For a list, one value an answer, write (tasks, texts)." if isinstance(one, list) else ""
            said = f"The scorer returned {_short(one)}{of}: no advantage can be computed from it. {_REMEDY}{many}"
            return {}, "env_error", said
        out[name] = number
    return out, "ok", ""


def _number(value: Any) -> float | None:
    if not isinstance(value, Real) and getattr(value, "ndim", None) == 0:
        value = value.item()  # numpy's bool, a tensor with one number
    if not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = "a value that cannot be shown"
    kind = "" if value is None else f" ({type(value).__name__})"
    return (text if len(text) <= 80 else text[:77] + "...") + kind


def _last_lines(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "The scorer raised, so the answer has no reward:\n" + "\n".join(lines[-6:])


if __name__ == "__main__":
    main()
    sys.exit(0)
