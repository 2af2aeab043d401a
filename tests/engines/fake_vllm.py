"""A stand-in for vLLM: it has a process's distance (a folder, files, other threads), and our own engine inside."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from gruppo.engines import NativeEngine, Request
from gruppo.engines.vllm import Said
from gruppo.policies import TinyTransformer
from gruppo.policies.shape import read_shape


class FakeVllm:
    """Begins with random weights, as vLLM does here, and takes others from a file, under their exact names."""

    started: "list[FakeVllm]" = []
    deaf_after = 99  # exchanges that it takes; later ones are lost

    def __init__(self, args: dict[str, Any]) -> None:
        self.args, self.updates, self.forgot, self.closed = args, list[int](), 0, False
        shape = read_shape(json.loads((Path(args["model"]) / "config.json").read_text()))
        assert not shape.tied
        self.policy = TinyTransformer(shape, seed=1234)
        self.engine = NativeEngine({"policy": self.policy}, eos=(), lockstep=False)

    @classmethod
    async def start(cls, args: dict[str, Any]) -> "FakeVllm":
        cls.started.append(cls(args))
        return cls.started[-1]

    async def sample(self, ids: list[int], params: dict[str, Any], name: str) -> Said:
        version = self.updates[-1] if self.updates else -1
        assert params["ignore_eos"] and not params["detokenize"]
        request = Request(
            np.array(ids),
            params["max_tokens"],
            params["seed"],
            params["temperature"],
            stop=tuple(params["stop_token_ids"]),
            topk_logprobs=params["logprobs"],
        )
        c = await self.engine.ask(request)
        likely = [{int(i): float(p)} for i, p in zip(c.ids, c.logp, strict=True)]
        if c.topk is not None:
            for found, top, logp in zip(likely, *c.topk, strict=True):
                found.update(zip(top.tolist(), logp.tolist(), strict=True))
        return Said(c.ids.tolist(), likely, c.reason, [(str(version), 0, len(c.ids))])

    async def update(self, path: str, version: int) -> None:
        if len(self.updates) < self.deaf_after:
            self.policy.load_state_dict(load_file(path), strict=True)
        self.updates.append(version)
        self.engine.sync(version, {})

    async def forget(self) -> None:
        self.forgot += 1
        self.engine.forget()

    async def close(self) -> None:
        self.closed = True
