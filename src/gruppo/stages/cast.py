"""Roles: the named models of a method. The models themselves are in gruppo.train.cast."""

from dataclasses import dataclass
from typing import Literal

from gruppo.fields import Checked, setting
from gruppo.stages.schedule import Sched

ADAM = "AdamW moves every weight by about lr in each step"  # why a learning rate is at most 1


@dataclass(frozen=True)
class Never:
    """The role keeps its weights (or trains its own)."""


@dataclass(frozen=True)
class Every(Checked):
    """The role becomes a copy of `source` every `steps` steps."""

    steps: int = setting(10, low=1)
    source: str = "policy"


@dataclass(frozen=True)
class Ema(Checked):
    """θ ← (1 − tau) θ + tau θ_source after every step."""

    tau: float = setting(0.1, low=0, high=1)
    source: str = "policy"


@dataclass(frozen=True)
class ByUpdate:
    """The update moves it, with `learner.copy`: a slow copy that follows at every optimiser step."""


@dataclass(frozen=True)
class Role(Checked):
    """The policy, or another model of the method.

    start    "policy" or another role: a copy of its initial weights; or the name or folder of a policy; "": must be
             given with method.cast.ROLE=FOLDER, for a teacher, which would teach nothing as a copy of the policy
    as_      "full": a language model; "head": a copy of the policy's trunk with a value head
    outputs  of the value head; with several, columns of values have a width
    """

    start: str = "policy"
    as_: Literal["full", "head"] = "full"
    train: bool = False
    lr: Sched = setting(0.0, low=0, high=1, why=ADAM)  # 0: the run's learning rate
    refresh: Never | Every | Ema | ByUpdate = Never()
    outputs: int = setting(1, low=1, added=True)


PLAIN_CAST: dict[str, Role] = {"policy": Role(train=True), "ref": Role()}
