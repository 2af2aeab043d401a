"""The reward of `against_trl.py`, in a file without imports: gruppo's judge loads it in a process of its own."""


def share_of_digits(text: str) -> float:
    """Cheap, and seldom the same for all answers of a group."""
    return sum(c.isdigit() for c in text) / max(len(text), 1)


def reward(task: object, text: str) -> float:
    """The same, as gruppo calls it."""
    return share_of_digits(text)
