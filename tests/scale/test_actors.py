"""Samplers and judges that are actors, with a Ray of one process: what is asked, asked again, and shared."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from one_process import OneProcess
from safetensors.torch import load_file

from gruppo.cli import main
from gruppo.engines import Completion, EngineConfig, NativeEngine, Request, complete
from gruppo.methods import all_methods, method
from gruppo.policies import load_policy, load_tokenizer
from gruppo.scale.judges import JudgeActor, Judges
from gruppo.scale.samplers import Question, Samplers, Team, refusals, samplers_of
from gruppo.stages import Sampling
from gruppo.stages.record import to_table
from gruppo.tasks import Task, TaskConfig
from gruppo.tasks.base import Scorer
from gruppo.train.config import RunConfig


def sampling(n: int, config: EngineConfig | None = None) -> tuple[Samplers, NativeEngine, OneProcess]:
    """An engine whose samplers are actors, and one in this process with weights of its own, which are the same."""
    run = RunConfig(method=method("grpo"), threads=1)
    told = {"sampling": Sampling(max_tokens=8), "seed": 0}
    cluster: Any = OneProcess(n)
    team = Team(cluster, to_table(run), told, config or EngineConfig())
    tokenizer, device = load_tokenizer("tiny"), torch.device("cpu")
    models = [{"policy": load_policy("tiny", torch.float32, device, 0)} for _ in range(2)]
    here, alone = (NativeEngine(m, eos=tokenizer.stops, decode=tokenizer.decode) for m in models)
    return Samplers(team, lambda role: True, here), alone, cluster


def questions(engine: Samplers, i: int) -> list[Question]:
    return [given[0] for given in engine.team.actors[i].asked if isinstance(given[0], Question)]


def requests(n: int, start: int = 0) -> list[Request]:
    """Groups of two with the same prefix."""
    rng = np.random.default_rng(start)
    prefixes = [rng.integers(3, 20, 4 + i % 3) for i in range((n + 1) // 2)]
    return [Request(prefixes[i // 2], 6 + i % 4, key=start + i) for i in range(n)]


def same(a: list[Completion], b: list[Completion]) -> bool:
    return [(c.ids.tolist(), c.logp.tolist(), c.version.tolist()) for c in a] == [
        (c.ids.tolist(), c.logp.tolist(), c.version.tolist()) for c in b
    ]


def move(*engines: NativeEngine) -> None:
    for engine in engines:
        with torch.no_grad():
            for p in engine.models["policy"].parameters():  # type: ignore[attr-defined]
                p.mul_(1.25)
        engine.sync(engine.version + 1, engine.models)


def test_an_actor_draws_what_this_process_would_also_after_new_weights() -> None:
    far, near, _ = sampling(1)
    first = asyncio.run(complete(far, requests(9)))
    assert same(first, asyncio.run(complete(near, requests(9)))) and far.sampled == near.sampled > 0
    move(far, near)
    second = asyncio.run(complete(far, requests(9)))
    assert same(second, asyncio.run(complete(near, requests(9)))) and not same(first, second)
    assert second[0].version.tolist() == [1] * len(second[0].ids)


async def talk(
    engine: NativeEngine, number: int, between: Callable[[int], None] = lambda turn: None
) -> list[Completion]:
    """Three turns that go on from what is kept of the turn before."""
    ids, out = np.arange(3, 9 + number % 3), list[Completion]()
    for turn in range(3):
        out.append(await engine.ask(Request(ids, 5, key=number)))
        ids = np.concatenate([ids, out[-1].ids, np.full(1 + number % 2, 7)])
        between(turn)
    return out


def talked(engine: NativeEngine, between: Callable[[int], None] = lambda turn: None) -> list[Completion]:
    async def all_of_them() -> list[list[Completion]]:
        return await engine.together([talk(engine, i, between if i == 0 else lambda turn: None) for i in range(4)])

    return [c for dialogue in asyncio.run(all_of_them()) for c in dialogue]


@pytest.mark.parametrize("turn", [0, 1])
def test_dialogues_are_the_same_bits_also_if_the_sampler_dies_between_two_turns(turn: int) -> None:
    far, near, cluster = sampling(1)
    plain = talked(near)
    assert same(talked(far), plain)
    far.forget()
    near.forget()

    def die(at: int) -> None:
        if at == turn:
            far.team.actors[0].die()

    assert same(talked(far, die), plain)
    assert cluster.said == ["sampler 0 died and was replaced; what it was asked, it was asked again"]


def test_what_was_kept_is_what_makes_those_bits() -> None:
    """Else the test above could not fail: without its past, a replacement computes prompts another way."""
    far, near, _ = sampling(1)

    def die(at: int) -> None:
        far.team.actors[0].die()
        far.past[0].clear()

    again, plain = talked(far, die), talked(near)
    assert [c.ids.tolist() for c in again] == [c.ids.tolist() for c in plain] and not same(again, plain)


def test_the_calls_of_a_wave_are_one_question() -> None:
    far, _, _ = sampling(1)
    talked(far)
    assert [len(q.asked) for q in questions(far, 0)] == [4, 4, 4]


def test_several_samplers_draw_the_same_and_share_the_work() -> None:
    far, near, _ = sampling(2)
    found, plain = (asyncio.run(complete(engine, requests(12))) for engine in (far, near))
    assert [c.ids.tolist() for c in found] == [c.ids.tolist() for c in plain]
    gap = max(float(np.abs(a.logp - b.logp).max()) for a, b in zip(found, plain, strict=True))
    assert gap <= 1e-5
    parts = [q.asked[0][0] for i in range(2) for q in questions(far, i)]
    assert [len(part) for part in parts] == [6, 6]
    homes = [{r.prefix.tobytes() for r in part} for part in parts]
    assert not homes[0] & homes[1]  # requests that begin alike are computed together


def test_what_an_actor_cannot_do_is_not_promised() -> None:
    far, near, _ = sampling(1)
    assert near.promises - far.promises == {"steer", "fork", "shared"}


def test_bad_requests_fail_at_the_call_and_those_of_the_actor_as_they_are() -> None:
    far, _, _ = sampling(1)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        far.generate([Request(np.array([10**6]), 2, 0)])
    far.sync(1, far.models)
    far.stored = far.team.ray.put({"policy": {}})
    with pytest.raises(ValueError, match="belong to another model"):
        asyncio.run(complete(far, requests(1)))


def test_a_call_that_nobody_waits_for_is_not_answered() -> None:
    far, _, _ = sampling(1)

    async def leave() -> list[Any]:
        task = asyncio.create_task(complete(far, requests(4)))
        for _ in range(4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.01)
        return [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]

    assert not asyncio.run(leave()) and not far._open


# ---- runs

REWARD = (
    "def even(task, text):\n    return float(sum(map(ord, text)) % 2 == 0)\n"
    "even.answer = lambda task, text: str(sum(map(ord, text)) % 3)\n"
)


def weights_after(folder: Path, name: str, *words: str) -> dict[str, Any]:
    """Two steps of a method; what it has learned."""
    roles = [f"method.cast.{r}=tiny" for r, role in all_methods()[name].cast.items() if not role.start]
    light = ["method.update.critic_epochs=3"] if name == "archer" else []
    few = ["prompts=2", "samples=4", "steps=2", "eval.prompts=2", "threads=1", "show=0", "save.tensorboard=no"]
    place = [f"save.folder={folder.parent}", f"save.name={folder.name}"]
    assert main(["train", f"method={name}", *few, *roles, *light, *place, *words]) == 0
    return load_file(folder / "policy/model.safetensors")


def unlike(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Names of weights that differ between a run in one process and one whose sampler is an actor."""
    (tmp_path / "even.py").write_text(REWARD)
    words = words or ("model=tiny-random", f"task.reward={tmp_path / 'even.py'}:even")
    plain = weights_after(tmp_path / "plain", name, *words)
    cluster = OneProcess()
    monkeypatch.setattr("gruppo.scale.cluster.current", lambda: cluster)
    monkeypatch.setattr("gruppo.train.trainer.opened", lambda *_: nullcontext())
    far = weights_after(tmp_path / "far", name, *words, "scale.address=local", "scale.samplers=1")
    assert questions(SimpleNamespace(team=cluster.team), 0)  # type: ignore[arg-type]
    return [k for k in plain if not torch.equal(plain[k], far[k])]


