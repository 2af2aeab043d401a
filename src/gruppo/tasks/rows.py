"""From a row to a task: which field is what, and which values are valid."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import isfinite, isnan, nan
from typing import Any

from gruppo.tasks.base import Task
from gruppo.tasks.extract import boxed
from gruppo.tasks.imports import nearest
from gruppo.tasks.messages import Said
from gruppo.tasks.settings import TaskConfig
from gruppo.tasks.template import MISSING, lookup, prompts

Row = Mapping[str, Any]

# The usual fields of each part of a task; the first one that the rows have is used.
USUAL = {
    "prompt": ("prompt", "question", "problem", "instruction", "query", "input", "messages", "conversations"),
    "answer": ("answer", "final_answer", "output", "response", "completion", "target", "label", "ground_truth"),
    "solution": ("solution",),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
}
# These have a meaning in Task.meta, so fields of a row with these names get an underscore.
OURS = ("answers", "messages", "messages_after")


@dataclass(frozen=True)
class Table:
    """Rows, the name of their source, and the position of each row in it, for error messages."""

    name: str
    rows: Sequence[Row]
    where: Callable[[int], str]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for row in self.rows for key in row))


def names_of(table: Table, settings: TaskConfig) -> dict[str, str]:
    """The field for each part of a task, as set or by its usual name; empty if the rows have none."""
    known, found = table.fields, dict[str, str]()
    for part, usual in USUAL.items():
        given = str(getattr(settings, part))
        if given and given.split(".")[0] not in known and given not in known:
            raise ValueError(
                f"task.{part}={given}: {table.name} has no such field.{nearest(given, known)} Fields: "
                f"{', '.join(known) or 'none'}."
            )
        found[part] = given or next((name for name in usual if name in known), "")
    if found["answer"] == found["prompt"] and not settings.answer:
        found["answer"] = ""
    if bool(found["chosen"]) != bool(found["rejected"]):
        there, gone = ("chosen", "rejected") if found["chosen"] else ("rejected", "chosen")
        raise ValueError(
            f"{table.name} has the field {found[there]!r} and none called {gone!r}, but a preference requires both. "
            f"Name it with task.{gone}=FIELD. Fields: {', '.join(known)}."
        )
    if not found["prompt"] and not settings.template and not found["chosen"]:
        raise ValueError(
            f"{table.name} has none of the fields {', '.join(USUAL['prompt'])}, so there are no prompts. Name it "
            f"with task.prompt=FIELD, or write a task.template. Fields: {', '.join(known) or 'none'}."
        )
    return found


@dataclass(frozen=True)
class Read:
    """A task, and a hash of its prompt before the template, which is equal for rows that ask the same."""

    task: Task
    prompt_hash: bytes


class Reader:
    """Makes tasks from rows. An error of a row names its position."""

    def __init__(self, table: Table, settings: TaskConfig, needs_answer: bool) -> None:
        self.table, self.settings, self.needs_answer = table, settings, needs_answer
        self.names = names_of(table, settings)
        self.prompt, self.answer, self.solution, self.chosen, self.rejected = self.names.values()
        known = tuple(dict.fromkeys((*table.fields, "prompt")))
        self.fill = prompts(settings.template, known, table.name) if settings.template else None

    @property
    def may_answer(self) -> bool:
        """Whether rows can have an answer: in a field of their own, in messages, or in a list of scored answers."""
        lists = {"answers", "messages", "conversations"} & set(self.table.fields)
        return bool(self.answer or self.solution or self.chosen or lists)

    def __call__(self, index: int) -> Read | None:
        """The task of a row; None for two equal answers, from which nothing can be learned."""
        try:
            return self._read(self.table.rows[index])
        except ValueError as error:
            raise ValueError(f"{self.table.where(index)}: {error}. Correct the row or remove it.") from None

    def _read(self, row: Row) -> Read | None:
        said = Said.of(_value(row, self.prompt), self.prompt) if self.prompt else Said()
        scored, said = self._pair(row, said) if self.chosen else (self._scored(row), said)
        if len(scored) > 1 and len({a["text"] for a in scored}) == 1:
            return None
        answer, solution = self._answers(row, said, scored)
        prompt = self.fill({**row, "prompt": said.prompt}) if self.fill else said.prompt
        if not prompt.strip():
            raise ValueError("its prompt is empty")
        # A worked solution is there to learn from; the scorer decides whether it is right.
        listed = scored or ([{"text": solution}] if solution and solution != answer else [])
        meta = self._meta(row) | ({"answers": listed} if listed else {})
        meta |= {"messages": list(said.before)} if said.before else {}
        meta |= {"messages_after": list(said.after)} if said.after else {}
        task = Task(
            uid=f"{self.table.name}/{_hash(json.dumps([prompt, said.context, answer, listed]), 8).hex()}",
            prompt=prompt,
            answer=answer,
            level=_level(row),
            source=self.table.name,
            solution=solution,
            system=self.settings.system or said.system,
            meta=meta,
        )
        return Read(task, _hash(json.dumps([said.prompt, said.context]) if said.prompt else prompt, 16))

    def _answers(self, row: Row, said: Said, scored: list[dict[str, Any]]) -> tuple[str, str]:
        """The right answer, short, and the worked solution."""
        if scored:
            best = max(scored, key=lambda a: a["reward"])
            answer = str(best["text"]) if best["reward"] > 0 else ""
            return answer, _text(row, self.solution) if self.solution else answer
        answer = self._answer(row) if self.answer else said.answer
        solution = _text(row, self.solution) if self.solution else answer
        answer = short(answer or solution)
        if self.needs_answer and not answer.strip():
            raise ValueError(f"the field {self.answer or self.solution or 'answer'!r} is empty")
        return answer, solution

    def _pair(self, row: Row, said: Said) -> tuple[list[dict[str, Any]], Said]:
        """A preference: texts, or conversations that differ in the last turn."""
        sides = [_value(row, self.chosen), _value(row, self.rejected)]
        if all(isinstance(s, list) for s in sides):
            better, worse = Said.answered(sides[0], self.chosen), Said.answered(sides[1], self.rejected)
            alike = (better.prompt, better.context) == (worse.prompt, worse.context)
            if not alike and not said.prompt:
                raise ValueError("the conversations of its two answers do not begin alike")
            # A prompt may be only one of the turns.
            if alike and (not said.prompt or said.prompt in better.user_turns):
                said = replace(better, system=better.system or said.system)
            sides = [better.answer, worse.answer]
        if not said.prompt and not self.fill:
            raise ValueError("its two answers are texts and it has no prompt; name its field with task.prompt=FIELD")
        better, worse = _plain(sides[0], self.chosen), _plain(sides[1], self.rejected)
        return [{"text": better, "reward": 1.0}, {"text": worse, "reward": 0.0}], said

    def _scored(self, row: Row) -> list[dict[str, Any]]:
        """Answers with rewards: a list, `answers: [{text, reward}, …]`, or one with a `label` true or false.

        With a `completion`, 1 and 0 are labels too; with other fields, a number may be anything.
        """
        given = row.get("answers")
        given = given if isinstance(given, list) else []
        if given and all(isinstance(a, Mapping) and {"text", "reward"} <= set(a) for a in given):
            return [{"text": _plain(a["text"], "answers.text"), "reward": _reward(a["reward"])} for a in given]
        label = row.get("label")
        labelled = isinstance(label, bool) or (self.answer == "completion" and label in (0, 1))
        if labelled and self.answer not in ("", "label"):
            return [{"text": _text(row, self.answer), "reward": float(row["label"])}]
        return []

    def _answer(self, row: Row) -> str:
        if self.needs_answer or self.settings.answer:
            return _text(row, self.answer)
        value = lookup(row, self.answer)  # not required: a text or number is an answer, anything else stays in meta
        known = isinstance(value, (str, bool, int, float)) and not _is_nan(value)
        return _plain(value, self.answer) if known else ""

    def _meta(self, row: Row) -> dict[str, Any]:
        """The other fields of the row, for scorers; and an answer that is no text."""
        used = {name for name in self.names.values() if name}
        own = {f"{k}_" if k in OURS else k: v for k, v in row.items() if k not in used}
        kept = row.get(self.answer)
        return own if kept is None or isinstance(kept, (str, bool, int, float)) else own | {self.answer: kept}


def _value(row: Row, name: str) -> Any:
    value = lookup(row, name)
    if value is MISSING:
        raise ValueError(f"it has no field {name!r} (it has: {', '.join(row) or 'nothing'})")
    if value is None or _is_nan(value):  # tables often have NaN for a missing value
        raise ValueError(f"the field {name!r} is {'null' if value is None else 'NaN'}")
    return value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _reward(value: Any) -> float:
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        reward = nan
    if not isfinite(reward):
        raise ValueError(f"one of its answers has the reward {value!r}, which is not a finite number")
    return reward


def _text(row: Row, name: str) -> str:
    return _plain(_value(row, name), name)


def _plain(value: Any, name: str) -> str:
    """Texts unchanged; numbers, true and false as in JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    kind = type(value).__name__
    raise ValueError(f"the field {name!r} is {kind} and not a text or number; a part of it is {name}.NAME or {name}.0")


def _hash(text: str, size: int) -> bytes:
    return blake2b(text.encode(), digest_size=size).digest()


def short(answer: str) -> str:
    r"""The 42 of a worked solution that ends in a line `#### 42`, or has `\boxed{42}`; else the text itself."""
    last = answer.rstrip().rpartition("\n")[2]
    if last.startswith("####"):
        return last[4:].strip()
    return boxed(answer) or answer


def _level(row: Row) -> int:
    """An integer field `level`, also written `Level 5`; else 1."""
    value = row.get("level")
    if isinstance(value, str):
        value = int(value.split()[-1]) if value.split() and value.split()[-1].isdecimal() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
