"""`gruppo compare A B C`: several methods on the same task and seeds, with the significance of the differences."""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from gruppo.cli import overrides
from gruppo.cli.commands import configured, print_json
from gruppo.lab.compare.compare import Comparison, finished, found_runs
from gruppo.lab.compare.processes import Planned, refuse_other_settings, run_all
from gruppo.lab.compare.stages import going_on, refuse_other_writers, refuse_wrong_stages, stages_of
from gruppo.methods import all_methods, method
from gruppo.stages.names import nearest
from gruppo.train.config import RunConfig
from gruppo.train.evaluate import wanted_k
from gruppo.train.folder import RunFolder
from gruppo.train.opening import refuse_name
from gruppo.train.run import tasks_of
from gruppo.train.source import uncorrected

MOST_SEEDS = 1000
SHARED = ("task", "eval", "save", "seed")  # what is measured, and where: the same for all entrants


@dataclass(frozen=True)
class Entrant:
    """`grpo`, `./mine.py:MINE`, or one of these with settings of its own: `grpo optim.lr=1e-3`.

    `settings` are those of its last stage, `earlier` those of the stages before it: `sft steps=9 then grpo steps=9`.
    """

    name: str
    settings: tuple[str, ...]
    earlier: tuple[tuple[str, ...], ...] = ()

    @property
    def slug(self) -> str:
        return _shortened(re.sub(r"[^\w.=+-]+", "-", self.name).strip("-."), most=200)


def compare(args: argparse.Namespace) -> int:
    if all(RunFolder(Path(name))["config.toml"].is_file() for name in args.entrants):
        return _of_folders(args)
    entrants = [parsed(text) for text in args.entrants]
    refuse_twins(entrants)
    seeds, settings = _seeds(args), [*([f"task={args.task}"] if args.task else []), *args.settings]
    folder, planned = plan(args, entrants, seeds, settings)
    refuse_other_settings(planned, folder)
    configs = [stage.config for run in planned for stage in run.stages]
    older = [uncorrected(c.method, c.ahead, c.turns_a_step) for c in configs]
    for said in filter(None, dict.fromkeys(older)):
        print(f"warning: {said}", file=sys.stderr)
    if len(entrants) == 1:
        print(
            f"warning: {entrants[0].name} is the only entrant, so its seeds are summed up and nothing is compared. "
            f"Name another: gruppo compare {entrants[0].name} OTHER",
            file=sys.stderr,
        )
    again = "gruppo " + shlex.join(args.typed)
    try:
        failed = run_all(planned, folder, args.jobs, quiet=args.json)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"What is saved remains; the same command goes on:  {again}") from None
    results = [p.result() for p in planned if finished(p.path)]
    task = planned[0].config.task.name
    title = f"{', '.join(e.name for e in entrants)} on {task}"
    stopped = len(results) + len(failed) < len(planned)
    comparison = Comparison(title, args.metric, results, failed, again)
    _tell(comparison, folder, args.json, stopped)
    return int(bool(failed))


def _tell(comparison: Comparison, folder: Path | None, as_json: bool, stopped: bool = False) -> None:
    if comparison.results and folder is not None:
        comparison.write(folder)
    if as_json:
        where = {"folder": str(folder)} if folder else {}
        print_json({**comparison.table(), **where, "stopped": stopped})
        return
    print(comparison.markdown())
    if comparison.results and folder is not None:
        print("\n".join(f"  {folder / name}" for name in ("compare.md", "compare.json", "compare.png")))
    if stopped:
        print(f"stopped; what is saved remains, and the same command goes on:  {comparison.command}")


# ---- what to run


def parsed(text: str) -> Entrant:
    """A method with settings of its own, or several stages of these; errors come before anything starts."""
    stages = stages_of(text)
    if len(stages) > 1:
        refuse_wrong_stages(text, stages)
    *earlier, last = (_stage(words, text) for words in stages)
    return Entrant(text, last, tuple(earlier))


def _stage(words: Sequence[str], text: str) -> tuple[str, ...]:
    name, *own = words or [""]
    if RunFolder(Path(name))["config.toml"].is_file():
        raise ValueError(f"{name} is a run folder and others are methods: compare folders, or methods, not both.")
    try:
        method(name)
    except ValueError as error:
        if ":" in name or "=" in name:
            raise
        raise ValueError(
            f"{name!r} is no method and no run folder{nearest(name, all_methods())}, so nothing was started. See "
            '`gruppo methods`, or give ./file.py:NAME; settings of its own go in quotes: "grpo optim.lr=1e-3".'
        ) from error
    for setting in own:
        key = overrides.parsed(setting)[0].partition(".")[0]
        if key in SHARED:
            raise ValueError(
                f"{text!r}: {setting} holds for one entrant only, so the others would be measured on something else. "
                "Write it outside the quotes, for all."
            )
    return (f"method={name}", *own)


