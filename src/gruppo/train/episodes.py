"""Episodes as rows for people: prompt, reference, answer, reward, advantage, status; chosen, printed and exported."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from gruppo.data import Batch, Episode, Status, Turn
from gruppo.envs.with_tools import READY
from gruppo.envs.world import NOTHING
from gruppo.stages.dialogue import OVERFLOW
from gruppo.stages.names import nearest
from gruppo.tools.calls import NO_JSON
from gruppo.train.folder import RunFolder, finite
from gruppo.train.manifest import write_text
from gruppo.train.missing import refuse_missing

Row = dict[str, Any]
NAN = float("nan")
STATUSES = tuple(s.name.lower() for s in Status)
ENDINGS = (".jsonl", ".parquet")


# ---- from a step


def beside(episodes: Sequence[Episode], batch: Batch | None, task_of: Callable[[Episode], Any]) -> dict[str, list[Any]]:
    """What an episode does not hold: the prompt and the reference of its task, and its advantage in the batch."""
    tasks = [_task(e, task_of) for e in episodes]
    known = advantages(batch)
    return {
        "prompt": ["" if t is None else prompt_of(t) for t in tasks],
        "reference": ["" if t is None else t.answer or t.solution for t in tasks],
        "advantage": [known.get(e.uid, NAN) for e in episodes],
    }


def _task(e: Episode, task_of: Callable[[Episode], Any]) -> Any:
    try:
        return task_of(e)
    except ValueError:  # an expert of a rollout's own, of no task in the set
        return None


def prompt_of(task: Any) -> str:
    """The prompt as it was asked; a dialogue with the roles of its turns."""
    turns = task.messages
    return task.prompt if len(turns) == 1 else "\n".join(f"{m['role']}: {m.get('content') or ''}" for m in turns)


def advantages(batch: Batch | None) -> dict[int, float]:
    """{uid: the mean advantage of the tokens that are learned}; an episode without such tokens is left out."""
    if batch is None or "adv_N" not in batch.columns:
        return {}
    learned_N = batch.spread(batch.learn_E, "E", "N") & batch.keep_N
    count_E = batch.gather(learned_N.to(batch.adv_N.dtype), "N", "E")
    sum_E = batch.gather(torch.where(learned_N, batch.adv_N, 0.0), "N", "E")
    fresh_E = (count_E > 0) & ~batch.replayed_E
    found = zip(batch.uid_E[fresh_E].tolist(), (sum_E / count_E)[fresh_E].tolist(), strict=True)
    return dict(found)


def dialogue(e: Episode) -> str:
    """The text of an episode. Of an answer after calls of tools also those: their results are in the states."""
    tooled = any(t.tools or t.state == READY for t in e.turns)
    if len(e.turns) < 2 or not tooled or e.text not in e.turns[-1].text:
        return e.text
    lines = [f"> {e.turns[0].text}"]
    for before, t in pairwise(e.turns):
        lines += [_heard(before, t), f"> {t.text}"]
    return "\n".join(filter(None, lines))


def _heard(before: Turn, t: Turn) -> str:
    """What was seen between two turns with tools. What is neither a call nor an answer leaves the state as it was."""
    if t.state == before.state and t.state.startswith(READY) and not before.tools:
        return NO_JSON if before.action_key else NOTHING
    return t.state.partition("\n")[2].strip("\n") if t.state != before.state else ""


def row_of(e: Episode, step: int, prompt: str, reference: str, advantage: float) -> Row:
    returns = e.returns
    return {
        "step": step,
        "task": e.task,
        "group": e.group,
        "domain": e.domain,
        "prompt": prompt,
        "reference": reference,
        "answer": dialogue(e),
        "reward": e.total,
        "rewards": dict(e.reward),
        "returns": returns if len(returns) > 1 else {},  # by agent: in a game their sum may say nothing
        "advantage": advantage,
        "status": e.status.name.lower(),
        "tokens": int(sum((s.source == e.source).sum() for s in e.sequences)),
        "turns": len(e.turns),
        "seconds": sum(t.seconds for t in e.turns),  # of turns that the clock was read for
        "source": e.source.name.lower(),
        "use": e.use.name.lower(),
        "error": e.error or ("the next observation did not fit into the context" if OVERFLOW in e.notes else ""),
        "uid": e.uid,
    }


# ---- from a folder


def episode_rows(folder: str | Path, steps: Sequence[int] | None = None) -> list[Row]:
    """One row for each episode that a run has stored, for these steps; None: the newest one."""
    run = RunFolder(Path(folder))
    kept = stored_steps(run)
    rows: list[Row] = []
    for step in kept[-1:] if steps is None else steps:
        episodes, columns = run.read_with_beside(step)
        more = zip(columns["prompt"], columns["reference"], columns["advantage"], strict=True)
        rows += [row_of(e, step, *given) for e, given in zip(episodes, more, strict=True)]
    return rows


def stored_steps(run: RunFolder) -> list[int]:
    """The steps whose episodes are there; a ValueError if there are none."""
    if not run["config.toml"].is_file() and not run["episodes"].is_dir():
        refuse_missing(run.path)
        raise ValueError(
            f"{run.path} is not a run folder: it has no config.toml. `gruppo runs` lists those that are here."
        )
    kept = run.episode_steps()
    if not kept:
        raise ValueError(
            f"{run.path} has no episodes yet: they are written every save.episodes_every steps (10 by default; 0: "
            "never) and at the end."
        )
    return kept


@dataclass(frozen=True)
class Filter:
    """Which rows are wanted. A row without a reward fails every bound on it."""

    status: str = ""
    task: str = ""  # part of the task's uid, or its domain
    contains: str = ""  # in the prompt or the answer, in any case
    least: float | None = None  # reward; in a game, the return of some agent
    most: float | None = None

    def __post_init__(self) -> None:
        if self.status and self.status not in STATUSES:
            raise ValueError(
                f"--status {self.status}: no episode ends like that{nearest(self.status, STATUSES)}. Use one of "
                f"{', '.join(STATUSES)}."
            )

    def __call__(self, row: Row) -> bool:
        text = f"{row['prompt']}\n{row['answer']}".lower()
        return (
            self.status in ("", row["status"])
            and (self.task in row["task"] or self.task == row["domain"])
            and self.contains.lower() in text
            and (self.least is None or max(_paid(row)) >= self.least)
            and (self.most is None or min(_paid(row)) <= self.most)
        )


def _paid(row: Row) -> list[float]:
    """The return of each agent."""
    return [*row.get("returns", {}).values()] or [row["reward"]]


def by_reward(rows: Iterable[Row], best: bool) -> list[Row]:
    """Those with a reward, the best or the worst first; equal ones stay in their order. In a game, of any agent."""
    judged = [r for r in rows if r["reward"] == r["reward"]]
    return sorted(judged, key=lambda r: -max(_paid(r)) if best else min(_paid(r)))


# ---- for people and other programs


def in_words(row: Row, width: int = 0) -> str:
    """A few lines: what the policy was asked, what it wrote, and what it got. With a width, each is one line."""
    parts = [f"{name} {value:.3g}" for name, value in row["rewards"].items()]
    shown = f"reward {_number(row['reward'])}" + (f" ({', '.join(parts)})" if len(parts) > 1 else "")
    if row.get("returns"):
        shown = "return " + ", ".join(f"{agent} {_number(r)}" for agent, r in row["returns"].items())
    facts = [f"step {row['step']}", row["domain"] or row["task"], shown]
    facts += [f"advantage {row['advantage']:+.3g}"] if row["advantage"] == row["advantage"] else []
    many = row.get("turns", 1) > 1
    facts += [f"{row['turns']} turns"] if many else []
    facts += [f"{row['seconds']:.2g} s"] if row.get("seconds") else []
    ended = ENDED.get((row["status"], many), ENDED.get(row["status"], row["status"]))
    facts += [
        f"{row['tokens']} tokens",
        "ran out of context" if row["error"] and row["status"] == "truncated" else ended,
    ]
    lines = [" · ".join(facts)]
    for name in ("prompt", "answer", "reference", "error"):
        if row[name] or name == "answer":
            lines.append(f"  {name:<9}  {_fitted(row[name], 0 if name == 'error' else width)}")  # its end says what
    return "\n".join(lines)


ENDED: dict[Any, str] = {
    "ok": "ended",
    "truncated": "cut off (sampling.max_tokens)",
    "env_error": "not judged",
    "timeout": "not judged in time",
    ("truncated", True): "ran out of turns",
}


def _number(x: float) -> str:
    return f"{x:.3g}" if x == x else "none"


def _fitted(text: str, width: int) -> str:
    """One line of that width, cut in its middle, since both ends matter; without a width, all lines, indented."""
    text = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    if not width:
        return text.replace("\n", "\n" + " " * 13)
    line, room = " ".join(text.split()), max(width - 13, 20)
    return line if len(line) <= room else f"{line[: room // 2 - 1]} … {line[len(line) - (room - room // 2 - 2) :]}"


def flat(row: Row) -> Row:
    """With a column for each component of the reward, `reward/task`, and for each agent of several, `return/first`."""
    out = {k: v for k, v in row.items() if k not in ("rewards", "returns")}
    out |= {f"reward/{name}": value for name, value in row["rewards"].items()}
    return out | {f"return/{agent}": value for agent, value in row.get("returns", {}).items()}


def export(rows: Sequence[Row], path: Path) -> None:
    """Write rows as .jsonl or .parquet, at once or not at all."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"--out {path}: the ending says how to write. Use {' or '.join(ENDINGS)}.")
    if path.suffix == ".jsonl":
        write_text(path, "".join(json_line(row) + "\n" for row in rows))
        return
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = [flat(row) for row in rows]
    names = dict.fromkeys(name for row in table for name in row)
    draft = path.with_name(f".{path.name}.draft")
    try:
        parquet.write_table(pa.table({n: [clean(row.get(n)) for row in table] for n in names}), draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def json_line(row: Mapping[str, Any]) -> str:
    line = json.dumps(finite(row), ensure_ascii=False)
    return line if line == clean(line) else json.dumps(finite(row))


def clean(x: Any) -> Any:
    """A text that can be written as UTF-8: a model may leave half a character."""
    return x.encode("utf-8", "replace").decode() if isinstance(x, str) else x
