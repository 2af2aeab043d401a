"""Named models with roles (design 3.1). The models themselves live in gruppo.train.cast."""

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
    """A model beside or in place of the policy.

    start  "policy" or another role: a copy of it as it starts; or the name or folder of a policy; "": to be given with
           method.cast.ROLE=FOLDER, for a teacher that would teach nothing as a copy of the policy
    as_    "full": a language model; "head": a copy of the policy's trunk with a value head
    """

    start: str = "policy"
    as_: Literal["full", "head"] = "full"
    train: bool = False
    lr: Sched = 0.0  # 0: the run's learning rate
    refresh: Never | Every | Ema = Never()


PLAIN_CAST: dict[str, Role] = {"policy": Role(train=True), "ref": Role()}
