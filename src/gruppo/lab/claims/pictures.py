"""The picture of a claim: the curves of its arms or, where no regime was found, what its gates found."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gruppo.lab.claims import board
from gruppo.lab.claims.gates import NO_REGIME
from gruppo.lab.compare.stages import THEN, stages_of

ARMS = {"baseline": "Baseline", "entrant": "Method", "placebo": "Placebo"}


def has_picture(result: Mapping[str, Any] | None) -> bool:
    return bool(result and (result["curves"] or result["verdict"] == NO_REGIME))


def draw(result: Mapping[str, Any], path: Path, pilots: Sequence[Mapping[str, Any]] = ()) -> None:
    """Draw a result; `pilots` are those that are stored, for the sweep of a gate that did not hold."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    arms = result["curves"].values()
    metrics = [m for m in board.CURVES if arms and all(m in arm for arm in arms)]
    count = len(metrics or result["gates"])
    figure, axes = plt.subplots(1, count, figsize=(3.6 * count, 2.8), constrained_layout=True, squeeze=False)
    if metrics:
        _curves(axes[0], metrics, result)
    else:
        for axis, gate in zip(axes[0], result["gates"], strict=True):
            _gate(axis, gate, _sweep(gate, result, pilots))
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(figure)


def _curves(axes: Any, metrics: Sequence[str], result: Mapping[str, Any]) -> None:
    """The curves of all arms, with a band."""
    methods = {arm: f" {THEN} ".join(words[0] for words in stages_of(text)) for arm, text in result["arms"].items()}
    same = len(set(methods.values())) < len(methods)  # then the name of the method says little
    labels = {arm: f"{ARMS[arm].lower()} ({name})" if same else name for arm, name in methods.items()}
    for axis, metric in zip(axes, metrics, strict=True):
        for arm, curves in result["curves"].items():
            c = curves[metric]
            axis.plot(c["step"], c["mean"], label=labels[arm])
            low, high = ([m if x is None else x for m, x in zip(c["mean"], c[k], strict=True)] for k in ("low", "high"))
            axis.fill_between(c["step"], low, high, alpha=0.2, linewidth=0)
        axis.set(xlabel="step", title=metric)
    axes[0].legend(frameon=False)


def _gate(axis: Any, gate: Mapping[str, Any], sweep: Mapping[str, Sequence[float]]) -> None:
    """The values of a gate by seed, or by the points of the sweep, beside what was asked for."""
    by = sweep or {str(s): [v] for s, v in zip(gate["seeds"], gate["values"], strict=True)}
    for i, values in enumerate(by.values()):
        axis.plot([i] * len(values), values, "o", color="C0", alpha=0.6)
    if sweep:
        axis.plot([sum(v) / len(v) for v in by.values()], "_", color="C0", markersize=18, label="mean")
    else:
        axis.axhline(sum(gate["values"]) / len(gate["values"]), color="C0", linewidth=1, label="mean")
    axis.axhline(gate["size"], color="C3", linestyle="--", label=f"{gate['kind'].replace('_', ' ')} {gate['size']:g}")
    axis.set_xticks(range(len(by)), [name.rpartition("=")[2] for name in by])
    holds = "holds" if gate["holds"] else "does not hold"
    setting = next(iter(sweep), "").rpartition("=")[0]
    axis.set(xlabel=setting or "pilot seed", title=f"{ARMS[gate['arm']].lower()}, {gate['measure']}: {holds}")
    axis.title.set_fontsize(9)
    axis.margins(0.15, 0.35)
    axis.legend(frameon=False, fontsize=8)


def _sweep(
    gate: Mapping[str, Any], result: Mapping[str, Any], pilots: Sequence[Mapping[str, Any]]
) -> dict[str, Sequence[float]]:
    """{setting: values by seed} of the last stored pilot that swept this arm with the settings of the rule."""
    for pilot in reversed(pilots if not gate["holds"] else ()):
        runs = [r for r in pilot["runs"] if r["arm"] == gate["arm"] and gate["measure"] in r["values"]]
        values = {r["setting"]: r["values"][gate["measure"]] for r in runs}
        if len(values) > 1 and pilot["settings"] == result["settings"]:
            return values
    return {}
