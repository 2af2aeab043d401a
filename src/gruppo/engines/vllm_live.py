"""vLLM itself, as `VllmEngine` talks to it: an `AsyncLLM`, whose engine has a process of its own. Imports vLLM."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from gruppo.engines.vllm import Said

# Before vLLM is imported. A fork would copy threads of torch and of the trainer; cores are the trainer's, too.
os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm import SamplingParams, TokensPrompt  # pyright: ignore
from vllm.distributed.weight_transfer.base import (  # pyright: ignore
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore
from vllm.sampling_params import RequestOutputKind  # pyright: ignore
from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore
from vllm.v1.engine.exceptions import EngineDeadError  # pyright: ignore

T = TypeVar("T")
WORKER = "gruppo.engines.vllm_worker"
TRAINER = "GRUPPO_TRAINER_PID"
LOOK = 1.0  # seconds between two looks whether vLLM's process is there


class Live:
    """All calls belong to one event loop."""

    def __init__(self, llm: Any) -> None:
        self.llm: Any = llm

    @classmethod
    async def start(cls, args: dict[str, Any]) -> "Live":
        """`args` are those of vLLM's engine."""
        os.environ[TRAINER] = str(os.getpid())  # its processes look whether this one is still there
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
        try:
            async for out in self.llm.generate(TokensPrompt(prompt_token_ids=ids), how, name):
                last = out.outputs[0]
        except EngineDeadError as error:
            raise dead() from error
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
        await self._watched(self._update(path, version))

    async def _update(self, path: str, version: int) -> None:
        await self.llm.pause_generation(mode="keep", clear_cache=True)
        try:
            await self.llm.start_weight_update()
            await self.llm.update_weights(WeightTransferUpdateRequest({"path": path}))
            await self.llm.finish_weight_update(weight_version=str(version))
        finally:
            await self.llm.resume_generation()

    async def forget(self) -> None:
        await self._watched(self.llm.reset_prefix_cache())

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a call. One that is under way when vLLM's process ends is never answered, so it is watched."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=LOOK))[0]:
                if self.llm.errored:
                    raise dead()
            return task.result()
        except EngineDeadError as error:
            raise dead() from error
        finally:
            task.cancel()

    async def close(self) -> None:
        self.llm.shutdown(timeout=10)
        self.llm = None  # now, and not when the interpreter ends: it would call itself when half of it is gone


def dead() -> ValueError:
    return ValueError(
        "vLLM's process has ended, so nothing more can be sampled. Its words are above (more of them: "
        "VLLM_LOGGING_LEVEL=INFO). Go on from the last checkpoint, or use engine=native."
    )
