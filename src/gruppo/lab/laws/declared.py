"""What comes before the laws: whether a run would refuse the method, and whether it writes what it declares."""

from dataclasses import replace

from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.stages import Context, Memory, Method, Sampling, kind
from gruppo.stages.check import least_samples, problems
from gruppo.stages.writers import with_companions

SAMPLES = 8  # of a prompt, or as many as the method requires


def refused(method: Method) -> str:
    """Why `gruppo train` would refuse the method, whatever the settings; "" if it would not.

    A model that the user has yet to name, such as a teacher, is no fault of the method.
    """
    method = with_companions(method)
    named = {name: replace(role, start=role.start or "policy") for name, role in method.cast.items()}
    ctx = Context(step=0, steps=10, memory=Memory(), samples=SAMPLES, sampling=Sampling(max_tokens=8))
    return " ".join(problems(method.but(cast=named), ctx, samples=max(SAMPLES, least_samples(method))))


def columns(method: Method, seed: int) -> str:
    """The credit returns the columns that it declares in `writes`, all of them and no others."""
    world = World(method, seed)
    found = set(method.credit(world.ctx, world.packed(random_episodes(seed))))
    declared, credit = set(method.credit.writes), kind(method.credit)
    if extra := sorted(found - declared):
        return (
            f"{credit} returns {', '.join(extra)}, and its writes has {', '.join(sorted(declared)) or 'nothing'}: "
            f"what reads it would be refused. Declare what it returns: writes = {tuple(sorted(found))!r}."
        )
    if lost := sorted(declared - found):
        return (
            f"{credit} declares {', '.join(lost)} in its writes and returns {', '.join(sorted(found)) or 'nothing'}: "
            "what reads it would find no such column. Return it, or take it out of writes."
        )
    return ""
