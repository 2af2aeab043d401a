"""From a configuration to a trained policy: set up, check, train, evaluate, save, resume."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gruppo.methods import refurnished
from gruppo.policies import save_policy
from gruppo.stages import StepRecord
from gruppo.tasks.load import short_name
from gruppo.train.callbacks import Callback, Step, standing
from gruppo.train.checkpoint import (
    State,
    checkpoints,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    set_aside,
    step_of,
)
from gruppo.train.config import RunConfig
from gruppo.train.doctor import refuse, step_zero
from gruppo.train.episodes import beside
from gruppo.train.evaluate import Evaluation, evaluate, wanted_k
from gruppo.train.folder import RunFolder, read_json
from gruppo.train.lock import Lock
from gruppo.train.loop import train_step
from gruppo.train.manifest import damage
from gruppo.train.progress import Display
from gruppo.train.run import Run
from gruppo.train.samples import Samples
from gruppo.train.stop import Stop
from gruppo.train.summary import closing_words, summary_of
from gruppo.train.waiting import Loop
from gruppo.train.winrate import Wins


@contextmanager
def new_folder(config: RunConfig) -> Iterator[RunFolder]:
    """A new folder, locked; if two runs start in the same second, the later one gets a number."""
    task = short_name(config.task.name)
    plain = f"{config.method.name}-{task}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [config.save.name] if config.save.name else [plain, *(f"{plain}-{i}" for i in range(2, 100))]
    for name in names:
        folder = RunFolder(Path(config.save.folder) / name)
        try:
            folder.path.mkdir(parents=True, exist_ok=bool(config.save.name))
        except FileExistsError:
            if not folder.path.is_dir():
                raise ValueError(
                    f"{folder.path} is a file, so nothing was started. Choose another save.name."
                ) from None
            continue
        except OSError as error:
            raise ValueError(
                f"{folder.path} cannot be made ({error.strerror}), so nothing was started. Choose another save.folder."
            ) from None
        with Lock(folder.path):
            if not folder["config.toml"].exists() and not checkpoints(folder["checkpoints"]):
                try:
                    yield folder
                finally:
                    folder.drop_if_empty()  # if nothing was started
                return
    folder = RunFolder(Path(config.save.folder) / names[0])
    raise ValueError(
        f"{folder.path} holds a run already: a second one would mix with it. Choose another save.name, or go on with "
        f"it: {folder.resume_command}"
    )


def refuse_ranks() -> None:
    """A learner can be split over ranks, but they cannot share a run folder yet."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1":
        raise ValueError(
            f"WORLD_SIZE={size}: every process would write into one run folder, so nothing was started. Start gruppo "
            "train without torchrun; from Python, gruppo.train.loop.train_step runs on several ranks."
        )


