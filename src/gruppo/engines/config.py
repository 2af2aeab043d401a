"""The settings of an engine, and the engine that they describe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gruppo.engines.native import NativeEngine
from gruppo.fields import Checked, setting
from gruppo.policies.base import Policy


@dataclass(frozen=True)
class EngineConfig(Checked):
    """What samples. Draws are the same with any of these settings; log-probabilities may differ in their last bits."""

    name: Literal["native"] = "native"  # native: in the process of the trainer, with its weights
    rows: int = setting(1024, low=1)  # answers at once, 512 at most on the fast path; halved when memory runs out
    prefill_tokens: int = setting(16384, low=1)  # prompt tokens computed at once
    cache_tokens: int = setting(65536, low=0)  # tokens whose keys and values `ask` keeps for later; 0: none
    lockstep: Literal["auto", "yes", "no"] = "auto"  # callers enter in waves: same bits. auto: on a CPU


def engine_of(
    config: EngineConfig, models: Mapping[str, Policy], tokenizer: Any, say: Callable[[str], None] = print
) -> NativeEngine:
    """The engine of a run, an evaluation or a check."""
    return NativeEngine(
        models,
        config.rows,
        tokenizer.stops,
        config.prefill_tokens,
        say,
        config.cache_tokens,
        {"auto": None, "yes": True, "no": False}[config.lockstep],
        tokenizer.decode,
    )
