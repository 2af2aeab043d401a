"""Causal attention over sequences of different lengths, without padding: PyTorch's flash attention.

Queries and keys of all sequences stand one after another. A sequence may have more keys than queries: its queries are
then the last positions, and the causal mask is aligned to the last key.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def can_flash(x: Tensor, dim: int) -> bool:
    """Whether flash attention takes such tensors, with heads of this size."""
    return x.is_cuda and x.dtype in HALF and dim % 8 == 0 and dim <= 256


def varlen_plain(
    q_MHd: Tensor, k_CKd: Tensor, v_CKd: Tensor, starts: Tensor, ends: Tensor, longest: int, farthest: int
) -> Tensor:
    out = []
    for (a, b), (c, d) in zip(_spans(starts), _spans(ends), strict=True):
        q, k, v = (x.transpose(0, 1) for x in (q_MHd[a:b], k_CKd[c:d], v_CKd[c:d]))
        seen = torch.ones(b - a, d - c, dtype=torch.bool, device=q.device).tril(d - c - (b - a))
        out.append(F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(0, 1))
    return torch.cat(out) if out else q_MHd


def _spans(ends: Tensor) -> list[tuple[int, int]]:
    return list(pairwise(ends.tolist()))


def varlen(
    q_MHd: Tensor, k_CKd: Tensor, v_CKd: Tensor, starts: Tensor, ends: Tensor, longest: int, farthest: int
) -> Tensor:
    """(M, heads, d). `starts` and `ends` are where the queries and the keys of each sequence begin, int32, with the end
    of the last one; `longest` and `farthest` are the most queries and the most keys of a sequence."""
    if not can_flash(q_MHd, q_MHd.shape[-1]) or not len(q_MHd):
        return varlen_plain(q_MHd, k_CKd, v_CKd, starts, ends, longest, farthest)
    given = (q_MHd, k_CKd, v_CKd, starts, ends, longest, farthest)
    return torch.ops.aten._flash_attention_forward(*given, 0.0, True, False)[0]
