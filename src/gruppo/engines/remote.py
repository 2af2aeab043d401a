"""A server that completes ids, over HTTP: vLLM's, SGLang's, our own (`gruppo serve-agent`), or one that answers alike.

It speaks `POST /v1/completions` of OpenAI with a list of ids as the prompt. The answer must hold ids and their
log-probabilities: texts alone do not say which tokens were sampled. Its weights are the server's own, so a run cannot
train with it; an evaluation can sample from it.
"""

import asyncio
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from operator import index
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from gruppo.engines.apart import Apart, completion_of, seed_of, stops_of
from gruppo.engines.base import CAN_PROMISE, Completion, Reason, Request

TRIES, PAUSE = 4, 0.5  # of a connection that is refused or reset, and the seconds between two of them
LIST = 20.0  # seconds for the list of models, which a server has at hand
AT_ONCE = 64  # requests, a thread each; a server has its own queue
HERE = ("127.0.0.1", "localhost", "::1")
KEY = "Set the variable OPENAI_API_KEY to the key of the server."
REMEDIES = {401: KEY, 403: KEY, 404: "Look at engine.url, which ends in /v1 with most servers."}  # by status
REASONS: dict[str, Reason] = {"stop": "stop", "length": "length"}


@dataclass(frozen=True)
class Described:
    """What is known of a model without its weights."""

    vocab: int
    context: int
    fallback: str = ""

    @staticmethod
    def of(config: Mapping[str, Any], name: str) -> "Described":
        """From the config.json of the model."""
        inner = {**config, **(config.get("text_config") or {})}
        vocab = inner.get("vocab_size")
        context = inner.get("max_position_embeddings") or inner.get("n_positions")
        if not isinstance(vocab, int) or not isinstance(context, int):
            raise ValueError(
                f"model {name}: its config.json does not say vocab_size and max_position_embeddings, so requests "
                "cannot be checked. Use a folder with the config.json of the model that is served."
            )
        return Described(vocab, context)


class RemoteEngine(Apart):
    """Asks the server at `url`.

    model      the server's name of the model; empty: the first that it lists
    rows       requests at once, 64 at most
    processed  the server's log-probabilities are those of the distribution that it samples from; if not, they are those
               at temperature 1, and unknown (NaN) at another one
    seconds    limit for one answer
    """

    name = "remote"

    def __init__(
        self,
        models: Mapping[str, Any],
        eos: tuple[int, ...],
        url: str,
        model: str = "",
        rows: int = AT_ONCE,
        processed: bool = False,
        seconds: float = 600.0,
    ) -> None:
        super().__init__(models, eos)
        self.models = {}  # no weights are here
        if not url.startswith(("http://", "https://")):
            raise ValueError(
                f"engine.url={url!r} is no address of a server, so no request could be sent. Use engine.url="
                "http://HOST:PORT/v1 with gruppo eval; to train, use engine=native or engine=vllm."
            )
        self.url, self.model, self.processed, self.seconds = url.rstrip("/"), model, processed, seconds
        self.promises = CAN_PROMISE["remote"] if processed else frozenset()
        self._threads = Threads(min(rows, AT_ONCE))
        self._known: dict[str, Any] | ValueError | None = None  # what the server says of the model, or why not
        self._looking = threading.Lock()
        proxies = {} if urlsplit(url).hostname in HERE else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def context(self, role: str = "policy") -> int:
        """The positions of the model, or of the server if it says that it has fewer."""
        mine, theirs = super().context(role), self._served().get("max_model_len")
        return min(mine, theirs) if isinstance(theirs, int) and theirs > 1 else mine

    def close(self) -> None:
        self._threads.close()

    async def _one(self, request: Request) -> Completion:
        return await asyncio.wrap_future(self._threads.begin(lambda: self._answered(request)))

    def _answered(self, request: Request) -> Completion:
        body = body_of(request, self.eos, str(self._served()["id"]))
        answer = self._ask("completions", body)
        with readable(f"{self.url}/completions"):
            return read(answer, request, self.version, self.processed, self.url)

    def _served(self) -> dict[str, Any]:
        """The row of the model in the server's list, which is asked for once.

        A failure is kept, too: requests that wait here would each try again, one after the other.
        """
        with self._looking:
            if self._known is None:
                try:
                    self._known = self._listed()
                except ValueError as error:
                    self._known = error
            found = self._known
        if isinstance(found, ValueError):
            raise ValueError(*found.args)
        return found

    def _listed(self) -> dict[str, Any]:
        answer = self._ask("models", seconds=min(LIST, self.seconds))
        with readable(f"{self.url}/models"):
            rows = {str(row["id"]): row for row in answer.get("data") or ()}
        if not rows or (self.model and self.model not in rows):
            raise ValueError(
                f"{self.url} serves {', '.join(rows) or 'no model'}, and engine.model={self.model!r} was asked for. "
                "Use a name of its list, or leave engine.model out."
            )
        return rows[self.model] if self.model else next(iter(rows.values()))

    def _ask(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = 0.0) -> dict[str, Any]:
        key = os.environ.get("OPENAI_API_KEY", "any")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, headers)
        for left in reversed(range(TRIES)):
            try:
                limit = seconds or self.seconds
                end = time.monotonic() + limit
                with self._opener.open(request, timeout=limit) as reply:
                    return dict(json.loads(b"".join(_pieces(reply, end))))
            except urllib.error.HTTPError as error:
                with error:
                    raise ValueError(
                        f"{self.url}/{path} refuses with status {error.code}: {_said(error).rstrip('.')}. "
                        f"{REMEDIES.get(error.code, 'Look at the log of the server.')}"
                    ) from None
            except (OSError, HTTPException, ValueError, TypeError, RecursionError) as error:
                why = getattr(error, "reason", error)
                if left and isinstance(why, ConnectionError):  # the same seed: asked again, the answer is the same
                    time.sleep(PAUSE)
                    continue
                raise ValueError(
                    f"{self.url}/{path} does not answer ({why}), so nothing was sampled. Look whether the server runs, "
                    "at engine.url and at engine.seconds."
                ) from None
        raise AssertionError("the last try returns or raises")


