"""At the start of a run: do the prompts of a file fit the model, and how long may an answer be?"""

from contextlib import suppress
from typing import Any

from gruppo.policies.tokenizer import CharTokenizer
from gruppo.policies.words import WordTokenizer
from gruppo.tasks.base import Task, TaskSet

LONGEST = 8  # prompts whose length is checked


def refuse_unfit(tasks: TaskSet, tokenizer: Any, context: int, max_tokens: int) -> None:
    """Refuses a prompt that the tokenizer cannot encode, or that leaves no room for an answer.

    Checks the longest prompts, and one for every character that occurs. Generated tasks are not checked, because all of
    them would have to be generated.
    """
    rows = [t for split in (tasks.train, tasks.held_out) if isinstance(split, list | tuple) for t in split]
    if not rows:
        return
    seen: dict[str, Task] = {}
    for task in rows:
        for c in set(task.prompt).difference(seen):
            seen[c] = task
    longest = sorted(rows, key=lambda t: -len(t.prompt))[:LONGEST]
    tools = [t for t in rows if t.uses_tools][:LONGEST]  # which not every chat template can show
    for task in {t.uid: t for t in (*seen.values(), *longest, *tools)}.values():
        try:
            length = len(tokenizer.chat(task.messages))
        except ValueError as error:
            raise ValueError(f"{_named(task)} cannot be written in this model's tokens: {error}") from None
        if length + max_tokens > context:
            fewer = "lower sampling.max_tokens, " if length < context else ""  # an answer has at least one token
            raise ValueError(
                f"{_named(task)} has {length} tokens, and with sampling.max_tokens={max_tokens} that is more than "
                f"the {context} of this model's context. Take such rows out, {fewer}or use a "
                "model with a longer context."
            )


def most_tokens(tasks: TaskSet, tokenizer: Any, context: int) -> int:
    """Tokens of an answer, if no setting says: as the task does, and more for a model that writes text.

    The longest prompt must leave room for them. Of generated tasks only a few are read, so twice as much is left.
    """
    if not tasks.text_tokens or isinstance(tokenizer, CharTokenizer | WordTokenizer):
        return tasks.max_tokens
    listed = isinstance(tasks.train, list | tuple)
    rows = (
        [*tasks.train, *tasks.held_out] if listed else [tasks.train[i] for i in range(min(LONGEST, len(tasks.train)))]
    )
    lengths = [0]
    for task in sorted(rows, key=lambda t: -len(t.prompt))[:LONGEST]:
        with suppress(ValueError):  # refuse_unfit says what is wrong with it
            lengths.append(len(tokenizer.chat(task.messages)))
    return max(tasks.max_tokens, min(tasks.text_tokens, context - max(lengths) * (1 if listed else 2)))


def _named(task: Task) -> str:
    start = " ".join(task.prompt.split())
    return f"the prompt {start[:60] + '…' if len(start) > 60 else start!r} of {task.source}"
