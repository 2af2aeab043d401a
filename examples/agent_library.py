"""Train an agent that is written with a library, here pydantic-ai: pip install 'pydantic-ai-slim[openai]'. From the
folder above, with a chat model whose template shows tools:

gruppo train task=./examples/boxes.jsonl task.agent=./examples/agent_library.py:agent task.seconds=60 model=FOLDER

Nothing in the agent is about training. The library finds the policy by OPENAI_BASE_URL and OPENAI_API_KEY, which are
those of the episode, and each of its requests goes on in the same sequence of tokens.
"""

from contextlib import suppress
from typing import Any

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIChatModel  # by its name "openai:…" each episode would load it anew


def agent(task: Any, client: Any) -> dict[str, float]:
    """1 for the right key at the first try, half of it at the second one."""
    tried = list[int]()
    opener = Agent(OpenAIChatModel(client.model), instructions="Find the key of the box with the tool. Then say done.")

    @opener.tool_plain
    def try_key(key: int) -> str:
        """Try one of the keys 0 to 3 in the lock of the box."""
        tried.append(key)
        return "It opens." if key == int(task.answer) else "It does not turn."

    with suppress(AgentRunError):  # it asked too often, or called no tool that there is: what it tried counts
        opener.run_sync(task.prompt, usage_limits=UsageLimits(request_limit=3))
    opened = int(task.answer) in tried
    return {"task": 0.5 ** tried.index(int(task.answer)) if opened else 0.0}
