"""What each method hands to the learner: which terms, of which level, over which mean, how much, and cut how.

The keys are "NAME", or "NAME ROLE" for a role that is not the policy.
"""

from math import cos, pi

Row = tuple[str, str, str, float, bool]


def policy(mean: str) -> Row:
    return ("policy", "N", mean, 1.0, True)


CLIPPED = ("clip_fraction", "N", "token", 0.0, True)


VALUE = ("value", "N", "token", 1.0, True)


KL = ("kl_ref", "N", "sequence", 0.04, True)


PAIRS = [("margin", "P", "token", 0.0, False), ("preferred", "P", "token", 0.0, False)]


PREFERENCE = [("preference", "P", "token", 1.0, False), *PAIRS]


GRPO = [policy("sequence"), CLIPPED, KL]


TURNS = [policy("turn"), CLIPPED, ("kl_ref", "N", "turn", 0.01, True)]


# (name, level, mean, coefficient, additive). A term is additive if a micro-batch can compute its part of it: what
# compares episodes, or counts the step, is not. Coefficient 0: for the log.
TERMS: dict[str, list[Row]] = {
    "archer": [policy("turn_sum")],
    "archer critic": [("q", "K", "token", 1.0, False), ("v", "K", "token", 1.0, False)],
    "drmas": [policy("turn"), CLIPPED],
    "gigpo": TURNS,
    "hgpo": TURNS,
    "mars": [policy("sequence"), CLIPPED, ("kl_ref", "N", "sequence", 0.2, True)],
    "salt": TURNS,
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
    "latr": GRPO,
    "kto": [("utility", "E", "token", 1.0, False), ("reference_point", "E", "token", 0.0, False)],
    "loop": [policy("episode_sum"), CLIPPED],
    "opo": [policy("episode_sum")],
    "orpo": [("likelihood", "N", "token", 1.0, True), ("preference", "P", "token", 0.1, False), *PAIRS],
    "poad": [policy("token"), CLIPPED, ("entropy_bonus", "N", "token", 0.01, True)],
    "poad critic": [VALUE],
    "ppo": [policy("token"), CLIPPED],
    "ppo critic": [VALUE],
    "reinforce": [policy("episode_sum")],
    "reinforce_pp": [policy("token"), CLIPPED],
    "reinforce_pp_baseline": [policy("token"), CLIPPED, ("kl_ref", "N", "token", 0.001, True)],
    "remax": [policy("episode_sum")],
    "rft": [("likelihood", "N", "token", 1.0, True)],
    "rlvmr": [policy("turn"), CLIPPED, ("kl_ref", "N", "turn", 0.01, True)],
    "rloo": [policy("episode_sum")],
    "sapo": [policy("sequence")],
    "sft": [("likelihood", "N", "token", 1.0, True)],
    "simpletir": [policy("token"), CLIPPED],
    "simpo": PREFERENCE,
    "ufo": [policy("token"), CLIPPED, ("entropy_bonus", "N", "token", 0.001, True)],
    "ufo critic": [VALUE],
    "vapo": [policy("token"), CLIPPED, ("imitation", "N", "token", 0.1, True)],
    "vapo critic": [VALUE],
    "spear": [
        ("policy", "N", "sequence_sum/8", 1.0, False),
        ("self_imitation", "N", "sequence_sum/8", (1 - cos(0.01 * pi)) / 2, False),
        CLIPPED,
        ("singled_out", "N", "token", 0.0, False),
    ],
    # a hinge, the means of a covariance and pairs reach over the whole step: no micro-batch can tell its part
    "drpo_decoupled": [("separate", "G", "drawn_group", 1.0, False), ("trust", "N", "token", 1.0, False)],
    "kl_cov": [("policy", "N", "token", 1.0, False), ("singled_out", "N", "token", 0.0, False)],
    "oprl prm": [
        ("preference", "P", "token", 1.0, False),
        ("margin", "P", "token", 0.0, False),
        ("preferred", "P", "token", 0.0, False),
    ],
}
