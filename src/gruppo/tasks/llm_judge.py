"""A language model as a judge: `task.reward=llm_judge`, through any address that speaks OpenAI's chat completions.

The client is urllib of the standard library, in threads: a call takes seconds, so a faster one would not be noticed.
"""

import asyncio
import json
import os
import random
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from gruppo.tasks.base import Task
from gruppo.tasks.dialogue import told
from gruppo.tasks.extract import whole
from gruppo.tasks.kept import Kept
from gruppo.tasks.template import compiled
from gruppo.tasks.worker import CannotJudge

PROMPT = """\
Grade the answer to a question. Read the question, the reference if there is one, and the answer. Then write one line:
Score: a number from {lowest} (wrong) to {highest} (perfect).

Question:
{prompt}

Reference:
{reference}

Answer:
{answer}
"""
NUMBER = r"[-+]?\d+(?:\.\d+)?"
LAST_NUMBER = rf"(?<![\w.])(?P<score>{NUMBER})(?:\s*(?:/|out of)\s*(?P<of>{NUMBER}))?"  # 8, 8/10, 8 out of 10
FIELDS = ("prompt", "reference", "answer", "lowest", "highest")
AGAIN = (408, 409, 425, 429)  # and all from 500 on: worth another try
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds between two tries
LARGEST = 1e15  # of a number in the settings
LOCAL = ("localhost", "127.0.0.1", "::1")


