"""Hugging Face datasets: `task=hf:openai/gsm8k` by name, `task=hf:./folder` (or a .parquet, .csv, .json file)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gruppo.tasks.base import TaskSet
from gruppo.tasks.build import SHARE, task_set
from gruppo.tasks.files import USED, is_data, read
from gruppo.tasks.imports import is_file, library, nearest, no_file
from gruppo.tasks.rows import Table
from gruppo.tasks.settings import TaskConfig, refuse_unused

SECONDS = 5.0  # to find out whether the hub can be reached
KINDS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow"}


def load(settings: TaskConfig) -> TaskSet:
    refuse_unused(settings, (*USED, "config", "split"))
    name = settings.name.removeprefix("hf:")
    splits = _splits(name, settings.config)
    train = settings.split or ("train" if "train" in splits else next(iter(splits)))
    table = _table(settings, splits, train, "split")
    return task_set(Path(name).stem, table, _held_out(settings, splits, train), settings)


def _held_out(settings: TaskConfig, splits: dict[str, Any], train: str) -> Table | float:
    value = settings.held_out
    if value == "":
        own = next((s for s in ("test", "validation", "valid", "dev") if s in splits and s != train), "")
        return _table(settings, splits, own, "held_out") if own else SHARE
    try:
        return float(value)
    except ValueError:
        return read(str(value))[0] if is_data(str(value)) else _table(settings, splits, str(value), "held_out")


def _table(settings: TaskConfig, splits: dict[str, Any], split: str, setting: str) -> Table:
    if split not in splits:
        raise ValueError(
            f"task.{setting}={split}: {settings.name} has no such split.{nearest(split, splits)} Splits: "
            f"{', '.join(splits)}."
        )
    name = Path(settings.name.removeprefix("hf:")).stem
    return Table(name, splits[split].to_list(), lambda i: f"{settings.name}, split {split}, row {i}")


def _splits(name: str, config: str) -> dict[str, Any]:
    """The splits of a dataset by name. A folder or file that exists takes precedence over a name on the hub."""
    datasets = library("datasets", "task=hf:… reads data with it")
    path = Path(name).expanduser()
    if path.exists():
        return _local(datasets, path, config)
    if is_file(name) and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
        raise ValueError(f"task=hf:{name}: {no_file(path, 'folder or file')}")
    return _remote(datasets, name, config)


def _local(datasets: Any, path: Path, config: str) -> dict[str, Any]:
    try:
        if path.is_file():
            if path.suffix not in KINDS:
                raise ValueError(f"the file must end in {', '.join(KINDS)}")
            return _by_name(datasets.load_dataset(KINDS[path.suffix], config or None, data_files=str(path)))
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            return _by_name(datasets.load_from_disk(str(path)))
        return _by_name(datasets.load_dataset(str(path), config or None))
    except Exception as error:
        raise ValueError(
            f"task=hf:{path} cannot be read as a dataset: {_first_line(error)}. Name a folder or file of JSON, CSV or "
            "Parquet, or another task.config."
        ) from None


def _remote(datasets: Any, name: str, config: str) -> dict[str, Any]:
    trouble = _unreachable(name)
    try:
        with _offline(datasets, bool(trouble)):
            return _by_name(datasets.load_dataset(name, config or None))
    except Exception as error:
        if trouble:
            raise ValueError(
                f"task=hf:{name}: {trouble}, and its cache on this machine cannot be used ({_first_line(error)}). "
                "Connect, or download it elsewhere and name its folder, task=hf:./folder, or a file, task=./data.jsonl."
            ) from None
        raise ValueError(
            f"task=hf:{name} cannot be loaded: {_first_line(error)}. A dataset with several configurations requires "
            "task.config=NAME."
        ) from None


def _by_name(found: Any) -> dict[str, Any]:
    return dict(found) if isinstance(found, dict) else {"train": found}


def _unreachable(name: str) -> str:
    """Why the hub cannot be reached, within seconds and without retries; empty if it can."""
    hub = library("huggingface_hub", "task=hf:… finds datasets with it")
    try:
        hub.HfApi().dataset_info(name, timeout=SECONDS)
    except hub.errors.RepositoryNotFoundError:
        raise ValueError(
            f"task=hf:{name}: the hub has no such dataset, or you have no access to it. Check the name on "
            "huggingface.co/datasets; for a private or gated one:  hf auth login"
        ) from None
    except hub.errors.HFValidationError as error:
        raise ValueError(f"task=hf:{name} is no name of a dataset: {_first_line(error)}. Write OWNER/NAME.") from None
    except Exception as error:  # no network, no name server, a proxy that refuses, offline mode
        return f"the hub cannot be reached ({type(error).__name__})"
    return ""


@contextmanager
def _offline(datasets: Any, offline: bool) -> Iterator[None]:
    """Uses the cache only, without retries."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = offline or before
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _first_line(error: BaseException) -> str:
    """The message of the first cause, on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = " ".join(str(error).split()).rstrip(".")
    return (said if len(said) < 400 else said[:397] + "...") or type(error).__name__
