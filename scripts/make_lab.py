"""Write what docs/lab.md shows of the exact laboratory: the table of every method, and the pictures in docs/lab/.

    python scripts/make_lab.py              both
    python scripts/make_lab.py --table      the table alone (some seconds a method)
    python scripts/make_lab.py --new        lines for methods that have none; the other lines stay as they are
    python scripts/make_lab.py --pictures   the pictures alone
    python scripts/make_lab.py --check      write nothing, and fail when the table is stale

Run it after adding or changing a method. Everything is enumerated in float64, so every machine writes the same table.
"""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from gruppo.lab.exact.figures import Lab, lab
from gruppo.lab.exact.show import HEAD, line, noise, save
from gruppo.lab.exact.world import ExactWorld
from gruppo.methods import built_in, method
from gruppo.stages import Method
from gruppo.stages.objective import ClippedSurrogate

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURES = ROOT / "docs" / "lab.md", ROOT / "docs" / "lab"
TWO = ("a", "b")
LENGTHS = ("a", "bb", "cccc", "d", "ee", "ffff")  # of equal mass, told apart by their first letter
GRID = tuple(round(0.05 * i, 2) for i in range(1, 20))


# the table


def measured(methods: Sequence[str | Method]) -> Lab:
    """Every method on the default bench, with one small step for the changes of entropy and success."""
    start = time.perf_counter()

    def tick(name: str, seen: set[str] = set()) -> None:  # noqa: B006  what it has seen
        if name not in seen:
            seen.add(name)
            print(f"{time.perf_counter() - start:6.0f} s  {name}", file=sys.stderr, flush=True)

    return lab(methods, steps=1, tick=tick)


def table(result: Lab) -> str:
    head = [*HEAD, "weight at " + ", ".join(f"{p:g}" for p in result.rates), "remarks"]
    lines = [head, ["---"] * len(head)]
    for row in result.rows:
        f = row.figures
        weight = "—" if f is None else ", ".join(f"{p.weight:.2f}" for p in f.prompts)
        name = f"[{row.method}](methods/{row.method}.md)"
        lines.append([name, *line(row)[1:], weight, "; ".join(row.says)])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)


MARKS = re.compile(r"(<!-- lab:begin -->\n)(.*?)(<!-- lab:end -->)", re.S)


def page(text: str, body: str) -> str:
    if not MARKS.search(text):
        raise SystemExit(f"{PAGE}: the marks lab:begin and lab:end are gone, so there is no place for the table.")
    return MARKS.sub(lambda m: f"{m[1]}{body}\n{m[3]}", text)


def written(text: str) -> dict[str, str]:
    """{method: line} of the table that is there."""
    found = MARKS.search(text)
    return {m[1]: m[0] for m in re.finditer(r"^\| \[(\w+)\].*$", found[2] if found else "", re.M)}


def with_new(text: str) -> str:
    """The page with lines for methods that had none, and without those of methods that are gone."""
    lines, known = written(text), list(built_in())
    head, rule, *fresh = table(measured([n for n in known if n not in lines])).splitlines()
    lines |= written(f"<!-- lab:begin -->\n{chr(10).join(fresh)}\n<!-- lab:end -->")
    return page(text, "\n".join([head, rule, *(lines[n] for n in known)]))


# the pictures


def draw_weight(path: Path) -> None:
    """GRPO's contrast over the success rate, for groups of several sizes: two answers, so a group is a number."""
    world = ExactWorld(rates=GRID, answers=TWO, right=("a",))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), constrained_layout=True)
    for samples in (2, 4, 8, 32):
        result = lab(["grpo"], world, samples=samples, steps=0)
        contrast = [p.contrast for p in result.rows[0].figures.prompts]  # type: ignore[union-attr]
        left.plot(GRID, contrast, marker=".", label=f"grpo, {samples} samples")
        right.plot(GRID, [c * p * (1 - p) for c, p in zip(contrast, GRID, strict=True)], marker=".")  # type: ignore[operator]
    true = lab(["rloo"], world, samples=4, steps=0).rows[0].figures
    flat = [p.contrast for p in true.prompts]  # type: ignore[union-attr]
    left.plot(GRID, flat, color="black", label="rloo = true gradient")
    right.plot(GRID, [c * p * (1 - p) for c, p in zip(flat, GRID, strict=True)], color="black")  # type: ignore[operator]
    left.plot(GRID, [(p * (1 - p)) ** -0.5 for p in GRID], ":", color="grey", label="1 / √(p (1 - p))")
    left.set(xlabel="success rate p", ylim=(0, 5), title="advantage of right less that of wrong")
    right.set(xlabel="success rate p", ylim=(0, None), title="the same times p (1 - p): pull of the prompt")
    left.legend(frameon=False, fontsize="small")
    save(figure, path)


