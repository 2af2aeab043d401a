"""The run folder: configuration, environment, metrics, episodes, curves, policy, summary. Nothing is unpickled."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

import gruppo
from gruppo.data import Episode
from gruppo.stages.record import from_table, to_table
from gruppo.train.config import RunConfig

HERE = "@run/"  # in config.toml: code that is stored with the run


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, name: str) -> Path:
        return self.path / name

    def drop_if_empty(self) -> None:
        with suppress(OSError):
            self.path.rmdir()

    # configuration and the user's code

    def write_config(self, config: RunConfig) -> None:
        """config.toml, environment.json, and a copy of every file of the user that the method uses."""
        self.path.mkdir(parents=True, exist_ok=True)
        table, code = to_table(config), dict[str, str]()
        text = tomli_w.dumps(_with_own_code(table, code))
        hashes = self._stored_code()
        for source, name in code.items():
            stored = self["code"] / name
            if Path(source) != stored.resolve():  # else: a resumed run that uses its own copy
                stored.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, stored)
                hashes[name] = {"sha256": _sha(stored), "from": source}
        hashes = {name: hashes[name] for name in code.values() if name in hashes}
        self["config.toml"].write_text(text)
        self["environment.json"].write_text(json.dumps(environment() | {"code": hashes}, indent=1))

    def read_config(self, trust_code: bool = False, name: str = "config.toml") -> RunConfig:
        """The configuration. Stored code is run only if it equals the file that it was copied from, or if trusted."""
        path = self[name]
        if not path.is_file():
            raise ValueError(
                f"{self.path} is no run folder: it has no config.toml. Name a folder that gruppo train made."
            )
        text = path.read_text()
        if not trust_code:
            self._refuse_strange_code(re.findall(rf"{HERE}code/([^:\"]+)", text))
        try:
            table = tomllib.loads(text.replace(HERE, f"{self.path.resolve().as_posix()}/"))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path} is no TOML any more: {error}. Mend that line and try again.") from None
        return from_table(table)

    def changes_to(self, config: RunConfig) -> list[str]:
        """What differs between this run and a configuration, one line each; the user's code is compared, not run."""
        code: dict[str, str] = {}
        wanted = _with_own_code(to_table(config), code)
        changes = table_changes(tomllib.loads(self["config.toml"].read_text()), wanted)
        known = self._stored_code()
        changed = [
            name for source, name in code.items() if name in known and _sha(Path(source)) != known[name]["sha256"]
        ]
        return changes + [f"{name}: the file has changed" for name in changed]

    def _refuse_strange_code(self, names: Sequence[str]) -> None:
        known = self._stored_code()
        for name in names:
            origin = Path(known[name]["from"] if name in known else self.path).resolve()
            inside = origin.is_relative_to(self.path.resolve())  # then the origin is not known
            if inside or not origin.is_file() or _sha(origin) != _sha(self["code"] / name):
                raise ValueError(
                    f"the run brings its own code, code/{name}, and {name} where it came from is gone or has changed: "
                    "running it would run code that you may not have seen. Read it, then add --trust-code."
                )

    def _stored_code(self) -> dict[str, dict[str, str]]:
        """{name: hash and origin} of the files under code/."""
        path = self["environment.json"]
        return json.loads(path.read_text())["code"] if path.is_file() else {}

    # metrics

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        with self["metrics.jsonl"].open("a") as f:
            f.write(json.dumps(finite(row)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        path = self["metrics.jsonl"]
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def cut_metrics(self, step: int) -> None:
        """Remove rows after a checkpoint, since these steps are done again, and a half-written last row."""
        path = self["metrics.jsonl"]
        rows = path.read_text().splitlines(keepends=True) if path.exists() else []
        kept = [r for r in rows if r.endswith("\n") and json.loads(r)["step"] <= step]
        draft = path.with_suffix(".draft")
        draft.write_text("".join(kept))
        os.replace(draft, path)

    def write_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        from gruppo.data.store import save_episodes  # slow to import, and optional

        self["episodes"].mkdir(exist_ok=True)
        save_episodes(self["episodes"] / f"step-{step:06d}.arrow", episodes)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        draft = self["summary.draft"]
        draft.write_text(json.dumps(finite(summary), indent=1) + "\n")
        os.replace(draft, self["summary.json"])

    def draw_curves(self, title: str) -> Path | None:
        """curves.png from metrics.jsonl."""
        rows = [r for r in self.metrics() if "reward" in r]
        if not rows:
            return None
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(2, 3, figsize=(12, 6), constrained_layout=True)
        wanted = (
            ("accuracy", "held_out"),
            ("reward",),
            ("length",),
            ("entropy",),
            ("grad_norm",),
            ("dead_groups", "clip_fraction"),
        )
        for axis, names in zip(axes.flat, wanted, strict=True):
            for name in names:
                points = [(r["step"], r[name]) for r in self.metrics() if r.get(name) is not None]
                if points:
                    axis.plot(*np.array(points, float).T, marker="o" if name == "held_out" else None, label=name)
            axis.set_xlabel("step")
            if axis.lines:
                axis.legend(frameon=False)
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title)
        figure.savefig(self["curves.png"], dpi=110)
        plt.close(figure)
        return self["curves.png"]


def _with_own_code(table: Any, code: dict[str, str]) -> Any:
    """The table with kinds of a user's file pointing into the run folder; `code` collects the files."""
    if isinstance(table, list):
        return [_with_own_code(v, code) for v in table]
    if not isinstance(table, Mapping):
        return table
    out = {k: _with_own_code(v, code) for k, v in table.items()}
    where = str(out.get("kind", "")).rpartition("@")[0].rpartition(":")[0]
    if where.endswith(".py"):
        name = code.setdefault(where, _free_name(Path(where), set(code.values())))
        out["kind"] = str(out["kind"]).replace(where, f"{HERE}code/{name}")
    return out


def _free_name(path: Path, taken: set[str]) -> str:
    """The name of the file; a second file of that name gets a number."""
    names = (path.name, *(f"{path.stem}_{i}{path.suffix}" for i in range(2, 100)))
    return next(n for n in names if n not in taken)


def finite(x: Any) -> Any:
    """For JSON, which has neither NaN nor infinity: they become null."""
    if isinstance(x, Mapping):
        return {k: finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [finite(v) for v in x]
    return None if isinstance(x, float) and not np.isfinite(x) else x


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment() -> dict[str, Any]:
    """Versions, threads, machine and the commit of the code."""
    return {
        "gruppo": gruppo.__version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _commit() -> str:
    here = Path(gruppo.__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5)
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "") if head.returncode == 0 else "unknown"


def config_changes(before: RunConfig, after: RunConfig) -> list[str]:
    """What differs between two configurations, one line each."""
    return table_changes(to_table(before), to_table(after))


def table_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    flat_a, flat_b = dict(flat(before)), dict(flat(after))
    keys = dict.fromkeys((*flat_a, *flat_b))
    return [
        f"{k}: {flat_a.get(k, 'absent')} → {flat_b.get(k, 'absent')}" for k in keys if flat_a.get(k) != flat_b.get(k)
    ]


def flat(table: Any, at: str = "") -> Any:
    """(path, value) of every leaf."""
    if isinstance(table, Mapping):
        for k, v in table.items():
            yield from flat(v, f"{at}.{k}" if at else str(k))
    elif isinstance(table, list):
        for i, v in enumerate(table):
            yield from flat(v, f"{at}[{i}]")
    else:
        yield at, table
