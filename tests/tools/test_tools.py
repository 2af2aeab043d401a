"""Tools: schemas from signatures, checked arguments, limits, retries, caches; a call never raises."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from gruppo.tools import Limits, Tool, Toolbox, ToolError, ToolResult, load_tool, tool
from gruppo.tools.waiting import _loop


def called(one: Tool, arguments: Any) -> ToolResult:
    return asyncio.run(one(arguments))


@tool
def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """The weather of a city,
    for some days.

    Args:
        city: its name,
            in English
        days (int): how many
    Returns:
        numbers
    """
    return {"city": city, "days": days, "unit": unit}


# ---- schemas -------------------------------------------------------------------------------------


def test_the_schema_comes_from_signature_and_docstring() -> None:
    assert weather.schema == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city, for some days.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "city": {"type": "string", "description": "its name, in English"},
                    "days": {"type": "integer", "default": 1, "description": "how many"},
                    "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                },
                "required": ["city"],
            },
        },
    }


def test_an_argument_may_be_named_title() -> None:
    @tool
    def find(title: str) -> str:
        """Finds a book."""
        return title

    assert find.parameters["properties"] == {"title": {"type": "string"}}


def bare(x: str) -> str:
    return x


def untyped(x) -> str:  # type: ignore[no-untyped-def]
    """Does something."""
    return x


def star(*words: str) -> str:
    """Does something."""
    return words[0]


def odd(x: Callable[[], int]) -> str:
    """Does something."""
    return str(x)


def foreign(x: Toolbox) -> str:
    """Does something."""
    return str(x)


@pytest.mark.parametrize(
    "function, said",
    [
        (bare, r"bare has no docstring.*Write one sentence"),
        (untyped, r"the argument x has no type.*Write x: str"),
        (star, r"takes \*words.*one by one"),
        (foreign, r"no schema can be made.*plain types"),
        (odd, r"no schema can be made.*plain types"),
        (lambda: 1, r"'<lambda>' is no name of a tool"),
    ],
)
def test_a_function_that_is_no_tool_is_refused(function: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tool(function)


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"retries": -1}, {"cache": True}, {"seconds": float("nan")}])
def test_bad_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(limits))}=.*Use a number"):
        Limits(**limits)


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"city": "Rome"}, '{"city": "Rome", "days": 1, "unit": "C"}'),
        ('{"city": "Rome", "days": 2}', '{"city": "Rome", "days": 2, "unit": "C"}'),
        ({"city": "Rome", "days": "3"}, '{"city": "Rome", "days": 3, "unit": "C"}'),  # as models often write it
    ],
)
def test_arguments_are_an_object_or_its_json(arguments: Any, text: str) -> None:
    result = called(weather, arguments)
    assert (result.status, result.text) == ("ok", text)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({}, "weather: the argument 'city' is missing. It takes: city (string), days (integer, optional)"),
        ({"citty": "Rome"}, "there is no argument 'citty'. Did you mean 'city'?"),
        ({"city": "Rome", "days": "many"}, "the argument 'days' is 'many': input should be a valid integer"),
        ({"city": "Rome", "unit": "K"}, "the argument 'unit' is 'K'"),
        ({"city": 3}, "the argument 'city' is 3: input should be a valid string"),
        ("{", "the arguments are no JSON"),
        (
            "[1]",
            'list and no object. Write an object such as {"city": "string", "days": "integer", "unit": "one of C, F"}',
        ),
        ("[" * 100_000, "the arguments are no JSON"),
        ({"city": "x" * 10_000, "days": "y" * 10_000}, "yyy..."),
    ],
)
def test_wrong_arguments_are_a_sentence_for_the_agent(arguments: Any, said: str) -> None:
    result = called(weather, arguments)
    assert result.status == "invalid" and said in result.text and len(result.text) < 400


# ---- how calls end -------------------------------------------------------------------------------


def made(body: Any, **limits: Any) -> Tool:
    def work(x: int = 0) -> Any:
        """Works."""
        return body(x)

    return tool(**limits)(work)


def raising(error: BaseException) -> Any:
    def body(x: int) -> None:
        raise error

    return body


@pytest.mark.parametrize(
    "body, status, text",
    [
        (lambda x: "text", "ok", "text"),
        (lambda x: [1, "é"], "ok", '[1, "é"]'),
        (lambda x: None, "ok", "(no output)"),
        (lambda x: {1, 2} and object, "ok", "<class 'object'>"),
        (raising(ToolError("no such city")), "error", "work: no such city"),
        (raising(KeyError("k")), "failed", "work: the tool does not work at the moment (KeyError: 'k')."),
        (raising(SystemExit(3)), "failed", "SystemExit(3)"),
        (raising(StopIteration()), "failed", "StopIteration()"),
        (raising(TimeoutError("its own")), "failed", "TimeoutError: its own"),
        (lambda x: time.sleep(30), "timeout", "work: no answer within 0.2 s."),
        (lambda x: "\ud800", "ok", "\\ud800"),
    ],
)
def test_a_call_never_raises(body: Any, status: str, text: str) -> None:
    result = called(made(body, seconds=0.2), {})
    assert result.status == status and text in result.text
    assert result.ours == (status in ("timeout", "failed"))


def test_an_exit_of_an_async_tool_is_its_failure_and_the_loop_goes_on() -> None:
    @tool
    async def leaves() -> str:
        """Exits."""
        sys.exit(3)

    async def bare() -> None:
        sys.exit(4)

    def ended(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, _loop()).result(120)  # as `waited`, which would wait for ever

    result = ended(leaves({}))
    assert result.status == "failed" and "SystemExit: 3" in result.text
    with pytest.raises(SystemExit):
        ended(bare())
    assert ended(weather({"city": "Rome"})).ok


def test_a_long_result_keeps_its_ends() -> None:
    text = called(made(lambda x: "a" * 5_000 + "b" * 5_000, chars=1_000), {}).text
    assert len(text) <= 1_000 and text.startswith("aaa") and text.endswith("bbb") and "characters left out" in text


def test_async_tools_and_several_calls_at_once() -> None:
    waiting = most = 0

    @tool
    async def wait(seconds: float) -> str:
        """Waits."""
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(seconds)
        waiting -= 1
        return f"waited {seconds}"

    results = asyncio.run(Toolbox([wait]).calls([("wait", {"seconds": 0.3})] * 20 + [("wate", {})]))
    assert most == 20
    assert [r.text for r in results[:20]] == ["waited 0.3"] * 20 and results[20].status == "invalid"
    assert results[0].seconds >= 0.3


def test_a_cancelled_call_is_cancelled() -> None:
    async def both() -> None:
        call = asyncio.create_task(made(lambda x: time.sleep(30))({}))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(both())


def test_only_our_failures_are_tried_again() -> None:
    seen: list[int] = []

    def flaky(x: int) -> str:
        seen.append(x)
        if x == 2:
            raise ToolError("no")
        if len(seen) < 3:
            raise OSError("busy")
        return "done"

    one = made(flaky, retries=3, pause=0.001)
    assert called(one, {"x": 1}).text == "done" and len(seen) == 3
    assert called(one, {"x": 2}).status == "error" and len(seen) == 4
    seen.clear()
    assert called(made(flaky, retries=1, pause=0.001), {"x": 1}).status == "failed" and len(seen) == 2


def test_the_cache_holds_results_by_arguments() -> None:
    seen: list[int] = []

    def body(x: int) -> int:
        seen.append(x)
        if x < 0:
            raise OSError
        return x

    one = made(body, cache=2)
    for x in (1, 1, 2, 3, 1, -1, -1):  # 1 was dropped when 3 came; a failure is not kept
        called(one, {"x": x})
    assert seen == [1, 2, 3, 1, -1, -1]
    again = called(one, '{"x": "1"}')
    assert again.cached and again.text == "1" and again.seconds == 0


# ---- toolboxes -----------------------------------------------------------------------------------


def test_an_unknown_tool_is_an_observation_for_the_agent_and_an_error_for_us() -> None:
    box = Toolbox([weather])
    result = asyncio.run(box.call("wether", {}))
    assert (result.status, result.text) == (
        "invalid",
        "there is no tool 'wether'. Did you mean 'weather'? Tools: weather.",
    )
    with pytest.raises(ValueError, match=r"Did you mean 'weather'"):
        box["wether"]
    with pytest.raises(ValueError, match=r"two tools have the name 'weather'"):
        box.add(weather)
    with pytest.raises(ValueError, match=r"bare is function and no tool.*@tool"):
        box.add(bare)  # type: ignore[arg-type]
    assert "weather" in box and len(box) == 1 and box.schemas == [weather.schema]


def test_tools_by_name_and_by_path(tmp_path: Path) -> None:
    assert load_tool("calculator").name == "calculator"
    with pytest.raises(ValueError, match=r"no tool 'calculater'. Did you mean 'calculator'"):
        load_tool("calculater")
    file = tmp_path / "mine.py"
    file.write_text(
        "from gruppo.tools import tool\n@tool\ndef twice(x: int) -> int:\n    '''Twice.'''\n    return 2 * x\nno = 1\n"
    )
    assert called(load_tool(f"{file}:twice"), {"x": 4}).text == "8"
    with pytest.raises(ValueError, match=r"is int and no tool"):
        load_tool(f"{file}:no")
