"""The judge: whatever a scorer does, each answer has its own verdict, and none becomes 0.

Compared with pebble 5.2 (ProcessPool(1), spawn), 512 cheap answers: `schedule`, which limits each, took 41 to
54 ms, against 7 to 13 ms here on the same two busy cores; `map` with chunks is as fast, but its limit holds
for a chunk, so a hang takes its neighbours along. It also imports the caller's main file again and leaves
stdout as it is.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from judging import RIGHT, WRONG, alive, score, until

from gruppo.tasks.judge import Judge, Verdict


def test_right_and_wrong(judge: Judge) -> None:
    assert score(judge, "2", "3") == [RIGHT, WRONG]
    assert asyncio.run(judge.score([])) == []
    assert judge.restarts == 0


@pytest.mark.parametrize(
    ("text", "components"),
    [
        ("=True", {"task": 1.0}),
        ("=3", {"task": 3.0}),
        ("=-0.5", {"task": -0.5}),
        ("={'task': 1, 'format': False}", {"task": 1.0, "format": 0.0}),
        ("=__import__('fractions').Fraction(1, 4)", {"task": 0.25}),
        ("=__import__('numpy').float32(0.5)", {"task": 0.5}),
        ("=__import__('numpy').bool_(True)", {"task": 1.0}),
        ("=__import__('numpy').array(2)", {"task": 2.0}),
    ],
)
def test_numbers_and_dicts(file: str, text: str, components: dict[str, float]) -> None:
    with Judge(f"{file}:one", seconds=10) as judge:
        assert score(judge, text) == [Verdict(components)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("=float('nan')", r"nan \(float\)"),
        ("=float('inf')", r"inf \(float\)"),
        ("=-1e999", r"-inf \(float\)"),
        ("=10**400", r"int"),
        ("='1.0'", r"'1.0' \(str\)"),
        ("=None", "None"),
        ("=[1.0]", r"\[1.0\] \(list\)"),
        ("=1j", "complex"),
        ("={}", "{}"),
        ("={'a': None}", "None for the component 'a'"),
        ("={'a': float('nan'), 'b': 1}", "nan .*'a'"),
        ("={3: 1.0}", "component 3"),
        ("=type('Odd', (), {'__repr__': lambda s: 1/0})()", "cannot be shown"),
    ],
)
def test_values_that_are_no_reward(judge: Judge, text: str, value: str) -> None:
    before, bad, after = score(judge, "2", text, "2")
    assert (before, after) == (RIGHT, RIGHT)
    assert (bad.components, bad.status) == ({}, "env_error")
    assert_says(bad.error, rf"The scorer returned .*{value}.*: .*Return a finite number")


def test_a_list_for_one_answer_is_explained(judge: Judge) -> None:
    assert_says(score(judge, "=[1.0]")[0].error, r"returned \[1.0\].*write \(tasks, texts\)")


def assert_says(text: str, pattern: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + pattern):
        raise ValueError(text)


@pytest.mark.parametrize(("text", "said"), [("raise", "RuntimeError: no such unit"), ("exit", "SystemExit: 3")])
def test_exceptions_are_quoted(judge: Judge, text: str, said: str) -> None:
    bad, good = score(judge, text, "2")
    assert (bad.status, bad.components, good) == ("env_error", {}, RIGHT)
    assert said in bad.error
    assert "scorers.py" in bad.error
    assert judge.restarts == 0


@pytest.mark.parametrize("text", ["hang", "spin"])
def test_hung_answer_is_killed_and_the_others_keep_their_scores(judge: Judge, text: str) -> None:
    (before,) = score(judge, "pid")
    begun = time.monotonic()
    verdicts = score(judge, "2", text, "3", "2")
    took = time.monotonic() - begun
    assert verdicts[0] == RIGHT
    assert verdicts[2:] == [WRONG, RIGHT]
    assert (verdicts[1].status, verdicts[1].components) == ("timeout", {})
    assert_says(verdicts[1].error, r"longer than 1 s.*Raise task.seconds")
    assert 1.0 <= took < 60  # it would take 600
    assert not alive(int(before.components["task"]))
    assert judge.restarts == 1


def test_several_hangs_in_one_call(file: str) -> None:
    with Judge(f"{file}:one", seconds=0.5) as judge:
        assert [v.status for v in score(judge, "hang", "2", "hang", "hang", "2")] == [
            "timeout", "ok", "timeout", "timeout", "ok",
        ]  # fmt: skip
        assert judge.restarts == 3
        assert score(judge, "2") == [RIGHT]
        assert judge.restarts == 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_hung_scorer_has_started_is_killed_too(judge: Judge) -> None:
    assert score(judge, "child")[0].status == "timeout"
    assert until(lambda: not _sleepers("601"))


def _sleepers(argument: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{argument}\0".encode():
                found.append(str(path))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("text", "how"), [("die", "exit code 7"), ("crash", "SIGSEGV")])
def test_death_of_the_worker_is_an_error_of_that_answer(judge: Judge, text: str, how: str) -> None:
    first, bad, last = score(judge, "2", text, "3")
    assert (first, last) == (RIGHT, WRONG)
    assert (bad.status, bad.components) == ("env_error", {})
    assert how in bad.error
    assert judge.restarts == 1


def test_a_worker_that_died_between_calls_is_no_answer_s_fault(judge: Judge) -> None:
    (pid,) = score(judge, "pid")
    os.kill(int(pid.components["task"]), signal.SIGKILL)
    assert until(lambda: not alive(int(pid.components["task"])))
    assert score(judge, "2", "3") == [RIGHT, WRONG]
    assert judge.restarts == 1


def test_prints_do_not_reach_the_protocol(capfd, file: str) -> None:
    with Judge(f"{file}:one", seconds=5) as judge:
        verdicts = score(judge, "noise", "2", "input", "closed", "2")
    assert verdicts == [WRONG, RIGHT, Verdict({"task": 0.25}), WRONG, RIGHT]
    out, error = capfd.readouterr()
    assert out == ""
    assert "shell" in error
    assert "raw" in error


def test_a_garbled_reply_is_an_error_of_that_answer(judge: Judge) -> None:
    verdicts = score(judge, "2", "3", "2", "garble", "2")
    assert [v.status for v in verdicts] == ["ok", "ok", "ok", "env_error", "ok"]
    assert "garbled reply" in verdicts[3].error and judge.restarts == 1


def test_ctrl_c_does_not_reach_the_worker(judge: Judge) -> None:
    (before,) = score(judge, "pid")
    pid = int(before.components["task"])
    assert os.getpgid(pid) != os.getpgid(0)
    assert score(judge, "pid") == [before]


# ---- the batch form ------------------------------------------------------------------------------


@pytest.fixture
def batched(file: str):
    with Judge(f"{file}:batch", seconds=1.0) as judge:
        yield judge


def test_batch_form(batched: Judge) -> None:
    assert score(batched, "abc", "=0.5", "=None")[:2] == [
        Verdict({"task": 1.0, "length": 3.0}),
        Verdict({"task": 0.5}),
    ]
    assert score(batched, "abc", "=0.5", "=None")[2].status == "env_error"


def test_wrong_count_is_an_error_of_the_whole_call(batched: Judge) -> None:
    verdicts = score(batched, "short", "b", "c")
    assert {v.status for v in verdicts} == {"env_error"}
    assert_says(verdicts[0].error, "returned 1 values for 3 answers.*one value for each answer")
    assert_says(score(batched, "dict", "b")[0].error, "dict and not a list for 2 answers")


@pytest.mark.parametrize(("text", "status"), [("hang", "timeout"), ("raise", "env_error"), ("die", "env_error")])
def test_failure_of_a_batch_hits_the_call_and_not_the_next(batched: Judge, text: str, status: str) -> None:
    assert [(v.status, v.components) for v in score(batched, "a", text, "b")] == [(status, {})] * 3
    assert score(batched, "a")[0].status == "ok"
