"""Is the trained policy preferred to the initial one? For runs with pairs, in addition to their accuracy.

win rate   both policies answer each held-out prompt with the same random key; the answer with the higher task score
           wins, and a tie counts one half. At the start it is 0.5: both are the same policy.
preferred  share of held-out pairs of recorded answers that the implicit reward of the objective puts in the right
           order; ties count one half. Relative to a reference it is 0.5 at the start, where all implicit rewards are 0.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gruppo.stages import Ask, Stats
from gruppo.stages.prompting import plain
from gruppo.stages.recorded import Recorded
from gruppo.stages.relations import PairUp
from gruppo.tasks.recorded import recorded
from gruppo.train.estimates import Interval, score_interval
from gruppo.train.evaluate import Evaluation
from gruppo.train.regime import Flips
from gruppo.train.run import Run


def scores(found: Evaluation) -> dict[str, float]:
    """{key of an answer: its task score}, for the judged answers."""
    return {str(e.uid): float(e.score) for e in found.episodes if e.scores}


def win_rate(before: Mapping[str, float], found: Evaluation) -> Interval | None:
    """The win rate of `found` against the scores `before`, over common answers; a prompt is one unit."""
    won: dict[str, list[float]] = {}
    after = scores(found)
    for e in found.episodes:
        key = str(e.uid)
        if key in before and key in after:
            won.setdefault(e.group, []).append(0.5 + 0.5 * float(np.sign(after[key] - before[key])))
    return score_interval(np.array([np.mean(x) for x in won.values()])) if won else None


async def preferred(run: Run, prompts: int) -> Interval | None:
    """Over held-out tasks with recorded answers of different reward, best against worst; None if there are none."""
    objective = _implicit(run)
    if objective is None:
        return None
    ctx = run.context(0)
    tasks = (run.tasks.held_out[i] for i in range(min(prompts, len(run.tasks.held_out))))
    asked = [plain(ctx, Ask(task, ctx.samples))[0] for task in tasks if len(recorded(task)) > 1]
    walk = replace(run.walk, pay=Flips())  # as they were recorded
    batch = run.packed(await walk.rewarded(ctx, await Recorded()(ctx, asked)))
    batch = batch.with_columns(**PairUp()(ctx, batch))
    if not batch.size("P"):
        return None
    stats = Stats()
    for n in objective.needs(ctx):
        if n.view == "as_trained":
            read = run.learner.read(n.role, batch, [n])
            stats.update(read)
            batch = batch.with_columns(**read)
    gap_P = batch.pairs.gap(objective.implicit_E(batch, stats)).cpu()
    run.clock.take()  # evaluations do not count in the time of a step
    return score_interval(0.5 + 0.5 * np.sign(gap_P.double().numpy()))


def _implicit(run: Run) -> Any:
    """The objective of the policy that implies a reward, if one does."""
    return next((o for o in run.method.objectives["policy"] if hasattr(o, "implicit_E")), None)


class Wins:
    """The win rate and the implicit preference accuracy of a run; nothing for a run without pairs.

    `facts` is saved in checkpoints, so that a resumed run compares with the same start.
    """

    def __init__(self, run: Run, prompts: int) -> None:
        self.run, self.prompts = run, prompts
        self.facts: dict[str, Any] = {}

    def _pairs(self) -> bool:
        held_out = self.run.tasks.held_out
        return _implicit(self.run) is not None or (len(held_out) > 0 and "answers" in held_out[0].meta)

    async def row(self, found: Evaluation) -> dict[str, float]:
        """The metrics of an evaluation; the first one is the start."""
        if not self._pairs():
            return {}
        self.facts.setdefault("scores", scores(found))
        won, right = win_rate(self.facts["scores"], found), await preferred(self.run, self.prompts)
        row = {} if won is None else {"win_rate": won.mean}
        if right is not None:
            row["held_out/preferred"] = right.mean
            self.facts.setdefault("preferred_before", right.mean)
            self.facts["preferred_after"] = right.mean
        if won is not None:
            self.facts |= {"win_rate": won.mean, "win_rate_low": won.low, "win_rate_high": won.high}
        return row

    def summary(self) -> dict[str, float]:
        return {k: v for k, v in self.facts.items() if k != "scores"}


def win_words(summary: Mapping[str, Any]) -> list[str]:
    """A line about the win rate, if the summary has one."""
    if "win_rate" not in summary:
        return []
    low, high = summary["win_rate_low"], summary["win_rate_high"]
    said = f"win rate against the start {summary['win_rate']:.3f}"
    said += f" ({low:.3f} to {high:.3f})" if low == low else ""  # NaN with a single prompt
    if "preferred_after" in summary:
        said += f", held-out pairs preferred {summary['preferred_before']:.3f} → {summary['preferred_after']:.3f}"
    return [said]
