"""`gruppo claims`: the board, and the runs behind it."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gruppo.cli.commands import print_json
from gruppo.cli.overrides import apply
from gruppo.lab.claims import board, page
from gruppo.lab.claims.claim import PILOT_SEEDS, SHIPPED, Claim, board_folder, chosen_claims
from gruppo.lab.claims.gates import ARM, NO_REGIME, gates_of, passed
from gruppo.lab.claims.in_tables import exact_runs, in_exact_world
from gruppo.lab.claims.measures import measure
from gruppo.lab.claims.recheck import unstored
from gruppo.lab.claims.unjudged import decided_by, lacks, refuse_unready
from gruppo.lab.claims.verdict import verdict
from gruppo.lab.compare import command as compare
from gruppo.lab.compare.compare import finished
from gruppo.lab.compare.processes import refuse_other_settings, run_all
from gruppo.train.config import RunConfig
from gruppo.train.lock import Lock

LEAN = ("save.tensorboard=no", "save.checkpoint_every=0", "save.episodes_every=0")


def claims(args: argparse.Namespace) -> int:
    folder = board_folder(args.folder)
    if args.folder is None and folder != Path("claims"):
        print(f"the board that gruppo comes with, {folder} (there is no folder claims here)", file=sys.stderr)
    args.folder = str(folder)
    found = chosen_claims(folder, args.names)
    if args.settings and not args.pilot:
        raise ValueError(
            f"{' '.join(args.settings)}: a verdict has the settings of its file. Leave them out, or add --pilot: then "
            "they are the points of a sweep."
        )
    if args.pilot:
        if not args.names:
            raise ValueError("--pilot without a name would run every sweep. Name the claims.")
        for claim in found.values():
            with alone(claim, args):
                pilot(replace(claim, sweep=tuple(args.settings), chosen={}) if args.settings else claim, args)
        return 0
    if args.runs_only and (args.runs_only < 0 or not (args.names or args.all)):
        raise ValueError(f"--runs-only {args.runs_only}: nothing would run. Name the claims, and give how many seeds.")
    if args.show and not args.json:
        print("\n\n".join(page.of(folder, claim) for claim in found.values()))
        return 0
    wrong = settle_all(found.values(), args) if (args.names or args.all) and not args.show else []
    rows = [row(folder, claim) for claim in found.values()]
    print_json({"claims": rows}) if args.json else print(table(rows))
    if wrong:
        raise ValueError("\n".join(wrong))
    return 0


# ---- runs


class Stopped(ValueError):
    """Stopped by Ctrl-C: no other claim is started."""


def settle_all(found: Iterable[Claim], args: argparse.Namespace) -> list[str]:
    """Settle claims without a result. A claim that fails does not stop the others; returns what went wrong."""
    wrong: list[str] = []
    for claim in found:
        try:
            if not claim.ready and not args.names:
                print(f"claim {claim.name}: a draft, whose sweep has chosen nothing yet; left out", file=sys.stderr)
            elif board.load(Path(args.folder), claim) is None:
                with alone(claim, args):
                    settle(claim, args)
        except Stopped:
            raise
        except ValueError as error:
            wrong.append(str(error))
    return wrong


@contextmanager
def alone(claim: Claim, args: argparse.Namespace) -> Iterator[None]:
    """Two commands at once would make the same runs, and the record would say so twice."""
    refuse_shipped(claim, Path(args.folder))  # before anything is written
    folder = Path(args.runs) / claim.name
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as open_until_the_end:
        try:
            open_until_the_end.enter_context(Lock(folder))
        except ValueError as error:
            raise ValueError(
                f"claim {claim.name}: {str(error).partition(': ')[0]}: the same runs would be made twice. Wait for it, "
                "or stop it."
            ) from None
        yield
    with suppress(OSError):  # somebody waits already
        folder.rmdir()


def runs_of(claim: Claim, arms: dict[str, str], seeds: Sequence[int], args: argparse.Namespace, name: str) -> Any:
    """{arm: results, one per seed}; finished runs are not repeated."""
    entrants = {arm: compare.parsed(text) for arm, text in arms.items()}
    compare.refuse_twins(list(entrants.values()))
    if in_exact_world(claim):
        return exact_runs(claim, entrants, seeds, Path(args.runs) / f"{claim.name}-{name}", quiet=args.json)
    asked = argparse.Namespace(config=None, json=args.json, jobs=args.jobs, settings=[], resume=None)
    where = (f"save.folder={args.runs}", f"save.name={claim.name}-{name}")
    settings = [*LEAN, *claim.settings, *where]
    folder, planned = compare.plan(asked, list(entrants.values()), seeds, settings)
    refuse_other_settings(planned, folder)
    failed = run_all(planned, folder, args.jobs, quiet=args.json)
    done = {p: p.result() for p in planned if finished(p.path)}
    if failed or len(done) < len(planned):
        why = next(iter(failed.values()), "stopped")
        raise (ValueError if failed else Stopped)(
            f"claim {claim.name}: {len(planned) - len(done)} of {len(planned)} runs are missing ({why}). A verdict is "
            f"over all seeds or none; the same command goes on in {folder}."
        )
    return {arm: [r for p, r in done.items() if p.entrant == e.name] for arm, e in entrants.items()}


def settle(claim: Claim, args: argparse.Namespace) -> None:
    """Run the seeds of the verdict, twice as many if they leave it open, and write the result."""
    folder = Path(args.folder)
    if not claim.ready:
        raise ValueError(
            f"claim {claim.name}: its sweep {list(claim.sweep)} has chosen nothing yet. Run gruppo claims {claim.name} "
            "--pilot, write its [chosen] into the file, and commit."
        )
    pilots = board.pilots_of(folder, claim.name)
    refuse_unready(folder / f"{claim.name}.toml", claim, pilots if pilots or not args.runs_only else None)
    refuse_same_runs(claim)
    commit = "" if args.runs_only else board.committed(folder / f"{claim.name}.toml")
    gates = gated(claim, args)
    if args.runs_only:
        refuse_closed(claim, gates)
        runs_of(claim, claim.arms, range(args.runs_only), args, "verdict")
        return
    if unstored(claim, gates, pilots):
        board.keep_pilot(folder, claim.name, of_gates(claim, gates))
    if not all(g["holds"] for g in gates):
        board.write(folder, board.result(claim, NO_REGIME, [], {}, commit, gates))
        return
    for seeds in (range(claim.seeds), range(2 * claim.seeds)):
        runs = runs_of(claim, claim.arms, seeds, args, "verdict")
        outcome, judged = verdict(claim, {arm: [r.rows for r in results] for arm, results in runs.items()})
        if outcome != "inconclusive":
            break
    board.write(folder, board.result(claim, outcome, judged, runs, commit, gates))


def refuse_same_runs(claim: Claim) -> None:
    """Before anything is run: every arm can be, and no two of them are the same runs in other words."""
    entrants = {arm: compare.parsed(text) for arm, text in claim.arms.items()}
    compare.refuse_twins(list(entrants.values()))
    seen: dict[str, Any] = {}
    for arm, e in entrants.items():
        config = (e.earlier, apply(RunConfig(), [*claim.settings, *e.settings]))
        same = next((other for other, found in seen.items() if found == config), None)
        if same:
            raise ValueError(
                f"claim {claim.name}: {same} and {arm} come to the same settings, {claim.arms[arm]!r}, and would be "
                "compared with themselves. Change one of them."
            )
        seen[arm] = config


def refuse_closed(claim: Claim, gates: Sequence[dict[str, Any]]) -> None:
    """With --runs-only: the machine that judges would not look at the seeds of the verdict."""
    if closed := [g for g in gates if not g["holds"]]:
        raise ValueError(
            f"claim {claim.name}: {NO_REGIME}: {_gate_figures(closed)}. The seeds of the verdict were not run, and no "
            f"record is written with --runs-only. Bring the runs back: gruppo claims {claim.name} writes that "
            "verdict there; or change the task, and try it with --pilot."
        )


def refuse_shipped(claim: Claim, folder: Path) -> None:
    if folder.name == SHIPPED:
        raise ValueError(
            f"claim {claim.name}: the board in {folder} is for reading. To judge it, copy {claim.name}.toml into the "
            "folder claims of a git repository, commit it, and call gruppo claims there."
        )


def gated(claim: Claim, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The gates of a claim with their values on pilot seeds."""
    arms = {ARM[what]: claim.arms[ARM[what]] for what, _ in gates_of(claim)}
    return passed(claim, {arm: runs_of(claim, {arm: arms[arm]}, PILOT_SEEDS, args, f"gate-{arm}")[arm] for arm in arms})


