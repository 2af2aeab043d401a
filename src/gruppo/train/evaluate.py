"""Held-out evaluation, always with the same random keys, so that two policies see the same random numbers.

The key of an answer does not depend on `samples`: more answers are added to the first ones and change none of them.
Intervals are at 95 %, and a prompt with all its answers is one unit (see `estimates.share_interval`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gruppo.data import Episode, Source, Status, key_hash
from gruppo.stages import Ask, Context, Sampling
from gruppo.stages.play import Play, Start, one_answer, shown
from gruppo.stages.prompting import plain
from gruppo.stages.under_way import under_way
from gruppo.stages.walk import NO_TASK
from gruppo.train.estimates import Interval, Reals, maj_at_k, pass_at_k, score_interval, standard_error
from gruppo.train.kuhn import exploited
from gruppo.train.metrics import graded, of_turns, returns_by_agent
from gruppo.train.parts import RESULTS, by_task, games_of, parts_logged

MOST = 1000  # answers per prompt; beyond that, the number of sets of k answers overflows a float


@dataclass(frozen=True)
class Evaluation:
    accuracy: float  # task score, averaged over the judged answers of a prompt, then over prompts
    error: float  # standard error of it, over prompts
    low: float  # of its interval
    high: float
    prompts: int
    samples: int  # answers per prompt
    measure: str  # what the mean is called: "accuracy", or "score" where scores are not only 0 and 1
    graded: float  # share of the judged answers with a score that is neither 0 nor 1
    failed: int  # answers that could not be judged; they do not count
    length: float  # sampled tokens of an answer, truncated ones included
    truncated: float  # share of answers that ran out of tokens
    entropy: float  # nats: minus the mean log-probability of the sampled tokens
    avg_at: dict[int, Interval]
    pass_at: dict[int, Interval]
    maj_at: dict[int, Interval]
    distinct: float | None  # different right answers of a prompt, mean over prompts; None for one or two answers
    by_level: dict[int, dict[str, Any]]
    by_agent: dict[str, float]  # mean return of each agent, if there are several
    turns: dict[str, float]  # metrics of turns, in an environment
    by_task: dict[str, dict[str, Any]]  # {task/level: its part of all this}, if there are several
    against: dict[str, Any]  # with task.against: who, the shares of games won, drawn and lost, and the same by seat
    exact: dict[str, float]  # what needs no sample: in Kuhn poker, the exploitability of the policy
    score_P: Reals = field(repr=False)  # of each prompt; NaN where nothing was judged
    episodes: list[Episode] = field(repr=False)

    def table(self) -> dict[str, Any]:
        """For JSON."""
        return {k: _plain(v) for k, v in vars(self).items() if k not in ("episodes", "score_P")}

    def logged(self) -> dict[str, float]:
        """For the metrics of a run: accuracy and length and, with several answers per prompt, pass@k and maj@k."""
        several = {"pass": self.pass_at, "maj": self.maj_at} if self.samples > 1 else {}
        named = {f"held_out/{name}@{k}": i.mean for name, at in several.items() for k, i in at.items()}
        named |= {} if self.distinct is None else {"held_out/distinct": self.distinct}
        failed = {"held_out/failed": float(self.failed)} if self.failed else {}
        failed |= {"held_out/graded": self.graded} if self.measure == "score" else {}
        agents = {f"held_out/return/{agent}": r for agent, r in self.by_agent.items()}
        turns = {f"held_out/{name}": value for name, value in self.turns.items()}
        turns |= {f"held_out/{name}": self.against[name] for name in RESULTS if self.against}
        turns |= {f"held_out/{name}": value for name, value in self.exact.items()}
        turns |= {f"held_out/task/{name}": value for name, value in parts_logged(self.by_task).items()}
        return {"held_out": self.accuracy, "held_out/length": self.length, **named, **failed, **agents, **turns}


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _plain(v) for k, v in x.items()}
    return dict(vars(x)) if isinstance(x, Interval) else x


def wanted_k(samples: int, k: Sequence[int], temperature: float = 1.0) -> tuple[int, ...]:
    """The k of pass@k and maj@k, ascending; by default 1 and `samples`. Refuses what cannot be estimated."""
    if samples > MOST:
        raise ValueError(f"eval.samples={samples}: votes are counted exactly, for {MOST} answers at most. Use fewer.")
    if samples > 1 and temperature == 0:
        raise ValueError(
            f"eval.samples={samples} with eval.temperature=0: greedy answers to one prompt are all the same, so they "
            "say no more than one. Use eval.samples=1, or a temperature above 0."
        )
    for one in k:
        if not 1 <= one <= samples:
            few = f"eval.k from 1 to {samples}" if samples > 1 else "eval.k=1"
            raise ValueError(
                f"eval.k={one} with eval.samples={samples}: a try of {one} answers cannot be judged from {samples} "
                f"of a prompt: eval.samples must be at least k. Use eval.samples={one} or more, or {few}."
                if one > 0
                else f"eval.k={one} with eval.samples={samples}: a try has at least one answer. Use {few}."
            )
    return tuple(sorted(set(k or (1, samples))))


async def evaluate(
    engine: Any,
    tokenizer: Any,
    judge: Any,
    tasks: Any,
    sampling: Sampling,
    prompts: int,
    samples: int = 1,
    k: Sequence[int] = (),
    play: Play = one_answer,
) -> Evaluation:
    """`samples` answers to each of the first `prompts` held-out problems, scored and averaged."""
    ks = wanted_k(samples, k, sampling.temperature)
    chosen = [tasks.held_out[i] for i in range(min(prompts, len(tasks.held_out)))]
    if not chosen:
        raise ValueError(f"task {tasks.name} has no held-out problems: there is nothing to measure on. Give it some.")
    episodes = await answers(engine, tokenizer, chosen, sampling, samples, play)
    score_PS = np.array(await _scored(judge, _repeated(chosen, samples), episodes)).reshape(len(chosen), samples)
    if np.isnan(score_PS).all():
        raise ValueError(
            f"none of {len(episodes)} held-out answers could be judged. First error: {first_error(episodes)}"
        )
    if max(ks) > 2:  # a vote of one or two is the mean
        await _read_answers(judge, chosen, episodes, samples)
    exact = exploited(engine, tokenizer, chosen, play, sampling.temperature)
    return _summed_up(chosen, episodes, score_PS, ks, exact, tasks.graded)


def first_error(episodes: Sequence[Episode]) -> str:
    """Why the first answer that could not be judged could not."""
    return next((e.error or NO_TASK.format(", ".join(e.reward)) for e in episodes if e.error or not e.scores), "none")


async def _scored(judge: Any, tasks: Sequence[Any], episodes: Sequence[Episode]) -> list[float]:
    """The score of each episode; NaN if it failed. Those that an environment has scored are not judged again."""
    mine = [i for i, e in enumerate(episodes) if e.status.judged and not e.scores]
    out = [e.score if e.status.judged else np.nan for e in episodes]
    verdicts = await judge.score([(tasks[i], episodes[i].text) for i in mine]) if mine else ()
    for i, v in zip(mine, verdicts, strict=True):
        episodes[i].reward, episodes[i].error = dict(v.components), v.error
        out[i] = v.components.get("task", np.nan) if v.status == "ok" else np.nan
    return out


async def answers(
    engine: Any,
    tokenizer: Any,
    tasks: Sequence[Any],
    sampling: Sampling,
    samples: int,
    play: Play = one_answer,
) -> list[Episode]:
    """`samples` answers to each task, grouped by task, each with its own random key; not scored."""
    ctx = Context(engine=engine, tokenizer=tokenizer, sampling=sampling, samples=samples)
    asked = _repeated([plain(ctx, Ask(shown(play, task), samples))[0] for task in tasks], samples)
    keys = [int(key_hash("eval", t.uid, *([s] if s else []))) for t in tasks for s in range(samples)]
    starts = [Start(p, key, sampling) for p, key in zip(asked, keys, strict=True)]
    found: dict[int, Episode] = {}
    with under_way(found, len(starts)):
        async for i, e in play(ctx, starts):
            found[i] = e
    return [found[i] for i in range(len(starts))]


def _repeated(items: Sequence[Any], times: int) -> list[Any]:
    return [x for x in items for _ in range(times)]


async def _read_answers(judge: Any, tasks: Sequence[Any], episodes: Sequence[Episode], samples: int) -> None:
    """The answer that each episode votes for; equivalent answers to a prompt are equal."""
    groups = [[(t, e.text) for e in episodes[i * samples : (i + 1) * samples]] for i, t in enumerate(tasks)]
    said = [answer for group in await judge.answers(groups) for answer in group]
    for e, answer in zip(episodes, said, strict=True):
        e.answer = answer


def _summed_up(
    tasks: Sequence[Any],
    episodes: list[Episode],
    score_PS: Reals,
    ks: tuple[int, ...],
    exact: dict[str, float],
    is_graded: bool,
) -> Evaluation:
    known_P = ~np.isnan(score_PS).all(1)
    score_P = np.full(len(tasks), np.nan)
    score_P[known_P] = np.nanmean(score_PS[known_P], axis=1)
    pass_PK = {k: pass_at_k(score_PS, k) for k in ks}
    code = {a: i for i, a in enumerate(dict.fromkeys(e.answer for e in episodes))}
    answer_PS = np.array([code[e.answer] for e in episodes]).reshape(score_PS.shape)
    maj_PK = {k: maj_at_k(score_PS, answer_PS, k) for k in ks if k > 2}
    right_P = [len(set(said[scores >= 1].tolist())) for said, scores in zip(answer_PS, score_PS, strict=True)]
    level_P = np.array([task.level for task in tasks])
    overall = score_interval(score_P)
    of_part = partial(_of_level, score_P=score_P, pass_PK=pass_PK, maj_PK=maj_PK)
    return Evaluation(
        accuracy=overall.mean,
        error=standard_error(score_P),
        low=overall.low,
        high=overall.high,
        prompts=len(tasks),
        samples=score_PS.shape[1],
        measure="score" if is_graded or graded(score_PS) else "accuracy",
        graded=graded(score_PS),
        failed=int(np.isnan(score_PS).sum()),
        length=float(np.mean([e.tokens for e in episodes])),
        truncated=float(np.mean([e.status == Status.TRUNCATED for e in episodes])),
        entropy=_entropy(episodes),
        avg_at={score_PS.shape[1]: overall},
        pass_at=_intervals(pass_PK),
        maj_at=_intervals(maj_PK),
        distinct=float(np.mean(np.array(right_P)[known_P])) if maj_PK else None,
        by_level={int(n): of_part(level_P == n) for n in np.unique(level_P[known_P])},
        by_agent=returns_by_agent(e for e in episodes if e.status.judged),
        turns=of_turns(episodes),
        by_task=by_task(tasks, episodes, score_PS, of_part),
        against=games_of(tasks, score_PS),
        exact=exact,
        score_P=score_P,
        episodes=episodes,
    )


def _intervals(value_PK: dict[int, Reals], where: Any = slice(None)) -> dict[int, Interval]:
    """Leaves out each k for which no prompt has enough judged answers."""
    return {k: score_interval(v_P[where]) for k, v_P in value_PK.items() if not np.isnan(v_P[where]).all()}


def _of_level(where: Any, score_P: Reals, pass_PK: dict[int, Reals], maj_PK: dict[int, Reals]) -> dict[str, Any]:
    accuracy = score_interval(score_P[where])
    return {
        "accuracy": accuracy.mean,
        "low": accuracy.low,
        "high": accuracy.high,
        "prompts": int(where.sum()),
        "pass_at": _intervals(pass_PK, where),
        "maj_at": _intervals(maj_PK, where),
    }


def _entropy(episodes: Sequence[Episode]) -> float:
    """Minus the mean log-probability of the sampled tokens, like the metric `entropy` of a run."""
    logp = np.concatenate([s.logp[s.source == Source.POLICY] for e in episodes for s in e.sequences])
    return 0.0 - float(logp.mean(dtype=np.float64)) if len(logp) else float("nan")
