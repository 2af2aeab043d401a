"""Equivalences of the methods whose difference is the objective, the critic's schedule or the sampler's correction."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sides import (
    GRPO,
    GRPO_PLAIN,
    NOW,
    OLD,
    PPO,
    REINFORCE,
    Equivalence,
    Normalised,
    exact_sampler,
    whole_terms,
    whole_value,
)
from torch import Tensor

from gruppo.data import Batch, Episode, single_turn
from gruppo.lab.laws.episodes import VOCAB
from gruppo.methods import method
from gruppo.methods.cispo import ClippedWeight
from gruppo.methods.gmpo import GeometricMean
from gruppo.methods.gspo import SequenceClipped
from gruppo.methods.sapo import SoftGate
from gruppo.methods.vapo import CriticFirst, LengthAdaptiveGae
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values
from gruppo.stages.credit import Gae
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient, ValueLoss
from gruppo.stages.select import SamplerGate, TruncatedImportance
from gruppo.stages.update import Passes

GSPO, CISPO, GMPO, SAPO, VAPO, TIS = (method(n) for n in ("gspo", "cispo", "gmpo", "sapo", "vapo", "grpo_tis"))
FREE = 1e9  # a clip that never binds: ratios are at most e^20


def one_token(episodes: list[Episode]) -> list[Episode]:
    """Answers of one token each, in groups of three."""
    rng = np.random.default_rng(len(episodes))
    return [
        replace(
            single_turn(
                i, "t", f"g{i // 3}", np.array([1, 2]), rng.integers(2, VOCAB, 1), np.full(1, -1.0, np.float32), 0
            ),
            reward={"task": r},
        )
        for i, r in enumerate([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    ]


@dataclass(frozen=True)
class OneRatioAnAnswer(Occupant):
    """1/B Σ_i min(s A, clip(s, .8, 1.2) A), s = exp(mean of the log-ratios), one sequence after the other."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        answers: dict[int, list[int]] = {}
        for n in torch.nonzero(batch.learn_N)[:, 0].tolist():
            answers.setdefault(int(batch.seq_K[batch.turn_N[n]]), []).append(n)
        total = 0.0 * stats.logp_N.sum()
        for rows in answers.values():
            s = torch.exp(sum(stats.logp_N[n] - batch.logp_old_N[n] for n in rows) / len(rows))
            a = float(batch.adv_N[rows[0]])
            bound = min(max(float(s.detach()), 0.8), 1.2)
            total = total + (s * a if float(s.detach()) * a <= bound * a else torch.full_like(s, bound * a))
        return whole_value(batch, total / max(len(answers), 1))


