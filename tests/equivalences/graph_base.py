"""Equivalences of the first six methods, and of what every method may be furnished with."""

from sides import (
    DAPO,
    DISCO,
    GRPO,
    GRPO_PLAIN,
    PPO,
    REINFORCE,
    RLOO,
    Centred,
    ClippedByLoops,
    DifferenceOfMeans,
    Equivalence,
    Normalised,
    OneStep,
    RatioAsWeight,
    WhitenedReturn,
    even,
    exact_sampler,
    no_value,
    one_group,
)

from gruppo.methods.disco import Discriminate
from gruppo.stages import Schedule
from gruppo.stages.credit import Gae, GroupNormalised, LeaveOneOut
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient
from gruppo.stages.penalties import EntropyBonus, ReferenceKL
from gruppo.stages.select import TopEntropy, TruncatedImportance
from gruppo.stages.update import Passes

GRAPH: list[Equivalence] = [
    Equivalence(
        "dapo_is_grpo",
        DAPO.but(
            name="dapo, equal clips, sequence mean, no shaping, no redraw",
            objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="sequence"),
            reward=(),
            select=(),
        ),
        GRPO_PLAIN.but(name="grpo without kl, by loops", credit=Normalised(), objective=ClippedByLoops()),
        "With equal clips, no filter and the mean per sequence DAPO is GRPO; the KL is off on both sides.",
    ),
    Equivalence(
        "rloo_is_centred",
        RLOO.but(name="rloo, kl 0", credit=LeaveOneOut(kl_coef=0.0)),
        REINFORCE.but(name="n/(n-1) · centred", credit=Centred(bessel=True)),
        "RLOO (arXiv:2402.14740): leaving one out is the centred reward, times n/(n-1) of each group.",
    ),
    Equivalence(
        "grpo_is_policy_gradient",
        GRPO_PLAIN,
        REINFORCE.but(
            name="policy gradient, normalised advantage", credit=Normalised(), objective=PolicyGradient(mean="sequence")
        ),
        "On-policy, in the first step of a batch, every ratio is 1 and no clip binds.",
        on_policy=True,
    ),
    Equivalence(
        "ppo_is_whitened_return",
        PPO.but(name="ppo, γ = λ = 1", credit=Gae(gamma=1.0, lam=1.0)),
        PPO.but(name="whitened return", credit=WhitenedReturn()),
        "PPO (arXiv:1707.06347, verl core_algos): λ = 1 gives Â_t + V_t = G_t; with V = 0 that is the return itself.",
        batch=no_value,
        roles=("policy", "critic"),
    ),
    Equivalence(
        "disco_is_disco_b",
        DISCO.but(name="disco, τ → ∞", objective=Discriminate(tau=1e7)),
        DISCO.but(name="disco-b", objective=DifferenceOfMeans()),
        "DisCO (arXiv:2505.12366): the log-mean-exp of wrong answers becomes their mean.",
        limit=1e-6,
    ),
    Equivalence(
        "no_clip_is_importance_weighted",
        GRPO_PLAIN.but(name="grpo, clips of 1 and 1e9", objective=ClippedSurrogate(clip_low=1.0, clip_high=1e9)),
        GRPO_PLAIN.but(
            name="importance-weighted policy gradient",
            objective=PolicyGradient(mean="sequence"),
            select=RatioAsWeight(),
        ),
        "∇(rA) = r A ∇ log π: a weight on the score function, here by the second door of select.",
    ),
    Equivalence(
        "dual_clip_far_away",
        DAPO.but(
            name="dapo, dual clip 1e9",
            objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, clip_dual=1e9, mean="token"),
            reward=(),
        ),
        DAPO.but(name="dapo without shaping", reward=()),
        "A bound that never binds.",
    ),
    Equivalence(
        "token_mean_of_even_lengths",
        GRPO_PLAIN.but(name="grpo, token mean", objective=ClippedSurrogate(mean="token")),
        GRPO_PLAIN,
        "GRPO (arXiv:2402.03300): the mean over tokens and the mean per sequence differ by the lengths only.",
        episodes=even,
    ),
    Equivalence(
        "reinforce_is_centred",
        REINFORCE,
        REINFORCE.but(name="centred", credit=Centred()),
        "At the first step the baseline is the mean of the batch: with one group, its centred reward.",
        episodes=one_group,
    ),
    Equivalence(
        "no_kl_coefficient",
        GRPO.but(name="grpo, kl_coef 0", penalties=(ReferenceKL(kl_coef=0.0), EntropyBonus(entropy_coef=0.0))),
        GRPO_PLAIN,
        "A penalty of coefficient 0 is no penalty.",
    ),
    Equivalence(
        "flat_schedule",
        GRPO.but(name="grpo, flat schedule", penalties=(ReferenceKL(kl_coef=Schedule("linear(0.04, 0.04, steps=9)")),)),
        GRPO,
        "A schedule that does not move is a number.",
    ),
    Equivalence(
        "all_tokens_kept",
        GRPO.but(name="grpo, top entropy 100 %", select=TopEntropy(share=1.0)),
        GRPO,
        "All of the tokens are the top of them.",
    ),
    Equivalence(
        "exact_sampler",
        GRPO.but(name="grpo, truncated importance", select=TruncatedImportance(cap=2.0)),
        GRPO,
        "TIS: a sampler that computes what the trainer computes needs no correction.",
        batch=exact_sampler,
    ),
    Equivalence(
        "scaled_rewards",
        GRPO_PLAIN.but(name="grpo, ε = 0", credit=GroupNormalised(eps=0.0)),
        GRPO_PLAIN,
        "ε = 1e-6 matters by 1e-6 only.",
        limit=1e-5,
    ),
    Equivalence(
        "one_pass_is_one_step",
        GRPO,
        GRPO.but(name="one gradient, one step", update=OneStep()),
        "One epoch of one minibatch is one optimiser step on the whole batch.",
        update=True,
    ),
    Equivalence(
        "two_epochs_are_two_steps",
        PPO.but(name="ppo, two epochs", update=Passes(epochs=2, minibatches=1)),
        PPO.but(name="two gradients, two steps", update=OneStep(times=2)),
        "Epochs over one minibatch are steps on the same batch, with logp_old held.",
        update=True,
        roles=("policy", "critic"),
    ),
]