def of_gates(claim: Claim, gates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The runs of the gates as a pilot, for a machine on which they differ from the stored ones."""
    runs: list[dict[str, Any]] = []
    for arm in dict.fromkeys(g["arm"] for g in gates):
        text = getattr(claim, arm)
        values = {g["measure"]: g["values"] for g in gates if g["arm"] == arm}
        setting = claim.arms[arm].removeprefix(text).strip()
        runs.append({"arm": arm, "text": text, "setting": setting, "values": values})
    return _pilot(claim, runs, {})


def pilot(claim: Claim, args: argparse.Namespace) -> None:
    """The same small sweep for both arms, on pilot seeds; prints what to write to the file."""
    folder = Path(args.folder)
    board.pilots_of(folder, claim.name)  # refused before the runs, not after them
    decides, lower = decided_by(claim)
    every = dict.fromkeys([decides, *(c.measure for c in claim.conditions), *(g.measure for _, g in gates_of(claim))])
    chosen: dict[str, str] = {}
    stored: list[dict[str, Any]] = []
    print(f"\n[[pilot]]  # of {claim.name}, seeds {PILOT_SEEDS[0]} to {PILOT_SEEDS[-1]}")
    plain = {"baseline": claim.baseline, "entrant": claim.entrant, "placebo": claim.placebo}
    for arm, text in ((arm, text) for arm, text in plain.items() if text):
        figures: dict[str, float] = {}
        for setting in claim.swept(text) or ("",):
            runs = runs_of(
                claim, {"one": f"{text} {setting}".strip()}, PILOT_SEEDS, args, f"pilot-{arm}-{_slug(setting)}"
            )
            found = {m: [measure(m)(r.rows) for r in runs["one"]] for m in every if _has(runs["one"], m)}
            stored.append({"arm": arm, "text": text, "setting": setting, "values": found})
            if decides not in found:
                raise ValueError(
                    f"claim {claim.name}: {decides}, which chooses a point of the sweep, has no value in a run of "
                    f"{f'{text} {setting}'.strip()!r}. Measure something that every run has, by sweep_by = "
                    "'last(held_out)' or in the first condition."
                )
            values = found[decides]
            figures[setting] = sum(values) / len(values)
            print(f"{arm}{' ' + setting if setting else ''}: {figures[setting]:.4f}  {[round(v, 4) for v in values]}")
        if claim.swept(text):
            chosen[arm] = (min if lower else max)(figures, key=lambda s: figures[s])
    board.keep_pilot(folder, claim.name, _pilot(claim, stored, chosen))
    if chosen:
        print("[chosen]\n" + "\n".join(f'{arm} = "{setting}"' for arm, setting in chosen.items()))


def _pilot(claim: Claim, runs: Sequence[dict[str, Any]], chosen: dict[str, str]) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"), "seeds": list(PILOT_SEEDS), "settings": list(claim.settings),
        "decided_by": decided_by(claim)[0], "runs": list(runs), "chosen": chosen,
    }  # fmt: skip


def _has(results: Sequence[Any], text: str) -> bool:
    """Whether every run of an arm has a value: the lever of a method is no metric of another."""
    try:
        return all(measure(text)(r.rows) == measure(text)(r.rows) for r in results)
    except ValueError:
        return False


def _slug(setting: str) -> str:
    return "".join(c if c.isalnum() or c in ".=-" else "-" for c in setting) or "plain"


# ---- words

LEGEND = (
    "A claim, its verdict, and its figures: a measure, its mean for the baseline (or for the placebo, where that is\n"
    "said) → for the method, and whether its condition holds: yes, no or open. Where no regime was found, the figures\n"
    "are the gates. gruppo claims NAME --show has the rule."
)


def row(folder: Path, claim: Claim) -> dict[str, Any]:
    found = board.load(folder, claim)
    return {
        "name": claim.name,
        "claim": claim.claim,
        "verdict": found["verdict"] if found else "not run",
        "ready": claim.ready,
        "seeds": len(found["seeds"]) if found else 0,
        "conditions": found["conditions"] if found else [],
        "gates": found.get("gates", []) if found else [],
        "lacks": [] if found else list(lacks(claim)),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{r['name']:18} {r['verdict']:15} "
        f"{_figures(r['conditions']) or _gate_figures(r['gates']) or _open(r)}\n"
        f"{'':18} {r['claim']}"
        for r in rows
    ]
    counts = {v: sum(r["verdict"] == v for r in rows) for v in dict.fromkeys(r["verdict"] for r in rows)}
    return "\n".join([LEGEND, "", *lines, "", ", ".join(f"{n} {v}" for v, n in counts.items())])


def _open(row: dict[str, Any]) -> str:
    """What is to be done before a claim can be judged."""
    said = [] if row["ready"] else [page.DRAFT]
    return "; ".join([*said, *(text.partition(",")[0] for text in row["lacks"])])


def _figures(conditions: Sequence[dict[str, Any]]) -> str:
    """Each figure once; where several conditions are about it, they are named."""
    held: dict[str, list[dict[str, Any]]] = {}
    for c in conditions:
        other = "placebo " if c.get("against") == "placebo" else ""
        held.setdefault(f"{c['measure']} {other}{_mean(c['baseline'])} → {_mean(c['entrant'])}", []).append(c)
    return "; ".join(f"{figure} ({_holds(of)})" for figure, of in held.items())


def _holds(conditions: Sequence[dict[str, Any]]) -> str:
    if len(conditions) == 1:
        return str(conditions[0]["holds"])
    return ", ".join(f"{c['kind'].replace('_', ' ')} {c['size']:g}: {c['holds']}" for c in conditions)


def _gate_figures(gates: Sequence[dict[str, Any]]) -> str:
    return "; ".join(f"{g['arm']} {g['measure']} {_mean(g['values'])} ({g['kind']} {g['size']:g})" for g in gates)


def _mean(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{sum(known) / len(known):.3g}" if len(known) == len(values) and known else "—"
