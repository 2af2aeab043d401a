"""One draw per row from a random key, with the log-probability of the distribution sampled from.

    p = softmax(z / T), truncated to the kept ids and renormalised; token = min {v : Σ_{w≤v} p_w > u}

u = uniform(key, position), so the samples of a row do not depend on other rows.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gruppo.data import uniform
from gruppo.engines.base import Request

# The settings of a request, on the host: rows come and go, and numpy selects them faster than a device would.
COLUMNS = np.dtype(
    [
        ("key", np.int64),
        ("temperature", np.float64),  # 1 where greedy
        ("greedy", np.bool_),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("narrow", np.bool_),  # some request of the same call truncates
        ("length", np.int64),  # of the prefix
        ("limit", np.int64),  # tokens to sample at most
        ("texts", np.bool_),  # a text may end it
        ("steered", np.bool_),
    ]
)


def columns_of(requests: Seq[Request]) -> np.ndarray:
    """One row of COLUMNS for each request of a call."""
    narrow = any(r.truncates for r in requests)
    rows = [
        (
            (r.key + 2**63) % 2**64 - 2**63,  # any integer is a key; tensors hold 64 bits
            r.temperature or 1.0,
            r.temperature == 0,
            r.top_k,
            r.top_p,
            narrow,
            len(r.prefix),
            r.max_tokens,
            bool(r.stop_text),
            r.steer is not None,
        )
        for r in requests
    ]
    return np.array(rows, COLUMNS)


def stops_of(requests: Seq[Request], eos: tuple[int, ...]) -> np.ndarray:
    """The ids that end each request, padded with -1."""
    stops = [(*r.stop, *eos) for r in requests]
    out = np.full((len(requests), max(map(len, stops), default=0)), -1, np.int64)
    for i, s in enumerate(stops):
        out[i, : len(s)] = s
    return out


@dataclass(frozen=True)
class Settings:
    """Sampling settings of the rows, one column each, and flags to skip what no row needs."""

    columns: np.ndarray  # on the host
    key_B: Tensor
    temperature_B: Tensor  # 1 where greedy
    greedy_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    narrow_B: Tensor
    stop_BS: Tensor
    warm: bool  # some temperature is not 1
    most_k: int
    any_p: bool
    any_greedy: bool

    @property
    def truncates(self) -> bool:
        return bool(self.most_k) or self.any_p or self.any_greedy


def settings_from(columns: np.ndarray, stops: np.ndarray, device: torch.device) -> Settings:
    def column(name: str) -> Tensor:
        return torch.from_numpy(columns[name].copy()).to(device)

    return Settings(
        columns=columns,
        key_B=column("key"),
        temperature_B=column("temperature"),
        greedy_B=column("greedy"),
        top_k_B=column("top_k"),
        top_p_B=column("top_p"),
        narrow_B=column("narrow"),
        stop_BS=torch.from_numpy(stops).to(device),
        warm=bool((columns["temperature"] != 1).any()),
        most_k=int(columns["top_k"].max(initial=0)),
        any_p=bool((columns["top_p"] < 1).any()),
        any_greedy=bool(columns["greedy"].any()),
    )


def settings_of(requests: Seq[Request], eos: tuple[int, ...], device: torch.device) -> Settings:
    return settings_from(columns_of(requests), stops_of(requests, eos), device)


@dataclass(frozen=True)
class Draw:
    token_B: Tensor
    logp_B: Tensor
    logp_BV: Tensor  # at the temperature, before truncation
    keep_BV: Tensor | None  # ids with positive probability; None if no row truncates
    lost_B: Tensor  # rows whose logits give no distribution: the token means nothing


def noise(settings: Settings, pos_XB: Tensor) -> Tensor:
    """The uniform numbers that draw the tokens at absolute positions of each row."""
    u_XB = uniform(settings.key_B, pos_XB)
    assert isinstance(u_XB, Tensor)
    return u_XB


def draw(logits_BV: Tensor, settings: Settings, u_B: Tensor) -> Draw:
    """Sample a token of each row, given its uniform number."""
    if settings.warm:
        logits_BV = logits_BV / settings.temperature_B.to(logits_BV.dtype)[:, None]
    logp_BV = torch.log_softmax(logits_BV, -1)
    keep_BV = kept(logp_BV, settings) if settings.truncates else None
    drawn_BV = logp_BV
    if keep_BV is not None:
        drawn_BV = torch.log_softmax(logp_BV.masked_fill(~keep_BV, float("-inf")), -1)
        # Normalised again, a row without truncation differs in its last bits: those of other callers stay as they are.
        drawn_BV = torch.where(settings.narrow_B[:, None], drawn_BV, logp_BV)
    # Sums in float64: u has 53 bits, and float32 sums over a large vocabulary would move the thresholds.
    cdf_BV = drawn_BV.exp().cumsum(-1, dtype=torch.float64)
    mass_B = cdf_BV[:, -1]
    # u · mass may round up to mass; the next number below still selects an id with positive probability.
    at_B = torch.minimum(u_B * mass_B, torch.nextafter(mass_B, torch.zeros_like(mass_B)))
    # Where nothing can be drawn the index is one beyond the last id, which on a GPU would abort the process.
    token_B = torch.searchsorted(cdf_BV, at_B[:, None], right=True).clamp(max=cdf_BV.shape[-1] - 1)
    return Draw(token_B[:, 0], drawn_BV.gather(1, token_B)[:, 0], logp_BV, keep_BV, ~torch.isfinite(mass_B))


def kept(logp_BV: Tensor, settings: Settings) -> Tensor:
    """The ids allowed by top-k, then by top-p among those, or by greedy decoding."""
    keep_BV = torch.ones_like(logp_BV, dtype=torch.bool)
    if settings.most_k:
        vocab = logp_BV.shape[-1]
        k_B = torch.where(settings.top_k_B > 0, settings.top_k_B, vocab).clamp(max=vocab)
        best = logp_BV.topk(min(settings.most_k, vocab), -1).values
        least_B = best.gather(1, (k_B - 1).clamp(max=best.shape[-1] - 1)[:, None])
        keep_BV = (logp_BV >= least_B) | (k_B == vocab)[:, None]
    if settings.any_p:
        keep_BV &= _nucleus(logp_BV.masked_fill(~keep_BV, float("-inf")), settings.top_p_B)
    if settings.any_greedy:
        best_B1 = logp_BV.argmax(-1, keepdim=True)
        first = torch.zeros_like(keep_BV).scatter_(1, best_B1, True)
        keep_BV = torch.where(settings.greedy_B[:, None], first, keep_BV)
    return keep_BV


def _nucleus(logp_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """Top-p: most probable first, an id is kept while the mass before it is below top_p, so at least one is."""
    p_BV = torch.softmax(logp_BV, -1).to(torch.float64)
    sorted_BV, order_BV = p_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = sorted_BV.cumsum(-1) - sorted_BV
    keep_BV = (before_BV < top_p_B[:, None]) | (top_p_B >= 1)[:, None]
    return torch.zeros_like(keep_BV).scatter_(1, order_BV, keep_BV)
