"""The exact laboratory: the mean of a method's gradient over all groups, compared with the true gradient.

    true       ∇J = ∇ 1/Q Σ_q Σ_o π(o|q) R(q, o)                           by enumeration of the answers
    expected   E g = Σ_draws P(draw) g(draw)                               by enumeration of the groups
    bias       E g − ∇J,      variance  Σ P(draw) |g − E g|²               as exact as the two above

    lab(["grpo", "rloo"]).rows[0].figures.cosine

`gruppo lab METHOD…` prints it. See docs/lab.md for what each figure means.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.lab.exact.bench import Bench
from gruppo.lab.exact.groups import Unlike
from gruppo.lab.exact.remarks import remarks
from gruppo.lab.exact.trial import Moments, Trial
from gruppo.lab.exact.world import ExactWorld, entropy
from gruppo.methods import method as by_name
from gruppo.stages import Method
from gruppo.stages.check import least_samples

Tick = Callable[[str], None]

MANY = 100_000  # steps


@dataclass(frozen=True)
class PromptFigures:
    """One prompt: its weight in the gradient, and what becomes of its answers."""

    prompt: str
    rate: float  # of success, at the start
    weight: float | None  # E g · ∇J / |∇J|² over this prompt's parameters; 1 for the true gradient
    cosine: float | None  # of the two gradients over this prompt's parameters; None if one of them is 0
    contrast: float | None  # E[A | right] − E[A | wrong]; None for a credit without advantages
    mass: dict[str, list[float]]  # of each answer, at the start and after each small step


@dataclass(frozen=True)
class Figures:
    cosine: float | None  # of expected and true gradient; None if the expected one is 0
    scale: float  # E g · ∇J / |∇J|²
    bias: float  # |E g − ∇J| / |∇J|
    bias_norm: float  # |E g − ∇J|
    variance: float  # trace of the covariance of g that comes from the answers
    noise: float | None  # sqrt(variance) / |E g|
    dropped: float  # probability that selection drops all of a draw
    entropy: list[float]  # of answers, in nats, mean over prompts: at the start and after each small step
    success: list[float]  # mean over prompts: at the start and after each small step
    expected: list[float]  # E g, parameter by parameter
    prompts: list[PromptFigures]


@dataclass(frozen=True)
class Row:
    """The row of a method. `figures` is None if the laboratory cannot enumerate the method; `says` has the reason."""

    method: str
    draws: int  # different draws of a step
    prompts: int  # of a step
    samples: int  # of a prompt
    exact: bool
    says: list[str]
    figures: Figures | None


@dataclass(frozen=True)
class Lab:
    rates: list[float]
    answers: list[str]
    right: list[str]
    parameters: list[str]  # names: prompt:beginning→token
    true: list[float]  # the true gradient
    mass: list[list[float]]  # of every answer to every prompt, at the start
    off_policy: float
    critic: str
    warm: int
    steps: int
    size: float
    rows: list[Row]


def lab(
    methods: Sequence[str | Method],
    world: ExactWorld | None = None,
    *,
    prompts: int = 1,
    samples: int = 4,
    steps: int = 3,
    size: float = 0.5,
    off_policy: float = 0.0,
    critic: str = "exact",
    warm: int = 8,
    seed: int = 0,
    tick: Tick = lambda name: None,
) -> Lab:
    """Measure methods, one after the other.

    prompts, samples  of one optimiser step
    steps, size       small steps along the expected gradient, each of length `size` in the logits
    off_policy        drift between the policy that sampled and the one that is trained; critic, warm: see Bench
    """
    _checked(steps, size, off_policy, critic, warm)
    found = [by_name(m) if isinstance(m, str) else m for m in methods]
    bench = Bench(world or ExactWorld(seed=seed), drift=off_policy, critic=critic, warm=warm, seed=seed)
    bench.draws(prompts, samples)  # refuse too many draws before the first method
    true_T = true_gradient(bench, bench.world.theta)
    rows = [_row(bench, m, prompts, samples, steps, size, true_T, tick) for m in found]
    w = bench.world
    return Lab(
        list(w.rates), list(w.answers), list(w.right), w.names(), true_T.tolist(), w.mass_QA.tolist(), off_policy,
        critic, warm, steps, size, rows,
    )  # fmt: skip


def _checked(steps: int, size: float, off_policy: float, critic: str, warm: int) -> None:
    if steps < 0 or warm < 0:
        raise ValueError(f"steps={steps}, warm={warm}: a number of steps is 0 or more.")
    for name, value in (("steps", steps), ("warm", warm)):
        if value > MANY:
            raise ValueError(
                f"{name}={value}: each step is computed and kept, so these would not come to an end. Use {MANY:,} at "
                "most."
            )
    if not size > 0:
        raise ValueError(f"size={size}: the policy would stand still. Use a length above 0, such as 0.5.")
    if not 0 <= off_policy < float("inf"):
        raise ValueError(
            f"off_policy={off_policy}: it is a deviation, in logits. Use 0 (on-policy) or more, such as 0.3."
        )
    if critic not in ("exact", "zero"):
        raise ValueError(f"critic={critic!r}: there is no such critic here. Use exact or zero.")


def true_gradient(bench: Bench, theta: Tensor) -> Tensor:
    """∇ of the expected task reward, averaged over prompts, by summing over all answers."""
    theta = theta.detach().clone().requires_grad_()
    value = (bench.log_mass(theta).exp() * bench.world.reward_QA).sum(-1).mean()
    return torch.autograd.grad(value, theta)[0]


def _row(
    bench: Bench, m: Method, prompts: int, samples: int, steps: int, size: float, true_T: Tensor, tick: Tick
) -> Row:
    """The row of a method; if it cannot be enumerated, a row that says why."""
    prompts, samples, changed = _shape(m, prompts, samples)
    try:
        with closing(Trial(m, bench, prompts, samples)) as trial:
            draws = len(trial.draws.places)
            path = _walk(trial, bench.world.theta, steps, size, lambda: tick(m.name))
        figures = _figures(bench, path, true_T)
        says = [*changed, *remarks(trial)]
        if figures.cosine is None:
            says.append("its expected gradient is 0")
        return Row(m.name, draws, prompts, samples, not trial.ctx.random, says, figures)
    except Unlike as said:
        return Row(m.name, 0, prompts, samples, False, [*changed, f"not done: {said}"], None)
    except Exception as error:  # a room needs something that the laboratory does not have
        what = str(error).split("\n")[0].rstrip(".")
        what = what if isinstance(error, ValueError) else f"{type(error).__name__}: {what}"
        return Row(m.name, 0, prompts, samples, False, [*changed, f"not done: {what}"], None)


def _shape(m: Method, prompts: int, samples: int) -> tuple[int, int, list[str]]:
    """(prompts, samples, remarks): the smallest step of this size or more that the method can learn from."""
    enough = max(samples, least_samples(m))
    changed = [f"a step of {prompts} × {enough} answers, which it needs"] if enough != samples else []
    return prompts, enough, changed


@dataclass(frozen=True)
class _Path:
    first: Moments
    masses: list[Tensor]  # [Q, A], at the start and after each small step


def _walk(trial: Trial, theta: Tensor, steps: int, size: float, tick: Callable[[], None]) -> _Path:
    """Small steps along the expected gradient, all of the same length, so that methods of any scale compare."""
    first, masses = None, [trial.bench.log_mass(theta).exp()]
    for step in range(max(steps, 1)):
        moments = trial.moments(theta, tick)
        first = first or moments
        if step < steps and float(moments.mean_T.norm()) > 0:
            theta = theta + size * moments.mean_T / moments.mean_T.norm()
        if steps:
            masses.append(trial.bench.log_mass(theta).exp())
    assert first is not None
    return _Path(first, masses)


def _figures(bench: Bench, path: _Path, true_T: Tensor) -> Figures:
    mean_T, first = path.first.mean_T, path.first
    variance, size = first.variance(), float(mean_T.norm())
    success = [float((m * bench.world.reward_QA).sum(-1).mean()) for m in path.masses]
    return Figures(
        cosine=_cosine(mean_T, true_T),
        scale=float(mean_T @ true_T / (true_T @ true_T)),
        bias=float((mean_T - true_T).norm() / true_T.norm()),
        bias_norm=float((mean_T - true_T).norm()),
        variance=variance,
        noise=variance**0.5 / size if size else None,
        dropped=first.dropped,
        entropy=[float(entropy(m)) for m in path.masses],
        success=success,
        expected=mean_T.tolist(),
        prompts=[_prompt(bench, path, true_T, q) for q in range(len(bench.world.rates))],
    )


def _prompt(bench: Bench, path: _Path, true_T: Tensor, q: int) -> PromptFigures:
    world = bench.world
    here = torch.tensor([cell[0] == q for cell in world.cells])
    mine, true = path.first.mean_T[here], true_T[here]
    masses = torch.stack([m[q] for m in path.masses])
    return PromptFigures(
        prompt=world.tokenizer.prompts[q],
        rate=world.rates[q],
        weight=float(mine @ true / (true @ true)),
        cosine=_cosine(mine, true),
        contrast=_contrast(bench, path.first.adv_I, q),
        mass={a: masses[:, i].tolist() for i, a in enumerate(world.answers)},
    )


def _contrast(bench: Bench, adv_I: Tensor | None, q: int) -> float | None:
    """E[A | right] − E[A | wrong] over the answers to a prompt; 0 for answers that selection dropped."""
    if adv_I is None:
        return None
    world = bench.world
    mass_A = bench.log_mass(bench.old(world.theta)).exp()[q] / len(world.rates)
    adv_A, right = adv_I.view(len(world.rates), -1)[q], world.right_A
    return float(adv_A[right].sum() / mass_A[right].sum() - adv_A[~right].sum() / mass_A[~right].sum())


def _cosine(a: Tensor, b: Tensor) -> float | None:
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size else None


def table_of(thing: Any) -> Any:
    """Nested dataclasses as plain tables, for JSON."""
    if hasattr(thing, "__dataclass_fields__"):
        return {k: table_of(getattr(thing, k)) for k in thing.__dataclass_fields__}
    if isinstance(thing, Mapping):
        return {k: table_of(v) for k, v in thing.items()}
    return [table_of(v) for v in thing] if isinstance(thing, list | tuple) else thing
