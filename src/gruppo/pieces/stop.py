"""The stop-gradient, in one function, so that the laws can hold stopped values fixed.

`stop(x)` is `x.detach()`. Finite differences of an objective with stopped parts agree with autograd only if those parts
stay at the base point: inside `freeze()` the first evaluation records them and later ones replay them.
"""

from collections.abc import Generator
from contextlib import contextmanager

from torch import Tensor


class _Tape:
    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.index = 0
        self.recorded = False

    def next(self, x: Tensor) -> Tensor:
        if not self.recorded:
            self.values.append(x.detach().clone())
            return self.values[-1]
        self.index += 1
        return self.values[self.index - 1]

    def rewind(self) -> None:
        """Ends one evaluation; the next one replays."""
        self.recorded, self.index = True, 0


_tape: list[_Tape] = []


def stop(x: Tensor) -> Tensor:
    """x without gradient."""
    return _tape[-1].next(x) if _tape else x.detach()


@contextmanager
def freeze() -> Generator[_Tape]:
    """Hold every stopped value at its first evaluation. Call `.rewind()` after each evaluation."""
    _tape.append(_Tape())
    try:
        yield _tape[-1]
    finally:
        _tape.pop()
