"""`gruppo episodes RUN`: what a policy wrote while it was trained, and what it got for it."""

import argparse
from pathlib import Path

from gruppo.train.episodes import (
    ENDINGS,
    Filter,
    Row,
    by_reward,
    episode_rows,
    export,
    in_words,
    json_line,
    stored_steps,
)
from gruppo.train.folder import RunFolder

SHOWN = 10  # as text, unless --limit says another number


def episodes(args: argparse.Namespace) -> int:
    out = Path(args.out) if args.out else None
    if out and out.suffix not in ENDINGS:
        raise ValueError(f"--out {out}: the ending says how to write it. Use {' or '.join(ENDINGS)}.")
    for name in ("limit", "worst", "best"):
        if (getattr(args, name) or 0) < 0:
            raise ValueError(f"--{name} {getattr(args, name)}: there is no such number of episodes. Use 1 or more.")
    run = RunFolder(Path(args.run))
    wanted = Filter(args.status, args.task, args.contains, args.min_reward, args.max_reward)
    kept = stored_steps(run)
    if args.all and args.step is not None:
        raise ValueError(f"--all and --step {args.step}: one asks for all steps, the other for one. Leave one out.")
    steps = kept if args.all else [args.step] if args.step is not None else kept[-1:]
    rows = episode_rows(run.path, steps)
    found = chosen([row for row in rows if wanted(row)], args)
    if out:
        export(found, out)
        print(f"{len(found)} of {len(rows)} episodes written to {out}")
    elif args.json:
        for row in found:
            print(json_line(row))
    else:
        print(as_text(found, len(rows), args, kept, steps))
    return 0


def chosen(rows: list[Row], args: argparse.Namespace) -> list[Row]:
    """In order of rewards if that was asked for, and no more than wanted."""
    for count, best in ((args.best, True), (args.worst, False)):
        if count is not None:
            rows = by_reward(rows, best)[:count]
    return rows[: args.limit or None]


def as_text(found: list[Row], total: int, args: argparse.Namespace, kept: list[int], steps: list[int]) -> str:
    asked = args.limit is not None or args.best is not None or args.worst is not None
    shown = found if asked else found[:SHOWN]
    of = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"
    others = [s for s in kept if s not in steps]
    last = f"{len(shown)} of {len(found)} episodes" if len(shown) < len(found) else f"episodes shown: {len(shown)}"
    last += f"; stored of {of}: {total}"
    last += "" if total else " (selection kept none, or no group was complete: see drawn_groups in metrics.jsonl)"
    last += "; --limit 0 shows all, --out FILE.jsonl or FILE.parquet writes them" if len(shown) < len(found) else ""
    if others:
        last += f". Other steps: {', '.join(map(str, others[:20]))}{' …' if len(others) > 20 else ''} (--step N, --all)"
    return "\n\n".join([*map(in_words, shown), last])
