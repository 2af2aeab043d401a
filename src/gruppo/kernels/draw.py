"""The keyed draw of one token per row, in two kernels: masses of blocks of ids, then one program a row.

    p = softmax(z / T),   token = min {v : Σ_{w≤v} p_w > u},   u = uniform(key, position)

The same draw as `engines.sampling.draw` without truncation, which makes several passes over the vocabulary in float64.
Here ids are added in blocks of float32, so a threshold may move by about 1e-7 of the mass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gruppo.data import uniform
from gruppo.kernels.language import jit, power_of_two, runs_on, tl

BLOCK = 2048


def draw_plain(logits_BV: Tensor, heat_B: Tensor, key_B: Tensor, pos_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logp_BV = torch.log_softmax(logits_BV.float() / heat_B[:, None], -1)
    cdf_BV = logp_BV.exp().double().cumsum(-1)
    mass_B = cdf_BV[:, -1]
    u_B = uniform(key_B, pos_B)
    assert isinstance(u_B, Tensor)
    at_B = torch.minimum(u_B * mass_B, torch.nextafter(mass_B, torch.zeros_like(mass_B)))
    token_B = torch.searchsorted(cdf_BV, at_B[:, None], right=True).clamp(max=cdf_BV.shape[-1] - 1)
    return token_B[:, 0], logp_BV.gather(1, token_B)[:, 0], ~torch.isfinite(mass_B)


def draw_token(logits_BV: Tensor, heat_B: Tensor, key_B: Tensor, pos_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(token, its log-probability in float32, whether the logits give no distribution) of each row.

    heat_B  temperatures, float32        key_B, pos_B  int64: the random key, and the position of the token
    """
    if not runs_on(logits_BV):
        return draw_plain(logits_BV, heat_B, key_B, pos_B)
    rows, vocab = logits_BV.shape
    blocks = -(-vocab // BLOCK)
    most = torch.empty(rows, blocks, dtype=torch.float32, device=logits_BV.device)
    mass = torch.empty(rows, blocks, dtype=torch.float64, device=logits_BV.device)
    token_B = torch.empty(rows, dtype=torch.int64, device=logits_BV.device)
    logp_B = torch.empty(rows, dtype=torch.float32, device=logits_BV.device)
    lost_B = torch.empty(rows, dtype=torch.bool, device=logits_BV.device)
    _masses[(rows, blocks)](logits_BV, heat_B, most, mass, vocab, blocks, BLOCK, num_warps=8)
    given = (logits_BV, heat_B, key_B, pos_B, most, mass, token_B, logp_B, lost_B)
    _pick[(rows,)](*given, vocab, blocks, power_of_two(blocks), BLOCK, num_warps=8)
    return token_B, logp_B, lost_B


def advance(
    token_B: Tensor, logp_B: Tensor, lost_B: Tensor, state_3R: Tensor, count_R: Tensor, out_RX: Tensor, last: int
) -> None:
    """Write what was drawn into `out_RX` at column `count`, and make it the token that goes in next.

    state_3R  token, position and key of each row      out_RX  W ids, W log-probabilities, and whether a draw was lost
    last      the largest position
    """
    n, window = len(token_B), (out_RX.shape[1] - 1) // 2
    if runs_on(token_B):
        _advance[(n,)](token_B, logp_B, lost_B, state_3R, count_R, out_RX, last, state_3R.shape[1], window, num_warps=1)
        return
    at_B1 = count_R[:n, None]
    out_RX[:n].scatter_(1, at_B1, token_B[:, None].double())
    out_RX[:n].scatter_(1, at_B1 + window, logp_B[:, None].double())
    out_RX[:n, -1] += lost_B
    state_3R[0, :n] = token_B
    state_3R[1, :n] = (state_3R[1, :n] + 1).clamp(max=last)
    count_R[:n] += 1


@jit
def _advance(token, logp, lost, state, count, out, last, ROWS: tl.constexpr, W: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at, line, id_ = tl.load(count + row), out + row * (2 * W + 1), tl.load(token + row)
    tl.store(line + at, id_.to(tl.float64))
    tl.store(line + W + at, tl.load(logp + row).to(tl.float64))
    tl.store(line + 2 * W, tl.load(line + 2 * W) + tl.load(lost + row).to(tl.float64))
    tl.store(state + row, id_)
    tl.store(state + ROWS + row, tl.minimum(tl.load(state + ROWS + row) + 1, last))
    tl.store(count + row, at + 1)


@jit
def _masses(logits, heat, most, mass, V: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = block * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row * V + v, mask=v < V, other=float("-inf")).to(tl.float32) / tl.load(heat + row)
    top = tl.max(z, 0)
    p = tl.exp(z - tl.where(top == float("-inf"), 0.0, top))
    tl.store(most + row * BLOCKS + block, top)
    tl.store(mass + row * BLOCKS + block, tl.sum(p.to(tl.float64), 0))


@jit
def _mixed(z):
    z += 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@jit
def _pick(
    logits, heat, key, pos, most, mass, token, logp, lost,
    V: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, SIZE)
    tops = tl.load(most + row * BLOCKS + j, mask=j < BLOCKS, other=float("-inf"))
    top = tl.max(tops, 0)
    # NaN anywhere: a maximum may pass it over, a sum does not.
    part = tl.load(mass + row * BLOCKS + j, mask=j < BLOCKS, other=0.0) * tl.exp(tops - top).to(tl.float64)
    total = tl.sum(part, 0)
    cdf = tl.cumsum(part, 0)
    golden = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    mixed = _mixed(golden ^ tl.load(key + row).to(tl.uint64, bitcast=True))
    mixed = _mixed(mixed ^ tl.load(pos + row).to(tl.uint64, bitcast=True))
    u = (mixed >> 11).to(tl.float64) * 1.1102230246251565e-16
    at = tl.minimum(u * total, total * 0.9999999999999998)
    block = tl.minimum(tl.sum((cdf <= at).to(tl.int32), 0), BLOCKS - 1)
    rest = at - tl.sum(tl.where(j == block - 1, cdf, 0.0), 0)
    i = tl.arange(0, BLOCK)
    v = block * BLOCK + i
    z = tl.load(logits + row * V + v, mask=v < V, other=float("-inf")).to(tl.float32) / tl.load(heat + row)
    p = tl.exp(z - top).to(tl.float64)
    found = tl.sum((tl.cumsum(p, 0) <= rest).to(tl.int32), 0)
    found = tl.minimum(found, tl.max(tl.where(p > 0, i, 0), 0))  # sums of two orders differ in their last bits
    chosen = tl.sum(tl.where(i == found, z, 0.0), 0)
    tl.store(token + row, (block * BLOCK + found).to(tl.int64))
    tl.store(logp + row, chosen - top - tl.log(total).to(tl.float32))
    tl.store(lost + row, ~((total > 0) & (total < float("inf"))))
