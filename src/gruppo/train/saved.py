"""Where the writers of a run are saved: `policy`, and `writers/ROLE/policy` for every other role that writes.

Of a run that has not ended they are in its checkpoints alone.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gruppo.policies import load_learned, load_policy, save_policy
from gruppo.stages.record import from_table
from gruppo.train.checkpoint import load_checkpoint

OTHERS = "writers"


def save_writers(folder: Path, models: Mapping[str, Any], writers: tuple[str, ...], tokenizer: Any) -> None:
    """One folder for transformers for each role that writes; what is there already is replaced."""
    shutil.rmtree(folder / "policy", ignore_errors=True)  # of an end that was cut short, or damaged
    shutil.rmtree(folder / OTHERS, ignore_errors=True)
    for role in writers:
        save_policy(place(folder, role), models[role], tokenizer)


def place(folder: Path, role: str) -> Path:
    """The folder of a role that writes, in the folder of a run or in its `best`."""
    return folder / "policy" if role == "policy" else folder / OTHERS / role / "policy"


def others_in(folder: Path) -> dict[str, Path]:
    """{role: folder} of the roles that wrote beside the policy of a run."""
    return {path.parent.name: path for path in sorted((folder / OTHERS).glob("*/policy"))}


def agents_of(table: Mapping[str, Any]) -> dict[str, str]:
    """{agent: role} of the agents that another role than the policy writes, by the table of a run."""
    said = table.get("method", {}).get("writers", {})
    if not isinstance(said, Mapping):
        return {}
    return {str(agent): str(role) for agent, role in said.items() if role != "policy"}


def writers_in(checkpoint: Path, table: Mapping[str, Any], dtype: Any, device: Any) -> dict[str, Any]:
    """{role: model} of the roles that write, as a checkpoint of a run with this table has them."""
    weights, model = load_checkpoint(checkpoint).weights, from_table(table["model"], "model.")
    cast = table["method"]["cast"]
    out: dict[str, Any] = {}
    for role in ("policy", *dict.fromkeys(agents_of(table).values())):
        start = role
        while start in cast and start != "policy":  # a copy of another role
            start = cast[start]["start"]
        name, lora = (model.name, model.lora) if start == "policy" else (start, None)
        out[role] = load_policy(name, dtype, device, table["seed"], lora)
        load_learned(out[role], weights[role])
    return out


def writers_beside(policy: Path, table: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Path]]:
    """({agent: role}, {role: folder}) of the roles that wrote beside a saved policy, by the table of its run."""
    agents = agents_of(table)
    if policy.name != "policy" or policy.parent.parent.name == OTHERS:  # an adapter, or one of the others
        return {}, {}
    folders = {role: place(policy.parent, role) for role in agents.values()}
    for role, folder in folders.items():
        if not folder.is_dir():
            raise ValueError(
                f"{policy} was trained beside the role {role!r}, and {folder} is gone, so the agents that it wrote "
                "cannot be played. Put it back, or copy the policy to a folder of its own to let it play all of them."
            )
    return agents, folders
