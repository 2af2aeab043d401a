"""Where the weights of a run are, and in which dtype."""

import torch

from gruppo.train.config import RunConfig


def place_of(config: RunConfig) -> tuple[torch.device, torch.dtype]:
    """The device and the dtype of the weights."""
    device, dtype = torch.device(_device(config.model.device)), getattr(torch, config.model.dtype)
    if dtype == torch.bfloat16 and device.type == "cpu":
        raise ValueError(
            "model.dtype=bfloat16 on a CPU: on some processors the first matrix product ends the process. "
            "Use model.dtype=float32, or a GPU with model.device=cuda."
        )
    return device, dtype


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"model.device={name} cannot be used here ({said}), so nothing was started. Use model.device=auto or cpu."
        ) from None
    return name
