"""Causal attention over sequences of different lengths, without padding: PyTorch's flash attention, or in float32 its
memory-efficient attention.

Queries and keys of all sequences stand one after another. A sequence may have more keys than queries: its queries are
then the last positions, and the causal mask is aligned to the last key.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)
FROM_THE_LAST_KEY = 2  # the causal mask of memory-efficient attention that is aligned to it


def can_varlen(x: Tensor, dim: int) -> bool:
    """Whether one of them takes such tensors, with heads of this size."""
    fits = dim % 8 == 0 and dim <= 256 if x.dtype in HALF else x.dtype == torch.float32 and dim % 4 == 0
    return x.is_cuda and fits


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
    if not can_varlen(q_MHd, q_MHd.shape[-1]) or not len(q_MHd):
        return varlen_plain(q_MHd, k_CKd, v_CKd, starts, ends, longest, farthest)
    if q_MHd.dtype == torch.float32:
        group = q_MHd.shape[1] // k_CKd.shape[1]
        k_CHd, v_CHd = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k_CKd, v_CKd))
        lengths = (starts, ends, longest, farthest)
        one = (x[None] for x in (q_MHd, k_CHd, v_CHd))
        return torch.ops.aten._efficient_attention_forward(
            *one, None, *lengths, 0.0, FROM_THE_LAST_KEY, compute_log_sumexp=torch.is_grad_enabled()
        )[0][0]
    given = (q_MHd, k_CKd, v_CKd, starts, ends, longest, farthest)
    return torch.ops.aten._flash_attention_forward(*given, 0.0, True, False)[0]
