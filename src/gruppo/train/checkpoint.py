"""Atomic checkpoints: a folder appears complete or not at all. safetensors, JSON and Arrow; never pickle."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gruppo.data import Episode
from gruppo.data.store import load_episodes, save_episodes

FORMAT = 1


@dataclass
class State:
    """The state of a run. Everything else is a function of the configuration and the step."""

    step: int  # steps done
    weights: dict[str, dict[str, Tensor]]
    optimisers: dict[str, dict[str, Tensor]]
    memory: dict[str, Any]
    replay: list[Episode]
    facts: dict[str, Any]


def save_checkpoint(folder: Path, state: State, keep: int = 2) -> Path:
    """Write `step-000020`, then remove all but the newest `keep`. One that is already there is left as it is."""
    target, draft = folder / f"step-{state.step:06d}", folder / f".draft-{os.getpid()}"
    if (target / "state.json").is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".draft-*"):  # left by a run that was killed while writing
            shutil.rmtree(left, ignore_errors=True)
        draft.mkdir()
        _write(draft, state)
        os.rename(draft, target)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        last = latest_checkpoint(folder)
        kept = f"the last whole one is {last.name}" if last else "there is no earlier one"
        raise ValueError(
            f"checkpoint of step {state.step} could not be written ({getattr(error, 'strerror', None) or error}); "
            f"{kept}. Free some space in {folder}."
        ) from error
    for old in sorted(folder.glob("step-*"), key=step_of)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def step_of(path: Path) -> int:
    """The steps done, from the name of a checkpoint."""
    return int(path.name.split("-")[1])


def _write(draft: Path, state: State) -> None:
    for name, weights in state.weights.items():
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in weights.items()}, draft / f"{name}.safetensors")
    for name, tensors in state.optimisers.items():
        save_file(tensors, draft / f"optimiser-{name}.safetensors")
    tensors: dict[str, Tensor] = {}
    table = pack_memory(state.memory, tensors)
    save_file(tensors, draft / "memory.safetensors")
    if state.replay:
        save_episodes(draft / "replay.arrow", state.replay)
    body = {"format": FORMAT, "step": state.step, "memory": table, "facts": state.facts}
    (draft / "state.json").write_text(json.dumps(body))
    for path in draft.iterdir():
        _sync(path)
    _sync(draft)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint; drafts of a killed run do not count."""
    complete = [p for p in folder.glob("step-*") if (p / "state.json").is_file()]
    return max(complete, key=step_of, default=None)


def load_checkpoint(path: Path) -> State:
    try:
        return _read(path)
    except (OSError, json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(
            f"{path} is damaged ({error}), so the run cannot go on from it. Remove that folder: the one before it is "
            "then the newest."
        ) from None


def _read(path: Path) -> State:
    body = json.loads((path / "state.json").read_text())
    if body["format"] != FORMAT:
        raise ValueError(
            f"{path.name} has format {body['format']}, this gruppo reads {FORMAT}: use the version that wrote it."
        )
    tensors = load_file(path / "memory.safetensors")
    weights = {
        p.stem: load_file(p)
        for p in path.glob("*.safetensors")
        if p.stem != "memory" and not p.stem.startswith("optimiser-")
    }
    optimisers = {p.stem.removeprefix("optimiser-"): load_file(p) for p in path.glob("optimiser-*.safetensors")}
    replay = load_episodes(path / "replay.arrow") if (path / "replay.arrow").exists() else []
    return State(body["step"], weights, optimisers, unpack_memory(body["memory"], tensors), replay, body["facts"])


def pack_memory(x: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(x, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = x.detach().cpu().contiguous().clone()
        return {"$tensor": name}
    if isinstance(x, Mapping):
        return {"$map": [[k, pack_memory(v, tensors)] for k, v in x.items()]}
    if isinstance(x, list | tuple):
        return [pack_memory(v, tensors) for v in x]
    if x is None or isinstance(x, bool | int | float | str):
        return x
    raise ValueError(
        f"memory holds {type(x).__name__}, which a checkpoint cannot hold. Keep numbers, texts, tensors, lists, dicts."
    )


def unpack_memory(x: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(x, Mapping) and "$tensor" in x:
        return tensors[x["$tensor"]]
    if isinstance(x, Mapping):
        return {k: unpack_memory(v, tensors) for k, v in x["$map"]}
    return [unpack_memory(v, tensors) for v in x] if isinstance(x, list) else x


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of the optimiser by parameter number; its settings come from the configuration."""
    params = optimiser.param_groups[0]["params"]
    return {
        f"{i}.{k}": torch.as_tensor(v).detach().cpu().contiguous().clone()
        for i, p in enumerate(params)
        for k, v in optimiser.state[p].items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    params = optimiser.param_groups[0]["params"]
    optimiser.state.clear()
    for name, x in tensors.items():
        i, _, k = name.partition(".")
        p = params[int(i)]
        optimiser.state[p][k] = x.to(p.device).clone()
