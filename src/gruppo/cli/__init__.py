"""The command line: gruppo train | eval | runs | compare | methods | env | serve-agent | …: see `parser`."""

import argparse
import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module

from gruppo import __version__
from gruppo.cli.slips import refuse_slips
from gruppo.train import stop as stopping

ALL_SETTINGS = "All settings with their defaults: gruppo train --dry-run, or docs/configuration.md."
SETTING = re.compile(r"[A-Za-z_][\w.]*(\+|-)?=")
TEXTS = ("--contains", "--task", "--train")  # what follows may look like a setting, and is none
ELSEWHERE = {  # commands that are not in gruppo.cli.commands
    "eval": "gruppo.cli.evaluate",
    "runs": "gruppo.cli.runs",
    "episodes": "gruppo.cli.episodes",
    "compare": "gruppo.lab.compare.command",
    "claims": "gruppo.lab.claims.command",
    "lab": "gruppo.lab.exact.command",
    "push": "gruppo.cli.push",
    "env": "gruppo.cli.env",
    "serve-agent": "gruppo.cli.serve",
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="gruppo", description="Policy optimisation for language models, one page per method."
    )
    top.add_argument("--version", action="version", version=f"gruppo {__version__}")
    commands = "train | eval | runs | episodes | compare | claims | lab | methods | env | serve-agent | doctor | push"
    sub = top.add_subparsers(dest="command", required=True, metavar=commands)
    train = sub.add_parser("train", help="train a policy: gruppo train method=dapo task=countdown steps=60")
    _settings(train)
    train.add_argument(
        "--resume",
        metavar="RUN",
        nargs="?",
        const="",
        help="continue a run from its newest checkpoint; without RUN, the newest unfinished one of save.folder",
    )
    train.add_argument("--allow-changes", action="store_true", help="resume even if the configuration has changed")
    train.add_argument("--skip-damaged", action="store_true", help="set a damaged checkpoint aside, go on before it")
    train.add_argument("--trust-code", action="store_true", help="resume a run that has its own code")
    train.add_argument("--dry-run", action="store_true", help="resolve and check everything, but do not train")
    evaluate = sub.add_parser("eval", help="evaluate a policy: gruppo eval runs/x")
    evaluate.add_argument(
        "policies",
        nargs="*",
        help="runs, folders, or names of built-in policies; several are compared. A run brings its task and settings",
    )
    _settings(evaluate)
    _runs(sub.add_parser("runs", help="the runs of a folder, newest first: gruppo runs"))
    _episodes(sub.add_parser("episodes", help="what a policy wrote while it was trained: gruppo episodes runs/x"))
    _compare(sub.add_parser("compare", help="methods side by side: gruppo compare grpo rloo --seeds 5"))
    _claims(sub.add_parser("claims", help="papers' claims in miniature: gruppo claims gdpo --show"))
    _lab(sub.add_parser("lab", help="bias and variance by enumeration: gruppo lab grpo dr_grpo rloo"))
    methods = sub.add_parser("methods", help="list, show, diff, check")
    methods.add_argument("what", nargs="?", default="list", help="list | show NAME | diff A B | check NAME")
    methods.add_argument("names", nargs="*", help="methods by name or file: ./mine.py:MINE")
    _json(methods)
    _env(sub.add_parser("env", help="environments: gruppo env list | check NAME | play NAME"))
    _serve(sub.add_parser("serve-agent", help="a policy for your programs: gruppo serve-agent runs/x"))
    doctor = sub.add_parser("doctor", help="step zero: the checks before the first update")
    _settings(doctor)
    doctor.add_argument("--sandbox", action="store_true", help="instead: which isolation model-written code gets here")
    send = sub.add_parser("push", help="upload a policy to the Hugging Face hub: gruppo push runs/x OWNER/NAME")
    send.add_argument("source", metavar="RUN_OR_FOLDER", help="a run, or the folder of a policy or adapter")
    send.add_argument("name", metavar="NAME", help="the repository: OWNER/NAME, or NAME for one of your own")
    send.add_argument("--public", action="store_true", help="for everybody to see (default: private)")
    return top


def _settings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "settings", nargs="*", metavar="key=value", help="for example method=dapo method.objective.clip_high=0.3"
    )
    _config(command)


