"""`gruppo serve-agent POLICY`: a policy for programs on this machine, without training."""

import argparse
import asyncio
import secrets
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gruppo.cli.commands import configured
from gruppo.cli.evaluate import policy_folder
from gruppo.engines.config import engine_of
from gruppo.policies import load_policy, load_tokenizer
from gruppo.serve.alone import Visitors
from gruppo.serve.endpoint import Endpoint
from gruppo.stages.context import Context
from gruppo.train.config import RunConfig
from gruppo.train.place import place_of
from gruppo.train.waiting import waited

LONGEST = 512  # tokens of an answer, if neither a setting nor the request says


def serve_agent(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 1 << 16:
        raise ValueError(f"--port {args.port} is no port. Use 1 to 65535, or 0: any that is free.")
    if args.key and not (args.key.isascii() and args.key.isprintable() and " " not in args.key):
        raise ValueError("--key has characters that no header can hold. Use letters and digits.")
    config = configured(args)
    name = args.policy or config.model.name
    with suppress(KeyboardInterrupt):
        waited(_serve(config, name, args))
    return 0


async def _serve(config: RunConfig, name: str, args: argparse.Namespace) -> None:
    endpoint = await opened(config, name, args.port, args.name, args.key)
    print(f"{name} is served as model {args.name!r} until Ctrl-C. For programs:")
    print(f"  export OPENAI_BASE_URL={endpoint.address} OPENAI_API_KEY={args.key or 'any'}", flush=True)
    ended = asyncio.Event()
    with suppress(NotImplementedError, ValueError, RuntimeError):  # not in a thread, and not on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    try:
        await ended.wait()
    finally:
        await endpoint.close()
        endpoint.ctx.engine.close()


async def opened(config: RunConfig, name: str, port: int = 0, model: str = "policy", key: str = "") -> Endpoint:
    """The endpoint of a policy. Who calls is told apart by API key, header or path, and each dialogue goes on."""
    folder = policy_folder(name) if Path(name).is_dir() else name
    device, dtype = place_of(config)
    policy, tokenizer = load_policy(folder, dtype, device, config.seed), load_tokenizer(folder)
    if policy.fallback:
        print(policy.fallback)
    engine = engine_of(replace(config.engine, lockstep="no"), {"policy": policy}, tokenizer)
    most = config.sampling.max_tokens or min(LONGEST, policy.context)
    sampling = replace(config.sampling, max_tokens=most)
    visitors = Visitors(tokenizer, secrets.randbits(62), key)
    ctx = Context(engine=engine, tokenizer=tokenizer, sampling=sampling)
    return await Endpoint(ctx, model, visitors.find, lambda _: sampling, free=True, say=lambda _: None).start(port)