def train(config: RunConfig, *, quiet: bool = False, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
    """Train from the start. Returns the summary, which is also in the run folder."""
    refuse_ranks()
    with Stop() as stop, new_folder(config) as folder, told(folder):
        return Trainer(config, folder, quiet, callbacks=callbacks, stop=stop).go()


def resume(
    path: Path,
    change: Callable[[RunConfig], RunConfig] = lambda config: config,
    *,
    trust_code: bool = False,
    allow: bool = False,
    skip_damaged: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Continue a run from its newest checkpoint, exactly; without one, from the start.

    What differs from the run as it was started (the configuration, also by `change`, and the files that it depends on)
    is listed and refused unless `allow` is set. A damaged checkpoint is refused, or set aside with `skip_damaged`.
    """
    refuse_ranks()
    folder = RunFolder(path)
    if not folder["config.toml"].is_file() and not checkpoints(folder["checkpoints"]):
        folder.read_config()  # raises
    with Stop() as stop, Lock(folder.path):
        say = Display("", 0, quiet=quiet).say
        with told(folder, begun=False):
            state = _newest_state(folder, skip_damaged, say)
            record = state.beside.get("run.json") if state else None
            if mended := folder.mend(record):
                say(mended)
            config = change(folder.read_config(trust_code))
            changes = folder.changes_to(config, record)
            _refuse_to_go_on(folder, config, state, () if allow else changes)
            if state is not None and (done := finished(folder, state.step, config.steps)):
                say(done)
                return read_json(folder["summary.json"])
        with told(folder):
            trainer = Trainer(config, folder, quiet, changes, callbacks=callbacks, stop=stop, allow=allow)
            return trainer.go(state)


def _newest_state(folder: RunFolder, skip_damaged: bool, say: Callable[[str], None]) -> State | None:
    last = newest(folder, skip_damaged, say)
    return load_checkpoint(last) if last else None


def _refuse_to_go_on(folder: RunFolder, config: RunConfig, state: State | None, changes: Sequence[str]) -> None:
    if changes:
        listed = "\n".join(f"  {c}" for c in changes)
        raise ValueError(
            f"{folder.path}: the configuration, or what the run depends on, is not what the run was started with, so "
            f"it would not go on exactly:\n{listed}\nLeave these out, or add --allow-changes to go on with them."
        )
    if state is not None and state.step > config.steps:
        raise ValueError(
            f"steps={config.steps}, but {state.step} steps are done, and none can be undone. Use more steps to train "
            "longer, or start a new run."
        )


def newest(folder: RunFolder, skip_damaged: bool, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint, if it is whole; a damaged one is refused, or set aside for the one before it."""
    found = checkpoints(folder["checkpoints"])
    for path in reversed(found):
        said = damage(path)
        if not said:
            return path
        if not skip_damaged:
            earlier = next((p for p in reversed(found[: found.index(path)]) if not damage(p)), None)
            before = f"{earlier.name} before it is whole" if earlier else "No whole one is before it; to begin again"
            raise ValueError(
                f"{path} is damaged: {said}, so the run cannot go on from it. {before}: go on with  "
                f"{folder.resume_command} --skip-damaged"
            )
        say(f"{path.name} is damaged ({said}) and was set aside as {set_aside(path).name}")
    return None


def finished(folder: RunFolder, done: int, steps: int) -> str:
    """Says that a run has come to its end; "" if it has not, or if what it left has to be written again."""
    if not folder["summary.json"].is_file() or folder.damage():
        return ""
    early = read_json(folder["summary.json"]).get("ended_early", "")
    if done < steps and not early:
        return ""
    why = f"it ended early ({early})" if early else f"all of its {done} steps are done"
    return (
        f"{folder.path} is finished: {why}, so nothing was trained. To train longer:  {folder.resume_command} "
        f"steps={2 * done} --allow-changes"
    )


@contextmanager
def told(folder: RunFolder, begun: bool = True) -> Iterator[None]:
    """Whatever ends a run early, at whatever moment: the last words say which step is saved, and how to go on.

    What is refused before it has begun says by itself what to do.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_resume(folder)) from None
    except (ValueError, OSError) as error:
        if not begun:
            raise
        said = f"{error.strerror}: {error.filename or folder.path}" if isinstance(error, OSError) else str(error)
        raise ValueError(f"{said}\n{how_to_resume(folder)}") from error
    except Exception as error:
        error.add_note(how_to_resume(folder))
        raise


def how_to_resume(folder: RunFolder) -> str:
    if not folder["config.toml"].exists():
        return "Nothing was started and nothing is lost: once that is mended, the same command starts it."
    last = latest_checkpoint(folder["checkpoints"])
    saved = f"Step {step_of(last)} is saved" if last else "No step is saved yet, so it begins again"
    return f"{saved}: go on with  {folder.resume_command}"


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
    ) -> None:
        self.config, self.folder, self.changes, self.allow = config, folder, changes, allow
        wanted_k(config.eval.samples, config.eval.k, config.eval.temperature)  # refused before anything is loaded
        self.callbacks = [*standing(config), Samples(config.show), *callbacks]
        self.stop = stop or Stop()
        title = f"{config.method.name} on {config.task.name}"
        self.display = Display(title, config.steps, quiet=quiet)
        self.run = Run(config, self.display.say)
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
        """Trains, and hands over each step when it is done. Who leaves early can go on from the step before."""
        loop = Loop()
        try:
            with self.display:
                self.done = loop(self._begin()) if state is None else self._restore(state)
                self.display.start()
                while self.done < self.config.steps and not self.early and not self.stop.asked:
                    step = loop(self._step(self.done))
                    try:
                        yield step
                    except GeneratorExit:
                        self._save(self.done)
                        raise
            self._finish()
        finally:
            self.run.close()
            for c in self.callbacks:
                c.end(self, self.summary if self.summary and "stopped" not in self.summary else None)
            loop.close()

    async def _begin(self) -> int:
        refuse(await step_zero(self.run))
        self.folder.write_config(self.config)
        self.folder.set_metrics(b"")  # left by a run that was stopped before its first checkpoint
        self.display.say(f"run folder  {self.folder.path}")
        if changed := refurnished(self.config.method):
            self.display.say("\n".join(changed))
        self.run.warn_if_few_recur()
        for c in self.callbacks:
            c.begin(self, ())
        asked = min(self.config.eval.prompts, len(self.run.tasks.held_out))
        self.display.say(f"measuring the held-out accuracy before training (eval.prompts: {asked})")
        start = await self._evaluate()
        self.before = self.display.row["held_out"] = start.accuracy
        self._log({"step": 0, **start.logged(), **await self.wins.row(start)})
        return 0

    def _restore(self, state: State) -> int:
        self.run.restore(state, self.allow)
        facts = state.facts
        self.before, self.after = facts["accuracy_before"], facts["held_out"]
        self.seconds, self.tokens = facts["seconds"], facts["tokens"]
        self.wins.facts = facts.get("wins", {})
        self.early = facts.get("ended_early", "") if not self.changes else ""
        if self.changes:
            self.folder.write_config(self.config)
            self.display.say("going on with changes:\n" + "\n".join(f"  {c}" for c in self.changes))
        self.folder.set_metrics(state.beside["metrics.jsonl"])
        self.display.first = state.step
        self.display.say(f"resumed {self.folder.path} after step {state.step}")
        rows = self.folder.metrics()
        for c in self.callbacks:
            c.begin(self, rows)
        return state.step

    async def _step(self, step: int) -> Step:
        try:
            record = await train_step(self.run, step)
        except ValueError as error:
            if self.run.between_steps:
                self._save(step)
            raise ValueError(f"step {step + 1}: {error}") from error
        self.done = step + 1
        out = Step(self.done, await self._row(record), record)
        await self._after_step(out)
        return out

    async def _after_step(self, step: Step) -> None:
        self._log(step.row)
        self.display.update(self.done, step.row)
        for c in self.callbacks:
            c.step(self, step)
        last, save = self.done == self.config.steps or bool(self.early), self.config.save
        if save.episodes_every and (self.done % save.episodes_every == 0 or last):
            kept = step.record.episodes
            self.folder.write_episodes(self.done, kept, beside(kept, step.record.batch, self.run.walk.task_of))
        # Not after a gradient that was not finite: if the next ones are not either, this would be no way back.
        bad = any(self.run.learner.bad_steps.values())
        due = save.checkpoint_every and self.done % save.checkpoint_every == 0 and not bad
        if last or self.stop.asked or due:
            self._save(self.done)

    async def _row(self, record: StepRecord) -> dict[str, Any]:
        every, row = self.config.eval.every, {"step": self.done, **record.facts}
        self.seconds += row["seconds"]
        self.tokens += row["tokens"]
        if self.done == self.config.steps or (every and self.done % every == 0):
            found = await self._evaluate()
            self.after = found.accuracy
            row |= found.logged() | await self.wins.row(found)
        return row

    async def _evaluate(self) -> Evaluation:
        sampling = replace(self.run.sampling, temperature=self.config.eval.temperature, top_k=0, top_p=1.0)
        r, e = self.run, self.config.eval
        given = (r.engine, r.tokenizer, r.judge, r.tasks, sampling, e.prompts, e.samples, e.k, r.walk.play)
        self.evaluation = await evaluate(*given)
        return self.evaluation

    def _log(self, row: dict[str, Any]) -> None:
        self.folder.append_metrics(row)
        for c in self.callbacks:
            c.row(self, row)

    def _save(self, done: int) -> None:
        facts = {"accuracy_before": self.before, "held_out": self.after, "seconds": self.seconds, "tokens": self.tokens}
        facts |= {"wins": self.wins.facts} if self.wins.facts else {}
        facts |= {"ended_early": self.early} if self.early else {}
        state = self.run.state(done, facts)
        state.beside = {"run.json": self.folder.record(), "metrics.jsonl": self.folder["metrics.jsonl"].read_bytes()}
        save_checkpoint(self.folder["checkpoints"], state, self.config.save.keep)

    def _finish(self) -> None:
        if self.done < self.config.steps and not self.early:
            self._save(self.done)
            self.display.say(f"stopped after step {self.done} of {self.config.steps}. {how_to_resume(self.folder)}")
            facts = {"steps": self.done, "stopped": True, "folder": str(self.folder.path)}
            self.summary = {**facts, "resume": self.folder.resume_command}
            return
        shutil.rmtree(self.folder["policy"], ignore_errors=True)  # of an end that was cut short, or damaged
        save_policy(self.folder["policy"], self.run.models["policy"], self.run.tokenizer)
        c = self.config
        self.folder.draw_curves(f"{c.method.name} on {c.task.name}, seed {c.seed}")
        self.summary = summary_of(self)
        self.folder.write_summary(self.summary)
        self.display.say(closing_words(self.summary, self.folder))
