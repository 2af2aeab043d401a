"""Tools of an MCP server: a small one, in a process of its own, that can also die, hang and stop altogether."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp.server.mcpserver", reason="the extra mcp is not installed: pip install 'gruppo[mcp]'")

from gruppo.envs.with_tools import WithTools
from gruppo.tasks import load_task
from gruppo.tools import Limits, Toolbox
from gruppo.tools import mcp as mcp_module
from gruppo.tools.mcp import Server

SERVER = """
import os, signal, sys, time
sys.path[:] = {path!r}
from mcp.server.mcpserver import MCPServer
server = MCPServer("test")

@server.tool()
def add(a: int, b: int = 1) -> int:
    "Adds two numbers."
    return a + b

@server.tool()
def die() -> str:
    "Ends the server."
    os._exit(3)

@server.tool()
async def hang() -> str:
    "Never answers."
    import anyio
    await anyio.sleep(1000)

@server.tool()
def stop() -> str:
    "The whole process stands still."
    os.kill(os.getpid(), signal.SIGSTOP)

@server.tool()
def fail() -> str:
    "Raises."
    raise ValueError("no")

server.run()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    file = tmp_path / "server.py"
    file.write_text(SERVER.format(path=[str(Path(p).absolute()) for p in sys.path]))
    return [sys.executable, str(file)]


def served(command: list[str], body: Callable[[Server, Toolbox], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with Server(command, **options) as server:
            await body(server, Toolbox(await server.tools()))

    asyncio.run(asyncio.wait_for(main(), 100))


def test_its_tools_have_schemas_and_work(command: list[str]) -> None:
    async def body(server: Server, box: Toolbox) -> None:
        assert [one.name for one in box] == ["my_add", "my_die", "my_hang", "my_stop", "my_fail"]
        assert box["my_add"].description == "Adds two numbers."
        assert box["my_add"].parameters["required"] == ["a"]
        results = await box.calls([("my_add", {"a": n}) for n in range(10)])
        assert [r.text for r in results] == [str(n + 1) for n in range(10)]
        wrong = await box.call("my_add", {"a": "x"})
        assert wrong.status == "invalid" and "'x' is not of type 'integer'" in wrong.text
        assert (await box.call("my_add", {})).status == "invalid"
        assert (await box.call("my_fail", {})).status == "error"

    served(command, body, prefix="my_")


def test_a_server_that_dies_is_a_status_and_starts_again(command: list[str]) -> None:
    async def body(server: Server, box: Toolbox) -> None:
        died = await box.call("die", {})
        assert died.status == "failed" and died.ours
        assert (await box.call("add", {"a": 1})).text == "2" and server.starts == 2

    served(command, body)


def test_a_call_that_hangs_is_a_status_and_others_go_on(command: list[str]) -> None:
    async def body(server: Server, box: Toolbox) -> None:
        hung, added = await box.calls([("hang", {}), ("add", {"a": 1})])
        assert (hung.status, added.text) == ("timeout", "2")
        assert (await box.call("add", {"a": 2})).text == "3" and server.starts == 1

    served(command, body, limits=Limits(seconds=2.0))


@pytest.mark.slow
def test_a_server_that_stands_still_is_replaced(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_module, "PING", 0.5)

    async def body(server: Server, box: Toolbox) -> None:
        assert (await box.call("stop", {})).status == "timeout"
        assert (await box.call("add", {"a": 2})).text == "3" and server.starts == 2

    served(command, body, limits=Limits(seconds=10.0))


@pytest.mark.parametrize(
    "command, said",
    [
        (["/there/is/none"], r"/there/is/none did not list its tools: .*No such file"),
        ([sys.executable, "-c", "raise SystemExit('broken')"], r"did not list its tools.*broken"),
        ([sys.executable, "-c", "import time; time.sleep(99)"], r"did not list its tools within 1 s"),
        ([], r"command=\[\].*Give a list"),
        ("python server.py", r"command='python server.py'.*Give a list"),
    ],
)
def test_a_server_that_does_not_start_is_refused(command: Any, said: str) -> None:
    async def main() -> None:
        async with Server(command, start_seconds=1.0) as server:
            await server.tools()

    with pytest.raises(ValueError, match=said):
        asyncio.run(main())


def test_a_server_gives_its_tools_to_a_task(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named in a file as any tool is; one server for all episodes, and one that dies costs its episode a status."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(f"from gruppo.tools.mcp import Server\nTOOLS = [Server({command!r})]\n")
    tasks = load_task("addition", tools="./mine.py:TOOLS")
    one, two = WithTools("./mine.py:TOOLS"), WithTools("./mine.py:TOOLS")
    assert one.box is two.box
    for env in (one, two):
        env.reset(tasks.train[0])
        assert env.step('add {"a": 2, "b": 3}').text == "5"
        assert not env.step('add {"a": "x"}').valid
    last = one.step("die {}")
    assert last.done and last.error and not last.rewards and last.tools[0].name == "die"
    assert two.step('add {"a": 4}').text == "5"  # it was started again


def test_a_server_is_connected_anew_in_another_loop(command: list[str]) -> None:
    """The loop of tools is left when one of them blocks it."""
    with asyncio.Runner() as first, asyncio.Runner() as second:
        server = Server(command)
        box = Toolbox(first.run(server.tools()))
        assert second.run(box.call("add", {"a": 1})).text == "2" and server.starts == 2
        second.run(server.close())
        first.run(asyncio.sleep(0.1))  # the one before is told to end
