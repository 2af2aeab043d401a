"""Episodes of several turns: ids in and ids out, the same bits in lockstep, failures of one episode alone."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.data import Episode, Source, Status, key_hash, pack
from gruppo.engines import NativeEngine, Request
from gruppo.engines.base import Completion
from gruppo.envs.base import Seen
from gruppo.envs.hosted import Hosted
from gruppo.envs.registry import BUILT_IN, made
from gruppo.policies import CharTokenizer, TinyConfig, TinyTransformer
from gruppo.stages import Context, Sampling
from gruppo.stages.context import Ask
from gruppo.stages.converse import Converse
from gruppo.stages.play import Fork, Start
from gruppo.stages.prompting import plain
from gruppo.tasks import Task, load_task

GAMES = ("kuhn", "negotiation", "tictactoe", "verify")


@pytest.fixture(scope="module")
def policy() -> TinyTransformer:
    config = TinyConfig(vocab=CharTokenizer().vocab, dim=16, layers=2, heads=2, kv_heads=1, ffn=16, context=1024)
    return TinyTransformer(config).to(torch.float64)


def engine_of(policy: TinyTransformer, **options: Any) -> NativeEngine:
    return NativeEngine({"policy": policy}, eos=CharTokenizer.eos, **options)


def context(engine: Any, tokens: int = 6) -> Context:
    return Context(engine=engine, tokenizer=CharTokenizer(), sampling=Sampling(max_tokens=tokens))


def starts_of(ctx: Context, play: Converse, tasks: Sequence[Task], **how: Any) -> list[Start]:
    asks = [Ask(play.shown(t), 1, how=how) for t in tasks]
    return [Start(plain(ctx, ask)[0], 100 + i, ctx.sampling) for i, ask in enumerate(asks)]


def played(ctx: Context, play: Converse, starts: Sequence[Start | Fork]) -> list[Episode]:
    async def all_of_them() -> dict[int, Episode]:
        return {i: e async for i, e in play(ctx, starts)}

    found = asyncio.run(asyncio.wait_for(all_of_them(), 60))
    return [found[i] for i in range(len(starts))]


def tasks_of(name: str, n: int = 3) -> list[Task]:
    return [load_task(name).train[i] for i in range(n)]


@pytest.mark.parametrize("world", BUILT_IN)
def test_what_is_trained_on_is_what_was_sampled(world: str, policy: TinyTransformer) -> None:
    """Position by position: the engine gives every sampled token the log-probability that it was sampled with."""
    engine, play = engine_of(policy), Converse()
    ctx = context(engine)
    for e in played(ctx, play, starts_of(ctx, play, tasks_of(world), turns=5)):
        assert e.status in (Status.OK, Status.TRUNCATED) and e.turns and e.scores
        for t in e.turns:
            s = e.sequences[t.sequence]
            assert (s.source[t.start : t.stop] == Source.POLICY).all()
            [logp] = engine.logprobs([s.ids[: t.start]], [s.ids[t.start : t.stop]])
            np.testing.assert_allclose(logp, s.logp[t.start : t.stop], atol=1e-6)
        for i, s in enumerate(e.sequences):
            mine = [t for t in e.turns if t.sequence == i]
            spans = [(t.start, t.stop) for t in mine]
            covered = np.zeros(len(s.ids), bool)
            for a, b in spans:
                covered[a:b] = True
            assert (covered == (s.source == Source.POLICY)).all() and spans == sorted(spans)


def test_the_dialogue_of_a_winner() -> None:
    """Gold actions: every token is where the tokenizer would put it, and the environment pays once."""
    [task] = tasks_of("guess", 1)
    play, tokenizer = Converse(), CharTokenizer()
    env = made("guess")
    seen, actions, texts = env.reset(task), list[str](), list[str]()
    while not seen.done:
        texts.append(seen.text)
        actions.append(env.gold())
        seen = env.step(actions[-1])
    ctx = context(Puppet(actions))
    [e] = played(ctx, play, starts_of(ctx, play, [task]))
    assert e.status == Status.OK and e.reward == {"task": 1.0} and len(e.turns) == len(actions)
    wanted = tokenizer.chat([{"role": "user", "content": f"{task.prompt}\n{texts[0]}"}])
    for action, text in zip(actions, [*texts[1:], None], strict=True):
        wanted = np.concatenate([wanted, tokenizer.encode(action), [tokenizer.eos]])
        if text is not None:
            wanted = np.concatenate([wanted, tokenizer.follow([{"role": "user", "content": text}], tokenizer.eos)])
    [s] = e.sequences
    assert s.ids.tolist() == wanted.tolist()
    assert [t.text for t in e.turns] == actions and [t.action_key for t in e.turns] == actions
    assert e.turns[0].state and not any(t.flags for t in e.turns)
    assert e.text.splitlines()[0] == f"> {actions[0]}"


class Puppet:
    """An engine that says what it is told, one action a request."""

    def __init__(self, actions: Sequence[str]) -> None:
        self.actions, self.asked = list(actions), list[Request]()

    def context(self, role: str = "policy") -> int:
        return 1024

    async def together(self, coroutines: Any) -> Any:
        return [await c for c in coroutines]

    async def ask(self, request: Request) -> Completion:
        self.asked.append(request)
        ids = np.append(CharTokenizer().encode(self.actions.pop(0)), CharTokenizer.eos)
        return Completion(ids, np.full(len(ids), -1.0), np.zeros(len(ids), np.int32), "stop")


@pytest.mark.parametrize("world", ["calculator", "search"])
def test_calls_of_tools_lie_on_their_turns(world: str) -> None:
    """Law: every action of a winner but its answer is a call, with the words of the action."""
    [task] = tasks_of(world, 1)
    env, actions = made(world), list[str]()
    seen = env.reset(task)
    while not seen.done:
        actions.append(env.gold())
        seen = env.step(actions[-1])
    play, ctx = Converse(), context(Puppet(["dance", *actions]))
    [e] = played(ctx, play, starts_of(ctx, play, [task]))
    assert e.reward == {"task": 1.0} and len(actions) > 1
    told = [(), *([(world, a, 0.0, True)] for a in actions[:-1]), ()]
    assert [[(c.name, c.arguments, c.seconds, c.ok) for c in t.tools] for t in e.turns] == list(map(list, told))
    batch = pack([e])
    assert batch.tools_K.tolist() == [0, *[1] * (len(actions) - 1), 0] and not batch.tool_seconds_K.any()


def test_flags_of_turns() -> None:
    [task] = tasks_of("guess", 1)
    play, ctx = Converse(), context(Puppet(["dance", "dance", "", "dance"]))
    [e] = played(ctx, play, starts_of(ctx, play, [task], turns=4))
    assert e.status == Status.TRUNCATED and e.reward == {"task": 0.0}
    assert [set(t.flags) for t in e.turns] == [{"invalid"}, {"invalid", "repeated"}, {"void"}, {"invalid", "repeated"}]


@pytest.mark.parametrize("world", GAMES)
def test_seats_have_contexts_of_their_own_and_are_paid_on_their_last_turns(world: str, policy: TinyTransformer) -> None:
    engine, play = engine_of(policy), Converse()
    ctx = context(engine)
    for e in played(ctx, play, starts_of(ctx, play, tasks_of(world))):
        agents = dict.fromkeys(t.agent for t in e.turns)
        assert len(e.sequences) == len(agents)
        for agent in agents:
            mine = [t for t in e.turns if t.agent == agent]
            assert len({t.sequence for t in mine}) == 1
            assert ["task" in t.reward for t in mine] == [False] * (len(mine) - 1) + [True]


class Slow:
    """`guess` in which every step takes its time, another one in every run."""

    def __init__(self, env: Any, draw: np.random.Generator) -> None:
        self.env, self.draw = env, draw

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: str) -> Seen:
        time.sleep(float(self.draw.uniform(0, 0.002)))
        return self.env.step(action)


def test_the_same_bits_however_long_an_environment_takes(policy: TinyTransformer) -> None:
    found = []
    for seed in (0, 1):
        engine, play = engine_of(policy.float(), lockstep=True), Converse()
        play.free["guess"] = [Slow(made("guess"), np.random.default_rng(seed)) for _ in range(8)]
        ctx = context(engine)
        found.append(played(ctx, play, starts_of(ctx, play, tasks_of("guess", 8))))
    policy.double()
    for a, b in zip(*found, strict=True):
        assert [s.ids.tolist() for s in a.sequences] == [s.ids.tolist() for s in b.sequences]
        assert all(
            (x.logp == y.logp)[x.source == Source.POLICY].all() for x, y in zip(a.sequences, b.sequences, strict=True)
        )


def test_a_window_makes_a_sequence_of_every_turn(policy: TinyTransformer) -> None:
    engine, play = engine_of(policy), Converse(window=1)
    ctx = context(engine)
    [e] = played(ctx, play, starts_of(ctx, play, tasks_of("guess", 1), turns=4))
    assert len(e.sequences) == len(e.turns) == 4 and [t.sequence for t in e.turns] == [0, 1, 2, 3]
    texts = [CharTokenizer().decode(s.ids[: s.prompt_len]) for s in e.sequences]
    [goal] = {t.prompt for t in tasks_of("guess", 1)}
    assert [text.count(goal) for text in texts] == [1] * 4 and texts[0].count("\n") == 1  # the goal, what is seen
    first = [s.ids[s.prompt_len] for s in e.sequences]
    assert len(set(map(int, first))) > 1  # a key of its own for each context: not the same draw again


def test_a_fork_plays_on_from_its_turn(policy: TinyTransformer) -> None:
    engine, play = engine_of(policy), Converse()
    ctx = context(engine)
    starts = starts_of(ctx, play, tasks_of("household", 1))
    [e] = played(ctx, play, starts)
    turn = e.turns[3]
    forks = [Fork(e, turn.start, uid, ctx.sampling) for uid in (e.uid, 7)]
    same, other = played(ctx, play, forks)
    assert same.sequences[0].ids.tolist() == e.sequences[0].ids.tolist()  # the same key: the same luck
    assert [t.state for t in same.turns] == [t.state for t in e.turns] and same.reward == e.reward
    assert other.sequences[0].ids[: turn.start].tolist() == e.sequences[0].ids[: turn.start].tolist()
    assert (
        other.parent == e.uid
        and other.fork == 3
        and [t.state for t in other.turns[:4]] == [t.state for t in e.turns[:4]]
    )


class Breaks:
    """A world that raises in its second step."""

    def reset(self, task: Task) -> Seen:
        self.steps = 0
        return Seen("begin", state="0")

    def step(self, action: str) -> Seen:
        self.steps += 1
        if self.steps == 2:
            raise OSError("the disk is gone")
        return Seen("go on", state=str(self.steps))


def test_a_world_that_breaks_costs_its_own_episode(policy: TinyTransformer) -> None:
    engine, play = engine_of(policy), Converse()
    play.free["guess"] = [made("guess"), Breaks(), made("guess")]
    ctx, tasks = context(engine), tasks_of("guess", 3)
    starts = [Start(plain(ctx, Ask(t, 1, how={"turns": 4}))[0], i, ctx.sampling) for i, t in enumerate(tasks)]
    found = played(ctx, play, starts)
    assert sorted(e.status for e in found) in ([Status.OK] * 2 + [Status.ENV_ERROR], [0, 1, 4], [1, 1, 4])
    [bad] = [e for e in found if e.status == Status.ENV_ERROR]
    assert "the disk is gone" in bad.error and bad.reward == {} and len(bad.turns) == 2


def test_a_full_context_ends_the_episode() -> None:
    config = TinyConfig(vocab=CharTokenizer().vocab, dim=16, layers=1, heads=2, kv_heads=1, ffn=16, context=160)
    ctx, play = context(engine_of(TinyTransformer(config))), Converse()
    [e] = played(ctx, play, starts_of(ctx, play, tasks_of("household", 1)))
    assert e.status == Status.TRUNCATED and e.reward == {"task": 0.0} and len(e.sequences[0].ids) <= 160


def test_windows_of_tokens_are_refused(policy: TinyTransformer) -> None:
    ctx, play = context(engine_of(policy)), Converse()

    async def first() -> None:
        async for _ in play(ctx, starts_of(ctx, play, tasks_of("guess", 1)), window=4):
            pass

    with pytest.raises(ValueError, match="one answer a task"):
        asyncio.run(first())


def test_tasks_without_a_world_are_answered_once(policy: TinyTransformer) -> None:
    ctx, play = context(engine_of(policy)), Converse()
    tasks = [*tasks_of("guess", 1), load_task("addition").train[0]]
    world, alone = played(ctx, play, starts_of(ctx, play, tasks))
    assert len(world.turns) > 1 and len(alone.turns) == 1 and not alone.scores
    assert play.shown(tasks[1]) is tasks[1] and play.shown(play.shown(tasks[0])) == play.shown(tasks[0])


class Faulty:
    """`guess` that raises in one step of twenty, always in the same ones."""

    def __init__(self) -> None:
        self.env = made("guess")

    def reset(self, task: Task) -> Seen:
        self.task, self.steps = task, 0
        return self.env.reset(task)

    def step(self, action: str) -> Seen:
        self.steps += 1
        if int(key_hash(self.task.uid, self.steps)) % 20 == 0:
            raise ConnectionError("no answer")
        return self.env.step(action)


def test_faults_are_statuses_and_nothing_is_lost(policy: TinyTransformer) -> None:
    engine, play = engine_of(policy), Converse()
    play.free["guess"] = [Faulty() for _ in range(60)]
    ctx, tasks = context(engine, tokens=2), tasks_of("guess", 60)
    found = played(ctx, play, starts_of(ctx, play, tasks))
    for task, e in zip(tasks, found, strict=True):
        bad = [n for n in range(1, len(e.turns) + 1) if int(key_hash(task.uid, n)) % 20 == 0]
        if bad:
            assert bad == [len(e.turns)] and e.status == Status.ENV_ERROR
            assert "no answer" in e.error and not e.scores and e.reward == {}
        else:
            assert e.status.judged and set(e.reward) == {"task"}
    assert 0 < sum(not e.status.judged for e in found) < 40


class Mortal(Hosted):
    """A world whose process is killed before its second step."""

    def step(self, action: str) -> Seen:
        self.count = getattr(self, "count", 0) + 1
        if self.count == 2:
            assert self._channel is not None
            self._channel._process.kill()
        return super().step(action)


def test_a_process_that_is_killed_loses_its_episode_alone(policy: TinyTransformer) -> None:
    engine, play = engine_of(policy), Converse()
    play.free["guess"] = [made("guess"), Mortal("guess"), made("guess")]
    ctx = context(engine)
    tasks = [replace(t, meta={**t.meta, "goal": t.prompt}) for t in tasks_of("guess", 3)]  # shown already
    found = played(ctx, play, starts_of(ctx, play, tasks, turns=3))
    play.close()
    [bad] = [e for e in found if not e.status.judged]
    assert bad.status == Status.ENV_ERROR and bad.error.startswith("ended") and bad.reward == {}
    assert [e.status.judged for e in found].count(True) == 2
