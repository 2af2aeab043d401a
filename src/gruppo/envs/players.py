"""Scripted players: of mixed care, from a world's winning path, or from one player of a game and a careless one."""

from collections.abc import Callable, Sequence
from typing import Any

from gruppo.envs.base import Player, Seen, actions_of, name_of, offers
from gruppo.tasks.base import Task
from gruppo.tasks.imports import nearest
from gruppo.tasks.numbering import hash64

UNIT = 2.0**-64


def chance(*key: int | str) -> float:
    """A keyed number in [0, 1)."""
    return hash64(*key) * UNIT


def picked(items: Sequence[str], *key: int | str) -> str:
    """A keyed choice; empty if there is nothing to choose from."""
    return items[hash64(*key) % len(items)] if items else ""


def mixed(careful: Player, careless: Player, care: float) -> Player:
    """Plays as the careful player with this probability, else as the careless one."""
    return lambda seen, key: (careful if chance("care", key) < care else careless)(seen, key)


def scripted(env: Any, care: float = 1.0) -> Player:
    """Plays on the winning path of a world with this probability, else any action that is allowed.

    It looks into the world, so it is for demonstrations and tests, not for an opponent.
    """

    def player(seen: Seen, key: int) -> str:
        gold = env.gold() if offers(env, "gold") and chance("care", key) < care else ""
        return gold or picked(actions_of(env), "any", key)

    return player


def opponent(env: Any, name: str) -> Player:
    """A player for the other seats of a game: one of its own, `random`, or `gold`, which is the best one it has.

    `NAME:0.7` plays like that with probability 0.7, else any action that is allowed. A ValueError says what is wrong.
    """
    who, colon, care = name.partition(":")
    known: dict[str, Player] = dict(getattr(env, "players", {}))
    if not known and offers(env, "gold"):
        known["gold"] = scripted(env)
    if known:
        known.setdefault("gold", next(iter(known.values())))  # the most careful one is the first
    if offers(env, "actions"):
        known.setdefault("random", scripted(env, 0.0))
    if who not in known:
        has = f"Players: {', '.join(known)}." if known else "It has no players and names no actions."
        raise ValueError(f"player={who!r}: {name_of(env)} has no such player.{nearest(who, known)} {has}")
    if not colon:
        return known[who]
    share = _share(name, care)
    if "random" not in known:
        raise ValueError(f"player={name!r}: {name_of(env)} names no actions, so nobody can be careless. Use {who}.")
    return mixed(known[who], known["random"], share)


def _share(name: str, care: str) -> float:
    try:
        share = float(care)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(
            f"player={name!r}: {care!r} is no share from 0 to 1, so it is unclear how careful the player is. Write"
            " gold:0.7."
        )
    return share


def episode(
    env: Any, task: Task, player: Player | dict[str, Player], key: int = 0, turns: int = 1_000
) -> list[tuple[str, str, Seen]]:
    """An episode as a player, or one for each seat, plays it: (agent, action, what was seen), after ("", "", start)."""
    seen = env.reset(task)
    out = [("", "", seen)]
    for turn in range(turns):
        if seen.done:
            break
        mine = player[seen.agent] if isinstance(player, dict) else player
        agent, action = seen.agent, mine(seen, hash64(key, turn))
        seen = env.step(action)
        out.append((agent, action, seen))
    return out


def from_words(choices: Callable[[Seen], Sequence[str]]) -> Player:
    """A player that takes any of these actions."""
    return lambda seen, key: picked(choices(seen), "any", key)
