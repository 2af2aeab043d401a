"""Hugging Face datasets: `task=hf:openai/gsm8k` by name, `task=hf:./folder` (or a .parquet, .csv, .json file)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gruppo.tasks.base import TaskSet
from gruppo.tasks.build import SHARE, task_set
from gruppo.tasks.files import USED, is_data, read
from gruppo.tasks.imports import is_file, library, nearest
from gruppo.tasks.rows import Table
from gruppo.tasks.settings import TaskConfig, refuse_unused

SECONDS = 5.0  # to learn whether the hub can be reached
KINDS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow"}


def load(settings: TaskConfig) -> TaskSet:
    refuse_unused(settings, (*USED, "config", "split"))
    name = settings.name.removeprefix("hf:")
    splits = _splits(name, settings.config)
    train = settings.split or ("train" if "train" in splits else next(iter(splits)))
    table = _table(settings, splits, train, "split")
    return task_set(Path(name).stem, table, _held_out(settings, splits, train), settings)


def _held_out(settings: TaskConfig, splits: dict[str, Any], train: str) -> Table | float:
    told = settings.held_out
    if told == "":
        own = next((s for s in ("test", "validation", "valid", "dev") if s in splits and s != train), "")
        return _table(settings, splits, own, "held_out") if own else SHARE
    try:
        return float(told)
    except ValueError:
        return read(str(told))[0] if is_data(str(told)) else _table(settings, splits, str(told), "held_out")


def _table(settings: TaskConfig, splits: dict[str, Any], split: str, setting: str) -> Table:
    if split not in splits:
        raise ValueError(
            f"task.{setting}={split}: {settings.name} has no such split, so its rows cannot be read."
            f"{nearest(split, splits)} Splits: {', '.join(splits)}."
        )
    name = f"{Path(settings.name.removeprefix('hf:')).stem}"
    return Table(name, splits[split].to_list(), lambda i: f"{settings.name}, split {split}, row {i}")


def _splits(name: str, config: str) -> dict[str, Any]:
    """The splits of a dataset, by name; a folder or file that exists comes before a name of the hub."""
    datasets = library("datasets", "task=hf:… reads data with it")
    path = Path(name).expanduser()
    if path.exists():
        return _local(datasets, path, config)
    if is_file(name) and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
        beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise ValueError(
            f"task=hf:{name}: there is no such folder or file, so there are no tasks.{nearest(path.name, beside)} A "
            "path counts from the folder in which gruppo was started."
        )
    return _remote(datasets, name, config)


def _local(datasets: Any, path: Path, config: str) -> dict[str, Any]:
    try:
        if path.is_file():
            if path.suffix not in KINDS:
                raise ValueError(f"files that can be read end in {', '.join(KINDS)}")
            return _quietly(datasets, KINDS[path.suffix], config, data_files=str(path))
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            found = datasets.load_from_disk(str(path))
            return dict(found) if isinstance(found, dict) else {"train": found}
        return _quietly(datasets, str(path), config)
    except Exception as error:
        raise ValueError(
            f"task=hf:{path} cannot be read as a dataset, so there are no tasks. It said: {_first_line(error)}. Name a "
            "folder or file of JSON, CSV or Parquet, or another task.config."
        ) from None


def _remote(datasets: Any, name: str, config: str) -> dict[str, Any]:
    trouble = _unreachable(name)
    try:
        with _offline(datasets) if trouble else _as_it_is():
            return _quietly(datasets, name, config)
    except Exception as error:
        if trouble:
            raise ValueError(
                f"task=hf:{name}: {trouble}, and its cache on this machine does not help ({_first_line(error)}), so "
                "there are no tasks. Connect, or fetch it elsewhere and name its folder, task=hf:./folder, or a file, "
                "task=./data.jsonl."
            ) from None
        raise ValueError(
            f"task=hf:{name} cannot be loaded, so there are no tasks. It said: {_first_line(error)}. A dataset with "
            "several configurations needs task.config=NAME."
        ) from None


def _quietly(datasets: Any, name: str, config: str, **files: str) -> dict[str, Any]:
    found = datasets.load_dataset(name, config or None, **files)
    return dict(found) if isinstance(found, dict) else {"train": found}


def _unreachable(name: str) -> str:
    """Why the hub cannot be asked, found out within seconds and without retries; empty if it can."""
    hub = library("huggingface_hub", "task=hf:… finds datasets with it")
    try:
        hub.HfApi().dataset_info(name, timeout=SECONDS)
    except hub.errors.RepositoryNotFoundError:
        raise ValueError(
            f"task=hf:{name}: the hub has no such dataset, or you may not see it, so there are no tasks. Look the name "
            "up on huggingface.co/datasets; for a private or gated one:  hf auth login"
        ) from None
    except hub.errors.HFValidationError as error:
        raise ValueError(f"task=hf:{name} is no name of a dataset: {_first_line(error)}. Write OWNER/NAME.") from None
    except Exception as error:  # no network, no name server, a proxy that refuses, offline mode
        return f"the hub cannot be reached ({type(error).__name__})"
    return ""


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """The cache only, so that nothing is tried again and again."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


def _first_line(error: BaseException) -> str:
    """What was said first of all, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = " ".join(str(error).split()).rstrip(".")
    return (said if len(said) < 400 else said[:397] + "...") or type(error).__name__
