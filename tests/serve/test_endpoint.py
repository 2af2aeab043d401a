"""The endpoint over the network of this machine: plain urllib, the client library of OpenAI, and strangers."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served import Puppet, context, played, post, written

from gruppo.cli import main
from gruppo.cli.serve import opened
from gruppo.serve.alone import Visitors
from gruppo.serve.endpoint import Endpoint
from gruppo.serve.http import Server, is_loopback
from gruppo.train.config import RunConfig

HELLO = {"model": "policy", "messages": [{"role": "user", "content": "1+1="}]}


class Live:
    """An endpoint in a thread of its own."""

    def __init__(self, key: str = "") -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.endpoint: Endpoint = self.wait(opened(RunConfig(), "tiny-random", key=key))
        self.url = f"{self.endpoint.address}/chat/completions"

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(250)

    def close(self) -> None:
        self.wait(self.endpoint.close())
        self.loop.call_soon_threadsafe(self.loop.stop)

    def raw(self, text: str) -> str:
        """What comes back for these bytes, until the connection is closed."""
        with socket.create_connection(("127.0.0.1", self.endpoint.server.port), timeout=120) as s:
            s.sendall(text.replace("\n", "\r\n").encode())
            return b"".join(iter(lambda: s.recv(1 << 16), b"")).decode()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    made = Live()
    yield made
    made.close()


def test_a_completion_and_the_models(live: Live) -> None:
    status, said = post(live.url, {**HELLO, "seed": 1, "max_tokens": 5})
    assert status == 200 and said["object"] == "chat.completion" and said["model"] == "policy"
    [choice], used = said["choices"], said["usage"]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] in ("stop", "length")
    assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"] and used["prompt_tokens"] == 5
    again = post(live.url, {**HELLO, "seed": 1, "max_tokens": 5})[1]
    assert again["choices"] == said["choices"]  # the seed is the luck
    assert [m["id"] for m in post(f"{live.endpoint.address}/models", None)[1]["data"]] == ["policy"]


def test_a_stream_says_the_same(live: Live) -> None:
    whole = post(live.url, {**HELLO, "seed": 3})[1]["choices"][0]
    text = post(live.url, {**HELLO, "seed": 3, "stream": True, "stream_options": {"include_usage": True}})[1]
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    *chunks, last = map(json.loads, lines)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] and last["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "polcy"}, 404, "Did you mean 'policy'?"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, 400, "Shorten or drop earlier messages"),
        ({"messages": [{"role": "user", "content": "é"}]}, 400, "printable ASCII"),
        ({"n": 3}, 400, "Ask several times"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": 5}]}, 400, "tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a":' * 9999}]}]},
            400,
            "JSON",
        ),
        ({"tools": {"function": {"name": "f"}}, "tool_choice": "required"}, 400, "tools is no list"),
    ],
)
def test_errors_have_the_format_of_openai(body: dict[str, Any], status: int, said: str, live: Live) -> None:
    found, reply = post(live.url, {**HELLO, **body})
    assert found == status and said in reply["error"]["message"] and reply["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ("GET /v1/models HTTP/1.1\nHost: evil.example\n\n", 403, "is not this machine"),
        ("GET /v1/models HTTP/1.1\n\n", 403, "is not this machine"),
        ("GET /v1/models HTTP/1.1\nHost: localhost\nOrigin: https://evil.example\n\n", 403, "another site"),
        ("GET /v1/models HTTP/1.1\nHost: localhost:80\nOrigin: http://127.0.0.1:3000\n\n", 200, "policy"),
        ("GET /v1/embeddings HTTP/1.1\nHost: localhost\n\n", 404, "/v1/chat/completions"),
        ("GET /v1/responses HTTP/1.1\nHost: localhost\n\n", 405, "by POST"),
        ("GET /v1/chat/completions HTTP/1.1\nHost: localhost\n\n", 405, "by POST"),
        ("POST /v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n[]", 400, "Send an object"),
        ("POST /v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 1\n\n{", 400, "no JSON"),
        ("POST /v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: -4\n\n", 400, "no length"),
        ("POST /v1/chat/completions HTTP/1.1\nHost: localhost\nContent-Length: 99999999999\n\n", 413, "longer than"),
        ("hello\n\n", 400, "no request line"),
        ("GET / HTTP/1.1\nX: " + "x" * 70_000 + "\n\n", 431, "longer than"),
    ],
)
def test_strangers_and_nonsense(request_: str, status: int, said: str, live: Live) -> None:
    reply = live.raw(request_.replace("HTTP/1.1\n", "HTTP/1.1\nConnection: close\n"))
    assert reply.startswith(f"HTTP/1.1 {status} ") and said in reply


def test_bodies_in_chunks_and_two_requests_on_one_connection(live: Live) -> None:
    body = json.dumps({**HELLO, "max_tokens": 2})
    parts = "".join(f"{len(p):x}\n{p}\n" for p in (body[:10], body[10:])) + "0\n\n"
    head = "POST /v1/chat/completions HTTP/1.1\nHost: localhost\n"
    first, last = (
        f"{head}Transfer-Encoding: chunked\n\n{parts}",
        f"{head}Connection: close\nContent-Length: {len(body)}",
    )
    assert live.raw(f"{first}{last}\n\n{body}").count("HTTP/1.1 200 OK") == 2


def test_a_fault_of_ours_is_told() -> None:
    """Without a word the client would only see a closed connection, and try again."""

    async def told() -> tuple[int, Any, list[Any]]:
        faults = list[Any]()
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault["exception"]))

        async def broken(_: Any) -> Any:
            raise KeyError("ours")

        server = await Server(broken).start()
        found = await asyncio.to_thread(post, f"http://127.0.0.1:{server.port}/v1/chat/completions", HELLO)
        await server.close()
        return (*found, faults)

    status, reply, [fault] = asyncio.run(told())
    assert status == 500 and reply["error"]["type"] == "server_error" and isinstance(fault, KeyError)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost", "LOCALHOST:1", "[::1]:80", "127.1.2.3"])
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback(host)
    assert not is_loopback(f"{host.partition(':')[0]}.example:80") and not is_loopback("10.0.0.1:80")


def test_only_this_machine_can_connect(live: Live) -> None:
    assert live.endpoint.server._server is not None
    assert [s.getsockname()[0] for s in live.endpoint.server._server.sockets] == ["127.0.0.1"]


def test_the_call_of_a_client_that_goes_away_is_cancelled() -> None:
    asked = asyncio.Event()

    class Stuck(Puppet):
        cancelled = False

        async def ask(self, request: Any) -> Any:
            asked.set()
            try:
                await asyncio.sleep(60)
            finally:
                self.cancelled = True

    async def gone() -> bool:
        engine = Stuck()
        visitors, ctx = Visitors(engine.tokenizer, 1), context(engine)
        endpoint = await Endpoint(ctx, "policy", visitors.find, lambda _: ctx.sampling).start()
        _, writer = await asyncio.open_connection("127.0.0.1", endpoint.server.port)
        body = json.dumps(HELLO)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await asyncio.wait_for(asked.wait(), 60)
        before = engine.cancelled
        writer.close()
        for _ in range(1200):
            await asyncio.sleep(0.05)
            if engine.cancelled:
                break
        after = engine.cancelled
        await endpoint.close()
        return after and not before

    assert asyncio.run(gone())


def test_many_at_once(live: Live) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: post(live.url, {**HELLO, "seed": i % 4, "max_tokens": 6}), range(32)))
    assert {status for status, _ in found} == {200}
    said = [reply["choices"][0]["message"]["content"] for _, reply in found]
    assert all(said[i] == said[i % 4] for i in range(32)) and len(set(said)) > 1


def test_a_key_is_asked_for() -> None:
    live = Live(key="abc")
    try:
        assert post(live.url, HELLO)[0] == 401
        assert post(live.url, HELLO, {"Authorization": "Bearer abd"})[0] == 401
        assert post(live.url, HELLO, {"Authorization": "Bearer abc"})[0] == 200
    finally:
        live.close()


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["tiny", "--port", "70000"], "is no port"),
        (["tinny"], "tinny"),
        (["tiny", "--key", "ä b"], "no header can hold"),
    ):
        assert main(["serve-agent", *words]) == 2
        assert said in capsys.readouterr().err


# with the client library of OpenAI


def test_the_library_of_openai(live: Live) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=live.endpoint.address, api_key="me")
    talk: list[Any] = [{"role": "user", "content": "1+1="}]
    first = client.chat.completions.create(model="policy", messages=talk, max_tokens=4)
    talk += [first.choices[0].message, {"role": "user", "content": "2+2="}]
    second = client.chat.completions.create(model="policy", messages=talk, max_tokens=4)
    # what was sampled, its end, and the four tokens that are new
    end = 0 if first.choices[0].finish_reason == "stop" else 1
    assert second.usage.prompt_tokens == first.usage.total_tokens + end + 4
    stream = client.chat.completions.create(model="policy", messages=talk, stream=True)
    assert [c.choices[0].finish_reason for c in stream][-1] in ("stop", "length")
    assert [m.id for m in client.models.list()] == ["policy"]
    with pytest.raises(openai.NotFoundError, match="Did you mean"):
        client.chat.completions.create(model="polcy", messages=talk)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x" * 300}])
    assert error.value.code == "context_length_exceeded"


def test_the_library_of_openai_by_its_newer_api(live: Live) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=live.endpoint.address, api_key="newer")
    talk: list[Any] = [{"role": "user", "content": "1+1="}]
    first = client.responses.create(model="policy", input=talk, max_output_tokens=4)
    talk += [*first.output, {"role": "user", "content": "2+2="}]
    second = client.responses.create(model="policy", input=talk, max_output_tokens=4)
    end = 0 if first.status == "completed" else 1
    assert second.usage.input_tokens == first.usage.total_tokens + end + 4
    with client.responses.stream(model="policy", input=talk) as stream:
        first_event, *_, last = list(stream)
    assert first_event.type == "response.created" and last.response.output_text is not None
    assert last.type in ("response.completed", "response.incomplete")  # by what is drawn, and so by the tests before
    with pytest.raises(openai.BadRequestError, match="send the whole dialogue"):
        client.responses.create(model="policy", input="a", previous_response_id="resp_1")


LIBRARY = """
import openai

async def agent(task, client):
    policy = openai.AsyncOpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY are set
    talk = list(task.messages)
    for _ in range(2):
        said = await policy.chat.completions.create(model="policy", messages=talk, temperature=0.2)
        talk += [said.choices[0].message, {"role": "user", "content": "again"}]
    return float(said.choices[0].message.content == "two")
"""


def test_an_agent_with_the_library_of_openai(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    assert sys.modules["openai"]
    for e in played(context(Puppet(["one", "two"])), written(tmp_path, LIBRARY), seconds=20.0):
        assert e.reward == {"task": 1.0} and len(e.sequences) == 1 and len(e.turns) == 2