class Threads:
    """Daemons, `most` of them: at its end the interpreter would wait for others, and so for a server that is silent."""

    def __init__(self, most: int) -> None:
        self.most, self.begun = most, 0
        self.work: SimpleQueue[Any] = SimpleQueue()

    def begin(self, call: Callable[[], Completion]) -> "Future[Completion]":
        future = Future[Completion]()
        self.work.put((future, call))
        if self.begun < self.most:
            self.begun += 1
            threading.Thread(target=self._run, args=[self.work], name="remote", daemon=True).start()
        return future

    @staticmethod
    def _run(work: "SimpleQueue[Any]") -> None:
        while (item := work.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)

    def close(self) -> None:
        for _ in range(self.begun):
            self.work.put(None)
        self.work, self.begun = SimpleQueue(), 0


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Around reading an answer: one in another form than OpenAI's is refused with a sentence."""
    try:
        yield
    except (TypeError, AttributeError, LookupError, OverflowError) as error:
        raise ValueError(
            f"{where} answers in a form that cannot be read ({type(error).__name__}: {error}), so nothing was sampled. "
            "Use a server that speaks OpenAI's API, and look at engine.url."
        ) from error


def _pieces(reply: Any, end: float) -> Iterator[bytes]:
    """The body of a reply. The limit of a socket is for each piece, and this one for all of them."""
    while piece := reply.read1(1 << 16):
        if time.monotonic() > end:
            raise TimeoutError("the answer is not whole within the limit")
        yield piece


def body_of(request: Request, eos: tuple[int, ...], model: str) -> dict[str, Any]:
    """The body of a request: the whole distribution at the temperature, whatever the server's own defaults are."""
    return {
        "model": model,
        "prompt": request.prefix.tolist(),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": seed_of(request),
        "stop_token_ids": stops_of(request, eos),
        "logprobs": 1,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }


def read(answer: Mapping[str, Any], request: Request, version: int, processed: bool, url: str) -> Completion:
    """The completion in an answer of a server. What is missing is refused, not guessed."""
    choice = next(iter(answer.get("choices") or ()), None) or {}
    found = choice.get("logprobs") or {}
    ids, logp = _ids(choice, found), _logp(found)
    if ids is None or logp is None or len(ids) != len(logp):
        equal = "equal numbers of ids and log-probabilities"
        what = "ids" if ids is None else "log-probabilities" if logp is None else equal
        raise ValueError(
            f"{url} returns no {what} of the sampled tokens, and texts do not say what was sampled. Use a server that "
            'knows "return_token_ids" (vLLM, SGLang of July 2026 or later, gruppo serve-agent).'
        )
    if (seen := choice.get("prompt_token_ids")) is not None and list(seen) != request.prefix.tolist():
        raise ValueError(
            f"{url} completed other ids than it was given ({len(seen)} instead of {len(request.prefix)}): it adds or "
            "drops tokens, so positions would differ. Use a server that takes ids as they are."
        )
    reason = choice.get("finish_reason")
    if reason not in REASONS:
        raise ValueError(f"{url} ended an answer with {reason!r}, so it is not whole. Look at the server's log.")
    known = processed or request.temperature == 1
    return completion_of(
        request, ids, logp if known else [float("nan")] * len(ids), [version] * len(ids), REASONS[reason]
    )


def _ids(choice: Mapping[str, Any], logprobs: Mapping[str, Any]) -> list[int] | None:
    """As a list, or as tokens that are named token_id:NUMBER (older servers of vLLM, if started that way)."""
    if choice.get("token_ids") is not None:
        return [index(i) for i in choice["token_ids"]]
    tokens = [str(token) for token in logprobs.get("tokens") or ()]
    named = [n for token in tokens if (n := token.removeprefix("token_id:")) != token and n.isdecimal()]
    return [int(i) for i in named] if tokens and len(named) == len(tokens) else None


def _logp(logprobs: Mapping[str, Any]) -> list[float] | None:
    """NaN where the server does not say."""
    found = logprobs.get("token_logprobs")
    return None if found is None else [float("nan") if p is None else p + 0.0 for p in found]


def _said(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        found = json.loads(text)
        return str((found.get("error") or found)["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return text[:200] or "no words"
