"""engine=remote: a server that completes ids. Against a stand-in, and against our own `gruppo serve-agent`."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from gruppo.cli.evaluate import evaluations
from gruppo.cli.overrides import apply
from gruppo.cli.serve import opened
from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.apart import seed_of
from gruppo.engines.base import NotFinite
from gruppo.engines.remote import Described, RemoteEngine
from gruppo.policies import load_policy
from gruppo.stages import Sampling
from gruppo.train.config import RunConfig
from gruppo.train.run import Run, tasks_of
from gruppo.train.waiting import waited

SHAPE = {"policy": Described(99, 256)}
PROMPT = np.array([1, 20, 30, 40])


class StandIn(ThreadingHTTPServer):
    """Answers every request with two ids; `how` changes what it says."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.how: dict[str, Any] = {}
        self.models: list[dict[str, Any]] = [{"id": "served", "max_model_len": 64}]
        self.pause = 0.0  # seconds between two bytes of an answer
        self.drop = 0  # connections to close without a word
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        choice = {
            "finish_reason": "stop",
            "prompt_token_ids": body["prompt"],
            "token_ids": [7, 2],
            "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.25]},
        }
        return {"choices": [{**choice, **self.how}]}


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        self._send(200, {"data": self.server.models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        self.server.keys.append(self.headers["Authorization"])
        if self.server.drop > 0:
            self.server.drop -= 1
            self.close_connection = True
            return
        if self.server.how.get("status"):
            self._send(self.server.how["status"], {"error": {"message": "it is full"}})
        else:
            self._send(200, self.server.how.get("whole", self.server.answer(body)))

    def _send(self, status: int, table: Any) -> None:
        data = json.dumps(table).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not self.server.pause:
            self.wfile.write(data)
        with suppress(OSError):
            for i in range(len(data) if self.server.pause else 0):
                self.wfile.write(data[i : i + 1])
                time.sleep(self.server.pause)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[StandIn]:
    found = StandIn()
    yield found
    found.shutdown()
    found.server_close()


def asked(engine: RemoteEngine, *requests: Request) -> Any:
    try:
        return asyncio.run(complete(engine, requests))
    finally:
        engine.close()


def test_ids_go_in_and_come_out(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    requests = [Request(PROMPT, 5, key=k, stop=(9,)) for k in range(20)]
    out = asked(RemoteEngine(SHAPE, (2, 3), server.url), *requests)
    for c in out:
        assert (c.ids.tolist(), c.logp.tolist(), c.reason) == ([7, 2], [-0.5, -0.25], "stop")
    sent = {body["seed"]: body for body in server.seen}
    assert set(sent) == {seed_of(r) for r in requests}
    body = server.seen[0]
    assert (body["prompt"], body["max_tokens"], body["model"]) == (PROMPT.tolist(), 5, "served")
    assert body["stop_token_ids"] == [2, 3, 9] and body["return_token_ids"] is True
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (1.0, 1.0, -1, 0.0)
    assert body["repetition_penalty"] == 1.0  # whatever the server's own defaults are
    assert set(server.keys) == {"Bearer secret"}


def test_the_context_is_the_smaller_one(server):
    engine = RemoteEngine(SHAPE, (2,), server.url)
    assert engine.context() == 64
    server.models[0].pop("max_model_len")
    assert RemoteEngine(SHAPE, (2,), server.url).context() == 256


def test_ids_as_names_of_tokens(server):
    server.how = {"token_ids": None}
    server.how["logprobs"] = {"tokens": ["token_id:7", "token_id:2"], "token_logprobs": [-1.0, -2.0]}
    [c] = asked(RemoteEngine(SHAPE, (2,), server.url), Request(PROMPT, 5, key=0))
    assert c.ids.tolist() == [7, 2]


@pytest.mark.parametrize(("processed", "known"), [(True, True), (False, False)])
def test_log_probabilities_at_another_temperature_are_known_or_nan(server, processed, known):
    [c] = asked(RemoteEngine(SHAPE, (2,), server.url, processed=processed), Request(PROMPT, 5, key=0, temperature=0.5))
    assert np.isfinite(c.logp).all() == known


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"token_ids": None}, "returns no ids of the sampled tokens"),
        ({"logprobs": None}, "returns no log-probabilities"),
        ({"token_ids": [7]}, "no equal numbers of ids and log-probabilities"),
        ({"prompt_token_ids": [1, 1]}, "completed other ids than it was given"),
        ({"finish_reason": "abort"}, "ended an answer with 'abort'"),
        ({"status": 503}, r"refuses with status 503: it is full\. Look at the log of the server"),
        ({"status": 401}, r"refuses with status 401: .* Set the variable OPENAI_API_KEY"),
        ({"status": 404}, r"refuses with status 404: .* Look at engine.url, which ends in /v1"),
        ({"token_ids": [7, 99]}, "id 99, outside the vocabulary 0..98"),
        ({"token_ids": [-1, 2]}, "id -1, outside the vocabulary"),
        ({"token_ids": [1.5, 2]}, "in a form that cannot be read"),
        ({"token_ids": ["a", "b"]}, "in a form that cannot be read"),
        ({"token_ids": [[7], [2]]}, "in a form that cannot be read"),
        ({"token_ids": [1 << 70, 2]}, "in a form that cannot be read"),
        ({"token_ids": 5}, "in a form that cannot be read"),
        ({"token_ids": None, "logprobs": {"tokens": ["token_id:x"], "token_logprobs": [-1.0]}}, "returns no ids"),
        ({"logprobs": [1, 2]}, "in a form that cannot be read"),
        ({"logprobs": {"token_logprobs": ["a", "b"]}}, "in a form that cannot be read"),
        ({"logprobs": {"token_logprobs": [[-1], [-2]]}}, "in a form that cannot be read"),
        ({"logprobs": {"token_logprobs": [0.5, -1]}}, "0.5 as the log-probability"),
        ({"logprobs": {"token_logprobs": [-float("inf"), -1]}}, "-inf as the log-probability"),
        ({"finish_reason": [1]}, "in a form that cannot be read"),
        ({"token_ids": [7] * 6, "logprobs": {"token_logprobs": [-1.0] * 6}}, "6 tokens, and 5 were asked for"),
        ({"whole": {"choices": [5]}}, "in a form that cannot be read"),
        ({"whole": {"choices": 5}}, "in a form that cannot be read"),
        ({"whole": {}}, "returns no ids"),
        ({"whole": []}, "returns no ids"),
        ({"whole": "text"}, "does not answer"),
    ],
)
def test_answers_that_are_refused(server, how, says):
    server.how = how
    with pytest.raises(ValueError, match=says):
        asked(RemoteEngine(SHAPE, (2,), server.url), Request(PROMPT, 5, key=0))


