"""A language model as a judge, against a server of our own: replies, retries, the cache, the limit of cost, the key."""

import asyncio
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gruppo.tasks import Scorer, Task, load_task
from gruppo.tasks.judge import Judge, Verdict
from gruppo.tasks.llm_judge import LLMJudge
from gruppo.tasks.worker import CannotJudge

TASK = Task("t", "What is 1+1?", "2", 1, "own")
KEY = "sk-a-secret-that-must-not-leak"


class Server(ThreadingHTTPServer):
    """Says what the answer asks for; remembers what it was sent."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sent: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.tries: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.flying = self.peak = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"].rpartition("ANSWER ")[2]
        with self.server.lock:
            self.server.sent.append((body, dict(self.headers)))
            self.server.tries[text] += 1
            self.server.flying += 1
            self.server.peak = max(self.server.peak, self.server.flying)
        try:
            self._say(text)
        finally:
            with self.server.lock:
                self.server.flying -= 1

    def _say(self, text: str) -> None:
        first = self.server.tries[text] == 1
        if text == "slow":
            time.sleep(0.3)
        if text == "hang":
            time.sleep(5)
        if text == "drop" and first:
            return self.connection.close()
        if text.isdecimal() and len(text) == 3:  # 429: this status, then a score
            return self._send(int(text), {"error": "busy"}) if first else self._chat("Score: 7")
        if text == "refused":
            return self._send(401, {"error": f"no such key: {self.headers['Authorization']}"})
        if text == "moved":
            return self._send(302, {}, {"Location": "http://127.0.0.1:9/elsewhere"})
        if text == "down":
            return self._send(503, {"error": "down"})
        if text == "html":
            return self._send(200, "<html>")
        if text == "empty":
            return self._send(200, {"choices": []})
        self._chat({"slow": "Score: 5"}.get(text, text))

    def _chat(self, content: str) -> None:
        message = {"role": "assistant", "content": content}
        self._send(200, {"choices": [{"message": message}], "usage": {"total_tokens": 10}})

    def _send(self, status: int, reply: Any, headers: dict[str, str] | None = None) -> None:
        data = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def handle(self) -> None:
        with suppress(ConnectionError):  # a judge that did not wait
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def judge_at(server: Server, seconds: float = 20.0, **args: Any) -> Judge:
    given = {"address": server.address, "model": "m", "prompt": "{prompt} / {reference}. ANSWER {answer}", **args}
    return Judge(Scorer("gruppo.tasks.llm_judge:LLMJudge", given), seconds=seconds)


def score(judge: Judge, *texts: str) -> list[Verdict]:
    return asyncio.run(judge.score([(TASK, text) for text in texts]))


def found(verdicts: list[Verdict]) -> list[float | str]:
    return [v.components.get("task", v.status) for v in verdicts]


# ---- how a score is read: a law first, then examples


def direct(**args: Any) -> LLMJudge:
    return LLMJudge(**{"address": "http://localhost:1/v1", "model": "m", **args})


@pytest.mark.parametrize(("lowest", "highest"), [(0, 10), (1, 5), (-3, 3), (0.5, 0.75)])
def test_the_scale_becomes_0_to_1(lowest: float, highest: float) -> None:
    judge = direct(lowest=lowest, highest=highest)
    for share in (0.0, 0.25, 1.0):
        assert judge.score(f"It is {lowest + share * (highest - lowest)}") == pytest.approx(share)


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("Score: 8", 0.8),
        ("2 of the 3 steps are right.\nScore: **7.5**.", 0.75),
        ("8/10", 0.8),
        ("I give it 8 out of 10", 0.8),
        ("<think>10</think> Score: 3", 0.3),
        ("-0", 0.0),
        ("", None),
        ("a very good answer", None),
        ("11", None),
        ("-1", None),
        ("4/5", None),  # of another scale
        ("level3", None),
    ],
)
def test_replies(reply: str, wanted: float | None) -> None:
    if wanted is None:
        with pytest.raises(CannotJudge, match="has no score from 0 to 10, so there is no reward"):
            direct().score(reply)
    else:
        assert direct().score(reply) == pytest.approx(wanted)


def test_a_pattern_of_your_own() -> None:
    assert direct(pattern=r"GRADE=(\d)").score("7 GRADE=2 GRADE=4 9") == 0.4
    assert direct(pattern=r"(?P<score>\d+) points", highest=100).score("30 points, 2 pages") == 0.3
    assert direct(pattern=r"\d").score("1 2 3") == 0.3
    with pytest.raises(CannotJudge):
        direct(pattern=r"GRADE=(\w+)").score("GRADE=good")


# ---- requests


def test_what_is_sent(server: Server) -> None:
    with judge_at(server, system="From {lowest} to {highest}.", temperature=0.5, options={"top_p": 0.9}) as judge:
        assert found(score(judge, "Score: 4 {prompt}")) == [0.4]
    body, headers = server.sent[0]
    assert body == {
        "model": "m", "temperature": 0.5, "top_p": 0.9, "max_tokens": 512,
        "messages": [
            {"role": "system", "content": "From 0 to 10."},
            {"role": "user", "content": "What is 1+1? / 2. ANSWER Score: 4 {prompt}"},
        ],
    }  # fmt: skip
    assert "Authorization" not in headers


def test_many_at_once_and_a_score_in_the_order_of_the_answers(server: Server) -> None:
    with judge_at(server) as judge:
        assert found(score(judge, *["slow"] * 40, "1", "2")) == [*[0.5] * 40, 0.1, 0.2]
        assert server.peak > 10, "requests at once"
        assert len(judge._pool._lanes) == 1 and not judge.in_order


@pytest.mark.parametrize("text", ["429", "500", "503", "drop"])
def test_what_may_pass_is_tried_again(server: Server, text: str) -> None:
    with judge_at(server) as judge:
        assert score(judge, text, "3")[1] == Verdict({"task": 0.3})
        assert server.tries[text] == 2


@pytest.mark.parametrize(
    ("text", "said", "tries"),
    [
        ("refused", "401", 1),
        ("moved", "302", 1),
        ("html", "not JSON", 1),
        ("empty", "no chat completion", 1),
        ("nonsense", "has no score", 1),
        ("down", "did not reply after 2 tries (503", 2),
    ],
)
def test_failures_have_a_status_and_never_a_score(server: Server, text: str, said: str, tries: int) -> None:
    with judge_at(server, retries=1) as judge:
        bad, good = score(judge, text, "9")
    assert (bad.status, bad.components, good.components) == ("env_error", {}, {"task": 0.9})
    assert said in bad.error and "Traceback" not in bad.error and server.tries[text] == tries


def test_no_server_and_one_that_is_too_slow(server: Server) -> None:
    with judge_at(server, address="http://127.0.0.1:9/v1", retries=0) as judge:
        assert "did not reply after 1 tries" in score(judge, "1")[0].error
    with judge_at(server, seconds=0.6) as judge:
        slow, good = score(judge, "hang", "1")
        assert (slow.status, good.components) == ("timeout", {"task": 0.1}) and judge.restarts == 0
    with judge_at(server, retries=0, **{"options": {"n": 1}}) as judge:
        assert found(score(judge, "1")) == [0.1]


# ---- the key


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    with judge_at(server, key_env="A_KEY") as judge:
        good, bad = score(judge, "1", "refused")
    assert good.components == {"task": 0.1} and server.sent[0][1]["Authorization"] == f"Bearer {KEY}"
    assert "401" in bad.error and KEY not in bad.error


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"key_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE: this environment variable is not set"),
        ({"key_env": KEY}, "no name of an environment variable"),
        ({"address": f"http://me:{KEY}@localhost/v1"}, "which the record of the run would store"),
        ({"address": f"http://localhost/v1?key={KEY}"}, "which the record of the run would store"),
        ({"address": "localhost:8000"}, "no address of a server.*http://localhost:8000/v1"),
        ({"address": ""}, "no address of a server"),
        ({"model": ""}, "without a model"),
        ({"prompt": "{anwser}"}, r"task.args.prompt names the field 'anwser'.*Did you mean 'answer'"),
        ({"pattern": "("}, "no regular expression"),
        ({"lowest": 3, "highest": 1}, "Exchange them"),
        ({"cache": "/dev/null/x"}, "cannot be used"),
        ({"retries": -1}, r"task\.args\.retries=-1: no answer could be judged.*Use a whole number from 0 to 1000"),
        ({"retries": 1.5}, "whole number"),
        ({"retries": True}, "whole number"),
        ({"seconds": 0}, r"seconds=0: .*from 0\.001 to 1e\+06"),
        ({"seconds": 1e20}, "seconds=1e"),
        ({"seconds": float("nan")}, "seconds=nan"),
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"max_tokens": -5}, "max_tokens=-5"),
        ({"max_calls": -5}, "max_calls=-5"),
        ({"max_tokens_total": 2.5}, "max_tokens_total=2.5"),
        ({"lowest": float("-inf")}, "lowest=-inf"),
        ({"highest": "10"}, "highest='10'"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){said}") as refused:
        direct(**args)
    assert KEY not in str(refused.value)


def test_a_reference_that_is_asked_for_must_be_there(server: Server) -> None:
    open_question = Task("q", "Write a poem.", "", 1, "own")
    with judge_at(server) as judge:
        (bad,) = asyncio.run(judge.score([(open_question, "1")]))
        assert "task q has no answer for {reference}" in bad.error and not server.sent
    assert "Reference:\nnone" in direct().messages(open_question, "1")[0]["content"]


def test_a_dialogue_is_shown_whole() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    before = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    meta = {"messages": before, "messages_after": [call, {"role": "tool", "content": "2"}]}
    task = Task("t", "1+1?", "2", 1, "own", system="Be short.", meta=meta)
    assert direct(prompt="{prompt}").messages(task, "")[0]["content"] == (
        "system: Be short.\n\nuser: Hello\n\nassistant: Hi\n\nuser: 1+1?\n\n"
        'assistant: {"function": {"name": "add"}}\n\ntool: 2'
    )


# ---- the cache and the limit of cost


def test_the_cache(server: Server, tmp_path: Path) -> None:
    file = str(tmp_path / "new" / "cache.db")
    with judge_at(server, cache=file) as judge:
        assert found(score(judge, "1", "2", "nonsense")) == [0.1, 0.2, "env_error"]
    with judge_at(server, cache=file, max_calls=1) as judge:  # hits do not count
        assert found(score(judge, "2", "1", "1", "nonsense")) == [0.2, 0.1, 0.1, "env_error"]
    assert server.tries == {"1": 1, "2": 1, "nonsense": 2}, "a reply that cannot be read is not kept"
    with judge_at(server, cache=file, temperature=1.0) as judge:
        assert found(score(judge, "1")) == [0.1] and server.tries["1"] == 2, "another setting is another request"
    Path(file).write_text("no database, " * 1000)
    with pytest.raises(ValueError, match="cannot be used"):
        judge_at(server, cache=file).start()


def test_the_limit_of_calls_and_of_tokens(server: Server) -> None:
    with judge_at(server, max_calls=5) as judge:
        verdicts = score(judge, *map(str, range(8)))
        assert sorted(v.status for v in verdicts) == ["env_error"] * 3 + ["ok"] * 5 and len(server.sent) == 5
        said = [v.error for v in verdicts if v.error]
        assert "used up (5 of task.args.max_calls=5), so the answer was not judged. Raise it" in said[0]
    with judge_at(server, max_tokens_total=30) as judge:
        for _ in range(3):
            assert found(score(judge, "1")) == [0.1]
        assert "used up (30 of task.args.max_tokens_total=30)" in score(judge, "1")[0].error


def test_by_name(server: Server) -> None:
    tasks = load_task("addition", scorer="llm_judge", args={"address": server.address, "model": "m"})
    assert tasks.scorer == Scorer("gruppo.tasks.llm_judge:LLMJudge", {"address": server.address, "model": "m"})
    with Judge(tasks.scorer) as judge:
        (verdict,) = asyncio.run(judge.score([(tasks.train[0], "ANSWER 6")]))
    assert verdict.components == {"task": 0.6}


def test_a_run_goes_on_though_its_cache_has_grown(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is written by the run, which therefore does not depend on it."""
    from gruppo.cli import main
    from gruppo.train import trainer

    plain = trainer.train_step

    async def once(run: Any, step: int) -> Any:
        signal.raise_signal(signal.SIGINT)  # finishes this step
        return await plain(run, step)

    monkeypatch.chdir(tmp_path)
    args = [f"task.args.address={server.address}", "task.args.model=m", "task.args.cache=./judge.db"]
    args += ["task.args.prompt=ANSWER 1{answer}", "task.args.pattern=^\\d"]
    sizes = ["prompts=2", "samples=4", "steps=2", "eval.every=0", "eval.prompts=2", "save.name=r", "threads=1"]
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", once)
        assert main(["train", "model=tiny-random", "task.reward=llm_judge", *args, *sizes]) == 0
    assert (tmp_path / "judge.db").stat().st_size and not (tmp_path / "runs/r/summary.json").exists()
    assert main(["train", "--resume", "runs/r"]) == 0, capsys.readouterr().err
    assert (tmp_path / "runs/r/summary.json").exists()


def test_a_run_stops_when_the_limit_is_used_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key is in no file of the run, and neither is it printed."""
    from gruppo.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_KEY", KEY)
    args = [f"task.args.address={server.address}", "task.args.model=m", "task.args.key_env=A_KEY"]
    args += ["task.args.prompt=ANSWER 1{answer}", "task.args.pattern=^\\d", "task.args.max_calls=20"]
    sizes = ["prompts=2", "samples=4", "steps=9", "eval.every=0", "eval.prompts=2", "save.name=r", "threads=1"]
    assert main(["train", "model=tiny-random", "task.reward=llm_judge", *args, *sizes]) == 2
    out, err = capsys.readouterr()
    assert "used up (20 of task.args.max_calls=20)" in err and "could not be judged" in err
    config = (tmp_path / "runs/r/config.toml").read_text()
    assert "llm_judge" in config and "A_KEY" in config and server.address in config
    everything = b"".join(p.read_bytes() for p in (tmp_path / "runs").rglob("*") if p.is_file())
    assert KEY.encode() not in everything and KEY not in out + err
