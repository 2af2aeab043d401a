"""One episode in its environment: observation, action, observation, … until it is over.

What was sampled is never encoded again, and an observation is what the chat template puts after it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gruppo.data import Episode, Note, Status, ToolCall, key_hash
from gruppo.envs.base import Seen, seats_of
from gruppo.envs.format import Said
from gruppo.envs.guard import TIMEOUT, failed
from gruppo.envs.hosted import Hosted
from gruppo.envs.wrappers import cut
from gruppo.stages.context import Ask, Context
from gruppo.stages.play import Fork, Further, Start, grown_of, prompt_source, request_after
from gruppo.stages.tooling import readable, rendered

GOAL = "goal"  # in the meta of a task: its prompt without the first observation
LIKELY = 10  # most probable ids that an entropy is about
OVERFLOW = "overflow"  # a note of episodes that ended since their next observation had no room: the tokens too many
FIRST_ENTROPY = "first_entropy"  # a note of turns, if Ask.how["entropy_tokens"] asks for it
UNREADABLE = "unreadable"  # how the error of an episode begins in which the model cannot be told what is seen


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


def elsewhere(episode: Episode, turn: int, state: str) -> str:
    """Of an open episode whose actions, played again, lead to another state."""
    return (
        f"open episode {episode.uid} (task {episode.task!r}) cannot go on: played again, its actions lead to the state "
        f"{state!r} before turn {turn}, which was {episode.turns[turn].state!r}. Its world is no pure function of its "
        "actions (gruppo env check says more), so no episode can be left open there. Repair it, or start a run with "
        "turns_a_step=0."
    )


def first_entropy(topk: Any, tokens: int, vocab: int) -> float:
    """−Σ p log p over the reported ids of the first tokens, in units of log |V|; NaN if none were reported."""
    if not tokens or topk is None:
        return float("nan")
    logp = topk[1][:tokens].astype(np.float64)
    return float(-(np.exp(logp) * logp).sum() / np.log(vocab))


class Dialogue:
    """One episode in its environment. Every agent of a game has a context of its own.

    turns  that are played at most, of all agents; an episode that is not over then stays open; 0: no limit
    """

    def __init__(self, player: Any, ctx: Context, start: Start | Fork, env: Any, turns: int = 0) -> None:
        self.player, self.ctx, self.start, self.env, self.turns = player, ctx, start, env, turns
        self.ask = ask_of(start)
        self.read = player.format_in(env)
        self.goal = str(self.ask.task.meta.get(GOAL, self.ask.task.prompt))
        self.context_of: dict[str, int] = {}
        self.done_in: set[tuple[str, str]] = set()  # what was done in which state
        self.lines: list[str] = []  # for people
        self.talk: dict[str, list[Any]] = {}  # the messages of each agent, for templates that cannot be extended
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
            self._heard(seen, fresh=True)
            if not seen.done and len(ids) >= (most := self.ctx.engine.context(self._writer(seen))):
                seen = failed(LONG, too_long(self.ask.task, len(ids), len(self._chat(Seen(""))), most), seen.agent)
        last = len(self.grown.turns) + self.turns
        while not seen.done:
            said = await self._action(seen)
            seen = self._paid(seen, said, await self._env("step", said.action))
            if not seen.done and self.turns and len(self.grown.turns) == last:
                return self.grown.finish(Status.OPEN, text=self._text())  # what it sees next comes when it goes on
            seen = seen if seen.done else self._observe(seen)
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
        return rendered(self.ctx.tokenizer, self._first(seen), self.ask.task)

    def _first(self, seen: Seen) -> Sequence[Any]:
        return replace(self.ask.task, prompt=said_first(self.goal, seen)).messages

    def _heard(self, seen: Seen, fresh: bool) -> None:
        """What is seen, in the dialogue of the agent that acts next."""
        if fresh:
            self.talk[seen.agent] = list(self._first(seen))
        else:
            self.talk[seen.agent].append(self.player.tools.message(self.ctx.tokenizer, seen))

    async def _replayed(self, start: Fork, seen: Seen) -> Seen:
        """The environment as it was before the action that the fork goes on with: its actions are played again."""
        self.grown, further = start.grown(), isinstance(start, Further)
        self.entropy = [float("nan")] * len(self.grown.turns)
        for i, turn in enumerate(self.grown.turns):
            if seen.error:  # of the world, not of the actions: the episode fails, and the run goes on
                return seen
            if further and seen.state != turn.state:
                raise ValueError(elsewhere(start.episode, i, seen.state))
            fresh = seen.fresh or seen.agent not in self.context_of
            self._heard(self._legible(seen) if fresh and i else seen, fresh)
            self.context_of[seen.agent] = turn.sequence
            said = self.read(turn.text)
            self.done_in.add((turn.state, turn.action_key))
            self._tell(seen, turn.text)
            seen = await self._env("step", said.action)
            self.lines.append(seen.text)
            if seen.done and not seen.error:
                raise ValueError(
                    f"episode {start.episode.uid} cannot be continued after turn {i}: played again, its actions end "
                    "the episode there. Is the environment a pure function of its actions? gruppo env check says."
                )
        if seen.error:
            return seen
        if further:
            self.cut = "truncated" in self.grown.turns[-1].flags
            return self._observe(seen)
        self._heard(seen, seen.fresh or seen.agent not in self.context_of)
        self.context_of[seen.agent] = start.sequence
        return seen

    async def _env(self, call: str, given: Any) -> Seen:
        """Environments in this process are fast; those that wait, for a process or a tool, must not hold up others."""
        inner = self.env
        while not isinstance(inner, Hosted) and hasattr(inner, "env"):
            inner = inner.env
        act = getattr(self.env, call)
        slow = isinstance(inner, Hosted) or (call == "step" and getattr(inner, "waits", False))
        if not slow:
            return act(given)
        return await asyncio.get_running_loop().run_in_executor(self.player.waiting, act, given)

    # an action

    async def _action(self, seen: Seen) -> Said:
        """What the policy says to what it sees, as it was read."""
        self.asked_at = time.monotonic()
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
        return self.read(self.said)

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
            seconds=time.monotonic() - self.asked_at,
            text=self.said,
            tools=tuple(ToolCall(c.name, c.arguments, c.seconds, c.ok) for c in seen.tools),
        )
        return seen

    def _observe(self, seen: Seen) -> Seen:
        """What the agent that acts next sees, in its context or in a new one.

        The episode is over if no action would fit after it, or if the model cannot be told it.
        """
        fresh = seen.fresh or seen.agent not in self.context_of
        anew = fresh or bool(getattr(self.ctx.tokenizer, "stuck", ""))
        if not anew:
            self.grown.switch(self.context_of[seen.agent])
        before = 0 if anew else len(self.grown.ids)
        try:
            ids = self._encoded(seen, fresh, anew)
        except ValueError as error:  # a special token of the model, say
            return failed(UNREADABLE, str(error), seen.agent)
        self.over = max(before + len(ids) + 1 - self.ctx.engine.context(self._writer(seen)), 0)  # 1: for an action
        if self.over:
            return cut(self.env, replace(seen, rewards={}))  # those of the turn are paid
        if anew:
            self.context_of[seen.agent] = self.grown.begin(ids)
        else:
            self.grown.observe(ids)
        return seen

    def _encoded(self, seen: Seen, fresh: bool, anew: bool) -> Any:
        """The whole dialogue, or what follows the last action in it."""
        tokenizer = self.ctx.tokenizer
        self._heard(self._legible(seen) if fresh else seen, fresh)
        if anew:
            if not fresh:
                self.player.told_anew(tokenizer.stuck)
            return rendered(tokenizer, self.talk[seen.agent], self.ask.task)
        before = self.grown.ids
        return tokenizer.follow(self.talk[seen.agent][-1:], int(before[-1]) if len(before) else None)

    def _legible(self, seen: Seen) -> Seen:
        """It may quote what the policy or a tool has said, and an episode does not fail for that."""
        return replace(seen, text=readable(self.ctx.tokenizer, seen.text))

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
        said = (
            readable(self.ctx.tokenizer, said) if getattr(self.ctx.tokenizer, "stuck", "") else said
        )  # rendered again
        self.talk[seen.agent].append({"role": "assistant", "content": said})

    def _text(self) -> str:
        """The dialogue after the prompt; actions are marked with >."""
        return "\n".join(line for line in self.lines if line)
