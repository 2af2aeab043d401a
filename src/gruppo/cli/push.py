"""`gruppo push`: a policy, with a model card, to a repository of the Hugging Face hub."""

import argparse
import json
import threading
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from gruppo import __version__
from gruppo.tasks.imports import library

SECONDS = 5.0  # to find out whether the hub can be reached
TABLES = ("model", "sampling", "optim", "eval")  # settings in the card; those of tasks may name files of the user


def push(args: argparse.Namespace) -> int:
    folder, run = _folders(Path(args.source).expanduser())
    _refuse_local_base(folder)
    hub = library("huggingface_hub", "gruppo push uploads with it", "hf")
    api, name = _signed_in(hub, args.name)
    try:
        url = api.create_repo(name, private=not args.public, exist_ok=True)
        private = bool(api.repo_info(name).private)
        if private or args.public:
            _upload(hub, api, name, folder, run)
    except Exception as error:  # the hub has a class for each refusal
        raise ValueError(
            f"{name} could not be uploaded ({_line(error)}). Check that the name is yours to write to, then run the "
            "command again."
        ) from None
    if not private and not args.public:
        raise ValueError(
            f"{name} exists and is public, so the policy would be too; nothing was uploaded. Add --public, or choose "
            "another name."
        )
    print(f"{folder} is at {url} ({'private' if private else 'public'})")
    if private and args.public:
        print("the repository was there before and is private: its page on the hub has the setting that opens it")
    return 0


def _folders(source: Path) -> tuple[Path, Path | None]:
    """The folder to upload, and the run that it belongs to, if it is known."""
    folder = source / "policy" if (source / "policy" / "config.json").is_file() else source
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        unfinished = " The run has not saved its policy yet: finish it first." if _is_run(source) else ""
        raise ValueError(
            f"{source} is neither a run with a policy nor a folder with a config.json, so there is nothing to "
            f"upload.{unfinished} Name a run, such as runs/NAME, or runs/NAME/policy."
        )
    return folder, next((p for p in (source, folder.parent) if _is_run(p)), None)


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file()


def _refuse_local_base(folder: Path) -> None:
    base = _base(folder)
    if not (folder / "config.json").is_file() and (base is None or PurePath(base).is_absolute()):
        raise ValueError(
            f"{folder} is an adapter on {base or 'an unnamed model'}, which nobody else has, so it would be of no use. "
            f"Push {folder.with_name('policy')}, which has the adapter merged."
        )


def _base(folder: Path) -> str | None:
    path = folder / "adapter_config.json"
    return json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path") if path.is_file() else None


