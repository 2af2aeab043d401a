"""Out of memory is answered by smaller pieces and a sentence."""

import gc

import torch


def out_of_memory(error: BaseException) -> bool:
    """Of a GPU, or of the machine itself (which says so in words only)."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def free_memory() -> None:
    """Give back what a failed attempt held. Call it outside the except clause: the traceback holds tensors too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
