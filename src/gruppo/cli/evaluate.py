"""`gruppo eval`: held-out scores of one or more policies, and their differences.

A policy that lies in a run is evaluated as the run did it: on its task, with its settings, unless others are given.
Of a run that has not ended, the newest checkpoint is evaluated.
"""

import argparse
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from gruppo.cli.commands import configured, print_json
from gruppo.engines.config import engine_of
from gruppo.engines.remote import Described
from gruppo.lab.compare.statistics import Pair, in_json, in_words, pairwise
from gruppo.policies import load_config, load_policy, load_tokenizer
from gruppo.stages import Sampling
from gruppo.stages.converse import play_of
from gruppo.stages.play import close_play
from gruppo.stages.record import from_table, to_table
from gruppo.tasks.fit import most_tokens
from gruppo.tasks.judge import judge_of
from gruppo.train.checkpoint import step_of
from gruppo.train.config import RunConfig
from gruppo.train.depends import depends
from gruppo.train.depends import differences as changed
from gruppo.train.ended import run_table
from gruppo.train.estimates import Interval
from gruppo.train.evaluate import Evaluation, evaluate, first_error, wanted_k
from gruppo.train.folder import REMEDY, RunFolder, flat, read_json
from gruppo.train.heartbeat import Heartbeat
from gruppo.train.missing import refuse_missing
from gruppo.train.opening import newest
from gruppo.train.parts import RESULTS, SHARES
from gruppo.train.place import place_of
from gruppo.train.run import tasks_of
from gruppo.train.saved import agents_of, writers_beside, writers_in
from gruppo.train.waiting import waited

UNIT = "prompt"  # of the intervals
ACTIVE = ("task", "model", "engine", "sampling", "eval", "seed", "threads")  # settings that an evaluation looks at


def eval(args: argparse.Namespace) -> int:
    config = configured(args, as_trained(args.policies, args))
    warn_of_idle(args.settings)
    warn_of_other_files(args.policies, config)
    wanted_k(config.eval.samples, config.eval.k, config.eval.temperature)
    if config.threads:
        torch.set_num_threads(config.threads)
    tasks = tasks_of(config)
    sampling = replace(config.sampling, temperature=config.eval.temperature)
    found = evaluations(config, tasks, sampling, args.policies or [config.model.name])
    pairs = pairwise({name: e.score_P for name, e in found.items()})
    if args.json:
        shared = {"task": tasks.name, "temperature": sampling.temperature}
        tables = [{"policy": name, **shared, **e.table()} for name, e in found.items()]
        report = {"policies": tables, "differences": [asdict(p) | {"beyond_noise": p.beyond_noise} for p in pairs]}
        print_json(in_json(report if len(tables) > 1 else tables[0], UNIT))
        return 0
    for name, e in found.items():
        print("\n".join(lines(f"{name} on {tasks.name}", sampling, e)))
    print("\n".join(differences(pairs)) if pairs else "intervals: 95 %, over prompts")
    return 0


def warn_of_idle(settings: Sequence[str]) -> None:
    if idle := [s for s in settings if re.split(r"[.+=]", s)[0] not in ACTIVE]:
        _to_stderr(
            f"warning: {', '.join(idle)} changes nothing: an evaluation does not train. What acts here begins with "
            f"{', '.join(ACTIVE)}."
        )


# ---- the run that a policy lies in


def run_of(policy: str) -> Path | None:
    """The run that a policy is, or lies in, if any."""
    path = Path(policy)
    # runs/x, runs/x/policy, runs/x/best/policy, runs/x/writers/ROLE/policy, runs/x/best/writers/ROLE/policy
    above = (path, *list(path.parents)[:4])
    return next((p for p in above if path.is_dir() and _is_run(p)), None)


def _is_run(path: Path) -> bool:
    """A config.toml alone may be of another project."""
    if not (path / "config.toml").is_file():
        return False
    if (path / "environment.json").is_file():
        return True
    try:
        return bool(run_table(path))
    except ValueError:
        return False


