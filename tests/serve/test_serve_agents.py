"""Programs of the user as agents: what they say is learned from, and what goes wrong is a status of one episode."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from served import Puppet, context, played, starts, written

from gruppo.data import Source, Status
from gruppo.engines import NativeEngine
from gruppo.engines.base import NotFinite
from gruppo.policies import CharTokenizer, TinyConfig, TinyTransformer
from gruppo.serve.player import Agents
from gruppo.serve.programs import programs_of
from gruppo.stages.play import Fork, one_answer

ECHO = """
def agent(task, client):
    return float(client.say(task.messages) == "ok")
"""
TWO = """
def agent(task, client):
    talk = list(task.messages)
    for word in ("again", "once more"):
        talk += [client.ask(talk), {"role": "user", "content": word}]
    return {"task": 1.0, "length": float(len(talk))}
"""


@pytest.fixture(scope="module")
def policy() -> TinyTransformer:
    config = TinyConfig(vocab=CharTokenizer().vocab, dim=16, layers=2, heads=2, kv_heads=1, ffn=16, context=256)
    return TinyTransformer(config).to(torch.float64)


def engine_of(policy: TinyTransformer, **options: Any) -> NativeEngine:
    return NativeEngine({"policy": policy}, eos=CharTokenizer.eos, decode=CharTokenizer().decode, **options)


def test_an_agent_that_only_asks_is_as_no_agent(policy: TinyTransformer, tmp_path: Path) -> None:
    """The same tokens as one answer to the prompt: the random keys are the same."""
    ctx = context(engine_of(policy))

    async def without() -> list[Any]:
        found = {i: e async for i, e in one_answer(ctx, starts(ctx, 4))}
        return [found[i] for i in range(4)]

    for a, b in zip(asyncio.run(without()), played(ctx, written(tmp_path, ECHO), 4), strict=True):
        assert (a.uid, a.task, a.group, a.asked) == (b.uid, b.task, b.group, b.asked)
        assert a.sequences[0].ids.tolist() == b.sequences[0].ids.tolist()
        np.testing.assert_allclose(a.sequences[0].logp, b.sequences[0].logp, atol=1e-6)


def test_sixteen_at_once_in_one_batch(policy: TinyTransformer, tmp_path: Path) -> None:
    """What is trained on is what was sampled; keys do not depend on the order, and only new tokens are computed."""
    runs = []
    for lockstep in (True, False):
        engine = engine_of(policy, lockstep=lockstep)
        ctx = context(engine)
        runs.append(played(ctx, written(tmp_path, TWO), 16))
        for e in runs[-1]:
            assert e.status == Status.OK and set(e.reward) == {"task", "length"}
            [s] = e.sequences
            for t in e.turns:
                [logp] = engine.logprobs([s.ids[: t.start]], [s.ids[t.start : t.stop]])
                np.testing.assert_allclose(logp, s.logp[t.start : t.stop], atol=1e-6)
        new = sum(len(s.ids) for e in runs[-1] for s in e.sequences)
        assert engine.prefilled + engine.decoded <= 1.05 * new
    for a, b in zip(*runs, strict=True):
        assert a.sequences[0].ids.tolist() == b.sequences[0].ids.tolist()


def test_agents_wait_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for three others. One after another, none would end."""
    (tmp_path / "here").mkdir()
    meet = (
        f"    here = pathlib.Path({str(tmp_path / 'here')!r})\n"
        "    (here / str(os.getpid())).touch()\n"
        "    while len(list(here.iterdir())) < 4: time.sleep(0.01)\n"
    )
    agent = written(tmp_path, "import os, pathlib, time\n" + ECHO.replace("    return", meet + "    return"))
    assert all(e.reward == {"task": 1.0} for e in played(context(Puppet()), agent, 16))


WRONG = {
    "raise KeyError('lost')": (Status.ENV_ERROR, "KeyError: 'lost'"),
    "import sys; sys.exit(0)": (Status.ENV_ERROR, "SystemExit"),
    "import os; os._exit(3)": (Status.ENV_ERROR, "exit code 3"),
    "import os; os.kill(os.getpid(), 11)": (Status.ENV_ERROR, "SIGSEGV"),
    "import time; time.sleep(600)": (Status.TIMEOUT, "Raise task.seconds"),
    "return float('nan')": (Status.ENV_ERROR, "The agent returned nan"),
    "return None": (Status.ENV_ERROR, "The agent returned None"),
    "return 'good'": (Status.ENV_ERROR, "The agent returned 'good'"),
    "return {'style': 1.0}": (Status.ENV_ERROR, "none called `task`"),
    "return {}": (Status.ENV_ERROR, "The agent returned {}"),
}


