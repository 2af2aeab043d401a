"""vLLM as the engine of a run: its own process, its own weights, which it takes from the trainer after every update.

This module does not import vLLM; `vllm_live.py` does, in this process, and `vllm_worker.py` in vLLM's. What it cannot
do is not promised: draws that are a function of key and position alone, sets of ids for truncated draws, steers, texts
that end an answer, scores of given tokens, and the same bits again.
"""

import asyncio
import json
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gruppo.data.files import write_tensors
from gruppo.engines.apart import Apart, completion_of, seed_of, stops_of
from gruppo.engines.base import CAN_PROMISE, Completion, Reason, Request
from gruppo.policies.lora import merged_state

T = TypeVar("T")
GIB = 1 << 30
REASONS: dict[str, Reason] = {"stop": "stop", "length": "length"}
SHARED = Path("/dev/shm")  # memory that looks like a folder, on Linux


@dataclass(frozen=True)
class Said:
    """What vLLM says about a request."""

    ids: list[int]
    likely: list[dict[int, float]]  # log-probabilities: of the sampled id and of the most probable ones asked for
    reason: str
    spans: list[tuple[str, int, int]]  # (version, from, to) of its tokens


class VllmEngine(Apart):
    """Samples from a copy of the policy that vLLM holds.

    vLLM starts with the first request. `sync` sends it the weights, also while requests are on their way: these are
    held for that time, what they had computed is dropped and computed again, and each token has the version of the
    weights that drew it.
    """

    name = "vllm"
    promises = CAN_PROMISE["vllm"]

    def __init__(
        self,
        models: Mapping[str, Any],
        eos: tuple[int, ...],
        args: Mapping[str, Any],
        say: Callable[[str], None] = print,
        live: Any = None,
    ) -> None:
        super().__init__(models, eos)
        self.args, self.say, self.live = dict(args), say, live
        self.folder: tempfile.TemporaryDirectory[str] | None = None  # removed with the engine, closed or not
        self.sent: list[float] = []  # seconds of each exchange of weights
        self._aside, self._running = Aside(), None
        self._failed: Exception | None = None
        self._names, self._starting = count(), threading.Lock()

    def forget(self) -> None:
        if self._running is not None:
            self._aside(self._running.forget())

    def sync(self, version: int, weights: Mapping[str, Any]) -> None:
        """Sample from these weights from now on."""
        self.version, self.models = version, dict(weights)
        self.known = self.models
        if self._running is not None:
            self._send(self._running)

    def close(self) -> None:
        running, self._running = self._running, None
        try:
            if running is not None:
                self._aside(running.close())
        finally:
            self._aside.close()
            if self.folder is not None:
                self.folder.cleanup()

    async def _one(self, request: Request) -> Completion:
        running, name = self._started(), f"gruppo-{next(self._names)}"
        ids, how = request.prefix.tolist(), params_of(request, self.eos)
        said = await asyncio.wrap_future(self._aside.begin(running.sample(ids, how, name)))
        if said.reason not in REASONS:
            raise ValueError(f"vLLM ended a request with {said.reason!r}, so its answer is not whole. Look at its log.")
        logp = [said.likely[t][i] for t, i in enumerate(said.ids)]
        return completion_of(request, said.ids, logp, versions_of(said), REASONS[said.reason], said.likely)

    def _started(self) -> Any:
        with self._starting:
            if self._failed is not None:  # all requests of a call come here, and each would wait for a minute
                raise self._failed
            if self._running is None:
                try:
                    self._running = self._start()
                except Exception as error:
                    self._failed = error
                    raise
            return self._running

    def _start(self) -> Any:
        live, policy = self.live or _vllm(), self._model("policy")
        self.say("vLLM starts in a process of its own, so the first answers take a minute")
        self.folder = tempfile.TemporaryDirectory(prefix="gruppo-vllm-", ignore_cleanup_errors=True)
        folder = Path(self.folder.name)
        (folder / "config.json").write_text(json.dumps(untied(policy.described)))
        running = self._aside(live.start(args_of(policy, folder, self.args)))
        try:
            self._send(running)
        except BaseException:
            self._aside(running.close())
            raise
        return running

    def _send(self, running: Any) -> None:
        begun, weights = time.perf_counter(), exported(self.models["policy"])
        size = sum(w.numel() * w.element_size() for w in weights.values())
        with tempfile.TemporaryDirectory(prefix="gruppo-weights-", dir=_roomy(size)) as folder:
            path = Path(folder) / "weights.safetensors"
            write_tensors(weights, path)
            self._aside(running.update(str(path), self.version))
        self.sent.append(time.perf_counter() - begun)


