"""Before and after a run: a new folder, the checkpoint to go on from, what is finished, and the last words."""

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from gruppo.tasks.load import short_name
from gruppo.train.checkpoint import checkpoints, latest_checkpoint, set_aside, step_of
from gruppo.train.config import RunConfig, SaveConfig
from gruppo.train.folder import RunFolder, read_json
from gruppo.train.lock import Lock
from gruppo.train.manifest import damage
from gruppo.train.stop import Stop

NOTHING = "Nothing was trained yet: start it again."


@contextmanager
def new_folder(config: RunConfig) -> Iterator[RunFolder]:
    """A new folder, locked; if two runs start in the same second, the later one gets a number."""
    task = short_name(config.task.name)
    plain = f"{config.method.name}-{task}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    refuse_name(config.save)
    names = [config.save.name] if config.save.name else [plain, *(f"{plain}-{i}" for i in range(2, 100))]
    for name in names:
        folder = RunFolder(Path(config.save.folder) / name)
        try:
            folder.path.mkdir(parents=True, exist_ok=bool(config.save.name))
        except FileExistsError:
            if not folder.path.is_dir():
                raise ValueError(
                    f"{folder.path} is a file, so nothing was started. Choose another save.name."
                ) from None
            continue
        except OSError as error:
            another = "a shorter save.name" if error.errno == errno.ENAMETOOLONG else "another save.folder"
            raise ValueError(
                f"{folder.path} cannot be made ({error.strerror}), so nothing was started. Choose {another}."
            ) from None
        with _no_empty(folder.path), Lock(folder.path):
            if not folder["config.toml"].exists() and not checkpoints(folder["checkpoints"]):
                try:
                    yield folder
                finally:
                    folder.drop_if_empty()  # if nothing was started
                return
    folder = RunFolder(Path(config.save.folder) / names[0])
    raise ValueError(
        f"{folder.path} holds a run already: a second one would mix with it. Choose another save.name, or go on with "
        f"it: {folder.resume_command}"
    )


@contextmanager
def _no_empty(path: Path) -> Iterator[None]:
    """A signal between the folder and its lock leaves no folder."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(OSError):  # it is not empty: a run, or a lock, perhaps of another one
            path.rmdir()
        raise


def refuse_name(save: SaveConfig) -> None:
    """Refuses a save.name whose folder is not right inside save.folder, where `gruppo runs` looks."""
    name, parts = save.name, Path(save.name).parts
    outside = ".." in parts or Path(name).is_absolute()
    if not name or (len(parts) == 1 and not outside and name.isprintable()):
        return
    place = "save.folder=PATH"
    if len(parts) > 1 and not outside and name.isprintable():
        place = f"save.folder={Path(save.folder, *parts[:-1])} save.name={parts[-1]}"
    raise ValueError(
        f"save.name={name!r} is no name of a folder right inside save.folder, where gruppo runs looks, so nothing was "
        f"started. Use a word; another place is {place}."
    )


def newest(folder: RunFolder, skip_damaged: bool) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and what is wrong with those after it, which are refused or skipped."""
    found, skipped = checkpoints(folder["checkpoints"]), dict[Path, str]()
    for path in reversed(found):
        said = damage(path)
        if not said:
            return path, skipped
        if not skip_damaged:
            earlier = next((p for p in reversed(found[: found.index(path)]) if not damage(p)), None)
            before = f"{earlier.name} before it is whole" if earlier else "No whole one is before it; to begin again"
            raise ValueError(
                f"{path} is damaged: {said}, so the run cannot go on from it. {before}: go on with  "
                f"{folder.resume_command} --skip-damaged"
            )
        skipped[path] = said
    return None, skipped


def put_aside(skipped: Mapping[Path, str], say: Callable[[str], None]) -> None:
    """Damaged checkpoints: once nothing else stands in the way of the run."""
    for path, said in skipped.items():
        say(f"{path.name} is damaged ({said}) and was set aside as {set_aside(path).name}")


def finished(folder: RunFolder, done: int, steps: int, changed: bool = False) -> str:
    """Says that a run has come to its end; "" if it has not, or if what it left has to be written again."""
    if not folder["summary.json"].is_file() or folder.damage():
        return ""
    early = read_json(folder["summary.json"]).get("ended_early", "")
    if done < steps and (changed or not early):
        return ""
    why = f"it ended early ({early})" if early else f"all of its {done} steps are done"
    longer = "eval.patience=0" if early else f"steps={2 * done}"
    return (
        f"{folder.path} is finished: {why}, so nothing was trained. To train longer:  {folder.resume_command} "
        f"{longer} --allow-changes"
    )


@contextmanager
def told(folder: RunFolder, stop: Stop, begun: bool = True) -> Iterator[None]:
    """Whatever ends a run early, at whatever moment: the last words say which step is saved, and how to go on.

    What is refused before it has begun says by itself what to do.
    """
    stop.words, stop.tidy = partial(what_is_saved, folder), folder.drop_if_empty
    try:
        yield
    except KeyboardInterrupt:
        raise stop.ended() from None
    except (ValueError, OSError) as error:
        _stopped(stop, error)
        if not begun:
            raise
        said = str(error)
        if isinstance(error, OSError) and error.strerror:
            said = f"{error.strerror}: {error.filename or folder.path}"
        raise ValueError(f"{said}\n{how_to_mend(folder)}") from error
    except Exception as error:
        _stopped(stop, error)
        error.add_note(how_to_mend(folder))
        raise


def _stopped(stop: Stop, error: Exception) -> None:
    """A library may turn the interrupt of a signal into an error of its own: a file that cannot be read."""
    if stop.told_to_end:
        raise stop.ended() from error


def how_to_mend(folder: RunFolder) -> str:
    """After an error: the command alone would meet it again."""
    if _empty(folder):
        return "Nothing was started: once that is fixed, start it again."
    return f"Mend that first, or the same will happen again. {how_to_resume(folder)}"


def how_to_resume(folder: RunFolder) -> str:
    """After a step."""
    last = latest_checkpoint(folder["checkpoints"])
    saved = f"Step {step_of(last)} is saved" if last else "No step is saved yet, so it begins again"
    return f"{saved}: go on with  {folder.resume_command}"


def what_is_saved(folder: RunFolder) -> str:
    """After a signal."""
    return NOTHING if _empty(folder) else how_to_resume(folder)


def _empty(folder: RunFolder) -> bool:
    return latest_checkpoint(folder["checkpoints"]) is None and not folder["config.toml"].exists()
