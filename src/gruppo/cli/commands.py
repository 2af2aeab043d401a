"""The commands train, doctor and methods. Each returns its exit code."""

import argparse
import dataclasses
import json
import os
import sys
import tomllib
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import tomli_w

from gruppo.cli import overrides
from gruppo.methods import all_methods, method, refurnished, summary
from gruppo.stages import ROOMS, Context, Method, Role, difference
from gruppo.stages.check import least_samples
from gruppo.stages.record import record_hash, to_table
from gruppo.train.config import RunConfig
from gruppo.train.folder import HERE, RunFolder, finite
from gruppo.train.waiting import waited

if TYPE_CHECKING:
    from gruppo.train.doctor import Check
    from gruppo.train.run import Run

CAN_START = "a run with these settings can start"
EQUAL = (
    "it would learn nothing from these answers: in every group all rewards are equal. Use an easier task.level, more "
    "samples, or another task.reward."
)


def configured(args: argparse.Namespace, base: RunConfig | None = None) -> RunConfig:
    config, said = base or RunConfig(), set[str]()
    if args.config:
        path = Path(args.config)
        if not path.is_file():
            raise ValueError(
                f"--config {path}: there is no such file, so nothing was started. Give the path of a TOML file."
            )
        config, said = run_file(path, config, getattr(args, "trust_code", False))
    return overrides.apply(config, args.settings, said)


def run_file(path: Path, base: RunConfig, trust_code: bool) -> tuple[RunConfig, set[str]]:
    """The run that a file describes, and which settings the file makes."""
    text = path.read_text()
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--config {path} is not TOML: {error}. Nothing was started; fix that line.") from None
    if HERE in text:  # of a run with its own code
        return RunFolder(path.parent).read_config(trust_code, path.name), set()
    return overrides.from_toml(table, base), overrides.said_in(table)


def print_json(x: Any) -> None:
    print(json.dumps(finite(x)))


def train(args: argparse.Namespace) -> int:
    from gruppo.train import trainer

    resuming = args.resume is not None
    if resuming and args.dry_run:
        raise ValueError("--resume with --dry-run: the run was checked when it started. Leave one of them out.")
    if args.allow_changes and not resuming:
        raise ValueError("--allow-changes without --resume: a new run has nothing to differ from. Leave it out.")
    if args.skip_damaged and not resuming:
        raise ValueError("--skip-damaged without --resume: a new run has no checkpoints. Leave it out.")
    if (size := _ranks(args)) > 1:
        return _launched(size, args)
    if resuming:
        result = trainer.resume(
            Path(args.resume) if args.resume or _follows() else _newest(args),
            lambda config: configured(args, config),
            trust_code=args.trust_code,
            allow=args.allow_changes,
            skip_damaged=args.skip_damaged,
            quiet=args.json,
        )
    else:
        config = configured(args)
        if args.dry_run:
            return dry_run(config, args.json)
        result = trainer.train(config, quiet=args.json)
    if args.json and not _follows():
        print_json(result)
    return 0


def _follows() -> bool:
    """Whether this process is a rank that does what the first one says."""
    return int(os.environ.get("RANK", "0")) > 0


def _ranks(args: argparse.Namespace) -> int:
    """The processes that are still to be started for a run: none inside of those that were."""
    if "WORLD_SIZE" in os.environ or args.dry_run:
        return 1
    if args.resume is None:
        scale = configured(args).scale
        return 1 if scale.address else scale.ranks  # Ray starts them
    args.resume = args.resume or str(_newest(args))
    kept = RunFolder(Path(args.resume))
    known = kept.config_table().get("scale") if kept["config.toml"].is_file() else None
    wanted = {f"scale.{name}": str(x) for name, x in known.items()} if isinstance(known, dict) else {}
    wanted |= dict(s.split("=", 1) for s in args.settings if s.startswith("scale.") and "=" in s)
    ranks = "1" if wanted.get("scale.address") else wanted.get("scale.ranks", "1")
    return int(ranks) if ranks.isdecimal() else 1  # what cannot be read is refused later


def _launched(size: int, args: argparse.Namespace) -> int:
    from gruppo.scale.launch import launch

    flags = [f"--{name.replace('_', '-')}" for name in ("allow_changes", "skip_damaged", "trust_code", "json")
             if getattr(args, name)]  # fmt: skip
    named = [*(["--resume", args.resume] if args.resume else []), *(["--config", args.config] if args.config else [])]
    return launch(size, ["train", *args.settings, *named, *flags])