def _signed_in(hub: Any, name: str) -> tuple[Any, str]:
    """The hub as this user, and the whole name of the repository."""
    # The package has these as attributes only once something has imported them.
    utils, errors = import_module("huggingface_hub.utils"), import_module("huggingface_hub.errors")
    try:
        utils.validate_repo_id(name)
    except errors.HFValidationError as error:
        raise ValueError(f"{name!r} is no name of a repository: {_line(error)}. Write OWNER/NAME or NAME.") from None
    if hub.get_token() is None:
        raise ValueError(
            "there is no token of the hub on this machine, so nothing can be uploaded. Make one that may write, in "
            "the settings of your account on the hub, then:  hf auth login"
        )
    api = hub.HfApi()
    try:
        owner = str(_within(SECONDS, api.whoami)["name"])
    except errors.HfHubHTTPError as error:
        raise ValueError(
            f"the hub does not accept the token ({_line(error)}), so nothing was uploaded. Sign in again:  "
            "hf auth login"
        ) from None
    except Exception as error:  # no network, no name server, a proxy that refuses, offline mode
        raise ValueError(
            f"the hub cannot be reached ({type(error).__name__}), so nothing was uploaded. Connect and try again; the "
            "folder stays as it is."
        ) from None
    return api, name if "/" in name else f"{owner}/{name}"


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """The result of a call; a TimeoutError if it takes longer. The hub's own calls try again for minutes."""
    done: dict[str, Any] = {}

    def work() -> None:
        try:
            done["result"] = call()
        except Exception as error:
            done["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if "error" in done:
        raise done["error"]
    if "result" not in done:
        raise TimeoutError
    return done["result"]


def _upload(hub: Any, api: Any, name: str, folder: Path, run: Path | None) -> None:
    """All files in one commit, so that the repository never has half of them."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    operations = [hub.CommitOperationAdd(p.relative_to(folder).as_posix(), str(p)) for p in files]
    if not (folder / "README.md").is_file():
        operations.append(hub.CommitOperationAdd("README.md", card(name, folder, run).encode()))
    api.create_commit(name, operations, commit_message=f"gruppo {__version__}")


def card(name: str, folder: Path, run: Path | None) -> str:
    """The model card: what was trained, how, and how well it does."""
    summary, config = _read_run(run)
    model = config.get("model", {})
    base = _base(folder) or str(model.get("name", ""))
    on_hub = base.count("/") == 1 and not base.startswith((".", "~")) and not Path(base).exists()
    adapter = not (folder / "config.json").is_file()
    tags = ["gruppo", "reinforcement-learning", *([str(summary["method"])] if "method" in summary else [])]
    head = ["---", f"library_name: {'peft' if adapter else 'transformers'}", "pipeline_tag: text-generation"]
    head += ["tags:", *(f"- {json.dumps(t)}" for t in tags), *([f"base_model: {base}"] if on_hub else []), "---"]
    start = base if on_hub else PurePath(base).name
    body = [
        f"# {name.rpartition('/')[2]}",
        "",
        f"Trained with gruppo {__version__}" + (f" from {start}." if start else "."),
    ]
    return "\n".join([*head, "", *body, *_results(summary, config), *_use(name, base, folder, adapter)]) + "\n"


def _read_run(run: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Summary and configuration of a run, as tables: no code of the user is run."""
    if run is None:
        return {}, {}
    summary = run / "summary.json"
    config = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    return json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {}, config


def _results(summary: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    if not config:
        return []
    method, task = config["method"], config["task"]
    level = f", level {task['level']}" if task.get("level") not in (None, "") else ""
    measure, since = summary.get("measure", "accuracy"), summary.get("measured_since", 0)
    facts = {
        "method": method["name"] + (f" ({method['paper']})" if method.get("paper") else ""),
        "task": PurePath(task["name"]).name + level,
        f"held-out {measure} {f'after step {since}' if since else 'before'}": _shown(summary.get("accuracy_before")),
        f"held-out {measure} after": _shown(summary.get("accuracy_after")),
        **{key: config[key] for key in ("steps", "prompts", "samples", "seed") if key in config},
    }
    settings = {f"{t}.{k}": v for t in TABLES for k, v in _flat(config.get(t, {}))}
    settings["model.name"] = PurePath(settings.get("model.name", "")).name
    rows = [f"| {key} | {_cell(value)} |" for key, value in (facts | settings).items() if value not in (None, "", [])]
    return ["", "| | |", "|---|---|", *rows]


def _flat(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(dotted name, value) of the settings of a table."""
    out: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            out += [(f"{key}.{name}", v) for name, v in _flat(value)]
        elif key != "kind":
            out.append((key, value))
    return out


def _shown(accuracy: Any) -> str | None:
    return f"{accuracy:.3f}" if isinstance(accuracy, (int, float)) else None


def _cell(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def _use(name: str, base: str, folder: Path, adapter: bool) -> list[str]:
    model = [f'model = AutoModelForCausalLM.from_pretrained("{name}")']
    imports = ["from transformers import AutoModelForCausalLM, AutoTokenizer"]
    if adapter:
        imports = ["from peft import PeftModel", *imports]
        model = [f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "{name}")']
    chats = (folder / "chat_template.jinja").is_file()
    ask = 'inputs = tokenizer("12+34=", return_tensors="pt")'
    if chats:
        ask = (
            'inputs = tokenizer.apply_chat_template([{"role": "user", "content": "…"}], add_generation_prompt=True, '
            'return_tensors="pt", return_dict=True)'
        )
    tokens = [f'tokenizer = AutoTokenizer.from_pretrained("{name}")', ask]
    return [
        "",
        "```python",
        *imports,
        "",
        *model,
        *tokens,
        "print(tokenizer.decode(model.generate(**inputs)[0]))",
        "```",
    ]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
