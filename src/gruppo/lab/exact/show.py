"""Tables and pictures of the exact laboratory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gruppo.lab.exact.figures import Lab, Row

HEAD = ("method", "cosine", "scale", "bias", "variance", "noise", "Δ entropy", "Δ success")
BY_PROMPT = {
    "weight": "weight of a prompt with success rate p: its gradient in units of the true one",
    "contrast": "contrast: the mean advantage of right answers less that of wrong ones",
}
FEW = 8  # methods whose right answers are listed one by one


def number(x: float | None, digits: int = 3, sign: bool = False) -> str:
    """Rounded; float64 rounding errors are shown as 0."""
    if x is None:
        return "—"
    if abs(x) < 1e-12:
        return "0"
    text = f"{x:+.{digits}f}" if sign else f"{x:.{digits}f}"
    return f"{x:.0e}" if float(text) == 0 else text


def line(row: Row) -> list[str]:
    f = row.figures
    if f is None:
        return [row.method, *["—"] * (len(HEAD) - 1)]
    moved = [None, None] if len(f.entropy) < 2 else [f.entropy[1] - f.entropy[0], f.success[1] - f.success[0]]
    return [
        row.method,
        number(f.cosine),
        number(f.scale),
        number(f.bias),
        number(f.variance, 4),
        number(f.noise, 2),
        *(number(x, sign=True) for x in moved),
    ]


def by_prompt(lab: Lab, what: str) -> tuple[list[str], list[list[str]]]:
    """One figure for each prompt, by its success rate."""
    head = ["method", *(f"p={p:g}" for p in lab.rates)]
    done = [(r.method, r.figures) for r in lab.rows if r.figures is not None]
    return head, [[name, *(number(getattr(p, what)) for p in f.prompts)] for name, f in done]


def masses(lab: Lab) -> tuple[list[str], list[list[str]]]:
    """The mass of each right answer, at the start and after the last small step of each method."""
    done = [(r.method, r.figures) for r in lab.rows if r.figures is not None]
    head = ["right answer", "start", *(name for name, _ in done)]
    out: list[list[str]] = []
    for q, p in enumerate(lab.rates):
        for a in lab.right:
            start = lab.mass[q][lab.answers.index(a)]
            ends = [number(f.prompts[q].mass[a][-1]) for _, f in done]
            out.append([f"p={p:g}: {a or 'nothing'}", number(start), *ends])
    return head, out


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal: names aligned left, numbers right."""
    width = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]

    def one(cells: Sequence[str]) -> str:
        first, *rest = (c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, width, strict=True)))
        return "  ".join([first, *rest]).rstrip()

    return "\n".join(one(r) for r in (head, *rows))


def text(lab: Lab) -> str:
    """What `gruppo lab` prints."""
    shapes = dict.fromkeys((r.prompts, r.samples, r.draws) for r in lab.rows if r.figures is not None)
    steps = "; ".join(f"{p} × {s} answers a step, {d} different draws" for p, s, d in shapes)
    where = f"off-policy by {lab.off_policy:g}" if lab.off_policy else "on-policy"
    parts = [
        f"{len(lab.rates)} prompts, {len(lab.answers)} answers each; {steps or 'no method could be done'}; {where}",
        columns(HEAD, [line(r) for r in lab.rows]),
    ]
    if any(r.figures for r in lab.rows):
        for what, title in BY_PROMPT.items():
            parts.append(f"{title}\n{columns(*by_prompt(lab, what))}")
    if lab.steps and 0 < sum(r.figures is not None for r in lab.rows) <= FEW:
        title = f"mass of every right answer after {lab.steps} steps of length {lab.size:g} along the expected gradient"
        parts.append(f"{title}\n{columns(*masses(lab))}")
    said = [f"{r.method}: {'; '.join(r.says)}" for r in lab.rows if r.says]
    return "\n\n".join([*parts, "\n".join(said)] if said else parts)


# pictures


