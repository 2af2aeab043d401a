"""Mutation testing: does a test fail when the code is wrong?

    make mutants                                every mutant of pieces, methods, data and stages (an hour or more)
    make mutants ARGS="pieces grpo"             of a folder, a file (data/segment.py) or a method
    make mutants ARGS="--sample 400 --seed 1"   a random sample, with its interval
    make mutants ARGS=--new                     after new tests: these alone, on those that have survived
    make mutants ARGS=report                    what is known so far, nothing is run
    make mutants ARGS=pitfalls                  one planted mistake for each pitfall (tests/mutants/planted.toml)

Ends with 1 when fewer than 94 % are killed, or when one survives that tests/mutants/survivors.toml does not explain.
It may be stopped at any time and goes on where it was: results are in .mutants/. Why mutmut's operators with a runner
of our own: docs/design/mutants.md.
"""

import argparse
import os
import random
import sys
import time
from functools import partial
from typing import Any

import explained
import planting
import report
import running
from making import PARTS, Mutant, files, mutants
from session import THOROUGH, Session, Tests


def main() -> int:
    args = arguments()
    if "pitfalls" in args.parts:
        return planting.main(args.only, args.jobs)
    parts = [p for p in args.parts if p != "report"] or list(PARTS)
    everything = [m for path in files(parts) for m in mutants(path)]
    chosen = everything
    if args.sample and args.sample < len(everything):
        chosen = random.Random(args.seed).sample(everything, args.sample)
    session, running.TESTS = Session(args.fresh), tuple(args.tests)
    if "report" not in args.parts:
        run(chosen, session, args.jobs, args.budget, args.new)
    return report.show(chosen, len(everything), session.results, args.seed)


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="make mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}, a file, a method, report or pitfalls")
    p.add_argument("--sample", type=int, default=0, help="this many mutants, drawn at random")
    p.add_argument("--seed", type=int, default=0, help="of the sample")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    p.add_argument("--budget", type=float, default=20.0, help="CPU seconds of tests in the first look at a mutant")
    p.add_argument("--new", action="store_true", help="only survivors, and only tests that are new to them")
    p.add_argument("--tests", nargs="+", default=running.TESTS, help="folders of tests to use")
    p.add_argument("--fresh", action="store_true", help="forget earlier results")
    p.add_argument("--only", type=int, nargs="*", default=[], help="these pitfalls")
    return p.parse_args()


def run(chosen: list[Mutant], session: Session, jobs: int, budget: float, new: bool) -> None:
    """First a quick look at every mutant, then a thorough one at survivors that nobody has explained.

    Who has survived a thorough look is looked at again when there are new tests, with these alone; with `new` everybody
    is, and there is no thorough look.
    """
    running.prepare()
    running.apart(partial(session.measure, print))
    tests = Tests(session.tests())
    status = {name: row["status"] for name, row in session.results.items()}
    unmet = {m.name: tests.choose(m, budget) for m in chosen if status.get(m.name, "cold") == "cold"}
    if new:
        alive = {m: session.results[m.name] for m in chosen if _alive(session, m)}
        unmet = {m.name: tests.choose(m, THOROUGH, row.get("time", 0.0)) for m, row in alive.items()}
    todo = [m for m in chosen if unmet.get(m.name) or (not new and m.name in unmet)]
    live = [m for m in todo if m.live and status.get(m.name) != "cold"]
    if live:
        choose, progress = partial(_unmet, unmet), Progress(session, len(live))
        running.apart(partial(running.live, live, choose, tests.seconds, jobs, progress))
        session.read()
    done = {m.name for m in live if session.results[m.name]["status"] != "cold"}
    cold = [m for m in todo if m.name not in done]
    look([(m, unmet[m.name]) for m in cold], tests, jobs, Progress(session, len(cold)))
    if not new:
        again = survivors(chosen, session, tests)
        print(f"{len(again)} survivors that are not explained get a second look, freshly imported, with every test")
        look(again, tests, jobs, Progress(session, len(again), thorough=True))


def _unmet(unmet: dict[str, list[str]], m: Mutant) -> list[str]:
    return unmet[m.name]


def _alive(session: Session, m: Mutant) -> bool:
    return session.results.get(m.name, {}).get("status") == "survived"


def survivors(chosen: list[Mutant], session: Session, tests: Tests) -> list[tuple[Mutant, list[str]]]:
    """With the tests that they have not met: all after a quick look, the newer ones after a thorough one."""
    _, open_ones = explained.sort([m for m in chosen if _alive(session, m)], explained.entries())
    out: list[tuple[Mutant, list[str]]] = []
    for m in open_ones:
        row = session.results[m.name]
        unmet = tests.choose(m, 2 * THOROUGH, row.get("time", 0.0) if row.get("thorough") else 0.0)
        if unmet or not row.get("thorough"):
            out.append((m, unmet))
    return out


def look(todo: list[tuple[Mutant, list[str]]], tests: Tests, jobs: int, progress: "Progress") -> None:
    work = ((m, partial(running.cold, m.file, m.source, chosen, tests.seconds)) for m, chosen in todo)
    running.pool(work, jobs, progress)


class Progress:
    """Writes down each result as it comes, and says every few seconds how far it is."""

    def __init__(self, session: Session, total: int, thorough: bool = False) -> None:
        self.session, self.total, self.thorough = session, total, thorough
        self.start = self.said = time.monotonic()
        self.counts: dict[str, int] = {}

    def __call__(self, m: Mutant, result: dict[str, Any]) -> None:
        before = self.session.results.get(m.name, {})
        self.session.add(m, result | {"thorough": self.thorough or before.get("thorough", False)})
        self.counts[result["status"]] = self.counts.get(result["status"], 0) + 1
        done, now = sum(self.counts.values()), time.monotonic()
        if now - self.said > 10 or done == self.total:
            self.said = now
            left = (now - self.start) / done * (self.total - done)
            counts = ", ".join(f"{n} {status}" for status, n in sorted(self.counts.items()))
            print(f"{done} of {self.total} mutants: {counts}; {left / 60:.1f} min left", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"mutants: {error}")
    except KeyboardInterrupt:
        sys.exit("\nstopped; the same command goes on from here")
