"""The parts of an evaluation: by task and level, and by the seat of a game against a scripted player."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gruppo.data import Episode
from gruppo.envs.against import PLAYER, SEAT
from gruppo.train.estimates import Reals
from gruppo.train.metrics import graded, of_turns, returns_by_agent

RESULTS = ("won", "drawn", "lost")  # shares of games
# Of a task with an environment; a state can recur only where a prompt has several episodes.
PLAYED = ("turns", "tool_calls", "turns/invalid", "turns/void", "turns/repeated")
RECURRING = "turns/recurring"
SHARES = tuple(name.removeprefix("turns/") for name in (*PLAYED, RECURRING) if "/" in name)


def by_task(
    tasks: Sequence[Any], episodes: Sequence[Episode], score_PS: Reals, of_part: Callable[[Any], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """{task/level: score, failures, tokens and, in a world, turns}; empty if there is only one."""
    domain_P = np.array([task.domain for task in tasks])
    out: dict[str, dict[str, Any]] = {}
    for domain in dict.fromkeys(domain_P.tolist()):
        where = domain_P == domain
        mine = [e for e, here in zip(episodes, np.repeat(where, score_PS.shape[1]), strict=True) if here]
        if np.isnan(score_PS[where]).all():
            continue
        returns = returns_by_agent(e for e in mine if e.status.judged)
        played = of_turns(mine)
        named = (*PLAYED, *((RECURRING,) if RECURRING in played else ()))
        shares = {name.removeprefix("turns/"): played.get(name, 0.0) for name in named} if played else {}
        out[domain] = {
            **of_part(where),
            "graded": graded(score_PS[where]),
            "failed": int(np.isnan(score_PS[where]).sum()),
            "length": float(np.mean([e.tokens for e in mine])),
            **shares,
            "by_agent": returns,
            "against": games_of([t for t, here in zip(tasks, where, strict=True) if here], score_PS[where]),
        }
    return out if len(set(domain_P.tolist())) > 1 else {}


def parts_logged(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """For the metrics of a run: the score under the name of the task, and the rest below it."""
    out: dict[str, float] = {}
    for task, of in parts.items():
        out[task] = of["accuracy"]
        named = ("length", "turns", "tool_calls", *SHARES)
        out |= {f"{task}/{name}": float(of[name]) for name in named if name in of}
        out |= {f"{task}/return/{agent}": r for agent, r in of["by_agent"].items()}
        out |= {f"{task}/{name}": of["against"][name] for name in RESULTS if of["against"]}
    return out


def games_of(tasks: Sequence[Any], score_PS: Reals) -> dict[str, Any]:
    """Shares of the judged games against a scripted player that were won (above 0), drawn (0) and lost; and the return.

    All of them, and by the seat of the policy. Empty if there are none.
    """
    mine = np.array([PLAYER in task.meta for task in tasks], bool)
    if not mine.any() or np.isnan(score_PS[mine]).all():
        return {}
    seat_P = np.array([task.meta.get(SEAT, "") for task in tasks])
    players = dict.fromkeys(task.meta[PLAYER] for task in tasks if PLAYER in task.meta)
    seats = {str(s): _results(score_PS[mine & (seat_P == s)]) for s in dict.fromkeys(seat_P[mine].tolist())}
    known = {seat: of for seat, of in seats.items() if of["games"]}
    return {"player": "+".join(players), **_results(score_PS[mine]), "by_seat": known}


def _results(score_PS: Reals) -> dict[str, float]:
    score = score_PS[~np.isnan(score_PS)]
    if not len(score):
        return {"games": 0}
    shares = [float(np.mean(s)) for s in (score > 0, score == 0, score < 0)]
    return {"games": len(score), **dict(zip(RESULTS, shares, strict=True)), "return": float(score.mean())}
