"""`task.reward=program`: runs the answer's code with the task's tests in the sandbox. 1 if all of them pass, else 0.

The tests run in a process of their own and call the answer's functions from there (`gruppo.sandbox.Tests`), so code
that ends early, or returns something that equals everything, scores 0.
"""

import asyncio
import re
from typing import Any

from gruppo.sandbox import Sandbox, Tests
from gruppo.tasks.base import Task
from gruppo.tasks.worker import CannotJudge

_BLOCK = re.compile(r"```(?:python|py|Python)?[ \t]*\n(.*?)(?:```|\Z)", re.S)
_CHECK = re.compile(r"^def check\(", re.M)


class Program:
    """1 if the program in the answer passes the tests of its row, in the sandbox.

    `tests` names the field of the row that holds them, as text or as a list of lines; `entry` the one that names the
    function that they call (without it, all names that the tests use and nothing defines). With `continues`, the prompt
    is the beginning of the program, as in HumanEval. `seconds` must be less than `task.seconds`: then a program that
    takes too long scores 0, and is no failure of the judge.
    """

    stateless = True

    def __init__(
        self,
        tests: str = "test",
        entry: str = "entry_point",
        continues: bool = False,
        seconds: float = 3.0,
        memory_mb: int = 256,
        isolation: Any = "auto",
    ) -> None:
        self.tests, self.entry, self.continues = tests, entry, continues
        self.limits = {"seconds": seconds, "memory_mb": memory_mb}
        self.sandbox = Sandbox(isolation)
        self.sandbox.start()  # refuses here, before anything is judged
        self._runner = asyncio.Runner()

    def __call__(self, task: Task, text: str) -> float:
        tests = self._tests_of(task)
        code = program_in(text, task.prompt if self.continues else "", str(task.meta.get(self.entry) or ""))
        ran = self._runner.run(self.sandbox.run(code, tests=tests, output_bytes=4_096, **self.limits))
        if ran.status == "failed":
            raise CannotJudge(f"The sandbox failed, so the answer has no reward: {ran.why}")
        return float(ran.ok)

    def _tests_of(self, task: Task) -> Tests:
        held = task.meta.get(self.tests)
        code = "\n".join(map(str, held)) if isinstance(held, list | tuple) else held
        if not isinstance(code, str) or not code.strip():
            raise CannotJudge(
                f"task {task.uid} has no tests in the field {self.tests!r}, so no program can be judged. Its fields: "
                f"{', '.join(task.meta) or 'none'}. Name another: task.args.tests=NAME."
            )
        entry = str(task.meta.get(self.entry) or "")
        if entry and _CHECK.search(code):  # the form of HumanEval: a function that takes the candidate
            code += f"\n\ncheck({entry})\n"
        return Tests(code, task.prompt if self.continues else "", (entry,) if entry else ())

    def answer(self, task: Task, text: str) -> str:
        """The code without blank lines and spaces at the ends of lines: two equal programs are one answer."""
        lines = program_in(text, "", "").splitlines()
        return "\n".join(line.rstrip() for line in lines if line.strip())


def program_in(text: str, prompt: str, entry: str) -> str:
    """The last code block of an answer, else all of it; after the prompt, if the prompt is the program's beginning."""
    said = text.rpartition("</think>")[2]
    blocks = _BLOCK.findall(said)
    code = blocks[-1] if blocks else said
    if not prompt:
        return code
    whole = entry and re.search(rf"^(?:async )?def {re.escape(entry)}\b", code, re.M)
    return f"{prompt}\n\n{code}" if whole else prompt + code