def test_what_goes_wrong_is_a_status_and_no_reward(tmp_path: Path) -> None:
    """Of that episode alone: between two of them, one goes well."""
    lines = [f"    if task.uid == 't{2 * i}': {body}" for i, body in enumerate(WRONG)]
    text = "\n".join(["def agent(task, client):", "    client.say(task.messages)", *lines, "    return 1", ""])
    found = played(context(Puppet()), written(tmp_path, text), 2 * len(WRONG), seconds=10.0)
    for bad, (body, (status, said)) in zip(found[::2], WRONG.items(), strict=True):
        assert (bad.status, bad.reward) == (status, {}) and said in bad.error and "scorer" not in bad.error, body
        assert len(bad.turns) == 1  # what was said is kept, and not judged
        assert "zygote.py" not in bad.error  # the author's own lines only
    assert all(good.reward == {"task": 1.0} for good in found[1::2])


def test_an_agent_that_never_calls_has_nothing_to_learn_from(tmp_path: Path) -> None:
    [e] = played(context(Puppet()), written(tmp_path, "def agent(task, client):\n    return 1.0\n"))
    assert e.status == Status.ENV_ERROR and "never called the policy" in e.error and not e.reward


def test_waiting_for_the_policy_is_not_the_agents_time(tmp_path: Path) -> None:
    class Slow(Puppet):
        async def ask(self, request: Any) -> Any:
            await asyncio.sleep(2.5)
            return await super().ask(request)

    [e] = played(context(Slow()), written(tmp_path, ECHO), seconds=2.0)
    assert e.reward == {"task": 1.0}


def test_a_hanging_agent_is_killed_with_its_children_and_so_are_those_it_leaves(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = (
        "import subprocess, time\n"
        "def agent(task, client):\n"
        "    client.say(task.messages)\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        f"    open({str(pids)!r}, 'a').write(f'{{child.pid}}\\n')\n"
        "    if task.uid == 't0': time.sleep(60)\n"
        "    return 1.0\n"
    )
    hung, left = played(context(Puppet()), written(tmp_path, text), 2, seconds=2.0)
    assert hung.status == Status.TIMEOUT and left.reward == {"task": 1.0}
    assert len(pids.read_text().split()) == 2
    assert all(ended(int(pid)) for pid in pids.read_text().split())


def ended(pid: int) -> bool:
    """Within a moment: a zombie counts as ended."""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (OSError, IndexError):
            return True
        time.sleep(0.05)
    return False


def test_a_call_after_the_end_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """One agent keeps its address; another one calls it when the first has ended."""
    text = (
        "import pathlib, time\n"
        f"kept = pathlib.Path({str(tmp_path)!r}, 'kept')\n"
        "def agent(task, client):\n"
        "    client.say(task.messages)\n"
        "    if task.uid == 't0':\n"
        "        kept.write_text(client.base_url)\n"
        "        return 1.0\n"
        "    from gruppo.serve.client import Client\n"
        "    while not kept.exists() or not kept.read_text(): time.sleep(0.02)\n"
        "    time.sleep(0.5)\n"
        "    try: Client(kept.read_text(), 'x', 'policy').say(task.messages)\n"
        "    except ValueError as error: return float('episode is over' in str(error))\n"
    )
    first, second = played(context(Puppet()), written(tmp_path, text), 2)
    assert len(first.turns) == len(second.turns) == 1 and second.reward == {"task": 1.0}


def test_episodes_are_told_apart_by_path_key_and_header(tmp_path: Path) -> None:
    text = """
import json, urllib.error, urllib.request

def status(url, headers, task):
    body = json.dumps({"messages": task.messages}).encode()
    try:
        return urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, headers)).status
    except urllib.error.HTTPError as error:
        return error.code

def agent(task, client):
    root, bare = client.base_url.removesuffix("/" + client.key), client.base_url.partition("/v1")[0]
    key, header = {"Authorization": "Bearer " + client.key}, {"X-Gruppo-Episode": client.key}
    ways = [(client.base_url, {}), (root, key), (root, header), (bare, header), (root, {"Authorization": "Bearer x"})]
    return float([status(*way, task) for way in ways] == [200] * 4 + [401])
"""
    found = played(context(Puppet()), written(tmp_path, text), 3)
    assert [e.reward for e in found] == [{"task": 1.0}] * 3 and [len(e.turns) for e in found] == [4] * 3


def test_async_agents_and_their_own_luck(tmp_path: Path) -> None:
    text = (
        "import asyncio, random\n"
        "async def agent(task, client):\n"
        "    said = await asyncio.gather(*(asyncio.to_thread(client.say, task.messages) for _ in range(3)))\n"
        "    return {'task': len(said), 'luck': random.random()}\n"
    )
    agent = written(tmp_path, text)
    first, again = (played(context(Puppet()), agent, 3) for _ in range(2))
    assert [e.reward for e in first] == [e.reward for e in again] and all(len(e.sequences) == 3 for e in first)
    assert len({e.reward["luck"] for e in first}) == 3


COMMAND = """
import json, os, urllib.request
task = json.loads(os.environ["GRUPPO_TASK"])
body = json.dumps({"model": os.environ["GRUPPO_MODEL"], "messages": task["messages"]}).encode()
head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
said = json.load(urllib.request.urlopen(urllib.request.Request(url, body, head)))
print("thinking")
"""


ENDS = {
    'print(json.dumps({"task": 1, "more": 0.5}))': (Status.OK, ""),
    "print(float(said['choices'][0]['message']['content'] == 'ok'))": (Status.OK, ""),
    "pass": (Status.ENV_ERROR, "'thinking' and no JSON"),
    "print('NaN')": (Status.ENV_ERROR, "returned nan"),
    "raise OSError('no')": (Status.ENV_ERROR, "exit code 1, so the episode has no reward. It said:"),
    "import time; time.sleep(60)": (Status.TIMEOUT, "Raise task.seconds"),
}


def test_commands(tmp_path: Path) -> None:
    file = tmp_path / "my agent.py"
    file.write_text(COMMAND + "\n".join(f"if task['uid'] == 't{i}': {end}" for i, end in enumerate(ENDS)))
    found = played(context(Puppet()), f"{sys.executable} '{file}'", len(ENDS), seconds=4.0)
    for e, (end, (status, said)) in zip(found, ENDS.items(), strict=True):
        assert e.status == status and said in e.error and len(e.turns) == 1, end
        assert (e.reward.get("task") == 1.0) == (status == Status.OK)


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("{0}/mine.py:agnet", "Did you mean 'agent'?"),
        ("{0}/mine.py", "names a file and no function"),
        ("{0}/none.py:agent", "there is no file"),
        ("{0}/mine.py:NUMBER", "cannot be called"),
        ("{0}/mine.py:three", "def agent"),
        ("{0}/broken.py:agent", "importing it failed"),
        ("no-such-program here", "there is no program"),
        ("python 'unclosed", "Close its quotes"),
        (" ", "without words"),
    ],
)
def test_agents_that_cannot_be_run_are_refused_at_once(agent: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ECHO + "\nNUMBER = 1\ndef three(a, b, c): pass\n")
    (tmp_path / "broken.py").write_text("import nothing_like_this\n")
    with pytest.raises(ValueError, match=said):
        programs_of(agent.format(tmp_path)).start()