def _newest(args: argparse.Namespace) -> Path:
    """For --resume without a name: the newest unfinished run, named on the screen."""
    from gruppo.cli.runs import newest_unfinished

    where = [s for s in args.settings if s.startswith("save.folder=")]  # the others are for a run not yet known
    found = newest_unfinished(Path(overrides.apply(RunConfig(), where).save.folder))
    args.settings = [s for s in args.settings if s not in where]  # it says where to look, and changes nothing
    if not args.json:
        print(f"going on with {found}, the newest run there that is not finished")
    return found


def dry_run(config: RunConfig, as_json: bool) -> int:
    """Everything but the training: resolve, build, check, and estimate the cost."""
    from gruppo.train.doctor import refuse

    run, checks = _step_zero(config, as_json)
    refuse(checks)
    tokens = config.prompts * config.samples * run.sampling.max_tokens
    facts = {
        "config": to_table(config),
        "tokens_per_step_at_most": tokens,
        "checks": [dataclasses.asdict(c) for c in checks],
    }
    if as_json:
        print_json(facts)
    else:
        print(tomli_w.dumps(to_table(config)))
        print("".join(f"# {line}\n" for line in refurnished(config.method)), end="")
        print(
            f"# ready: {config.steps} steps of {config.prompts} x {config.samples} answers, at most "
            f"{tokens} sampled tokens per step"
        )
    return 0


def _step_zero(config: RunConfig, as_json: bool) -> "tuple[Run, list[Check]]":
    from gruppo.scale import cluster
    from gruppo.train.callbacks import standing
    from gruppo.train.doctor import step_zero
    from gruppo.train.evaluate import wanted_k
    from gruppo.train.heartbeat import Heartbeat, decoded
    from gruppo.train.run import Run

    wanted_k(config.eval.samples, config.eval.k, config.eval.temperature)
    standing(config)  # refuses what no run can have
    cluster.refuse(config)
    run = Run(config, partial(print, file=sys.stderr) if as_json else print)
    try:
        with Heartbeat(run.say, tokens=partial(decoded, run)):
            return run, waited(step_zero(run))
    finally:
        run.close()


def doctor(args: argparse.Namespace) -> int:
    if args.sandbox:
        return _sandbox(args)
    run, checks = _step_zero(configured(args), args.json)
    if args.json:
        print_json([dataclasses.asdict(c) for c in checks])
    else:
        for c in checks:
            mark = "ok      " if c.ok else "accepted" if c.accepted else "FAIL    "
            print(f"{mark} {c.name:<13} {c.found}{'' if c.ok or not c.remedy else '. ' + c.remedy}")
        bad = sum(not (c.ok or c.accepted) for c in checks)
        dead = least_samples(run.method) > 1 and any(c.name == "dead_groups" and c.value == 1 for c in checks)
        well = f"{CAN_START}, but {EQUAL}" if dead else f"all is well: {CAN_START}"
        print(f"{bad} of {len(checks)} checks failed" if bad else well)
    return 0 if all(c.ok or c.accepted for c in checks) else 1


def _sandbox(args: argparse.Namespace) -> int:
    from gruppo.sandbox.doctor import examined, lines

    if args.settings or args.config:
        raise ValueError(
            f"doctor --sandbox examines this machine, so {(args.settings or [args.config])[0]} has no meaning there. "
            "Leave it out, or leave --sandbox out to check a run."
        )
    found = waited(examined())
    if args.json:
        print_json(dataclasses.asdict(found))
    else:
        print("\n".join(lines(found)))
    return 0 if found.held else 1


# methods


def methods(args: argparse.Namespace) -> int:
    what, names = args.what, list(args.names)
    if what not in ("list", "show", "diff", "check"):  # gruppo methods grpo; gruppo methods ./mine.py:MINE
        what, names = ("list" if ":" in what else "show"), [what, *names]
    return {"list": _list, "show": _show, "diff": _diff, "check": _check}[what](names, args.json)


CONFIDENCE = {
    "code": "the code of the authors or of another trainer was read",
    "paper": "the paper was read, and no code",
    "notes": "notes on the paper were read, neither the paper itself nor code",
    "abstract": "only the abstract was read",
    "": "the method does not say",
}