@pytest.mark.parametrize("words", [("ahead=2", "steps=4"), ("task=calculator",)], ids=str)
def test_a_run_is_the_same_bits(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if several draws are under way, and in a world, where a turn goes on from what is kept of the one before."""
    assert not unlike("grpo", tmp_path, monkeypatch, *words)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, m in all_methods().items() if not refusals(m)])
def test_all_methods_are_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not unlike(name, tmp_path, monkeypatch)


def test_a_method_that_steers_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (said,) = refusals(method("latr"))
    assert "lookahead_tree in rollout needs an engine that promises 'steer'" in said and "scale.samplers=0" in said
    run: Any = SimpleNamespace(method=method("latr"), config=RunConfig())
    cluster: Any = OneProcess()
    with pytest.raises(ValueError, match="promises 'steer'"):
        samplers_of(cluster, run, EngineConfig(), sampling(1)[1])


# ---- judges

SCORER = """
def score(task, text):
    return float(text == task.answer)


class Counts:
    def __init__(self):
        self.n = 0

    def __call__(self, task, text):
        self.n += 1
        return float(self.n)
"""


def judging(folder: Path, name: str, judges: int) -> tuple[Judges, OneProcess]:
    (folder / "mine.py").write_text(SCORER)
    cluster: Any = OneProcess(judges=judges)
    judge = Judges(cluster, Scorer(f"{folder / 'mine.py'}:{name}"), TaskConfig(workers=1), cluster.say)
    judge.start()
    for actor in judge.actors:
        actor.asked.clear()
    return judge, cluster


def closed(judge: Judges) -> None:
    for actor in judge.actors:
        inside: JudgeActor = actor.inside
        inside.judge.close()


ITEMS = [(Task(str(i), "?", str(i % 3), 0, "here"), "1") for i in range(7)]
RIGHT = [float(i % 3 == 1) for i in range(7)]


def test_judges_share_the_answers_and_keep_their_order(tmp_path: Path) -> None:
    judge, _ = judging(tmp_path, "score", 2)
    found = asyncio.run(judge.score(ITEMS))
    assert [v.components["task"] for v in found] == RIGHT and asyncio.run(judge.score([])) == []
    assert [len(given[1]) for actor in judge.actors for given in actor.asked] == [3, 4]
    closed(judge)


def test_a_scorer_that_keeps_state_hears_all_answers_in_their_order(tmp_path: Path) -> None:
    judge, _ = judging(tmp_path, "Counts", 2)
    assert judge.in_order
    assert [v.components["task"] for v in asyncio.run(judge.score(ITEMS))] == [1, 2, 3, 4, 5, 6, 7]
    closed(judge)


def test_a_judge_that_died_is_replaced_and_that_is_said(tmp_path: Path) -> None:
    judge, cluster = judging(tmp_path, "score", 1)
    closed(judge)
    judge.actors[0].die()
    assert [v.components["task"] for v in asyncio.run(judge.score(ITEMS))] == RIGHT
    assert judge.restarts == 1 and cluster.said == ["judge 0 died and was replaced; its answers were scored again"]
    closed(judge)
