"""A process that has taken part in a group leaves it before Python ends."""

import os
import socket
import subprocess
import sys
from pathlib import Path

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
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    members = list[subprocess.Popen[str]]()
    for rank in range(2):
        env = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "member.py"]
        members.append(subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
    assert [member.communicate(timeout=300)[0] for member in members] == ["left\n"] * 2
    assert [member.returncode for member in members] == [0, 0]
