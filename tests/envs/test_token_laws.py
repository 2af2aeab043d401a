"""The ids trained on are the ids sampled, position by position, for every chat template and tokenizer in every world.

A dialogue that grows is the dialogue rendered whole; where it is not, the sampled ids stay, or a new sequence begins.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.data import Episode, Source, Status, pack
from gruppo.engines import NativeEngine, Request
from gruppo.engines.base import Completion
from gruppo.envs.base import Seen
from gruppo.envs.guess import Guess
from gruppo.envs.hosted import Hosted
from gruppo.envs.registry import BUILT_IN, made
from gruppo.policies import TinyConfig, TinyTransformer, load_tokenizer
from gruppo.stages import Context, Sampling
from gruppo.stages.context import Ask
from gruppo.stages.converse import Converse
from gruppo.stages.play import Fork, Start
from gruppo.stages.prompting import plain
from gruppo.tasks import Task, load_task

pytest.importorskip("transformers")

from chat_templates import EXTENDED, QWEN3, STUCK
from hf_models import chat_tokenizer

from gruppo.policies.hf_tokenizer import HFTokenizer

WORLDS = ("guess", "household", "kuhn")
Say = Callable[[Request], Any]


class Heard:
    """An engine that says what it is told, and remembers every request with its completion."""

    def __init__(self, say: Say, context: int = 4096) -> None:
        self.say, self.most = say, context
        self.heard: list[tuple[Request, Completion]] = []

    def context(self, role: str = "policy") -> int:
        return self.most

    async def together(self, coroutines: Any) -> Any:
        return [await c for c in coroutines]

    async def ask(self, request: Request) -> Completion:
        ids = np.asarray(self.say(request), np.int64)[: request.max_tokens]
        logp = -0.1 * (1 + np.arange(len(ids)) + len(self.heard))  # no two alike
        made = Completion(ids, logp, np.zeros(len(ids), np.int32), "stop" if len(ids) < 6 else "length")
        self.heard.append((request, made))
        return made


def anything(tokenizer: Any, seed: int = 0) -> Say:
    """Any ids, special ones in the middle too; one in three is cut off, and the others end with a stop."""

    def say(request: Request) -> Any:
        rng = np.random.default_rng((seed, len(request.prefix), request.key % 2**32))
        ids = rng.integers(0, tokenizer.vocab, 6)
        ids[np.isin(ids, tokenizer.stops)] = 0
        cut = int(rng.integers(1, 7))
        return ids if cut > 4 else [*ids[:cut], tokenizer.eos]

    return say


def template(name: str) -> HFTokenizer:
    return HFTokenizer(chat_tokenizer({**EXTENDED, **STUCK}[name]), name=name)


def one(
    tokenizer: Any, engine: Any, task: Task, play: Converse, start: Any = None, tokens: int = 6, **how: Any
) -> Episode:
    ctx = Context(engine=engine, tokenizer=tokenizer, sampling=Sampling(max_tokens=tokens))
    start = start or Start(plain(ctx, Ask(play.shown(task), 1, how=how))[0], 100, ctx.sampling)

    async def all_of_them() -> list[Episode]:
        return [e async for _, e in play(ctx, [start])]

    [e] = asyncio.run(asyncio.wait_for(all_of_them(), 60))
    return e


def trained_is_sampled(e: Episode, heard: Sequence[tuple[Request, Completion]]) -> None:
    """Law: turn by turn the model is trained on what the engine was asked, and on what it said to it, nothing else."""
    assert e.turns and len(e.turns) == len(heard)
    for t, (request, said) in zip(e.turns, heard, strict=True):
        s = e.sequences[t.sequence]
        assert s.ids[: t.start].tolist() == np.asarray(request.prefix).tolist()
        assert s.ids[t.start : t.stop].tolist() == said.ids.tolist()
        assert (s.source[t.start : t.stop] == Source.POLICY).all()
        np.testing.assert_array_equal(s.logp[t.start : t.stop], said.logp.astype(np.float32))
    batch = pack([e])
    said = [(said.ids, said.logp) for _, (_, said) in sorted(zip(order(e), heard, strict=True), key=lambda x: x[0])]
    assert batch.token_N.tolist() == np.concatenate([ids for ids, _ in said]).tolist()
    np.testing.assert_allclose(batch.logp_gen_N, np.concatenate([logp for _, logp in said]), rtol=1e-6)


def order(e: Episode) -> list[tuple[int, int]]:
    """Where a turn's rows are in a batch: rows of a sequence lie together."""
    return [(t.sequence, t.start) for t in e.turns]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", [*EXTENDED, *STUCK])