def policy_folder(policy: str) -> str:
    """What to load: of a run, the policy that it left."""
    path = Path(policy)
    if not path.exists() and path.name == "policy" and _is_run(path.parent):
        return policy_folder(str(path.parent))  # which says that there is none yet
    if not path.exists() and path.parent.is_dir() and path.parent not in (Path(), Path("/")):
        refuse_missing(path, "so there is nothing to evaluate")
    if run_of(policy) != Path(policy):
        return policy
    folder = RunFolder(Path(policy))
    if not folder["policy"].is_dir():
        raise ValueError(
            f"{policy} has no policy yet, so there is nothing to evaluate: it is saved when the run has ended. Finish "
            f"it:  {folder.resume_command}"
        )
    return str(folder["policy"])


def checkpoint_of(policy: str) -> Path | None:
    """Of a run that has not ended, its newest whole checkpoint. It may have a policy, of an earlier end."""
    folder = RunFolder(Path(policy))
    if run_of(policy) != folder.path or (folder["policy"].is_dir() and folder["summary.json"].is_file()):
        return None
    return newest(folder, skip_damaged=True)[0]


def as_trained(policies: Iterable[str], args: argparse.Namespace) -> RunConfig | None:
    """The configuration to begin with: task and settings of the run that the policies lie in; says which."""
    there = [p for p in policies if checkpoint_of(p) or policy_folder(p)]
    runs = list(dict.fromkeys(run for p in there if (run := run_of(p)) is not None))
    for run in runs:
        if said := RunFolder(run).damage():
            _to_stderr(
                f"warning: {run} is not as the run left it ({said}), so these need not be the scores of the policy "
                "that it trained"
            )
    if args.config or not runs:
        return None
    chosen = any(s.partition("=")[0] in ("task", "task.name") for s in args.settings)
    if not chosen:
        _refuse_several_tasks(runs)
    found = evaluated_as(runs[0])
    if chosen:  # the run's settings of its task are for that one
        found = replace(found, task=RunConfig().task, sampling=RunConfig().sampling)
    given = {s.partition("=")[0] for s in args.settings}
    if settings := _settings_of(found, chosen, given):
        _to_stderr(f"taken from {runs[0]}: {settings}")
    return found


def evaluated_as(run: Path) -> RunConfig:
    """Task, tokens and evaluation of a run. Its method, which may have code of its own, is not read."""
    table = run_table(run)
    try:
        task, ours = from_table(table["task"], "task."), from_table(table["eval"], "eval.")
        tokens = int(table["sampling"]["max_tokens"])  # nothing else: a run evaluates without top_k and top_p
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{run}/config.toml cannot be used ({error!r}). {REMEDY}") from None
    return replace(RunConfig(), task=task, eval=ours, sampling=replace(RunConfig().sampling, max_tokens=tokens))


def warn_of_other_files(policies: Iterable[str], config: RunConfig) -> None:
    """Says which files of the task, such as the reward, are not those of the run; of another task, nothing."""
    now = _of_task(depends(config))
    for run in dict.fromkeys(run for p in policies if (run := run_of(p)) is not None):
        file = run / "environment.json"
        known = read_json(file).get("depends") if file.is_file() else None
        if not isinstance(known, dict) or evaluated_as(run).task != config.task:
            continue
        if found := changed(_of_task(known), now):
            _to_stderr(
                f"warning: what {run} was trained with has changed since, so these scores cannot be compared with "
                f"those of the run: {'; '.join(found)}"
            )


def _of_task(known: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in known.items() if name.startswith("task")}


def _refuse_several_tasks(runs: Sequence[Path]) -> None:
    tasks = {run: evaluated_as(run).task for run in runs}
    for run, task in tasks.items():
        if task != tasks[runs[0]]:
            raise ValueError(
                f"{runs[0]} was trained on {tasks[runs[0]].name} and {run} on {task.name}, or with other settings of "
                "the task, so it is open on what to compare them. Say it: task=NAME, or --config RUN/config.toml."
            )


def _settings_of(config: RunConfig, other_task: bool, given: Collection[str] = ()) -> str:
    """task=… and every other setting that is not the default, and is not given on the command line."""
    plain = dict(flat(to_table(replace(RunConfig(), method=config.method))))
    own = {k: v for k, v in flat(to_table(config)) if plain.get(k) != v and not k.endswith("kind")}
    own = {k: v for k, v in own.items() if k not in ("task.name", "eval.every")}
    own = own if other_task else {"task": config.task.name} | own
    return " ".join(f"{k}={v}" for k, v in own.items() if k not in given)


# ---- scores


