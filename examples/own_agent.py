"""Train an agent of your own: a program that talks to the policy as to any OpenAI-compatible endpoint. From the folder
above:

gruppo train task=addition task.agent=./examples/own_agent.py:two_tries steps=40
gruppo train task=addition task.agent="python examples/own_agent.py" task.seconds=30 steps=2

An agent gets a task and a client, calls the policy as often as it likes, and returns the reward: a number, or named
parts, of which `task` counts as accuracy. If something fails, let it raise: the episode is left out, and never counts
as 0. With the library of OpenAI: OpenAI(base_url=client.base_url, api_key=client.key), and the model is client.model.
"""

import json
import os
from typing import Any

from gruppo.serve.client import Client


def two_tries(task: Any, client: Client) -> dict[str, float]:
    """1 for the right sum, half of it at the second try. Both tries are one dialogue, so one sequence of tokens."""
    talk = [{"role": "user", "content": task.prompt}]
    for reward in (1.0, 0.5):
        said = client.ask(talk, max_tokens=8)
        if (said["content"] or "").strip() == task.answer:
            return {"task": reward}
        talk += [said, {"role": "user", "content": f"\nno. {task.prompt}"}]
    return {"task": 0.0}


if __name__ == "__main__":  # as a program: the task and the address are in the environment, the last line is the reward
    from types import SimpleNamespace

    found = SimpleNamespace(**json.loads(os.environ["GRUPPO_TASK"]))
    here = Client(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], os.environ["GRUPPO_MODEL"])
    print(json.dumps(two_tries(found, here)))
