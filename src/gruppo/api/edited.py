"""Files of the user that were edited between two runs of a Python session: the next run is of what stands there now."""

from typing import Any

from gruppo.tasks.loaded import changed_files, forget_changed
from gruppo.train.depends import user_files
from gruppo.train.lock import under_way


def read_anew() -> None:
    """What has changed is loaded anew when it is named; but not what a run that goes on was started with."""
    forget_changed({file for files in under_way.values() for file in files})


def refuse_old(given: Any) -> None:
    """Refuses settings, or a configuration, whose code has changed and could not be loaded anew."""
    changed = changed_files()
    needed = user_files(given) if changed else frozenset()
    file = next((file for file in changed if file in needed), None)
    if file is None:
        return
    run = next((folder for folder, files in under_way.items() if file in files), None)
    if run is not None:
        raise ValueError(
            f"{file} has changed, and a run of this session that uses it goes on ({run}): loaded anew, it would change "
            "that run, too. End that run first (`.close()` of an iterator of gruppo.steps), or undo the change."
        )
    raise ValueError(
        f"{file} has changed since this session imported it by itself (`import {file.stem}`), so a run would name "
        f"other code than it has. Call importlib.reload({file.stem}), start a new session, or undo the change."
    )
