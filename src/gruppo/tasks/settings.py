"""The settings of a task: `task.prompt=question` on the command line, `prompt="question"` for `load_task`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class TaskConfig:
    """Which problems, and who judges the answers."""

    name: str = "addition"  # built in, mix:NAME+NAME, ./data.jsonl, hf:NAME or hf:./folder, gym:NAME, or ./file.py:make
    level: str = ""  # "2", or a mixture "1-3"; empty: the task's default
    seed: int = 0  # which problems come, and in which order; never which are held out
    train_size: int = 0  # problems to train on; 0: all rows of a file, 20,000 generated ones
    held_out: float | str = ""  # a share of the rows, a file, or a split; empty: the set's test split, or 0.1
    prompt: str = ""  # field of a row with the prompt; empty: prompt, question, problem, ..., whichever is there
    answer: str = ""  # field of a row with the right answer; empty: answer, output, completion, ...
    solution: str = ""  # field of a row with the worked solution; empty: solution, if it is there
    chosen: str = ""  # field of a row with the better answer; empty: chosen, if it is there
    rejected: str = ""  # field of a row with the worse answer; empty: rejected, if it is there
    config: str = ""  # configuration of a Hugging Face dataset
    split: str = ""  # split of a Hugging Face dataset to train on; empty: train
    system: str = ""  # system prompt, for models with a chat template
    template: str = ""  # how a row becomes a prompt: "{question} Answer with a number."
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)  # of a gym task, or of your make
    reward: str = ""  # exact, numeric, math, regex, json_schema, or your own ./file.py:function; empty: the task's
    args: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)  # arguments of the reward
    seconds: float = 5.0  # time limit of one judgement


_PLAIN = TaskConfig()


def plain(value: Any) -> Any:
    """Tables and lists as dict and list, however the settings were read."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def refuse_unused(settings: TaskConfig, used: tuple[str, ...]) -> None:
    """A setting that the task does not look at would have no effect, silently."""
    everywhere = ("name", "reward", "args", "seconds", "system", "template")
    for f in fields(TaskConfig):
        if f.name not in (*everywhere, *used) and getattr(settings, f.name) != getattr(_PLAIN, f.name):
            value = getattr(settings, f.name)
            named = ", ".join(value) if isinstance(value, Mapping) else f"{f.name} ({value})"
            raise ValueError(
                f"{settings.name} has no option {named}, so it would have no effect. Leave it out; it has: "
                f"{', '.join((*used, *everywhere[1:]))}."
            )