def evaluations(config: RunConfig, tasks: Any, sampling: Sampling, policies: Sequence[str]) -> dict[str, Evaluation]:
    """{policy: its evaluation}, all on the same prompts with the same random keys."""
    twice = next((p for i, p in enumerate(policies) if p in policies[:i]), None)
    if twice is not None:
        raise ValueError(f"{twice} is there twice: it would be compared with itself. Leave one out.")
    device, dtype = place_of(config)
    # All are loaded before the first is evaluated, so that one that cannot be loaded costs no time.
    served = config.engine.name == "remote"
    if served and len(policies) > 1:
        raise ValueError(
            f"engine=remote with {len(policies)} policies: one server would be compared with itself. Evaluate one at a "
            "time, each with its own engine.url."
        )
    loaded = {name: _served(name) if served else _loaded(name, config, dtype, device) for name in policies}
    for models, *_ in loaded.values():
        if models["policy"].fallback:
            _to_stderr(models["policy"].fallback)
    judge = judge_of(tasks, config.task, _to_stderr).start()
    out: dict[str, Evaluation] = {}
    try:
        for name, (models, tokenizer, writers) in loaded.items():
            engine = engine_of(config.engine, models, tokenizer, _to_stderr)
            longest = sampling.max_tokens or most_tokens(tasks, tokenizer, models["policy"].context)
            how, e = replace(sampling, max_tokens=longest), config.eval
            play = play_of(tasks, config.task, tokenizer, _to_stderr, writers)
            try:
                with Heartbeat(_to_stderr):
                    out[name] = waited(evaluate(engine, tokenizer, judge, tasks, how, e.prompts, e.samples, e.k, play))
            finally:
                engine.close()
                close_play(play)
    finally:
        judge.close()
    return out


def _served(name: str) -> tuple[dict[str, Any], Any, dict[str, str]]:
    """As `_loaded`, of a policy whose weights are with a server: its folder needs config.json and tokenizer alone."""
    folder = policy_folder(name) if Path(name).is_dir() else name
    _to_stderr(f"the answers are those of the server; {folder} is asked for the tokenizer and the shape alone")
    return {"policy": Described.of(load_config(folder), folder)}, load_tokenizer(folder), {}


def _loaded(name: str, config: RunConfig, dtype: Any, device: Any) -> tuple[dict[str, Any], Any, dict[str, str]]:
    """{role: model} of the roles that write, their tokenizer, and {agent: role} beside the policy, as in its run."""
    run, last = run_of(name), checkpoint_of(name)
    table = run_table(run) if run is not None else {}
    if last is not None:
        _to_stderr(f"{name} has not ended, so this is its newest checkpoint, of step {step_of(last)}")
        return writers_in(last, table, dtype, device), load_tokenizer(table["model"]["name"]), agents_of(table)
    folder = policy_folder(name)
    writers, places = writers_beside(Path(folder), table)
    if writers:
        _to_stderr(f"{', '.join(f'{a} is written by {places[r]}' for a, r in writers.items())}, all others by {folder}")
    paths = {"policy": folder, **{role: str(path) for role, path in places.items()}}
    sharper = config.model.sharpen if run is None else 1.0  # what a run has left is no start any more
    if sharper != config.model.sharpen:
        _to_stderr(f"{name} is evaluated as it was saved: model.sharpen={config.model.sharpen:g} is for a start")
    if sharper != 1:
        _to_stderr(f"the logits of {name} are multiplied by {sharper:g} (model.sharpen)")
    models = {r: load_policy(p, dtype, device, config.seed, sharpen=sharper) for r, p in paths.items()}
    return models, load_tokenizer(folder), writers


def _to_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # stdout may be JSON


