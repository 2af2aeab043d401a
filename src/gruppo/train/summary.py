"""What a finished run says: its summary, and the last words on the screen."""

import shlex
from typing import TYPE_CHECKING, Any

from gruppo.tasks import BUILT_IN
from gruppo.train.folder import RunFolder
from gruppo.train.winrate import win_words

if TYPE_CHECKING:
    from gruppo.train.trainer import Trainer

SEAT = "held_out/return/"


def summary_of(trainer: "Trainer") -> dict[str, Any]:
    c = trainer.config
    return {
        "method": c.method.name,
        "task": c.task.name,
        "seed": c.seed,
        "accuracy_before": trainer.before,
        "accuracy_after": trainer.after,
        **trainer.wins.summary(),
        "seconds": round(trainer.seconds, 2),
        "steps": trainer.done,
        "tokens_per_second": round(trainer.tokens / max(trainer.seconds, 1e-9), 1),
        **({"ended_early": trainer.early} if trainer.early else {}),
        **{name: value for c in trainer.callbacks for name, value in c.facts(trainer).items()},
        "folder": str(trainer.folder.path),
    }


def seat_words(folder: RunFolder) -> list[str]:
    """In a game, what each seat earned in the last evaluation: in a zero-sum game their mean is 0."""
    known = ((k, v) for row in folder.metrics() for k, v in row.items() if k.startswith(SEAT) and v is not None)
    seats = {k.removeprefix(SEAT): v for k, v in known}
    return [f"held-out return {', '.join(f'{seat} {r:.3f}' for seat, r in seats.items())}"] if seats else []


def closing_words(summary: dict[str, Any], folder: RunFolder) -> str:
    other = "grpo" if summary["method"] == "dapo" else "dapo"
    again = " task.level=3" if summary["task"] in BUILT_IN else ""
    name = shlex.quote(str(folder.path))
    best = (
        f"held-out accuracy {summary['best_accuracy']:.3f}, step {summary['best_step']}"
        if "best_step" in summary
        else ""
    )
    shares = all(0 <= (summary[k] or 0) <= 1 for k in ("accuracy_before", "accuracy_after"))
    word, steps = "accuracy" if shares else "score", "step" if summary["steps"] == 1 else "steps"
    early = f", ended early: {summary['ended_early']}" if "ended_early" in summary else ""
    return "\n".join(
        [
            f"held-out {word} {summary['accuracy_before']:.3f} → {summary['accuracy_after']:.3f} in "
            f"{summary['steps']} {steps}, {summary['seconds']:.0f} s of training{early}",
            *win_words(summary),
            *seat_words(folder),
            f"  curves    {folder['curves.png']}",
            *([f"  episodes  {folder['episodes']}"] if folder["episodes"].is_dir() else []),
            f"  policy    {folder['policy']}   (transformers: "
            f"AutoModelForCausalLM.from_pretrained({str(folder['policy'])!r}))",
            *([f"  best      {folder['best'] / 'policy'}   ({best})"] if best else []),
            f"  summary   {folder['summary.json']}",
            f"try next:  gruppo methods   ·   gruppo train method={other}   ·   gruppo methods diff grpo dapo",
            f"           gruppo episodes {name}   ·   gruppo runs",
            f"           gruppo eval {name}{again}",
        ]
    )
