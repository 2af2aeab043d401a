"""The settings of verl that go with a method of ours as its trainer, and those that the method decides by itself."""

from typing import Any

from gruppo.inside.fits import reads
from gruppo.stages import Method

ACTOR = "actor_rollout_ref.actor"
# Settings of verl that the method decides: what they are by themselves, and the room that says it.
DECIDED: dict[str, tuple[Any, str]] = {
    "algorithm.use_kl_in_reward": (False, "penalties"),
    "algorithm.rollout_correction.rollout_is": (None, "select"),
    "algorithm.rollout_correction.rollout_rs": (None, "select"),
    "algorithm.rollout_correction.bypass_mode": (False, "objective"),
    "critic.enable": (False, "credit"),
    "distillation.enabled": (False, "penalties"),
    f"{ACTOR}.entropy_coeff": (0, "penalties"),
    f"{ACTOR}.loss_agg_mode": ("token-mean", "objective"),
    f"{ACTOR}.policy_loss.loss_mode": ("vanilla", "objective"),
    f"{ACTOR}.clip_ratio": (0.2, "objective"),
    f"{ACTOR}.clip_ratio_low": (0.2, "objective"),
    f"{ACTOR}.clip_ratio_high": (0.2, "objective"),
    f"{ACTOR}.ppo_epochs": (1, "update"),
}


def settings_of(method: Method, name: str) -> dict[str, Any]:
    """What to set in verl: the trainer, no critic, and a reference model if a room reads one."""
    return {
        "trainer.v1.trainer_mode": name,
        "algorithm.adv_estimator": "grpo",  # it is never asked; with verl's default a critic would be loaded
        "critic.enable": False,
        f"{ACTOR}.use_kl_loss": reads(method, "ref"),
    }


def refuse_settings(config: Any, method: Method) -> None:
    """Settings that the method decides are refused, not ignored."""
    for path, (plain, room) in DECIDED.items():
        if (value := _at(config, path)) not in (None, plain):
            raise ValueError(
                f"{path}={value} would be ignored: {method.name} decides it in its room {room}. Leave it out, and "
                f"change the method instead: register_trainer(METHOD.but({room}=…))."
            )
    wanted = reads(method, "ref")
    if bool(_at(config, f"{ACTOR}.use_kl_loss")) != wanted:
        said = "a room reads the reference model, which" if wanted else "no room reads the reference model that"
        raise ValueError(
            f"{ACTOR}.use_kl_loss={not wanted}: in {method.name} {said} verl loads by this setting (its own KL is "
            f"never computed). Use {ACTOR}.use_kl_loss={wanted}."
        )


def _at(config: Any, path: str) -> Any:
    """The setting at this path; None where there is none."""
    for name in path.split("."):
        config = None if config is None else config.get(name)
    return config
