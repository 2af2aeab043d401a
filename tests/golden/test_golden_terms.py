"""What each method hands to the learner: which terms, of which level, over which mean, how much, and cut how."""

import math
from typing import Any

import pytest
import torch
from hand import Status, answer, batch_of, worked

from gruppo.data import Batch, Key
from gruppo.lab.laws.world import World, random_episodes
from gruppo.methods import method
from gruppo.methods.cispo import ClippedWeight
from gruppo.methods.disco import Discriminate
from gruppo.methods.gmpo import GeometricMean
from gruppo.methods.sapo import SoftGate
from gruppo.methods.vapo import CriticFirst, LengthAdaptiveGae, adaptive_lambda
from gruppo.pieces.advantage import weighted_centre
from gruppo.stages import Context, Stats, Term

Row = tuple[str, str, str, float, bool]


def policy(mean: str) -> Row:
    return ("policy", "N", mean, 1.0, True)


CLIPPED = ("clip_fraction", "N", "token", 0.0, True)
VALUE = ("value", "N", "token", 1.0, True)
KL = ("kl_ref", "N", "sequence", 0.04, True)
PAIRS = [("margin", "P", "token", 0.0, False), ("preferred", "P", "token", 0.0, False)]
PREFERENCE = [("preference", "P", "token", 1.0, False), *PAIRS]
GRPO = [policy("sequence"), CLIPPED, KL]

# (name, level, mean, coefficient, additive). A term is additive if a micro-batch can compute its part of it: what
# compares episodes, or counts the step, is not. Coefficient 0: for the log.
TERMS: dict[str, list[Row]] = {
    "cispo": [policy("token"), ("weight_clipped", "N", "token", 0.0, True)],
    "dapo": [policy("token"), CLIPPED],
    "disco": [("separate", "G", "drawn_group", 1.0, False), ("trust", "N", "token", 1.0, False)],
    "dpo": PREFERENCE,
    "dr_grpo": [policy("episode_sum/8"), CLIPPED],
    "gmpo": [policy("sequence"), CLIPPED],
    "gpg": [policy("token")],
    "grpo": GRPO,
    "grpo_passk": GRPO,
    "grpo_tis": GRPO,
    "gspo": [policy("sequence"), CLIPPED],
    "ipo": PREFERENCE,
    "kto": [("utility", "E", "token", 1.0, False), ("reference_point", "E", "token", 0.0, False)],
    "opo": [policy("episode_sum")],
    "orpo": [("likelihood", "N", "token", 1.0, True), ("preference", "P", "token", 0.1, False), *PAIRS],
    "ppo": [policy("token"), CLIPPED],
    "ppo critic": [VALUE],
    "reinforce": [policy("episode_sum")],
    "reinforce_pp": [policy("token"), CLIPPED],
    "reinforce_pp_baseline": [policy("token"), CLIPPED, ("kl_ref", "N", "token", 0.001, True)],
    "remax": [policy("episode_sum")],
    "rft": [("likelihood", "N", "token", 1.0, True)],
    "rloo": [policy("episode_sum")],
    "sapo": [policy("sequence")],
    "sft": [("likelihood", "N", "token", 1.0, True)],
    "simpo": PREFERENCE,
    "vapo": [policy("token"), CLIPPED, ("imitation", "N", "token", 0.1, True)],
    "vapo critic": [VALUE],
}


def terms(name: str, role: str) -> list[Term]:
    world = World(method(name), 0)
    batch = world.prepared(world.packed(random_episodes(0)))
    stats = world.statistics(batch, role)
    if "logp_old_N" not in batch.columns and "logp_N" in stats:
        batch = batch.with_columns(logp_old_N=stats["logp_N"])
    found = world.goal(role).terms(batch)
    values = world.goal(role).values(batch, Stats(stats), found)
    sizes = {"N": len(batch.token_N), "P": batch.size("P"), "E": batch.size("E"), "G": batch.size("G")}
    assert all(len(v) == len(t.over) == sizes[t.at] for t, v in zip(found, values, strict=True))
    return found


@pytest.mark.parametrize("which", TERMS)
def test_the_terms_of_a_method(which: str) -> None:
    name, _, role = which.partition(" ")
    found = terms(name, role or "policy")
    assert [(t.name, t.at, t.mean, t.coef, t.additive) for t in found] == TERMS[which]


# shares that are told


def two_answers(adv: list[float], old: list[float], **columns: list[float]) -> Batch:
    """Two answers of two tokens each."""
    return batch_of([answer(i, "g", 2, float(i)) for i in range(2)], adv_N=adv, logp_old_N=old, **columns)


def told(objective: Any, batch: Batch, logp: list[float], name: str) -> list[float]:
    return worked(objective, batch, logp_N=logp)[name].value.tolist()


