"""What goes wrong on purpose while a run trains: a sampler that differs from the trainer, bursts of flipped rewards.

No method knows of it. The weights of the sampler pass through `engines.rough` where the engine takes them, and every
score passes through `Flips` where it is paid. Held-out answers are sampled from the weights as they are, and judged as
they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gruppo.data import Episode, Note
from gruppo.engines.base import RunEngine
from gruppo.engines.rough import Copies, Roughness
from gruppo.fields import Checked, setting
from gruppo.stages import Context

if TYPE_CHECKING:
    from gruppo.train.run import Run

CORRUPTED = "corrupted"  # the note of an episode: 1 if its score was flipped


@dataclass(frozen=True)
class RegimeConfig(Checked):
    """Diseases of training, for runs that are to show a cure. The defaults change nothing."""

    sampler_bits: int = setting(0, low=0, high=53)  # significant bits of its weights: bfloat16 has 8, fp8 4; 0: all
    sampler_noise: float = setting(0.0, low=0, high=1)  # Gaussian, relative to each weight of the sampler
    flip: float = setting(0.0, low=0, high=1)  # in a burst, the share of the scores r that become 1 - r
    flip_every: int = setting(1, low=1)  # every so many steps there may be a burst
    flip_chance: float = setting(1.0, above=0, high=1)  # that there is one then

    @property
    def rough(self) -> str:
        """The settings by which the sampler differs from the trainer; "": it does not."""
        return self._set("sampler_bits", "sampler_noise")

    def _set(self, *names: str) -> str:
        changed = [n for n in names if getattr(self, n) != getattr(_NONE, n)]
        return " ".join(f"regime.{n}={getattr(self, n):g}" for n in changed)

    def words(self) -> str:
        """What is said at the start of a run. Refuses what would have no effect."""
        if not self.flip and (idle := self._set("flip_every", "flip_chance")):
            raise ValueError(
                f"{idle} says when scores are flipped, and none are, so it would have no effect. Add regime.flip=1, or "
                "leave it out."
            )
        said = " ".join(filter(None, (self.rough, self._set("flip", "flip_every", "flip_chance"))))
        return f"on purpose: {said} (docs/regimes.md)" if said else ""


_NONE = RegimeConfig()


# the sampler


def rough_copies(run: "Run", models: Mapping[str, Any]) -> Copies | None:
    """Copies of the models that write, for a sampler that differs from the trainer; None: it does not."""
    c = run.config
    rough = Roughness(c.regime.sampler_bits, c.regime.sampler_noise, c.seed)
    return Copies(models, run.learner.writers, rough) if rough else None


def plain_engine(run: "Run") -> RunEngine:
    """An engine with the weights as they are: that of the run, unless that one is rough."""
    return run.engine_of(run.sampled(), rough=False) if run.config.regime.rough else run.engine


# rewards


@dataclass(frozen=True)
class Flips:
    """Where scores are paid: in a burst a share of them, chosen by the key of the episode, becomes 1 - r.

    An episode has a note that says whether its score was flipped.
    """

    config: RegimeConfig = field(default_factory=RegimeConfig)

    def burst(self, ctx: Context) -> bool:
        """Whether scores are flipped in this step; counted from 1, every `flip_every`-th may be such a one."""
        c = self.config
        return (ctx.step + 1) % c.flip_every == 0 and ctx.uniform("burst") < c.flip_chance

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> None:
        if not self.config.flip:
            return
        share = self.config.flip if self.burst(ctx) else 0.0
        for e in (e for e in episodes if e.status.judged and e.scores):
            _refuse_unknown(e)
            hit = ctx.uniform("flip", e.uid) < share
            e.notes[CORRUPTED] = Note(np.array([hit], np.float32), version=ctx.step)
            if hit:
                _flip(e)


def _refuse_unknown(e: Episode) -> None:
    """Refuses scores of which nobody knows what their opposite is."""
    if len({t.agent for t in e.turns}) > 1:
        raise ValueError(
            f"regime.flip: {e.task} is played by several agents, and 1 - r of one of them says nothing of the others. "
            "Use a task with one agent, or regime.flip=0."
        )
    if not 0 <= e.score <= 1:
        raise ValueError(
            f"regime.flip: the score {e.score:g} of {e.task} is not between 0 and 1, so 1 - r is not its opposite. Use "
            "a task.reward from 0 to 1, or regime.flip=0."
        )


def flipped(e: Episode) -> bool:
    """Whether the score of an episode is not the one that it was judged to have."""
    return CORRUPTED in e.notes and bool(e.notes[CORRUPTED].values[0])


def _flip(e: Episode) -> None:
    """The score becomes 1 - r: on the episode or, where turns are paid, on the last one that was."""
    paid = [t.reward for t in e.turns if "task" in t.reward]
    table = e.reward if "task" in e.reward else paid[-1]
    table["task"] = table["task"] + (1 - 2 * e.score) if paid else 1 - e.score
