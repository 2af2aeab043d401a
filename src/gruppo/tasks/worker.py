"""The process in which a scorer runs; its parent is `pool.py`. Light to import, because a hang restarts it.

Requests are pickles, because they come from our own parent. Replies are JSON, so that nothing a scorer returns can make
the parent unpickle something.
"""

import inspect
import pickle
import traceback
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from math import isfinite
from numbers import Real
from time import monotonic
from typing import Any

from gruppo.tasks.answers import answers
from gruppo.tasks.child import Parent
from gruppo.tasks.imports import load_object, misfit, nearest, written

Row = tuple[dict[str, float], str, str]  # components, status, error

SLICE = 0.1  # seconds of work after which items that have not begun are handed back
_REMEDY = (
    "Return a finite number, or a dict of names to finite numbers; raise an exception if the answer cannot be judged."
)
ANSWERED = ("task", "text", "tasks", "texts", "self")  # parameters of a scorer that are no arguments
_FORMS = "Write (task, text) for one answer, or (tasks, texts) for many at once."


class CannotJudge(ValueError):
    """An answer that a scorer cannot judge. Its sentence is shown as it is, without the lines of code."""


def main() -> None:
    """Serves requests until the parent ends. The first one: import path, arguments and seconds of the scorer."""
    parent = Parent()
    try:
        path, args, seconds = pickle.loads(parent.receive())
        found = load_object(path)
        scorer = made(found, path, args)
        batched = is_batch(scorer)
    except ValueError as error:
        return parent.send("refused", str(error))
    together = is_async(scorer) and not batched
    parent.send("ready", [batched, together, is_stateless(found, scorer, batched), is_alone(scorer)])
    if together:
        serve = import_module("gruppo.tasks.together").serve  # asyncio takes as long to import as the rest
        return serve(scorer, seconds, parent)
    while True:
        _serve(scorer, batched, parent)


def _serve(scorer: Callable[..., Any], batched: bool, parent: Parent) -> None:
    request = parent.receive()
    try:
        kind, items = pickle.loads(request)
    except Exception as error:
        return parent.send("unread", unreadable(error))
    parent.send("begun")  # from here on, the end of this process is the fault of an answer
    if batched and kind == "score":
        return parent.send("all", _batch_rows(scorer, items))
    judge = _row if kind == "score" else found_answers
    begun = monotonic()
    for number, item in enumerate(items, 1):
        parent.send("one", judge(scorer, item))
        if number < len(items) and monotonic() - begun > SLICE:
            return parent.send("rest")


def found_answers(scorer: Callable[..., Any], group: list[tuple[Any, str]]) -> list[str] | None:
    """None if the scorer fails."""
    try:
        return answers(scorer, group)
    except BaseException:
        return None


def made(found: Any, path: str, args: dict[str, Any]) -> Any:
    """The scorer at an import path: a function with its arguments, or what a class or a factory makes from them.

    A factory is a function that cannot be called with an answer: `def make(*, scale)`.
    """
    if not callable(found):
        return found  # refused by is_batch
    if not inspect.isclass(found) and not misfit(found, None, None, **args):
        return partial(found, **args) if args else found
    trouble = misfit(found, **args)
    if trouble:
        if not args and not inspect.isclass(found):
            return found  # a function with the wrong parameters, also refused by is_batch
        raise ValueError(_misfit_words(found, path, args, trouble))
    try:
        return found(**args)
    except ValueError as error:  # its own message about its arguments
        raise ValueError(f"{path}: {error}" if path not in str(error) else str(error)) from None
    except BaseException as error:
        raise ValueError(f"{path} cannot be made with {written(args)}. {_last_lines(error)}") from None


def _misfit_words(found: Any, path: str, args: dict[str, Any], trouble: str) -> str:
    """Why a scorer cannot have these arguments: those that it does not have first, then what else is missing."""
    names = [n for n in inspect.signature(found).parameters if n not in ANSWERED]
    unknown = [a for a in args if a not in names]
    if not inspect.isclass(found) and len(names) < len(inspect.signature(found).parameters):  # it takes answers
        trouble = misfit(found, None, None, **args)
    if unknown:
        trouble = f"it has no argument {', '.join(map(repr, unknown))}"
    near = next((near for a in unknown if (near := nearest(a, names))), "")
    known = f"Its arguments: {', '.join(names)}. Set them with task.args.NAME=VALUE."
    return (
        f"{path} cannot be called with {written(args)} ({trouble}), so nothing can be judged.{near} "
        f"{known if names else 'It has no arguments: leave task.args out.'}"
    )


