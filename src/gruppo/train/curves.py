"""The picture of a run: curves.png."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from gruppo.train.progress import word

PANELS = (
    ("accuracy", "held_out"),
    ("reward",),
    ("length",),
    ("entropy",),
    ("grad_norm",),
    ("dead_groups", "clip_fraction"),
)


def figure(rows: Sequence[Mapping[str, Any]], title: str) -> Any:
    """A matplotlib figure of rows of metrics."""
    from matplotlib.figure import Figure

    called = {"accuracy": word(rows)}
    drawn = Figure(figsize=(12, 6))  # a layout that is computed would draw everything twice
    drawn.subplots_adjust(left=0.06, right=0.98, top=0.92, bottom=0.08, wspace=0.2, hspace=0.25)
    for axis, names in zip(drawn.subplots(2, 3).flat, PANELS, strict=True):
        for name in names:
            points = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
            if points:
                axis.plot(
                    *np.array(points, float).T, marker="o" if name == "held_out" else None, label=called.get(name, name)
                )
        axis.set_xlabel("step")
        if axis.lines:
            axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    drawn.suptitle(title)
    return drawn


def shown(drawn: Any) -> Any:
    """A figure that notebooks show, also without pyplot."""

    def png() -> bytes:
        out = BytesIO()
        drawn.savefig(out, format="png", dpi=80)
        return out.getvalue()

    drawn._repr_png_ = png
    return drawn


def draw(rows: Sequence[Mapping[str, Any]], path: Path, title: str) -> Path | None:
    """Writes the figure, at once or not at all; None if no step was done."""
    if not any("reward" in r for r in rows):
        return None
    draft = path.with_name(f".draft-{path.name}")
    try:
        figure(rows, title).savefig(draft, dpi=110)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path