def plot(lab: Lab, path: Path) -> None:
    """Four panels: weight over success rate, every component of the gradient, noise, right answers."""
    if not any(r.figures for r in lab.rows):
        raise ValueError(f"--plot {path}: no method could be done, so there is nothing to draw. See the table.")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10.5, 7.6), constrained_layout=True)
    pull(axes[0, 0], lab)
    components(axes[0, 1], lab)
    noise(axes[1, 0], points(lab))
    answers(axes[1, 1], lab)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize="small")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(path, dpi=80)
    except ValueError as error:
        raise ValueError(f"--plot {path}: {str(error).rstrip('.')}. Give a name that ends in .png or .svg.") from None
    finally:
        plt.close(figure)


def _done(lab: Lab) -> list[tuple[str, Any, dict[str, Any]]]:
    """(name, figures, style) of every method that could be done. Later ones are thinner, so that all of them show where
    they coincide."""
    import matplotlib

    done = [(r.method, r.figures) for r in lab.rows if r.figures is not None]
    colours = matplotlib.colormaps["tab10" if len(done) <= 10 else "tab20"]
    width = [5.0 - 4.2 * i / max(len(done) - 1, 1) for i in range(len(done))]
    return [(n, f, {"color": colours(i % colours.N), "linewidth": width[i]}) for i, (n, f) in enumerate(done)]


def pull(axis: Any, lab: Lab, what: str = "weight") -> None:
    order = sorted(range(len(lab.rates)), key=lambda q: lab.rates[q])
    for name, f, style in _done(lab):
        unit = f.scale if what == "weight" else 1.0
        y = [getattr(f.prompts[q], what) for q in order]
        if None not in y and unit > 0:
            axis.plot(
                [lab.rates[q] for q in order], [w / unit for w in y], marker="o", markersize=3, label=name, **style
            )
    axis.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
    axis.set(xlabel="success rate of the prompt", ylim=(0, None), title="weight of a prompt / scale")


def components(axis: Any, lab: Lab) -> None:
    edge = max(map(abs, lab.true)) * 1.1
    axis.plot([-edge, edge], [-edge, edge], color="grey", linewidth=0.8, linestyle=":")
    for name, f, style in _done(lab):
        if f.scale > 0:
            y = [g / f.scale for g in f.expected]
            axis.plot(lab.true, y, "o", markersize=style["linewidth"] + 1, color=style["color"], label=name)
    axis.set(xlabel="true gradient", ylabel="expected / scale", title="every parameter: bias is off the diagonal")


def points(lab: Lab) -> list[tuple[str, float, float]]:
    """(name, cosine, noise) of every method that has them."""
    return [(n, f.cosine, f.noise) for n, f, _ in _done(lab) if f.cosine is not None and f.noise is not None]


def noise(axis: Any, at: Sequence[tuple[str, float, float]]) -> None:
    """One point per method; methods that coincide share a label."""
    same: dict[tuple[float, float], list[tuple[str, float, float]]] = {}
    for point in at:
        same.setdefault((round(point[1], 2), round(point[2], 1)), []).append(point)
    middle = (min(x for _, x, _ in at) + max(x for _, x, _ in at)) / 2 if at else 0.0
    for near in same.values():
        axis.plot([x for _, x, _ in near], [y for _, _, y in near], "o", color="tab:blue", markersize=4)
        where, names = max((x, y) for _, x, y in near), ", ".join(name for name, _, _ in near)
        side = "right" if where[0] > middle else "left"
        axis.annotate(names, where, (0, 4), textcoords="offset points", fontsize="x-small", ha=side)
    axis.margins(0.08)
    axis.set(xlabel="cosine with the true gradient", ylabel="noise: √variance / |expected|", title="bias and noise")


def answers(axis: Any, lab: Lab) -> None:
    """How much each right answer grew; answers are sorted by their initial mass."""
    starts = [(lab.mass[q][lab.answers.index(a)], q, a) for q in range(len(lab.rates)) for a in lab.right]
    starts.sort()
    for name, f, style in _done(lab):
        y = [f.prompts[q].mass[a][-1] / start for start, q, a in starts]
        axis.plot(range(len(starts)), y, marker=".", label=name, **style)
    axis.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
    labels = [f"{a or '·'} {start:.2g}" for start, _, a in starts]
    axis.set_xticks(range(len(starts)), labels, rotation=60, fontsize="x-small")
    axis.set(ylabel="mass after / before", title=f"right answers after {lab.steps} small steps, rarest first")
