"""From a row to a task: which field is what, and what a value must be."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isfinite, isnan, nan
from typing import Any

from gruppo.tasks.base import Task
from gruppo.tasks.extract import boxed
from gruppo.tasks.imports import nearest
from gruppo.tasks.settings import TaskConfig
from gruppo.tasks.template import MISSING, compiled, lookup

Row = Mapping[str, Any]

# Where nothing is said, the first of these that the rows have.
USUAL = {
    "prompt": ("prompt", "question", "problem", "instruction", "query", "input", "messages", "conversations"),
    "answer": ("answer", "final_answer", "output", "response", "completion", "target", "label", "ground_truth"),
    "solution": ("solution",),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
}
OURS = ("answers", "messages")  # what Task.meta means by these names; a row's own get an underscore


@dataclass(frozen=True)
class Table:
    """Rows, the name of the place they come from, and where each one stands in it."""

    name: str
    rows: Sequence[Row]
    place: Callable[[int], str]

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for row in self.rows for key in row))


@dataclass(frozen=True)
class Names:
    """The field of a row for each part of a task; empty: the rows have none."""

    prompt: str
    answer: str
    solution: str
    chosen: str
    rejected: str

    def told(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in vars(self).items() if v)


def names_of(table: Table, settings: TaskConfig) -> Names:
    """Which field is what: as told, or by the usual names. One that was told and is nowhere is refused."""
    known, found = table.fields, dict[str, str]()
    for part, usual in USUAL.items():
        told = str(getattr(settings, part))
        if told and told.split(".")[0] not in known and told not in known:
            raise ValueError(
                f"task.{part}={told}: {table.name} has no such field, so its rows cannot be read."
                f"{nearest(told, known)} Fields: {', '.join(known) or 'none'}."
            )
        found[part] = told or next((name for name in usual if name in known), "")
    if found["answer"] == found["prompt"] and not settings.answer:
        found["answer"] = ""
    if bool(found["chosen"]) != bool(found["rejected"]):
        there, gone = ("chosen", "rejected") if found["chosen"] else ("rejected", "chosen")
        raise ValueError(
            f"{table.name} has the field {found[there]!r} and none called {gone!r}: a preference needs both. "
            f"Name it with task.{gone}=FIELD. Fields: {', '.join(known)}."
        )
    if not found["prompt"] and not settings.template and not found["chosen"]:
        raise ValueError(
            f"{table.name} has none of the fields {', '.join(USUAL['prompt'])}, so there are no prompts. Name the "
            f"field with task.prompt=FIELD, or write task.template='{{{known[0] if known else 'field'}}}'. Fields: "
            f"{', '.join(known) or 'none'}."
        )
    return Names(**found)


@dataclass(frozen=True)
class Read:
    """A task, and what says that two rows ask the same."""

    task: Task
    asks: bytes


class Reader:
    """Makes tasks of rows. What is wrong with a row is said with the place where it stands."""

    def __init__(self, table: Table, settings: TaskConfig, names: Names, needs_answer: bool) -> None:
        self.table, self.settings, self.names, self.needs_answer = table, settings, names, needs_answer
        known = tuple(dict.fromkeys((*table.fields, "prompt")))
        self.fill = compiled(settings.template, known, table.name) if settings.template else None
        self.used = {v for v in vars(names).values() if v}
        self.source = table.name

    def __call__(self, index: int) -> Read | None:
        """The task of a row; None for a pair of equal answers, which says nothing."""
        row = self.table.rows[index]
        try:
            return self._read(row)
        except ValueError as error:
            raise ValueError(
                f"{self.table.place(index)}: {error}, so it cannot be used. Mend the row or take it out."
            ) from None

    def _read(self, row: Row) -> Read | None:
        n = self.names
        said = Said.of(_value(row, n.prompt)) if n.prompt else Said()
        scored, said = self._pair(row, said) if n.chosen else (self._scored(row), said)
        if len(scored) > 1 and len({a["text"] for a in scored}) == 1:
            return None
        answer, solution = self._answers(row, said, scored)
        prompt = self.fill({**row, "prompt": said.prompt}) if self.fill else said.prompt
        if not prompt.strip():
            raise ValueError("its prompt is empty")
        # A worked solution is there to learn from; whether it is right is for the scorer to say.
        listed = scored or ([{"text": solution}] if solution and solution != answer else [])
        meta = self._meta(row) | ({"answers": listed} if listed else {})
        meta |= {"messages": list(said.before)} if said.before else {}
        asks = json.dumps([said.prompt, said.before]) if said.prompt else prompt
        task = Task(
            uid=f"{self.source}/{_hash(json.dumps([prompt, said.before, answer, listed]), 8).hex()}",
            prompt=prompt,
            answer=answer,
            level=_level(row),
            source=self.source,
            solution=solution,
            system=self.settings.system or said.system,
            meta=meta,
        )
        return Read(task, _hash(asks, 16))

    def _answers(self, row: Row, said: "Said", scored: list[dict[str, Any]]) -> tuple[str, str]:
        """The right answer, short, and the worked solution."""
        n = self.names
        best = max(scored, key=lambda a: a["reward"], default={"text": "", "reward": 0.0})
        if scored:
            answer = str(best["text"]) if best["reward"] > 0 else ""
        else:
            answer = self._answer(row) if n.answer else said.answer
        solution = _text(row, n.solution) if n.solution else answer
        answer = answer if scored else short(answer or solution)
        if self.needs_answer and not scored and not answer.strip():
            raise ValueError(f"the field {n.answer or n.solution or 'answer'!r} is empty")
        return answer, solution

    def _pair(self, row: Row, said: "Said") -> tuple[list[dict[str, Any]], "Said"]:
        """A preference: texts, or whole conversations that differ in the last turn."""
        sides = [_value(row, self.names.chosen), _value(row, self.names.rejected)]
        if all(isinstance(s, list) for s in sides):
            better, worse = map(Said.answered, sides)
            alike = (better.prompt, better.before) == (worse.prompt, worse.before)
            if not alike and not said.prompt:
                raise ValueError("the conversations of its two answers do not begin alike")
            if alike and (
                not said.prompt or said.prompt in better.asked
            ):  # a prompt may be only a part of what was said
                said = replace(better, system=better.system or said.system)
            sides = [better.answer, worse.answer]
        texts = [_plain(s, name) for s, name in zip(sides, (self.names.chosen, self.names.rejected), strict=True)]
        if not said.prompt and not self.fill:
            raise ValueError("its two answers are texts and it has no prompt; name its field with task.prompt=FIELD")
        return [{"text": texts[0], "reward": 1.0}, {"text": texts[1], "reward": 0.0}], said

    def _scored(self, row: Row) -> list[dict[str, Any]]:
        """Answers with rewards: a list, `answers: [{text, reward}, …]`, or one with a `label` true or false.

        Beside a `completion` 1 and 0 are labels, too; elsewhere a number may be anything.
        """
        given = row.get("answers")
        if (
            isinstance(given, list)
            and given
            and all(isinstance(a, Mapping) and {"text", "reward"} <= set(a) for a in given)
        ):
            return [{"text": _plain(a["text"], "answers.text"), "reward": _reward(a["reward"])} for a in given]
        label = row.get("label")
        told = isinstance(label, bool) or (self.names.answer == "completion" and label in (0, 1))
        if told and self.names.answer not in ("", "label"):
            return [{"text": _text(row, self.names.answer), "reward": float(row["label"])}]
        return []

    def _answer(self, row: Row) -> str:
        if self.needs_answer or self.settings.answer:
            return _text(row, self.names.answer)
        value = lookup(row, self.names.answer)  # nobody asked for it: a text is an answer, anything else stays in meta
        known = isinstance(value, (str, bool, int, float)) and not _is_nan(value)
        return _plain(value, self.names.answer) if known else ""

    def _meta(self, row: Row) -> dict[str, Any]:
        """The other fields of the row, for scorers; and an answer that is no text."""
        own = {f"{k}_" if k in OURS else k: v for k, v in row.items() if k not in self.used}
        kept = row.get(self.names.answer)
        return own if kept is None or isinstance(kept, (str, bool, int, float)) else own | {self.names.answer: kept}


@dataclass(frozen=True)
class Said:
    """A prompt, taken apart: the last user turn, the turns before it, the system prompt, and an answer after it."""

    prompt: str = ""
    answer: str = ""
    system: str = ""
    before: tuple[dict[str, str], ...] = ()

    @staticmethod
    def of(value: Any) -> "Said":
        if isinstance(value, str):
            return Said(value)
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"its prompt is {type(value).__name__} and neither a text nor a list of messages")
        turns = [_turn(m) for m in value]
        system = "\n\n".join(t["content"] for t in turns if t["role"] == "system")
        turns = [t for t in turns if t["role"] != "system"]
        answer = turns.pop()["content"] if turns and turns[-1]["role"] == "assistant" else ""
        if not turns or turns[-1]["role"] != "user":
            raise ValueError("its messages have no turn of the user that is still to be answered")
        return Said(turns[-1]["content"], answer, system, tuple(turns[:-1]))

    @staticmethod
    def answered(value: list[Any]) -> "Said":
        """A side of a preference: a conversation that ends with the answer, or the answer's turn alone."""
        turns = [_turn(m) for m in value]
        if not turns or turns[-1]["role"] != "assistant":
            raise ValueError("one of its two conversations does not end with a turn of the assistant, the answer")
        return Said(answer=turns[0]["content"]) if len(turns) == 1 else Said.of(turns)

    @property
    def asked(self) -> tuple[str, ...]:
        """The turns of the user."""
        return (*(t["content"] for t in self.before if t["role"] == "user"), self.prompt)


