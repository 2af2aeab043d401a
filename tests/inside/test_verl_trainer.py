"""Our trainer inside verl: the same losses and gradients as our own learner, however the step is cut."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

if find_spec("verl") is None or find_spec("transfer_queue") is None:
    pytest.skip("verl is not installed: docs/scale.md says how", allow_module_level=True)

import verl_side
from native_side import LEVEL, Script, differ, folder_of, native, tokenizer_of, twice

from gruppo.inside.fits import VERL_TRAINER, refusals
from gruppo.methods import all_methods, method
from gruppo.stages import Context, Method
from gruppo.stages.update import Passes

FITS = [m for m in all_methods().values() if not refusals(m, VERL_TRAINER)]
CUTS = [(1, 32), (1, 2), (2, 4)]  # processes, rows of a micro-batch


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    verl_side.begin(tmp_path_factory.mktemp("verl"))
    return folder_of(tmp_path_factory.mktemp("exact"), "gpt2", torch.float64)


@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_losses_and_gradients_are_those_of_our_learner(m: Method, exact: Path) -> None:
    """For every method that fits TRL, whole and cut, on one and two processes: both to 1e-6."""
    m, script = twice(m), Script(tokenizer_of(exact), LEVEL)
    names = ["task", "style"] if m.name == "gdpo" else ["task"]
    ours = native(m, exact, script, names, torch.float64)
    assert max(float(g.norm()) for g in ours[1]) > 1e-3
    found = [differ(verl_side.inside(m, exact, script, names, cut), ours) for cut in CUTS]
    print(m.name, *(f"{max(f[i] for f in found):.1e}" for i in (0, 1)))
    assert all(loss <= 1e-6 and grad <= 1e-6 for loss, grad in found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["grpo", "dapo", "disco"])
def test_with_verls_own_queue(name: str, exact: Path, queue: Any) -> None:
    """TransferQueue itself, which keeps its rows in actors of Ray."""
    m, script = twice(method(name)), Script(tokenizer_of(exact), LEVEL)
    ours = native(m, exact, script, ["task"], torch.float64)
    loss, grad = differ(verl_side.inside(m, exact, script, ["task"], (2, 4), queue), ours)
    print(name, f"{loss:.1e} {grad:.1e}")
    assert loss <= 1e-6 and grad <= 1e-6


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    import ray
    import transfer_queue
    from omegaconf import OmegaConf

    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
    try:
        units = {"SimpleStorage": {"total_storage_size": 1000, "num_data_storage_units": 1}}
        transfer_queue.init(OmegaConf.create({"backend": {"storage_backend": "SimpleStorage", **units}}))
        yield transfer_queue
        transfer_queue.close()
    finally:
        ray.shutdown()


USER = """
import warnings
from gruppo.inside.verl_trainer import register_trainer
warnings.simplefilter("ignore")
said = [register_trainer(name, answers=str.strip) for name in ("grpo", "empo", "dapo")]
"""


def test_a_module_of_the_user_registers_trainers_when_verl_is_imported(tmp_path: Path) -> None:
    (tmp_path / "my_trainers.py").write_text(USER)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "VERL_USE_EXTERNAL_MODULES": "my_trainers"}
    ask = "from verl.trainer.ppo.v1 import get_trainer_cls as get; print(get('gruppo_empo').method.name)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ask], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "empo", done.stderr[-2000:]


def test_what_verl_is_told_and_what_is_refused() -> None:
    from gruppo.inside.verl_trainer import register_trainer

    said = register_trainer("grpo", "mine")
    assert said["trainer.v1.trainer_mode"] == "mine" and said["actor_rollout_ref.actor.use_kl_loss"] is True
    with pytest.raises(ValueError, match=r"gae in credit needs value@critic .* inside verl"):
        register_trainer("ppo")
    with pytest.raises(ValueError, match=r"empo compares the answers .*register_trainer\(…, answers="):
        register_trainer("empo")
    with pytest.warns(UserWarning, match=r"draw again, which is lost inside verl.* algorithm\.filter_groups"):
        register_trainer("dapo")


def test_rows_that_fill_up_count_nothing(exact: Path) -> None:
    """A step has the rows of its groups; verl wants a number that its processes and micro-batches divide."""
    m, script = method("grpo").but(update=Passes(minibatches=3)), Script(tokenizer_of(exact), LEVEL)
    ours = native(m, exact, script, ["task"], torch.float64)
    loss, grad = differ(verl_side.inside(m, exact, script, ["task"], (2, 8)), ours)
    assert len(ours[0]) == 3 and loss <= 1e-6 and grad <= 1e-6


def test_a_component_that_the_reward_function_does_not_return_is_said() -> None:
    trainer = verl_side.trainer_of(method("gdpo"), None, 1, ("style",))
    assert trainer._others([{"reward_extra_info": {"style": 2}}], 0) == {"style": 2.0}
    with pytest.raises(ValueError, match=r"returned no 'style' .but tone.\. Return it in its dict"):
        trainer._others([{"reward_extra_info": {"tone": 2}}], 0)


def test_memory_is_in_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = verl_side.trainer_of(method("reinforce"), None, 1)
    trainer.config.trainer = {"default_local_dir": str(tmp_path), "resume_mode": "auto", "resume_from_path": None}
    (tmp_path / "global_step_1").mkdir()
    base = verl_side.GruppoPPOTrainer.__mro__[1]
    monkeypatch.setattr(base, "_save_checkpoint", lambda self: None)
    monkeypatch.setattr(base, "_load_checkpoint", lambda self: None)
    with trainer.memory.writing():
        trainer.memory["mean"] = 0.25
    trainer._save_checkpoint()
    trainer.memory = type(trainer.memory)()
    trainer._load_checkpoint()
    assert trainer.memory["mean"] == 0.25


def test_the_learning_rate_counts_optimiser_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = verl_side.trainer_of(method("grpo").but(update=Passes(epochs=2, minibatches=4)), None, 1)
    trainer.config.actor_rollout_ref.actor.optim = {"total_training_steps": 10, "lr_warmup_steps": -1}
    monkeypatch.setattr(verl_side.GruppoPPOTrainer.__mro__[1], "_init_dataloader", lambda self: None)
    trainer._init_dataloader()
    assert dict(trainer.config.actor_rollout_ref.actor.optim) == {"total_training_steps": 80, "lr_warmup_steps": -1}


def test_the_words_of_the_example_are_settings_of_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Composed by verl's own configuration; its trainer would go on from there to GPUs."""
    import verl
    from hydra import compose, initialize_config_dir
    from verl.trainer.ppo.utils import need_critic, need_reference_policy

    from gruppo.inside.verl_settings import refuse_settings
    from gruppo.tasks.imports import load_object

    monkeypatch.setenv("GRUPPO_METHOD", "gspo")
    words = load_object(f"{Path(__file__).parents[2]}/examples/verl_trainer.py:words")(
        "model", "a.parquet", "b.parquet"
    )
    folder = str(Path(verl.__file__).parent / "trainer/config")
    with initialize_config_dir(folder, version_base=None):
        config = compose("ppo_trainer", overrides=words)
        named = compose("ppo_trainer", overrides=[*words, "actor_rollout_ref.actor.clip_ratio=0.3"])
    assert config.trainer.v1.trainer_mode == "gruppo_gspo" and not need_critic(config)
    refuse_settings(config, method("gspo"))
    reads_ref = any(n.role == "ref" for _, _, n in method("gspo").needs(Context()))
    assert need_reference_policy(config) == reads_ref
    with pytest.raises(ValueError, match=r"clip_ratio=0\.3 would be ignored"):
        refuse_settings(named, method("gspo"))
