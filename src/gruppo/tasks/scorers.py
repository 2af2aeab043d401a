"""Scorers that a task can name: `task.reward=numeric`, with arguments `task.args.tolerance=0.01`.

A wrong answer scores 0. What cannot be judged (a reference without a number, a library that fails) raises, which is a
failure and never 0. They run in the judge's workers; the libraries they use are imported there, and only when needed.
"""

import json
import logging
import re
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from gruppo.tasks.base import Task
from gruppo.tasks.extract import answer_of, boxed, number, way, whole
from gruppo.tasks.imports import library

# name: import path, whether the row must have an answer, and whether a score may be other than 0 and 1
SCORERS = {
    "exact": ("gruppo.tasks.scorers:Exact", True, False),
    "numeric": ("gruppo.tasks.scorers:Numeric", True, False),
    "math": ("gruppo.tasks.scorers:Math", True, False),
    "regex": ("gruppo.tasks.scorers:Regex", False, False),
    "json_schema": ("gruppo.tasks.scorers:JsonSchema", False, False),
    "listed": ("gruppo.tasks.scorers:listed", False, True),
    "program": ("gruppo.tasks.program:Program", False, False),
    "reward_model": ("gruppo.tasks.reward_model:RewardModel", False, True),
    "llm_judge": ("gruppo.tasks.llm_judge:LLMJudge", False, True),
}


class Exact:
    """1 if the answer equals the reference, up to runs of spaces.

    `extract` says where the answer is: auto, whole, tags, boxed, hashes.
    """

    stateless = True

    def __init__(self, extract: str = "auto", ignore_case: bool = False) -> None:
        self.find, self.ignore_case = way(extract), ignore_case

    def plain(self, text: str) -> str:
        words = " ".join(text.split())
        return words.casefold() if self.ignore_case else words

    def __call__(self, task: Task, text: str) -> float:
        found = self.find(text)
        return float(found is not None and self.plain(found) == self.plain(task.answer))

    def answer(self, task: Task, text: str) -> str:
        return self.plain(self.find(text) or "")


class Numeric:
    """1 if the last number of the answer equals the reference: 1,000 = 1e3 and 0.5 = 1/2, exactly.

    |a − b| ≤ max(tolerance, relative · |b|). A percent sign is not read: 50% is 50.
    """

    stateless = True

    def __init__(self, extract: str = "auto", tolerance: float = 0.0, relative: float = 0.0) -> None:
        self.find = way(extract)
        for name, value in (("tolerance", tolerance), ("relative", relative)):
            if not value >= 0:
                raise ValueError(f"{name}={value}: every answer would be wrong. Use a number, 0 or more.")
        self.tolerance, self.relative = Fraction(str(tolerance)), Fraction(str(relative))

    def given(self, text: str) -> Fraction | None:
        found = self.find(text)
        return None if found is None else number(found)

    def __call__(self, task: Task, text: str) -> float:
        wanted, given = reference(task.answer), self.given(text)
        if given is None:
            return 0.0
        return float(abs(given - wanted) <= max(self.tolerance, self.relative * abs(wanted)))

    def answer(self, task: Task, text: str) -> str:
        given = self.given(text)
        return "" if given is None else str(given)


@lru_cache(maxsize=4096)
def reference(answer: str) -> Fraction:
    wanted = number(answer)
    if wanted is None:
        raise ValueError(
            f"the reference {answer[:80]!r} has no number, so no answer can be compared with it. Use task.reward=exact "
            "or math, or correct the row."
        )
    return wanted


class Math:
    r"""1 if math-verify finds the answer equal to the reference: 1/2 = 0.5 = \frac{2}{4}, sets, intervals, matrices.

    Without tags, box or hashes, math-verify takes the last formula, else the last number; `extract="boxed"` takes only
    what is in a box. `precision` is the number of decimals that must agree.
    """

    stateless = True

    def __init__(self, extract: str = "auto", precision: int = 6, strict: bool = True) -> None:
        self.find = way(extract)
        self.precision, self.strict = precision, strict
        verify = library("math_verify", "task.reward=math compares formulas with it")
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off
        self.verify, self._parse = verify.verify, verify.parse
        self.reference = lru_cache(maxsize=4096)(self._reference)

    def parse(self, text: str) -> list[Any]:
        # Its time limit is a signal. The judge kills the process, which also stops code that catches all exceptions.
        return self._parse(text, parsing_timeout=None, raise_on_error=True)

    def _reference(self, answer: str) -> list[Any]:
        short = boxed(answer)
        for text in (f"\\boxed{{{answer if short is None else short}}}", answer):
            if found := self.parse(text):
                return found
        raise ValueError(
            f"the reference {answer[:80]!r} is no formula that math-verify can read, so no answer can be compared with "
            "it. Use task.reward=exact, or correct the row."
        )

    def given(self, text: str) -> list[Any]:
        """The formula in the answer: as math-verify parses it, then as it is written; empty if there is none."""
        found = self.find(text)
        if found is None:
            return []
        # The content of a box or of tags is a formula, unless it marks its formula itself.
        bare = found != whole(text) and not any(mark in found for mark in ("$", "\\(", "\\[", "\\boxed"))
        return self.parse(f"\\boxed{{{found}}}" if bare else found)

    def equal(self, wanted: list[Any], given: list[Any]) -> bool:
        return self.verify(
            wanted, given, float_rounding=self.precision, strict=self.strict, timeout_seconds=None, raise_on_error=True
        )

    def __call__(self, task: Task, text: str) -> float:
        wanted = self.reference(task.answer)
        return float(self.equal(wanted, self.given(text)))

    def answer(self, task: Task, text: str) -> str:
        given = self.given(text)
        return str(given[-1]) if given else ""

    def same(self, a: str, b: str) -> bool:
        one, two = (self.parse(f"\\boxed{{{x}}}") for x in (a, b))
        return self.equal(one, two) or self.equal(two, one)


