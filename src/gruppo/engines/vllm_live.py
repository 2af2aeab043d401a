"""vLLM itself, as `VllmEngine` talks to it: an `AsyncLLM`, whose engine has a process of its own. Imports vLLM."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gruppo.engines.vllm import Said

# Before vLLM is imported. A fork would copy threads of torch and of the trainer; cores are the trainer's, too.
os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm import SamplingParams, TokensPrompt  # pyright: ignore[reportMissingImports]
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]
from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
from vllm.v1.engine.exceptions import EngineDeadError  # pyright: ignore[reportMissingImports]

WORKER = "gruppo.engines.vllm_worker"


class Live:
    """All calls belong to one event loop."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    @classmethod
    async def start(cls, args: dict[str, Any]) -> "Live":
        """`args` are those of vLLM's engine."""
        own = {"worker_extension_cls": f"{WORKER}.Extension", "weight_transfer_config": {"backend": "gruppo_file"}}
        try:
            llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**{**own, **args}))
        except (RuntimeError, TypeError) as error:  # of its process, which says why; an unknown argument
            raise ValueError(
                f"vLLM did not start ({error}). Look at its words above, at engine.kv_gib and engine.args, or use "
                "engine=native."
            ) from error
        await llm.init_weight_transfer_engine(WeightTransferInitRequest({}))
        return cls(llm)

    async def sample(self, ids: list[int], params: dict[str, Any], name: str) -> Said:
        how = SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)
        last = None
        with _alive():
            async for out in self.llm.generate(TokensPrompt(prompt_token_ids=ids), how, name):
                last = out.outputs[0]
        if last is None:
            raise ValueError(
                f"vLLM ended the request {name} without an answer. Look at its log: VLLM_LOGGING_LEVEL=INFO."
            )
        return Said(
            ids=list(last.token_ids),
            likely=[{i: p.logprob for i, p in found.items()} for found in last.logprobs],
            reason=str(last.finish_reason),
            spans=[(s.version, s.start, s.end) for s in last.weight_versions or ()],
        )

    async def update(self, path: str, version: int) -> None:
        """New weights, also while requests are on their way: these are held, and what they had computed is dropped."""
        with _alive():
            await self.llm.pause_generation(mode="keep", clear_cache=True)
            try:
                await self.llm.start_weight_update()
                await self.llm.update_weights(WeightTransferUpdateRequest({"path": path}))
                await self.llm.finish_weight_update(weight_version=str(version))
            finally:
                await self.llm.resume_generation()

    async def forget(self) -> None:
        with _alive():
            await self.llm.reset_prefix_cache()

    async def close(self) -> None:
        self.llm.shutdown(timeout=10)
        self.llm = None  # now, and not when the interpreter ends: it would call itself when half of it is gone


@contextmanager
def _alive() -> Iterator[None]:
    try:
        yield
    except EngineDeadError as error:
        raise ValueError(
            "vLLM's process has ended, so nothing more can be sampled. Its words are above (more of them: "
            "VLLM_LOGGING_LEVEL=INFO). Go on from the last checkpoint, or use engine=native."
        ) from error
