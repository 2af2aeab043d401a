"""What the starts can do on held-out problems: figures for recipe.json and docs/models.md, sampled at temperature 1."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
from make_weights import TOKENIZER
from start_writers import BUDGET, DRAFT, EXIT, HINT

from gruppo.engines import NativeEngine, Request, complete
from gruppo.policies.tiny import TinyTransformer
from gruppo.tasks import BUILT_IN, family, load_task
from gruppo.tasks.base import Task
from gruppo.tasks.imports import load_object
from gruppo.tasks.writers import write

Figures = dict[str, dict[str, float]]
LONG = 384  # tokens for a long chain whose sums are written, too


def held_out(name: str, level: int, prompts: int) -> list[Task]:
    return list(load_task(name, level=level, held_out_size=prompts).held_out)


@cache
def held_out_uids(prompts: int = 1000) -> set[str]:
    """Of all built-in tasks that a start may have seen."""
    cells = [(name, level) for name in (*BUILT_IN, "longchain") for level in family(name).levels]
    return {t.uid for name, level in cells for t in held_out(name, level, prompts)}


def answers(policy: TinyTransformer, given: Sequence[str], most: int) -> list[tuple[str, int]]:
    """Text and number of tokens of one answer to each; a text that did not end in time is as far as it came."""
    engine = NativeEngine({"policy": policy}, eos=TOKENIZER.stops)
    ids = [np.concatenate([[TOKENIZER.bos], TOKENIZER.encode(text)]) for text in given]
    done = asyncio.run(complete(engine, [Request(x, most, key=i) for i, x in enumerate(ids)]))
    return [(TOKENIZER.decode(c.ids), len(c.ids)) for c in done]


def row(
    policy: TinyTransformer,
    tasks: Sequence[Task],
    ask: Callable[[Task], str],
    most: int = 0,
    begun: Callable[[Task], str] = lambda task: "",
) -> dict[str, float]:
    """Accuracy and mean length of the answers to what `ask` makes of each task; `begun` is judged with the answer."""
    kind = family(tasks[0].source)
    score = load_object(kind.scorer)
    got = answers(policy, [ask(t) + begun(t) for t in tasks], most or kind.max_tokens[tasks[0].level])
    right = [score(t, begun(t) + text) for t, (text, _) in zip(tasks, got, strict=True)]
    return {"accuracy": round(float(np.mean(right)), 3), "length": round(float(np.mean([n for _, n in got])), 1)}


# ---- tiny-talk -----------------------------------------------------------------------------------


def wrong_draft(task: Task) -> str:
    return write(task, 0.0, Random(task.uid))


def right_draft(task: Task) -> str:
    return write(task, 1.0, Random(task.uid))


def after(task: Task, totals: int) -> str:
    """The prompt, so many right totals, and the exit."""
    return task.prompt + " ".join(map(str, task.meta["totals"][:totals])) + EXIT


def drafts(policy: TinyTransformer, prompts: int) -> Figures:
    out: Figures = {}
    for name, level in [("addition", 2), ("addition", 3), ("chain", 1), ("chain", 2), ("chain", 3)]:
        tasks = held_out(name, level, prompts)
        asked: dict[str, Callable[[Task], str]] = {
            "plain": lambda t: t.prompt,
            "wrong": lambda t: DRAFT.format(prompt=t.prompt, draft=wrong_draft(t)),
            "right": lambda t: DRAFT.format(prompt=t.prompt, draft=right_draft(t)),
            "message": lambda t: HINT.format(prompt=t.prompt, hint=t.hints[-1]) if t.hints else t.prompt,
        }
        found = {how: row(policy, tasks, ask)["accuracy"] for how, ask in asked.items()}
        begun = row(policy, tasks, asked["plain"], begun=lambda t: t.hints[-1] if t.hints else "")
        out[f"{name} {level}"] = found | {"begun": begun["accuracy"]}
    return out


def exits(policy: TinyTransformer, prompts: int) -> Figures:
    out: Figures = {}
    for level in (1, 2, 3):
        tasks = held_out("chain", level, prompts)
        steps = range(len(tasks[0].meta["totals"]) + 1)
        out[f"chain {level}"] = {
            str(n): row(policy, tasks, lambda t, n=n: after(t, n), most=16)["accuracy"] for n in steps
        }
    return out


def budgets(policy: TinyTransformer, prompts: int) -> dict[str, dict[str, dict[str, float]]]:
    out: dict[str, dict[str, dict[str, float]]] = {}
    for level in (2, 3):
        tasks = held_out("chain", level, prompts)
        asked = (3, 6, 9, 12) if level == 2 else (3, 6, 9, 12, 15, 18)
        out[f"chain {level}"] = {
            str(b): row(policy, tasks, lambda t, b=b: BUDGET.format(prompt=t.prompt, budget=b), most=32) for b in asked
        }
    return out


# ---- tiny-long -----------------------------------------------------------------------------------


def chains(policy: TinyTransformer, prompts: int) -> Figures:
    out: Figures = {}
    for name, level in [*(("longchain", n) for n in (1, 2, 3)), ("chain", 2), ("addition", 2)]:
        tasks = held_out(name, level, prompts)
        here = row(policy, tasks, lambda t: t.prompt)
        more = row(policy, tasks, lambda t: t.prompt, most=LONG)
        out[f"{name} {level}"] = {**here, "accuracy, 384": more["accuracy"], "length, 384": more["length"]}
    return out


def measure(name: str, policy: TinyTransformer, prompts: int) -> dict[str, object]:
    """All figures of a start."""
    if name == "tiny-long":
        return {"chains": chains(policy, prompts)}
    return {
        "drafts": drafts(policy, prompts),
        "exits": exits(policy, prompts),
        "budgets": budgets(policy, prompts),
        "others": {
            f"{n} {v}": row(policy, held_out(n, v, prompts), lambda t: t.prompt)
            for n, v in [("countdown", 1), ("countdown", 2), ("sorting", 1), ("sorting", 2)]
        },
    }


# ---- for docs/models.md --------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(held: dict[str, Any]) -> list[str]:
    """The figures of a recipe, as they stand in docs/models.md."""
    if "chains" in held:
        head = ["task and level", "accuracy", "tokens", "accuracy, `sampling.max_tokens=384`", "tokens"]
        keys = ("accuracy", "length", "accuracy, 384", "length, 384")
        return [table(head, [[cell, *(shown(r[k], k) for k in keys)] for cell, r in held["chains"].items()])]
    kinds = ("plain", "wrong", "right", "message", "begun")
    known = [[cell, *(shown(r[k]) for k in kinds)] for cell, r in held["drafts"].items()]
    known += [[cell, shown(r["accuracy"]), "", "", "", ""] for cell, r in held["others"].items()]
    most = max(len(r) for r in held["exits"].values())
    steps = [*map(str, range(most))]
    exits_ = [[cell, *(shown(r[n]) if n in r else "" for n in steps)] for cell, r in held["exits"].items()]
    asked = list(dict.fromkeys(b for r in held["budgets"].values() for b in r))
    budgets_ = [
        [f"{cell}, {name}", *(shown(r[b][key], key) if b in r else "" for b in asked)]
        for cell, r in held["budgets"].items()
        for key, name in (("length", "tokens"), ("accuracy", "accuracy"))
    ]
    return [
        table(
            ["task and level", "plain", "a wrong draft", "a right draft", "a hint in the message", "a hint begins"],
            known,
        ),
        table(["exit after so many totals", *steps], exits_),
        table(["tokens allowed", *asked], budgets_),
    ]


def shown(value: float, key: str = "accuracy") -> str:
    return f"{value:.1f}" if key.startswith("length") else f"{value:.2f}"