class Regex:
    """1 if the pattern is found in the answer; with `full`, if it matches all of it.

    The last match of a group named `answer` must also equal the reference: `Answer: (?P<answer>.+)`.
    """

    stateless = True

    def __init__(self, pattern: str = "", full: bool = False, ignore_case: bool = False) -> None:
        if not pattern:
            raise ValueError(
                "task.reward=regex without a pattern would accept every answer. Set task.args.pattern='…'."
            )
        try:
            self.pattern = re.compile(pattern, re.M | (re.I if ignore_case else 0))
        except re.error as error:
            raise ValueError(
                f"task.args.pattern={pattern!r} is no regular expression ({error}). Write a literal bracket with a "
                "backslash."
            ) from None
        self.full = full
        self.compares = "answer" in self.pattern.groupindex

    def __call__(self, task: Task, text: str) -> float:
        said = text.strip()
        found = [self.pattern.fullmatch(said)] if self.full else list(self.pattern.finditer(said))
        last = found[-1] if found else None
        if last is None or not self.compares:
            return float(last is not None)
        return float((last["answer"] or "").strip() == task.answer.strip())

    def answer(self, task: Task, text: str) -> str:
        found = list(self.pattern.finditer(text.strip())) if self.compares else []
        return (found[-1]["answer"] or "").strip() if found else "" if self.compares else answer_of(text)


class JsonSchema:
    """1 if the answer is JSON that the schema accepts. It may be in tags or in a ```json block.

    `schema` is a file, or the schema itself as JSON text; `field` names the field of the row that holds it instead.
    """

    stateless = True

    def __init__(self, schema: str = "", field: str = "", extract: str = "auto") -> None:
        if bool(schema) == bool(field):
            raise ValueError(
                f"task.reward=json_schema with schema={schema!r}, field={field!r}: it requires one of "
                "task.args.schema=./schema.json (or the schema as text) and task.args.field=NAME (a field of the row)."
            )
        self.library = library("jsonschema", "task.reward=json_schema checks answers with it")
        self.find, self.field = way(extract), field
        self.validators: dict[str, Any] = {}
        self.fixed = self.validator(_read_schema(schema)) if schema else None

    def validator(self, text: str) -> Any:
        if text not in self.validators:
            try:
                schema = json.loads(text)
                cls = self.library.validators.validator_for(schema, default=self.library.Draft202012Validator)
                cls.check_schema(schema)
            except (ValueError, AttributeError, TypeError, self.library.SchemaError) as error:
                said = getattr(error, "message", error)
                raise ValueError(f"{text[:80]!r} is no JSON schema ({said}). Correct it, or name its file.") from None
            # With an empty registry, a reference to the network is an error and not a download.
            registry = library("referencing", "jsonschema reads references with it").Registry()
            self.validators[text] = cls(schema, registry=registry)
        return self.validators[text]

    def __call__(self, task: Task, text: str) -> float:
        validator = self.fixed or self.validator(self._of_row(task))
        found = self.find(text)
        block = re.search(r"```(?:json)?\s*\n(.*?)```", found or "", re.S)
        try:
            value = json.loads(block[1] if block else found or "", parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return 0.0
        return float(validator.is_valid(value))

    def _of_row(self, task: Task) -> str:
        held = task.meta.get(self.field)
        if held is None:
            raise ValueError(
                f"task {task.uid} has no field {self.field!r}, so there is no schema for its answers. "
                f"Its fields: {', '.join(task.meta) or 'none'}."
            )
        return held if isinstance(held, str) else json.dumps(held)


def _read_schema(schema: str) -> str:
    if schema.lstrip()[:1] in ("{", "t", "f") and not schema.endswith(".json"):
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"task.args.schema={schema!r} cannot be read ({error}). Name a file, or write the schema itself as JSON."
        ) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def listed(task: Task, text: str) -> float:
    """The reward of the recorded answer in `meta["answers"]` that the text equals, else 0."""
    answers = task.meta.get("answers")
    if not answers:
        raise ValueError(
            f"task {task.uid} lists no answers to compare with. Use task.reward=listed with preference rows, "
            "and exact, numeric or math with answers."
        )
    said = text.strip()
    return max((float(a.get("reward", 1.0)) for a in answers if str(a["text"]).strip() == said), default=0.0)
