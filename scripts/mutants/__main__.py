"""Mutation testing: does a test fail when the code is wrong?

    make mutants                                every mutant of pieces, methods, data and stages (an hour or more)
    make mutants ARGS="pieces grpo"             of a folder, a file (data/segment.py) or a method
    make mutants ARGS="--sample 400 --seed 1"   a random sample, with its interval
    make mutants ARGS=report                    what is known so far, nothing is run
    make mutants ARGS=pitfalls                  one planted mistake for each pitfall (tests/mutants/planted.toml)

Ends with 1 when fewer than 90 % are killed, or when one survives that tests/mutants/survivors.toml does not explain.
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

import planting
import report
import running
from making import PARTS, Mutant, files, mutants
from session import Session, Tests


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
        run(chosen, session, args.jobs, args.budget)
    return report.show(chosen, len(everything), session.results, args.seed)


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="make mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}, a file, a method, report or pitfalls")
    p.add_argument("--sample", type=int, default=0, help="this many mutants, drawn at random")
    p.add_argument("--seed", type=int, default=0, help="of the sample")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    p.add_argument("--budget", type=float, default=20.0, help="CPU seconds of tests in the first look at a mutant")
    p.add_argument("--tests", nargs="+", default=running.TESTS, help="folders of tests to use")
    p.add_argument("--fresh", action="store_true", help="forget earlier results")
    p.add_argument("--only", type=int, nargs="*", default=[], help="these pitfalls")
    return p.parse_args()


def run(chosen: list[Mutant], session: Session, jobs: int, budget: float) -> None:
    """First a quick look at every mutant, then a thorough one at those that survived it."""
    todo = [m for m in chosen if m.name not in session.results]
    running.prepare()
    if not todo and not survivors(chosen, session):
        return
    running.apart(partial(session.measure, print))
    tests = Tests(session.tests())
    progress = Progress(session, len(todo))
    live = [m for m in todo if m.live]
    if live:
        choose = partial(tests.choose, budget=budget)
        running.apart(partial(running.live, live, choose, tests.seconds, jobs, progress))
        session.read()
    todo = [m for m in chosen if session.results.get(m.name, {"status": "cold"})["status"] == "cold"]
    progress = Progress(session, len(todo))
    look(todo, tests, jobs, budget, progress)
    again = survivors(chosen, session)
    print(f"{len(again)} survived the first look: a second one, freshly imported and with every test that touches them")
    look(again, tests, jobs, 1e9, Progress(session, len(again), thorough=True))


def survivors(chosen: list[Mutant], session: Session) -> list[Mutant]:
    """Those that have survived a quick look only."""
    known = ((m, session.results.get(m.name, {})) for m in chosen)
    return [m for m, r in known if r.get("status") == "survived" and not r.get("thorough")]


def look(todo: list[Mutant], tests: Tests, jobs: int, budget: float, progress: "Progress") -> None:
    work = ((m, partial(cold, m, tests, budget)) for m in todo)
    running.pool(work, jobs, progress)


def cold(m: Mutant, tests: Tests, budget: float) -> dict[str, Any]:
    return running.cold(m.file, m.source, tests.choose(m, budget=budget), tests.seconds)


class Progress:
    """Writes down each result as it comes, and says every few seconds how far it is."""

    def __init__(self, session: Session, total: int, thorough: bool = False) -> None:
        self.session, self.total, self.thorough = session, total, thorough
        self.start = self.said = time.monotonic()
        self.counts: dict[str, int] = {}

    def __call__(self, m: Mutant, result: dict[str, Any]) -> None:
        self.session.add(m, result | {"thorough": self.thorough})
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
