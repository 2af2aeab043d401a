"""Whether the prompts of a file fit the model: found out at the start of a run, not at the step that draws them."""

from typing import Any

from gruppo.tasks.base import Task, TaskSet

LONGEST = 8  # prompts that are looked at for their length


def refuse_unfit(tasks: TaskSet, tokenizer: Any, context: int, max_tokens: int) -> None:
    """Refuses a prompt that the tokenizer cannot write, or that leaves no room for an answer.

    Looks at the longest prompts and at one for every character that occurs. Generated tasks are not looked at: to
    look would be to generate them all.
    """
    rows = [t for split in (tasks.train, tasks.held_out) if isinstance(split, list | tuple) for t in split]
    if not rows:
        return
    seen: dict[str, Task] = {}
    for task in rows:
        for c in set(task.prompt).difference(seen):
            seen[c] = task
    longest = sorted(rows, key=lambda t: -len(t.prompt))[:LONGEST]
    for task in {t.uid: t for t in (*seen.values(), *longest)}.values():
        try:
            length = len(tokenizer.chat(task.messages))
        except ValueError as error:
            raise ValueError(f"{_named(task)} cannot be written in this model's tokens: {error}") from None
        if length + max_tokens > context:
            raise ValueError(
                f"{_named(task)} has {length} tokens, and with sampling.max_tokens={max_tokens} that is more than "
                f"the {context} of this model's context: its answers could not be written. Take such rows out, lower "
                "sampling.max_tokens, or use a model with a longer context."
            )


def _named(task: Task) -> str:
    start = " ".join(task.prompt.split())
    return f"the prompt {start[:60] + '…' if len(start) > 60 else start!r} of {task.source}"
