"""What a finished run says: its summary, and the last words on the screen."""

import shlex
from typing import TYPE_CHECKING, Any

from gruppo.stages.requires import RecurringStates, SeveralSeats
from gruppo.tasks import BUILT_IN, TaskConfig
from gruppo.train.config import ModelConfig, RunConfig, usual
from gruppo.train.folder import RunFolder
from gruppo.train.measured import comparable, result_words, since, since_words, steps_words
from gruppo.train.progress import MISSING, change_words, returns_of, word
from gruppo.train.saved import others_in
from gruppo.train.winrate import win_words
from gruppo.train.worlds import declaring

if TYPE_CHECKING:
    from gruppo.train.trainer import Trainer


def summary_of(trainer: "Trainer") -> dict[str, Any]:
    c, rows = trainer.config, trainer.folder.metrics()
    return {
        "method": c.method.name,
        "task": c.task.name,
        "seed": c.seed,
        "accuracy_before": trainer.before,
        "accuracy_after": trainer.after,
        "measure": word(comparable(rows)),
        **({"measured_since": step} if (step := since(rows)) else {}),
        **trainer.wins.summary(),
        "seconds": round(trainer.seconds, 2),
        "steps": trainer.done,
        "tokens_per_second": round(trainer.tokens / max(trainer.seconds, 1e-9), 1),
        **({"ended_early": trainer.early} if trainer.early else {}),
        **{name: value for c in trainer.callbacks for name, value in c.facts(trainer).items()},
        "folder": str(trainer.folder.path),
    }


def seat_words(folder: RunFolder) -> str:
    """In a game, what each seat earned in the first and the last evaluation: in a zero-sum game their mean is 0."""
    shown = [f"{seat} {change_words(of)}" for seat, of in returns_of(comparable(folder.metrics())).items()]
    return f"held-out return {', '.join(shown)}" if shown else ""


def train_words(config: RunConfig, folder: RunFolder, other: str) -> str:
    """The command that trains another method on the same task with the same model: all its settings, if need be."""
    c, task = config, TaskConfig(name=config.task.name)
    if c.task == task and c.model == ModelConfig(name=usual(task.name).get("model.name", ModelConfig.name)):
        where = "" if task == TaskConfig() else f" task={shlex.quote(task.name)}"
        return f"train{where} method={other}"
    name = f" save.name={shlex.quote(f'{c.save.name}-{other}')}" if c.save.name else ""
    return f"train --config {shlex.quote(str(folder['config.toml']))} method={other}{name}"


def next_words(config: RunConfig, folder: RunFolder, env: str = "", game: bool = False) -> str:
    """What to try after this run: another method and, in a world, a look at it."""
    mine = config.method.name
    if not env or env == "agent" or env.startswith("tools:"):
        other = "grpo" if mine == "dapo" else "dapo"
        commands = ("methods", train_words(config, folder, other), "methods diff grpo dapo")
    else:
        made_for = declaring(SeveralSeats() if game else RecurringStates())
        other = next(name for name in made_for if name != mine)
        play = f"env play {shlex.quote(env.split('+')[0])}"
        commands = (play, train_words(config, folder, other), f"methods diff {mine} {other}")
    return f"try next:  gruppo {'   ·   gruppo '.join(commands)}"


def closing_words(summary: dict[str, Any], folder: RunFolder, config: RunConfig, env: str = "") -> str:
    """`env` is that of the tasks."""
    again = " task.level=3" if summary["task"] in BUILT_IN else ""
    name = shlex.quote(str(folder.path))
    best = (
        f"held-out {summary['measure']} {summary['best_accuracy']:.3f}, step {summary['best_step']}"
        if "best_step" in summary
        else ""
    )
    seats = seat_words(folder)
    anew = since_words(summary.get("measured_since", 0))
    both = result_words(summary)
    # The score has what the only seat was paid.
    score = f"{seats}, {both}" if MISSING in seats else f"{seats}{anew}" if seats else both
    early = f", ended early: {summary['ended_early']}" if "ended_early" in summary else ""
    return "\n".join(
        [
            f"{score} in {steps_words(summary)}, {summary['seconds']:.0f} s of training{early}",
            *win_words(summary),
            f"  curves    {folder['curves.png']}",
            *([f"  episodes  {folder['episodes']}"] if folder["episodes"].is_dir() else []),
            f"  policy    {folder['policy']}   (transformers: "
            f"AutoModelForCausalLM.from_pretrained({str(folder['policy'])!r}))",
            *(f"  {role:<9} {folder}" for role, folder in others_in(folder.path).items()),
            *([f"  best      {folder['best'] / 'policy'}   ({best})"] if best else []),
            f"  summary   {folder['summary.json']}",
            next_words(config, folder, env, game=bool(seats)),
            f"           gruppo episodes {name}   ·   gruppo runs",
            f"           gruppo eval {name}{again}",
        ]
    )