def is_batch(scorer: Any) -> bool:
    """Whether the scorer takes (tasks, texts) instead of (task, text), by the names of its parameters."""
    if not callable(scorer):
        raise ValueError(
            f"The scorer is {type(scorer).__name__} and cannot be called, so nothing can be judged. "
            "Name a function (task, text) or (tasks, texts)."
        )
    if misfit(scorer, None, None):
        raise ValueError(
            f"The scorer has the parameters {inspect.signature(scorer)}: it cannot be called with an answer. {_FORMS}"
        )
    try:
        signature = inspect.signature(scorer)
    except ValueError:  # a built-in without a signature
        return False
    plural = [name in ("tasks", "texts") for name in list(signature.parameters)[:2]]
    if any(plural) and not all(plural):
        raise ValueError(f"The scorer has the parameters {signature}: one is singular and one is plural. {_FORMS}")
    return all(plural) and len(plural) == 2


def is_async(scorer: Any) -> bool:
    """Whether a call of the scorer has to be awaited: a function, a partial of one, or an object with such a call."""
    return inspect.iscoroutinefunction(scorer) or inspect.iscoroutinefunction(type(scorer).__call__)


def is_stateless(found: Any, scorer: Any, batched: bool = False) -> bool:
    """Whether answers may be scored in any order and process: a plain function, or what has `stateless = True`.

    A batched function without that mark may compare the answers of a call.
    """
    plain = scorer is found or isinstance(scorer, partial)
    function = plain and inspect.isfunction(found)
    marked = getattr(found if function else scorer, "stateless", False)
    return bool(marked) or (function and not batched)


def is_alone(scorer: Any) -> bool:
    """Whether the scorer wants one process, in whatever order: `one_worker = True`."""
    return bool(getattr(scorer, "one_worker", False))


@cache
def _runner() -> Any:
    """One event loop for all calls, so that what a scorer keeps open (a connection) stays usable."""
    return import_module("asyncio").Runner()


async def _awaited(value: Any) -> Any:
    return await value


def _called(scorer: Callable[..., Any], *given: Any) -> Any:
    value = scorer(*given)
    return _runner().run(_awaited(value)) if inspect.isawaitable(value) else value


def _row(scorer: Callable[..., Any], item: tuple[Any, str]) -> Row:
    try:
        return components(_called(scorer, *item))
    except BaseException as error:  # sys.exit in a scorer is the scorer's failure too
        return failed(error)


def unreadable(error: Exception) -> str:
    return f"The scorer's process cannot read the tasks: {error!r}. Use plain values in Task.meta."


def failed(error: BaseException, by: str = __file__) -> Row:
    """`by` is the file that called the scorer: its lines are no news to the scorer's author."""
    return {}, "env_error", _last_lines(error, by)


def _batch_rows(scorer: Callable[..., Any], items: list[tuple[Any, str]]) -> list[Row]:
    try:
        values = _called(scorer, [task for task, _ in items], [text for _, text in items])
        found = None if isinstance(values, (str, bytes, dict)) else list(values)
    except BaseException as error:
        return [failed(error)] * len(items)
    if found is None or len(found) != len(items):
        got = f"{type(values).__name__} and not a list" if found is None else f"{len(found)} values"
        said = (
            f"The scorer returned {got} for {len(items)} answers, so no value can be assigned. "
            "Return a list with one value for each answer, in their order."
        )
        return [({}, "env_error", said)] * len(items)
    return [failed(value) if isinstance(value, CannotJudge) else components(value) for value in found]


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
            many = " To return a list, one value per answer, write (tasks, texts)." if isinstance(one, list) else ""
            said = f"The scorer returned {_short(one)}{of}: no advantage can be computed from it. {_REMEDY}{many}"
            return {}, "env_error", said
        if name != shown(name):
            said = f"The scorer returned a component with the name {name!r}, which is no text, so it cannot be stored."
            return {}, "env_error", f"{said} Rename it."
        out[name] = number
    return out, "ok", ""


def shown(text: str) -> str:
    """The text, with halves of characters (surrogates) as escapes: they can be neither printed nor stored."""
    return text.encode(errors="backslashreplace").decode()


def _number(value: Any) -> float | None:
    if not isinstance(value, Real) and getattr(value, "ndim", None) == 0:
        value = value.item()  # numpy's bool, or a tensor with one number
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


def _last_lines(error: BaseException, by: str = __file__) -> str:
    if isinstance(error, CannotJudge):
        return shown(str(error))
    frames = error.__traceback__
    while frames and frames.tb_next and frames.tb_frame.f_code.co_filename == by:
        frames = frames.tb_next
    lines = shown("".join(traceback.format_exception(type(error), error, frames))).rstrip().splitlines()
    lines = [line for line in lines if not line.startswith("Traceback (most recent call last)")]
    return "The scorer raised, so the answer has no reward:\n" + "\n".join(lines[-6:])
