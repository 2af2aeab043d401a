"""What every room is given: `ctx`, and the memory that several rooms may read."""

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from gruppo.data import Batch, Episode, keyed
from gruppo.fields import Checked, setting
from gruppo.stages.schedule import Sched, at


def _refuse(name: str) -> None:
    raise ValueError(
        f"memory[{name!r}] was written outside observe(): a resumed or redrawn step would see another state. "
        "Return what you need, and write it in observe(record, memory)."
    )


def _read_only(x: Any, name: str) -> Any:
    """A value of memory as rooms see it: dicts and lists are read-only, at every depth."""
    if isinstance(x, dict):
        return Shown(x, name)  # type: ignore[arg-type]
    return tuple(_read_only(v, name) for v in x) if isinstance(x, list) else x  # type: ignore[misc]


class Shown(Mapping[Any, Any]):
    """A read-only view of a dict inside memory; nothing is copied."""

    __slots__ = ("_held", "_name")

    def __init__(self, held: dict[Any, Any], name: str) -> None:
        self._held, self._name = held, name

    def __getitem__(self, key: Any) -> Any:
        return _read_only(self._held[key], self._name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return repr(self._held)

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse(self._name)

    def __delitem__(self, key: Any) -> None:
        _refuse(self._name)


class Memory(dict[str, Any]):
    """Named tables. Rooms read; only `observe` writes, once a step after the update.

    A value is a number, a string, a tensor, or a list or dict of these: what a checkpoint can hold exactly. Outside
    `observe`, dicts and lists are read-only. Tensors are not copied, so do not change them in place.
    """

    _open = False

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return value if self._open else _read_only(value, name)

    @contextmanager
    def writing(self) -> Generator["Memory"]:
        self._open = True
        try:
            yield self
        finally:
            self._open = False

    def _guard(self, name: str) -> None:
        if not self._open:
            _refuse(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._guard(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._guard(name)
        super().__delitem__(name)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # with an iterator of its own, dict(memory) and {**memory} ask __getitem__, too

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return {**self, **other}

    @property
    def plain(self) -> dict[str, Any]:
        """What it holds, and no views of it: for checkpoints."""
        return {name: super(Memory, self).__getitem__(name) for name in self}

    # The other methods of dict bypass those above; those of MutableMapping do not.
    get = MutableMapping.get  # type: ignore[assignment]
    values = MutableMapping.values  # type: ignore[assignment]
    items = MutableMapping.items  # type: ignore[assignment]
    update = MutableMapping.update
    setdefault = MutableMapping.setdefault
    pop = MutableMapping.pop
    popitem = MutableMapping.popitem
    clear = MutableMapping.clear

    def __ior__(self, other: Any) -> "Memory":  # type: ignore[override, misc]
        self.update(other)
        return self


@dataclass(frozen=True)
class Sampling(Checked):
    """How tokens are drawn."""

    max_tokens: int = setting(16, low=0)  # per answer; in a run, 0: by task and model (docs/data.md)
    # The smallest temperature is that of gruppo.engines.base.
    temperature: float = setting(1.0, low=1e-6, also=0)  # 0: greedy, so all answers of a group are the same
    top_k: int = setting(0, low=0)  # 0: all tokens
    top_p: float = setting(1.0, above=0, high=1)  # 1: all tokens


@dataclass(frozen=True)
class Ask:
    """What the curriculum asks for: this many samples of this task.

    `how` overrides sampling settings and holds options for prompting. `key` separates two draws of one group in one
    round. `notes` become columns of the batch, at level E. An episode knows its ask.
    """

    task: Any
    samples: int
    group: str = ""
    how: Mapping[str, Any] = field(default_factory=dict[str, Any])
    key: str = ""
    notes: Mapping[str, float] = field(default_factory=dict[str, float])
    index: int = -1  # of the task in the training set; -1: unknown

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.group or self.task.uid)


@dataclass(frozen=True, eq=False)
class Prompt:
    """What the policy sees. `given` marks spans of ids that are part of the answer already (hints, forced prefixes).

    The answer that is scored begins at `answer_from`, however its tokens are learned; -1: with what is given.
    """

    ids: Any  # int64 array
    ask: Ask
    group: str
    samples: int
    given: tuple[tuple[int, int, str], ...] = ()  # (start, stop, source)
    train_as: Any = None  # ids of the context to learn under, if it is another one
    answer_from: int = -1

    @property
    def begun(self) -> Any:
        """The part of the answer that is there before anything is sampled."""
        spans = [(a, b) for a, b, _ in self.given] if self.answer_from < 0 else [(self.answer_from, len(self.ids))]
        return np.concatenate([self.ids[a:b] for a, b in spans] or [self.ids[:0]])


@dataclass
class StepRecord:
    """What a step produced, for `observe`; `ctx` can still read models.

    `episodes` are those that selection kept. `drawn` are all of them: use these for rates and histories of tasks.
    """

    step: int
    episodes: Sequence[Episode]
    batch: Batch | None
    facts: Mapping[str, float]
    ctx: "Context | None" = None
    drawn: Sequence[Episode] = ()

    def __repr__(self) -> str:  # asyncio.run looks at its result's, twice; with all tensors it took as long as the step
        return f"StepRecord(step={self.step}, {len(self.drawn)} drawn, {len(self.episodes)} kept, {self.batch!r})"


def _absent(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError(f"ctx.{name} is not available here: this context has no engine and no tasks.")

    return refuse


Episodes = Callable[..., Awaitable[list[Episode]]]


@dataclass
class Context:
    """What every room is given. The last seven fields are functions of the walk (gruppo.stages.walk):

    play(starts)           episodes from these prompts or forks: one answer each, or a dialogue with the environment
    reward(episodes)       the same episodes, with their rewards
    draw(asks)             prompting, play and reward
    answer(starts)         one answer each, which no environment hears and nothing scores
    read(episodes, role)   a batch of these episodes, with readouts of models, or needs, as columns
    ready(episodes)        a batch of these episodes to learn from, with credit, as the update gets that of the step
    fresh(n)               n more asks from the curriculum
    """

    step: int = 0
    steps: int = 1
    seed: int = 0
    round: int = 0  # 0: the first draw of the step; above: redraws
    version: int = 0  # of the weights that the step was drawn with; what an update draws later has a higher one
    memory: Memory = field(default_factory=Memory)
    cast: Mapping[str, Any] = field(default_factory=dict[str, Any])
    engine: Any = None
    tokenizer: Any = None
    prompts: int = 1
    samples: int = 2
    episodes: Sequence[Episode] = ()  # that selection kept in this step, for the update
    replay: Sequence[Episode] = ()  # recalled by the replay in this step
    open: Sequence[Episode] = ()  # of groups that wait for open episodes, from earlier steps; then, for the next one
    sampling: Sampling = field(default_factory=Sampling)
    play: Episodes = field(default_factory=lambda: _absent("play"))
    reward: Episodes = field(default_factory=lambda: _absent("reward"))
    draw: Episodes = field(default_factory=lambda: _absent("draw"))
    answer: Episodes = field(default_factory=lambda: _absent("answer"))
    read: Callable[..., Batch] = field(default_factory=lambda: _absent("read"))
    ready: Callable[..., Batch] = field(default_factory=lambda: _absent("ready"))
    fresh: Callable[[int], list[Ask]] = field(default_factory=lambda: _absent("fresh"))

    @property
    def progress(self) -> float:
        return self.step / max(self.steps, 1)

    def uniform(self, *key: int | str | Tensor) -> Any:
        """A random number in [0, 1): a pure function of (seed, step, key)."""
        return keyed.uniform(self.seed, self.step, *key)

    def at(self, sched: Sched | str) -> float:
        """The value of a schedule at this step."""
        return at(sched, self.step, self.memory)