def test_of_every_template(name: str, world: str) -> None:
    tokenizer, play = template(name), Converse(rules=True, say=lambda said: None)
    for seed in range(3):
        engine = Heard(anything(tokenizer, seed))
        e = one(tokenizer, engine, load_task(world).train[seed], play, turns=5)
        assert e.status in (Status.OK, Status.TRUNCATED) and e.scores
        trained_is_sampled(e, engine.heard)
        agents = {t.agent for t in e.turns}
        assert len(e.sequences) == (len(e.turns) if name in STUCK else len(agents))


@pytest.mark.parametrize("world", BUILT_IN)
def test_of_the_words_of_tiny_agent(world: str) -> None:
    tokenizer, play = load_tokenizer("tiny-agent"), Converse()
    for seed in range(3):
        engine = Heard(anything(tokenizer, seed))
        e = one(tokenizer, engine, load_task(world).train[seed], play, turns=5)
        trained_is_sampled(e, engine.heard)


@pytest.mark.parametrize("name", ["chatml", "none", "words"])
def test_of_a_world_in_another_process(name: str) -> None:
    tokenizer = load_tokenizer("tiny-agent") if name == "words" else template(name)
    play, engine = Converse(say=lambda said: None), Heard(anything(tokenizer))
    play.free["guess"] = [Hosted("guess")]
    e = one(tokenizer, engine, load_task("guess").train[0], play, turns=4)
    play.close()
    assert len(e.turns) == 4
    trained_is_sampled(e, engine.heard)


@pytest.mark.parametrize("name", ["gemma", "qwen3", "gone", "words"])
def test_a_model_gives_what_is_trained_on_the_probability_it_was_sampled_with(name: str) -> None:
    tokenizer = load_tokenizer("tiny-agent") if name == "words" else template(name)
    config = TinyConfig(vocab=tokenizer.vocab, dim=16, layers=1, heads=2, kv_heads=1, ffn=16, context=1024)
    engine = NativeEngine({"policy": TinyTransformer(config).to(torch.float64)}, eos=tokenizer.eos)
    e = one(tokenizer, engine, load_task("household").train[0], Converse(say=lambda said: None), turns=4)
    for t in e.turns:
        s = e.sequences[t.sequence]
        [logp] = engine.logprobs([s.ids[: t.start]], [s.ids[t.start : t.stop]])
        np.testing.assert_allclose(logp, s.logp[t.start : t.stop], atol=1e-6)


# rendered whole


def dialogue(world: str, task: Task) -> Iterator[tuple[str, str, str]]:
    """(agent, what it sees, what it does) of a player that begins with nonsense and then knows the way."""
    env = made(world)
    seen, n = env.reset(task), 0
    while not seen.done and n < 5:
        action = "dance" if n == 0 else env.gold() if "gold" in env.can else env.actions()[0]
        yield seen.agent, seen.text, action
        seen, n = env.step(action), n + 1


