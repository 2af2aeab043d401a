"""Python: a question about numbers or letters that a short program answers. The sandbox runs what the agent writes.

A program that asks for the time or for a random number is no pure function of its text. The world is one all the same:
what a program showed is kept by its text, so in one process the same program shows the same again, and a replay or a
fork sees what was seen. Another process runs it anew; so only programs that are functions themselves resume exactly.
"""

import re
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

from gruppo.envs.base import Called, Seen
from gruppo.envs.guard import BROKEN, failed
from gruppo.envs.programs import KINDS, Kind
from gruppo.envs.world import LOST, NOTHING, WON, Draws, Facts, Moved, World, nothing
from gruppo.sandbox import Ran, shared
from gruppo.tasks.imports import nearest
from gruppo.tools.base import shortened
from gruppo.tools.waiting import waited

LONGEST = 4_000  # characters of a program
SHOWN = 200  # characters of what it shows
SECONDS, MEMORY_MB, OUTPUT_BYTES = 2.0, 256, 4_096
KEPT = 10_000  # programs whose results are kept
_FENCE = re.compile(r"\A```(?:python)?\s*\n(.*?)\n?```\Z", re.S)


class State(NamedTuple):
    shown: str = ""  # by the last program


class Python(World[State]):
    name = "python"
    about = "questions about numbers and letters that a short program answers, in the sandbox"
    rules = (
        "Answer the question. Write a Python program; what it prints, and the value of its last line, is shown to you. "
        "Every program starts anew. Then say: answer NUMBER."
    )
    levels = {1: 4, 2: 4, 3: 5, 4: 6}  # turns
    waits = True  # a step waits for a program

    def __init__(self) -> None:
        shared().start()  # refuses where nothing can isolate programs

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        kind = draw.pick([name for name, kind in KINDS.items() if kind.level == level])
        return {"kind": kind, **KINDS[kind].draw(draw), "turns": cls.levels[level]}

    @classmethod
    def suits(cls, facts: Facts) -> bool:
        """Every draw is a question. Nothing is run for it: the gold path takes two turns."""
        return int(facts["turns"]) >= 2

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return _kind(facts).asks.format(**facts)

    @classmethod
    def answer(cls, facts: Facts) -> str:
        return str(_kind(facts).value(facts))

    def begin(self, facts: Facts) -> State:
        try:
            self.result, self.program = self.answer(facts), _kind(facts).program.format(**facts)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"python: {dict(facts)} is no such question ({type(error).__name__}: {error}).") from None
        return State()

    def step(self, action: str) -> Seen:
        self.said = action.strip() if isinstance(action, str) and len(action) <= LONGEST else ""
        try:
            return super().step(action)
        except SandboxFailed as error:  # ours: it says nothing about the agent
            self.seen = failed(BROKEN, f"the sandbox failed: {error}")
            return self.seen

    def moved(self, state: State, words: list[str]) -> Moved[State]:
        return self.move(state, [self.said]) if self.said else nothing(state)  # the text as it is, not its words

    def move(self, state: State, words: list[str]) -> Moved[State]:
        [said] = words
        first, _, rest = said.partition(" ")
        if first.lower() == "answer" and "\n" not in said and not rest.lstrip().startswith("="):  # else a variable
            won = rest.strip().rstrip(".") == self.result
            return Moved(state, WON if won else LOST, True, True, float(won))
        program = program_in(said)
        if not program:
            return nothing(state)
        ran = run(program)
        shown = told(ran)
        return Moved(State(shown), shown, tools=(Called("python", program, ran.seconds, ran.ok),))

    def view(self, state: State) -> str:
        return state.shown or "ready"

    def key(self, state: State) -> str:
        return state.shown

    def choices(self, state: State) -> Sequence[str]:
        shown = [f"answer {state.shown}"] if state.shown else []
        return [self.program, "1 + 1", "print(", "1 / 0", NOTHING, *shown, "answer 0"]

    def best(self, state: State) -> str:
        return f"answer {state.shown}" if state.shown == self.result else self.program


def _kind(facts: Facts) -> Kind:
    name = facts.get("kind")
    if name not in KINDS:
        raise ValueError(f"python: kind={name!r} is no question.{nearest(str(name), KINDS)} Kinds: {', '.join(KINDS)}.")
    return KINDS[name]


def program_in(said: str) -> str:
    """The program of an action: after the name of the tool, or in a fence, where there is one."""
    text = said.removeprefix("python").strip() if said.split(maxsplit=1)[:1] == ["python"] else said
    fenced = _FENCE.match(text)
    return (fenced[1] if fenced else text).strip()


class SandboxFailed(Exception):
    """Nothing is known about the program."""


_kept: OrderedDict[str, Ran] = OrderedDict()
_lock = Lock()  # steps are taken in threads


def run(program: str) -> Ran:
    """How a program ended. It is run once; the same text has the same outcome until 10,000 others have come."""
    with _lock:
        if program in _kept:
            _kept.move_to_end(program)
            return _kept[program]
    ran = waited(shared().run(program, seconds=SECONDS, memory_mb=MEMORY_MB, output_bytes=OUTPUT_BYTES))
    if ran.status == "failed":
        raise SandboxFailed(ran.why)
    with _lock:
        ran = _kept.setdefault(program, ran)  # another episode may have been quicker
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    return ran


def told(ran: Ran) -> str:
    """What the agent sees of a program."""
    said = "\n".join(part.strip() for part in (ran.stdout, ran.value) if part.strip())
    if ran.status == "error":
        said = ran.stderr.strip().rpartition("\n")[2] or "the program failed"
    elif not ran.ok:
        said = f"the program was stopped: {STOPPED.get(ran.status, ran.status)}"
    return shortened(said, SHOWN) or "no output"


STOPPED = {
    "timeout": f"it ran longer than {SECONDS:g} s",
    "memory": f"it used more than {MEMORY_MB} MB",
    "output": "it printed too much",
    "limit": "it asked for more than it may have",
    "killed": "it crashed",
}
