"""From a configuration to a trained policy: set up, check, train, evaluate, save, resume."""

import asyncio
import json
import os
import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from gruppo.methods import refurnished
from gruppo.stages import StepRecord
from gruppo.tasks import BUILT_IN
from gruppo.tasks.load import short_name
from gruppo.train.checkpoint import State, latest_checkpoint, load_checkpoint, save_checkpoint, step_of
from gruppo.train.config import RunConfig
from gruppo.train.doctor import refuse, step_zero
from gruppo.train.evaluate import Evaluation, evaluate, wanted_k
from gruppo.train.folder import RunFolder, config_changes
from gruppo.train.loop import train_step
from gruppo.train.progress import Display
from gruppo.train.run import Run
from gruppo.train.winrate import Wins, win_words


class Interrupt:
    """Ctrl-C once: finish the step, save, stop. Twice: stop at once; the last checkpoint remains."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "Interrupt":
        try:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        except ValueError:  # only the main thread gets Ctrl-C
            self._before = None
        return self

    def __exit__(self, *_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # Not print, which this signal may have interrupted.
        os.write(2, b"\nfinishing this step, then saving; Ctrl-C again stops at once\n")


def new_folder(config: RunConfig) -> RunFolder:
    """A new, empty folder; if two runs start in the same second, the later one gets a number."""
    task = short_name(config.task.name)
    plain = f"{config.method.name}-{task}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [config.save.name] if config.save.name else [plain, *(f"{plain}-{i}" for i in range(2, 100))]
    for name in names:
        folder = RunFolder(Path(config.save.folder) / name)
        try:
            folder.path.mkdir(parents=True, exist_ok=bool(config.save.name))
        except FileExistsError:
            continue
        except OSError as error:
            raise ValueError(
                f"{folder.path} cannot be made ({error.strerror}), so nothing was started. Choose another save.folder."
            ) from None
        if not folder["config.toml"].exists():
            return folder
    raise ValueError(
        f"{Path(config.save.folder) / names[0]} holds a run already: a second one would mix with it. Choose another "
        f"save.name, or go on with it: {resume_command(RunFolder(Path(config.save.folder) / names[0]))}"
    )


def resume_command(folder: RunFolder) -> str:
    return f"gruppo train --resume {shlex.quote(str(folder.path))}"


def refuse_ranks() -> None:
    """A learner can be split over ranks, but they cannot share a run folder yet."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1":
        raise ValueError(
            f"WORLD_SIZE={size}: every process would write into one run folder, so nothing was started. Start gruppo "
            "train without torchrun; from Python, gruppo.train.loop.train_step runs on several ranks."
        )


