"""Tools by name."""

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gruppo.tasks.imports import is_path, load_object, nearest
from gruppo.tools.base import Tool, ToolResult
from gruppo.tools.built_in import BUILT_IN
from gruppo.tools.function import FunctionTool
from gruppo.tools.mcp import Server
from gruppo.tools.waiting import waited


class Toolbox:
    """The tools of an agent. `await box.call("calculator", {"expression": "1 + 1"})`."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for one in tools:
            self.add(one)

    def add(self, one: Tool) -> None:
        if not isinstance(one, Tool):
            name = getattr(one, "__name__", repr(one))
            raise ValueError(
                f"{name} is {type(one).__name__} and no tool, so no agent could call it. Put @tool before it."
            )
        if one.name in self._tools:
            raise ValueError(
                f"two tools have the name {one.name!r}, so a call would be ambiguous. Rename one: @tool(name=…)."
            )
        self._tools[one.name] = one

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """For a chat template: `tools=box.schemas`."""
        return [one.schema for one in self._tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Calls a tool by name. Never raises: an unknown name is an observation, too."""
        found = self._tools.get(name)
        if found is None:
            known = ", ".join(self._tools) or "none"
            return ToolResult(f"there is no tool {name!r}.{nearest(str(name), self._tools)} Tools: {known}.", "invalid")
        return await found(arguments)

    async def calls(self, calls: Sequence[tuple[str, Mapping[str, Any] | str]]) -> list[ToolResult]:
        """Several calls at once; the results in their order."""
        return list(await asyncio.gather(*(self.call(name, arguments) for name, arguments in calls)))

    def seconds(self, names: Iterable[str]) -> float:
        """The longest limit of one try among these tools."""
        return max((self._tools[name].limits.seconds for name in names if name in self._tools), default=1.0)

    def __getitem__(self, name: str) -> Tool:
        if name not in self._tools:
            raise ValueError(f"there is no tool {name!r}.{nearest(name, self._tools)} Tools: {', '.join(self._tools)}.")
        return self._tools[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


def load_tool(name: str) -> Tool:
    """A built-in tool by name, or your own: `./mine.py:search`."""
    if is_path(name):
        found = load_object(name)
        if not isinstance(found, Tool):
            raise ValueError(f"{name} is {type(found).__name__} and no tool. Put @tool before the function.")
        return found
    if name not in BUILT_IN:
        raise ValueError(
            f"there is no tool {name!r}.{nearest(name, BUILT_IN)} Built in: {', '.join(BUILT_IN)}. "
            "Your own: ./file.py:name."
        )
    return BUILT_IN[name]()


def load_tools(names: str) -> Toolbox:
    """The tools of `calculator,./mine.py:TOOLS`. A path names a tool, a function, an MCP server, or a list of them."""
    box = Toolbox()
    for name in filter(None, (part.strip() for part in names.split(","))):
        found: Any = load_object(name) if is_path(name) else load_tool(name)
        for one in found if isinstance(found, list | tuple) else [found]:
            for made in _tools(one, name):
                box.add(made)
    if not len(box):
        raise ValueError(
            f"tools={names!r} names no tool, so there would be nothing to call. Name one, or leave it out."
        )
    return box


def _tools(one: Any, where: str) -> Sequence[Tool]:
    if isinstance(one, Tool):
        return [one]
    if isinstance(one, Server):
        return waited(one.tools())
    if inspect.isroutine(one):
        return [FunctionTool(one)]
    raise ValueError(
        f"{where} has {one!r}, which is {type(one).__name__} and no tool, so no agent could call it. Name a typed "
        "function with a docstring, a tool, an MCP server, or a list of them."
    )
