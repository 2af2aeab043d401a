"""What git says about the board: the ledger only grew, files were not edited, and rules are those of their commits."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gruppo.lab.claims import ledger
from gruppo.lab.claims.claim import parsed

LEDGER = f"claims/{ledger.NAME}"


def why_none(root: Path) -> str:
    """Why there is no history to look at; "" if there is one."""
    words = ["git", "rev-parse", "--is-shallow-repository", "--show-prefix"]
    shown = subprocess.run(words, cwd=root, capture_output=True, text=True)
    shallow, _, prefix = shown.stdout.partition("\n")
    if shown.returncode or prefix.strip():
        return "no git repository of its own: the history of the board cannot be looked at"
    return "a shallow clone, which has no history of the board" if shallow == "true" else ""


def objects(root: Path, names: Sequence[str]) -> dict[str, tuple[str, bytes]]:
    """{name: (its hash, its bytes)} of what git has, in one call."""
    asked = "".join(f"{name}\n" for name in names).encode()
    out = subprocess.run(["git", "cat-file", "--batch"], cwd=root, input=asked, capture_output=True, check=True).stdout
    found: dict[str, tuple[str, bytes]] = {}
    at = 0
    for name in names:
        end = out.index(b"\n", at)
        words = out[at:end].decode().split()
        at = end + 1
        if words[-1] != "missing":
            size = int(words[2])
            found[name] = words[0], out[at : at + size]
            at += size + 1
    return found


def not_grown(root: Path) -> Iterator[str]:
    """Commits (the working tree, too) whose ledger is not that of a parent with further lines, or not a chain; a merge
    has the records of every parent."""
    listed = subprocess.run(["git", "rev-list", "--parents", "HEAD"], cwd=root, capture_output=True, text=True)
    parents = {words[0]: words[1:] for words in map(str.split, listed.stdout.splitlines())}
    names = {commit: f"{commit}:{LEDGER}" for commit in parents}
    asked = "".join(f"{name}\n" for name in names.values())
    checked = subprocess.run(
        ["git", "cat-file", "--batch-check=%(objectname)"], cwd=root, input=asked, capture_output=True, text=True
    )
    ids = {c: "" if "missing" in said else said for c, said in zip(names, checked.stdout.splitlines(), strict=True)}
    blobs = {i: data for i, (_, data) in objects(root, sorted({i for i in ids.values() if i})).items()} | {"": b""}
    here = root / LEDGER
    states = {c: blobs[i] for c, i in ids.items()} | {"the working tree": here.read_bytes() if here.is_file() else b""}
    parents["the working tree"] = list(parents)[:1]
    for commit, before in parents.items():
        told = {states[p] for p in before if states[p]}
        if told - {states[commit]}:
            yield from (f"{commit[:16]}: {said}" for said in _shrunk(states[commit], told))


def _shrunk(now: bytes, before: set[bytes]) -> Iterator[str]:
    try:
        every = [_kept(line) for line in ledger.verified(now, LEDGER)]
        if not any(now.startswith(b) for b in before):
            yield f"{LEDGER} is not that of a parent with further lines, so lines were changed or taken out"
        for other in before:
            rest = iter(every)
            if lost := [r for r in map(_kept, ledger.verified(other, LEDGER)) if r not in rest]:
                yield f"{LEDGER} has lost lines of a parent: {lost[0]}"
    except ValueError as error:
        yield str(error)


def _kept(line: ledger.Line) -> tuple[str, str, str, str]:
    return line.what, line.name, line.sha256, line.how


def edited(root: Path) -> Iterator[str]:
    """Results that a commit changed or deleted, and pilots in which one changed what was there."""
    folders = [f"claims/{sub}" for sub in ledger.FOLDERS.values()]
    words = ["git", "log", "-c", "--raw", "--no-abbrev", "--no-renames", "--format=%H", "HEAD", "--", *folders]
    commit, changes = "", list[tuple[str, str, str, str]]()
    for line in subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines():
        said, _, path = line.partition("\t")
        if not said.startswith(":"):
            commit = said[:16] or commit
        elif not said.split()[-1].strip("A"):  # new; also in a merge
            continue
        elif said.startswith("::"):  # a merge, with a file as no parent has it
            yield f"{commit}: {path} was changed in a merge"
        else:
            changes.append((commit, path, said.split()[2], said.split()[3]))
    blobs = objects(root, sorted({i for *_, old, new in changes for i in (old, new) if int(i, 16)}))
    for commit, path, old, new in changes:
        if new not in blobs:
            yield f"{commit}: {path} was deleted"
        elif path.startswith("claims/results"):
            yield f"{commit}: {path} was changed"
        elif (before := json.loads(blobs[old][1])["pilots"]) != json.loads(blobs[new][1])["pilots"][: len(before)]:
            yield f"{commit}: {path} was changed, and not only extended"


def other_rules(root: Path, results: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Results whose rule is not that of claims/NAME.toml at the commit that they record, or whose commit is none of
    this history."""
    ours = subprocess.run(["git", "rev-list", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    known = set(ours.stdout.split())
    names = {n: f"{found['commit']}:claims/{n}.toml" for n, found in results.items()}
    files = objects(root, list(names.values()))
    for n, found in results.items():
        if found["commit"] not in known:
            yield f"{n}: its commit {found['commit'][:16]} is not in this history"
        elif names[n] not in files:
            yield f"{n}: its commit {found['commit'][:16]} has no claims/{n}.toml"
        elif (rule := parsed(n, files[names[n]][1].decode()).rule) != found["rule"]:
            yield f"{n}: its commit {found['commit'][:16]} has the rule {rule}, and it says {found['rule']}"