def test_a_log_probability_that_was_promised_is_a_number(server):
    """Unknown ones are NaN only where the engine says that it may not know them."""
    server.how = {"logprobs": {"token_logprobs": [None, -1.0]}}
    [c] = asked(RemoteEngine(SHAPE, (2,), server.url), Request(PROMPT, 5, key=0))
    assert np.isnan(c.logp).tolist() == [True, False]
    with pytest.raises(NotFinite, match="nan as the log-probability"):
        asked(RemoteEngine(SHAPE, (2,), server.url, processed=True), Request(PROMPT, 5, key=0))


@pytest.mark.parametrize("models", [5, [5], [{}], "ab", {"id": 1}])
def test_lists_of_models_that_are_none(server, models):
    server.models = models
    with pytest.raises(ValueError, match="/models answers in a form that cannot be read"):
        RemoteEngine(SHAPE, (2,), server.url).context()


@pytest.mark.parametrize("length", [0, -3, True, "64", None])
def test_lengths_that_are_none_are_not_believed(server, length):
    server.models = [{"id": "served", "max_model_len": length}]
    assert RemoteEngine(SHAPE, (2,), server.url).context() == 256


def test_an_answer_that_comes_byte_by_byte_has_its_limit(server):
    """The limit is for the whole answer, not for each piece of it."""
    server.pause = 0.2
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"does not answer .*engine\.seconds"):
        asked(RemoteEngine(SHAPE, (2,), server.url, seconds=0.5), Request(PROMPT, 5, key=0))
    assert time.monotonic() - begun < 25  # all of it would take 32 s or more


