"""Running out of memory: how to recognise it and what to free before the next attempt."""

import gc

import torch


def out_of_memory(error: BaseException) -> bool:
    """Of a GPU, or of the host, which reports it only in the text of a RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def free_memory() -> None:
    """Release what a failed attempt held. Call it outside the except clause: the traceback holds tensors too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
