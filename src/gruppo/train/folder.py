"""The run folder: configuration, environment, metrics, episodes, curves, policy, summary. Nothing is unpickled."""

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tomli_w
import torch

import gruppo
from gruppo.data import Episode
from gruppo.stages import Method
from gruppo.stages.record import from_table, to_table
from gruppo.tasks.beside import imported_beside
from gruppo.train.config import RunConfig
from gruppo.train.depends import depends, differences
from gruppo.train.lock import NAME as LOCK
from gruppo.train.manifest import add_to_manifest, damage, matches_manifest, sha256, write_manifest, write_text
from gruppo.train.missing import refuse_missing

HERE = "@run/"  # in config.toml: code that is stored with the run
REMEDY = "Fix it, or remove it: the newest checkpoint has a copy, which is put back."


def called() -> str:
    """The command line: `gruppo`, or as this process was called where that is not on the path."""
    mine = sys.argv[0]
    return shlex.quote(mine) if Path(mine).name == "gruppo" and shutil.which("gruppo") is None else "gruppo"


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __getitem__(self, name: str) -> Path:
        return self.path / name

    @property
    def resume_command(self) -> str:
        return f"{called()} train --resume {shlex.quote(str(self.path))}"

    def reopen(self, step: int) -> None:
        """The run goes on after a step: it is not finished any more, and later episodes are of another past."""
        for name in ("manifest.json", "summary.json"):
            self[name].unlink(missing_ok=True)
        for path in self["episodes"].glob("step-*.arrow"):
            number = path.stem.removeprefix("step-")
            if number.isdecimal() and int(number) > step:
                path.unlink()

    def drop_if_empty(self) -> None:
        """Removes a folder in which nothing was started."""
        with suppress(OSError):
            if {p.name for p in self.path.iterdir()} <= {LOCK}:  # which this process holds
                self[LOCK].unlink(missing_ok=True)
                self.path.rmdir()

    # configuration and the user's code

    def write_config(self, config: RunConfig) -> None:
        """config.toml, environment.json, and a copy of every file of the user that the method uses."""
        self.path.mkdir(parents=True, exist_ok=True)
        table, code = _own_code(config)
        text = tomli_w.dumps(table)
        hashes = self._stored_code()
        for source, name in code.items():
            stored = self["code"] / name
            if Path(source) != stored.resolve():  # else: a resumed run that uses its own copy
                stored.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, stored)
                hashes[name] = {"sha256": sha256(stored), "from": source}
        hashes = {name: hashes[name] for name in code.values() if name in hashes}
        # config.toml is last: with it the folder holds a run.
        facts = environment() | {"code": hashes, "config": _hash(text), "depends": depends(config)}
        write_text(self["environment.json"], json.dumps(facts, indent=1))
        write_text(self["config.toml"], text)

    def read_config(self, trust_code: bool = False, name: str = "config.toml") -> RunConfig:
        """The configuration. Stored code is run only if it equals the file that it was copied from, or if trusted."""
        text = self._config_text(name)
        if not trust_code:
            named = re.findall(rf"{HERE}code/([^:\"]+)", text)
            self._refuse_strange_code(list(dict.fromkeys((*named, *self._stored_code()))) if named else ())
        table = self._config_table(text.replace(HERE, f"{self.path.resolve().as_posix()}/"), name)
        try:
            found = from_table(table)
            usable = isinstance(found, RunConfig) and isinstance(found.method, Method)
        except ValueError as error:
            raise ValueError(f"{self[name]}: {error}") from None
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"{self[name]} cannot be used ({error}). {REMEDY}") from None
        if not usable:
            raise ValueError(f"{self[name]} holds no configuration of a run. {REMEDY}")
        return found

    def config_table(self) -> dict[str, Any]:
        """config.toml as it stands there: no code is run."""
        return self._config_table(self._config_text())

    def _config_text(self, name: str = "config.toml") -> str:
        path = self[name]
        if not path.is_file():
            refuse_missing(self.path)
            raise ValueError(
                f"{self.path} is not a run folder: it has no config.toml. Name a folder that gruppo train made."
            )
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text any more: {error}. {REMEDY}") from None

    def _config_table(self, text: str, name: str = "config.toml") -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{self[name]} is not TOML any more: {error}. {REMEDY}") from None

    def record(self) -> bytes:
        """What a checkpoint keeps of this: the configuration and what the run depends on."""
        facts = self._environment()
        kept = {"config": self._config_text(), "depends": facts.get("depends", {}), "code": facts.get("code", {})}
        return json.dumps(kept).encode()

    def fix(self, record: bytes | None) -> str:
        """Puts back a config.toml or environment.json that is gone, from a checkpoint; says what was done."""
        if record is None:
            return ""
        known, fixed = json.loads(record), []
        if not self["environment.json"].is_file():
            facts = environment() | {"code": known["code"], "config": _hash(known["config"])}
            write_text(self["environment.json"], json.dumps(facts | {"depends": known["depends"]}, indent=1))
            fixed.append("environment.json")
        if not self["config.toml"].is_file():
            write_text(self["config.toml"], known["config"])
            fixed.append("config.toml")
        if not fixed:
            return ""
        return f"{' and '.join(fixed)} of {self.path} was missing, and was put back from the checkpoint"

    def changes_to(self, config: RunConfig, record: bytes | None = None) -> list[str]:
        """What differs between this run and a configuration, and in what it depends on; one line each.

        If config.toml is not as gruppo wrote it, the configuration in `record`, of the newest checkpoint, counts. The
        number of threads is not compared: `Run.restore` looks at what the process has. Code is compared, not run. A
        setting of the run that an older version did not have is no change while it has its default.
        """
        facts, text = self._environment(), self._config_text()
        edited = facts.get("config", _hash(text)) != _hash(text)
        wanted, code = _own_code(config)
        before = self._config_table(json.loads(record)["config"] if record and edited else text)
        changes = table_changes(
            _without(before, "threads", "show"),
            _without(wanted, "threads", "show"),
            _without(to_table(RunConfig()), "method"),
        )
        if edited and not record:
            changes.append("config.toml: edited since the run was started")
        for source, name in code.items():
            known = facts.get("code", {}).get(name)
            if known is not None and sha256(Path(source)) != known["sha256"]:
                changes.append(f"{name}: the file has changed")
        return changes + (differences(facts["depends"], depends(config), changes) if "depends" in facts else [])

    def where_files_are(self) -> str:
        """For a run that depends on a file that is not there: a relative path depends on where gruppo is started."""
        begun = self._environment().get("started_in", "")
        here = os.getcwd()
        if not begun or Path(begun).resolve() == Path(here).resolve():
            return ""
        return f"\nIt was started in {begun}, and files are looked for from {here}: start it there."

    def _refuse_strange_code(self, names: Sequence[str]) -> None:
        known = self._stored_code()
        for name in names:
            origin = Path(known[name]["from"] if name in known else self.path).resolve()
            inside = origin.is_relative_to(self.path.resolve())  # then the origin is not known
            stored = self["code"] / name
            if inside or not origin.is_file() or not stored.is_file() or sha256(origin) != sha256(stored):
                raise ValueError(
                    f"the run brings its own code, code/{name}, and {name} where it came from is gone or has changed: "
                    "running it would run code that you may not have seen. Read it, then add --trust-code."
                )

    def _stored_code(self) -> dict[str, dict[str, str]]:
        """{name: hash and origin} of the files under code/."""
        return self._environment().get("code", {})

    def _environment(self) -> dict[str, Any]:
        path = self["environment.json"]
        found = read_json(path, REMEDY) if path.is_file() else {}
        if not isinstance(found.get("code", {}), dict) or not isinstance(found.get("depends", {}), dict):
            raise ValueError(f"{path} is damaged: code and depends are no tables. {REMEDY}")
        return found

    # metrics and episodes

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        with self["metrics.jsonl"].open("a") as f:
            f.write(json.dumps(finite(row)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The rows; a ValueError names the line that is no row."""
        path, rows = self["metrics.jsonl"], list[dict[str, Any]]()
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        for number, line in enumerate(lines, 1):
            if number == len(lines):  # empty, or half of a row of a run that was killed or is writing
                break
            try:
                row = json.loads(line)
                rows.append({"step": int(row["step"]), **row})
            except (ValueError, TypeError, KeyError, OverflowError):
                raise ValueError(
                    f"{path}, line {number} is no row of metrics: the file is damaged. Put it back from a copy; the "
                    "newest checkpoint has one, up to its step."
                ) from None
        return rows

    def set_metrics(self, content: bytes) -> None:
        """As they were at a checkpoint: the steps after it are done again."""
        write_text(self["metrics.jsonl"], content.decode())

    def write_episodes(
        self, step: int, episodes: Sequence[Episode], beside: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        from gruppo.data.store import save_episodes  # slow to import, and optional

        folder, name = self["episodes"], f"step-{step:06d}.arrow"
        folder.mkdir(exist_ok=True)
        save_episodes(folder / name, episodes, beside)
        add_to_manifest(folder, name)

    def read_episodes(self, step: int) -> list[Episode]:
        """The episodes of a step; a ValueError if the file is not as it was written."""
        return self.read_with_beside(step)[0]

    def episode_steps(self) -> list[int]:
        """The steps whose episodes are kept."""
        found = (re.fullmatch(r"step-(\d{6,})\.arrow", p.name) for p in self["episodes"].glob("step-*.arrow"))
        return sorted(int(m[1]) for m in found if m)

    def read_with_beside(self, step: int) -> tuple[list[Episode], dict[str, list[Any]]]:
        """The episodes of a step and the columns beside them: prompt, reference, advantage."""
        from gruppo.data.store import load_with_beside

        folder, name = self["episodes"], f"step-{step:06d}.arrow"
        if not (folder / name).is_file():
            kept = ", ".join(map(str, self.episode_steps())) or "no step: set save.episodes_every"
            raise ValueError(f"{self.path} has no episodes of step {step}. It has those of {kept}.")
        if not matches_manifest(folder, name):
            raise ValueError(f"{folder / name} is not as it was written, so its episodes cannot be trusted.")
        return load_with_beside(folder / name)

    # the end

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The last file but the manifest: with it the run is finished."""
        write_text(self["summary.json"], json.dumps(finite(summary), indent=1) + "\n")
        files = [self[name] for name in ("config.toml", "metrics.jsonl", "summary.json", "curves.png")]
        files += [p for name in ("policy", "adapter", "writers", "best") for p in self[name].rglob("*") if p.is_file()]
        write_manifest(self.path, [p.relative_to(self.path).as_posix() for p in files if p.is_file()])

    def damage(self) -> str:
        """What is wrong with what a finished run left; "" if nothing is."""
        return damage(self.path)

    def draw_curves(self, title: str) -> Path | None:
        """curves.png from metrics.jsonl."""
        from gruppo.train.curves import draw

        return draw(self.metrics(), self["curves.png"], title)


def _own_code(config: RunConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """The table of a configuration, and {file: its name under code/} of the user's code that the method needs."""
    code: dict[str, str] = {}
    table = _with_own_code(to_table(config), code)
    for source in list(code):
        for name, path in imported_beside(Path(source)).items():
            other = next((s for s, n in code.items() if n == name and s != str(path)), None)
            if other is not None:
                raise ValueError(
                    f"the method uses {path} and {other}, which would be one file of the run. Rename one of them."
                )
            code.setdefault(str(path), name)
    return table, code


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


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_json(path: Path, remedy: str = "Fix it, or resume the run.") -> dict[str, Any]:
    """A table from a file of a run; a ValueError names the file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}). {remedy}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds {type(found).__name__} and no table. {remedy}")
    return found


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
        "started_in": os.getcwd(),
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


def table_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], plain: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """One line for each leaf that differs; what `before` does not have is as in `plain`."""
    flat_a, flat_b, usual = dict(flat(before)), dict(flat(after)), dict(flat(plain))
    flat_a |= {k: v for k, v in usual.items() if k not in flat_a and flat_b.get(k) == v}
    keys = dict.fromkeys((*flat_a, *flat_b))
    return [
        f"{k}: {flat_a.get(k, 'absent')} → {flat_b.get(k, 'absent')}" for k in keys if flat_a.get(k) != flat_b.get(k)
    ]


def _without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in table.items() if k not in names}


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
