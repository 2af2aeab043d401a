"""From a configuration to a trained policy: set up, check, train, evaluate, save, resume."""

import shlex
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from gruppo.methods import refurnished
from gruppo.scale.cluster import opened
from gruppo.scale.launch import agreed, note, on_ranks
from gruppo.stages import StepRecord
from gruppo.tasks.channel import refuse_inside
from gruppo.train.beforehand import said_beforehand
from gruppo.train.callbacks import Callback, Step, standing
from gruppo.train.checkpoint import (
    State,
    checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from gruppo.train.config import RunConfig
from gruppo.train.depends import user_files
from gruppo.train.doctor import refuse, step_zero
from gruppo.train.episodes import beside
from gruppo.train.evaluate import Evaluation, evaluate, first_error, wanted_k
from gruppo.train.folder import RunFolder, read_json
from gruppo.train.heartbeat import Heartbeat, decoded
from gruppo.train.lock import Lock, goes_on_with
from gruppo.train.loop import train_step
from gruppo.train.measured import changed_words, comparable, measured_otherwise
from gruppo.train.metrics import worked
from gruppo.train.opening import NOTHING, finished, how_to_resume, new_folder, newest, put_aside, told, what_is_saved
from gruppo.train.progress import ANEW, Display
from gruppo.train.run import Run
from gruppo.train.samples import Samples
from gruppo.train.saved import save_writers
from gruppo.train.slow import told_if_slow
from gruppo.train.stop import Stop
from gruppo.train.summary import closing_words, summary_of
from gruppo.train.waiting import Loop
from gruppo.train.winrate import Wins

Steps = Generator[Step, None, dict[str, Any]]


def train(config: RunConfig, *, quiet: bool = False, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    """Train from the start. Returns the summary, which is also in the run folder."""
    return _summary(train_steps(config, quiet=quiet, callbacks=callbacks))


def train_steps(config: RunConfig, *, quiet: bool = False, callbacks: Sequence[Callback] = ()) -> Steps:
    """The same, step by step; the summary is the value of the generator."""
    refuse_inside()
    return on_ranks(_train_steps(agreed(config), quiet, callbacks))


def _train_steps(config: RunConfig, quiet: bool, callbacks: Sequence[Callback]) -> Steps:
    say = Display("", 0, quiet=quiet).say
    with Stop(lambda: NOTHING) as stop, new_folder(config) as folder, told(folder, stop), opened(config, say):
        note(folder.path)
        trainer = Trainer(config, folder, quiet, callbacks=callbacks, stop=stop, opening=_opening(folder))
        yield from trainer.steps()
        return trainer.summary


def _opening(folder: RunFolder) -> str:
    """The first words of a run. It is made before anything is loaded, and gone again if the run is refused."""
    return f"run folder  {folder.path}"


def _summary(steps: Steps) -> dict[str, Any]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def resume(path: Path, change: Callable[[RunConfig], RunConfig] = lambda config: config, **how: Any) -> dict[str, Any]:
    """Continue a run, as `resume_steps` does. Returns the summary."""
    return _summary(resume_steps(path, change, **how))


def resume_steps(
    path: Path,
    change: Callable[[RunConfig], RunConfig] = lambda config: config,
    *,
    trust_code: bool = False,
    allow: bool = False,
    skip_damaged: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Steps:
    """Continue a run from its newest checkpoint, exactly, step by step; without one, from the start.

    What differs from the run as it was started (the configuration, also by `change`, and the files that it depends on)
    is listed and refused unless `allow` is set. A damaged checkpoint is refused, or set aside with `skip_damaged`.
    """
    refuse_inside()
    how = {"trust_code": trust_code, "allow": allow, "skip_damaged": skip_damaged, "quiet": quiet}
    return on_ranks(_resume_steps(path, change, callbacks=callbacks, **how))


def _resume_steps(
    path: Path,
    change: Callable[[RunConfig], RunConfig],
    *,
    trust_code: bool,
    allow: bool,
    skip_damaged: bool,
    quiet: bool,
    callbacks: Sequence[Callback],
) -> Steps:
    folder = RunFolder(path)
    if not folder["config.toml"].is_file() and not checkpoints(folder["checkpoints"]):
        folder.read_config()  # raises
    with Stop(lambda: what_is_saved(folder)) as stop, Lock(folder.path):
        note(folder.path)
        say = Display("", 0, quiet=quiet).say
        with told(folder, stop, begun=False):
            last, skipped = newest(folder, skip_damaged)
            state = load_checkpoint(last) if last else None
            record = state.beside.get("run.json") if state else None
            if fixed := folder.fix(record):
                say(fixed)
            config = agreed(change(folder.read_config(trust_code)))
            changes = folder.changes_to(config, record)
            _refuse_to_go_on(folder, config, state, () if allow else changes)
            if state is not None and (done := finished(folder, state.step, config.steps, bool(changes))):
                say(done)
                return {**read_json(folder["summary.json"]), "folder": str(folder.path)}
        with told(folder, stop), opened(config, say):
            how = {"stop": stop, "allow": allow, "skipped": skipped, "opening": "" if state else _opening(folder)}
            trainer = Trainer(config, folder, quiet, changes, callbacks=callbacks, **how)
            yield from trainer.steps(state)
            return trainer.summary


def _refuse_to_go_on(folder: RunFolder, config: RunConfig, state: State | None, changes: Sequence[str]) -> None:
    if changes:
        listed = "\n".join(f"  {c}" for c in changes)
        listed += folder.where_files_are() if any(c.endswith("→ absent") for c in changes) else ""
        raise ValueError(
            f"{folder.path}: the configuration, or what the run depends on, is not what the run was started with, so "
            f"it would not go on exactly:\n{listed}\nTake them back, or go on with them: --allow-changes."
        )
    if state is not None and state.step > config.steps:
        raise ValueError(
            f"steps={config.steps}, but {state.step} steps are done, and none can be undone. Use more steps to train "
            "longer, or start a new run."
        )


class Trainer:
    """A run in its folder. `go()` does all steps; `steps()` hands over each one."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        quiet: bool = False,
        changes: Sequence[str] = (),
        *,
        callbacks: Sequence[Callback] = (),
        stop: Stop | None = None,
        allow: bool = False,
        skipped: Mapping[Path, str] = MappingProxyType({}),
        opening: str = "",
    ) -> None:
        self.config, self.folder, self.changes, self.allow = config, folder, changes, allow
        self.skipped = skipped  # damaged checkpoints, and what is wrong with them
        wanted_k(config.eval.samples, config.eval.k, config.eval.temperature)  # refused before anything is loaded
        goes_on_with(folder.path, user_files(config))
        self.callbacks = [*standing(config), Samples(config.show), *callbacks]
        self.begun: list[Callback] = []
        self.stop = stop or Stop()
        title = f"{config.method.name} on {config.task.name}"
        self.display = Display(title, config.steps, quiet=quiet)
        self.run = Run(config, self.display.say, shlex.quote(str(folder.path)), opening)
        self.wins = Wins(self.run, config.eval.prompts)
        self.before: float | None = None
        self.after: float | None = None
        self.evaluation: Evaluation | None = None  # the newest one of this process
        self.seconds, self.tokens = 0.0, 0.0
        self.done = 0
        self.early = ""  # why the run ends before its last step
        self.summary: dict[str, Any] = {}

    def go(self, state: State | None = None) -> dict[str, Any]:
        """All steps, from the start or from a state; the summary."""
        for _ in self.steps(state):
            pass
        return self.summary

    def end_early(self, why: str) -> None:
        """For callbacks: this step is the last one."""
        self.early = why

    def steps(self, state: State | None = None) -> Iterator[Step]:
        """Trains, and hands over each step when it is done. If you leave the loop early, the last step is saved."""
        loop = Loop()
        try:
            with self.display, self._heartbeat():
                self.done = loop(self._begin() if state is None else self._restore(state))
                self.display.start()
                self.stop.begin()
                while self.done < self.config.steps and not self.early and not self.stop.asked:
                    step = loop(self._step(self.done))
                    try:
                        yield step
                    except GeneratorExit:
                        loop(self._save_settled(self.done))
                        raise
            if self.run.source.queue:
                loop(self.run.source.settled())
            self._finish()
        finally:
            self.run.close()
            self._end_callbacks()
            loop.close()

    def _heartbeat(self) -> AbstractContextManager[Any]:
        if self.display.quiet or not self.config.show:
            return nullcontext()
        what = "episodes" if self.run.tasks.env else "answers"
        return Heartbeat(self.display.say, lambda: self.display.spoken, partial(decoded, self.run), what)

    def _begin_callbacks(self, rows: Sequence[dict[str, Any]]) -> None:
        for c in self.callbacks:
            self.begun.append(c)
            c.begin(self, rows)

    def _end_callbacks(self) -> None:
        """All that have begun come to an end; what one raises may not hide why the run ends."""
        summary = self.summary if self.summary and "stopped" not in self.summary else None
        ending, errors = sys.exc_info()[1], list[Exception]()
        for c in self.begun:
            try:
                c.end(self, summary)
            except Exception as error:
                errors.append(error)
        if errors and ending is None:
            raise errors[0]
        for error in errors:
            self.run.warn(f"a callback failed at the end: {type(error).__name__}: {error}")

    async def _begin(self) -> int:
        refuse(await step_zero(self.run))
        put_aside(self.skipped, self.display.say)
        self.folder.write_config(self.config)
        self.folder.set_metrics(b"")  # left by a run that was stopped before its first checkpoint
        self.run.open_words()
        if changed := refurnished(self.config.method):
            self.display.say("\n".join(changed))
        self.run.warn(*said_beforehand(self.run))
        self._begin_callbacks(())
        asked = min(self.config.eval.prompts, len(self.run.tasks.held_out))
        self.display.say(f"measuring held-out answers before training (eval.prompts: {asked})")
        start = await self._evaluate()
        self.before = start.accuracy
        row = {"step": 0, **start.logged(), **await self.wins.row(start)}
        self.display.begin([row])
        self._log(row)
        return 0

    async def _restore(self, state: State) -> int:
        self.run.restore(state, self.allow)
        put_aside(self.skipped, self.display.say)
        facts = state.facts
        self.before, self.after = facts["accuracy_before"], facts["held_out"]
        self.seconds, self.tokens = facts["seconds"], facts["tokens"]
        self.wins.facts = facts.get("wins", {})
        self.early = facts.get("ended_early", "") if not self.changes else ""
        if facts["threads"] != torch.get_num_threads():
            self.changes = [*self.changes, f"threads: {facts['threads']} → {torch.get_num_threads()}"]
        if self.changes:
            self.folder.write_config(self.config)
            self.display.say("going on with changes:\n" + "\n".join(f"  {c}" for c in self.changes))
        self.folder.reopen(state.step)
        self.folder.set_metrics(state.beside["metrics.jsonl"])
        self.display.first = state.step
        self.display.begin(comparable(self.folder.metrics()))
        self.display.say(f"resumed {self.folder.path} after step {state.step}")
        self._begin_callbacks(self.folder.metrics())
        others = measured_otherwise(state.beside.get("run.json"), self.folder.record())
        if what := changed_words(others, facts.get("data", "") != self.run.tasks.digest):
            await self._measure_anew(state.step, what)
        return state.step

    async def _measure_anew(self, step: int, what: str) -> None:
        """What is measured has changed: figures from before do not compare with those to come."""
        self.display.say(f"{what} changed: measuring held-out answers anew, from step {step} on")
        found = await self._evaluate()
        self.before = self.after = found.accuracy
        self.wins.facts = {}
        row = {"step": step, ANEW: 1.0, **found.logged(), **await self.wins.row(found)}
        self.display.begin([row])
        self._log(row)

    async def _step(self, step: int) -> Step:
        try:
            record = await train_step(self.run, step)
        except ValueError as error:
            if self.run.between_steps:
                await self._save_settled(step)
            raise ValueError(f"step {step + 1}: {error}") from error
        self.done = step + 1
        out = Step(self.done, await self._row(record), record, self.folder.path)
        await self._after_step(out)
        return out

    async def _after_step(self, step: Step) -> None:
        self._log(step.row)
        self.display.update(self.done, step.row)
        for c in self.callbacks:
            c.step(self, step)
        last, save = self.done == self.config.steps or bool(self.early), self.config.save
        if save.episodes_every and (self.done % save.episodes_every == 0 or last or self.run.to_look_at):
            self.run.to_look_at = False
            kept = step.record.episodes
            self.folder.write_episodes(self.done, kept, beside(kept, step.record.batch, self.run.walk.task_of))
        # Not after a gradient that was not finite: if the next ones are not either, this would be no way back.
        bad = any(self.run.learner.bad_steps.values())
        due = save.checkpoint_every and self.done % save.checkpoint_every == 0 and not bad
        self.stop.work = "saving the policy: no step is left" if last else self.stop.work
        if last or self.stop.asked or due:
            await self._save_settled(self.done)

    async def _row(self, record: StepRecord) -> dict[str, Any]:
        every, row = self.config.eval.every, {"step": self.done, **record.facts}
        self.seconds += row["seconds"]
        self.tokens += worked(row)
        if self.done == self.config.steps or (every and self.done % every == 0):
            count = min(self.config.eval.prompts, len(self.run.tasks.held_out)) * self.config.eval.samples
            with told_if_slow(self.display.say, f"evaluating after step {self.done}: {count} held-out answers"):
                found = await self._evaluate()
            self.after = found.accuracy
            row |= found.logged() | await self.wins.row(found)
        return row

    async def _evaluate(self) -> Evaluation:
        sampling = replace(self.run.sampling, temperature=self.config.eval.temperature, top_k=0, top_p=1.0)
        r, e = self.run, self.config.eval
        if r.judge.in_order:  # which answers its scorer hears first may not depend on the clock
            await r.source.settled()
        r.plain.forget()
        given = (r.plain, r.tokenizer, r.judge, r.tasks, sampling, e.prompts, e.samples, e.k, r.walk.play)
        self.evaluation = await evaluate(*given)
        if lost := self.evaluation.failed:
            who = "1 answer to a held-out prompt" if lost == 1 else f"{lost} answers to held-out prompts"
            why = r.told_once(first_error(self.evaluation.episodes))
            r.warn(f"{who} could not be judged: not counted (held_out/failed). First error: {why}")
        return self.evaluation

    def _log(self, row: dict[str, Any]) -> None:
        self.folder.append_metrics(row)
        for c in self.callbacks:
            c.row(self, row)

    async def _save_settled(self, done: int) -> None:
        """Saves what is drawn ahead, too, once it is there."""
        await self.run.source.settled()
        self._save(done)

    def _save(self, done: int) -> None:
        facts = {"accuracy_before": self.before, "held_out": self.after, "seconds": self.seconds, "tokens": self.tokens}
        facts |= {"wins": self.wins.facts} if self.wins.facts else {}
        facts |= {"ended_early": self.early} if self.early else {}
        state = self.run.state(done, facts)
        state.beside = {"run.json": self.folder.record(), "metrics.jsonl": self.folder["metrics.jsonl"].read_bytes()}
        with told_if_slow(self.display.say, f"saving step {done}"):
            save_checkpoint(self.folder["checkpoints"], state, self.config.save.keep)

    def _finish(self) -> None:
        if self.done < self.config.steps and not self.early:
            self._save(self.done)
            self.display.say(f"stopped after step {self.done} of {self.config.steps}. {how_to_resume(self.folder)}")
            facts = {"steps": self.done, "stopped": True, "folder": str(self.folder.path)}
            self.summary = {**facts, "resume": self.folder.resume_command}
            return
        with told_if_slow(self.display.say, f"saving the policy in {self.folder.path}"):
            save_writers(self.folder.path, self.run.models, self.run.learner.writers, self.run.tokenizer)
        c = self.config
        self.folder.draw_curves(f"{c.method.name} on {c.task.name}, seed {c.seed}")
        self.summary = summary_of(self)
        self.folder.write_summary(self.summary)
        self.display.say(closing_words(self.summary, self.folder, c, self.run.tasks.env))
