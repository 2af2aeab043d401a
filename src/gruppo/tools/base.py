"""A tool: something an agent may call by name, with arguments that are checked, limits, retries and a cache.

Whatever happens, a call ends in a `ToolResult`: a text for the agent, and a status for us. It never raises.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Status = Literal["ok", "invalid", "error", "timeout", "failed"]


@dataclass(frozen=True)
class ToolResult:
    """What the agent reads, and how the call went.

    - ok: the text is the result.
    - invalid: no such tool, or arguments that it cannot take. error: it cannot do what was asked. Both are the agent's.
    - timeout: it took too long. failed: it broke. Both are ours: they say nothing about the agent.
    """

    text: str
    status: Status = "ok"
    seconds: float = 0.0
    cached: bool = False

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def ours(self) -> bool:
        """Whether the failure is one of the machinery, and an episode should not be judged by it."""
        return self.status in ("timeout", "failed")


class ToolError(Exception):
    """Raised by a tool: what was asked cannot be done. The sentence is for the agent."""


class Invalid(Exception):
    """Arguments that a tool cannot take. The sentence is for the agent."""


@dataclass(frozen=True)
class Limits:
    """Of one tool: seconds of a try, further tries, the first pause between them, results kept, length of a text."""

    seconds: float = 10.0
    retries: int = 0
    pause: float = 0.1
    cache: int = 0
    chars: int = 4_000

    def __post_init__(self) -> None:
        least = {"seconds": 0.001, "retries": 0, "pause": 0, "cache": 0, "chars": 100}
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < float("inf"):
                raise ValueError(f"{name}={value!r}: no call could be made like this. Use a number, {low} or more.")


class Tool(ABC):
    """A name, a description, a JSON schema of the arguments, and a call."""

    def __init__(self, name: str, description: str, parameters: dict[str, Any], limits: Limits) -> None:
        self.name, self.description, self.parameters, self.limits = name, description, parameters, limits
        self._kept: OrderedDict[str, ToolResult] = OrderedDict()

    @property
    def schema(self) -> dict[str, Any]:
        """As chat templates and the OpenAI interface take it."""
        inner = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": inner}

    @property
    def arguments(self) -> dict[str, Mapping[str, Any]]:
        """{name: schema}. A schema of a server may have `true` for one, or name only what must be given."""
        said = self.parameters.get("properties", {})
        known = {**said, **{name: {} for name in self.parameters.get("required", ()) if name not in said}}
        return {name: one if isinstance(one, Mapping) else {} for name, one in known.items()}

    @property
    def form(self) -> str:
        """The arguments as an object: {"city": "string", "days": "integer"}."""
        return json.dumps({name: kind_of(one) for name, one in self.arguments.items()}, ensure_ascii=False)

    @abstractmethod
    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the tool takes them; raises `Invalid`."""

    @abstractmethod
    async def invoke(self, arguments: dict[str, Any]) -> Any:
        """One try. May raise `ToolError`, or anything if it breaks."""

    async def __call__(self, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Calls the tool with an object of arguments, or with the JSON text of one."""
        begun = time.monotonic()
        try:
            given = self.checked(_object(arguments, self.form))
            key = json.dumps(given, sort_keys=True, default=repr) if self.limits.cache else ""
        except Invalid as error:
            return ToolResult(f"{self.name}: {error}", "invalid")
        if key in self._kept:
            self._kept.move_to_end(key)
            return replace(self._kept[key], seconds=0.0, cached=True)
        result = replace(await self._tried(given), seconds=time.monotonic() - begun)
        if result.ok and self.limits.cache:
            self._kept[key] = result
            while len(self._kept) > self.limits.cache:
                self._kept.popitem(last=False)
        return result

    async def _tried(self, arguments: dict[str, Any]) -> ToolResult:
        """Tries until it works, or the agent is told that it does not. What the agent did wrong is not tried again."""
        pause = self.limits.pause
        for left in range(self.limits.retries, -1, -1):
            result = await self._once(arguments)
            if not result.ours or not left:
                return result
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError

    async def _once(self, arguments: dict[str, Any]) -> ToolResult:
        limit = asyncio.timeout(self.limits.seconds)
        try:
            async with limit:
                value = await self.invoke(arguments)
            return ToolResult(shortened(written(value), self.limits.chars))
        except ToolError as error:
            return ToolResult(shortened(f"{self.name}: {error}", self.limits.chars), "error")
        except (Exception, SystemExit) as error:  # a tool of a user may raise anything; an exit would end the loop
            if limit.expired():
                return ToolResult(f"{self.name}: no answer within {self.limits.seconds:g} s.", "timeout")
            said = f"{self.name}: the tool does not work at the moment ({type(error).__name__}: {error})."
            return ToolResult(shortened(said, self.limits.chars), "failed")


def _object(arguments: Mapping[str, Any] | str, form: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise Invalid(f"the arguments are no JSON ({error}). Write an object such as {form}.") from None
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        raise Invalid(f"the arguments are {kind} and no object. Write an object such as {form}.")
    return {str(k): v for k, v in arguments.items()}


def kind_of(schema: Mapping[str, Any]) -> str:
    """What an argument may be, in a few words."""
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(kind_of(one) if isinstance(one, Mapping) else "value" for one in schema["anyOf"])
    kind = schema.get("type", schema.get("const", "object" if "$ref" in schema else "value"))
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def written(value: Any) -> str:
    """A result as text: itself, or as JSON where it can be written as such."""
    if value is None:
        return "(no output)"
    if isinstance(value, str):
        return value or "(no output)"
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def shortened(text: str, most: int) -> str:
    """Beginning and end of a text that is too long."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= most:
        return text
    half = (most - 40) // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half} characters left out)\n{text[-half:]}"
