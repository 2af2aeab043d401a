"""Keep freed memory in the process: the next step needs as much again."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_BLOCK = 32 << 20  # the most that glibc accepts


def keep_freed_memory() -> bool:
    """Tell glibc to keep blocks of up to 32 MB for reuse. False where there is no glibc.

    By default glibc returns them at every free, and each new page is a page fault: a step that makes and drops arrays
    of a few MB spends up to a third of its time there (benchmarks/LOG.md). Peak memory stays the same.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # macOS, musl, Windows
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))
