"""Words between the ranks: the first rank says what all do next, and the others listen."""

import atexit
import io
import os
import pickle
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(days=30)  # sampling and judging may take as long as they take; a rank that dies is noticed at once
END = "end"
GRACE = 5.0  # seconds in which a rank that is well listens
LOST = ("gloo", "NCCL", "Connection", "socket", "Broken pipe")  # words of torch's errors if a rank is gone


class Channel:
    """From the first rank to all others, over a group of its own that never times out while the first is sampling."""

    def __init__(self) -> None:
        self.group: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.ended = False

    def say(self, words: Any, seconds: float | None = None) -> None:
        """Send anything that pickle knows; tensors go by way of main memory."""
        kept = io.BytesIO()
        _ToMemory(kept, protocol=pickle.HIGHEST_PROTOCOL).dump(words)
        body = torch.frombuffer(kept.getbuffer(), dtype=torch.uint8)
        self._send(torch.tensor([len(body)]), seconds)
        self._send(body, seconds)

    def hear(self, seconds: float | None = None) -> Any:
        """What the first rank says next; after `seconds` without a word, a RuntimeError."""
        size = torch.zeros(1, dtype=torch.int64)
        self._send(size, seconds)
        body = torch.empty(int(size), dtype=torch.uint8)
        self._send(body, seconds)
        return pickle.loads(body.numpy().tobytes())

    def end(self, last: Any = None) -> None:
        """Nothing more will be said. If somebody does not listen, whoever has started the ranks ends it."""
        if not self.ended:
            self.ended = True
            try:
                self.say((END, last, {}), GRACE)
            except RuntimeError:
                atexit.register(os._exit, 2)  # the end of the process would wait for the rank that hangs

    def _send(self, x: Tensor, seconds: float | None) -> None:
        work: Any = dist.broadcast(x, 0, group=self.group, async_op=True)
        work.wait(PATIENCE if seconds is None else timedelta(seconds=seconds))


class _ToMemory(pickle.Pickler):
    """A tensor of a GPU would arrive on the GPU of the first rank."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor) and obj.is_cuda:
            return obj.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def lost(error: BaseException) -> bool:
    """Whether an error of torch says that another rank is gone."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in LOST)
