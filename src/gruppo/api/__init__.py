"""Gruppo from Python, in scripts and notebooks: train, iterate over steps, evaluate, compare.

Settings are those of the command line, as keyword arguments: `steps=20`, `optim={"lr": 1e-4}`, or with dots,
`**{"optim.lr": 1e-4}`. Methods, tasks and rewards may be Python objects; `written.py` says how they become files.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from gruppo.api.edited import read_anew, refuse_old
from gruppo.api.runs import SavedRun
from gruppo.api.written import reward_path, rows_file, store, tasks_path, written_method
from gruppo.cli.overrides import Setting, apply_settings
from gruppo.stages import Method
from gruppo.stages.record import to_table
from gruppo.tasks import Scorer, TaskConfig, TaskSet
from gruppo.train import trainer
from gruppo.train.callbacks import Callback, Step
from gruppo.train.config import RunConfig
from gruppo.train.evaluate import Evaluation, wanted_k

if TYPE_CHECKING:
    from gruppo.lab.compare.command import Entrant
    from gruppo.lab.compare.compare import Comparison

Task = str | TaskConfig | TaskSet | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Reward = str | Scorer | Callable[..., Any] | None


def train(
    method: str | Method | RunConfig = "grpo",
    *,
    task: Task = None,
    reward: Reward = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    **settings: Any,
) -> SavedRun:
    """Trains from the start, and returns the run.

    method     a name, an import path, a `Method`, or a whole configuration
    task       a name, `TaskConfig`, `TaskSet`, or rows: [{"prompt": …, "answer": …}, …]; with settings of the task,
               a table: {"name": rows, "prompt": "question"}
    reward     a name, an import path, or a function (task, text) -> number, or a class of such
    callbacks  objects that watch the run; they are not recorded with it
    settings   as on the command line: steps=20, eval={"every": 5}, **{"optim.lr": 1e-4}; **{"method.select+": NAME}
    """
    config = configured(method, task=task, reward=reward, **settings)
    summary = trainer.train(config, quiet=quiet, callbacks=_checked(callbacks))
    if not summary:
        raise ValueError("the run failed on the first rank, so there is none here. What happened, that rank says.")
    return SavedRun(summary["folder"])


def steps(
    method: str | Method | RunConfig = "grpo",
    *,
    task: Task = None,
    reward: Reward = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = True,
    **settings: Any,
) -> Iterator[Step]:
    """Trains, and hands over each step when it is done: its number, its row of metrics, and its record.

    The run is in `step.folder`. Who leaves the loop early leaves a run that can be resumed.
    """
    config = configured(method, task=task, reward=reward, **settings)  # refused here, and not at the first step
    return trainer.train_steps(config, quiet=quiet, callbacks=_checked(callbacks))


def resume(
    run: str | Path | SavedRun,
    *,
    callbacks: Sequence[Callback] = (),
    allow_changes: bool = False,
    skip_damaged: bool = False,
    trust_code: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> SavedRun:
    """Continues a run from its newest checkpoint to its end, bit for bit; the arguments are those of `resume_steps`."""
    how = {"allow_changes": allow_changes, "skip_damaged": skip_damaged, "trust_code": trust_code, "quiet": quiet}
    for _ in resume_steps(run, callbacks=callbacks, **how, **settings):
        pass
    return SavedRun(_folder(run))  # the summary names the folder in which it was written, and a run can be moved


def resume_steps(
    run: str | Path | SavedRun,
    *,
    callbacks: Sequence[Callback] = (),
    allow_changes: bool = False,
    skip_damaged: bool = False,
    trust_code: bool = False,
    quiet: bool = True,
    **settings: Any,
) -> Iterator[Step]:
    """Continues a run from its newest checkpoint, bit for bit, and hands over each step when it is done.

    allow_changes  go on though settings, or files that the run depends on, are others
    skip_damaged   set a damaged checkpoint aside, and go on from the one before it
    trust_code     run code that was stored with the run, though its origin has changed or is gone
    settings       as on the command line; of a finished run there is no step, unless steps=… is larger
    """
    read_anew()
    return trainer.resume_steps(
        _folder(run),
        lambda config: configured(config, **settings),
        trust_code=trust_code,
        allow=allow_changes,
        skip_damaged=skip_damaged,
        quiet=quiet,
        callbacks=_checked(callbacks),
    )


def _folder(run: str | Path | SavedRun) -> Path:
    if isinstance(run, str | Path):
        return Path(run)
    if isinstance(run, SavedRun):
        return run.folder
    raise ValueError(f"{run!r} ({type(run).__name__}) is no run, so nothing was done. Give its folder, or a run.")


def load(run: str | Path) -> SavedRun:
    """A run that is there already, finished or not."""
    return SavedRun(_folder(run))


def evaluate(
    policy: str | Path | SavedRun,
    *,
    task: Task = None,
    reward: Reward = None,
    prompts: int | None = None,
    samples: int | None = None,
    k: Sequence[int] | None = None,
    temperature: float | None = None,
    **settings: Any,
) -> Evaluation:
    """Held-out accuracy of a policy: a folder, a name such as "tiny", or a run.

    A policy of a run is evaluated on the task of the run, with its settings, unless others are given. `prompts`,
    `samples`, `k` and `temperature` are those of `eval`; the same prompts and random keys come every time.
    """
    from gruppo.cli.evaluate import evaluated_as, evaluations, run_of, warn_of_other_files
    from gruppo.train.run import tasks_of

    name = str(_folder(policy))
    run = run_of(name)
    given = {"prompts": prompts, "samples": samples, "k": k, "temperature": temperature}
    wanted = {f"eval.{key}": value for key, value in given.items() if value is not None}
    base = RunConfig() if run is None else evaluated_as(run)
    config = configured(base, task=task, reward=reward, **{**wanted, **settings})
    wanted_k(config.eval.samples, config.eval.k, config.eval.temperature)
    warn_of_other_files([name], config)
    sampling = dataclasses.replace(config.sampling, temperature=config.eval.temperature)
    return evaluations(config, tasks_of(config), sampling, [name])[name]


def compare(
    entrants: "Sequence[str | Path | Method | SavedRun]",
    *,
    task: Task = None,
    reward: Reward = None,
    seeds: int | Sequence[int] = 5,
    metric: str = "held_out",
    jobs: int = 1,
    quiet: bool = False,
    **settings: Any,
) -> "Comparison":
    """Several methods on the same task and seeds, each run in a process of its own, or runs that are finished.

    An entrant is a `Method`, a name, or a name with settings of its own, "grpo optim.lr=1e-3". The same call goes on
    where an earlier one was stopped.
    """
    from gruppo.lab.compare import command
    from gruppo.lab.compare.compare import Comparison, finished, found_runs
    from gruppo.lab.compare.processes import refuse_other_settings, run_all
    from gruppo.train.opening import refuse_name

    if isinstance(entrants, str | Path | Method | SavedRun):
        raise ValueError(
            f"entrants={entrants!r} is one entrant and no list, so nothing was started. Write [{entrants!r}]."
        )
    if all(isinstance(e, SavedRun | Path) or Path(str(e), "config.toml").is_file() for e in entrants):
        results, missing = found_runs([e.folder if isinstance(e, SavedRun) else Path(str(e)) for e in entrants])
        title = ", ".join(dict.fromkeys(r.entrant for r in results))
        return Comparison(title, metric, results, dict.fromkeys(missing, "not finished"))
    base = configured(task=task, reward=reward, **settings)
    taking_part = [_entrant(e, base) for e in entrants]
    command.refuse_twins([e for e, _ in taking_part])
    refuse_name(base.save)
    folder = Path(base.save.folder) / (base.save.name or command.default_name([e for e, _ in taking_part], base))
    numbers = range(base.seed, base.seed + seeds) if isinstance(seeds, int) else seeds
    planned = [_planned(e, config, seed, folder) for seed in numbers for e, config in taking_part]
    refuse_other_settings(planned, folder)
    failed = run_all(planned, folder, jobs, quiet=quiet)
    results = [p.result() for p in planned if finished(p.path)]
    title = f"{', '.join(e.name for e, _ in taking_part)} on {base.task.name}"
    comparison = Comparison(title, metric, results, failed)
    if not results:
        raise ValueError("no run has come to its end, so there is nothing to compare. " + comparison.markdown())
    comparison.write(folder)
    return comparison


def _entrant(given: Any, base: RunConfig) -> "tuple[Entrant, RunConfig]":
    from gruppo.cli.overrides import apply
    from gruppo.lab.compare.command import Entrant, parsed

    if isinstance(given, Method):
        return Entrant(given.name, ()), configured(dataclasses.replace(base, method=given))
    found = parsed(str(given))
    if found.earlier:
        raise ValueError(f"{given!r} has several stages, which only the command makes: gruppo compare {given!r} …")
    refuse_old([setting.partition("=")[2] for setting in found.settings])
    return found, apply(base, found.settings)


def _planned(entrant: "Entrant", config: RunConfig, seed: int, folder: Path) -> Any:
    from gruppo.lab.compare.processes import Planned

    where = {"seed": seed, "save.folder": str(folder / entrant.slug), "save.name": f"seed-{seed}"}
    config = configured(config, **where)
    return Planned(entrant.name, config, ("--config", store(folder, "run", tomli_w.dumps(to_table(config)), ".toml")))


def _checked(callbacks: Sequence[Callback]) -> Sequence[Callback]:
    if isinstance(callbacks, type | Callback):
        raise ValueError(
            f"callbacks={callbacks!r} is no list, so nothing was started. Write callbacks=[…], with objects."
        )
    for c in callbacks:
        if not isinstance(c, Callback):
            raise ValueError(
                f"callbacks has {c!r}, which is no callback, so nothing was started. Derive a class from "
                "gruppo.Callback, and pass an object of it."
            )
    return callbacks


# from arguments to a configuration


def configured(
    method: str | Method | RunConfig = "grpo", *, task: Task = None, reward: Reward = None, **settings: Any
) -> RunConfig:
    """The configuration that these arguments describe; `train` takes it in place of a method."""
    read_anew()
    config, wanted = RunConfig(), list(_settings(settings))
    if isinstance(method, RunConfig):
        config = method
    elif isinstance(method, Method):
        config = dataclasses.replace(config, method=method)
    else:
        wanted.append(Setting("method", "=", method))
    folder = Path(apply_settings(config, [s for s in wanted if s.path.startswith("save.")]).save.folder)
    config = dataclasses.replace(config, method=written_method(config.method, folder))
    if isinstance(task, TaskConfig):
        config = dataclasses.replace(config, task=task)
    elif task is not None:
        wanted += _task_settings(task, folder)
    if reward is not None:
        path, args = reward_path(reward, folder)
        wanted += [Setting("task.reward", "=", path), *_settings({"task.args": args})]
    refuse_old([s.value for s in wanted])  # before it is loaded
    config = apply_settings(config, wanted)
    refuse_old(config)
    return config


def _task_settings(task: Any, folder: Path) -> list[Setting]:
    if isinstance(task, str | Path):
        return [Setting("task", "=", str(task))]
    if isinstance(task, Mapping):
        rest = {key: value for key, value in task.items() if key != "name"}
        named = _task_settings(task["name"], folder) if "name" in task else []
        return [*named, *_settings({"task": rest})]
    if isinstance(task, TaskSet):
        return [Setting("task", "=", tasks_path(task, folder))]
    rows = list(task) if hasattr(task, "__iter__") else [task]
    if not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(
            f"task is {type(task).__name__} and no task. Give a name, a TaskConfig, a TaskSet, or a list of rows "
            "{'prompt': …, 'answer': …}; of a pandas table, table.to_dict('records')."
        )
    return [Setting("task", "=", rows_file(rows, folder))]


def _settings(table: Mapping[str, Any], at: str = "") -> Iterator[Setting]:
    """Nested dicts and paths with dots as settings; a path that ends in + or - extends or shortens a chain."""
    for key, value in table.items():
        path = f"{at}{key}"
        if isinstance(value, Mapping):
            yield from _settings(value, f"{path}.")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [f.name for f in dataclasses.fields(value)]
            yield from _settings({n: getattr(value, n) for n in names}, f"{path}.")
        else:
            op = f"{path[-1]}=" if path[-1] in "+-" else "="
            value = str(value) if isinstance(value, Path) else tuple(value) if isinstance(value, range) else value
            yield Setting(path.rstrip("+-"), op, value)
