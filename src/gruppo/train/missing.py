"""A run that is not there: one sentence for every command that is given its name."""

from pathlib import Path

from gruppo.stages.names import nearest


def refuse_missing(path: Path, so: str = "so nothing was done") -> None:
    """Raises if there is nothing at a path, with the nearest name that is there."""
    if path.exists():
        return
    there = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    raise ValueError(
        f"{path}: there is no such run or folder{nearest(path.name, there)}, {so}. `gruppo runs` lists the runs that "
        "are here."
    )
