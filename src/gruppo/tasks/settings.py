"""The settings of a task: `task.prompt=question` on the command line, `prompt="question"` for `load_task`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gruppo.fields import Checked, setting


@dataclass(frozen=True)
class TaskConfig(Checked):
    """Which problems, and which scorer judges the answers."""

    name: str = "addition"  # built in, mix:NAME+NAME, ./data.jsonl, hf:NAME or hf:./folder, gym:NAME, or ./file.py:make
    level: str = ""  # "2", or a mixture "1-3"; empty: the default of the task
    seed: int = setting(0, low=0)  # chooses the problems and their order, but never those that are held out
    train_size: int = setting(0, low=0, high=10_000_000)  # to train on; 0: all rows of a file, or 20,000 generated
    held_out: float | str = ""  # a share of the rows, a file, or a split; empty: the test split of a dataset, else 0.1
    prompt: str = ""  # field of a row with the prompt; empty: prompt, question, problem, ..., whichever exists
    answer: str = ""  # field of a row with the right answer; empty: answer, output, completion, ...
    solution: str = ""  # field of a row with the worked solution; empty: solution, if it exists
    chosen: str = ""  # field of a row with the better answer; empty: chosen, if it exists
    rejected: str = ""  # field of a row with the worse answer; empty: rejected, if it exists
    config: str = ""  # configuration of a Hugging Face dataset
    split: str = ""  # split of a Hugging Face dataset to train on; empty: train
    system: str = ""  # system prompt, for models with a chat template
    template: str = ""  # prompt made from the fields of a row: "{question} Answer with a number."
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)  # for a gym task, or for your make
    format: str = "line"  # how an action is read in an environment: line, tags, rlvmr, json, tags:T,...:A, words:W,...
    window: int = setting(-1, low=-1)  # turns before the present one that are seen in an environment; -1: all
    hosted: bool = False  # your own worlds are played in processes, so that one that hangs in any way can be killed
    against: str = ""  # in a game, who plays the other seats: random, gold, gold:0.7, or a player of the world
    tools: str = ""  # that may be called before answering: calculator, python, search, ./mine.py:TOOLS, or several: A,B
    agent: str = ""  # your program, which plays the episodes: ./mine.py:agent or a command line (docs/serve.md)
    reward: str = ""  # exact, math, reward_model, llm_judge, ... or ./file.py:function; empty: the task's own
    args: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)  # arguments of the reward
    seconds: float = setting(5.0, above=0, high=1e6)  # limit for judging an answer, an agent, a world's step (10)
    workers: int = setting(0, low=0, high=1024)  # processes that judge answers at once; 0: one per core, at most 8
    concurrency: int = setting(64, low=1)  # answers that an `async def` reward judges at once in a process, or agents
    call_seconds: float = setting(0.0, low=0, high=1e6)  # time limit for a batched reward's call; 0: seconds per answer
    start_seconds: float = setting(60.0, above=0, high=1e6)  # time limit for loading the reward or the agent


_PLAIN = TaskConfig()
JUDGING = ("seconds", "workers", "concurrency", "call_seconds", "start_seconds")


def plain(value: Any) -> Any:
    """Mappings and sequences as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def refuse_unused(settings: TaskConfig, used: tuple[str, ...]) -> None:
    """Refuses a setting that the task would silently ignore."""
    # format, window and hosted: stages.converse refuses them where there is no environment; against: envs.against.
    worlds = ("format", "window", "hosted", "against", "tools", "agent")
    everywhere = ("name", "reward", "args", *JUDGING, "system", "template", *worlds)
    for f in fields(TaskConfig):
        value = getattr(settings, f.name)
        if f.name not in (*everywhere, *used) and value != getattr(_PLAIN, f.name):
            named = ", ".join(value) if isinstance(value, Mapping) else f"{f.name} ({value})"
            raise ValueError(
                f"{settings.name} has no option {named}, so it would have no effect. Leave it out. Options: "
                f"{', '.join((*used, *everywhere[1:]))}."
            )
