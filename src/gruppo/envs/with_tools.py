"""Tools for any task of one answer: `task=addition task.tools=calculator`.

The policy calls a tool and reads its result, as often as its turns allow; what is no call is its answer, which the
task's own scorer judges as it does without tools. A tool that breaks costs its episode a status, never a reward of 0.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from gruppo.envs.base import POLICY, Called, Seen
from gruppo.envs.family import TEXT_TOKENS
from gruppo.envs.format import Call, Format, Line, Said
from gruppo.envs.guard import BROKEN, TIMEOUT, failed
from gruppo.envs.world import NOTHING
from gruppo.tasks.base import Task, Tasks, TaskSet, domains_of
from gruppo.tasks.imports import is_path, module_of, split_path
from gruppo.tasks.loaded import when_forgotten
from gruppo.tasks.settings import TaskConfig
from gruppo.tools import Toolbox, ToolResult, load_tools
from gruppo.tools.calls import NO_JSON, OPENED, calls_in, objects_in
from gruppo.tools.mcp import CLOSING, RemoteTool, Server
from gruppo.tools.waiting import Blocked, waited

PREFIX = "tools:"  # of the name of such an environment
TURNS = 6
LIMIT = "tool_turns"  # in the meta of a task
TOKENS = 64  # of an action, letter by letter: a call in JSON has about sixty
READY = "ready"  # the state before any call
BLOCKS = (
    "{}: no answer within {:g} s, and the event loop of the tools does not run: a tool that is `async def` blocks it. "
    "Let it await, or write it without async: then it runs in a thread."
)
_boxes: dict[str, Toolbox] = {}


def toolbox(names: str) -> Toolbox:
    """The tools of these names: one box for all episodes, so that they share caches and servers."""
    key = ",".join(":".join(split_path(n)) if is_path(n) else n for n in map(str.strip, names.split(",")))
    if key not in _boxes:
        _boxes[key] = load_tools(names)
    return _boxes[key]


def _forget(modules: Collection[str]) -> None:
    """The boxes with tools of these modules, and the servers that no other box has: new ones are started."""
    old = [key for key in _boxes if any(is_path(n) and module_of(n) in modules for n in key.split(","))]
    dropped = [_boxes.pop(key) for key in old]
    for server in _servers(dropped) - _servers(_boxes.values()):
        with suppress(Blocked):  # its loop stands still, and the server with it
            waited(server.close(), CLOSING)


def _servers(boxes: Iterable[Toolbox]) -> set[Server]:
    return {one.server for box in boxes for one in box if isinstance(one, RemoteTool)}


when_forgotten.append(_forget)


class WithTools:
    """An environment of calls and one answer. The state stands for all that the tools have said."""

    seats = (POLICY,)
    can = frozenset({"snapshot"})
    waits = True  # a step waits for a tool
    judged_later = True  # no reward: `Seen.answer` is for the scorer

    def __init__(self, names: str) -> None:
        self.name, self.box = PREFIX + names, toolbox(names)

    def reset(self, task: Task) -> Seen:
        self.turn, self.limit = 0, int(task.meta.get(LIMIT, TURNS))
        self.seen = Seen("", state=READY)
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return replace(self.seen, valid=False, rewards={}, answer=None, tools=())
        self.turn += 1
        self.seen = self._limited(self._acted(action if isinstance(action, str) else ""))
        return self.seen

    def _acted(self, action: str) -> Seen:
        state = self.seen.state
        if not action.strip():
            return Seen(NOTHING, state=state, valid=False)
        calls = calls_in(action, self.box)
        if not calls and OPENED in action:
            return Seen(NO_JSON, state=state, valid=False)
        if not calls:
            return Seen("", state=state, done=True, answer=action)
        names = [name for name, _ in calls]
        limit = self.box.seconds(names)
        try:
            results = waited(self.box.calls(calls), limit)
        except Blocked:
            results = [ToolResult(BLOCKS.format(", ".join(names), limit), "timeout", limit)] * len(calls)
        told = tuple(
            Called(name, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False), r.seconds, r.ok)
            for (name, given), r in zip(calls, results, strict=True)
        )
        if broken := next((r for r in results if r.ours), None):
            return replace(failed(TIMEOUT if broken.status == "timeout" else BROKEN, broken.text), tools=told)
        text = "\n".join(r.text for r in results)
        return Seen(text, state=after(state, text), valid=not any(_no_call(r) for r in results), tools=told)

    def _limited(self, seen: Seen) -> Seen:
        if seen.done or self.turn < self.limit:
            return seen
        return replace(seen, done=True, truncated=True, rewards={"task": 0.0})

    def look(self) -> Seen:
        return self.seen

    def snapshot(self) -> Any:
        return self.turn, self.limit, self.seen

    def restore(self, snapshot: Any) -> Seen:
        self.turn, self.limit, self.seen = snapshot
        return self.seen


def after(state: str, text: str) -> str:
    """The state after a result: that result, behind a hash of the state before it. All of them would grow for ever."""
    return f"{READY} {blake2b(state.encode(), digest_size=8).hexdigest()}\n{text}"


def _no_call(result: ToolResult) -> bool:
    return result.status == "invalid"


# ---- how a turn is read


@dataclass(frozen=True)
class Whole:
    """All of the text: a call is found in it, and an answer is judged as it was written."""

    tag: str = ""

    expects = "a call of a tool, or an answer"

    def __call__(self, text: str) -> Said:
        return Said(text, tag=self.tag) if text.strip() else Said(tag=self.tag, void=True)


@dataclass(frozen=True)
class Objects:
    """JSON alone: a call of a tool, or an answer such as {"answer": "12"}."""

    expects = 'a JSON object with a call, or with an answer, such as {"answer": "12"}'

    def __call__(self, text: str) -> Said:
        found = list(objects_in(text))
        answers = [_written(v.get("answer", v.get("action"))) for v in found if "answer" in v or "action" in v]
        calls = [json.dumps(v) for v in found if "name" in v or "function" in v]
        if len(answers) + bool(calls) != 1:  # none, or two things at once
            return Said(thought=text.strip(), void=not found and "{" not in text, invalid=bool(found) or "{" in text)
        return Said(answers[0] if answers else "\n".join(calls))


def _written(value: Any) -> str:
    """An answer as JSON has it: true, and not True."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def reading(format: Format) -> Format:
    """How a turn is read where tools may be called: calls have arguments, and answers several lines."""
    if isinstance(format, Line):
        return Whole(format.tag)
    return Objects() if isinstance(format, Call) else format


