"""The walk: the path of the data from the curriculum to a batch with credit.

    curriculum ─▶ prompting ─▶ rollout ─▶ reward ─▶ select ─▶ reward ─▶ [pack] ─▶ needs ─▶ credit ─▶ select
                      ▲                              episodes   groups                               tokens
                      └──────────── redraw ─────────────┘

The trainer, step zero, the laws and the laboratory all use this walk, so what is tested is what trains. What differs
between them is passed in: the tasks, how an episode is played, the judge, how to pack and how to read models.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Level, Note, Source, Status, Use, pack, tokens_once
from gruppo.stages.context import Ask, Context, Prompt
from gruppo.stages.method import Method
from gruppo.stages.objective import OLD
from gruppo.stages.play import Fork, Play, Start, ask_of, one_answer, shown, starts_of
from gruppo.stages.prompting import prompts_for
from gruppo.stages.readouts import Need, need
from gruppo.stages.reward import add_components
from gruppo.stages.scoring import Scoring
from gruppo.stages.select import through_first_door
from gruppo.stages.under_way import under_way
from gruppo.stages.unfinished import NO_REDRAWS, going_on, in_free_slots, parted
from gruppo.stages.writers import tokens_selected, writers_of

NO_TASK = (
    "The scorer returned the components {} but none called `task`: it is unknown what counts as solved, and selection "
    "needs that. Return {{'task': …}} among them."
)
Read = Callable[[str, Batch, list[Need]], Mapping[str, Tensor]]


class Judge(Protocol):
    """Scores answers with the scorer of the task."""

    @property
    def in_order(self) -> bool:
        """Whether the order of the answers may matter: if so, they are scored together, in their order."""
        ...

    def score(self, items: Sequence[tuple[Any, str]]) -> Awaitable[Sequence[Any]]: ...

    def answers(self, groups: Sequence[Sequence[tuple[Any, str]]]) -> Awaitable[Sequence[Sequence[str]]]: ...


@dataclass
class Walk:
    """The rooms of a method, and what they work with.

    read    (role, batch, needs) -> columns, without gradient; the role "old" is the policy at the start of the step,
            and of a row that another role wrote, that role (gruppo.stages.writers)
    tasks   the training set, by index
    judge   scores answers; None: episodes come with their rewards
    packed  (episodes, drawn, views) -> Batch
    play    how an episode is played
    current is called before anything is drawn: weights that an update has changed get a version of their own
    clock   times the parts of a step
    pay     is given every episode once, when it has its score, and may change it before any room sees it
    """

    method: Method
    read: Read
    tasks: Any = ()
    judge: Judge | None = None
    packed: Callable[..., Batch] = pack
    play: Play = one_answer
    current: Callable[[], None] = field(default=lambda: None)
    budget_tokens: int = 0  # sampled tokens per step, redraws included; 0: no limit
    turns: int = 0  # of an episode that a step plays; one that is not over goes on in the next (unfinished.py); 0: all
    clock: Callable[[str], AbstractContextManager[Any]] = field(default=lambda name: nullcontext())
    pay: Callable[[Context, Sequence[Episode]], None] = field(default=lambda ctx, episodes: None)

    def opened(self, ctx: Context, store: Sequence[Episode] = ()) -> Context:
        """The context with the functions of the walk, and with what the replay recalls from its store."""
        ctx.replay = tuple(map(self.asked, self.method.replay.get(ctx, store)))
        ctx.play, ctx.reward = partial(self.played, ctx), partial(self.rewarded, ctx)
        ctx.draw, ctx.read = partial(self.drawn, ctx), self.read_episodes
        ctx.answer, ctx.ready = partial(self.answered, ctx), partial(self.ready, ctx)
        ctx.fresh = lambda n: self.method.curriculum(replace(ctx, prompts=n, round=ctx.round + 1), self.tasks)
        return ctx

    # from asks to rewarded episodes

    async def collected(self, ctx: Context) -> tuple[list[Episode], list[Episode]]:
        """Draw, reward, select, and redraw what selection asks for. Returns (all that was drawn, what was kept).

        Groups that are not complete are neither: they stay in `ctx.open`, for the next step.
        """
        asks: Sequence[Ask | Prompt] = in_free_slots(ctx, self.method.curriculum(ctx, self.tasks))
        open_: Sequence[Fork] = going_on(ctx)
        drawn: list[Episode] = []
        kept: list[Episode] = []
        while asks or open_:
            made = await self.rolled(ctx, [*open_, *asks], self.method.rollout, self.turns)
            if self.turns or ctx.open:  # else a method may have left answers open itself
                made, ctx.open = parted(ctx.open, made)
            fresh, open_ = await self.rewarded(ctx, made), ()
            drawn += fresh
            kept, again = through_first_door(ctx, self.method.select, [*kept, *fresh])
            if again and self.turns:
                raise ValueError(f"turns_a_step={self.turns}: selection {NO_REDRAWS}")
            asks = again
            if self.budget_tokens and tokens_once(drawn, Source.POLICY) >= self.budget_tokens:
                break
            if asks:
                ctx.round += 1
        return drawn, await self.compared(ctx, kept)

    async def drawn(self, ctx: Context, asks: Sequence[Ask | Prompt], rollout: Any = None) -> list[Episode]:
        """Rewarded episodes from asks or prompts; without a rollout, one play per sample."""
        return await self.rewarded(ctx, await self.rolled(ctx, asks, rollout))

    async def rolled(
        self, ctx: Context, asks: Sequence[Ask | Prompt | Fork], rollout: Any = None, turns: int = 0
    ) -> list[Episode]:
        """Episodes without the components of the reward room, each with at most so many more turns; 0: to its end."""
        prompts: list[Prompt | Fork] = []
        for ask in asks:
            if isinstance(ask, Ask):
                prompts += prompts_for(ctx, self.method.prompting, self.shown(ask))
            else:
                prompts.append(ask)
        given = replace(ctx, play=partial(ctx.play, turns=turns)) if turns else ctx
        return await (rollout(given, prompts) if rollout else given.play(prompts))

    async def played(
        self, ctx: Context, starts: Sequence[Prompt | Start | Fork], window: int = 0, turns: int = 0
    ) -> list[Episode]:
        """Episodes from these starts, in their order. Each is scored when it ends, while others are still played."""
        self.current()
        each = starts_of(ctx, starts)
        found: dict[int, Episode] = {}
        scoring = Scoring(self.judge, partial(self.scored, ctx))
        try:
            with self.clock("sampling"), under_way(found, len(each)):
                limit = {"turns": turns} if turns else {}
                async for i, episode in self.play(ctx, each, window, **limit):
                    found[i] = episode
                    if episode.scores and episode.status != Status.OPEN:  # its environment has paid it
                        self.pay(ctx, [episode])
                    await scoring.add(episode)
            with self.clock("scoring"):
                await scoring.end()
        except BaseException:
            await scoring.cancel()
            raise
        out = [found[i] for i in range(len(each))]
        with self.clock("scoring"):
            await self.scored(ctx, out)
        return out

    async def answered(self, ctx: Context, starts: Sequence[Prompt | Start | Fork]) -> list[Episode]:
        """ctx.answer: what the policy says now after each of these. No environment hears it, and nothing scores it.

        Each is an episode apart: it can be learned from, and is in no statistic.
        """
        if len(writers_of(self.method)) > 1:
            raise ValueError(
                f"{self.method.name} draws utterances that no world hears (ctx.answer), and those have no agent: it is "
                "unknown which of the writers would say them. Leave method.writers out, or use another method."
            )
        self.current()
        each = [_within(s, ctx.engine.context()) for s in starts_of(ctx, starts)]
        found: dict[int, Episode] = {}
        with self.clock("sampling"), under_way(found, len(each)):
            async for i, episode in one_answer(ctx, each):
                found[i] = replace(episode, use=Use.APART)
        return [found[i] for i in range(len(each))]

    async def scored(self, ctx: Context, episodes: Sequence[Episode]) -> None:
        """Score those that have no task reward yet. A failure is a status, never a reward."""
        new = [e for e in episodes if e.status.judged and not e.scores]
        if not new or self.judge is None:
            return
        verdicts = await self.judge.score([(self.task_of(e), e.text) for e in new])
        for e, verdict in zip(new, verdicts, strict=True):
            if verdict.status == "ok" and "task" not in verdict.components:
                e.status, e.error = Status.ENV_ERROR, NO_TASK.format(", ".join(verdict.components))
            elif verdict.status == "ok":
                e.reward.update(verdict.components)
            else:
                e.status, e.error = Status[verdict.status.upper()], verdict.error
        self.pay(ctx, new)

    async def rewarded(self, ctx: Context, episodes: Sequence[Episode]) -> list[Episode]:
        """Add the task reward, and the components of the reward room. An episode gets these once."""
        with self.clock("scoring"):
            await self.scored(ctx, episodes)
        new = [e for e in episodes if e.status.judged and not e.rewarded]
        add_components(ctx, self.method.reward, new)
        for e in new:
            e.rewarded = True
        return list(episodes)

    async def compared(self, ctx: Context, kept: list[Episode]) -> list[Episode]:
        """Once a step has all its episodes: which answers are the same, then the rewards that compare a group."""
        if self.judge is not None and any("answer_E" in o.reads for _, o in self.method.occupants()):
            groups: dict[str, list[Episode]] = {}
            for e in kept:
                if e.status.judged:
                    groups.setdefault(e.group, []).append(e)
            with self.clock("scoring"):
                found = await self.judge.answers([[(self.task_of(e), e.text) for e in g] for g in groups.values()])
            for group, answers in zip(groups.values(), found, strict=True):
                for e, answer in zip(group, answers, strict=True):
                    e.answer = answer
        add_components(ctx, self.method.reward, kept, of_groups=True)
        return kept

    def task_of(self, e: Episode) -> Any:
        """The task of an episode: that of its ask or, for an episode of an earlier process, the one at its index."""
        if e.ask is not None:
            return e.ask.task
        found = self.tasks[e.index] if 0 <= e.index < len(self.tasks) else None
        if found is None or found.uid != e.task:
            raise ValueError(
                f"task {e.task!r} of an episode is not in the training set, so it cannot be scored. Put the data back "
                "as it was; a rollout of your own makes its episodes with ctx.play or stages.play.episode_of."
            )
        return found

    def asked(self, e: Episode) -> Episode:
        """The episode with its ask, also if an earlier process drew it: then its ask is made again, if that can be."""
        if e.ask is None and 0 <= e.index < len(self.tasks):
            task = self.tasks[e.index]
            with suppress(ValueError):  # options that no file holds: most rooms do not ask for it
                e.ask = self.shown(ask_of(e, task)) if task.uid == e.task else None
        return e

    def shown(self, ask: Ask) -> Ask:
        """The ask for a task with an environment shows what is seen first."""
        return replace(ask, task=shown(self.play, ask.task))

    # from episodes to a batch with credit

    def batch_of(
        self, ctx: Context, drawn: Sequence[Episode], kept: Sequence[Episode], lazy: bool = True
    ) -> Batch | None:
        """What selection kept and what the replay adds, packed, with everything that is read once per batch.

        None if there is nothing to learn from. `lazy` leaves log π_old out where the update gets it for free.
        """
        used = [e for e in self.with_replay(ctx, kept) if e.use != Use.NONE]
        if all(e.use == Use.BASELINE for e in used):
            return None
        counts: dict[str, int] = {}
        for e in (e for e in drawn if e.use <= Use.BASELINE):
            counts[e.group] = counts.get(e.group, 0) + 1
        wanted = self.needs(ctx)
        batch = self.packed(used, drawn=counts, views=[n.view for n in wanted])
        left_out = self.lazy_old(ctx) if lazy else frozenset[Need]()
        return self.with_needs(batch, [n for n in wanted if n not in left_out])

    def with_replay(self, ctx: Context, kept: Sequence[Episode]) -> list[Episode]:
        """What selection kept and what the replay adds: all that it recalls, or what it inserts itself."""
        replay = self.method.replay
        if hasattr(replay, "insert"):
            return replay.insert(ctx, kept)
        return [*kept, *(recalled(e, replay.credited) for e in ctx.replay if replay.joins)]

    def needs(self, ctx: Context) -> list[Need]:
        """What the rooms read from models; with a replay also log π_old, which is stored with its episodes."""
        return [n for _, _, n in self.method.needs(ctx)] + ([OLD] if self.method.remembers_episodes else [])

    def lazy_old(self, ctx: Context) -> frozenset[Need]:
        """log π_old, if it needs no forward pass: a batch is one optimiser step, and only that step reads it."""
        if getattr(self.method.update, "steps", 2) != 1 or self.method.remembers_episodes:
            return frozenset()
        early = [n for room, _, n in self.method.needs(ctx) if room not in ("objective", "penalties")]
        return frozenset() if OLD in early else frozenset({OLD})

    def with_needs(self, batch: Batch, wanted: Sequence[Need]) -> Batch:
        needs = list(dict.fromkeys(n for n in wanted if n.when == "batch"))
        for role in dict.fromkeys(n.role for n in needs):
            with self.clock("forward"):
                batch = batch.with_columns(**self.read(role, batch, [n for n in needs if n.role == role]))
        return batch

    def credited(self, ctx: Context, batch: Batch) -> Batch:
        """The batch after credit and token selection. Replayed rows may keep their stored log π_old and credit."""
        batch = _stored(batch, ("logp_old_N",)) if self.method.replay.proximal == "stored" else batch
        batch = batch.with_columns(**self.method.credit(ctx, batch))
        if self.method.replay.credited == "stored":
            batch = _stored(batch, self.method.credit.writes)
        return tokens_selected(ctx, self.method, batch)

    def read_episodes(
        self, episodes: Sequence[Episode], role: str = "policy", readouts: Sequence[str | Need] = ("logp",)
    ) -> Batch:
        """ctx.read: these episodes as a batch, with what models say about them now as columns.

        For early rooms, the update and observe. `readouts` are names, of this role and at N, or needs.
        """
        wanted = as_needs(role, readouts)
        return self.with_needs(self.packed(episodes, views=[n.view for n in wanted]), wanted)

    def ready(self, ctx: Context, episodes: Sequence[Episode]) -> Batch:
        """ctx.ready: these episodes as a batch to learn from: with the needs of the rooms, credit and selection."""
        wanted = [n for _, _, n in self.method.needs(ctx)]
        batch = self.packed(episodes, views=[n.view for n in wanted])
        return self.credited(ctx, self.with_needs(batch, wanted))

    def remembered(
        self, ctx: Context, store: list[Episode], batch: Batch | None, kept: Sequence[Episode]
    ) -> list[Episode]:
        """What the replay keeps after the step."""
        if not self.method.remembers_episodes:
            return []
        return self.method.replay.put(ctx, store, noted(batch, kept, ("logp_old_N", *self.method.credit.writes)))


def as_needs(role: str, readouts: Sequence[str | Need]) -> list[Need]:
    """Names of readouts as needs of a role at N. Needs stay as they are, but are read at once."""
    return [need(r, role) if isinstance(r, str) else replace(r, when="batch") for r in readouts]


def _within(start: Start | Fork, context: int) -> Start | Fork:
    """The start with no more tokens to sample than the context of the model has room for."""
    most = min(start.sampling.max_tokens, max(context - len(start.prefix), 1))
    return replace(start, sampling=replace(start.sampling, max_tokens=most))


def recalled(e: Episode, credited: str) -> Episode:
    """A remembered episode as it joins a batch: in the group of its own step, apart from the groups of this one.

    With stored credit it stays out of the statistics of this batch.
    """
    use = Use.APART if credited == "stored" and e.use == Use.LEARN else e.use
    return replace(e, replayed=True, group=f"{e.group}@{e.step}", use=use)


def _stored(batch: Batch, names: Sequence[str]) -> Batch:
    """The batch in which replayed rows have these columns as they were in their own step (stored as notes)."""
    out: dict[str, Tensor] = {}
    for column, (name, level) in note_names(names).items():
        note = batch.columns.get(f"note_{name}_{level}")
        if note is not None and column in batch.columns:
            now, past = batch.columns[column], batch.spread(batch.replayed_E, "E", level)
            out[column] = note.to(now.dtype).where(past & ~note.isnan(), now)
    return batch.with_columns(**out)


NOTED: tuple[Level, ...] = ("N", "K", "S", "E")  # levels whose columns can be notes


def note_names(columns: Sequence[str]) -> dict[str, tuple[str, Level]]:
    """The note of each column, and its level: adv_N is `adv`; adv_K is too, or `adv_K` if both are there."""
    out: dict[str, tuple[str, Level]] = {}
    for level in NOTED:
        for column in (c for c in columns if c.endswith(f"_{level}")):
            name = column.removesuffix(f"_{level}")
            out[column] = (column if name in {n for n, _ in out.values()} else name), level
    return out


def noted(batch: Batch | None, episodes: Sequence[Episode], columns: Sequence[str]) -> list[Episode]:
    """Episodes for replay: the columns that they were learned with (log π_old, credit) become notes of their level.

    The clock stays behind: a checkpoint of a run that repeats itself holds the same bytes.
    """
    if batch is None:
        return []
    row = {uid: i for i, uid in enumerate(batch.uid_E.tolist())}
    parts: dict[str, tuple[Level, Sequence[Tensor]]] = {}
    flat = [c for c in columns if c in batch.columns and batch.columns[c].dim() == 1]
    for column, (name, level) in note_names(flat).items():
        x, episode = batch.columns[column].float().cpu(), batch.up(level, "E")
        if level == "K":  # notes of turns are in the order of time
            x = x[batch.time_order("K").cpu()]
        parts[name] = level, torch.split(x, torch.bincount(episode, minlength=len(row)).tolist())

    def notes(e: Episode) -> dict[str, Note]:
        return {name: Note(rows[row[e.uid]].numpy(), level, e.step) for name, (level, rows) in parts.items()}

    return [replace(without_clock(e), notes=e.notes | notes(e)) for e in episodes if e.uid in row]


def without_clock(e: Episode) -> Episode:
    """The episode as if its turns had taken no time."""
    return replace(e, turns=[replace(t, seconds=0.0) if t.seconds else t for t in e.turns])
