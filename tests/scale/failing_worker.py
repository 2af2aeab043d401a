"""A run on ranks of which one alone runs out of memory. Started by torchrun: failing_worker.py RANK WORD…"""

import os
import sys
from typing import Any

import torch

import gruppo.train.learner
from gruppo.cli import main

serve, calls = gruppo.train.learner.serve, [0]


def poor(*given: Any, **named: Any) -> Any:
    calls[0] += 1
    if calls[0] > 5:  # in the first steps, after those of step zero
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    return serve(*given, **named)


if __name__ == "__main__":
    if os.environ["RANK"] == sys.argv[1]:
        gruppo.train.learner.serve = poor
    raise SystemExit(main(["train", *sys.argv[2:]]))
