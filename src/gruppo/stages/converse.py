"""How episodes are played in environments: each has one for itself, all share the engine (`dialogue.py`: one of them).

What `ctx.play` does for a task with an environment, in training, redraws, evaluation and step zero alike. Token ids go
in and token ids come out: what was sampled is never encoded again, and an observation is what the chat template puts
after it. All episodes are callers of one engine, so they share its running batch, and each turn computes only what is
new. In lockstep the same bits come out however long an environment takes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from gruppo.data import Episode
from gruppo.envs.against import placed
from gruppo.envs.alarm import SECONDS, limit_of
from gruppo.envs.format import Format, Line, format_of
from gruppo.envs.guard import Guarded, Life
from gruppo.envs.hosted import Hosted
from gruppo.envs.memory import Memory
from gruppo.envs.registry import BUILT_IN, make_env
from gruppo.envs.threads import Threads
from gruppo.envs.with_tools import reading, toolbox
from gruppo.envs.wrappers import Retry, TurnLimit, Window
from gruppo.stages.context import Ask, Context
from gruppo.stages.dialogue import GOAL, Dialogue, ask_of, said_first
from gruppo.stages.play import Fork, Play, Start, as_they_end, one_answer
from gruppo.stages.tooling import Showing, showing
from gruppo.tasks import TaskConfig

HEARD = {  # what `Ask.how` may ask of an environment
    "tries": "further tries",
    "turns": "a limit of turns",
    "memory": "a memory that the agent edits",
    "entropy_tokens": "branches at turns",
}
WAITING = 1024  # worlds with processes or tools that are waited for at once; threads begin where none is idle


@dataclass
class Converse:
    """Plays environments. Those of other libraries have processes, which are kept for the next episode.

    format  how an action is read from what the policy wrote
    window  the last turns that the policy sees; -1: all of them, in one growing context
    rules   whether the rules of a world are the system prompt of its tasks, if they have none
    seconds that a step of a world may take, if it is not built in
    say     is told, once each, of a world that hangs and of a dialogue that cannot be extended
    writers the role that writes for an agent; the policy for all others
    hosted  whether your own worlds have processes, too
    tools   how the model is shown the tools that it may call, if there are any
    make    (name, hosted) -> a world
    """

    format: Format = field(default_factory=Line)
    window: int = -1
    rules: bool = False
    seconds: float = SECONDS
    say: Callable[[str], None] = print
    writers: Mapping[str, str] = field(default_factory=dict[str, str])
    hosted: bool = False
    tools: Showing = field(default_factory=Showing)
    free: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    waiting: Threads = field(default_factory=lambda: Threads(WAITING, "world"))
    hung: set[str] = field(default_factory=set[str])
    known: dict[str, Hosted] = field(default_factory=dict[str, Hosted])  # of each world the first one in a process
    lives: dict[str, Life] = field(default_factory=dict[str, Life])
    anew: bool = False  # a dialogue was rendered again
    make: Callable[[str, bool], Any] = make_env

    async def __call__(
        self, ctx: Context, starts: Sequence[Start | Fork], window: int = 0, turns: int = 0
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
        for life in self.lives.values():
            life.another_try()

        async def play(i: int, start: Start | Fork) -> None:
            with self.borrowed(start) as env:
                await ended.put((i, await Dialogue(self, ctx, start, env, turns).played()))

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
        """Ends the processes of environments, and the threads that waited for them."""
        for envs in self.free.values():
            for env in envs:
                if isinstance(env, Hosted):
                    env.close()
        self.free.clear()
        self.waiting.shutdown()  # the next play begins with new ones
        self.waiting = Threads(WAITING, "world")

    def format_in(self, env: Any) -> Format:
        """How an action is read there: where tools may be called, a text is a call or an answer."""
        return self.format if getattr(env, "box", None) is None else reading(self.format)

    def told_anew(self, why: str) -> None:
        """That a dialogue is not extended, the first time."""
        if not self.anew:
            self.say(
                f"{why}, so dialogues cannot be extended: every turn begins a new sequence of its episode, in which "
                "the whole dialogue is rendered and computed again. Use a chat model with another template for one "
                "sequence an episode, or task.window to show the last turns only."
            )
        self.anew = True

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
        limit = limit_of(config)
        _refuse_needless(tasks.env, config.hosted)
        play = Converse(format_of(config.format), config.window, rules, limit, say, writers or {}, config.hosted)
        if config.tools:
            play.tools = showing(tokenizer, toolbox(config.tools))
        return play
    for name in ("format", "window", "hosted"):
        if (value := getattr(config, name)) != getattr(TaskConfig, name):
            raise ValueError(
                f"task.{name}={value}: task={config.name} is not played in an environment, so it would have no effect. "
                "Leave it out."
            )
    return import_module("gruppo.serve.player").agents_of(config, say) if config.agent else one_answer


def _refuse_needless(worlds: str, hosted: bool) -> None:
    names = worlds.split("+")
    if hosted and all(name in BUILT_IN or name.startswith("env:") for name in names):
        raise ValueError(
            f"task.hosted=yes: {', '.join(names)} is built in, or has processes already, so it would have no effect. "
            "Leave it out: it is for worlds of your own."
        )


@dataclass
class Borrowed:
    """An environment for one episode, with the wrappers that its ask wants; given back at the end."""

    player: Converse
    ask: Ask

    def __enter__(self) -> Any:
        self.name = str(self.ask.task.meta["env"])
        free = self.player.free.setdefault(self.name, [])
        new = not free
        self.env = self.player.make(self.name, self.player.hosted) if new else free.pop()
        self.waits = bool(getattr(self.env, "waits", False))  # for tools and programs, which have limits of their own
        limit, own = self.player.seconds, self.name not in BUILT_IN and not self.waits
        if isinstance(self.env, Hosted):
            self.env.seconds, own = limit, False  # it looks at the time itself
            first = self.player.known.setdefault(self.name, self.env)
            if new and first is self.env:
                self.env.start()  # one that cannot start ends the run, and not its episodes
            elif new:
                self.env.same_as(first)  # its process starts when it is reset, beside others
        life = self.player.lives.setdefault(self.name, Life())
        self.guard = Guarded(placed(self.env, self.ask.task), limit if own else 0.0, self._told, life)
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