def _config(command: argparse.ArgumentParser) -> None:
    command.epilog = ALL_SETTINGS
    command.add_argument("--config", metavar="FILE", help="a run file in TOML; settings override it")
    _json(command)


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _runs(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", default="runs", metavar="FOLDER", help="where runs are (default runs)")
    command.add_argument("--check", action="store_true", help="compare the checksums of what the runs left (slower)")
    _json(command)


def _episodes(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="a run folder: runs/NAME")
    command.add_argument("--step", type=int, metavar="N", help="of this step (default: the newest that is stored)")
    command.add_argument("--all", action="store_true", help="of all stored steps")
    command.add_argument("--status", default="", metavar="NAME", help="that ended like this: ok, truncated, timeout, …")
    command.add_argument("--min-reward", type=float, metavar="R", help="with this reward or more")
    command.add_argument("--max-reward", type=float, metavar="R", help="with this reward or less")
    command.add_argument("--task", default="", metavar="TEXT", help="of tasks whose uid has this text, or of a domain")
    command.add_argument("--contains", default="", metavar="TEXT", help="with this text in the prompt or the answer")
    order = command.add_mutually_exclusive_group()
    order.add_argument("--worst", type=int, metavar="N", help="the N with the lowest rewards")
    order.add_argument("--best", type=int, metavar="N", help="the N with the highest rewards")
    command.add_argument("--limit", type=int, metavar="N", help="at most N (0: all; default: 10 as text, else all)")
    command.add_argument("--out", metavar="FILE", help="write them to FILE.jsonl or FILE.parquet")
    command.add_argument("--json", action="store_true", help="print JSON, one object per line")


def _env(command: argparse.ArgumentParser) -> None:
    command.add_argument("what", nargs="?", default="list", help="list | check NAME | play NAME")
    command.add_argument("names", nargs="*", help="a built-in environment, or your own: ./mine.py:World")
    command.add_argument("--tasks", default="", metavar="TASK", help="tasks to play: a name, or a file of levels")
    command.add_argument("--level", default="", metavar="N", help="the level of the tasks")
    command.add_argument("--number", type=int, default=0, metavar="N", help="play: which task (default 0)")
    command.add_argument("--player", default="", metavar="NAME", help="play: gold, random, … (default: you)")
    command.add_argument("--care", type=float, default=1.0, metavar="P", help="play: how often gold is followed (1)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="play: the random seed of scripted players")
    command.add_argument("--seconds", type=float, metavar="S", help="check: time for one law (default 30)")
    _json(command)


def _serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("policy", nargs="?", default="", help="a run, a folder, or the name of a built-in policy")
    command.add_argument("--port", type=int, default=8000, metavar="N", help="on 127.0.0.1 (default 8000; 0: any)")
    command.add_argument("--name", default="policy", metavar="NAME", help="what programs call the model (policy)")
    command.add_argument("--key", default="", metavar="KEY", help="an API key that programs must send (default: any)")
    _settings(command)


def _compare(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "entrants",
        nargs="+",
        help='methods (grpo, ./mine.py:MINE, "grpo optim.lr=1e-3", "sft steps=9 then grpo steps=9"), or folders of '
        "finished runs; key=value outside quotes applies to all of them",
    )
    command.add_argument("--task", metavar="NAME", help="the same as task=NAME")
    command.add_argument("--seeds", default="5", help="the number of seeds, or a list such as 0,1,2 (default 5)")
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="parallel runs, one process each (default 1)")
    command.add_argument("--metric", default="held_out", help="the metric to compare, at the last step (held_out)")
    _config(command)
    command.set_defaults(settings=[])


def _claims(command: argparse.ArgumentParser) -> None:
    command.add_argument("names", nargs="*", help="claims to judge; without names, show all results so far")
    command.add_argument("--show", action="store_true", help="show rule, figures and pilots of the claims; no runs")
    command.add_argument("--all", action="store_true", help="judge every claim without a result (make claims)")
    command.add_argument(
        "--pilot",
        action="store_true",
        help="try the sweep on seeds 100 to 104; no verdict. With settings, such as optim.lr=0.1 optim.lr=0.2, these "
        "are its points, whatever the file says",
    )
    command.set_defaults(settings=())
    command.add_argument("--folder", metavar="DIR", help="folder of claims (default: claims, else the shipped board)")
    command.add_argument("--runs", default="runs/claims", metavar="DIR", help="folder of runs (default runs/claims)")
    command.add_argument("--jobs", type=int, default=2, metavar="N", help="parallel runs, one process each (default 2)")
    command.add_argument(
        "--runs-only",
        type=int,
        default=0,
        metavar="SEEDS",
        help="make the runs of the gates and, where these hold, of seeds 0 to SEEDS - 1, without a verdict, to copy "
        "their --runs to another machine",
    )
    _json(command)


def _lab(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "methods", nargs="*", help='methods: grpo, ./mine.py:MINE, or with settings "grpo method.objective.mean=token"'
    )
    command.add_argument("--all", action="store_true", help="all methods")
    command.add_argument("--samples", type=int, default=4, help="answers per prompt (default 4)")
    command.add_argument("--prompts", type=int, default=1, help="prompts per step (default 1)")
    command.add_argument("--rates", default="", metavar="P,P,…", help="success rates of the prompts: 0.1,0.3,0.5,0.9")
    command.add_argument("--answers", metavar="A,A,…", help="possible answers, in small letters; . is the empty answer")
    command.add_argument("--right", metavar="A,A,…", help="the correct answers among them")
    command.add_argument("--steps", type=int, default=3, help="small steps along the expected gradient (default 3)")
    command.add_argument("--size", type=float, default=0.5, help="length of such a step, in logits (default 0.5)")
    command.add_argument(
        "--off-policy", type=float, default=0.0, metavar="D", help="drift of the sampling policy, in logits"
    )
    command.add_argument("--critic", default="exact", metavar="exact | zero", help="values of the critic (exact)")
    command.add_argument("--warm", type=int, default=8, help="earlier steps that memory has observed (default 8)")
    command.add_argument("--seed", type=int, default=0, help="of the answers' probabilities, the drift and the memory")
    command.add_argument("--plot", metavar="FILE", help="write a figure, .png or .svg")
    command.add_argument(
        "--train", metavar="SETTINGS", help='train tables in an exact world: "steps=500 seeds=20" (docs/exact_world.md)'
    )
    _json(command)


def arguments(argv: list[str]) -> argparse.Namespace:
    """Settings may be anywhere among the flags, which argparse does not support in a subcommand."""
    if not argv:
        parser().print_help()
        raise SystemExit(2)
    refuse_slips(argv, ELSEWHERE, parser)
    texts = {i + 1 for i, a in enumerate(argv) if a in TEXTS}
    settings = [a for i, a in enumerate(argv) if SETTING.match(a) and i not in texts]
    args = parser().parse_args([a for i, a in enumerate(argv) if a not in settings or i in texts])
    if settings and not hasattr(args, "settings"):
        parser().error(f"{args.command} takes no settings such as {settings[0]}")
    if settings:
        args.settings = [*args.settings, *settings]
    args.typed = argv
    return args


def main(argv: Sequence[str] | None = None) -> int:
    stopping.last_words_end_the_process = argv is None
    try:
        return _ran(sys.argv[1:] if argv is None else list(argv), the_process=argv is None)
    except KeyboardInterrupt as stop:
        return _stopped(stop, the_process=argv is None)
    except RuntimeError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        return _stopped(error.__cause__, the_process=argv is None)  # Python 3.11 wraps what interrupts a class body


def _ran(argv: list[str], the_process: bool) -> int:
    """The exit code of a command. Signals are heard from here on, not only once a run begins: torch is loaded first."""
    stop = stopping.Stop(lambda: "")
    with stop if the_process else nullcontext():
        try:
            args = arguments(argv)
            module = import_module(ELSEWHERE.get(args.command, "gruppo.cli.commands"))  # torch is not loaded before
            code = getattr(module, args.command.replace("-", "_"))(args)
            if the_process:
                print(end="", flush=True)  # also where there is no stdout
        except (ValueError, OSError) as error:
            if stop.told_to_end:  # a library has turned the interrupt into an error of its own
                raise
            code = _failed(error)
        if the_process:
            # A signal that came while the run was being freed is handled here at the latest, so never outside `main`.
            # One that comes while Python ends may not leave a traceback either.
            stopping.on_signals(lambda *_: os._exit(code))
        return code


def _failed(error: ValueError | OSError) -> int:
    if isinstance(error, BrokenPipeError):
        return 0
    more = ". Nothing more was done; check that path and try again." if isinstance(error, OSError) else ""
    print(f"gruppo: {error}{more}", file=sys.stderr)
    return 2


def _stopped(stop: KeyboardInterrupt, the_process: bool) -> int:
    """The last words. Until Python has ended, a further signal says nothing more; it only ends what still waits."""
    code = getattr(stop, "code", 130)
    if the_process:
        stopping.on_signals(signal.SIG_IGN)
        sys.unraisablehook = lambda _: None  # what was interrupted half-made has nothing to say when it is freed
        warnings.simplefilter("ignore")
        exec("")  # else `python -m` dies by SIGINT at its end, if the interrupt came within an exec, as of a dataclass
    print(f"gruppo: stopped at once. {stop}".rstrip(), file=sys.stderr, flush=True)
    if the_process:
        stopping.on_signals(lambda *_: os._exit(code))
    return code
