"""`gruppo doctor --sandbox`: which isolation programs get on this machine, and whether it holds."""

from dataclasses import dataclass

from gruppo.sandbox.attacks import ATTACKS
from gruppo.sandbox.bait import Bait, tried
from gruppo.sandbox.host import ISOLATIONS, NoIsolation, Sandbox


@dataclass(frozen=True)
class Examined:
    """The active isolation, the other one, and for each attack what it reached (nothing, if it was held)."""

    isolation: str
    landlock: int
    other: str
    attacks: dict[str, list[str]]

    @property
    def held(self) -> bool:
        return not any(self.attacks.values())


async def examined() -> Examined:
    """Tries every attack once. Raises `NoIsolation`, with the remedy, where there is nothing to try."""
    with Sandbox() as sandbox, Bait() as bait:
        found = {name: (await tried(sandbox, attack, bait))[1] for name, attack in ATTACKS.items()}
        active, version = sandbox.isolation, sandbox.landlock
        return Examined(active, version, _other(active, sandbox.refused), found)


def _other(active: str, refused: dict[str, str]) -> str:
    for name in ISOLATIONS:
        if name != active and name not in refused:
            try:
                with Sandbox(name):
                    return f"{name} would work, too"
            except NoIsolation as error:
                return str(error)
    return "; ".join(f"not used: {why}" for why in refused.values())


def lines(found: Examined) -> list[str]:
    landlock = f"Landlock (version {found.landlock})" if found.landlock else "without Landlock"
    text = "own users, processes, files, network; " if found.isolation == "namespaces" else ""
    said = [f"isolation: {found.isolation} ({text}{landlock}, seccomp).{f' {found.other}.' if found.other else ''}"]
    for name, reached in found.attacks.items():
        said.append(f"{'ESCAPED' if reached else 'held   '} {name}{': ' if reached else ''}{'; '.join(reached)}")
    bad = sum(map(bool, found.attacks.values()))
    end = "Do not run model-written programs on this machine." if bad else "Model-written programs can run here."
    return [*said, f"{bad} of {len(found.attacks)} attacks got through. {end}"]
