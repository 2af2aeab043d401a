"""What is known exactly of policies that are tables, by part."""

import torch
from torch import Tensor

from gruppo.lab.tabular.tables import Tables

PASSES = (8, 64)  # the k of pass@k
MEASURES = {
    "reward": "expected reward, mean over prompts",
    "entropy": "entropy of answers in nats, mean over prompts",
    "right_entropy": "entropy over right answers, given that the answer is right, mean over prompts",
    "kl_start": "KL to the initial policy in nats, mean over prompts",
    **{f"pass@{k}": f"chance that one of {k} answers is right, mean over prompts" for k in PASSES},
    "length": "expected tokens of an answer, its end included, mean over prompts",
    "noise": "Var g / |E g|² of a step's gradient",
    "cosine": "of the expected gradient of a step and that of the expected reward",
    "falls": "chance that a right answer to a prompt that is asked loses probability in a step",
}


def measured(tables: Tables, theta_PQJ: Tensor, start_PQJ: Tensor) -> dict[str, Tensor]:
    """The measures of policies themselves, one number for each part."""
    log_PQA, log_start = tables.log_mass(theta_PQJ), tables.log_mass(start_PQJ)
    mass_PQA = log_PQA.exp()
    rate_PQ = (mass_PQA * tables.reward_QA).sum(-1)
    of_right = torch.log_softmax(log_PQA[..., tables.right_A], -1)
    by_prompt = {
        "reward": rate_PQ,
        "entropy": -(mass_PQA * log_PQA).sum(-1),
        "right_entropy": -(of_right.exp() * of_right).sum(-1),
        "kl_start": (mass_PQA * (log_PQA - log_start)).sum(-1),
        **{f"pass@{k}": 1 - (1 - rate_PQ).clamp(min=0) ** k for k in PASSES},
        "length": (mass_PQA * tables.length_A).sum(-1),
    }
    return {name: x_PQ.mean(-1) for name, x_PQ in by_prompt.items()}