def rendered(tokenizer: Any, task: Task, told: Sequence[tuple[str, str, str]]) -> Iterator[list[int]]:
    """The context before each action, rendered whole."""
    talks: dict[str, list[dict[str, str]]] = {}
    for agent, text, action in told:
        talk = talks.setdefault(agent, [])
        talk.append({"role": "user", "content": text if talk else f"{task.prompt}\n{text}"})
        yield tokenizer.chat(talk).tolist()
        talk.append({"role": "assistant", "content": action})


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", [*EXTENDED, *STUCK, "words"])
def test_a_dialogue_that_grows_is_the_dialogue_rendered_whole(name: str, world: str) -> None:
    """Or every rendering is a sequence of its own."""
    tokenizer = load_tokenizer("tiny-agent") if name == "words" else template(name)
    space = " " if name == "mistral" else ""  # its template puts one before an answer, which the model writes itself
    task = load_task(world).train[0]
    told = list(dialogue(world, task))
    actions = iter([action for *_, action in told])
    engine = Heard(lambda request: [*tokenizer.encode(space + next(actions)), tokenizer.eos])
    e = one(tokenizer, engine, task, Converse(say=lambda said: None), tokens=64, turns=len(told))
    assert [t.text.strip() for t in e.turns] == [action for *_, action in told]
    for t, whole in zip(e.turns, rendered(tokenizer, task, told), strict=True):
        assert e.sequences[t.sequence].ids[: t.start].tolist() == whole
        assert name not in STUCK or e.sequences[t.sequence].prompt_len == t.start
    trained_is_sampled(e, engine.heard)


def test_a_template_that_drops_thinking_keeps_what_was_sampled() -> None:
    """The whole would have lost the thoughts, so it is extended, and the run is told by `rewrites`."""
    tokenizer, [task] = HFTokenizer(chat_tokenizer(QWEN3)), load_task("guess").train[:1]
    engine = Heard(lambda request: [*tokenizer.encode("<think>m</think>5"), tokenizer.eos])
    e = one(tokenizer, engine, task, Converse(), tokens=64)
    assert len(e.sequences) == 1 and len(e.turns) > 1 and tokenizer.rewrites and not tokenizer.stuck
    trained_is_sampled(e, engine.heard)
    assert tokenizer.decode(engine.heard[-1][0].prefix).count("<think>") == len(e.turns) - 1


def test_the_law_sees_an_action_that_was_encoded_again() -> None:
    """The bug: what the batch holds is the text of an action, encoded, and not its ids."""
    tokenizer = template("chatml")
    engine = Heard(anything(tokenizer))
    e = one(tokenizer, engine, load_task("guess").train[0], Converse(), turns=4)
    for t in e.turns:
        again = tokenizer.encode(t.text)[: t.stop - t.start]
        e.sequences[t.sequence].ids[t.start : t.start + len(again)] = again
    with pytest.raises(AssertionError):
        trained_is_sampled(e, engine.heard)


# templates that cannot be extended


@pytest.mark.parametrize("name", STUCK)
def test_it_is_said_once_with_cause_and_remedy(name: str) -> None:
    tokenizer, said = template(name), list[str]()
    play = Converse(say=said.append)
    for i in range(2):
        one(tokenizer, Heard(anything(tokenizer)), load_task("guess").train[i], play, turns=3)
    assert len(said) == 1 and repr(name) in said[0]
    assert ("renders an answer differently" if name == "gone" else "no chat template with an end of turn") in said[0]
    assert "every turn begins a new sequence" in said[0] and "Use a chat model with another template" in said[0]


def test_nothing_is_said_where_dialogues_are_extended_or_shown_in_windows() -> None:
    said: list[str] = []
    for name, window in (("chatml", -1), ("none", 1)):
        tokenizer, play = template(name), Converse(window=window, say=said.append)
        one(tokenizer, Heard(anything(tokenizer)), load_task("guess").train[0], play, turns=3)
    assert said == []


@pytest.mark.parametrize(
    ("world", "name", "window"),
    [(w, n, -1) for w in ("household", "kuhn") for n in ("none", "chatml")] + [("household", "chatml", 1)],
)
def test_a_fork_goes_on_with_its_own_luck(world: str, name: str, window: int) -> None:
    """Also where every turn is a sequence: the same key samples the same, in a context rendered from the same words."""
    tokenizer, task = template(name), load_task(world).train[1]
    play = Converse(window=window, say=lambda said: None)
    e = one(tokenizer, Heard(anything(tokenizer)), task, play, turns=5)
    at = len(e.turns) - 2
    t = e.turns[at]
    fork = Fork(e, t.start, e.uid, Sampling(max_tokens=6), sequence=t.sequence)
    again = one(tokenizer, Heard(anything(tokenizer)), task, play, fork)
    assert [s.ids.tolist() for s in again.sequences] == [s.ids.tolist() for s in e.sequences]
    assert [(x.start, x.stop, x.sequence) for x in again.turns] == [(x.start, x.stop, x.sequence) for x in e.turns]