def refuse_twins(entrants: Sequence[Entrant]) -> None:
    seen: dict[str, str] = {}
    for e in entrants:
        if e.slug in seen:
            same = "" if seen[e.slug] == e.name else f" (and {seen[e.slug]!r}, whose folder has the same name)"
            raise ValueError(f"{e.name!r} is there twice{same}: it would be compared with itself. Leave one out.")
        seen[e.slug] = e.name


def _seeds(args: argparse.Namespace) -> list[int]:
    """`--seeds 5`: five, from `seed=`; `--seeds 3,7`: these."""
    first = configured(args).seed
    words = args.seeds.split(",")
    if not all(re.fullmatch(r"\s*\d+\s*", w) for w in words) or args.seeds.strip() == "0":
        raise ValueError(f"--seeds {args.seeds}: no run would be made. Give how many, or a list such as 0,1,2.")
    if len(words) == 1 and int(words[0]) > MOST_SEEDS:
        raise ValueError(
            f"--seeds {args.seeds} is how many seeds, and each is a run of every entrant: more than {MOST_SEEDS:,} are "
            f"not made at once. Use fewer, such as --seeds 5; one seed of that number is seed={args.seeds} --seeds 1."
        )
    if len(words) == 1:
        return list(range(first, first + int(words[0])))
    if len(set(map(int, words))) < len(words):
        raise ValueError(f"--seeds {args.seeds}: a seed is there twice, and the same run would count twice.")
    return [int(w) for w in words]


def plan(
    args: argparse.Namespace, entrants: Sequence[Entrant], seeds: Sequence[int], settings: Sequence[str]
) -> tuple[Path, list[Planned]]:
    """The folder and its runs, seed by seed, so that all methods have equally many if it is stopped."""
    mine = next((s for s in settings if overrides.parsed(s)[0] in ("method", "method.name")), None)
    if mine is not None:
        raise ValueError(f"{mine}: the methods are the words before the settings. Write gruppo compare A B …")
    if args.jobs < 1:
        raise ValueError(f"--jobs {args.jobs}: nothing would run. Use 1 or more.")
    base = configured(argparse.Namespace(**{**vars(args), "settings": settings}))
    wanted_k(base.eval.samples, base.eval.k, base.eval.temperature)
    tasks_of(base)  # refuse an unknown task once, not in every run
    refuse_name(base.save)
    folder = Path(base.save.folder) / (base.save.name or default_name(entrants, base))
    return folder, [_planned(args, e, seed, settings, folder / e.slug) for seed in seeds for e in entrants]


def _planned(args: argparse.Namespace, e: Entrant, seed: int, settings: Sequence[str], folder: Path) -> Planned:
    """The run of an entrant: that of its last stage, which knows those of the stages before it."""

    def resolved(words: Sequence[str]) -> RunConfig:
        return configured(argparse.Namespace(**{**vars(args), "settings": words}))

    files = ("--config", args.config) if args.config else ()
    earlier: list[Planned] = []
    for number, own in enumerate((*e.earlier, e.settings), 1):
        last = number > len(e.earlier)
        name = f"seed-{seed}" if last else f"seed-{seed}-stage-{number}"
        typed = (*settings, *own, f"seed={seed}", f"save.folder={folder}", f"save.name={name}")
        if earlier:
            typed = going_on(earlier[-1].path, typed, earlier[0].typed[len(files) :], resolved)
        config = resolved(typed)
        if not last:
            refuse_other_writers(e.name, config.method)
        called = e.name if last else f"{e.name}, stage {number}"
        earlier.append(Planned(called, config, (*files, *typed), tuple(earlier)))
    return earlier[-1]


def default_name(entrants: Sequence[Entrant], config: RunConfig) -> str:
    """Depends only on the entrants and the task, so that the same command finds its runs again."""
    task = Path(config.task.name.split(":")[0]).stem
    name = "-".join(["compare", *(e.slug for e in entrants), task])
    return _shortened(name, most=120)


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 20]}-{blake2b(name.encode(), digest_size=6).hexdigest()}"


# ---- existing runs


def _of_folders(args: argparse.Namespace) -> int:
    given = [s for s in args.settings if not s.startswith("save.")]
    if given or args.task or args.config:
        raise ValueError(
            f"{given[0] if given else '--task or --config'} with run folders: they are trained already. Leave it out; "
            "only save.name=NAME is taken, for a folder to write the comparison to."
        )
    config = configured(args)
    refuse_name(config.save)
    results, open_ones = found_runs([Path(name) for name in args.entrants])
    if not results:
        raise ValueError(f"{', '.join(open_ones)}: no run is finished, so there is nothing to compare.")
    failed = {name: "not finished" for name in open_ones}
    title = ", ".join(dict.fromkeys(r.entrant for r in results))
    folder = Path(config.save.folder) / config.save.name if config.save.name else None
    _tell(Comparison(title, args.metric, results, failed), folder, args.json)
    return 0
