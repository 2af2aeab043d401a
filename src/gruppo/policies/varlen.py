"""Attention over packed sequences on a GPU: lines and their paths as `kernels.varlen` takes them, without padding.

A line (consecutive positions of M) is a sequence of queries. Its keys are its path: the shared prefix, gathered, and
itself. The causal mask is aligned to the last key, which is what a line after a prefix needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Inputs
from gruppo.data.prefix import ranges
from gruppo.kernels.varlen import varlen
from gruppo.policies.cache import Kept
from gruppo.policies.layout import Past, lines_of


@dataclass(frozen=True)
class Varlen:
    """Lines of queries and their paths of keys, as flash attention takes them."""

    starts: Tensor  # of lines, int32, with the end
    ends: Tensor  # of paths, likewise
    longest: int
    farthest: int
    key_C: Tensor | None  # the row of each key, of the past and then of M; None: keys are queries
    keep: Kept | None
    past: Past | None

    def attend(self, sdpa: Callable[..., Tensor], layer: int, q_MD: Tensor, k_MD: Tensor, v_MD: Tensor) -> Tensor:
        if self.keep is not None:
            self.keep.kv += [k_MD, v_MD]
        size: int = sdpa.__self__.dh  # type: ignore[attr-defined]
        if self.past is not None:
            k_MD, v_MD = (torch.cat([known, x]) for known, x in zip(self.past.kv[layer], (k_MD, v_MD), strict=True))
        if self.key_C is not None:
            k_MD, v_MD = k_MD.index_select(0, self.key_C), v_MD.index_select(0, self.key_C)
        q, k, v = (x.unflatten(-1, (-1, size)) for x in (q_MD, k_MD, v_MD))
        return varlen(q, k, v, self.starts, self.ends, self.longest, self.farthest).flatten(1)


def varlen_of(inputs: Inputs, context: int, keep: Kept | None = None, past: Past | None = None) -> Varlen:
    lines, device = lines_of(inputs, context), inputs.ids_M.device
    paths = lines if past is None else past.before(lines, inputs)
    lines, known = paths.head(len(lines.first)), 0 if past is None else past.kv.shape[2]
    reach = lines.reach
    starts, ends = (
        torch.from_numpy(np.concatenate([[0], np.cumsum(n)]).astype(np.int32)).to(device) for n in (lines.length, reach)
    )
    key_C = None
    if past is not None or lines.offset.any():
        which = np.repeat(np.arange(len(reach)), reach)
        key_C = torch.from_numpy(paths.path(which, ranges(np.zeros_like(reach), reach)) + known).to(device)
    return Varlen(starts, ends, int(lines.length.max(initial=0)), int(reach.max(initial=0)), key_C, keep, past)
