"""Attention over packed sequences on a GPU: flash attention with lengths, without padding.

A line (consecutive positions of M) is a sequence of queries. Its keys are its path: the shared prefix, gathered, and
itself. Flash attention aligns a causal mask to the last key, which is what a line after a prefix needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Inputs
from gruppo.data.prefix import ranges
from gruppo.policies.cache import Kept
from gruppo.policies.layout import lines_of

HALF = (torch.bfloat16, torch.float16)


def can_flash(x_XD: Tensor, head_dim: int) -> bool:
    return x_XD.is_cuda and x_XD.dtype in HALF and head_dim % 8 == 0 and head_dim <= 256


@dataclass(frozen=True)
class Varlen:
    """Lines of queries and their paths of keys, as flash attention takes them."""

    starts: Tensor  # of lines, int32, with the end
    ends: Tensor  # of paths, likewise
    longest: int
    farthest: int
    key_C: Tensor | None  # the position of M of each key; None: keys are queries
    keep: Kept | None

    def attend(self, sdpa: Callable[..., Tensor], layer: int, q_MD: Tensor, k_MD: Tensor, v_MD: Tensor) -> Tensor:
        if self.keep is not None:
            self.keep.kv += [k_MD, v_MD]
        size: int = sdpa.__self__.dh  # type: ignore[attr-defined]
        if self.key_C is not None:
            k_MD, v_MD = k_MD.index_select(0, self.key_C), v_MD.index_select(0, self.key_C)
        q, k, v = (x.unflatten(-1, (-1, size)) for x in (q_MD, k_MD, v_MD))
        y = torch.ops.aten._flash_attention_forward(
            q, k, v, self.starts, self.ends, self.longest, self.farthest, 0.0, True, False
        )[0]
        return y.flatten(1)


def varlen_of(inputs: Inputs, context: int, keep: Kept | None = None) -> Varlen:
    lines, device = lines_of(inputs, context), inputs.ids_M.device
    reach = lines.reach
    starts, ends = (
        torch.from_numpy(np.concatenate([[0], np.cumsum(n)]).astype(np.int32)).to(device) for n in (lines.length, reach)
    )
    key_C = None
    if lines.offset.any():
        which = np.repeat(np.arange(len(reach)), reach)
        key_C = torch.from_numpy(lines.path(which, ranges(np.zeros_like(reach), reach))).to(device)
    return Varlen(starts, ends, int(lines.length.max(initial=0)), int(reach.max(initial=0)), key_C, keep)
