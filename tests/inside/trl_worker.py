"""One of several processes that train with TRL: `torchrun … trl_worker.py MODEL OUT METHOD …`; the first one reports."""

import json
import sys
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
from test_trl import differ, twice
from trl_sides import Script, inside, native, tokenizer_of

from gruppo.methods import method


def main(folder: Path, out: Path, names: list[str]) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    for name in names:
        m, script = twice(method(name)), Script(tokenizer_of(folder))
        for accumulation in (1, 2, 4):
            losses, grads = inside(m, folder, script, ["task"], out / "trl", accumulation, dist_size())
            mean = torch.tensor(losses) / dist_size()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                ours = native(m, folder, script, ["task"])
                found.setdefault(name, []).append(differ((mean.tolist(), grads), ours))
    if dist.get_rank() == 0:
        (out / "found.json").write_text(json.dumps(found))


def dist_size() -> int:
    import os

    return int(os.environ["WORLD_SIZE"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