# ---- tasks with tools


def attached(made: TaskSet, settings: TaskConfig, turns: Any) -> TaskSet:
    """The tasks of one answer of a set, with the tools of the settings."""
    names = settings.tools
    if not str(made.scorer):
        raise ValueError(
            f"task.tools={names}: task={settings.name} is played in its own environment, which would not hear of "
            "them. Leave task.tools out, or use a task of one answer."
        )
    if type(turns) is not int or turns < 1:
        raise ValueError(f"task.options.turns={turns!r} is no whole number >= 1, so nothing could be said. Use 6.")
    try:
        box = toolbox(names)
    except ValueError as error:
        raise ValueError(f"task.tools={names}: {error}") from None
    env = PREFIX + names
    said = (
        f"{made.name}: tools {', '.join(t.name for t in box)}, at most {turns} turns (task.tools, task.options.turns)"
    )

    def tooled(task: Task) -> Task:
        return task if "env" in task.meta else replace(task, meta={**task.meta, "env": env, LIMIT: turns})

    def each(tasks: Sequence[Task]) -> Sequence[Task]:
        if isinstance(tasks, list | tuple):
            return [tooled(t) for t in tasks]
        return Tasks("with tools", len(tasks), lambda i: tooled(tasks[i]), lambda: domains_of(tasks))

    return replace(
        made,
        train=each(made.train),
        held_out=each(made.held_out),
        env="+".join(filter(None, (made.env, env))),
        max_tokens=max(made.max_tokens, TOKENS),
        text_tokens=max(made.text_tokens, TEXT_TOKENS),
        notes=(*made.notes, said),
    )
