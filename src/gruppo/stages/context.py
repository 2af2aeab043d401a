"""What every room is given: `ctx`, and the memory that several rooms may read."""

from collections.abc import Awaitable, Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gruppo.data import Batch, Episode, keyed
from gruppo.stages.schedule import Sched, at


class Memory(dict[str, Any]):
    """Named tables. Rooms read; only `observe` writes, once a step after the update (design 3.4).

    A value is a number, a text, a tensor, or a list or dict of these: what a checkpoint can hold exactly.
    """

    _open = False

    @contextmanager
    def writing(self) -> Generator["Memory"]:
        self._open = True
        try:
            yield self
        finally:
            self._open = False

    def _guard(self, name: str) -> None:
        if not self._open:
            raise ValueError(
                f"memory[{name!r}] was written outside observe(): a resumed or redrawn step would see another state. "
                "Return what you need, and write it in observe(record, memory)."
            )

    def __setitem__(self, name: str, value: Any) -> None:
        self._guard(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._guard(name)
        super().__delitem__(name)

    # A dict's other ways to write do not go through the two above; a MutableMapping's do.
    update = MutableMapping.update
    setdefault = MutableMapping.setdefault
    pop = MutableMapping.pop
    popitem = MutableMapping.popitem
    clear = MutableMapping.clear

    def __ior__(self, other: Any) -> "Memory":  # type: ignore[override, misc]
        self.update(other)
        return self


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    max_tokens: int = 16  # of one answer; in a run 0: the task's own
    temperature: float = 1.0  # 0: greedy, so that all answers of a group are the same
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0  # 1: all tokens


@dataclass(frozen=True)
class Ask:
    """A wish of the curriculum: this many samples of this task.

    `how` overrides sampling or tells prompting. `key` sets apart two draws of one group in one round; `notes` come
    down to the batch as columns of level E.
    """

    task: Any
    samples: int
    group: str = ""
    how: Mapping[str, Any] = field(default_factory=dict[str, Any])
    key: str = ""
    notes: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.group or self.task.uid)


@dataclass(frozen=True, eq=False)
class Prompt:
    """What the policy sees. `given` marks spans of ids that are decisions already made (hints, forced prefixes)."""

    ids: Any  # int64 array
    ask: Ask
    group: str
    samples: int
    given: tuple[tuple[int, int, str], ...] = ()  # (start, stop, source)
    train_as: Any = None  # ids of the context to learn under, if another


@dataclass
class StepRecord:
    """Everything a step made, for `observe`; `ctx` can still score."""

    step: int
    episodes: Sequence[Episode]
    batch: Batch | None
    facts: Mapping[str, float]
    ctx: "Context | None" = None


def _absent(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError(f"ctx.{name} is not available here: this context has no engine and no tasks.")

    return refuse


@dataclass
class Context:
    step: int = 0
    steps: int = 1
    seed: int = 0
    round: int = 0  # 0: first draw of the step; then draws again
    version: int = 0  # of the weights
    memory: Memory = field(default_factory=Memory)
    cast: Mapping[str, Any] = field(default_factory=dict[str, Any])
    engine: Any = None
    tokenizer: Any = None
    prompts: int = 1
    samples: int = 2
    episodes: Sequence[Episode] = ()  # of this step, for update
    sampling: Sampling = field(default_factory=Sampling)
    score: Callable[..., Any] = field(default_factory=lambda: _absent("score"))
    reward: Callable[[Sequence[Episode]], Any] = field(default_factory=lambda: _absent("reward"))
    draw: Callable[..., Awaitable[list[Episode]]] = field(default_factory=lambda: _absent("draw"))
    fresh: Callable[[int], list[Ask]] = field(default_factory=lambda: _absent("fresh"))

    @property
    def progress(self) -> float:
        return self.step / max(self.steps, 1)

    def uniform(self, *key: int | str | Tensor) -> Any:
        """A keyed draw in [0, 1): a pure function of (seed, step, key)."""
        return keyed.uniform(self.seed, self.step, *key)

    def at(self, sched: Sched | str) -> float:
        """The value of a schedule at this step."""
        return at(sched, self.step, self.memory)
