"""How an episode is played by the program of a user: it calls the policy as often as it likes, and returns the reward.

What `ctx.play` does with `task.agent`, in training, redraws, evaluation and step zero alike. All programs of a draw run
at once, and their calls share the engine's running batch, in free order: whoever is ready goes on. So the random keys
and the episodes are the same in every run if the programs are, but the last bits may differ.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np

from gruppo.data import Episode, Status
from gruppo.serve.client import Client
from gruppo.serve.endpoint import Endpoint, gone
from gruppo.serve.http import Refusal
from gruppo.serve.outcome import Row, hung
from gruppo.serve.programs import Programs, programs_of
from gruppo.serve.session import MOST, Session
from gruppo.stages.context import Context
from gruppo.stages.play import Fork, Start, as_they_end, grown_of
from gruppo.tasks.settings import TaskConfig

MODEL = "policy"
LOOK = 0.05  # seconds between two looks at the clock of a program, at least
SILENT = (
    "The agent never called the policy, so there is nothing to learn from. Call the address that it is given "
    "(client.base_url, OPENAI_BASE_URL)."
)


@dataclass
class Agents:
    """Plays episodes with a program of the user.

    seconds  of its own, without waiting for the policy; then it is killed
    at_once  programs that run at the same time
    """

    programs: Programs
    seconds: float = 5.0
    at_once: int = 64
    say: Callable[[str], None] = print
    told: set[str] = field(default_factory=set[str])

    async def __call__(
        self, ctx: Context, starts: Sequence[Start | Fork], window: int = 0, turns: int = 0
    ) -> AsyncIterator[tuple[int, Episode]]:
        each = [whole(ctx, s, window or turns) for s in starts]
        draw = Draw(self, ctx)
        endpoint = await draw.open()
        places, ended = asyncio.Semaphore(self.at_once), asyncio.Queue[tuple[int, Episode]]()

        async def play(i: int, start: Start) -> None:
            async with places:
                await ended.put((i, await draw.played(start)))
            if endpoint.broken is not None:
                raise endpoint.broken

        playing = asyncio.gather(*(play(i, s) for i, s in enumerate(each)))
        try:
            async with aclosing(as_they_end(playing, ended, len(each))) as found:
                async for i, episode in found:
                    yield i, episode
        finally:
            await draw.settled()
            await endpoint.close()

    def close(self) -> None:
        self.programs.close()


def agents_of(config: TaskConfig, say: Callable[[str], None] = print) -> Agents:
    """The player of `task.agent`; what cannot be run is refused here."""
    programs = programs_of(config.agent, config.start_seconds)
    programs.start()
    return Agents(programs, config.seconds, config.concurrency, say)


def whole(ctx: Context, start: Start | Fork, window: int) -> Start:
    """A start that a program can play: from its beginning to its end, with prompts of its own."""
    if window or isinstance(start, Fork):
        raise ValueError(
            "task.agent: a program plays its episodes from the beginning to the end, and this method goes on from the "
            "middle of one. Use another method, such as method=grpo, or a task without an agent."
        )
    prompt = start.prompt
    if prompt.given or prompt.train_as is not None or not np.array_equal(
        prompt.ids, ctx.tokenizer.chat(prompt.ask.task.messages)
    ):  # fmt: skip
        raise ValueError(
            "task.agent: a program writes its own prompts, so method.prompting, which gives hints or other words, "
            "would have no effect. Use a method without it, such as method=grpo, or a task without an agent."
        )
    return start


class Draw:
    """The episodes of one draw, at one endpoint."""

    def __init__(self, agents: Agents, ctx: Context) -> None:
        self.agents, self.ctx = agents, ctx
        self.sessions: dict[str, Session] = {}
        self.starts: dict[int, Start] = {}  # by the identity of the session
        self.killed: set[asyncio.Task[Row]] = set()

    async def open(self) -> Endpoint:
        how = lambda session: self.starts[id(session)].sampling  # noqa: E731
        agents = self.agents
        self.endpoint = Endpoint(self.ctx, MODEL, self.find, how, say=agents.say, told=agents.told)
        return await self.endpoint.start()

    def find(self, name: str, _key: str = "") -> Session:
        if name not in self.sessions:
            raise Refusal(
                401,
                f"{name[:12]!r} is the key of no episode that is played now. Use the base_url and the key that the "
                "agent was given (client.base_url and client.key, OPENAI_BASE_URL and OPENAI_API_KEY).",
                "invalid_api_key",
            )
        if (session := self.sessions[name]).over:
            raise gone()
        return session

    async def played(self, start: Start) -> Episode:
        """The program of one episode, from its beginning to its end."""
        session, key = self.session(start), secrets.token_hex(16)
        self.sessions[key], self.starts[id(session)] = session, start
        client = Client(f"{self.endpoint.address}/{key}", key, MODEL, start.uid % (1 << 63))
        session.begin()
        running = asyncio.create_task(self.agents.programs.run(start.prompt.ask.task, client))
        try:
            row = await self._within(running, session)
        finally:
            session.over = True
            running.cancel()
            self.killed.add(running)
        return episode_of(session, row)

    async def _within(self, running: "asyncio.Task[Row]", session: Session) -> Row:
        limit = self.agents.seconds
        while True:
            left = limit - session.own_seconds
            if left <= 0 and not running.done():
                running.cancel()
                await asyncio.wait({running})
                return hung(limit)
            if (await asyncio.wait({running}, timeout=max(left, LOOK)))[0]:
                return running.result()

    def session(self, start: Start) -> Session:
        turns = min(int(start.prompt.ask.how.get("turns", 0)) or MOST, MOST)
        return Session(grown_of(self.ctx, start), self.ctx.tokenizer, start.prompt.ids, turns)

    async def settled(self) -> None:
        """Every program is dead."""
        if self.killed:
            await asyncio.wait(self.killed)


def episode_of(session: Session, row: Row) -> Episode:
    """The episode with its reward; a failure is a status, never a reward."""
    found, status, error = row
    if status == "ok" and not session.grown.turns:
        found, status, error = {}, "env_error", SILENT
    if status != "ok":
        return session.grown.finish(Status[status.upper()], error=error, text=session.text)
    return session.grown.finish(Status.OK, reward=dict(found), text=session.text)