def _table(m: Method) -> dict[str, Any]:
    return {
        "name": m.name,
        "version": m.version,
        "paper": m.paper,
        "base": m.base,
        "summary": summary(m.doc),
        "doc": m.doc,
        "checked": m.checked,
        "confidence": m.confidence,
        "breaks": dict(m.breaks),
        "together": list(m.together),
        "hash": record_hash(m),
        "rooms": {room: to_table(getattr(m, room)) for room in ROOMS},
        "cast": to_table(m.cast),
        "writers": dict(m.writers),
    }


def _list(names: list[str], as_json: bool) -> int:
    known = all_methods() | {m.name: m for m in map(method, names)}
    if as_json:
        print(json.dumps([_table(m) for m in known.values()]))
        return 0
    width = max(map(len, known))
    for m in known.values():
        print(f"{m.name:<{width}}  {summary(m.doc) or m.paper}")
    return 0


def _show(names: list[str], as_json: bool) -> int:
    for name in names or _missing("show", 1):
        m = method(name)
        if as_json:
            print(json.dumps(_table(m)))
            continue
        print(f"{m.name}@{m.version}   {m.paper}\n\n{m.doc}\n")
        if m.checked or m.confidence:
            print(f"checked against: {CONFIDENCE[m.confidence]}.\n{fill(m.checked, 120)}\n")
        base = all_methods().get(m.base)
        if base is not None:
            print(f"differs from {base.name}:")
            for change in difference(base, m):
                print(f"  {change}")
        print("\nrooms:")
        for room in ROOMS:
            print(f"  {room:<11} {getattr(m, room) or '—'}")
        others = [_told(m, name, role) for name, role in _others(m).items()]
        print(f"\nroles beside the policy: {'; '.join(others) or 'none'}")
        if m.together:
            print(f"rooms that only make sense together: {', '.join(m.together)}")
        if not m.breaks:
            print("laws: no exception declared")
        for law, reason in m.breaks.items():
            print(f"breaks the law {law}: {reason}")
    return 0


def _others(m: Method) -> dict[str, Role]:
    """The roles that this method uses, other than the policy."""
    used = {role for _, _, n in m.needs(Context()) for role in (n.role, n.against)}
    used |= set(m.objectives) | set(m.writers.values())
    return {name: role for name, role in m.cast.items() if name in used and name != "policy"}


def _told(m: Method, name: str, role: Role) -> str:
    agents = [agent for agent, writer in m.writers.items() if writer == name]
    writes = f", writes for {' and '.join(agents)}" if agents else ""
    return f"{name} {'trained' if role.train else 'not trained'}, {_first(role)}{writes}"


def _first(role: Role) -> str:
    return f"at first {'a copy of the policy' if role.start == 'policy' else role.start or 'nobody: give one'}"


def _diff(names: list[str], as_json: bool) -> int:
    if len(names) != 2:
        _missing("diff", 2)
    a, b = map(method, names)
    changes = difference(a, b)
    if as_json:
        print(json.dumps([{k: str(v) for k, v in vars(c).items()} for c in changes]))
    else:
        print("\n".join(map(str, changes)) or "no difference")
    return 0


def _check(names: list[str], as_json: bool) -> int:
    from gruppo.lab.laws import UNTESTED, excused, law_by_law

    results: dict[str, dict[str, str]] = {}
    for name in names or _missing("check", 1):
        laws = results.setdefault(name, {})
        for law, failure in law_by_law(method(name)):
            laws[law] = failure
            if not as_json:
                why = failure or excused(law, method(name))
                mark = "FAIL" if failure and not failure.startswith(UNTESTED) else "--  " if why else "ok  "
                print(f"{mark} {name}: {law}{'  ' + why if why else ''}", flush=True)
        if not as_json:
            bad = sum(bool(failure) and not failure.startswith(UNTESTED) for failure in laws.values())
            idle = sum(bool(failure or excused(law, method(name))) for law, failure in laws.items()) - bad
            held = len(laws) - bad - idle
            print(
                f"{name}: {held} laws hold, {bad} broken{f', {idle} not tested or broken on purpose' if idle else ''}"
            )
    if as_json:
        print(json.dumps(results))
    return int(any(failure for laws in results.values() for failure in laws.values()))


def _missing(what: str, count: int) -> list[str]:
    raise ValueError(
        f"gruppo methods {what} wants {count} name{'s' if count > 1 else ''}. `gruppo methods` lists them."
    )
