"""Inside vLLM's own process: how its worker takes the weights of the trainer. Imports vLLM.

A backend of vLLM's weight transfer, for one machine: the trainer writes one file of safetensors and sends its path. No
process group is shared, so nothing waits for another process, and nothing but a path goes through a queue.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from safetensors import safe_open
from torch import Tensor
from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import (  # pyright: ignore[reportMissingImports]
    WeightTransferEngineFactory,
)
from vllm.model_executor.model_loader.reload import (  # pyright: ignore[reportMissingImports]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

BACKEND = "gruppo_file"
LOOK = 2.0  # seconds between two looks whether the trainer is there


@dataclass
class Nothing(WeightTransferInitInfo):
    """A file needs no rendezvous."""


@dataclass
class Written(WeightTransferUpdateInfo):
    """Where the weights are, under the names of a Hugging Face folder."""

    path: str


class FileTransfer(WeightTransferEngine[Nothing, Written]):
    init_info_cls = Nothing
    update_info_cls = Written

    def init_transfer_engine(self, init_info: Nothing) -> None:
        pass

    def start_weight_update(self) -> None:
        # Layer by layer, as from a checkpoint: what vLLM has packed or fused for its kernels is made anew.
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, str]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Written) -> None:
        self.model.load_weights(_read(update_info.path))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


def _read(path: str) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            yield name, file.get_tensor(name)


class Extension:
    """Named in the settings of vLLM, so that its worker imports this module before it asks for the backend."""


def _outlive_nobody(trainer: int) -> None:
    """Ends vLLM's processes when the trainer is gone (`kill -9`): they would wait for it for ever."""
    while True:
        time.sleep(LOOK)
        try:
            os.kill(trainer, 0)
        except ProcessLookupError:
            if os.getppid() not in (1, trainer):  # vLLM's engine, which has started this worker
                os.kill(os.getppid(), signal.SIGKILL)
            os._exit(1)


if os.environ.get("GRUPPO_TRAINER_PID", str(os.getpid())) != str(os.getpid()):
    threading.Thread(target=_outlive_nobody, args=[int(os.environ["GRUPPO_TRAINER_PID"])], daemon=True).start()

if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)