def test_forks_windows_and_hints_are_refused(tmp_path: Path) -> None:
    ctx, play = context(Puppet()), Agents(programs_of(written(tmp_path, ECHO)))

    def refused(given: Any, said: str, window: int = 0) -> None:
        async def first() -> None:
            async for _ in play(ctx, given, window):
                pass

        with pytest.raises(ValueError, match=said):
            asyncio.run(first())

    [start] = starts(ctx)
    refused([start], "from the beginning to the end", window=4)
    [e] = played(ctx, written(tmp_path, ECHO))
    refused([Fork(e, len(e.sequences[0].ids), 1, ctx.sampling)], "from the beginning to the end")
    start.prompt.ids[1] += 1
    refused([start], "method.prompting")


def test_a_limit_of_turns(tmp_path: Path) -> None:
    text = (
        "def agent(task, client):\n"
        "    try:\n"
        "        while True: client.say(task.messages)\n"
        "    except ValueError as error: return float('made its 3 calls' in str(error))\n"
    )
    [e] = played(context(Puppet()), written(tmp_path, text), how={"turns": 3})
    assert len(e.turns) == 3 and e.reward == {"task": 1.0}


def test_an_engine_that_fails_ends_the_draw(tmp_path: Path) -> None:
    class Broken(Puppet):
        async def ask(self, request: Any) -> Any:
            raise NotFinite("logits are not finite")

    with pytest.raises(NotFinite):
        played(context(Broken()), written(tmp_path, ECHO), 3)


def test_policy_tokens_and_prompts_are_told_apart(tmp_path: Path) -> None:
    [e] = played(context(Puppet(["7…", "8"])), written(tmp_path, TWO))
    [s] = e.sequences
    assert CharTokenizer().decode(s.ids[s.source == Source.POLICY]) == "78"
    assert e.text == "> 7\nagain\n> 8" and [t.text for t in e.turns] == ["7", "8"]
