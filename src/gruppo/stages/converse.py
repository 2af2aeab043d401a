"""How an episode is played in an environment: observation, action, observation, … until it is over.

What `ctx.play` does for a task with an environment, in training, redraws, evaluation and step zero alike. Token ids go
in and token ids come out: what was sampled is never encoded again, and an observation is what the chat template puts
after it. All episodes are callers of one engine, so they share its running batch, and each turn computes only what is
new. In lockstep the same bits come out however long an environment takes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from gruppo.data import Episode, Note, Status, ToolCall, key_hash
from gruppo.envs.alarm import SECONDS, limit_of
from gruppo.envs.base import Seen, seats_of
from gruppo.envs.format import Format, Line, Said, format_of
from gruppo.envs.guard import TIMEOUT, Guarded, failed
from gruppo.envs.hosted import Hosted
from gruppo.envs.memory import Memory
from gruppo.envs.registry import BUILT_IN, make_env
from gruppo.envs.with_tools import reading, toolbox
from gruppo.envs.wrappers import Retry, TurnLimit, Window, cut
from gruppo.stages.context import Ask, Context
from gruppo.stages.play import Fork, Play, Start, as_they_end, grown_of, one_answer, prompt_source, request_after
from gruppo.stages.tooling import Showing, chat_of, showing
from gruppo.tasks import TaskConfig

GOAL = "goal"  # in the meta of a task: its prompt without the first observation
HEARD = {  # what `Ask.how` may ask of an environment
    "tries": "further tries",
    "turns": "a limit of turns",
    "memory": "a memory that the agent edits",
    "entropy_tokens": "branches at turns",
}
LIKELY = 10  # most probable ids that an entropy is about
OVERFLOW = "overflow"  # a note of episodes that ended since their next observation had no room: the tokens too many
WAITING = 64  # worlds that wait at once, each in a thread
FIRST_ENTROPY = "first_entropy"  # a note of turns, if Ask.how["entropy_tokens"] asks for it


@dataclass
class Converse:
    """Plays environments. Those of other libraries have processes, which are kept for the next episode.

    format  how an action is read from what the policy wrote
    window  the last turns that the policy sees; -1: all of them, in one growing context
    rules   whether the rules of a world are the system prompt of its tasks, if they have none
    seconds that a step of a world may take, if it is not built in
    say     is told of a world that hangs
    writers the role that writes for an agent; the policy for all others
    tools   how the model is shown the tools that it may call, if there are any
    """

    format: Format = field(default_factory=Line)
    window: int = -1
    rules: bool = False
    seconds: float = SECONDS
    say: Callable[[str], None] = print
    writers: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: Showing = field(default_factory=Showing)
    free: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    hung: set[str] = field(default_factory=set[str])

    async def __call__(
        self, ctx: Context, starts: Sequence[Start | Fork], window: int = 0
    ) -> AsyncIterator[tuple[int, Episode]]:
        if window:
            raise ValueError(
                "answers in windows of tokens are for one answer a task: an environment is not left in the middle of "
                "an action. Use another method, or a task without an environment."
            )
        alone = [i for i, s in enumerate(starts) if "env" not in ask_of(s).task.meta]  # of a mixture
        if alone:
            async for n, episode in one_answer(ctx, [starts[i] for i in alone]):
                yield alone[n], episode
        ended: asyncio.Queue[tuple[int, Episode]] = asyncio.Queue()

        async def play(i: int, start: Start | Fork) -> None:
            with self.borrowed(start) as env:
                await ended.put((i, await Dialogue(self, ctx, start, env).played()))

        rest = [i for i in range(len(starts)) if i not in set(alone)]
        playing = asyncio.create_task(ctx.engine.together([play(i, starts[i]) for i in rest]))
        async with aclosing(as_they_end(playing, ended, len(rest))) as found:
            async for i, episode in found:
                yield i, episode

    def shown(self, task: Any) -> Any:
        """The task with its first observation in the prompt, so that prompting sees what the policy will see."""
        if GOAL in task.meta or "env" not in task.meta:
            return task
        with self.borrowed(Ask(task, 1)) as env:
            seen = env.reset(task)
            system = task.system or (str(getattr(env, "rules", "")) if self.rules else "")
            box = getattr(env, "box", None)
        prompt = said_first(task.prompt, seen)
        made = replace(task, prompt=prompt, system=system, meta={**task.meta, GOAL: task.prompt})
        return self.tools.task(made, box) if box is not None else made

    def close(self) -> None:
        """Ends the processes of environments."""
        for envs in self.free.values():
            for env in envs:
                if isinstance(env, Hosted):
                    env.close()
        self.free.clear()

    def borrowed(self, start: "Start | Fork | Ask") -> "Borrowed":
        return Borrowed(self, ask_of(start))


def play_of(
    tasks: Any,
    config: TaskConfig,
    tokenizer: Any,
    say: Callable[[str], None] = print,
    writers: Mapping[str, str] | None = None,
) -> Play:
    """How the episodes of a task set are played. Models with a chat template are told the rules of a world."""
    if tasks.env and not config.agent:
        rules = getattr(tokenizer, "has_template", False)
        play = Converse(format_of(config.format), config.window, rules, limit_of(config), say, writers or {})
        if config.tools:
            play.format, play.tools = reading(play.format), showing(tokenizer, toolbox(config.tools))
        return play
    for name in ("format", "window"):
        if (value := getattr(config, name)) != getattr(TaskConfig, name):
            raise ValueError(
                f"task.{name}={value}: task={config.name} is not played in an environment, so it would have no effect. "
                "Leave it out."
            )
    return import_module("gruppo.serve.player").agents_of(config, say) if config.agent else one_answer


@dataclass
class Borrowed:
    """An environment for one episode, with the wrappers that its ask wants; given back at the end."""

    player: Converse
    ask: Ask

    def __enter__(self) -> Any:
        self.name = str(self.ask.task.meta["env"])
        free = self.player.free.setdefault(self.name, [])
        self.env = free.pop() if free else make_env(self.name)
        self.waits = bool(getattr(self.env, "waits", False))  # for tools and programs, which have limits of their own
        limit, own = self.player.seconds, self.name not in BUILT_IN and not self.waits
        if isinstance(self.env, Hosted):
            self.env.seconds, own = limit, False  # it looks at the time itself
        self.guard = Guarded(self.env, limit if own else 0.0, self._told)
        wrapped: Any = self.guard
        if memory := self.ask.how.get("memory"):  # {"words": …, "edits": …}
            if self.player.window >= 0:
                raise ValueError(
                    f"task.window={self.player.window}: a context that the agent edits cannot also be a window of its "
                    "last turns. Leave the window out, or use a method without a memory."
                )
            wrapped = Memory(wrapped, **memory, overflow=0.0)
        if tries := int(self.ask.how.get("tries", 0)):
            if getattr(self.env, "judged_later", False):
                raise ValueError(
                    f"{self.name}: the scorer judges an answer when the episode is over, so nothing says whether "
                    "another try is needed. Leave task.tools out, or use a method without further tries."
                )
            wrapped = Retry(wrapped, tries)
        if turns := int(self.ask.how.get("turns", 0)):
            wrapped = TurnLimit(wrapped, turns)
        return Window(wrapped, self.player.window) if self.player.window >= 0 else wrapped

    def _told(self, sentence: str) -> None:
        """That a world hangs, the first time: a step says how many of its episodes were left out."""
        if self.name not in self.player.hung:
            self.player.say(sentence)
        self.player.hung.add(self.name)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and isinstance(self.env, Hosted):
            self.env.close()  # a call may still be under way, in a thread: the next episode gets another process
        elif not self.guard.late and not (kind is not None and self.waits):
            self.player.free.setdefault(self.name, []).append(self.env)  # it may have been closed meanwhile


@cache
def _waiting() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WAITING, thread_name_prefix="world")


def ask_of(start: "Start | Fork | Ask") -> Ask:
    if isinstance(start, Ask):
        return start
    return start.prompt.ask if isinstance(start, Start) else start.episode.ask


def said_first(goal: str, seen: Seen) -> str:
    if not seen.text:
        return goal
    return seen.text if seen.fresh or not goal else f"{goal}\n{seen.text}".rstrip()


LONG = "too long"  # how the error of an episode begins that cannot be shown its first observation


def too_long(task: Any, tokens: int, without: int, most: int) -> str:
    """Of a task whose first observation leaves no room for an action. `without` it, the prompt has so many tokens."""
    return (
        f"task {task.uid!r} begins with {tokens} tokens ({without} of them the prompt, the rest what is seen first), "
        f"{tokens - most + 1} too many: this model's context has {most}, and an action needs room, too. Make the "
        "first observation or the prompt shorter, take such tasks out, or use a model with a longer context."
    )


def first_entropy(topk: Any, tokens: int, vocab: int) -> float:
    """−Σ p log p over the reported ids of the first tokens, in units of log |V|; NaN if none were reported."""
    if not tokens or topk is None:
        return float("nan")
    logp = topk[1][:tokens].astype(np.float64)
    return float(-(np.exp(logp) * logp).sum() / np.log(vocab))


class Dialogue:
    """One episode in its environment. Every agent of a game has a context of its own."""

    def __init__(self, player: Converse, ctx: Context, start: Start | Fork, env: Any) -> None:
        self.player, self.ctx, self.start, self.env = player, ctx, start, env
        self.ask = ask_of(start)
        self.goal = str(self.ask.task.meta.get(GOAL, self.ask.task.prompt))
        self.context_of: dict[str, int] = {}
        self.done_in: set[tuple[str, str]] = set()  # what was done in which state
        self.lines: list[str] = []  # for people
        self.begun = np.zeros(0, np.int64)  # of the first action, given by prompting
        self.watched = int(self.ask.how.get("entropy_tokens", 0))  # first tokens of each action
        self.entropy: list[float] = []
        self.over = 0  # tokens that the last observation was too long by

    async def played(self) -> Episode:
        numbered = "memory" in self.ask.how
        seen = await self._env("reset", replace(self.ask.task, prompt=self.goal))
        if isinstance(self.start, Fork):
            seen = await self._replayed(self.start, seen)
        else:
            ids = self._chat(seen) if numbered else self.start.prompt.ids
            self._open(self.start, ids)
            self.context_of[seen.agent] = 0
            if not seen.done and len(ids) >= (most := self.ctx.engine.context(self._writer(seen))):
                seen = failed(LONG, too_long(self.ask.task, len(ids), len(self._chat(Seen(""))), most), seen.agent)
        while not seen.done:
            said = await self._action(seen)
            seen = self._paid(seen, said, await self._env("step", said.action))
            if not seen.done and (over := self._observe(seen)):
                self.over = over
                seen = cut(self.env, seen)
        ended = self._ended(seen)
        if self.watched:
            ended.notes[FIRST_ENTROPY] = Note(np.array(self.entropy, np.float32), "K")
        if self.over:
            ended.notes[OVERFLOW] = Note(np.array([self.over], np.float32))
        return ended

    def _open(self, start: Start, ids: Any) -> None:
        prompt, self.grown = start.prompt, grown_of(self.ctx, start)
        source = prompt_source(prompt) if prompt.given else None
        self.grown.begin(ids, source=source, train_as=prompt.train_as)
        self.begun = prompt.begun

    def _chat(self, seen: Seen) -> Any:
        """A whole context that begins with what is seen."""
        return chat_of(self.ctx.tokenizer, replace(self.ask.task, prompt=said_first(self.goal, seen)))

    async def _replayed(self, start: Fork, seen: Seen) -> Seen:
        """The environment as it was before the action that the fork goes on with: its actions are played again."""
        self.grown = start.grown()
        self.entropy = [float("nan")] * len(self.grown.turns)
        for i, turn in enumerate(self.grown.turns):
            self.context_of.setdefault(seen.agent, turn.sequence)
            said = self.player.format(turn.text)
            self.done_in.add((turn.state, turn.action_key))
            self._tell(seen, turn.text)
            seen = await self._env("step", said.action)
            self.lines.append(seen.text)
            if seen.done:
                raise ValueError(
                    f"episode {start.episode.uid} cannot be continued after turn {i}: played again, its actions end "
                    f"the episode there ({seen.error or 'it is over'}). Is the environment a pure function of its "
                    "actions? gruppo env check says."
                )
        self.context_of.setdefault(seen.agent, start.sequence)
        return seen

    async def _env(self, call: str, given: Any) -> Seen:
        """Environments in this process are fast; those that wait, for a process or a tool, must not hold up others."""
        inner = self.env
        while not isinstance(inner, Hosted) and hasattr(inner, "env"):
            inner = inner.env
        act = getattr(self.env, call)
        if isinstance(inner, Hosted):
            return await asyncio.to_thread(act, given)
        if call == "step" and getattr(inner, "waits", False):
            return await asyncio.get_running_loop().run_in_executor(_waiting(), act, given)
        return act(given)

    # an action

    async def _action(self, seen: Seen) -> Said:
        """What the policy says to what it sees, as it was read."""
        ids, sampling, role = self.grown.ids, self.start.sampling, self._writer(seen)
        room = max(self.ctx.engine.context(role) - len(ids), 1)
        here = self.context_of[seen.agent]
        key = self.grown.uid if here == 0 else int(key_hash(self.grown.uid, "context", here))
        if room < sampling.max_tokens:  # not every time: what is made is also checked
            sampling = replace(sampling, max_tokens=room)
        request = request_after(self.ctx, ids, key, sampling, role)
        c = await self.ctx.engine.ask(replace(request, topk_logprobs=LIKELY) if self.watched else request)
        self.entropy.append(first_entropy(c.topk, self.watched, self.ctx.tokenizer.vocab))
        self.grown.write(c.ids, c.logp, c.version, temperature=request.temperature, allowed=c.allowed)
        self.cut = c.reason == "length"
        begun, self.begun = self.begun, self.begun[:0]
        self.said = self.ctx.tokenizer.decode(np.concatenate([begun, self.grown.action]))
        return self.player.format(self.said)

    def _writer(self, seen: Seen) -> str:
        """The role that writes for the agent that acts next."""
        return self.player.writers.get(seen.agent, "policy")

    def _paid(self, before: Seen, said: Said, seen: Seen) -> Seen:
        """The turn ends, with what it has earned."""
        self._tell(before, self.said)
        self.lines.append(seen.text)
        key = " ".join(said.action.lower().split())
        flags = set(said.flags)
        flags |= {"truncated"} if self.cut else set()
        flags |= {"invalid"} if not seen.valid and not said.void else set()
        flags |= {"repeated"} if (before.state, key) in self.done_in else set()
        self.done_in.add((before.state, key))
        flags |= {"edit"} if seen.fresh and "memory" in self.ask.how else set()
        ends = seen.done and len(seats_of(self.env)) == 1
        rewards = {name: r for name, r in seen.rewards.items() if not (ends and name == "task")}
        self.grown.end(
            state=before.state,
            action_key=key,
            agent=before.agent,
            reward=rewards,
            flags=frozenset(flags),
            tag=said.tag,
            text=self.said,
            tools=tuple(ToolCall(c.name, c.arguments, c.seconds, c.ok) for c in seen.tools),
        )
        return seen

    def _observe(self, seen: Seen) -> int:
        """What the agent that acts next sees, in its context or in a new one.

        If no action would fit after it, nothing is done, and the tokens that are too many are returned.
        """
        tokenizer, most = self.ctx.tokenizer, self.ctx.engine.context(self._writer(seen)) - 1  # for an action
        if seen.fresh or seen.agent not in self.context_of:
            ids = self._chat(seen)
            if len(ids) <= most:
                self.context_of[seen.agent] = self.grown.begin(ids)
            return max(len(ids) - most, 0)
        self.grown.switch(self.context_of[seen.agent])
        before = self.grown.ids
        ids = self.player.tools.after(tokenizer, seen, int(before[-1]) if len(before) else None)
        if len(before) + len(ids) <= most:
            self.grown.observe(ids)
        return max(len(before) + len(ids) - most, 0)

    # the end

    def _ended(self, seen: Seen) -> Episode:
        for agent, outcome in seen.outcomes.items():
            mine = [t for t in self.grown.turns if t.agent == agent]
            if mine:
                mine[-1].reward = {**mine[-1].reward, "task": float(outcome)}
        if seen.error:
            status = Status.TIMEOUT if seen.error.startswith(TIMEOUT) else Status.ENV_ERROR
            return self.grown.finish(status, error=seen.error, text=self._text(), final_state=seen.state)
        one = len(seats_of(self.env)) == 1
        reward: Mapping[str, float] = {"task": float(seen.rewards["task"])} if one and "task" in seen.rewards else {}
        text = self._text() if seen.answer is None else seen.answer
        status = Status.TRUNCATED if seen.truncated or (seen.answer is not None and self.cut) else Status.OK
        return self.grown.finish(status, reward=dict(reward), text=text, final_state=seen.state)

    def _tell(self, seen: Seen, said: str) -> None:
        who = seen.agent if len(seats_of(self.env)) > 1 else ""
        self.lines.append(f"{who}> {said}")

    def _text(self) -> str:
        """The dialogue after the prompt; actions are marked with >."""
        return "\n".join(line for line in self.lines if line)
