"""Environments: built-in worlds, wrappers, adapters, and a checker for your own.

`task=household` is a task like any other; `make_env("household")` is the world itself.
"""

from gruppo.envs.base import Called, Env, Player, Seen, actions_of, gold_of, need, offers, play, seats_of
from gruppo.envs.registry import BUILT_IN, env_class, make_env

__all__ = [
    "BUILT_IN",
    "Called",
    "Env",
    "Player",
    "Seen",
    "actions_of",
    "env_class",
    "gold_of",
    "make_env",
    "need",
    "offers",
    "play",
    "seats_of",
]
