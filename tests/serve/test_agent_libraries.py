"""Programs that are written with agent libraries run unchanged: tools over several turns, streams, both APIs, training.

Behind extras (`make test-extras`): pydantic-ai and smolagents; openai-agents where it is installed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from served import Puppet, context, played, written
from test_session import CHATML, hf

from gruppo.data import Episode, Source, Status

PYDANTIC = """
from pydantic_ai import Agent

async def agent(task, client):
    pressed = []
    box = Agent("MODEL:policy", instructions="be kind")

    @box.tool_plain
    def press(key: int) -> str:
        "Press a key."
        pressed.append(key)
        return "it opens"

    if STREAM:
        async with box.run_stream("go") as run:
            said = await run.get_output()
    else:
        said = (await box.run("go")).output
    return {"task": float(said == "done"), "key": float(sum(pressed))}
"""
TYPED = """
from pydantic import BaseModel
from pydantic_ai import Agent

class Found(BaseModel):
    number: int

def agent(task, client):
    return float(Agent("MODEL:policy", output_type=Found).run_sync("go").output.number)
"""
SMOLAGENTS = '''
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

def agent(task, client):
    pressed = []

    @tool
    def press(key: int) -> str:
        """Press a key.

        Args:
            key: which one
        """
        pressed.append(key)
        return "it opens"

    model = OpenAIServerModel(client.model, api_base=client.base_url, api_key=client.key)
    box = ToolCallingAgent([press], model, max_steps=4, verbosity_level=0, stream_outputs=STREAM)
    return {"task": float(box.run("go") == "done"), "key": float(sum(pressed))}
'''
OPENAI_AGENTS = """
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
set_default_openai_api("MODEL")

async def agent(task, client):
    pressed = []

    @function_tool
    def press(key: int) -> str:
        "Press a key."
        pressed.append(key)
        return "it opens"

    box = Agent(name="box", instructions="be kind", tools=[press], model=client.model)
    if STREAM:
        run = Runner.run_streamed(box, "go")
        async for _ in run.stream_events():
            pass
    else:
        run = await Runner.run(box, "go")
    return {"task": float(run.final_output == "done"), "key": float(sum(pressed))}
"""
CALL = '{"name": "press", "arguments": {"key": 3}}\n</tool_call>'
OPEN = "<tool_call>\n"


def one(folder: Path, text: str, said: list[str], model: str = "", stream: bool = False) -> tuple[Episode, Any]:
    """The episode of a program, to which the policy says these texts; and what the policy was asked."""
    tokenizer = hf(CHATML)
    engine = Puppet(said, tokenizer, 8192)
    text = text.replace("MODEL", model).replace("STREAM", str(stream))
    [episode] = played(context(engine, 200, tokenizer), written(folder, text), seconds=60)
    assert episode.status == Status.OK, episode.error
    for asked, turn in zip(engine.asked, episode.turns, strict=True):  # what is trained on is what was sampled
        ids = episode.sequences[turn.sequence].ids
        assert ids[: turn.start].tolist() == list(asked.prefix) and tokenizer.decode(ids[turn.start :]).startswith(
            turn.text
        )
    return episode, tokenizer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["openai", "openai-chat"])
def test_pydantic_ai(model: str, stream: bool, tmp_path: Path) -> None:
    """By its plain name it speaks the Responses API. The call, its result and the answer are one sequence."""
    pytest.importorskip("pydantic_ai")
    episode, tokenizer = one(tmp_path, PYDANTIC, [OPEN + CALL, "done"], model, stream)
    assert episode.reward == {"task": 1.0, "key": 3.0}
    [s] = episode.sequences
    assert len(episode.turns) == 2 and "it opens" in tokenizer.decode(s.ids[episode.turns[0].stop :])
    [[call], []] = [t.tools for t in episode.turns]
    assert (call.name, json.loads(call.arguments)) == ("press", {"key": 3})


@pytest.mark.parametrize("model", ["openai", "openai-chat"])
def test_an_answer_of_a_type_is_a_call_that_is_required(model: str, tmp_path: Path) -> None:
    """The opening of the call is given, so nobody decides it; a wrong type comes back as a result, and is mended."""
    pytest.importorskip("pydantic_ai")
    said = [f'{{"name": "final_result", "arguments": {{"number": {n}}}}}\n</tool_call>' for n in ('"x"', "7")]
    episode, tokenizer = one(tmp_path, TYPED, said, model)
    [s] = episode.sequences
    assert episode.reward == {"task": 7.0} and len(episode.turns) == 2
    for turn in episode.turns:
        assert tokenizer.decode(s.ids[: turn.start]).endswith(OPEN)
        assert (s.source[turn.start - len(OPEN) : turn.start] == Source.ENV).all()


@pytest.mark.parametrize("stream", [False, True])
def test_smolagents(stream: bool, tmp_path: Path) -> None:
    """It requires calls, and shows them as texts of its own in the next request: so each turn is a sequence."""
    pytest.importorskip("smolagents")
    final = '{"name": "final_answer", "arguments": {"answer": "done"}}\n</tool_call>'
    episode, _ = one(tmp_path, SMOLAGENTS, [CALL, final], stream=stream)
    assert episode.reward == {"task": 1.0, "key": 3.0} and len(episode.sequences) == len(episode.turns) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["responses", "chat_completions"])
def test_openai_agents(model: str, stream: bool, tmp_path: Path) -> None:
    """It wants an older websockets than the pins, so `make test-extras` does not install it."""
    pytest.importorskip("agents.run", reason="openai-agents is not installed")
    episode, _ = one(tmp_path, OPENAI_AGENTS, [OPEN + CALL, "done"], model, stream)
    assert episode.reward == {"task": 1.0, "key": 3.0} and len(episode.sequences) == 1 and len(episode.turns) == 2


def test_the_example_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/agent_library.py with a small random policy that has calls in its vocabulary: two steps of grpo."""
    pytest.importorskip("pydantic_ai")
    from phrases import phrase_folder

    from gruppo.cli import main
    from gruppo.data.store import load_episodes

    examples = Path(__file__).parents[2] / "examples"
    phrase_folder(tmp_path / "policy")
    monkeypatch.chdir(tmp_path)
    settings = ("prompts=2", "samples=4", "steps=2", "sampling.max_tokens=3", "eval.prompts=2", "save.episodes_every=1")
    settings += ("save.tensorboard=no", "threads=1", "save.name=a", "task.seconds=60", "accept=dead_groups")
    agent = f"task.agent={examples}/agent_library.py:agent"
    assert main(["train", f"task={examples}/boxes.jsonl", agent, "model=./policy", *settings]) == 0
    last = json.loads(Path("runs/a/metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2 and last["failed"] == 0
    found = [e for step in (1, 2) for e in load_episodes(Path(f"runs/a/episodes/step-{step:06d}.arrow"))]
    assert len(found) == 16 and {c.name for e in found for t in e.turns for c in t.tools} == {"try_key"}
    for e in (e for e in found if any(t.tools for t in e.turns)):  # a call and its result go on in the same sequence
        assert len(e.sequences) <= len(e.turns) and set(e.reward) == {"task"}
    assert any(len(e.sequences) < len(e.turns) for e in found)
