"""Tools that agents call: typed functions with a schema, a calculator, Python in the sandbox, MCP servers.

See docs/tools.md. MCP servers are in `gruppo.tools.mcp`, which needs the extra `mcp`.
"""

from gruppo.tools.base import Limits, Tool, ToolError, ToolResult
from gruppo.tools.built_in import BUILT_IN, calculator, python, search
from gruppo.tools.function import FunctionTool, tool
from gruppo.tools.toolbox import Toolbox, load_tool, load_tools

__all__ = [
    "BUILT_IN",
    "FunctionTool",
    "Limits",
    "Tool",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "calculator",
    "load_tool",
    "load_tools",
    "python",
    "search",
    "tool",
]
