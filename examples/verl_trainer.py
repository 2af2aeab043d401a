"""A method of ours as the trainer of verl, on a cluster of GPUs. This script was NOT run: verl's trainer needs GPUs.

What was run is its parts on a CPU (docs/scale.md, "Inside verl"). The data are verl's own: files of prompts with a
`ground_truth`. On one machine with 8 GPUs, with verl[verl-core,vllm]==0.9.1 and gruppo (--no-deps) installed:

python examples/verl_trainer.py disco ./Qwen2.5-0.5B-Instruct ./train.parquet ./test.parquet

On several machines: `ray start --head` on the first, `ray start --address=HOST:6379` on the others, gruppo and this
file under the same names on all of them, and the script on the first with  trainer.nnodes=4  behind its words.
"""

import os
import subprocess
import sys
from pathlib import Path

from gruppo.inside.verl_trainer import register_trainer

# verl imports this module in its own processes (VERL_USE_EXTERNAL_MODULES), and there the trainer is registered, too.
METHOD = os.environ.get("GRUPPO_METHOD", sys.argv[1] if __name__ == "__main__" else "grpo")
SETTINGS = register_trainer(METHOD)


def words(model: str, train: str, test: str) -> list[str]:
    """The command line of verl: what the method says, and what a run of yours needs."""
    mine = {
        "data.train_files": train,
        "data.val_files": test,
        "data.train_batch_size": 128,
        "data.max_prompt_length": 512,
        "data.max_response_length": 1024,
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 128,  # minibatches are the method's: but(update=Passes(…))
        "trainer.n_gpus_per_node": 8,
        "trainer.logger": "[console]",
        "trainer.total_epochs": 1,
    }
    return [f"{name}={value}" for name, value in (mine | SETTINGS).items()]


if __name__ == "__main__":
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    env = {"VERL_USE_EXTERNAL_MODULES": here.stem, "GRUPPO_METHOD": METHOD, "PYTHONPATH": path}
    # A cluster that runs already was started without these: verl passes them on to its processes.
    passed = [f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}={value}" for name, value in env.items()]
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *words(*sys.argv[2:5]), *passed, *sys.argv[5:]]
    raise SystemExit(subprocess.run(command, env={**os.environ, **env}).returncode)
