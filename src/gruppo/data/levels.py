"""The levels of a batch, and the check that a tensor has the rows of one. Shapes only: nothing waits for a GPU."""

import difflib
from typing import Any, Literal

import torch

Level = Literal["N", "K", "S", "E", "G", "P"]
LEVELS: tuple[Level, ...] = ("N", "K", "S", "E", "G")
UP = {"N": ("turn_N", "K"), "K": ("seq_K", "S"), "S": ("episode_S", "E"), "E": ("group_E", "G")}
PROBE = {"N": "turn_N", "K": "seq_K", "S": "episode_S", "E": "group_E", "G": "drawn_G", "P": "win_P"}


def level_of(name: str) -> str:
    """The level in a column's name: N of `adv_N`, E of `reward_EC`."""
    return name.rpartition("_")[2][:1] if "_" in name else name


def refuse_level(level: Any) -> None:
    """Refuses what is no level, and no key either."""
    if not isinstance(level, str) or level not in PROBE:
        raise ValueError(
            f"{level!r} is no level, so no rows could be found. Use one of {' ⊂ '.join(LEVELS)}; a partition of your "
            "own is a Key, from batch.key(...)."
        )


def refuse_word(what: str, given: Any, known: tuple[str, ...]) -> None:
    """Refuses a word that is not one of those known, with the nearest."""
    if isinstance(given, str) and given in known:
        return
    near = difflib.get_close_matches(str(given).lower(), known, 1, cutoff=0.5)
    close = f" (nearest: {near[0]})" if near else ""
    raise ValueError(
        f"{what}={given!r} is none of its words{close}, so nothing could be computed. Use {', '.join(known)}."
    )


def rows_of(x: Any) -> int:
    """How many rows a tensor has; -1 if it is a single number, or no tensor."""
    return x.shape[0] if isinstance(x, torch.Tensor) and x.dim() else -1


def refuse_rows(what: str, x: Any, whose: str, size: int, remedy: str) -> None:
    """Refuses a tensor that has not the `size` rows of `whose` ("level G")."""
    rows = rows_of(x)
    if rows == size:
        return
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{what} is {type(x).__name__} and no tensor, so it has no rows. {remedy}")
    has = f"{rows} rows" if rows >= 0 else "no rows, as a single number"
    raise ValueError(f"{what} has {has}, {whose} has {size}: rows would be misaligned. {remedy}")


def refuse_mask(what: str, where: Any, whose: str, size: int) -> None:
    """Refuses a mask that is not one boolean for each row."""
    if not isinstance(where, torch.Tensor) or where.dtype != torch.bool:
        kind = str(where.dtype) if isinstance(where, torch.Tensor) else type(where).__name__
        raise ValueError(f"{what} is {kind} and no mask of booleans: which rows count is not known. Use x > 0, say.")
    refuse_rows(what, where, whose, size, f"Give one boolean per row of {whose}.")
    if where.dim() > 1:
        raise ValueError(f"{what} has the shape {tuple(where.shape)}, so a row has several. Give one boolean per row.")
