"""`@tool`: a typed Python function as a tool. Its schema comes from its signature and docstring."""

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from gruppo.tasks.imports import nearest
from gruppo.tools.base import Invalid, Limits, Tool, kind_of

_NAME = re.compile(r"[A-Za-z_][\w-]{0,63}")
_ARGUMENT = re.compile(r"\s*(\w+)\s*(?:\([^)]*\))?:\s+(.*)")


class FunctionTool(Tool):
    """A function. One that is not `async def` runs in a thread of its own, which nothing can stop: after the limit the
    agent is told, and what the function still does is forgotten."""

    def __init__(self, function: Callable[..., Any], name: str = "", limits: Limits | None = None) -> None:
        name = name or getattr(function, "__name__", type(function).__name__)
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a tool, so no agent could call it. Use letters, digits and _.")
        text, arguments = _described(inspect.getdoc(function) or "")
        if not text:
            raise ValueError(
                f"the tool {name} has no docstring, so an agent would not know what it does. Write one sentence."
            )
        self.function = function
        self._model, schema = _model(function, name, arguments)
        super().__init__(name, text, _plain(schema), limits or Limits())

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        known = list(self._model.model_fields)
        for name in arguments:
            if name not in known:
                raise Invalid(f"there is no argument {name!r}.{nearest(name, known)} {self._expected()}")
        try:
            made = self._model.model_validate(arguments)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            if first["type"] == "missing":
                raise Invalid(f"the argument {where!r} is missing. {self._expected()}") from None
            got = repr(first["input"])
            cut = got if len(got) <= 80 else got[:77] + "..."
            raise Invalid(f"the argument {where!r} is {cut}: {first['msg'].lower()}. {self._expected()}") from None
        return {name: getattr(made, name) for name in known}

    def _expected(self) -> str:
        needed = set(self.parameters.get("required", ()))
        parts = [
            f"{name} ({kind_of(one)}{'' if name in needed else ', optional'})" for name, one in self.arguments.items()
        ]
        return f"It takes: {', '.join(parts) or 'nothing'}."

    async def invoke(self, arguments: dict[str, Any]) -> Any:
        call = partial(self.function, **arguments)
        if inspect.iscoroutinefunction(self.function):
            return await call()
        return await _in_thread(call)


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str = "",
    seconds: float = 10.0,
    retries: int = 0,
    pause: float = 0.1,
    cache: int = 0,
    chars: int = 4_000,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str = "", **limits: Any) -> Any:
    """Makes a tool of a function: `@tool`, or `@tool(seconds=2, retries=1, cache=100)`."""
    if function is not None:
        return FunctionTool(function, name)
    made = Limits(**limits)
    return lambda f: FunctionTool(f, name, made)


def _model(function: Callable[..., Any], name: str, said: Mapping[str, str]) -> tuple[type[BaseModel], dict[str, Any]]:
    """The arguments as a pydantic model, which checks them, and their schema."""
    target = function if inspect.isroutine(function) else type(function).__call__
    hints, fields = get_type_hints(target, include_extras=True), {}
    for one in inspect.signature(function).parameters.values():
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise ValueError(
                f"the tool {name} takes *{one.name}, which no schema can describe. Name its arguments one by one."
            )
        if one.name not in hints:
            raise ValueError(
                f"the tool {name}: the argument {one.name} has no type, so it has no schema. Write {one.name}: str."
            )
        default = ... if one.default is one.empty else one.default
        fields[one.name] = (hints[one.name], Field(default, description=said.get(one.name)))
    try:
        made: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        return made, made.model_json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        line = str(error).partition("\n")[0]
        raise ValueError(
            f"the tool {name}: no schema can be made of its arguments ({line}). Use plain types."
        ) from None


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """The docstring without its `Args:`, and what it says of each argument."""
    head, found, rest = doc.partition("\nArgs:\n")
    arguments: dict[str, str] = {}
    last = ""
    for line in rest.splitlines() if found else ():
        if line and not line.startswith(" "):  # the next section: Returns, Raises
            break
        if match := _ARGUMENT.match(line):
            last = match[1]
            arguments[last] = match[2].strip()
        elif last and line.strip():
            arguments[last] += " " + line.strip()
    return " ".join(head.split()), arguments


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Without titles, which only repeat names."""

    def cleaned(value: Any, named: bool) -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if named or k != "title" or not isinstance(v, str)}
            return {k: cleaned(v, not named and k in ("properties", "$defs")) for k, v in kept.items()}
        return [cleaned(v, False) for v in value] if isinstance(value, list) else value

    made = cleaned(schema, False)
    return {**made, "properties": made.get("properties", {})}


async def _in_thread(call: Callable[[], Any]) -> Any:
    """In a thread that does not keep Python from ending, unlike those of asyncio."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def told(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():  # cancelled: nobody waits
            set_it(value)

    def body() -> None:
        try:
            value, set_it = call(), future.set_result
        except BaseException as error:
            # A StopIteration cannot be set on a future, and an exit of the tool is its failure.
            plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            value, set_it = error if plain else RuntimeError(repr(error)), future.set_exception
        if not loop.is_closed():
            loop.call_soon_threadsafe(told, set_it, value)

    threading.Thread(target=body, daemon=True, name="tool").start()
    return await future