def test_the_share_of_weights_that_are_clipped() -> None:
    """CISPO's weights are bounded by 0 and 5: log 6 is above, and so is nothing else here."""
    batch = two_answers([1.0] * 4, [-9.0] * 4)
    logp = [-9.0, -9.0 + math.log(4.0), -9.0 + math.log(6.0), -11.0]
    assert told(ClippedWeight(), batch, logp, "weight_clipped") == [0.0, 0.0, 1.0, 0.0]


def test_the_share_of_ratios_that_the_geometric_mean_clips() -> None:
    batch = two_answers([1.0, 1.0, -1.0, -1.0], [-9.0] * 4)
    assert told(GeometricMean(), batch, [-8.5, -9.5, -8.5, -9.5], "clip_fraction") == [1.0, 0.0, 0.0, 1.0]


def test_a_gate_that_divides_by_nothing_is_refused() -> None:
    for pos, neg in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (-1.0, 1.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match=r"tau_(pos|neg)=.* has no meaning here. Use a number > 0"):
            SoftGate(tau_pos=pos, tau_neg=neg)
    assert SoftGate(tau_pos=0.5, tau_neg=0.5).tau_pos == 0.5


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_discos_trust_region_by_hand(tokens: int) -> None:
    """trust_coef (mean drift − kl_limit)₊ times the drift of each token, over the tokens that are learned."""
    right = [1.0] * tokens
    batch = batch_of([answer(1, "g", tokens, 1.0)], right_N=right, logp_old_N=[-1.0] * tokens)
    logp = [-1.5] * tokens
    drift, hinge = 0.5, 10.0 * (0.5 - 0.1)
    found = told(Discriminate(trust_coef=10.0, kl_limit=0.1), batch, logp, "trust")
    assert found == pytest.approx([-hinge * drift] * tokens)


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1 / 3, 1.1])
def test_equal_rewards_have_a_weighted_baseline_of_exactly_themselves(reward: float) -> None:
    """Rounding would leave 1e-17, and a method that divides by a deviation makes an advantage of it (pitfall 16)."""
    key, weight = Key(torch.zeros(5, dtype=torch.int64), 1), torch.tensor([3.0, 7.0, 11.0, 2.0, 5.0])
    for dtype in (torch.float32, torch.float64):
        x = torch.full((5,), reward, dtype=dtype)
        assert weighted_centre(x, weight.to(dtype), key).tolist() == [0.0] * 5


# VAPO


def test_lambda_by_the_length() -> None:
    """1 − 1/(share · length), at least 0; an answer without tokens counts as one of one."""
    length = torch.tensor([0.0, 1.0, 2.0, 5.0, 50.0], dtype=torch.float64)
    assert adaptive_lambda(length, 2.0).tolist() == pytest.approx([0.5, 0.5, 0.75, 0.9, 0.99])
    assert adaptive_lambda(length, 0.05).tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.6])


def test_an_open_answer_goes_on_from_its_last_value() -> None:
    """Both returns: the critic's target of an open answer is its last value, all of it with λ = 1."""
    whole, unfinished = answer(1, "g", 2, 1.0), answer(2, "g", 2, None, status=Status.OPEN)
    batch = batch_of([whole, unfinished], value_critic_N=[0.3, 0.4, 0.5, 0.6])
    made = LengthAdaptiveGae()(Context(), batch)
    assert made["ret_N"].tolist() == pytest.approx([1.0, 1.0, 0.6, 0.6])
    assert made["right_N"].tolist() == [1.0, 1.0, 0.0, 0.0]
    half = LengthAdaptiveGae(gamma=0.5)(Context(), batch)["ret_N"].tolist()
    assert half == pytest.approx([0.5, 1.0, 0.15, 0.3])


class Learner:
    def __init__(self, *trained: str) -> None:
        self.trained, self.steps = trained, list[tuple[str, int]]()

    def step(self, role: str, part: Batch) -> None:
        self.steps.append((role, len(part.uid_E)))


@pytest.mark.parametrize(
    ("step", "trained", "roles"),
    [(0, "policy critic", ["critic"]), (9, "policy critic", ["critic"]), (10, "policy critic", ["policy", "critic"]),
     (0, "policy", ["policy"])],
)  # fmt: skip
def test_the_critic_first(step: int, trained: str, roles: list[str]) -> None:
    batch = batch_of([answer(i, f"g{i}", 1, 1.0) for i in range(4)])
    learner = Learner(*trained.split())
    CriticFirst(epochs=3, minibatches=2)(Context(step=step), learner, batch)
    assert learner.steps == [(role, 2) for _ in range(6) for role in roles]
