"""Roles: the named models of a method. The models themselves are in gruppo.train.cast."""

from dataclasses import dataclass
from typing import Literal

from gruppo.stages.schedule import Sched


@dataclass(frozen=True)
class Never:
    """The role keeps its weights (or trains its own)."""


@dataclass(frozen=True)
class Every:
    """The role becomes a copy of `source` every `steps` steps."""

    steps: int = 10
    source: str = "policy"


@dataclass(frozen=True)
class Ema:
    """θ ← (1 − tau) θ + tau θ_source after every step."""

    tau: float = 0.1
    source: str = "policy"


@dataclass(frozen=True)
class Role:
    """The policy, or another model of the method.

    start  "policy" or another role: a copy of its initial weights; or the name or folder of a policy; "": must be given
           with method.cast.ROLE=FOLDER, for a teacher, which would teach nothing as a copy of the policy
    as_    "full": a language model; "head": a copy of the policy's trunk with a value head
    """

    start: str = "policy"
    as_: Literal["full", "head"] = "full"
    train: bool = False
    lr: Sched = 0.0  # 0: the run's learning rate
    refresh: Never | Every | Ema = Never()


PLAIN_CAST: dict[str, Role] = {"policy": Role(train=True), "ref": Role()}