class Aside:
    """An event loop in a thread of its own: callers may have any loop, or block theirs."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            self.thread = threading.Thread(target=self._run, args=[self.loop], name="vllm", daemon=True)
            self.thread.start()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        # Processes that this thread starts do not hear Ctrl-C: the run does, and ends them when its step is done.
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # now: it would unblock the signals of this thread
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        loop.run_forever()

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result()

    def close(self) -> None:
        if self.loop is not None and self.thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(10)
            self.loop = self.thread = None


def params_of(request: Request, eos: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of vLLM's SamplingParams."""
    return {
        "max_tokens": request.max_tokens,
        "temperature": float(request.temperature),
        "seed": seed_of(request),
        "stop_token_ids": stops_of(request, eos),
        "ignore_eos": True,  # all ids that end an answer are in the line above
        "logprobs": request.topk_logprobs,  # 0: of the sampled id alone
        "detokenize": False,
        "skip_special_tokens": False,
    }


def versions_of(said: Said) -> list[int]:
    """The version of the weights that drew each token."""
    out = [int(version) for version, start, end in said.spans for _ in range(start, end)]
    if len(out) != len(said.ids):
        raise ValueError(
            f"vLLM gave versions of {len(out)} tokens to an answer of {len(said.ids)}: which weights drew it is not "
            "known. Use vllm>=0.32."
        )
    return out


def exported(policy: Any) -> dict[str, Tensor]:
    """All weights under the names of a Hugging Face folder, adapters merged, and the head always apart.

    vLLM does not update a head that is tied to the embedding, so it is told that the two are not tied.
    """
    state = merged_state(policy.root)
    if policy.described.get("tie_word_embeddings"):
        state.setdefault("lm_head.weight", policy.output.weight)
    return state


def untied(described: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json in which the head is a weight of its own."""
    return {**described, "tie_word_embeddings": False}


def args_of(policy: Any, folder: Path, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of vLLM's engine for a policy; `args` win."""
    dtype = next(iter(policy.parameters())).dtype
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"engine=vllm with weights in {str(dtype).removeprefix('torch.')}: vLLM does not compute in it. Use "
            "model.dtype=float32 or bfloat16."
        )
    return {
        "model": str(folder),
        "dtype": str(dtype).removeprefix("torch."),
        "load_format": "dummy",  # the weights are sent
        "max_model_len": policy.context,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # no sampling settings of the model's own
        "logprobs_mode": "processed_logprobs",  # of the distribution sampled from
        "max_logprobs": -1,
        "enforce_eager": policy.device.type == "cpu",  # compiling takes minutes there
        "disable_log_stats": True,
        **args,
    }


def _roomy(size: int) -> Path | None:
    """Shared memory if the weights fit in there; None: where temporary files are."""
    return SHARED if SHARED.is_dir() and shutil.disk_usage(SHARED).free > 1.1 * size else None


def _vllm() -> Any:
    if find_spec("vllm") is None:
        raise ValueError(
            "engine=vllm needs vLLM, which is not installed. pip install 'gruppo[vllm]' in an environment of its own "
            "(on a CPU: docs/scale.md), or use engine=native."
        )
    from gruppo.engines.vllm_live import Live

    return Live