def train(config: RunConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Train from the start. Returns the summary, which is also in the run folder."""
    refuse_ranks()
    folder = new_folder(config)
    try:
        return Trainer(config, folder, quiet).go()
    finally:
        folder.drop_if_empty()  # if nothing was started


def resume(
    path: Path, config: RunConfig | None = None, *, trust_code: bool = False, allow: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Continue a run from its newest complete checkpoint, exactly; without one, from the start.

    A changed configuration is refused unless `allow` is set. The number of threads is not compared here: `Run.restore`
    requires that it is the same.
    """
    refuse_ranks()
    folder = RunFolder(path)
    before = folder.read_config(trust_code)
    last = latest_checkpoint(folder["checkpoints"])
    config = config or before
    changes = config_changes(replace(before, threads=config.threads), config)
    if changes and not allow:
        listed = "\n".join(f"  {c}" for c in changes)
        raise ValueError(
            f"the configuration is not the one the run was started with, so it would not go on exactly:\n{listed}\n"
            "Leave these out, or add --allow-changes to go on with them."
        )
    if last is not None and step_of(last) >= config.steps and folder["summary.json"].is_file():
        return _finished(folder, step_of(last), quiet)
    return Trainer(config, folder, quiet, changes).go(load_checkpoint(last) if last else None)


def _finished(folder: RunFolder, steps: int, quiet: bool) -> dict[str, Any]:
    """The summary of a run that has done all its steps."""
    summary = json.loads(folder["summary.json"].read_text())
    Display("", steps, quiet=quiet).say(
        f"{folder.path} is finished: all of its {steps} steps are done, so nothing was trained. To train longer:  "
        f"{resume_command(folder)} steps={2 * steps} --allow-changes"
    )
    return summary


class Trainer:
    def __init__(self, config: RunConfig, folder: RunFolder, quiet: bool = False, changes: Sequence[str] = ()) -> None:
        self.config, self.folder, self.changes = config, folder, changes
        wanted_k(config.eval.samples, config.eval.k, config.eval.temperature)  # refused before anything is loaded
        title = f"{config.method.name} on {config.task.name}"
        self.display = Display(title, config.steps, quiet=quiet)
        self.run = Run(config, self.display.say)
        self.board: Any = None
        self.before: float | None = None
        self.after: float | None = None
        self.seconds, self.tokens = 0.0, 0.0
        self.wins = Wins(self.run, config.eval.prompts)

    def go(self, state: State | None = None) -> dict[str, Any]:
        """From the start, or from a state. If it ends early, the message says how to resume."""
        try:
            with self.display, Interrupt() as interrupt:
                done = asyncio.run(self._steps(state, interrupt))
            return self._finish(done)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._how_to_resume()) from None
        except (ValueError, OSError) as error:
            raise ValueError(f"{error}\n{self._how_to_resume()}") from error
        except Exception as error:
            error.add_note(self._how_to_resume())
            raise
        finally:
            self.run.close()
            if self.board is not None:
                self.board.close()

    async def _begin(self) -> int:
        refuse(await step_zero(self.run))
        self.board = _board(self.config, self.folder)
        self.folder.write_config(self.config)
        self.folder.cut_metrics(-1)  # left by a run that was stopped before its first checkpoint
        if changed := refurnished(self.config.method):
            self.display.say("\n".join(changed))
        self.run.warn_if_few_recur()
        start = await self._evaluate()
        self.before = start.accuracy
        self._log({"step": 0, **start.logged(), **await self.wins.row(start)})
        return 0

    def _restore(self, state: State) -> int:
        self.run.restore(state)
        facts = state.facts
        self.before, self.after = facts["accuracy_before"], facts["held_out"]
        self.seconds, self.tokens = facts["seconds"], facts["tokens"]
        self.wins.facts = facts.get("wins", {})
        if self.changes:
            self.folder.write_config(self.config)
            self.display.say("going on with changes:\n" + "\n".join(f"  {c}" for c in self.changes))
        self.folder.cut_metrics(state.step)
        self.board = _board(self.config, self.folder)
        self.display.first = state.step
        self.display.say(f"resumed {self.folder.path} after step {state.step}")
        return state.step

    async def _steps(self, state: State | None, interrupt: Interrupt) -> int:
        first = await self._begin() if state is None else self._restore(state)
        for step in range(first, self.config.steps):
            try:
                record = await train_step(self.run, step)
            except ValueError as error:
                if self.run.between_steps:
                    self._save(step)
                raise ValueError(f"step {step + 1}: {error}") from error
            await self._after_step(step + 1, record)
            if interrupt.asked:
                self._save(step + 1)
                return step + 1
        return self.config.steps

    async def _after_step(self, done: int, record: StepRecord) -> None:
        c, row = self.config, {"step": done, **record.facts}
        self.seconds += row["seconds"]
        self.tokens += row["tokens"]
        last = done == c.steps
        if last or (c.eval.every and done % c.eval.every == 0):
            found = await self._evaluate()
            self.after = found.accuracy
            row |= found.logged() | await self.wins.row(found)
        self._log(row)
        self.display.update(done, row)
        if c.save.episodes_every and (done % c.save.episodes_every == 0 or last):
            self.folder.write_episodes(done, record.episodes)
        if last or (c.save.checkpoint_every and done % c.save.checkpoint_every == 0):
            self._save(done)

    async def _evaluate(self) -> Evaluation:
        sampling = replace(self.run.sampling, temperature=self.config.eval.temperature, top_k=0, top_p=1.0)
        r, e = self.run, self.config.eval
        return await evaluate(r.engine, r.tokenizer, r.judge, r.tasks, sampling, e.prompts, e.samples, e.k, r.walk.play)

    def _log(self, row: dict[str, Any]) -> None:
        self.folder.append_metrics(row)
        if self.board is not None:
            for name, value in row.items():
                if name != "step":
                    self.board.add_scalar(name, value, row["step"])

    def _save(self, done: int) -> None:
        facts = {"accuracy_before": self.before, "held_out": self.after, "seconds": self.seconds, "tokens": self.tokens}
        facts |= {"wins": self.wins.facts} if self.wins.facts else {}
        save_checkpoint(self.folder["checkpoints"], self.run.state(done, facts), self.config.save.keep)

    def _how_to_resume(self) -> str:
        if not self.folder["config.toml"].exists():
            return "Nothing was started and nothing is lost: once that is mended, the same command starts it."
        last = latest_checkpoint(self.folder["checkpoints"])
        saved = f"Step {step_of(last)} is saved" if last else "No step is saved yet, so it begins again"
        return f"{saved}: go on with  {resume_command(self.folder)}"

    def _finish(self, done: int) -> dict[str, Any]:
        if done < self.config.steps:
            self.display.say(f"stopped after step {done} of {self.config.steps}. {self._how_to_resume()}")
            facts = {"steps": done, "stopped": True, "folder": str(self.folder.path)}
            return {**facts, "resume": resume_command(self.folder)}
        self.run.models["policy"].save(self.folder["policy"])
        self.run.tokenizer.save(self.folder["policy"])
        summary = {
            "method": self.config.method.name,
            "task": self.config.task.name,
            "seed": self.config.seed,
            "accuracy_before": self.before,
            "accuracy_after": self.after,
            **self.wins.summary(),
            "seconds": round(self.seconds, 2),
            "steps": done,
            "tokens_per_second": round(self.tokens / max(self.seconds, 1e-9), 1),
            "folder": str(self.folder.path),
        }
        self.folder.write_summary(summary)
        self.folder.draw_curves(f"{self.config.method.name} on {self.config.task.name}, seed {self.config.seed}")
        self.display.say(closing_words(summary, self.folder))
        return summary


