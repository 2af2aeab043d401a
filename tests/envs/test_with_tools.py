"""Tools for tasks of one answer: calls and results, the same scorer, failures of both sides, what models are shown."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_models import CHATML, chat_tokenizer
from tool_plays import (
    CALL,
    CHATML_TOOLS,
    MINE,
    context,
    played,
    said,
    starts_of,
)

from gruppo.cli import main
from gruppo.data import Source, Status
from gruppo.data.store import load_episodes
from gruppo.envs.base import Called, Seen
from gruppo.envs.format import format_of
from gruppo.envs.with_tools import READY, WithTools, after, reading
from gruppo.policies import CharTokenizer
from gruppo.tasks import Task, TaskConfig, load_task
from gruppo.tasks.judge import judge_of
from gruppo.tools import Limits, Tool, Toolbox, calculator
from gruppo.tools.calls import NO_JSON, calls_in, line_of
from gruppo.train.episodes import dialogue


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, no_picture: None) -> str:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("beside.py").write_text("ONE = 1\n")
    return "./mine.py:TOOLS"


# ---- what is a call


@pytest.mark.parametrize(
    "text, calls",
    [
        (CALL, 1),
        (f"I compute.\n<tool_call>\n{CALL}\n</tool_call>", 1),
        (f"{CALL} and {CALL}", 2),
        (f'{{"function": {CALL}}}', 1),
        ('{"name": "calculator", "parameters": {"expression": "5"}}', 1),
        ('{"name": "calculater", "arguments": {}}', 1),
        ("calculator 2 + 3", 1),
        ("first I compute\ncalculator 2 + 3", 1),
        ("calculator\n2 + 3", 1),
        ('calculator {"expression": "2 + 3"}', 1),
        ("calculator", 0),
        ("calculators 2", 0),
        ("5", 0),
        ('{"name": "bob"}', 0),
        ("{" * 1000, 0),
        ('{"x": ' * 500, 0),
        ('{"name": ["calculator"], "arguments": 3}', 0),
    ],
)
def test_what_is_a_call(text: str, calls: int) -> None:
    assert len(calls_in(text, Toolbox([calculator()]))) == calls


class Remote(Tool):
    """With a schema as a server may send it."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__("t", "Does it.", parameters, Limits())

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async def invoke(self, arguments: dict[str, Any]) -> Any:
        return arguments


Q, TEXT = ["q"], {"type": "string"}


@pytest.mark.parametrize(
    "parameters, form, bare, given",
    [
        ({}, "t", True, "x y"),
        ({"properties": {}}, "t", True, "x y"),
        ({"required": Q}, 't {"q": "value"}', False, "x y"),
        ({"properties": {"q": True}}, 't {"q": "value"}', True, "x y"),
        ({"properties": {"q": True}, "required": Q}, 't {"q": "value"}', False, "x y"),
        ({"properties": {"q": TEXT}, "required": Q}, "t Q", False, {"q": "x y"}),
        ({"properties": {"q": TEXT}}, "t [Q]", True, {"q": "x y"}),
        ({"properties": {"q": {"type": ["string", "null"]}}}, "t [Q]", True, {"q": "x y"}),
        ({"properties": {"q": {"anyOf": [True, TEXT, {"type": "null"}]}}}, "t [Q]", True, {"q": "x y"}),
        ({"properties": {"n": True, "q": TEXT}, "required": Q}, "t Q", False, {"q": "x y"}),
        ({"properties": {"n": {"type": "integer"}, "q": TEXT}}, 't {"n": "integer", "q": "string"}', True, "x y"),
    ],
)
def test_how_a_tool_of_any_schema_is_called(parameters: dict[str, Any], form: str, bare: bool, given: Any) -> None:
    """By its name alone if nothing must be given, and with a text if there is one argument that it can be."""
    box = Toolbox([Remote(**parameters)])
    assert line_of(box, described=False) == f"tools: {form}"
    assert calls_in("I do it.\nt", box) == ([("t", {})] if bare else [])
    assert calls_in("t x y", box) == [("t", given)]


@pytest.mark.parametrize("format", ["line", "tags", "json"])
@pytest.mark.parametrize("text", ["", "\n", "5", "{", "<action>", "{}" * 300, '{"answer": "5"}', CALL, "\x00"])
def test_no_format_raises(format: str, text: str) -> None:
    env = WithTools("calculator")
    env.reset(Task("t", "", "", 1, "t"))
    read = reading(format_of(format))(text)
    assert isinstance(env.step(read.action), Seen) and not env.seen.error


