"""The loop: one function that calls every room by name. Asynchrony is another source of episodes with the same loop."""

import time
from collections.abc import Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any

from gruppo.data import Batch, Episode, Note, Status, Use, pack
from gruppo.stages import Ask, Context, Need, Prompt, Stats, StepRecord, need
from gruppo.stages.check import check_first_batch
from gruppo.stages.prompting import prompts_for
from gruppo.stages.reward import add_components
from gruppo.stages.rollout import Group
from gruppo.stages.select import through_first_door, through_second_door
from gruppo.train.cast import refresh
from gruppo.train.learner import sampler_gap
from gruppo.train.metrics import batch_metrics, episode_metrics, time_metrics
from gruppo.train.run import Run

NO_TASK = (
    "The scorer returned the components {} but none called `task`: what counts as solved is not known, and selection "
    "looks at it. Return {{'task': …}} among them."
)


def context(run: Run, step: int) -> Context:
    """What the rooms of this step are given: they may draw, score and reward through the same code as the loop."""
    ctx = run.bare_context(step)
    run.scored.clear()
    ctx.cast, ctx.engine, ctx.tokenizer, ctx.replay = run.models, run.engine, run.tokenizer, tuple(run.replay)
    ctx.reward = lambda episodes: score(run, ctx, list(episodes))
    ctx.draw = lambda asks: draw(run, ctx, asks, rollout=Group())
    ctx.score = lambda episodes, role="policy", readouts=("logp",): score_with(run, episodes, role, readouts)
    ctx.fresh = lambda n: run.method.curriculum(replace(ctx, prompts=n, round=ctx.round + 1), run.tasks.train)
    return ctx


async def train_step(run: Run, step: int) -> StepRecord:
    """One walk of the data through the ten rooms."""
    method, ctx, start = run.method, context(run, step), time.perf_counter()
    run.learner.begin(ctx)
    before = run.engine.sampled

    drawn, episodes = await draw_until_selected(run, ctx)  # curriculum, prompting, rollout, reward, select.episodes
    past = [from_the_past(e, method.replay.credited) for e in method.replay.get(ctx, run.replay)]
    facts = episode_metrics(drawn) | {"rounds": ctx.round + 1.0, "sampled": float(run.engine.sampled - before)}
    run.stop_if_failing(facts["failed"], drawn)
    run.note_dead(facts["dead_groups"])

    batch = None
    used = [e for e in (*episodes, *past) if e.use != Use.NONE]
    run.note_empty(all(e.use == Use.BASELINE for e in used))
    if any(e.use != Use.BASELINE for e in used):
        batch = packed(run, ctx, drawn, used)  # pack, and the needs of the batch
        batch = with_stored_credit(method, batch.with_columns(**method.credit(ctx, batch)))
        batch = through_second_door(ctx, method.select, batch, Stats(), current=False)  # select.tokens
        if not run.checked:
            run.warn(*check_first_batch(method, batch))
            run.checked = True
        ctx.episodes = episodes
        run.whole = False
        taken = method.update(ctx, run.learner, batch)  # objective and penalties, once per optimiser step
        if isawaitable(taken):
            await taken
        facts |= batch_metrics(batch)
        run.version += 1
        refresh(method, run.models, step)
    run.engine.version = run.version

    if method.replay.stores:
        kept = ("logp_old_N", *method.credit.gives)
        run.replay = method.replay.put(ctx, run.replay, annotated(batch, episodes, kept))
    facts |= run.learner.tally.means() | {"lr": run.learner.lr("policy"), "version": float(run.version)}
    record = StepRecord(step, episodes, batch, facts, ctx, drawn)
    with run.memory.writing():
        for _, occupant in method.occupants():
            occupant.observe(record, run.memory)
    run.whole = True
    seconds = time.perf_counter() - start
    record.facts = facts | time_metrics(run.clock.take(), seconds) | {"tokens_per_second": facts["tokens"] / seconds}
    return record


async def draw_until_selected(run: Run, ctx: Context) -> tuple[list[Episode], list[Episode]]:
    """Draw, score, select; draw again what selection asks for. Returns (everything drawn, what was kept)."""
    asks: Sequence[Ask | Prompt] = run.method.curriculum(ctx, run.tasks.train)
    drawn: list[Episode] = []
    kept: list[Episode] = []
    while asks:
        fresh = await draw(run, ctx, asks)
        drawn += fresh
        kept, again = through_first_door(ctx, run.method.select, [*kept, *fresh])
        if run.config.budget_tokens and sum(e.tokens for e in drawn) >= run.config.budget_tokens:
            break
        asks = again
        if asks:
            ctx.round += 1
    compare_groups(run, ctx, kept)
    return drawn, kept


async def draw(run: Run, ctx: Context, asks: Sequence[Ask | Prompt], rollout: Any = None) -> list[Episode]:
    """Asks or prompts to scored episodes: the same way for the first draw, for draws again and for ctx.draw."""
    prompts: list[Prompt] = []
    for ask in asks:
        prompts += [ask] if isinstance(ask, Prompt) else prompts_for(ctx, run.method.prompting, ask)
    run.remember_tasks(prompts)
    with run.clock("sampling"):
        episodes = await (rollout or run.method.rollout)(ctx, prompts)
        run.say_where(episodes)
    return score(run, ctx, episodes)