_ROLES = {"human": "user", "gpt": "assistant"}  # as ShareGPT writes them


def _turn(message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise ValueError(f"one of its messages is {type(message).__name__} and not {{role, content}}")
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    role = _ROLES.get(str(role), role)
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise ValueError(
            f"one of its messages has the role {role!r} and {type(content).__name__} as content; known are texts of "
            "system, user and assistant"
        )
    return {"role": role, "content": content}


def _value(row: Row, name: str) -> Any:
    value = lookup(row, name)
    if value is MISSING:
        raise ValueError(f"it has no field {name!r} (it has: {', '.join(row) or 'nothing'})")
    if value is None or _is_nan(value):  # tables are often written with NaN where nothing stands
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
        raise ValueError(f"one of its answers has the reward {value!r}, which is no finite number")
    return reward


def _text(row: Row, name: str) -> str:
    return _plain(_value(row, name), name)


def _plain(value: Any, name: str) -> str:
    """Texts as they are, numbers as they are written, true and false as in JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise ValueError(
        f"the field {name!r} is {type(value).__name__} and not a text or number; a part of it is named {name}.NAME or "
        f"{name}.0"
    )


def _hash(text: str, size: int) -> bytes:
    return blake2b(text.encode(), digest_size=size).digest()


def short(answer: str) -> str:
    r"""The answer of a worked solution: its last line is `#### 42`, or it has `\boxed{42}`; else the text itself."""
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
