"""From the settings of a task to its task set: a file, a dataset, a gym, a built-in family, or a make of your own."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from gruppo.tasks.base import Family, Scorer, Task, Tasks, TaskSet, domains_of
from gruppo.tasks.build import is_graded, scorer_of
from gruppo.tasks.files import is_data
from gruppo.tasks.imports import is_path, load_object, misfit, nearest, written
from gruppo.tasks.settings import TaskConfig, plain, refuse_unused
from gruppo.tasks.template import prompts

GENERATED = ("level", "seed", "train_size")
KINDS = ("hf", "gym", "mix", "env")
OTHER_DATA = (".csv", ".tsv", ".json", ".parquet", ".arrow")


def load(settings: TaskConfig, held_out_size: int = 1_000) -> TaskSet:
    """The task set that the settings describe. A ValueError says what is wrong with them."""
    if not settings.tools:
        made = _played(_loaded(settings, held_out_size), settings)
        return import_module("gruppo.envs.against").against(made, settings) if settings.against else made
    tools = import_module("gruppo.envs.with_tools")
    if settings.against:
        raise ValueError(
            f"task.against={settings.against}: task.tools is for tasks of one answer, in which nobody else plays. "
            "Leave one of them out."
        )
    if settings.agent:
        raise ValueError(
            f"task.tools={settings.tools}: with task.agent the program calls its own tools, so these would have no "
            "effect. Leave one of them out."
        )
    rest = dict(settings.options)
    turns = rest.pop("turns", tools.TURNS)  # of an episode, as in a world
    return tools.attached(_loaded(replace(settings, options=rest), held_out_size), settings, turns)


def _played(made: TaskSet, settings: TaskConfig) -> TaskSet:
    """With an agent: its program plays and pays, so there is no scorer."""
    if not settings.agent:
        return made
    if made.env:
        raise ValueError(
            f"task={settings.name} is played in its environment, so task.agent would have no effect. Leave one of them "
            "out; an agent can hold an environment of its own (gruppo.envs.make_env)."
        )
    for name in ("reward", "args"):
        if getattr(settings, name):
            raise ValueError(
                f"task.{name} would have no effect: with task.agent the program returns the reward. Leave it out, and "
                "score in the agent."
            )
    return replace(made, scorer="", env="agent", graded=False)


def _loaded(settings: TaskConfig, held_out_size: int) -> TaskSet:
    if settings.train_size < 0:
        raise ValueError(f"train_size={settings.train_size}: the split would be empty. Use at least 1, or 0 for all.")
    name = settings.name
    if name.startswith("gym:"):
        return _worded(import_module("gruppo.tasks.gym").load(settings, held_out_size), settings)
    if name.startswith("hf:"):
        return import_module("gruppo.tasks.hub").load(settings)
    if is_data(name) or name == "humaneval":
        return import_module(f"gruppo.tasks.{'files' if is_data(name) else name}").load(settings)
    if name.startswith(("mix:", "env:")):
        kind = "tasks.mixture" if name.startswith("mix:") else "envs.adapters"
        made = import_module(f"gruppo.{kind}").load(settings, held_out_size)
    else:
        _refuse_other_data(name)
        made = _own(settings, held_out_size) if is_path(name) else _built_in(settings, held_out_size)
    return _worded(_judged(made, settings), settings)


def short_name(name: str) -> str:
    """A word for a task, for folder names: gsm8k for hf:openai/gsm8k, mine for ./mine.py:make, mix for a mixture."""
    kind, _, rest = name.partition(":")
    return Path(rest if kind in KINDS and kind != "mix" and rest else kind).stem or "task"


def _refuse_other_data(name: str) -> None:
    if name.endswith(OTHER_DATA) or (is_path(name) and Path(name).is_dir()):
        raise ValueError(f"task={name}: only JSONL files are read directly. Write task=hf:{name}")
    kind, colon, rest = name.partition(":")
    near = nearest(kind, KINDS) if colon and not kind.endswith(".py") else ""
    if near or (colon and "/" in rest and not kind.endswith(".py")):
        raise ValueError(
            f"task={name}: {kind!r} is no kind of data.{near} Write hf:NAME for a Hugging Face dataset, gym:NAME for "
            "reasoning-gym, mix:NAME+NAME for several tasks, env:LIBRARY/ID for worlds, or ./file.py:make for your own."
        )


def _built_in(settings: TaskConfig, held_out_size: int) -> TaskSet:
    from gruppo.tasks import family

    found = family(settings.name)
    if found.scorer:
        refuse_unused(settings, GENERATED)
    else:  # a world
        refuse_unused(settings, (*GENERATED, "options"))
        found = import_module("gruppo.envs.family").family(settings.name).with_options(plain(settings.options))
    return found.task_set(settings.level or None, settings.seed, settings.train_size or 20_000, held_out_size)


def _own(settings: TaskConfig, held_out_size: int) -> TaskSet:
    """What `./file.py:make` returns, called with the options and with the settings that differ from their defaults."""
    refuse_unused(settings, (*GENERATED, "options"))
    level = int(settings.level) if settings.level.isdecimal() else settings.level
    given = {"level": level, "seed": settings.seed, "train_size": settings.train_size}
    arguments = {k: v for k, v in given.items() if v} | plain(settings.options)
    arguments |= {"held_out_size": held_out_size} if held_out_size != 1_000 else {}
    made = load_object(settings.name)
    if callable(made):
        trouble = misfit(made, **arguments)
        if trouble:
            raise ValueError(
                f"task={settings.name!r} cannot be called with {written(arguments)} ({trouble}). Add these parameters, "
                "or leave the settings out."
            )
        made = made(**arguments)
    if isinstance(made, Family):
        made = made.task_set(**arguments)
    if not isinstance(made, TaskSet):
        raise ValueError(
            f"task={settings.name!r} gave {type(made).__name__} and not a TaskSet. "
            "Return gruppo.tasks.TaskSet(name, train, held_out, scorer, max_tokens)."
        )
    return made


def _judged(made: TaskSet, settings: TaskConfig) -> TaskSet:
    """With the scorer and the arguments of the settings, if there are any."""
    if settings.reward:
        return replace(made, scorer=scorer_of(settings.reward, settings), graded=is_graded(settings.reward))
    if not settings.args:
        return made
    if not str(made.scorer):
        raise ValueError(
            f"{settings.name} is judged by its environment, so task.args would have no effect. Leave it out, or name a "
            "task.reward."
        )
    before = made.scorer.args if isinstance(made.scorer, Scorer) else {}
    return replace(made, scorer=Scorer(str(made.scorer), {**before, **plain(settings.args)}))


def _worded(made: TaskSet, settings: TaskConfig) -> TaskSet:
    if not settings.template and not settings.system:
        return made
    train, held_out = (worded(split, settings.template, settings.system) for split in (made.train, made.held_out))
    train[0]  # refuses a template with an unknown field now, and not in the first step
    return replace(made, train=train, held_out=held_out)


def worded(tasks: Sequence[Task], template: str, system: str) -> Tasks:
    """The tasks with a template over `prompt` and the fields of `meta`, and with a system prompt."""

    def make(index: int) -> Task:
        task = tasks[index]
        known = {**task.meta, "level": task.level, "prompt": task.prompt}
        prompt = prompts(template, tuple(known), task.source)(known) if template else task.prompt
        return replace(task, prompt=prompt, system=system or task.system)

    return Tasks("worded", len(tasks), make, lambda: domains_of(tasks))