@pytest.mark.parametrize(
    "format, call, answer, judged",
    [
        ("line", "calculator 97+58", "I think\n155", "I think\n155"),
        ("line", CALL, " 155 ", " 155 "),
        ("tags", "<think>hm</think><action>calculator 97+58</action>", "<action>155</action>", "155"),
        ("tags", f"<action>{CALL}</action>", "<think>so</think><action>155</action>", "155"),
        ("json", CALL, '{"answer": 155}', "155"),
        ("json", CALL, '{"answer": true}', "true"),
        ("json", CALL, '{"answer": {"e": [null, "x"]}}', '{"e": [null, "x"]}'),
    ],
)
def test_each_format_calls_and_answers(format: str, call: str, answer: str, judged: str) -> None:
    e = said(call, answer, format=format)
    assert e.text == judged and e.status == Status.OK and not e.reward
    assert [len(t.tools) for t in e.turns] == [1, 0] and not any(t.flags for t in e.turns)


# ---- episodes


def test_the_result_is_read_and_the_answer_is_judged_as_before() -> None:
    tasks = load_task("addition", tools="calculator")
    e = said("calculator 97+58", "155")
    [s] = e.sequences
    assert CharTokenizer().decode(s.ids) == "tools: calculator EXPRESSION\n\n97+58=calculator 97+58155155"
    seen = CharTokenizer().decode(s.ids[s.source == Source.ENV])
    assert seen == "tools: calculator EXPRESSION\n\n97+58=155"
    [call] = e.turns[0].tools
    assert (call.name, json.loads(call.arguments), call.ok) == ("calculator", {"expression": "97+58"}, True)
    assert (e.turns[0].state, e.turns[1].state) == (READY, after(READY, "155"))
    assert dialogue(e) == "> calculator 97+58\n155\n> 155"
    with judge_of(tasks, TaskConfig(tools="calculator")) as judge:
        verdicts = asyncio.run(judge.score([(tasks.train[0], e.text), (tasks.train[0], "154")]))
    assert [v.components for v in verdicts] == [{"task": 1.0}, {"task": 0.0}]
    assert load_task("addition").scorer == tasks.scorer


def test_without_a_call_it_is_the_task_as_it_was() -> None:
    e = said("155")
    assert e.text == "155" and len(e.turns) == 1 and dialogue(e) == "155"
    assert said("15…").status == Status.TRUNCATED  # cut off in the middle of its answer


def test_states_are_equal_where_the_same_was_said_and_do_not_grow() -> None:
    """Also in another order, or once more, is something else."""

    def states(*actions: str) -> list[str]:
        env = WithTools("calculator")
        env.reset(Task("t", "", "", 1, "t", meta={"tool_turns": 400}))
        return [env.step(a).state for a in actions]

    ways = [("1", "2"), ("2", "1"), ("1", "1"), ("1",), ("2",), ("1", "2", "2")]
    assert len({states(*(f"calculator {n}" for n in way))[-1] for way in ways}) == len(ways)
    assert states("calculator 1+1", "calculator 3") == states("calculator 2", "calculator 4-1")
    assert len({len(state) for state in states(*["calculator 10**400"] * 300)}) == 1
    e = said("calculator 1+1", "calculator 1+1", "<tool_call>{oh", "2")
    assert dialogue(e) == f"> calculator 1+1\n2\n> calculator 1+1\n2\n> <tool_call>{{oh\n{NO_JSON}\n> 2"


def test_turns_run_out_with_no_reward() -> None:
    e = said(*["calculator 1+1", "", "calculator 1/0", "calculator 2+2"])
    assert e.status == Status.TRUNCATED and e.reward == {"task": 0.0}
    assert [[c.ok for c in t.tools] for t in e.turns] == [[True], [], [False], [True]]
    assert [set(t.flags) for t in e.turns] == [set(), {"void"}, set(), set()]
    assert said("calculator 1+1", turns=1).reward == {"task": 0.0}  # of a method


@pytest.mark.parametrize(
    "actions", [("", "calculator 1+1", ""), ("", "", ""), ("calculator 1+1", "<tool_call>{oh", ""), ("", " ", "   ")]
)
def test_what_was_seen_is_shown_however_the_episode_ends(actions: tuple[str, ...]) -> None:
    answered, out = dialogue(said(*actions, "155")), dialogue(said(*actions, "calculator 2+2"))
    assert answered.removesuffix("> 155") == out.removesuffix("> calculator 2+2\n4")
    assert answered.count("nothing happens") == sum(not a.strip() for a in actions)


