"""The configuration of a run: one tree of typed, frozen dataclasses, saved with every run to repeat it."""

from dataclasses import dataclass, field
from typing import Literal

from gruppo.engines.config import EngineConfig
from gruppo.envs.named import built_in_worlds
from gruppo.envs.registry import env_class
from gruppo.fields import Checked, setting
from gruppo.methods import method
from gruppo.policies import Lora
from gruppo.scale.config import ScaleConfig
from gruppo.stages import Method, Sampling
from gruppo.tasks import TaskConfig
from gruppo.train.learner import OptimConfig
from gruppo.train.regime import RegimeConfig


def usual(task: str) -> dict[str, str]:
    """Settings of a run where nothing else is said.

    Built-in worlds, alone, mixed or as levels of a file, speak words; to a model that reads characters, what is seen
    there is too long. A world alone has its own settings besides.
    """
    worlds = built_in_worlds(task)
    own = env_class(worlds[0]).usual if len(worlds) == 1 else {}
    return {"model.name": "tiny-agent", **own} if worlds else {}


@dataclass(frozen=True)
class ModelConfig(Checked):
    """The initial policy."""

    name: str = "tiny"  # tiny (tiny-agent in a built-in world), smollm2, a Hugging Face folder, or a name on its hub
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"  # of weights and gradients; bfloat16 needs a GPU
    device: str = "auto"  # auto: cuda if there is one, else cpu
    checkpointing: bool = False  # recompute the blocks in the backward pass: less memory, more time
    sharpen: float = setting(1.0, low=0.01, high=100)  # multiplies the logits: 8 starts collapsed, 0.7 starts unsure
    lora: Lora = Lora()


@dataclass(frozen=True)
class EvalConfig(Checked):
    """Held-out evaluation: `prompts` problems, `samples` answers each, always with the same random keys."""

    every: int = setting(10, low=0)  # steps; 0: only before and after
    prompts: int = setting(500, low=1)  # held-out problems
    samples: int = setting(1, low=1)  # answers per problem; 1000 at most
    k: tuple[int, ...] = ()  # of pass@k and maj@k, for example 1,4,16; empty: 1 and samples
    temperature: float = setting(1.0, low=1e-6, also=0)  # 0: greedy
    patience: int = setting(0, low=0)  # end the run after so many evaluations without a better accuracy; 0: never


@dataclass(frozen=True)
class SaveConfig(Checked):
    folder: str = "runs"  # where run folders are made
    name: str = ""  # empty: method-task-seed-time
    checkpoint_every: int = setting(20, low=0)  # steps; 0: only at the end
    keep: int = setting(2, low=1)  # checkpoints; older ones are removed
    episodes_every: int = setting(10, low=0)  # steps; 0: none
    tensorboard: Literal["auto", "yes", "no"] = "auto"  # auto: if it is installed
    log: tuple[str, ...] = ()  # loggers: wandb, mlflow, trackio
    best: bool = False  # keep the policy with the best held-out accuracy in best/policy


@dataclass(frozen=True)
class RunConfig(Checked):
    method: Method = field(default_factory=lambda: method("grpo"))
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    sampling: Sampling = Sampling(max_tokens=0)  # max_tokens=0: by task and model
    optim: OptimConfig = OptimConfig()
    eval: EvalConfig = EvalConfig()
    save: SaveConfig = SaveConfig()
    scale: ScaleConfig = ScaleConfig()
    regime: RegimeConfig = RegimeConfig()
    steps: int = setting(60, low=1)  # training steps, each with one batch of episodes
    prompts: int = setting(64, low=1, high=1_000_000)  # tasks per step
    samples: int = setting(8, low=1, high=1_000_000)  # answers per task
    seed: int = setting(0, low=0)  # of everything that is drawn
    ahead: int = setting(0, low=0)  # versions that sampling is ahead of learning (docs/scale.md); 0: none
    budget_tokens: int = setting(0, low=0)  # sampled tokens per step, redraws included; 0: no limit
    turns_a_step: int = setting(0, low=0)  # of an episode; if it is not over, it goes on in the next step; 0: all
    max_failures: float = setting(0.5, low=0, high=1)  # share of episodes that may fail in a step before the run stops
    accept: tuple[str, ...] = ()  # names of the checks of step zero that may fail; saved with the run
    threads: int = setting(0, low=0, high=4096)  # 0: torch's default
    deterministic: bool = False  # the same bits again on a GPU, also after a resume; a CPU gives them anyhow
    show: int = setting(30, low=0)  # seconds between two samples on the screen; 0: none, and no line "sampling: …"

    def wrong(self) -> str:
        """What cannot go together, whatever the method and the task."""
        if self.ahead and self.scale.ranks > 1:
            return (
                f"ahead={self.ahead} on {self.scale.ranks} ranks: the first rank would draw from weights that all of "
                "them are changing. Use ahead=0, or scale.ranks=1."
            )
        if self.engine.name != "native" and (self.ahead or self.scale.ranks > 1):
            said = f"ahead={self.ahead}" if self.ahead else f"scale.ranks={self.scale.ranks}"
            return (
                f"engine={self.engine.name} with {said}: that engine has one copy of the weights, in step with one "
                f"learner. Use engine=native, or leave {said.partition('=')[0]} out."
            )
        if self.engine.name != "native" and self.scale.samplers:
            return (
                f"engine={self.engine.name} with scale.samplers={self.scale.samplers}: actors sample with the native "
                "engine, so the other would never be asked. Use engine=native, or scale.samplers=0."
            )
        if self.regime.rough and (self.engine.name != "native" or self.scale.samplers):
            said = f"engine={self.engine.name}" if self.engine.name != "native" else "scale.samplers"
            return (
                f"{self.regime.rough} with {said}: that sampler gets the weights as they are. Use engine=native and "
                "scale.samplers=0, or leave the regime out."
            )
        if self.turns_a_step and self.ahead:
            return (
                f"turns_a_step={self.turns_a_step} with ahead={self.ahead}: a step that is drawn ahead begins before "
                "the open episodes of the one before it are known, so they could not go on in it. Use ahead=0, or "
                "turns_a_step=0."
            )
        if self.turns_a_step and self.budget_tokens:
            return (
                f"turns_a_step={self.turns_a_step} with budget_tokens={self.budget_tokens}: tokens count when their "
                "group is complete, which may be steps later, so the budget would not be that of a step. Leave one of "
                "them out."
            )
        return ""