@dataclass(frozen=True)
class MaskedByLoops(Occupant):
    """w = π_old/π_gen where it is at most 2, else 0, one token after the other; 1 where nothing was sampled."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (OLD,)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        weights = []
        for old, gen, sampled in zip(batch.logp_old_N, batch.logp_gen_N, batch.on_policy_N, strict=True):
            w = math.exp(min(float(old) - float(gen), 20.0)) if bool(sampled) else 1.0
            weights.append(w if w <= 2.0 else 0.0)
        return torch.ones_like(batch.keep_N), torch.tensor(weights, dtype=torch.float64)


@dataclass(frozen=True)
class CriticAlone(Occupant):
    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        learner.step("critic", batch)


NO_CLIP = GRPO_PLAIN.but(name="grpo, no clip", objective=ClippedSurrogate(clip_low=1.0, clip_high=FREE))
CLIP_HIGHER = ClippedSurrogate(clip_low=0.2, clip_high=0.28, mean="token")
VAPO_PLAIN = VAPO.but(name="vapo, no imitation", objective={"policy": CLIP_HIGHER, "critic": ValueLoss()})
GRAPH: list[Equivalence] = [
    Equivalence(
        "gspo_by_sequences",
        GSPO.but(name="gspo, clips of 0.2", objective=SequenceClipped(clip_low=0.2, clip_high=0.2)),
        GRPO_PLAIN.but(name="one ratio an answer, by loops", credit=Normalised(), objective=OneRatioAnAnswer()),
        "GSPO (arXiv:2507.18071): the token form has the gradient of the sequence form.",
    ),
    Equivalence(
        "gspo_of_one_token_is_grpo",
        GSPO.but(name="gspo, one token, clips of 0.2", objective=SequenceClipped(clip_low=0.2, clip_high=0.2)),
        GRPO_PLAIN,
        "The geometric mean of one ratio is that ratio.",
        episodes=one_token,
    ),
    Equivalence(
        "gspo_on_policy_is_grpo",
        GSPO,
        GRPO_PLAIN,
        "On-policy s = 1 is inside the narrowest clip, and the mean per sequence is the same.",
        on_policy=True,
    ),
    Equivalence(
        "cispo_on_policy_is_reinforce",
        CISPO,
        REINFORCE.but(name="policy gradient, token mean", credit=Normalised(), objective=PolicyGradient(mean="token")),
        "CISPO (arXiv:2506.13585): with r = 1 the weight is 1.",
        on_policy=True,
    ),
    Equivalence(
        "cispo_without_clip",
        CISPO.but(name="cispo, no clip, sequence mean", objective=ClippedWeight(1.0, FREE, mean="sequence")),
        NO_CLIP,
        "sg(r) A ∇ log π = ∇(rA): without a clip the two forms agree.",
    ),
    Equivalence(
        "gmpo_of_one_token_is_grpo",
        GMPO,
        GRPO_PLAIN.but(
            name="grpo, clip (e^-0.4, e^0.4)", objective=ClippedSurrogate(1.0 - math.exp(-0.4), math.exp(0.4) - 1.0)
        ),
        "GMPO (arXiv:2507.20673): of one token the geometric mean is the ratio, and the clip is PPO's.",
        episodes=one_token,
    ),
    Equivalence(
        "gmpo_without_clip_is_gspo",
        GMPO.but(name="gmpo, no clip", objective=GeometricMean(FREE, FREE)),
        GSPO.but(name="gspo, no clip", objective=SequenceClipped(1.0, FREE)),
        "They differ in where they clip: tokens before the mean, or the sequence after it.",
    ),
    Equivalence(
        "sapo_on_policy_is_grpo",
        SAPO,
        GRPO_PLAIN,
        "SAPO (arXiv:2511.20347): the gate has slope 1 at r = 1, whatever its temperature.",
        on_policy=True,
    ),
    Equivalence(
        "sapo_with_an_open_gate",
        SAPO.but(name="sapo, τ → 0", objective=SoftGate(tau_pos=1e-6, tau_neg=1e-6)),
        NO_CLIP,
        "4/τ σ(τ(r - 1)) = 2/τ + (r - 1) + O(τ²): no gate, rA and a constant.",
        limit=1e-6,
    ),
    Equivalence(
        "vapo_is_ppo",
        VAPO_PLAIN.but(
            name="vapo, λ = 1, no imitation, equal clips",
            credit=LengthAdaptiveGae(length_share=1e15),
            objective={"policy": ClippedSurrogate(mean="token"), "critic": ValueLoss()},
        ),
        PPO.but(name="ppo, λ = 1", credit=Gae(lam=1.0)),
        "VAPO (arXiv:2504.05118): both λ at 1, μ = 0 and equal clips leave PPO.",
        roles=("policy", "critic"),
    ),
    Equivalence(
        "vapo_of_short_answers_is_one_step_td",
        VAPO_PLAIN,
        PPO.but(
            name="ppo, λ = 0, clip higher",
            credit=Gae(lam=0.0),
            objective={"policy": ClippedSurrogate(0.2, 0.28, mean="token"), "critic": ValueLoss()},
        ),
        "Up to 20 tokens λ = 1 - 1/(0.05 l) is not above 0.",
        episodes=lambda episodes: [e for e in episodes if e.tokens <= 20],
    ),
    Equivalence(
        "vapo_after_the_warmup",
        VAPO.but(name="vapo, no warm-up", update=CriticFirst(minibatches=4, warmup=0)),
        VAPO.but(name="vapo, plain passes", update=Passes(minibatches=4)),
        "After the warm-up both roles take plain passes.",
        update=True,
        roles=("policy", "critic"),
    ),
    Equivalence(
        "vapo_in_the_warmup",
        VAPO.but(name="vapo, one minibatch", update=CriticFirst(minibatches=1, warmup=5)),
        VAPO.but(name="vapo, critic alone", update=CriticAlone()),
        "In the warm-up the critic takes its steps, and nobody else.",
        update=True,
        roles=("critic",),
    ),
    Equivalence(
        "tis_with_an_exact_sampler",
        TIS.but(
            name="grpo, every correction",
            select=(
                TruncatedImportance(cap=2.0, level="sequence", self_normalised=True),
                SamplerGate(gate_low=0.999, gate_high=1.001, level="geometric"),
            ),
        ),
        GRPO,
        "logp_old = logp_gen: every weight is 1 and every gate is open.",
        batch=exact_sampler,
    ),
    Equivalence(
        "mis_is_a_gate_beside_a_weight",
        TIS.but(
            name="grpo, weight and gate",
            select=(TruncatedImportance(cap=2.0), SamplerGate(gate_low=0.0, gate_high=2.0, counted=True)),
        ),
        GRPO.but(name="grpo, masked by loops", select=MaskedByLoops()),
        "Masked importance sampling: w inside the band, nothing outside.",
    ),
]