def lines(title: str, sampling: Sampling, e: Evaluation) -> list[str]:
    """The report of one policy, most important first."""
    many = f" × {e.samples} answers" if e.samples > 1 else ""
    seats = ", ".join(f"{agent} {r:+.3f}" for agent, r in e.by_agent.items())  # their mean is 0 in a zero-sum game
    games = e.against.get("games", 0) == e.prompts * e.samples - e.failed  # not those of a mixture alone
    word = f"return against {e.against['player']}" if games else e.measure
    score = f"return {seats}" if seats else f"{word} {_shown(e.avg_at[e.samples])}"
    out = [f"{title}: {score} on {e.prompts} held-out {_prompts(e.prompts)}{many}, T={sampling.temperature:g}"]
    if e.samples > 1 and not seats:
        out += _tries("  ", e.pass_at, e.maj_at)
        out += [f"  different right answers of a prompt: {e.distinct:.2f}"] if e.distinct is not None else []
    kinds = {domain.rpartition("/")[0] for domain in e.by_task}
    several = len(kinds) > 1 or bool(e.by_task and e.turns)  # levels of one task of one answer differ in scores alone
    for domain, of in e.by_task.items() if several else ():
        out += _part(domain, of, e.samples)
    for level, of in e.by_level.items() if len(e.by_level) > 1 and not several else ():
        out.append(f"  level {level}: {_shown(Interval(of['accuracy'], of['low'], of['high'], of['prompts']))}")
        if e.samples > 1:
            out += _tries("    ", of["pass_at"], of["maj_at"])
    out.append(f"  length {e.length:.1f} tokens, truncated {e.truncated:.1%}, entropy {e.entropy:.3f} nats per token, "
               f"failed {e.failed}")  # fmt: skip
    out += [f"  first error: {first_error(e.episodes)}"] if e.failed else []
    out += _games(e)
    if e.turns:
        out.append("  " + ", ".join(f"{name} {value:.3g}" for name, value in e.turns.items()))
    return out


def _part(domain: str, of: Mapping[str, Any], samples: int) -> list[str]:
    """One task at one level, in a set of several."""
    seats = ", ".join(f"{agent} {r:+.3f}" for agent, r in of["by_agent"].items())
    word = "score" if of["graded"] else "success"
    score = f"{word} {_shown(Interval(of['accuracy'], of['low'], of['high'], of['prompts']))}"
    score = f"return {seats}" if seats else f"{_results(of['against'])}" if of["against"] else score
    counted = bool(of["against"]) and of["against"]["games"] == of["prompts"]  # as games
    facts = [score if counted else f"{score} on {of['prompts']} {_prompts(of['prompts'])}"]
    facts += [f"{name.replace('_', ' ')} {of[name]:.3g}" for name in ("turns", "tool_calls") if name in of]
    facts += [f"tokens {of['length']:.1f}"]
    facts += [f"{name} {of[name]:.1%}" for name in SHARES if name in of]
    facts += [f"failed {of['failed']}"] if of["failed"] else []
    return [
        f"  {domain}: {', '.join(facts)}",
        *(_tries("    ", of["pass_at"], of["maj_at"]) if samples > 1 and not seats else ()),
    ]


def _games(e: Evaluation) -> list[str]:
    """Games against a scripted player, and what is known without playing."""
    out: list[str] = []
    if e.against:
        out.append(f"  against {e.against['player']}: {_results(e.against)}")
        out += [f"    as {seat}: {_results(of)}" for seat, of in e.against["by_seat"].items()]
    if e.exact:
        least = f"legal actions have a probability of at least {e.exact['legal']:.3f}"
        out.append(f"  exploitability {e.exact['exploitability']:.3f} antes, exact; {least}")
    return out


def _results(of: Mapping[str, Any]) -> str:
    shares = ", ".join(f"{name} {of[name]:.1%}" for name in RESULTS)
    return f"{shares}, return {of['return']:+.3f}, games {of['games']}"


def _prompts(count: int) -> str:
    return "prompt" if count == 1 else "prompts"


def _shown(i: Interval) -> str:
    return in_words(i, UNIT)


def _tries(indent: str, pass_at: Mapping[int, Interval], maj_at: Mapping[int, Interval]) -> list[str]:
    votes = {k: f"maj@{k:<4} {_shown(i)}" for k, i in maj_at.items()}
    return [f"{indent}pass@{k:<4} {_shown(i):<22}  {votes.get(k, '')}".rstrip() for k, i in pass_at.items()]


def differences(pairs: Sequence[Pair]) -> list[str]:
    out = ["differences, paired by prompt (t-interval at 95 %; p by Holm for all of them together):"]
    for p in pairs:
        verdict = f", p {p.p_holm:.2g}: {'beyond noise' if p.beyond_noise else 'not beyond noise'}"
        shown = in_words(p.difference, UNIT, "+")
        out.append(f"  {p.a} - {p.b}: {shown}{', so not tested' if math.isnan(p.p_holm) else verdict}")
    return out
