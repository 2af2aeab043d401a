"""The vocabulary of all built-in worlds together: every word that a prompt, an observation or an action can have.

Texts of the worlds are words with single spaces between them, so a tokenizer of words needs nothing but this list.
"""

from functools import cache

from gruppo.envs.registry import BUILT_IN, env_class

NUMBERS = tuple(str(n) for n in range(100))


@cache
def vocabulary() -> tuple[str, ...]:
    """The numbers 0 to 99, and the words of the built-in worlds in alphabetical order."""
    words = {word for name in BUILT_IN for word in env_class(name).words}
    return (*NUMBERS, *sorted(words - set(NUMBERS)))
