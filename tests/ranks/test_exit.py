"""A process that has taken part in a group leaves it before Python ends."""

from pathlib import Path

from warm import ranks

MEMBER = """
import atexit
import torch.distributed as dist
from gruppo.train.ranks import ranks
# Of the exit handlers the last one is called first: this one sees what the group's own has left.
atexit.register(lambda: print("left" if not dist.is_initialized() else "still a member"))
assert ranks().size == 2 and dist.is_initialized() and ranks().size == 2
dist.barrier()
"""


def test_the_group_is_left_before_python_ends(tmp_path: Path) -> None:
    (tmp_path / "member.py").write_text(MEMBER)
    ranks(2, tmp_path, tmp_path / "member.py")  # until both have ended with 0
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["left\n"] * 2