def test_failures_of_the_agent_are_observations(mine: str) -> None:
    wrong = ["double x", '{"name": "dubble", "arguments": {"n": 1}}', "<tool_call>{oh"]
    e = said(*wrong, "picky no", tools=mine)
    texts = e.text.splitlines()
    assert e.status == Status.TRUNCATED and e.reward == {"task": 0.0}
    assert "the arguments are no JSON" in texts[1] and texts[1].endswith('Write an object such as {"n": "integer"}.')
    assert "Did you mean 'double'?" in texts[3] and "no JSON object" in texts[5] and texts[7] == "picky: say please"
    assert [set(t.flags) for t in e.turns] == [{"invalid"}] * 3 + [set()]


@pytest.mark.parametrize(
    "call, status, why",
    [("hangs x", Status.TIMEOUT, "no answer within 0.05 s"), ("breaks x", Status.ENV_ERROR, "out of order")],
)
def test_failures_of_ours_are_statuses(mine: str, call: str, status: Status, why: str) -> None:
    e = said('double {"n": 4}', call, "155", tools=mine)
    assert e.status == status and why in e.error and not e.reward and not e.status.judged
    assert [[c.ok for c in t.tools] for t in e.turns] == [[True], [False]]


def test_what_a_tool_says_is_made_encodable(mine: str) -> None:
    """Neither a character that the model does not have nor the name of a special token ends the run."""
    e = said("picky please", "155", tools=mine)
    assert "\\u2264 < |im_end|> thanks" in CharTokenizer().decode(e.sequences[0].ids)
    tokenizer = hf(CHATML)
    e = said("picky please", "155", tools=mine, tokenizer=tokenizer)
    assert "< |im_end|> thanks" in tokenizer.decode(e.sequences[0].ids)


def test_a_snapshot_is_a_replay() -> None:
    one, two = WithTools("calculator"), WithTools("calculator")
    task = load_task("addition", tools="calculator", turns=3).train[0]
    one.reset(task)
    one.step("calculator 2+3")
    kept = one.snapshot()
    after = [one.step("calculator 1"), one.step("calculator 2"), one.step("5")]
    assert two.restore(kept) == kept[-1] and [two.step(a) for a in ("calculator 1", "calculator 2", "5")] == after
    assert after[1].truncated and not after[2].rewards and not after[2].valid


