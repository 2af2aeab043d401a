"""Every logged number, defined once: unit, healthy range, meaning. A test rejects metrics that are not listed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gruppo.data import Batch, Episode, Source, Status, Use, tokens_once
from gruppo.data.episode import FLAGS
from gruppo.pieces.ratio import effective_share

# Of terms of objectives and penalties, which are logged under their own names.
TERMS: dict[str, tuple[str, str, str]] = {
    "policy": ("", "", "objective of the policy, as maximised, before coefficients; mean over optimiser steps"),
    "clip_fraction": ("share", "below 0.3", "tokens whose gradient is clipped to 0"),
    "local_share": ("share", "", "COPO: mean weight of the comparison inside groups; the rest is that between groups"),
    "local_push": ("", "", "COPO: mean |w A|, what the comparison inside groups pushes with"),
    "between_push": ("", "", "COPO: mean |(1 - w) A|, the same of the comparison between groups"),
    "weight_clipped": ("share", "below 0.3", "CISPO: tokens whose importance weight was clipped; they keep a gradient"),
    "gradient_bounded": ("share", "below 0.3", "GPPO: tokens outside the clip range; they keep the bound's gradient"),
    "bound_low": ("", "0.6 to 0.9", "BAPO: lower clip bound of the ratio found by the search"),
    "bound_high": ("", "1.2 to 3", "BAPO: upper clip bound of the ratio found by the search"),
    "singled_out": ("share", "", "Clip-Cov, KL-Cov: tokens singled out by their covariance"),
    "match": ("", "rises towards 0", "DMPO: minus the squared distance of the policy's distribution from its target"),
    "regression": ("", "rises towards 0", "Reg-GRPO: minus the squared error of the normalised log-ratio"),
    "self_imitation": ("reward", "up", "SPEAR: surrogate over remembered episodes that are better than usual"),
    "imitation": ("nats", "towards 0", "VAPO: mean log π of the tokens of correct answers: the term as maximised"),
    "kl_ref": ("nats", "", "minus the KL to the reference, by the penalty's estimator: the term as maximised"),
    "kl_teacher": ("nats", "towards 0", "KDRL: minus the KL to the teacher, by its estimator: the term as maximised"),
    "heated": ("nats", "", "AEPO: log π of answers sampled at another temperature, over all answers: as maximised"),
    "hint": ("nats", "rises towards 0", "SEELE: log π of an answer's hint, over all answers: the term as maximised"),
    "expert": ("nats", "towards 0", "CHORD: weighted log π of expert tokens: the term as maximised"),
    "hold": ("nats", "near 0", "LLDS: minus the decrease of log π of answers that are not bad: as maximised"),
    "entropy_band": ("nats", "0", "G²RPO: minus the distance of the mean entropy from its band"),
    "entropy_bonus": ("nats", "", "entropy of the policy, with gradient: the term as maximised"),
    "value": ("", "towards 0", "objective of the critic: minus half the squared error"),
    "q": ("", "towards 0", "ArCHer: minus the squared errors of both Q of remembered turns"),
    "v": ("", "towards 0", "ArCHer: minus the squared errors of both V where fresh utterances begin"),
    "token_baseline": ("", "towards 0", "ArCHer: minus the squared error of the baseline inside of utterances"),
    "likelihood": ("nats", "rises towards 0", "mean log π of the tokens of recorded or accepted answers"),
    "preference": ("", "rises", "objective of the preference pairs, as maximised, before its coefficient"),
    "margin": ("", "rises", "implicit reward of the better answers minus that of the worse ones"),
    "preferred": ("share", "rises", "pairs that the implicit reward ranks correctly; equal ones count one half"),
    "utility": ("", "rises towards 0", "KTO: utility of the labelled answers, minus its maximum"),
    "reference_point": ("nats", "small", "KTO: the reference point, an estimate of the KL to the reference"),
    "separate": ("", "rises", "DisCO, DRPO: mean log π of correct answers minus the soft maximum of wrong ones"),
    "trust": ("", "near 0", "DisCO, DRPO: minus the penalty of the trust region"),
}

METRICS: dict[str, tuple[str, str, str]] = {
    "step": ("steps", "", "steps done"),
    "reward": ("", "rises", "mean total reward of the judged episodes of the step, without baseline episodes"),
    "accuracy": ("share", "rises", "mean score of the task over all judged episodes drawn, before selection"),
    "accuracy/*": ("share", "rises", "the same of one task at one level, where several are drawn: accuracy/addition/1"),
    "drawn/*": ("share", "", "episodes drawn that are of that task and level, where there are several"),
    "graded": (
        "share",
        "",
        "judged episodes with a score that is neither 0 nor 1, if any",
    ),
    "corrupted": (
        "share",
        "",
        "judged episodes whose score was flipped on purpose (regime.flip); `accuracy` and `reward` are after that",
    ),
    "reward/*": ("", "", "mean of one reward component"),
    "return/*": ("", "", "mean return of one agent, if there are several; `reward` is then a mean over agents, too"),
    "held_out": ("share", "rises", "mean score of the task on the held-out prompts, sampled at eval.temperature"),
    "held_out/graded": (
        "share",
        "",
        "held-out answers with a score that is neither 0 nor 1, where the mean is called score",
    ),
    "held_out/anew": (
        "",
        "",
        "1 where a resumed run measured anew, because its task or its reward has changed: compare from there on",
    ),
    "held_out/failed": ("answers", "", "answers to held-out prompts that could not be judged; they do not count"),
    "held_out/length": ("tokens", "", "mean length of answers to held-out prompts, including truncated ones"),
    "held_out/return/*": ("", "", "mean return of one agent on the held-out tasks, if there are several"),
    "held_out/task/*": (
        "",
        "",
        "score of one task at one level, where there are several: held_out/task/household/1; below it, such as "
        "held_out/task/household/1/turns, its length, turns, tool_calls, shares of turns, returns",
    ),
    "held_out/won": ("share", "rises", "held-out games won against the player of task.against: an outcome above 0"),
    "held_out/drawn": ("share", "", "the same, drawn: an outcome of 0"),
    "held_out/lost": ("share", "falls", "the same, lost"),
    "held_out/exploitability": (
        "antes",
        "towards 0",
        "in Kuhn poker: what best responses win against the policy, exactly",
    ),
    "held_out/legal": ("share", "near 1", "in Kuhn poker: least probability of the legal actions in a situation"),
    "held_out/distinct": (
        "answers",
        "steady",
        "different right answers (score 1) to a held-out prompt, mean; only with eval.samples > 2",
    ),
    "held_out/*": ("share", "rises", "pass@k and maj@k on the held-out prompts, if eval.samples > 1"),
    "win_rate": (
        "share",
        "above 0.5",
        "held-out answers with a higher score than those of the initial policy; equal scores count one half",
    ),
    "held_out/preferred": ("share", "rises", "held-out recorded pairs that the implicit reward ranks correctly"),
    "length": ("tokens", "steady", "mean length of answers, sampled or recorded, truncated or not, but not open"),
    "entropy": ("nats", "falls slowly, not to 0", "minus the mean log π_gen of sampled tokens"),
    "truncated": ("share", "near 0", "episodes that ran out of tokens or turns"),
    "turns": ("", "", "mean number of turns of an episode, where one has several"),
    "turns_to_success": ("", "falls", "mean number of turns of the episodes that were solved"),
    "tool_calls": ("", "", "calls of tools in an episode"),
    "turns/recurring": ("share", "", "turns whose state occurs in another episode of the group, if it has several"),
    "turns/*": (
        "share",
        "near 0",
        "turns without an action (void), not allowed (invalid), cut off, repeated",
    ),
    "open": ("share", "", "unfinished episodes that continue in the next step; they have no reward yet"),
    "failed": ("share", "0", "episodes that were not judged: the scorer or environment raised, hung or was cancelled"),
    "timed_out": ("share", "0", "episodes whose scorer or environment hung and was killed; part of `failed`"),
    "dead_groups": ("share", "below 0.9", "drawn groups of equal rewards, from which most methods learn nothing"),
    "groups": ("groups", "", "groups of the step that were learned from, without those of the replay"),
    "drawn_groups": ("groups", "", "groups drawn, including those that selection removed"),
    "pairs": ("pairs", "", "preference pairs"),
    "rounds": ("rounds", "", "rounds of sampling in the step, including the first"),
    "tokens": (
        "tokens",
        "",
        "tokens of the answers of the step, sampled or recorded; what branches share counts once; with `turns_a_step`, "
        "of the groups that became complete in it, all tokens of all their steps",
    ),
    "shared": (
        "share",
        "",
        "tokens of all answers that branches share, and that were sampled once; if an answer has branched off another",
    ),
    "sampled": ("tokens", "", "all tokens sampled in the step: also of drafts, probes and dropped episodes"),
    "longest": ("tokens", "", "most tokens sampled for one answer in this step, which the step had to wait for"),
    "adv_std": ("", "", "standard deviation of the advantage over learned tokens"),
    "adv_live": ("share", "above 0.3", "learned tokens whose advantage is not 0"),
    "adv_size_*": ("", "", "mean size of the advantages of one agent's tokens, with gruppo.lab.agents"),
    "adv_mean_*": ("", "", "mean advantage of one agent's tokens, with gruppo.lab.agents"),
    "kept": ("share", "", "policy tokens that selection kept"),
    "replayed": ("share", "", "episodes of the batch that the replay has added, if it may"),
    "effective": ("share", "above 0.5", "(Σ w)² / (n Σ w²) of the weights from selection: 1 if all are equal"),
    "grad_norm": ("", "steady", "gradient norm of the policy before clipping, mean over optimiser steps"),
    "grad_norm_*": ("", "steady", "the same for another trained role; of one agent's tokens with gruppo.lab.agents"),
    "writer/*": ("", "", "a term of the objective or a penalty, of another writer than the policy: writer/ROLE/TERM"),
    "bold/*": (
        "share",
        "",
        "how often the policy bets or calls in a situation of Kuhn poker, with gruppo.lab.kuhn",
    ),
    "exploitability": ("antes", "towards 0", "what best responses win against the policy; only with gruppo.lab.kuhn"),
    "exploitability_average": ("antes", "towards 0", "the same of the average of the policies of the last half"),
    "grad_variance": (
        "",
        "",
        "variance of the step's gradient before clipping, from parts of its groups; only with gruppo.lab.variance",
    ),
    "step_gap": (
        "",
        "towards 0",
        "1 minus the correlation of the advantages of turns with the exact ones; only with gruppo.lab.steps",
    ),
    "told_apart": (
        "share",
        "",
        "of the variance of advantages, between turns of a group with equal states and returns; only with "
        "gruppo.lab.steps",
    ),
    "shared_steps": (
        "share",
        "",
        "turns that an episode of the group with another reward has, too: same state, action and next state; only with "
        "gruppo.lab.steps",
    ),
    "grad_noise": ("share", "below 1", "grad_variance over the squared norm of that gradient; 1: nothing but noise"),
    "bad_gradients": ("steps", "0", "optimiser steps skipped because the gradient was not finite"),
    "lr": ("", "", "learning rate of the policy"),
    **TERMS,
    "sampler_gap": ("nats", "below 1e-3", "mean |log π_old - log π_gen|: how far the sampler and the trainer disagree"),
    "sampler_gap_max": ("nats", "below 1e-2", "the largest such difference in the step"),
    "age": (
        "versions",
        "at most `ahead`",
        "how much older than the weights that learn are those that sampled; mean over the fresh tokens of the step",
    ),
    "version": ("", "", "version of the weights after the step"),
    "seconds": ("s", "", "the step, without evaluation"),
    "seconds/*": (
        "s",
        "",
        "parts of the step: sampling, scoring (with `ahead`: waiting), forward, backward, optimiser, and the rest",
    ),
    "tokens_per_second": ("1/s", "", "`sampled` per second of the step; `tokens`, if all answers are recorded"),
}


def known(name: str) -> bool:
    """Whether a metric is in the table. Terms are logged under their own names."""
    return _in(METRICS, name)


def _in(table: Iterable[str], name: str) -> bool:
    return any(name == k or (k.endswith("*") and name.startswith(k[:-1])) for k in table)


def refuse_metrics(method: str, role: str, terms: Iterable[str]) -> None:
    """Refuses a term with the name of a metric that is no term: in the log it would take its place."""
    for name in terms:
        if name not in TERMS and _in(METRICS, name):
            raise ValueError(
                f"{method}: a term of {role} is called {name!r}, which is a metric of every run, so it would take its "
                f"place in the log. Rename the term, for example to term_{name}."
            )


def term_name(goal: Any, term: str) -> str:
    """The metric of a term: its own name; of a writer beside the policy, with that role."""
    return f"writer/{goal.role}/{term}" if goal.writes and goal.role != "policy" else term


def episode_metrics(drawn: Sequence[Episode], waiting: Sequence[Episode] = ()) -> dict[str, float]:
    """Metrics of all episodes drawn, before selection. `waiting`: those of groups that are not complete."""
    drawn = [e for e in drawn if e.use in (Use.LEARN, Use.BASELINE)]
    drawn = [e for e in drawn if e.source == Source.POLICY] or drawn  # recorded ones if none were sampled
    mine = [e for e in drawn if e.use == Use.LEARN]  # greedy baselines are not samples
    judged = [e for e in mine if e.status.judged]
    score = [e.score for e in judged]
    out = {
        "failed": _mean([not e.status.judged and e.status != Status.OPEN for e in drawn]),
        "timed_out": _mean([e.status == Status.TIMEOUT for e in drawn]),
        "truncated": _mean([e.status == Status.TRUNCATED for e in mine]),
        "length": _mean([_tokens(e) for e in mine if e.status != Status.OPEN]),
        "tokens": float(tokens_once(drawn)),
        "reward": _mean([r for e in judged for r in _earned(e).values()]),
        "accuracy": _mean(score),
    }
    if any(e.status == Status.OPEN for e in (*mine, *waiting)):
        out["open"] = _mean([e.status == Status.OPEN for e in (*mine, *waiting)])
    out |= {"graded": share} if (share := graded(score)) else {}
    out |= _longest(mine) | _shared(mine) | of_turns(mine) | _corrupted(judged) | _by_domain(mine)
    logp = np.concatenate([s.logp[np.isfinite(s.logp)] for e in mine for s in e.sequences] or [np.zeros(0)])
    if len(logp):
        out["entropy"] = 0.0 - _mean(logp)  # not -0.0
    components = {c for e in judged for c in e.reward}
    if len(components) > 1:
        out |= {f"reward/{c}": _mean([e.reward[c] for e in judged if c in e.reward]) for c in sorted(components)}
    out |= {f"return/{agent}": r for agent, r in returns_by_agent(judged).items()}
    out["dead_groups"] = _dead_groups(drawn)
    out["drawn_groups"] = float(len({e.group for e in drawn}))
    return out


def _corrupted(judged: Sequence[Episode]) -> dict[str, float]:
    told = [float(e.notes["corrupted"].values[0]) for e in judged if "corrupted" in e.notes]
    return {"corrupted": _mean(told)} if told else {}


def _by_domain(mine: Sequence[Episode]) -> dict[str, float]:
    """Accuracy and share of each task and level; nothing if there is only one."""
    found: dict[str, list[Episode]] = {}
    for e in mine:
        found.setdefault(e.domain, []).append(e)
    if len(found) < 2:
        return {}
    shares = {f"drawn/{domain}": len(some) / len(mine) for domain, some in sorted(found.items())}
    scores = {domain: [e.score for e in some if e.status.judged] for domain, some in sorted(found.items())}
    return shares | {f"accuracy/{domain}": _mean(s) for domain, s in scores.items() if s}


def graded(scores: Sequence[float] | np.ndarray) -> float:
    """Share of the scores that are neither 0 nor 1."""
    known = np.asarray(scores, np.float64)
    known = known[~np.isnan(known)]
    return float(np.mean((known != 0) & (known != 1))) if len(known) else 0.0


def _earned(e: Episode) -> dict[str, float]:
    return e.earned or {"": e.total}  # without turns


def returns_by_agent(judged: Iterable[Episode]) -> dict[str, float]:
    """Mean returns of all agents, those of opponents included; empty if there is only one."""
    returns: dict[str, list[float]] = {}
    for e in judged:
        for agent, r in e.returns.items():
            returns.setdefault(agent, []).append(r)
    return {a: _mean(rs) for a, rs in sorted(returns.items())} if len(returns) > 1 else {}


def _dead_groups(drawn: Sequence[Episode]) -> float:
    """Share of the groups in which each agent that the policy speaks for has equal returns."""
    groups: dict[str, dict[str, set[float]]] = {}
    for e in drawn:
        if e.status.judged:
            seen = groups.setdefault(e.group, {})
            for agent, r in _earned(e).items():
                seen.setdefault(agent, set()).add(r)
    return _mean([all(len(rs) == 1 for rs in seen.values()) for seen in groups.values()])


def of_turns(drawn: Sequence[Episode]) -> dict[str, float]:
    """Of episodes that were played in an environment, which says so by the state, the flags or the tools of turns."""
    turns = [t for e in drawn for t in e.turns]
    if not any(t.state or t.flags or t.tools for t in turns):
        return {}
    out = {"turns": len(turns) / len(drawn)}
    won = [len(e.turns) for e in drawn if e.status.judged and e.score >= 1]
    out |= {"turns_to_success": _mean(won)} if won else {}
    calls = sum(len(t.tools) for t in turns)
    out |= {"tool_calls": calls / len(drawn)} if calls else {}
    shares = {f"turns/{flag}": _mean([flag in t.flags for t in turns]) for flag in FLAGS}
    several = len({e.group for e in drawn}) < len(drawn)  # else there is no other episode of a group
    return out | {k: v for k, v in shares.items() if v} | ({"turns/recurring": _recurring(drawn)} if several else {})


def _recurring(drawn: Sequence[Episode]) -> float:
    """Share of the turns whose state occurs in another episode of the group, too: anchors to compare with."""
    seen: dict[tuple[str, str], set[int]] = {}
    where = [(e.group, t.state, e.uid) for e in drawn for t in e.turns]
    for group, state, uid in where:
        seen.setdefault((group, state), set()).add(uid)
    return _mean([bool(state) and len(seen[group, state]) > 1 for group, state, _ in where])


def _longest(drawn: Sequence[Episode]) -> dict[str, float]:
    """Tokens of older weights, in an answer continued from an earlier step, do not count for this step."""
    newest = max((int(s.version.max(initial=-1)) for e in drawn for s in e.sequences), default=-1)
    counts = [sum(int((s.version == newest).sum()) for s in e.sequences) for e in drawn] if newest >= 0 else []
    return {"longest": float(max(counts))} if counts else {}


def _shared(drawn: Sequence[Episode]) -> dict[str, float]:
    """1 less the tokens that were sampled over those of all episodes, if one of them has branched off."""
    every = sum(_tokens(e) for e in drawn)
    return {"shared": 1.0 - tokens_once(drawn) / every} if every and any(e.fork >= 0 for e in drawn) else {}


def _tokens(e: Episode) -> int:
    """Tokens with the source of the episode."""
    return int(sum((s.source == e.source).sum() for s in e.sequences))


def batch_metrics(batch: Batch, recalls: bool = False) -> dict[str, float]:
    """Metrics of what is learned from. `recalls`: a replay may add to it."""
    learn, policy = batch.learn_N, batch.policy_N
    out = {"groups": float(batch.drawn_now_G.sum())}
    if bool(policy.any()):
        out["kept"] = float(learn.sum()) / float(policy.sum())
    if recalls:
        out["replayed"] = float(batch.replayed_E.float().mean())
    if "win_P" in batch.columns:
        out["pairs"] = float(batch.size("P"))
    if bool((batch.weight_N != 1).any()):
        out["effective"] = float(effective_share(batch.weight_N, learn))
    if "adv_N" in batch.columns and int(learn.sum()) > 1:
        out["adv_std"] = float(batch.adv_N[learn].std())
        out["adv_live"] = float((batch.adv_N[learn].abs() > 1e-9).float().mean())
    return out


def age_of(batch: Batch, version: int) -> dict[str, float]:
    """How old the sampled tokens of a step are for weights of this version, without those of the replay."""
    fresh_N = (batch.source_N == Source.POLICY) & (batch.version_N >= 0) & ~batch.spread(batch.replayed_E, "E", "N")
    return {"age": version - float(batch.version_N[fresh_N].double().mean())} if bool(fresh_N.any()) else {}


def worked(facts: Mapping[str, float]) -> float:
    """Tokens of a step for its rate: those that it sampled; of a step that samples none, those of recorded answers."""
    return facts["sampled"] or facts["tokens"]


def time_metrics(parts: Mapping[str, float], total: float) -> dict[str, float]:
    """The parts of a step, and the rest: the overhead of the framework."""
    named = {f"seconds/{k}": v for k, v in parts.items()}
    return {**named, "seconds": total, "seconds/rest": total - sum(parts.values())}


def _mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean without NaN, which marks what was not judged."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")
