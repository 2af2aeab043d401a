"""The settings of an engine, and the engine that they describe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gruppo.engines.base import RunEngine
from gruppo.engines.native import NativeEngine
from gruppo.engines.rough import Copies
from gruppo.fields import Checked, setting

GIB = 1 << 30


@dataclass(frozen=True)
class EngineConfig(Checked):
    """What samples. With `native`, draws are the same with any of these settings; log-probabilities may differ in their
    last bits.
    """

    name: Literal["native", "vllm", "remote"] = "native"  # in the trainer's process; vLLM (docs/scale.md); a server
    rows: int = setting(1024, low=1)  # answers at once, 512 at most on the fast path; halved when memory runs out
    prefill_tokens: int = setting(16384, low=1)  # prompt tokens computed at once
    cache_tokens: int = setting(65536, low=0)  # tokens whose keys and values `ask` keeps for later; 0: none
    lockstep: Literal["auto", "yes", "no"] = "auto"  # callers enter in waves: same bits. auto: on a CPU
    kv_gib: float = setting(4.0, above=0)  # vllm: GiB of keys and values
    args: Mapping[str, Any] = setting({})  # vllm: more arguments of its engine, such as tensor_parallel_size
    url: str = ""  # remote: such as http://127.0.0.1:8000/v1; its key: the variable OPENAI_API_KEY
    model: str = ""  # remote: the server's name of the model; empty: its first one
    logprobs: Literal["raw", "processed"] = "raw"  # remote: whether the server's are at the temperature (processed)
    seconds: float = setting(600.0, above=0)  # remote: limit for one answer


# Who reads a setting; those that are not here are everybody's.
OWNERS = {
    "prefill_tokens": ("native", "vllm"),
    "cache_tokens": ("native", "vllm"),
    "kv_gib": ("vllm",),
    "args": ("vllm",),
    "url": ("remote",),
    "model": ("remote",),
    "logprobs": ("remote",),
    "seconds": ("remote",),
}


def refuse_ignored(config: EngineConfig) -> None:
    """Refuses settings that the engine would ignore.

    Not when one is made: settings come one by one, in any order.
    """
    if config.name != "native" and config.lockstep == "yes":
        raise ValueError(
            f"engine={config.name} with engine.lockstep=yes (which deterministic=true asks for): its draws are not the "
            "same bits in every run. Use engine=native, or leave both out."
        )
    for name, owners in OWNERS.items():
        if config.name not in owners and (value := getattr(config, name)) != getattr(EngineConfig(), name):
            raise ValueError(
                f"engine.{name}={value} is a setting of engine={' and '.join(owners)}, and the engine is "
                f"{config.name}, which would ignore it. Leave it out, or use engine={owners[-1]}."
            )


def engine_of(
    config: EngineConfig,
    models: Mapping[str, Any],
    tokenizer: Any,
    say: Callable[[str], None] = print,
    copies: Copies | None = None,
) -> RunEngine:
    """The engine of a run, an evaluation or a check; `copies` are for the native one (RunConfig refuses others)."""
    refuse_ignored(config)
    if config.name == "native":
        return _native(config, models, tokenizer, say, copies)
    return {"vllm": _vllm, "remote": _remote}[config.name](config, models, tokenizer, say)


def _native(
    config: EngineConfig, models: Mapping[str, Any], tokenizer: Any, say: Callable[[str], None], copies: Copies | None
) -> RunEngine:
    return NativeEngine(
        models,
        config.rows,
        tokenizer.stops,
        config.prefill_tokens,
        say,
        config.cache_tokens,
        {"auto": None, "yes": True, "no": False}[config.lockstep],
        tokenizer.decode,
        copies,
    )


def _vllm(config: EngineConfig, models: Mapping[str, Any], tokenizer: Any, say: Callable[[str], None]) -> RunEngine:
    from gruppo.engines.vllm import VllmEngine

    args = {
        "max_num_seqs": config.rows,
        "max_num_batched_tokens": max(config.prefill_tokens, config.rows),
        "enable_prefix_caching": config.cache_tokens > 0,
        "kv_cache_memory_bytes": int(config.kv_gib * GIB),
    }
    return VllmEngine(models, tokenizer.stops, args | dict(config.args), say)


def _remote(config: EngineConfig, models: Mapping[str, Any], tokenizer: Any, say: Callable[[str], None]) -> RunEngine:
    from gruppo.engines.remote import RemoteEngine

    return RemoteEngine(
        models, tokenizer.stops, config.url, config.model, config.rows, config.logprobs == "processed", config.seconds
    )