class LLMJudge:
    """A score from 0 to 1 that a language model gives. A reply without a score is a failure, and never 0.

    address, model     of the server: http://localhost:8000/v1 and the name that it serves
    prompt, system     templates of the request, with {prompt} {reference} {answer} {lowest} {highest}
    pattern            finds the score in the reply: the group `score`, else the first, of the last match
    lowest, highest    of the scores in replies; they become 0 and 1
    key_env            the NAME of the environment variable with the API key; the key itself is stored nowhere
    temperature, max_tokens, options    of the request; options are further fields of it, max_tokens=0 sends none
    retries, seconds   further tries after 429, 5xx and lost connections; time limit of one request
    cache              a file with the replies so far (SQLite), shared by runs; empty: none
    max_calls, max_tokens_total         requests and tokens after which nothing is judged any more; 0: no limit
    """

    stateless = True
    one_worker = True  # so that the limits are those of a run
    writes = ("cache",)  # a file that a run changes, so that it does not depend on what is in it

    def __init__(
        self,
        address: str = "",
        model: str = "",
        prompt: str = PROMPT,
        system: str = "",
        pattern: str = LAST_NUMBER,
        lowest: float = 0.0,
        highest: float = 10.0,
        key_env: str = "",
        temperature: float = 0.0,
        max_tokens: int = 512,
        options: Mapping[str, Any] | None = None,
        retries: int = 5,
        seconds: float = 60.0,
        cache: str = "",
        max_calls: int = 0,
        max_tokens_total: int = 0,
    ) -> None:
        if not model:
            raise ValueError("task.reward=llm_judge without a model. Set task.args.model to a name that is served.")
        _check("retries", retries, 0, 1000, whole=True)
        _check("seconds", seconds, 0.001, 1e6)
        _check("temperature", temperature, 0)
        _check("max_tokens", max_tokens, 0, whole=True)
        _check("max_calls", max_calls, 0, whole=True)
        _check("max_tokens_total", max_tokens_total, 0, whole=True)
        _check("lowest", lowest, -LARGEST)
        _check("highest", highest, -LARGEST)
        if not lowest < highest:
            raise ValueError(f"task.args.lowest={lowest}, highest={highest}: no score is between them. Exchange them.")
        self.url, self.local = _checked(address)
        self.key = _key(key_env)
        self.prompt, self.system = _template("prompt", prompt), _template("system", system)
        self.needs_reference = "{reference}" in prompt + system and prompt != PROMPT
        self.pattern = _pattern(pattern)
        self.lowest, self.highest = float(lowest), float(highest)
        self.body = {"model": model, "temperature": temperature, **(options or {})}
        self.body |= {"max_tokens": max_tokens} if max_tokens else {}
        self.retries, self.seconds = retries, seconds
        self.max_calls, self.max_tokens_total = max_calls, max_tokens_total
        self.calls = self.tokens = 0
        self.kept = Kept(cache) if cache else None
        self.threads = ThreadPoolExecutor(256)  # more than answers in hand: a call that was given up still holds one
        handlers = [_NoRedirect(), *([urllib.request.ProxyHandler({})] if self.local else [])]
        self.opener = urllib.request.build_opener(*handlers)

    async def __call__(self, task: Task, text: str) -> float:
        body = self.body | {"messages": self.messages(task, text)}
        key = sha256(json.dumps([self.url, body], sort_keys=True).encode()).hexdigest()
        reply = self.kept.get(key) if self.kept else None
        if reply is not None:
            return self.score(reply)
        reply = await self.asked(json.dumps(body).encode())
        score = self.score(reply)
        if self.kept:
            self.kept.put(key, reply)  # only what could be read
        return score

    def messages(self, task: Task, text: str) -> list[dict[str, str]]:
        """The request for one answer."""
        if self.needs_reference and not task.answer:
            raise CannotJudge(f"task {task.uid} has no answer for {{reference}} in task.args.prompt. Leave it out.")
        fields = {"prompt": told(task), "reference": task.answer or "none", "answer": text}
        fields |= {"lowest": f"{self.lowest:g}", "highest": f"{self.highest:g}"}
        system = [{"role": "system", "content": self.system(fields)}] if self.system(fields) else []
        return [*system, {"role": "user", "content": self.prompt(fields)}]

    def score(self, reply: str) -> float:
        """The score in a reply, from 0 to 1."""
        matches = list(self.pattern.finditer(whole(reply)))
        groups = matches[-1].groupdict() if matches else {}
        found = groups.get("score") or (matches[-1][min(1, self.pattern.groups)] if matches else None)
        of = groups.get("of")
        try:
            number = float(found or "none")
            if not self.lowest <= number <= self.highest or (of and float(of) != self.highest):
                raise ValueError
        except ValueError:
            shown = reply if len(reply) < 160 else f"…{reply[-160:]}"
            raise CannotJudge(
                f"The judge's reply has no score from {self.lowest:g} to {self.highest:g}, so there is no reward: "
                f"{shown!r}. Ask for it more clearly in task.args.prompt, set task.args.pattern, or raise "
                "task.args.max_tokens."
            ) from None
        return (number - self.lowest) / (self.highest - self.lowest)

    async def asked(self, body: bytes) -> str:
        """The model's reply. Tries again after what may pass."""
        loop, error = asyncio.get_running_loop(), ""
        for n in range(self.retries + 1):
            self._count()
            reply, error, pause = await loop.run_in_executor(self.threads, self._post, body)
            if reply is not None:
                return self._content(reply)
            if pause is None:
                break
            if n < self.retries:
                usual = FIRST_PAUSE * 2**n * random.uniform(0.5, 1.0)  # apart, so that they do not come back together
                await asyncio.sleep(min(max(pause, usual), LONGEST_PAUSE))
        raise CannotJudge(f"The judge at {self.url} did not reply after {n + 1} tries ({error}).")

    def _count(self) -> None:
        for name, used, most in (
            ("max_calls", self.calls, self.max_calls),
            ("max_tokens_total", self.tokens, self.max_tokens_total),
        ):
            if most and used >= most:
                raise CannotJudge(
                    f"The limit of cost is used up ({used} of task.args.{name}={most}), so the answer was not judged. "
                    "Raise it to go on."
                )
        self.calls += 1

    def _post(self, body: bytes) -> tuple[Any, str, float | None]:
        """(reply, "", None); or (None, what went wrong, seconds to wait before another try, None for no other try)."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        request = urllib.request.Request(self.url, body, headers)
        try:
            with self.opener.open(request, timeout=self.seconds) as reply:
                return json.load(reply), "", None
        except urllib.error.HTTPError as error:
            with error:
                said = f"{error.code} {error.reason}: {error.read(300).decode(errors='replace')}"
            after = error.headers.get("Retry-After") or ""
            again = error.code in AGAIN or error.code >= 500
            return None, self._hidden(said), (float(after) if after.isdecimal() else 0.0) if again else None
        except (OSError, HTTPException) as error:  # no connection, or lost, or too slow
            return None, self._hidden(str(getattr(error, "reason", "") or error) or type(error).__name__), 0.0
        except ValueError as error:
            return None, f"the reply is not JSON: {error}", None

    def _hidden(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text

    def _content(self, reply: Any) -> str:
        try:
            used = reply.get("usage") or {}
            self.tokens += int(used.get("total_tokens") or 0)
            content = reply["choices"][0]["message"]["content"]
            if not isinstance(content, str):
                raise TypeError(f"its content is {content!r}")
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise CannotJudge(
                f"The judge's reply is no chat completion ({error!r}), so the answer has no reward."
            ) from None
        if self.max_tokens_total and not used.get("total_tokens"):
            raise CannotJudge(
                "The judge's reply does not say how many tokens it used, so task.args.max_tokens_total cannot be kept. "
                "Use task.args.max_calls."
            )
        return content


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another address."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _checked(address: str) -> tuple[str, bool]:
    """The address of the requests, and whether it is this machine's own."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"task.args.address={address!r} is no address of a server. Write for example http://localhost:8000/v1."
        )
    if parts.username or parts.password or parts.query:
        raise ValueError(
            "task.args.address has a name, a password or a query, which the record of the run would store. Put the key "
            "into an environment variable, and name that: task.args.key_env=OPENAI_API_KEY."
        )
    url = address.rstrip("/")
    return url if url.endswith("/chat/completions") else f"{url}/chat/completions", parts.hostname in LOCAL


def _check(name: str, value: Any, low: float, high: float = LARGEST, whole: bool = False) -> None:
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # NaN is not between them
        kind = "a whole number" if whole else "a number"
        raise ValueError(
            f"task.args.{name}={value!r}: no answer could be judged with it. Use {kind} from {low:g} to {high:g}."
        )


def _key(name: str) -> str:
    if not name:
        return ""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name):  # it may be a key, so it is not shown
        raise ValueError(
            "task.args.key_env is no name of an environment variable. If it is the key itself, replace that key: name "
            "the variable that holds it instead, as in task.args.key_env=OPENAI_API_KEY."
        )
    key = os.environ.get(name, "").strip()
    if not key:
        raise ValueError(f"task.args.key_env={name}: this environment variable is not set. Set it: export {name}=…")
    return key


def _template(setting: str, template: str) -> Any:
    try:
        return compiled(template, FIELDS, "a request to the judge")
    except ValueError as error:
        raise ValueError(str(error).replace("task.template", f"task.args.{setting}")) from None


def _pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"task.args.pattern={pattern!r} is no regular expression ({error}).") from None