def test_slow_tools_wait_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are called before one has answered."""
    monkeypatch.chdir(tmp_path)
    text = (
        '"""Meets."""\n    here.append(n)\n    while len(here) < 8:\n        await asyncio.sleep(0.001)\n    return n'
    )
    Path("slow.py").write_text(f"import asyncio\nhere = []\n\nasync def meet(n: int) -> int:\n    {text}\n")
    ctx, play = context([[f'meet {{"n": {i}}}', "5"] for i in range(8)], tools="./slow.py:meet")
    tasks = load_task("addition", tools="./slow.py:meet").train
    found = played(ctx, play, starts_of(ctx, play, [tasks[i] for i in range(8)]))
    assert [e.turns[1].state for e in found] == [after(READY, str(i)) for i in range(8)]


# ---- what models are shown


def hf(template: str) -> Any:
    from gruppo.policies.hf_tokenizer import HFTokenizer

    return HFTokenizer(chat_tokenizer(template), name="chat")


def test_a_template_with_tools_shows_them_and_their_results() -> None:
    tokenizer = hf(CHATML_TOOLS)
    ctx, play = context([["calculator 97+58", "155"]], tokenizer, tools="calculator")
    [task] = [load_task("addition", tools="calculator").train[0]]
    [e] = played(ctx, play, starts_of(ctx, play, [task]))
    text = tokenizer.tok.decode(e.sequences[0].ids)
    assert text.startswith("(calculator)<|im_start|>user\n97+58=<|im_end|>") and "tools:" not in text
    assert "<|im_start|>tool\n155<|im_end|>\n<|im_start|>assistant\n155" in text


def test_a_template_without_tools_has_a_line_with_what_they_do() -> None:
    tokenizer = hf(CHATML)
    _, play = context([], tokenizer, tools="calculator")
    task = play.shown(load_task("addition", tools="calculator", system="Be short.").train[0])
    assert task.system.startswith("Be short.\nTo use a tool, write") and "Computes an arithmetic" in task.system
    assert task.prompt == "97+58=" and "\n" not in task.system.removeprefix("Be short.\n")
    after = tokenizer.follow([play.tools.message(tokenizer, Seen("5", tools=(Called("calculator"),)))], None)
    assert "<|im_start|>user\n5<|im_end|>" in tokenizer.tok.decode(after)


def test_the_line_names_the_arguments(mine: str) -> None:
    from gruppo.tools import load_tools

    assert line_of(load_tools(f"calculator,{mine}"), described=False) == (
        'tools: calculator EXPRESSION, double {"n": "integer"}, hangs WORD, breaks WORD, picky WORD'
    )


# ---- settings


@pytest.mark.parametrize(
    "settings, said",
    [
        (["task.tools=calculater"], "there is no tool 'calculater'. Did you mean 'calculator'?"),
        (["task.tools=,"], "names no tool"),
        (["task.tools=./mine.py:TOOL"], "Did you mean 'TOOLS'?"),
        (["task.tools=./mine.py:NUMBER"], "which is int and no tool"),
        (["task.tools=./mine.py:TOOLS,./mine.py:double"], "two tools have the name 'double'"),
        (["task.tools=calculator", "task=household"], "household is played in its own environment"),
        (["task.tools=calculator", "task.options.turns=0"], "task.options.turns=0 is no whole number >= 1"),
        (["task.tools=calculator", "task.options.turn=2"], "addition has no option turn"),
        (["task.tools=calculator", "task.agent=./mine.py:double"], "with task.agent the program calls its own tools"),
        (["task.tools=calculator", "task.format=jsn"], "Did you mean 'json'?"),
        (["task.tools=calculator", "method=ufo"], "nothing says whether another try is needed"),
    ],
)
def test_settings_that_cannot_be(mine: str, settings: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "steps=1", "prompts=2", "samples=2", "threads=1", "accept=dead_groups,mask", *settings]) == 2
    assert said in capsys.readouterr().err


def test_a_mixture_gives_tools_to_its_tasks_of_one_answer() -> None:
    made = load_task("mix:addition+guess", tools="calculator")
    assert made.env == "guess+tools:calculator"
    assert {made.train[i].meta["env"] for i in range(4)} == {"guess", "tools:calculator"}


# ---- runs

SMALL = ("prompts=2", "samples=2", "eval.every=0", "eval.prompts=2", "threads=1", "save.tensorboard=no")
SMALL += ("accept=dead_groups,mask", "sampling.max_tokens=6")


def rows(name: str) -> list[dict[str, Any]]:
    kept = [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k} for row in kept]


def test_two_steps_of_training_resume_bit_for_bit(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    every = (*SMALL, "task=addition", "task.tools=calculator", "steps=2", "save.checkpoint_every=1")
    for name in "ab":
        assert main(["train", *every, f"save.name={name}"]) == 0
    assert "tools calculator, at most 6 turns" in capsys.readouterr().out
    shutil.rmtree("runs/b/checkpoints/step-000002")
    Path("runs/b/summary.json").unlink()
    assert main(["train", "--resume", "runs/b"]) == 0
    assert rows("a") == rows("b") and rows("a")[-1]["failed"] == 0
    assert main(["eval", "runs/a", "eval.prompts=2"]) == 0


def test_calls_are_counted_and_paid_in_a_run(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy cannot spell a call yet: whatever has a 1 in it is one here."""
    monkeypatch.setattr(
        "gruppo.envs.with_tools.calls_in", lambda text, box: [("double", {"n": 1})] if "1" in text else []
    )
    every = (*SMALL, "task=addition", f"task.tools={mine}", "task.options.turns=3", "method=otc", "steps=1")
    assert main(["train", *every, "save.episodes_every=1", "prompts=8", "save.name=a"]) == 0
    found = load_episodes(Path("runs/a/episodes/step-000001.arrow"))
    calls = [sum(len(t.tools) for t in e.turns) for e in found]
    assert rows("a")[-1]["tool_calls"] == pytest.approx(np.mean(calls)) and max(calls) > 0
    assert all("efficient" in e.reward for e in found)


def test_a_run_goes_on_beside_a_tool_that_breaks(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those episodes are left out: they have a status and no reward."""
    monkeypatch.setattr(
        "gruppo.envs.with_tools.calls_in", lambda text, box: [("breaks", {"word": text})] if "1" in text else []
    )
    every = (*SMALL, "task=addition", "task.tools=./mine.py:TOOLS", "steps=1", "prompts=8", "save.episodes_every=1")
    assert main(["train", *every, "save.name=a"]) == 0
    found = load_episodes(Path("runs/a/episodes/step-000001.arrow"))
    broken = [e for e in found if e.status == Status.ENV_ERROR]
    assert 0 < len(broken) < len(found) and not any(e.reward for e in broken)
    assert all("task" in e.reward for e in found if e.status.judged)
    assert rows("a")[-1]["failed"] == pytest.approx(len(broken) / len(found))
