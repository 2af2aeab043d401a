"""One of several processes that train with TRL: `torchrun … trl_worker.py MODEL OUT 1,2,4 METHOD …`.

The numbers are accumulations. The first process reports the differences from our own learner.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from native_side import Script, differ, native, tokenizer_of, twice
from trl_side import inside

from gruppo.methods import method


def main(folder: Path, out: Path, accumulations: list[int], names: list[str]) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    for name in names:
        m, script = twice(method(name)), Script(tokenizer_of(folder))
        for accumulation in accumulations:
            size = int(os.environ["WORLD_SIZE"])
            losses, grads = inside(m, folder, script, ["task"], out / "trl", accumulation, size)
            mean = torch.tensor(losses) / size
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                ours = native(m, folder, script, ["task"])
                found.setdefault(name, []).append(differ((mean.tolist(), grads), ours))
    if dist.get_rank() == 0:
        (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [int(x) for x in sys.argv[3].split(",")], sys.argv[4:])