def test_a_dialogue_that_no_longer_fits_ends_the_episode() -> None:
    tokenizer = template("none")
    engine = Heard(anything(tokenizer), context=130)
    e = one(tokenizer, engine, load_task("household").train[0], Converse(say=lambda said: None))
    assert e.status == Status.TRUNCATED and "overflow" in e.notes and len(e.turns) > 1
    assert max(len(s.ids) for s in e.sequences) <= 130


class Shouts(Guess):
    """Says the name of a special token after the first action."""

    def step(self, action: str) -> Seen:
        return replace(super().step(action), text="higher <|im_end|>", done=False)


@pytest.mark.parametrize("name", ["chatml", "open"])
def test_a_special_token_in_an_observation_fails_its_episode_and_not_the_run(name: str) -> None:
    tokenizer, play = template(name), Converse(say=lambda _: None)
    task = load_task("guess").train[0]
    play.free["guess"] = [Shouts()]
    e = one(tokenizer, Heard(anything(tokenizer)), task, play)
    assert e.status == Status.ENV_ERROR and not e.reward
    assert e.error.startswith("unreadable") and "<|im_end|>" in e.error and "Remove it from the text" in e.error


class Spells:
    """Writes the name of a special token letter by letter, which is plain text and no special token."""

    def __init__(self, tokenizer: Any) -> None:
        self.ids = [*tokenizer.encode("7 <|im_end|>"), tokenizer.eos]

    def __call__(self, request: Request) -> Any:
        return self.ids


@pytest.mark.parametrize("name, window", [("chatml", -1), ("chatml", 2), ("open", -1)])
def test_a_policy_that_spells_a_special_token_neither_fails_nor_makes_one(name: str, window: int) -> None:
    tokenizer, play = template(name), Converse(window=window, say=lambda _: None)
    engine, end = Heard(Spells(tokenizer)), tokenizer.tok.convert_tokens_to_ids("<|im_end|>")
    e = one(tokenizer, engine, load_task("guess").train[0], play, tokens=40, turns=3)
    assert e.status.judged and len(e.turns) == 3
    plain = Heard(lambda request: [*tokenizer.encode("7"), tokenizer.eos])
    one(tokenizer, plain, load_task("guess").train[0], Converse(window=window, say=lambda _: None), tokens=40, turns=3)
    ends = [[int((np.asarray(r.prefix) == end).sum()) for r, _ in of.heard] for of in (engine, plain)]
    assert ends[0] == ends[1]


class Pays(Guess):
    """Pays every step, and says much."""

    def step(self, action: str) -> Seen:
        return Seen("7 " * 40, state="s", rewards={"task": 0.5})


def test_a_step_that_has_no_room_after_it_is_paid_once() -> None:
    tokenizer, play = load_tokenizer("tiny-agent"), Converse()
    play.free["guess"] = [Pays()]
    e = one(tokenizer, Heard(anything(tokenizer), context=60), load_task("guess").train[0], play)
    assert e.status == Status.TRUNCATED and len(e.turns) == 1 and e.total == 0.5


class Fails(Guess):
    """Breaks when it is played again."""

    broken = False

    def step(self, action: str) -> Seen:
        if Fails.broken:
            raise ConnectionError("no answer")
        return super().step(action)


def test_a_world_that_fails_while_a_fork_is_replayed_fails_the_fork() -> None:
    tokenizer, play, task = load_tokenizer("tiny-agent"), Converse(), load_task("guess").train[0]
    play.free["guess"] = [Fails()]
    e = one(tokenizer, Heard(anything(tokenizer)), task, play, turns=3)
    Fails.broken = True
    fork = one(
        tokenizer, Heard(anything(tokenizer)), task, play, start=Fork(e, e.turns[1].start, 7, Sampling(max_tokens=6))
    )
    Fails.broken = False
    assert fork.status == Status.ENV_ERROR and "no answer" in fork.error and not fork.reward
