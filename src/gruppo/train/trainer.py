"""From a configuration to a trained policy: set up, check, train, evaluate, save, resume."""

import asyncio
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from gruppo.stages import StepRecord
from gruppo.train.checkpoint import State, latest_checkpoint, load_checkpoint, save_checkpoint
from gruppo.train.config import RunConfig
from gruppo.train.doctor import refuse, step_zero
from gruppo.train.evaluate import Evaluation, evaluate
from gruppo.train.folder import RunFolder, config_changes
from gruppo.train.loop import train_step
from gruppo.train.progress import Display
from gruppo.train.run import Run


class Interrupt:
    """Ctrl-C once: finish the step, save, stop. Twice: stop at once; the last checkpoint stands."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "Interrupt":
        try:
            self._before = signal.signal(signal.SIGINT, self._note)
        except ValueError:  # not in the main thread: nobody can press Ctrl-C here
            self._before = None
        return self

    def __exit__(self, *_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def new_folder(config: RunConfig) -> RunFolder:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = config.save.name or f"{config.method.name}-{Path(config.task.name.split(':')[0]).stem}-{config.seed}-{stamp}"
    folder = RunFolder(Path(config.save.folder) / name)
    if folder["config.toml"].exists():
        raise ValueError(
            f"{folder.path} holds a run already: a second one would mix with it. Choose another "
            "save.name, or go on with it: "
            f"gruppo train --resume {folder.path}"
        )
    return folder


def train(config: RunConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Train from the start. Returns the summary, which also stands in the run folder."""
    folder = new_folder(config)
    return Trainer(config, folder, quiet).go()


def resume(
    path: Path, config: RunConfig | None = None, *, trust_code: bool = False, allow: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Go on with a run from its newest whole checkpoint, exactly. A changed configuration is refused unless allowed."""
    folder = RunFolder(path)
    before = folder.read_config(trust_code)
    last = latest_checkpoint(folder["checkpoints"])
    if last is None:
        raise ValueError(
            f"{path} has no whole checkpoint: there is nothing to go on from. Start it again with gruppo train."
        )
    config = config or before
    changes = config_changes(before, config)
    if changes and not allow:
        listed = "\n".join(f"  {c}" for c in changes)
        raise ValueError(
            f"the configuration is not the one the run was started with, so it would not go on exactly:\n{listed}\n"
            "Leave these out, or add --allow-changes to go on with them."
        )
    trainer = Trainer(config, folder, quiet)
    if changes:
        folder.write_config(config)
        trainer.display.say("going on with changes:\n" + "\n".join(f"  {c}" for c in changes))
    return trainer.go(load_checkpoint(last))


class Trainer:
    def __init__(self, config: RunConfig, folder: RunFolder, quiet: bool = False) -> None:
        self.config, self.folder = config, folder
        title = f"{config.method.name} on {config.task.name}"
        self.display = Display(title, config.steps, quiet=quiet)
        self.run = Run(config, self.display.say)
        self.board = _board(config, folder)
        self.before: float | None = None
        self.after: float | None = None
        self.seconds, self.tokens = 0.0, 0.0

    def go(self, state: State | None = None) -> dict[str, Any]:
        first = 0
        if state is not None:
            self.run.restore(state)
            first, facts = state.step, state.facts
            self.before, self.after = facts["accuracy_before"], facts.get("held_out")
            self.seconds, self.tokens = facts["seconds"], facts["tokens"]
            self.folder.cut_metrics(first)
            self.display.say(f"resumed {self.folder.path} after step {first}")
        else:
            self.folder.write_config(self.config)
        self.display.first = first
        try:
            with self.display, Interrupt() as interrupt:
                done = asyncio.run(self._steps(first, interrupt))
        finally:
            self.run.close()
            if self.board is not None:
                self.board.close()
        return self._finish(done)

    async def _steps(self, first: int, interrupt: Interrupt) -> int:
        if first == 0:
            refuse(await step_zero(self.run))
            self.before = (await self._evaluate()).accuracy
            self._log({"step": 0, "held_out": self.before})
        for step in range(first, self.config.steps):
            try:
                record = await train_step(self.run, step)
            except ValueError as error:
                self._save(step)
                raise ValueError(f"step {step + 1}: {error}\nNothing is lost: {self._how_to_resume()}") from error
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
            self.after = row["held_out"] = (await self._evaluate()).accuracy
        self._log(row)
        self.display.update(done, row)
        if c.save.episodes_every and (done % c.save.episodes_every == 0 or last):
            self.folder.write_episodes(done, record.episodes)
        if last or (c.save.checkpoint_every and done % c.save.checkpoint_every == 0):
            self._save(done)

    async def _evaluate(self) -> Evaluation:
        sampling = replace(self.run.sampling, temperature=self.config.eval.temperature, top_k=0, top_p=1.0)
        r = self.run
        return await evaluate(r.engine, r.tokenizer, r.judge, r.tasks, sampling, self.config.eval.prompts)

    def _log(self, row: dict[str, Any]) -> None:
        self.folder.append_metrics(row)
        if self.board is not None:
            for name, value in row.items():
                if name != "step":
                    self.board.add_scalar(name, value, row["step"])

    def _save(self, done: int) -> None:
        facts = {"accuracy_before": self.before, "held_out": self.after, "seconds": self.seconds, "tokens": self.tokens}
        save_checkpoint(self.folder["checkpoints"], self.run.state(done, facts), self.config.save.keep)

    def _how_to_resume(self) -> str:
        return f"go on with  gruppo train --resume {self.folder.path}"

    def _finish(self, done: int) -> dict[str, Any]:
        if done < self.config.steps:
            self.display.say(f"stopped after step {done} of {self.config.steps}; saved. To {self._how_to_resume()}")
            return {"steps": done, "stopped": True, "folder": str(self.folder.path)}
        self.run.models["policy"].save(self.folder["policy"])
        self.run.tokenizer.save(self.folder["policy"])
        summary = {
            "method": self.config.method.name,
            "task": self.config.task.name,
            "seed": self.config.seed,
            "accuracy_before": self.before,
            "accuracy_after": self.after,
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
    return "\n".join(
        [
            f"held-out accuracy {summary['accuracy_before']:.3f} → {summary['accuracy_after']:.3f} in "
            f"{summary['steps']} steps, "
            f"{summary['seconds']:.0f} s of training",
            f"  curves    {folder['curves.png']}",
            f"  episodes  {folder['episodes']}",
            f"  policy    {folder['policy']}   (transformers: "
            f"AutoModelForCausalLM.from_pretrained({str(folder['policy'])!r}))",
            f"  summary   {folder['summary.json']}",
            "try next:  gruppo methods   ·   gruppo train method=dapo   ·   gruppo methods diff grpo dapo",
            f"           gruppo eval {folder['policy']} task.level=3",
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
    return SummaryWriter(str(folder["tensorboard"]), purge_step=int(last.name.split("-")[1]) + 1 if last else None)
