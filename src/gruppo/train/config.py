"""The configuration of a run: one tree of typed, frozen dataclasses, saved with every run to repeat it."""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from gruppo.methods import method
from gruppo.policies import Lora
from gruppo.stages import Method, Sampling, Schedule
from gruppo.tasks import TaskConfig
from gruppo.train.learner import OptimConfig

LOWEST: dict[str, float] = {
    **dict.fromkeys(("steps", "prompts", "samples", "eval.prompts", "eval.samples"), 1),
    **dict.fromkeys(("save.keep", "optim.micro_tokens"), 1),
    **dict.fromkeys(("threads", "budget_tokens", "eval.every", "save.checkpoint_every", "save.episodes_every"), 0),
    **{"optim.lr": 0, "optim.weight_decay": 0, "optim.clip_norm": 1e-12, "model.lora.rank": 0},
}


@dataclass(frozen=True)
class ModelConfig:
    """The initial policy."""

    name: str = "tiny"  # tiny, smollm2, a Hugging Face folder, or a name on its hub
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"  # of weights and gradients; bfloat16 needs a GPU
    device: str = "auto"  # auto: cuda if there is one, else cpu
    checkpointing: bool = False  # recompute the blocks in the backward pass: less memory, more time
    lora: Lora = Lora()


@dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation: `prompts` problems, `samples` answers each, always with the same random keys."""

    every: int = 10  # steps; 0: only before and after
    prompts: int = 500  # held-out problems
    samples: int = 1  # answers per problem
    k: tuple[int, ...] = ()  # of pass@k and maj@k, for example 1,4,16; empty: 1 and samples
    temperature: float = 1.0  # 0: greedy


@dataclass(frozen=True)
class SaveConfig:
    folder: str = "runs"  # where run folders are made
    name: str = ""  # empty: method-task-seed-time
    checkpoint_every: int = 20  # steps; 0: only at the end
    keep: int = 2  # checkpoints; older ones are removed
    episodes_every: int = 10  # steps; 0: none
    tensorboard: Literal["auto", "yes", "no"] = "auto"  # auto: if it is installed


@dataclass(frozen=True)
class RunConfig:
    method: Method = field(default_factory=lambda: method("grpo"))
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    sampling: Sampling = Sampling(max_tokens=0)  # max_tokens=0: as the task says
    optim: OptimConfig = OptimConfig()
    eval: EvalConfig = EvalConfig()
    save: SaveConfig = SaveConfig()
    steps: int = 60  # training steps, each with one batch of episodes
    prompts: int = 64  # tasks per step
    samples: int = 8  # answers per task
    seed: int = 0  # of everything that is drawn
    budget_tokens: int = 0  # sampled tokens per step, redraws included; 0: no limit
    max_failures: float = 0.5  # share of episodes that may fail in a step before the run stops
    accept: tuple[str, ...] = ()  # names of the checks of step zero that may fail; saved with the run
    threads: int = 0  # 0: torch's default

    def __post_init__(self) -> None:
        for path, low in LOWEST.items():
            value = attrgetter(path)(self)
            if not isinstance(value, Schedule) and not (isinstance(value, int | float) and value >= low):
                raise ValueError(f"{path}={value}: a run cannot be made with it. Use a number, {path} >= {low:g}.")
        if not 0 <= self.max_failures <= 1:
            raise ValueError(f"max_failures={self.max_failures} is not a share of episodes. Use a number from 0 to 1.")
