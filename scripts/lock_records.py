"""Write src/gruppo/methods/records.toml: the version and the hash of every built-in method.

And tests/registry/occupants.toml: the defaults of every occupant, for people put them together by name, and what it
declares of itself (`is`): what it reads and writes, what it requires and refuses.

    python scripts/lock_records.py            after a new method, or after a version bump
    python scripts/lock_records.py --check    say what differs, write nothing

A method whose hash changed computes something else, or is described by other fields. Its version must go up, so that
`grpo@1` in someone's run file is refused instead of computing other numbers: the script does not overwrite a changed
hash under the same version.
"""

import argparse
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import tomli_w

from gruppo.cli.overrides import occupants
from gruppo.methods import built_in
from gruppo.stages import ROOMS, Ema, Every, Method, Occupant, Role, Sampling
from gruppo.stages.occupant import NoteColumn
from gruppo.stages.record import record_hash, to_table
from gruppo.stages.requires import Requirement

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "src" / "gruppo" / "methods" / "records.toml"
OCCUPANTS = ROOT / "tests" / "registry" / "occupants.toml"
DEFAULTS = (
    "# The defaults of every occupant, and of roles and sampling: who names one gets these. Written by\n"
    "# scripts/lock_records.py; do not edit. A line that changes here changes what people compute: say it in\n"
    "# CHANGELOG.md.\n\n"
)
HEAD = "# Version and hash of every built-in method. Written by scripts/lock_records.py; do not edit.\n\n"

Records = dict[str, dict[str, Any]]


def read(path: Path = RECORDS) -> Records:
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def resolved(methods: Mapping[str, Method]) -> Records:
    return {name: {"version": m.version, "hash": record_hash(m)} for name, m in sorted(methods.items())}


def problems(old: Records, new: Records) -> list[str]:
    """Changes that may not be written: one sentence each."""
    out: list[str] = []
    for name, now in new.items():
        before = old.get(name, now)
        if now["version"] < before["version"]:
            out.append(
                f"{name}: version {now['version']} comes after version {before['version']}, so a run file could name "
                f"two methods by one version. Set version={before['version'] + 1} in methods/{name}.py."
            )
        elif now["version"] == before["version"] and now["hash"] != before["hash"]:
            out.append(
                f"{name}@{now['version']}: its record changed ({before['hash']} → {now['hash']}), its version did not, "
                f"so {name}@{now['version']} would mean two things. Set version={now['version'] + 1} in "
                f"methods/{name}.py and run scripts/lock_records.py; if the change was not meant, look at the methods "
                "it is made from."
            )
    return out


def differences(old: Records, new: Records) -> list[str]:
    """What the file does not say yet: one sentence each."""
    out = [f"{name}: not in records.toml. Run scripts/lock_records.py." for name in new if name not in old]
    out += [
        f"{name}: in records.toml, but no longer a method. Run scripts/lock_records.py."
        for name in old
        if name not in new
    ]
    for name, now in new.items():
        if name in old and old[name]["version"] < now["version"]:
            out.append(
                f"{name}@{now['version']}: records.toml has version {old[name]['version']}. "
                "Run scripts/lock_records.py."
            )
    return out


def defaults() -> Records:
    """{room.kind: {field: value}} of everything that can be named, as it is when nothing is said about it."""
    for room in ROOMS:
        import_module(f"gruppo.stages.{room}")  # what nobody has imported yet cannot be found
    named = {f"{room}.{name}": cls() for room in ROOMS for name, cls in sorted(occupants(room).items())}
    named |= {"cast.role": Role(), "cast.every": Every(), "cast.ema": Ema(), "sampling": Sampling()}
    tables = {name: to_table(o) | {"is": declared(type(o))} for name, o in named.items()}
    return {name: {k: v for k, v in t.items() if k != "kind" and (k, v) != ("is", {})} for name, t in tables.items()}


def declared(kind: type) -> dict[str, Any]:
    """Its class attributes where they are not an occupant's usual ones."""
    mine = [k for k in dir(kind) if not k.startswith("_") and k not in _fields(kind)]
    mine = [k for k in mine if k != "pauses" or k in vars(kind)]  # which counts in its own class alone
    values = {k: getattr(kind, k) for k in mine if issubclass(kind, Occupant)}
    return {
        k: _plain(v)
        for k, v in values.items()
        if not callable(v) and type(v) is not property and v != getattr(Occupant, k, None)
    }


def _fields(kind: type) -> list[str]:
    return [f.name for f in fields(kind)]  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, NoteColumn):
        return f"{value} among {value.among}" if value.among else str(value)
    return _required(value) if isinstance(value, Requirement) else value


def _required(r: Any) -> str:
    """A requirement with its fields, but for messages and functions: `Samples(least=2)`."""
    told = {f.name: getattr(r, f.name) for f in fields(r) if f.name != "why"}
    return f"{type(r).__name__}({', '.join(f'{k}={v!r}' for k, v in told.items() if not callable(v))})"


def write_defaults(check: bool) -> int:
    old, new = read(OCCUPANTS), defaults()
    if not check:
        OCCUPANTS.write_text(DEFAULTS + tomli_w.dumps(new), encoding="utf-8")
    elif old != new:
        changed = [name for name in (*old, *new) if old.get(name) != new.get(name)]
        print(f"{OCCUPANTS}: {', '.join(dict.fromkeys(changed))} differ. Run scripts/lock_records.py.", file=sys.stderr)
        return 1
    print(f"{OCCUPANTS}: {len(new)} occupants" + (", changed" if old != new else ", nothing changed"))
    return 0


def main(argv: list[str] | None = None, methods: Mapping[str, Method] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--check", action="store_true", help="say what differs, write nothing")
    args = parser.parse_args(argv)
    old, new = read(args.records), resolved(built_in() if methods is None else methods)
    wrong, missing = problems(old, new), differences(old, new)
    if wrong or (args.check and missing):
        print("\n".join([*wrong, *(missing if args.check else [])]), file=sys.stderr)
        return 1
    args.records.write_text(HEAD + tomli_w.dumps(new), encoding="utf-8") if not args.check else None
    print(f"{args.records}: {len(new)} methods" + (f", {len(missing)} changed" if missing else ", nothing changed"))
    return 0


if __name__ == "__main__":
    sys.exit(main() or write_defaults("--check" in sys.argv))
