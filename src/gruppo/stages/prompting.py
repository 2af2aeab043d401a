"""What does the policy see, and in which context does it learn? A chain: each occupant may rewrite the prompts."""

from dataclasses import dataclass, replace
from math import floor
from typing import Any, Protocol

import numpy as np

from gruppo.stages.context import Ask, Context, Prompt
from gruppo.stages.occupant import Occupant, setting
from gruppo.stages.tooling import chat_of


class Prompting(Protocol):
    def __call__(self, ctx: Context, ask: Ask, prompts: list[Prompt]) -> list[Prompt]: ...


def plain(ctx: Context, ask: Ask) -> list[Prompt]:
    """The task's own prompt, in the chat template of the model if it has one. Every chain starts with it."""
    return [Prompt(chat_of(ctx.tokenizer, ask.task), ask, ask.group, ask.samples)]


def worded(ctx: Context, task: Any, text: str) -> Any:
    """The ids of the task's dialogue, with this text as the prompt."""
    return chat_of(ctx.tokenizer, replace(task, prompt=text))


def hint_of(ask: Ask) -> str:
    """The hint that an ask requests, "" for none.

    `how["hint_level"]` counts from 1, the weakest hint, and is capped at the last; `how["hint"]` is a share of the
    solution, counted in steps. Neither gives the last step. A task with neither hints nor a solution is refused even if
    no hint is requested, so that this happens at the first batch and not in the middle of a run.
    """
    hints = ask.task.hints
    if not hints and ask.task.solution in ("", ask.task.answer):
        raise ValueError(
            f"prompting gives hints, and task {ask.task.uid!r} has no worked solution to give. Give its row a solution "
            "(task.solution=FIELD) or hints, a list of texts; or use a method without hints, such as method=grpo."
        )
    share = float(ask.how.get("hint", 0.0))
    level = int(ask.how.get("hint_level", floor(share * (len(hints) + 1) + 0.5)))
    return hints[min(level, len(hints)) - 1] if level > 0 and hints else ""


@dataclass(frozen=True)
class Hint(Occupant):
    """Begin the answer with the hint that the ask requests: tokens of source `hint`, after the prompt.

    They are scored as part of the answer. With `learn_without`, the tokens that follow are learned under the prompt
    without the hint (`train_as`), for hints that are not part of the answer.
    """

    learn_without: bool = False
    writes = ("hint",)

    def __call__(self, ctx: Context, ask: Ask, prompts: list[Prompt]) -> list[Prompt]:
        hint = ctx.tokenizer.encode(hint_of(ask))
        if not len(hint):
            return prompts
        out: list[Prompt] = []
        for p in prompts:
            start = len(p.ids)
            ids = np.concatenate([p.ids, hint])
            if self.learn_without:
                out.append(replace(p, ids=ids, train_as=p.ids, answer_from=start))
            else:
                out.append(replace(p, ids=ids, given=(*p.given, (start, start + len(hint), "hint"))))
        return out


@dataclass(frozen=True)
class HintInMessage(Occupant):
    """Put the hint into the user's message, for instruction-tuned models: `template` has {prompt} and {hint}.

    The hint is not part of the answer. With `learn_without`, the answer is learned under the message without the hint.
    """

    template: str = setting("{prompt}\n\nHint: {hint}", witness="{hint}\n{prompt}")
    learn_without: bool = False

    def wrong(self) -> str:
        return missing_fields(self.template, "prompt", "hint")

    def __call__(self, ctx: Context, ask: Ask, prompts: list[Prompt]) -> list[Prompt]:
        hint = hint_of(ask).strip()
        if not hint:
            return prompts
        ids = worded(ctx, ask.task, self.template.format(prompt=ask.task.prompt, hint=hint))
        return [replace(p, ids=ids, train_as=p.ids if self.learn_without else None) for p in prompts]


def missing_fields(template: str, *names: str) -> str:
    """Why a template cannot be used: it leaves a field out, or has an unknown one; "" if it can."""
    try:
        said = template.format(**{n: f"<{n}>" for n in names})
    except (KeyError, IndexError, ValueError) as error:
        said = f"({type(error).__name__}: {error})"
    missing = [n for n in names if f"<{n}>" not in said]
    return "" if not missing else (
        f"template={template!r} has no {{{missing[0]}}}, or something else in braces: {said}. Write "
        f"{' and '.join(f'{{{n}}}' for n in names)} where these texts belong."
    )  # fmt: skip


def prompts_for(ctx: Context, chain: tuple[Occupant, ...], ask: Ask) -> list[Prompt]:
    prompts = plain(ctx, ask)
    for occupant in chain:
        prompts = occupant(ctx, ask, prompts)  # type: ignore[operator]
    return prompts
