"""Checkpoints: a folder appears whole or not at all, and its checksums tell whether it still is. Never pickle."""

import errno
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gruppo.data import Episode
from gruppo.data.files import whole_folder, write_tensors
from gruppo.data.store import load_episodes, save_episodes
from gruppo.stages.walk import without_clock
from gruppo.train.manifest import NAME, damage, read_manifest, write_manifest
from gruppo.train.ranks import Ranks, sharded
from gruppo.train.source import Drawn


@dataclass
class State:
    """The state of a run. Everything else is a function of the configuration and the step.

    `beside` are files of the run folder at that step, as they were: a run that goes on puts them back.
    """

    step: int  # steps done
    weights: dict[str, dict[str, Tensor]]
    optimisers: dict[str, dict[str, Tensor]]
    memory: dict[str, Any]
    replay: list[Episode]
    facts: dict[str, Any]
    beside: dict[str, bytes] = field(default_factory=dict[str, bytes])
    drawn: list[Drawn] = field(default_factory=list[Drawn])  # ahead of learning, the next step first
    open: list[Episode] = field(default_factory=list[Episode])  # of groups that go on in the next step


def save_checkpoint(folder: Path, state: State, keep: int = 2) -> Path:
    """Write `step-000020`, then remove all but the newest `keep`. One that is there and whole is left as it is."""
    target = folder / f"step-{state.step:06d}"
    if target.exists() and not damage(target):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".draft-*"):  # left by a run that was killed while writing
            shutil.rmtree(left, ignore_errors=True)
        if target.exists():
            set_aside(target)
        with whole_folder(target, NAME) as draft:
            _write(draft, state)
    except OSError as error:
        last = latest_checkpoint(folder)
        kept = f"the last whole one is {last.name}" if last else "there is no earlier one"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise ValueError(
            f"checkpoint of step {state.step} could not be written ({error.strerror or error}); {kept}. "
            f"{'Free some space in' if full else 'Look at'} {folder}."
        ) from error
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """All of them, whole or not, the newest last."""
    found = [p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{6,}", p.name)]
    return sorted(found, key=step_of)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest that was written to its end; whether it still is whole, `damage` tells."""
    return next((p for p in reversed(checkpoints(folder)) if (p / NAME).is_file()), None)


def step_of(path: Path) -> int:
    """The steps done, from the name of a checkpoint."""
    return int(path.name.split("-")[1])


def set_aside(path: Path) -> Path:
    """Renames a damaged checkpoint, so that it is no checkpoint any more and nothing is lost."""
    names = (path.with_name(f"damaged-{path.name}{end}") for end in ("", *(f"-{i}" for i in range(2, 1000))))
    return path.rename(next(p for p in names if not p.exists()))


def _write(draft: Path, state: State) -> None:
    for name, weights in state.weights.items():
        write_tensors(weights, draft / f"{name}.safetensors")
    for name, tensors in state.optimisers.items():
        write_tensors(tensors, draft / f"optimiser-{name}.safetensors")
    tensors: dict[str, Tensor] = {}
    table = pack_memory(state.memory, tensors)
    write_tensors(tensors, draft / "memory.safetensors")
    if state.replay:
        save_episodes(draft / "replay.arrow", state.replay)
    if state.open:
        save_episodes(draft / "open.arrow", [without_clock(e) for e in state.open])
    for d in state.drawn:
        save_episodes(draft / f"drawn-{d.step:06d}.arrow", [without_clock(e) for e in d.episodes])
    for name, content in state.beside.items():
        (draft / name).write_bytes(content)
    body = {"step": state.step, "memory": table, "facts": state.facts, "beside": sorted(state.beside)}
    body |= {"drawn": [_drawn_facts(d) for d in state.drawn]} if state.drawn else {}
    (draft / "state.json").write_text(json.dumps(body), encoding="utf-8")
    write_manifest(draft, [p.name for p in draft.iterdir()])


def load_checkpoint(path: Path) -> State:
    """The state; a ValueError names the file that is not as it was written."""
    said = damage(path)
    if said:
        raise ValueError(f"{path} is damaged: {said}, so no run can go on from it.")
    try:
        return _read(path, sorted(read_manifest(path)))
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}): it was written by another gruppo. Use that one.") from None


def _read(path: Path, names: Sequence[str]) -> State:
    body = json.loads((path / "state.json").read_text(encoding="utf-8"))
    tensors = {n.removesuffix(".safetensors"): load_file(path / n) for n in names if n.endswith(".safetensors")}
    memory = unpack_memory(body["memory"], tensors.pop("memory"))
    optimisers = {n.removeprefix("optimiser-"): tensors.pop(n) for n in list(tensors) if n.startswith("optimiser-")}
    replay, waiting = (load_episodes(path / n) if n in names else [] for n in ("replay.arrow", "open.arrow"))
    beside = {n: (path / n).read_bytes() for n in body["beside"]}
    drawn = [_read_drawn(path, facts) for facts in body.get("drawn", [])]
    return State(body["step"], tensors, optimisers, memory, replay, body["facts"], beside, drawn, waiting)


def _drawn_facts(drawn: Drawn) -> dict[str, Any]:
    """All of a draw but its episodes, which have a file of their own; those that were kept by their places there."""
    place = {id(e): i for i, e in enumerate(drawn.episodes)}
    facts = {name: getattr(drawn, name) for name in ("step", "version", "round", "sampled")}
    return {**facts, "kept": [place[id(e)] for e in drawn.kept]}


def _read_drawn(path: Path, facts: dict[str, Any]) -> Drawn:
    episodes = load_episodes(path / f"drawn-{facts['step']:06d}.arrow")
    return Drawn(**{**facts, "kept": [episodes[i] for i in facts["kept"]]}, episodes=episodes)


def pack_memory(x: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(x, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = x.detach().to("cpu", copy=True).contiguous()
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


def optimiser_tensors(optimiser: torch.optim.Optimizer, ranks: Ranks | None = None) -> dict[str, Tensor]:
    """The state of the optimiser by parameter number; its settings come from the configuration."""
    params, ranks = optimiser.param_groups[0]["params"], ranks or Ranks()
    return {
        f"{i}.{k}": ranks.gathered(torch.as_tensor(v)).detach().to("cpu", copy=True).contiguous()
        for i, p in enumerate(params)
        for k, v in optimiser.state[p].items()
    }


def restore_optimiser(
    optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], ranks: Ranks | None = None
) -> None:
    """What `optimiser_tensors` returned. Of several ranks the first has the values, the others their shapes."""
    params, ranks = optimiser.param_groups[0]["params"], ranks or Ranks()
    optimiser.state.clear()
    for name, x in tensors.items():
        i, _, k = name.partition(".")
        p = params[int(i)] if int(i) < len(params) else None
        if p is None or x.shape not in (p.shape, torch.Size(())):
            raise ValueError(
                f"the optimiser's {name} of the checkpoint has the shape {tuple(x.shape)}, and the model has no such "
                "parameter: it is another model. Take the model settings back, or start a new run."
            )
        # Moments and the copy of weights below float32 are float32.
        dtype = torch.promote_types(p.dtype, torch.float32) if x.shape == p.shape else x.dtype
        if sharded(p) and x.shape == p.shape:
            optimiser.state[p][k] = torch.zeros_like(p, dtype=dtype, requires_grad=False)
            ranks.put(optimiser.state[p][k], x)
        else:
            optimiser.state[p][k] = x.to(p.device, dtype, copy=True)