def draw_length(path: Path) -> None:
    """Answers that differ in length alone."""
    world = ExactWorld(rates=(0.5,), answers=LENGTHS, right=LENGTHS[:3], shares=(1.0,))
    token = method("grpo").but(objective=ClippedSurrogate(mean="token"))
    entrants = [method("grpo"), replace(token, name="grpo, mean over tokens"), method("dr_grpo"), method("rloo")]
    result = lab(entrants, world, steps=1, size=0.5)
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.4), constrained_layout=True)
    for axis, answers, title in zip(axes, (LENGTHS[:3], LENGTHS[3:]), ("right", "wrong"), strict=True):
        for i, row in enumerate(result.rows):
            mass: Any = row.figures.prompts[0].mass  # type: ignore[union-attr]
            y = [mass[a][1] / mass[a][0] for a in answers]
            axis.plot([len(a) + 1 for a in answers], y, marker="o", linewidth=4 - i, label=row.method)
        axis.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
        axis.set(xlabel="tokens of the answer, its end included", title=f"{title} answers: mass after / before")
        axis.set_xticks([len(a) + 1 for a in answers])
    axes[0].legend(frameon=False, fontsize="small")
    save(figure, path)


def draw_methods(path: Path, text: str) -> None:
    """Cosine and noise of every method, as they stand in the table."""
    cells = {name: row.split(" | ") for name, row in written(text).items()}
    places = {i: HEAD.index(i) for i in ("cosine", "noise")}
    told = {name: [c[places["cosine"]], c[places["noise"]]] for name, c in cells.items()}
    figure, axis = plt.subplots(figsize=(9.5, 5.0), constrained_layout=True)
    noise(axis, [(name, float(x), float(y)) for name, (x, y) in told.items() if "—" not in (x, y)])
    axis.set_title("every method, four answers a step")
    save(figure, path)


def draw_off_policy(path: Path) -> None:
    """The cosine with the true gradient, when answers come from a policy that has drifted."""
    names = ("reinforce", "rloo", "grpo", "dr_grpo", "gspo", "cispo")
    drifts = (0.0, 0.1, 0.2, 0.4, 0.8)
    cosine: dict[str, list[float | None]] = {n: [] for n in names}
    for drift in drifts:
        for row in lab(names, samples=3, steps=0, off_policy=drift).rows:
            cosine[row.method].append(row.figures.cosine if row.figures else None)
    figure, axis = plt.subplots(figsize=(6.4, 3.8), constrained_layout=True)
    for i, (name, y) in enumerate(cosine.items()):
        axis.plot(drifts, y, marker="o", linewidth=4 - 0.5 * i, label=name)  # type: ignore[arg-type]
    axis.set(
        xlabel="drift of each logit of the policy that sampled (deviation)", ylabel="cosine with the true gradient"
    )
    axis.legend(frameon=False, fontsize="small")
    save(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the table and the pictures of docs/lab.md.")
    parser.add_argument("--table", action="store_true", help="the table alone")
    parser.add_argument("--pictures", action="store_true", help="the pictures alone")
    parser.add_argument("--new", action="store_true", help="lines for methods that have none")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the table is stale")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # the batches are tiny
    before = PAGE.read_text()
    if not args.pictures:
        text = with_new(before) if args.new else page(before, table(measured(list(built_in()))))
        if args.check:
            print(
                "docs/lab.md is fresh" if text == before else "docs/lab.md is stale: run `python scripts/make_lab.py`."
            )
            return int(text != before)
        PAGE.write_text(text)
        print(f"written: {PAGE.relative_to(ROOT)}")
    draw_methods(PICTURES / "methods.png", PAGE.read_text())
    if not (args.table or args.new):
        draw_weight(PICTURES / "weight.png")
        draw_length(PICTURES / "length.png")
        draw_off_policy(PICTURES / "off_policy.png")
        print(f"written: {PICTURES.relative_to(ROOT)}/*.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
