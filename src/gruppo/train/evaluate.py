"""Held-out evaluation: one answer a prompt, always under the same keys, so that two policies see the same luck."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gruppo.data import Episode, key_hash
from gruppo.engines.base import Request, complete
from gruppo.stages import Ask, Context, Sampling
from gruppo.stages.prompting import plain
from gruppo.stages.rollout import Group


@dataclass(frozen=True)
class Evaluation:
    accuracy: float  # mean task score of the judged answers
    error: float  # standard error of it
    prompts: int
    failed: int
    length: float
    truncated: float
    by_level: dict[int, float]
    episodes: list[Episode]

    def table(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "episodes"}


async def evaluate(engine: Any, tokenizer: Any, judge: Any, tasks: Any, sampling: Sampling, prompts: int) -> Evaluation:
    chosen = [tasks.held_out[i] for i in range(min(prompts, len(tasks.held_out)))]
    if not chosen:
        raise ValueError(f"task {tasks.name} has no held-out problems: there is nothing to measure on. Give it some.")
    ctx = Context(engine=engine, tokenizer=tokenizer, sampling=sampling, samples=1)
    asked = [plain(ctx, Ask(task, 1))[0] for task in chosen]
    keys = [int(key_hash("eval", task.uid)) for task in chosen]
    stop = (tokenizer.eos,)
    requests = [Request(prefix=p.ids, key=k, stop=stop, **vars(sampling)) for p, k in zip(asked, keys, strict=True)]
    done = await complete(engine, requests)
    rollout = Group()
    episodes = [rollout.episode(ctx, p, k, r, c) for p, k, r, c in zip(asked, keys, requests, done, strict=True)]
    verdicts = judge.score([(task, e.text) for task, e in zip(chosen, episodes, strict=True)])
    for e, v in zip(episodes, verdicts, strict=True):
        e.reward, e.error = dict(v.components), v.error
    return _sum_up(chosen, episodes, verdicts)


def _sum_up(chosen: list[Any], episodes: list[Episode], verdicts: list[Any]) -> Evaluation:
    scores = [
        (t.level, v.components.get("task", float("nan")))
        for t, v in zip(chosen, verdicts, strict=True)
        if v.status == "ok"
    ]
    if not scores:
        raise ValueError(f"none of {len(chosen)} held-out answers could be judged. First error: {verdicts[0].error}")
    values = np.array([s for _, s in scores])
    levels = sorted({level for level, _ in scores})
    return Evaluation(
        accuracy=float(values.mean()),
        error=float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan"),
        prompts=len(chosen),
        failed=len(chosen) - len(scores),
        length=float(np.mean([e.tokens for e in episodes])),
        truncated=float(np.mean([e.status.name == "TRUNCATED" for e in episodes])),
        by_level={n: float(np.mean([s for level, s in scores if level == n])) for n in levels},
        episodes=episodes,
    )