def score(run: Run, ctx: Context, episodes: list[Episode]) -> list[Episode]:
    """The task's own scorer, then the components of the reward room. A failure is a status, never a reward."""
    with run.clock("scoring"):
        new = [e for e in episodes if e.status.judged and e.uid not in run.scored]
        run.scored.update(e.uid for e in new)  # once, also when a rollout has asked for rewards before
        todo = [e for e in new if "task" not in e.reward]
        verdicts = run.judge.score([(run.task_of(e), e.text) for e in todo])
        for e, verdict in zip(todo, verdicts, strict=True):
            if verdict.status == "ok" and "task" not in verdict.components:
                e.status, e.error = Status.ENV_ERROR, NO_TASK.format(", ".join(verdict.components))
            elif verdict.status == "ok":
                e.reward.update(verdict.components)
            else:
                e.status, e.error = Status[verdict.status.upper()], verdict.error
        add_components(ctx, run.method.reward, new)
    return episodes


def compare_groups(run: Run, ctx: Context, kept: Sequence[Episode]) -> None:
    """When a step has all its episodes: which answers are the same, then the rewards that compare a group."""
    with run.clock("scoring"):
        if any(o.answers for _, o in run.method.occupants()):
            groups: dict[str, list[Episode]] = {}
            for e in kept:
                if e.status.judged:
                    groups.setdefault(e.group, []).append(e)
            found = run.judge.answers([[(run.task_of(e), e.text) for e in group] for group in groups.values()])
            for group, answers in zip(groups.values(), found, strict=True):
                for e, answer in zip(group, answers, strict=True):
                    e.answer = answer
        add_components(ctx, run.method.reward, kept, whole=True)


def packed(run: Run, ctx: Context, drawn: Sequence[Episode], episodes: Sequence[Episode]) -> Batch:
    """The batch with every need that is served once a batch."""
    counts: dict[str, int] = {}
    for e in drawn:
        counts[e.group] = counts.get(e.group, 0) + 1
    wanted = [n for _, _, n in run.method.needs(ctx)]
    if run.method.replay.stores:  # what is remembered is annotated with it, also when no room needs it
        wanted.append(need("logp", "old"))
    views = [n.view for n in wanted]
    batch = pack(episodes, drawn=counts, views=views, dtype=run.batch_dtype, share=run.share).to(run.device)
    lazy = run.lazy_old(ctx)
    needs = list(dict.fromkeys(n for n in wanted if n.when == "batch" and n not in lazy))
    for role in dict.fromkeys(n.role for n in needs):
        mine = [n for n in needs if n.role == role]
        with run.clock("forward"):
            batch = batch.with_columns(**served(run, role, batch, mine))
    if "logp_old_N" in batch.columns:
        sampler_gap(run.learner.tally, batch, batch.logp_old_N)
        if run.method.replay.proximal == "stored" and "note_logp_old_N" in batch.columns:
            stored = batch.note_logp_old_N
            batch = batch.with_columns(logp_old_N=stored.where(~stored.isnan(), batch.logp_old_N))
    return batch


def served(run: Run, role: str, batch: Batch, needs: list[Need]) -> dict[str, Any]:
    """The needs of a role, read without gradient; `old` is the policy at the start of the step."""
    return run.learner.read(role, batch, needs)


def score_with(run: Run, episodes: Sequence[Episode], role: str, readouts: Sequence[str]) -> Batch:
    """ctx.score: a batch of these episodes with readouts of a role's model as columns; before pack or in observe."""
    batch = pack(episodes, dtype=run.batch_dtype, share=run.share).to(run.device)
    with run.clock("forward"):
        return batch.with_columns(**served(run, role, batch, [need(r, role) for r in readouts]))


def from_the_past(e: Episode, credited: str = "now") -> Episode:
    """A remembered episode for this batch: its group is the group of its own step, not one of today.

    With the credit that was stored it stays out of the statistics of today.
    """
    use = Use.APART if credited == "stored" and e.use == Use.LEARN else e.use
    return replace(e, replayed=True, group=f"{e.group}@{e.step}", use=use)


def with_stored_credit(method: Any, batch: Batch) -> Batch:
    """Replayed rows keep the credit of their own step, where the replay says so."""
    if method.replay.credited != "stored":
        return batch
    stored = {c: batch.columns[f"note_{c}"] for c in method.credit.gives if f"note_{c}" in batch.columns}
    past_N = batch.spread(batch.replayed_E, "E", "N")
    return batch.with_columns(
        **{c: x.to(batch.columns[c].dtype).where(past_N & ~x.isnan(), batch.columns[c]) for c, x in stored.items()}
    )


def annotated(batch: Batch | None, episodes: Sequence[Episode], columns: Sequence[str]) -> list[Episode]:
    """Episodes for replay, with the logp_old and the credit they were learned under as notes."""
    if batch is None:
        return []
    place = {uid: i for i, uid in enumerate(batch.uid_E.tolist())}
    length = batch.gather(batch.keep_N, "N", "E", "count").tolist()
    parts = {c.removesuffix("_N"): batch.columns[c].float().cpu().split(length) for c in columns if c.endswith("_N")}

    def notes(e: Episode) -> dict[str, Note]:
        return {name: Note(rows[place[e.uid]].numpy(), "N", e.step) for name, rows in parts.items()}

    return [replace(e, notes=e.notes | notes(e)) for e in episodes if e.uid in place]
