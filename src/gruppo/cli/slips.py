"""A mistyped command, and settings written as flags, in words that help more than those of argparse."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

from gruppo.cli.elsewhere import ELSEWHERE

TAKE_SETTINGS = ("train", "eval", "doctor", "compare", "serve-agent")


def refuse_slips(argv: Sequence[str], elsewhere: Iterable[str], parser: Callable[[], argparse.ArgumentParser]) -> None:
    commands = ("train", "methods", "doctor", *elsewhere)
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        near = get_close_matches(argv[0], commands, 1)
        said = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"there is no command {argv[0]!r}.{said} Commands: {', '.join(commands)}.")
    if not argv or argv[0] not in TAKE_SETTINGS:
        return
    known: list[str] = []
    for i, flag in enumerate(argv[1:], 1):
        name, equals, value = flag.partition("=")
        if not flag.startswith("--") or len(name) < 3:
            continue
        known = known or flags_of(parser(), argv[0])
        if any(f.startswith(name) for f in known):  # argparse takes what a flag begins with
            continue
        follows = argv[i + 1] if i + 1 < len(argv) else ""
        value = value if equals else "VALUE" if follows.startswith("-") or "=" in follows else follows or "VALUE"
        _refuse_flag(flag, name.removeprefix("--").replace("-", "_"), value, known)


def flags_of(top: argparse.ArgumentParser, command: str) -> list[str]:
    """The long flags of a command."""
    sub = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    return [f for a in sub.choices[command]._actions for f in a.option_strings if f.startswith("--")]


def setting_like(name: str) -> str:
    """The setting that a flag means, from its name with underscores; "" if none is like it."""
    from gruppo.cli.overrides import paths  # torch is not loaded before
    from gruppo.train.config import RunConfig

    if name in ELSEWHERE:
        return ELSEWHERE[name].partition(" ")[0]
    known = list(paths(RunConfig()))
    if name in known:
        return name
    deep = [path for path in known if path.rpartition(".")[2] == name]
    near = get_close_matches(name, [*(path for path in known if "." not in path), *ELSEWHERE], n=1, cutoff=0.75)
    if deep or not near:
        return min(deep, key=lambda path: path.count("."), default="")
    return ELSEWHERE.get(near[0], near[0]).partition(" ")[0]


def _refuse_flag(flag: str, name: str, value: str, known: Sequence[str]) -> None:
    """`--steps=3` of another library: the setting that is meant, or that there is none."""
    near = get_close_matches(f"--{name.replace('_', '-')}", known, 1, cutoff=0.8)
    if path := setting_like(name) if not near else "":
        raise ValueError(f"{flag}: settings are written without dashes, so nothing was started. Write {path}={value}.")
    meant = f"Did you mean {near[0]}? " if near else ""
    raise ValueError(
        f"{flag}: there is no such flag, so nothing was started. {meant}Flags: {', '.join(known)}; settings are "
        "written without dashes, key=value (gruppo train --dry-run lists them)."
    )
