"""`gruppo lab`: the exact laboratory."""

import argparse
import sys
from pathlib import Path
from typing import Any

from gruppo.cli.commands import print_json
from gruppo.lab.exact.figures import lab as exact
from gruppo.lab.exact.figures import table_of
from gruppo.lab.exact.show import plot, text
from gruppo.lab.exact.world import ExactWorld
from gruppo.methods import all_methods


def lab(args: argparse.Namespace) -> int:
    if bool(args.methods) == args.all:
        raise ValueError("gruppo lab wants the names of methods, or --all. `gruppo methods` lists them.")
    found = list(all_methods().values()) if args.all else [entrant(text) for text in args.methods]
    if args.train is not None:
        from gruppo.lab.tabular.command import train

        _refuse_beside_train(args)
        return train(found, args.train, args.json)
    if bool(args.answers) != bool(args.right):
        raise ValueError("--answers and --right go together: which answers there are, and which are right. Give both.")
    given = {"rates": rates(args.rates), "answers": words(args.answers), "right": words(args.right)}
    world = ExactWorld(seed=args.seed, **{k: v for k, v in given.items() if v})
    picture = Path(args.plot) if args.plot else None
    if picture is not None and picture.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot {picture}: nothing was run. Give a name that ends in .png, .svg or .pdf.")
    with Progress(len(found), quiet=args.json) as progress:
        result = exact(
            found, world, prompts=args.prompts, samples=args.samples, steps=args.steps, size=args.size,
            off_policy=args.off_policy, critic=args.critic, warm=args.warm, seed=args.seed, tick=progress.tick,
        )  # fmt: skip
    if args.json:
        print_json(table_of(result))
    else:
        print(text(result))
    if picture is not None:
        plot(result, picture)
        if not args.json:
            print(f"\npicture: {picture}")
    return 0


def _refuse_beside_train(args: argparse.Namespace) -> None:
    """The flags describe the world of the laboratory, which is not trained in; they would have no effect."""
    from gruppo.cli import arguments

    usual = vars(arguments(["lab", "--all"]))
    more = [k for k, v in vars(args).items() if v != usual[k] and k not in ("methods", "all", "train", "json", "typed")]
    if more:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in more)
        raise ValueError(
            f"{flags} beside --train: it would have no effect, so nothing was trained. Settings of the training are "
            'written inside: --train "steps=500 seeds=20 samples=4".'
        )


def entrant(text: str) -> Any:
    """A method by name or file, and settings of its own; its row in the table is named after both."""
    from dataclasses import replace

    from gruppo.cli import overrides
    from gruppo.methods import method
    from gruppo.train.config import RunConfig

    name, *settings = text.split() or [""]
    found = method(name)
    if not settings:
        return found
    strange = [s for s in settings if not s.startswith("method.")]
    if strange:
        raise ValueError(f"{text!r}: {strange[0]} is no setting of the method, so it would have no effect here.")
    changed = overrides.apply(replace(RunConfig(), method=found), settings).method
    short = " ".join(s.removeprefix("method.") for s in settings)
    return replace(changed, name=f"{found.name} {short}")


def words(text: str | None) -> tuple[str, ...]:
    return tuple("" if a == "." else a for a in text.split(",")) if text else ()


def rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(x) for x in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--rates {text}: these are not numbers. Write them with commas: 0.1,0.3,0.5.") from None


class Progress:
    """The current method, on stderr: one changing line on a terminal, else one line per method."""

    def __init__(self, methods: int, quiet: bool) -> None:
        self.methods, self.quiet, self.live = methods, quiet, sys.stderr.isatty()
        self.name, self.count, self.ticks = "", 0, 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live and not self.quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def tick(self, name: str) -> None:
        """Called every 16 draws."""
        new = name != self.name
        self.name, self.count, self.ticks = name, self.count + new, 0 if new else self.ticks + 16
        if self.quiet or not (new or self.live):
            return
        where = f"{self.count} of {self.methods}: {name}"
        if self.live:
            print(f"\r\033[K{where}, {self.ticks} draws", end="", file=sys.stderr, flush=True)
        else:
            print(where, file=sys.stderr, flush=True)
