"""The loop: one function that takes one training step."""

import time
from inspect import isawaitable

from gruppo.engines.base import NotFinite
from gruppo.stages import StepRecord
from gruppo.stages.check import compares, still
from gruppo.train.doctor import refuse_other_weights
from gruppo.train.learner import sampler_gap
from gruppo.train.metrics import age_of, batch_metrics, episode_metrics, time_metrics, worked
from gruppo.train.run import Run


async def train_step(run: Run, step: int) -> StepRecord:
    """One pass through the ten rooms."""
    method, walk, learner, source, start = run.method, run.walk, run.learner, run.source, time.perf_counter()
    ctx = run.context(step)  # replay.get
    learner.begin(ctx)

    try:
        found = await source.take(ctx)  # curriculum, prompting, rollout, reward, select.episodes, group rewards
    except NotFinite:
        run.between_steps = False  # these weights are not to be saved
        raise
    drawn, kept, before = found.episodes, found.kept, run.engine.sampled
    facts = episode_metrics(drawn, found.open) | {"rounds": found.round + 1.0, "sampled": float(found.sampled)}
    run.stop_if_failing(facts["failed"], drawn)

    batch = await source.aside(walk.batch_of, ctx, drawn, kept)  # pack, and what is read once per batch
    if batch is not None and not run.compared and run.version > 0:
        refuse_other_weights(run, batch)
    dead_to_it = compares(method)  # whether equal rewards say nothing to the method
    if batch is not None:
        if "logp_old_N" in batch.columns:
            sampler_gap(learner.tally, batch, batch.logp_old_N, run.version)
        facts |= age_of(batch, run.version)
        run.warn_if_stale(facts.get("age", 0.0))
        batch = await source.aside(walk.credited, ctx, batch)  # credit, select.tokens
        if not run.checked:
            run.look_at_first(drawn, batch)
        ctx.episodes = kept
        run.between_steps = False
        with run.engine.without_memory():  # weights change; what is drawn now has a version of its own (run.current)
            # objective and penalties, once per optimiser step
            taken = await source.aside(method.update, ctx, learner, batch)
            if isawaitable(taken):
                await taken
        learner.refuse_broken()
        recalls = method.remembers_episodes and method.replay.joins
        facts |= batch_metrics(batch, recalls) | {"sampled": float(found.sampled + run.engine.sampled - before)}
        dead_to_it = dead_to_it or still(method, batch)
        learner.refresh(step)
        run.next_version()
    else:
        run.engine.sync(run.version, run.models)

    run.warn_of_worlds(drawn)
    if drawn or not found.open:  # else no group was complete, which says nothing about either
        run.warn_if_empty(batch is None)
        run.warn_if_dead(facts["dead_groups"] if dead_to_it else 0.0, drawn)
    run.replay, run.open = walk.remembered(ctx, run.replay, batch, kept), found.open  # replay.put
    facts |= learner.tally.means() | {"lr": learner.lr("policy"), "version": float(run.version)}
    record = StepRecord(step, kept, batch, facts, ctx, drawn)
    with run.memory.writing():
        for _, occupant in method.occupants():
            occupant.observe(record, run.memory)
    run.between_steps = True
    seconds = time.perf_counter() - start
    record.facts = facts | time_metrics(run.clock.take(), seconds) | {"tokens_per_second": worked(facts) / seconds}
    return record
