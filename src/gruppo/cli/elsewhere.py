"""Names of other libraries, and what they are called here."""

# What users of TRL and verl look for first.
ELSEWHERE = {
    "num_generations": "samples",
    "group": "samples",
    "group_size": "samples",
    "n": "samples",
    "G": "samples",
    "learning_rate": "optim.lr",
    "max_steps": "steps",
    "total_training_steps": "steps",
    "train_batch_size": "prompts",
    "per_device_train_batch_size": "prompts",
    "max_completion_length": "sampling.max_tokens",
    "max_response_length": "sampling.max_tokens",
    "beta": "method.penalties.reference_kl.kl_coef",
    "epsilon": "method.objective.clip_low and clip_high",
    "epsilon_high": "method.objective.clip_high",
    "num_iterations": "method.update.epochs",
    "max_grad_norm": "optim.clip_norm",
    "model_name_or_path": "model",
    "output_dir": "save.folder",
    "reward_funcs": "task.reward",
    "dataset": "task",
    "dataset_name": "task",
    "loss_type": "method",
    "use_vllm": "engine (engine=vllm)",
}


def called_otherwise(key: str, top: bool = False) -> str:
    """A hint for a name that is no setting. Below the top a short one, such as n, may be a slip of another."""
    return f" (that is {ELSEWHERE[key]} here)" if key in ELSEWHERE and (top or len(key) > 3) else ""
