"""CUDA graphs of some work, one after the other."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch


def recorded(parts: Sequence[Callable[[], None]], memory: Any, first: bool = False) -> list[torch.cuda.CUDAGraph]:
    """A graph of each part, in a pool of memory. All are also done once before: kernels are compiled there.

    Kernels of a graph that is to be `first` go before those of other streams that wait for a place on the GPU.

    Not by `torch.cuda.graph`, which gives all memory back that is not used, so that the next step has to ask for it
    again.
    """
    graphs, side = list[torch.cuda.CUDAGraph](), torch.cuda.Stream(priority=-1 if first else 0)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for work in parts:
            work()
        torch.cuda.synchronize()
        for work in parts:
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=memory, capture_error_mode="thread_local")  # another thread may be learning
            try:
                work()
            except BaseException:  # such as no memory; what is said about a recording that broke off would hide it
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
            graphs.append(graph)
    torch.cuda.current_stream().wait_stream(side)
    return graphs