def test_nobody_waits_for_a_server_at_the_end(server):
    """The interpreter joins threads that are no daemons, for engine.seconds after Ctrl-C."""
    server.pause = 0.05
    engine = RemoteEngine(SHAPE, (2,), server.url)

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.ask(Request(PROMPT, 5, key=0)), 0.3)

    asyncio.run(impatient())
    mine = [t for t in threading.enumerate() if t.name.startswith("remote")]
    assert mine and all(t.daemon for t in mine)
    engine.close()


def test_a_lost_connection_is_tried_again(server, monkeypatch):
    monkeypatch.setattr("gruppo.engines.remote.PAUSE", 0.0)
    server.drop = 3
    [c] = asked(RemoteEngine(SHAPE, (2,), server.url), Request(PROMPT, 5, key=0))
    assert c.ids.tolist() == [7, 2] and len({body["seed"] for body in server.seen}) == 1 and len(server.seen) == 4
    server.drop = 9
    with pytest.raises(ValueError, match="does not answer"):
        asked(RemoteEngine(SHAPE, (2,), server.url), Request(PROMPT, 5, key=0))


def test_servers_that_are_not_there(server):
    for engine, says in (
        (RemoteEngine(SHAPE, (2,), "http://127.0.0.1:9/v1"), "does not answer .*Look whether the server runs"),
        (RemoteEngine(SHAPE, (2,), server.url, "other"), "serves served, and engine.model='other' was asked for"),
    ):
        with pytest.raises(ValueError, match=says):
            asked(engine, Request(PROMPT, 5, key=0))
    with pytest.raises(ValueError, match=r"engine.url='' is no address of a server.*to train, use engine=native"):
        RemoteEngine(SHAPE, (2,), "")


def test_requests_that_wait_for_a_server_that_is_not_there_fail_together(monkeypatch):
    monkeypatch.setattr("gruppo.engines.remote.PAUSE", 0.0)
    engine, looks = RemoteEngine(SHAPE, (2,), "http://127.0.0.1:9/v1"), []
    listed = engine._listed
    monkeypatch.setattr(engine, "_listed", lambda: looks.append(1) or listed())
    with pytest.raises(ValueError, match="does not answer"):
        asked(engine, *[Request(PROMPT, 5, key=i) for i in range(16)])
    engine.close()
    assert looks == [1]  # not one after the other, with all the tries of each


def test_a_run_cannot_train_with_it(server):
    words = ["engine=remote", f"engine.url={server.url}", "model.device=cpu", "threads=1"]
    with pytest.raises(ValueError, match=r"engine=remote does not promise 'weights'.*Use engine=native or engine=vllm"):
        Run(apply(RunConfig(), words), say=lambda _: None)
    with pytest.raises(ValueError, match="cannot take new weights"):
        RemoteEngine(SHAPE, (2,), server.url).sync(1, {})


def test_two_policies_have_one_server(server):
    config = apply(RunConfig(), ["engine=remote", f"engine.url={server.url}"])
    with pytest.raises(ValueError, match="one server would be compared with itself"):
        evaluations(config, tasks_of(config), config.sampling, ["tiny", "tiny-random"])


# ---- our own server


