"""How a model is shown its tools: by its chat template where that has tools, else in a line of the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gruppo.envs.base import Seen
from gruppo.tools import Toolbox
from gruppo.tools.calls import line_of

SCHEMAS = "tool_schemas"  # in the meta of a task: those that its chat template shows
PROBE = "Zq7"
ASKED = {"role": "user", "content": "a"}


@dataclass(frozen=True)
class Showing:
    """What a tokenizer can show.

    template  its chat template shows schemas of tools
    results   it also shows a result as such, and not as words of the user
    sentences it has a chat template, so its model reads sentences
    """

    template: bool = False
    results: bool = False
    sentences: bool = False

    def task(self, task: Any, box: Toolbox) -> Any:
        """The task with its tools in the template, or in a line of its system prompt."""
        if self.template:
            return replace(task, meta={**task.meta, SCHEMAS: box.schemas})
        line = line_of(box, described=self.sentences)
        return replace(task, system=f"{task.system}\n{line}" if task.system else line)

    def message(self, tokenizer: Any, seen: Seen) -> dict[str, str]:
        """What is seen after an action; what a tool said may be anything, and is made encodable."""
        role = "tool" if seen.tools and self.results else "user"
        return {"role": role, "content": readable(tokenizer, seen.text) if seen.tools else seen.text}


def showing(tokenizer: Any, box: Toolbox) -> Showing:
    """What this tokenizer can show of these tools, found by trying."""
    if not getattr(tokenizer, "has_template", False):
        return Showing()
    try:
        shown = tokenizer.chat([ASKED], tools=box.schemas)
        if np.array_equal(shown, tokenizer.chat([ASKED])):
            return Showing(sentences=True)
    except ValueError:
        return Showing(sentences=True)
    try:
        return Showing(True, PROBE in tokenizer.decode(tokenizer.follow([{"role": "tool", "content": PROBE}])), True)
    except ValueError:  # a result must follow a call that the template has rendered itself
        return Showing(True, False, True)


def chat_of(tokenizer: Any, task: Any) -> Any:
    """The ids of a task's dialogue, with the tools that its template shows."""
    return rendered(tokenizer, task.messages, task)


def rendered(tokenizer: Any, messages: Sequence[Any], task: Any) -> Any:
    """The ids of a dialogue about a task, with the tools that its template shows."""
    schemas = task.meta.get(SCHEMAS)
    return tokenizer.chat(messages, tools=schemas) if schemas else tokenizer.chat(messages)


def readable(tokenizer: Any, text: str) -> str:
    """The text, which a tool or the policy wrote, as it is if the model can be told it, else made encodable."""
    try:
        tokenizer.chat([{"role": "user", "content": text}])
    except ValueError:
        return encodable(text)
    return text


def encodable(text: str) -> str:
    """A text, which may be anything, in plain characters, and without the name of a special token."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c == "\n" else " " for c in plain.replace("<", "< ").replace("[", "[ "))
