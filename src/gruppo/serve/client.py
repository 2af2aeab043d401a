"""What an agent of the user is given: where the policy is, and a small client for programs without a library."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Client:
    """The address of the policy for one episode. With a library: OpenAI(base_url=client.base_url, api_key=client.key).

    seed  a random seed for the agent itself, the same when the episode is drawn again
    """

    base_url: str
    key: str
    model: str
    seed: int = 0

    def ask(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """The answer to a dialogue, as a message. Options are those of chat completions: max_tokens, stop, tools."""
        body = json.dumps({"model": self.model, "messages": list(messages), **options}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(f"{self.base_url}/chat/completions", body, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is this machine
        try:
            with opener.open(request) as reply:
                return json.load(reply)["choices"][0]["message"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(_said(error)) from None

    def say(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The text of the answer."""
        return self.ask(messages, **options)["content"] or ""

    @property
    def environment(self) -> dict[str, str]:
        """For programs: the variables that libraries read, and ours."""
        here = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1"]))
        own = {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": self.key, "NO_PROXY": here, "no_proxy": here}
        return {**own, "GRUPPO_MODEL": self.model, "GRUPPO_SEED": str(self.seed)}


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return json.load(error)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return f"HTTP {error.code}"


def task_json(task: Any) -> str:
    """A task for a program: its fields, and the dialogue of its prompt as `messages`."""
    return json.dumps({**asdict(task), "messages": task.messages}, default=str)