class Served:
    """`gruppo serve-agent tiny`, in a thread of its own."""

    def __init__(self) -> None:
        self.loop, self.ready, self.ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=[self._run()], daemon=True)
        self.thread.start()
        self.ready.wait(60)

    async def _run(self) -> None:
        endpoint = await opened(apply(RunConfig(), ["model.device=cpu"]), "tiny", key="mine")
        self.url = endpoint.address
        self.ready.set()
        await self.ended.wait()
        await endpoint.close()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.ended.set)
        self.thread.join(60)


@pytest.fixture(scope="module")
def own() -> Iterator[Served]:
    found = Served()
    yield found
    found.close()


def test_our_own_server_samples_what_the_policy_samples(own, monkeypatch):
    """The seed is its random key, so an answer is that of the native engine, bit for bit."""
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    requests = [Request(PROMPT, 6, key=k, temperature=t) for k in range(4) for t in (0.0, 0.6, 1.0)]
    found = asked(RemoteEngine(SHAPE, (2,), own.url, processed=True), *requests)
    native = NativeEngine({"policy": load_policy("tiny")}, eos=2)
    for c, r in zip(found, requests, strict=True):
        d = asyncio.run(native.ask(Request(r.prefix, 6, seed_of(r), r.temperature)))
        assert c.ids.tolist() == d.ids.tolist() and c.reason == d.reason
        np.testing.assert_allclose(c.logp, d.logp, atol=1e-5)


def test_an_evaluation_by_our_own_server(own, monkeypatch):
    """No weights are loaded here, and greedy answers are those of the policy."""
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    words, greedy = ["eval.prompts=20", "model.device=cpu", "threads=1"], Sampling(max_tokens=0, temperature=0)
    config = apply(RunConfig(), [*words, "engine=remote", f"engine.url={own.url}"])
    plain = apply(RunConfig(), words)
    wanted = evaluations(plain, tasks_of(plain), greedy, ["tiny"])["tiny"]
    monkeypatch.setattr("gruppo.cli.evaluate.load_policy", None)
    found = evaluations(config, tasks_of(config), greedy, ["tiny"])["tiny"]
    assert [e.text for e in found.episodes] == [e.text for e in wanted.episodes]
    assert found.accuracy == wanted.accuracy


def test_our_own_server_refuses_what_it_cannot_do(own, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    engine = RemoteEngine(SHAPE, (2,), own.url)
    for body, says in (
        ({"prompt": "text"}, "prompt is no list of ids"),
        ({"prompt": [1, 2], "n": 2}, "n=2 is not served for ids"),
        ({"prompt": [1, 9999]}, "id 9999 is outside the vocabulary"),
        ({"prompt": [1], "max_tokens": 400}, "the context is 256"),
        ({"prompt": []}, "prefix is empty"),
        ({"prompt": [1 << 63]}, "outside the vocabulary"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens=0"),
        ({"prompt": [1], "temperature": 10**400}, "logits are divided by it"),
        ({"prompt": [1], "temperature": "hot"}, "temperature='hot' is no number"),
        ({"prompt": [1], "stop_token_ids": 5}, "stop_token_ids=5 is no list of ids"),
    ):
        with pytest.raises(ValueError, match=f"status 400: .*{says}"):
            engine._ask("completions", body)
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    with pytest.raises(ValueError, match="status 401"):
        engine._ask("completions", {"prompt": [1]})
    engine.close()


def test_agents_in_training_have_no_such_route():
    """There a call belongs to an episode; ids without one would be learned from by nobody."""
    from gruppo.serve.endpoint import Endpoint
    from gruppo.serve.http import Call, Refusal
    from gruppo.stages.context import Context

    endpoint = Endpoint(Context(), "policy", lambda *_: None, lambda _: Sampling())  # type: ignore[arg-type]
    with pytest.raises(Refusal, match="there is no /v1/completions here"):
        waited(endpoint.handle(Call("POST", "/v1/completions", {}, b"{}")))
