"""A dialogue as plain text, for judges that have no chat template."""

import json
from collections.abc import Mapping
from typing import Any

from gruppo.tasks.base import Task


def said(message: Mapping[str, Any]) -> str:
    """What a turn says: its text, and its calls of tools as JSON."""
    parts = [message.get("content") or "", *map(json.dumps, message.get("tool_calls") or ())]
    return "\n".join(p for p in parts if p)


def told(task: Task) -> str:
    """The prompt; with other turns than a system prompt around it, the whole dialogue, with the name of each role."""
    if not task.meta.get("messages") and not task.meta.get("messages_after"):
        return task.prompt
    return "\n\n".join(f"{m['role']}: {said(m)}" for m in task.messages)