def closing_words(summary: dict[str, Any], folder: RunFolder) -> str:
    other = "grpo" if summary["method"] == "dapo" else "dapo"
    again = f"task={summary['task']} task.level=3"
    if summary["task"] not in BUILT_IN:  # other tasks have settings that only the config file knows
        again = f"--config {shlex.quote(str(folder['config.toml']))}"
    return "\n".join(
        [
            f"held-out accuracy {summary['accuracy_before']:.3f} → {summary['accuracy_after']:.3f} in "
            f"{summary['steps']} steps, {summary['seconds']:.0f} s of training",
            *win_words(summary),
            f"  curves    {folder['curves.png']}",
            *([f"  episodes  {folder['episodes']}"] if folder["episodes"].is_dir() else []),
            f"  policy    {folder['policy']}   (transformers: "
            f"AutoModelForCausalLM.from_pretrained({str(folder['policy'])!r}))",
            f"  summary   {folder['summary.json']}",
            f"try next:  gruppo methods   ·   gruppo train method={other}   ·   gruppo methods diff grpo dapo",
            f"           gruppo eval {shlex.quote(str(folder['policy']))} {again}",
        ]
    )


def _board(config: RunConfig, folder: RunFolder) -> Any:
    if config.save.tensorboard == "no":
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        if config.save.tensorboard == "yes":
            raise ValueError(
                "save.tensorboard=yes, but tensorboard is not installed: nothing would be written. "
                "pip install 'gruppo[tensorboard]', or save.tensorboard=no."
            ) from None
        return None
    last = latest_checkpoint(folder["checkpoints"])
    return SummaryWriter(str(folder["tensorboard"]), purge_step=step_of(last) + 1 if last else None)
