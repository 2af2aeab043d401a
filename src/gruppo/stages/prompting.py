"""What does the policy see, and under which context does it learn? A chain: each occupant may rewrite the prompts."""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gruppo.stages.context import Ask, Context, Prompt
from gruppo.stages.occupant import Occupant


class Prompting(Protocol):
    def __call__(self, ctx: Context, ask: Ask, prompts: list[Prompt]) -> list[Prompt]: ...


def plain(ctx: Context, ask: Ask) -> list[Prompt]:
    """The task's own prompt, through the model's chat template if it has one. Stands at the start of every chain."""
    return [Prompt(ctx.tokenizer.chat(ask.task.messages), ask, ask.group, ask.samples)]


@dataclass(frozen=True)
class Hint(Occupant):
    """Give the first share `ask.how["hint"]` of the task's solution after the prompt, as tokens of source `hint`.

    With `learn_without` the tokens that follow are learned under the prompt without the hint (`train_as`).
    """

    learn_without: bool = False
    makes = frozenset({"hint"})
    witness = {"learn_without": True}

    def __call__(self, ctx: Context, ask: Ask, prompts: list[Prompt]) -> list[Prompt]:
        share = float(ask.how.get("hint", 0.0))
        solution = ctx.tokenizer.encode(ask.task.solution)
        hint = solution[: round(share * len(solution))]
        if not len(hint):
            return prompts
        out: list[Prompt] = []
        for p in prompts:
            start = len(p.ids)
            ids = np.concatenate([p.ids, hint])
            if self.learn_without:
                out.append(replace(p, ids=ids, train_as=p.ids))
            else:
                out.append(replace(p, ids=ids, given=(*p.given, (start, start + len(hint), "hint"))))
        return out


def prompts_for(ctx: Context, chain: tuple[Occupant, ...], ask: Ask) -> list[Prompt]:
    prompts = plain(ctx, ask)
    for occupant in chain:
        prompts = occupant(ctx, ask, prompts)  # type: ignore[operator]
    return prompts
