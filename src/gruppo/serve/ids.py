"""Completions of ids: what another gruppo (`engine=remote`) asks of a policy that is served without training."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from gruppo.engines.base import Completion, Request
from gruppo.serve.http import Refusal, Reply

# What would change the answer and cannot be done: {field: what is harmless}.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "echo": (None, False),
    "stream": (None, False),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "stop": (None, []),
}


def request_of(body: Mapping[str, Any], key: int) -> Request:
    """The request that a body asks for. Raises a Refusal."""
    for name, harmless in HARMLESS.items():
        if (value := body.get(name)) not in harmless:
            raise Refusal(400, f"{name}={value!r} is not served for ids. Leave it out.", "unsupported_value", name)
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in prompt):
        raise Refusal(
            400,
            "prompt is no list of ids: texts are completed by /v1/chat/completions. Send whole numbers.",
            param="prompt",
        )
    given = {name: body[name] for name in ("temperature", "top_p") if body.get(name) is not None}
    top_k, seed = body.get("top_k") or 0, body.get("seed")
    try:
        return Request(
            np.array(prompt, np.int64),
            max_tokens=body.get("max_tokens") or 16,
            key=key if seed is None else seed,
            top_k=0 if top_k == -1 else top_k,
            stop=tuple(body.get("stop_token_ids") or ()),
            **given,
        )
    except (ValueError, TypeError) as error:
        raise Refusal(400, str(error)) from None


def reply_of(request: Request, c: Completion, model: str) -> Reply:
    """The answer as OpenAI writes it, with ids beside the log-probabilities."""
    names = [f"token_id:{i}" for i in c.ids.tolist()]
    choice = {
        "index": 0,
        "text": "",  # ids are all that is asked for
        "finish_reason": c.reason,
        "prompt_token_ids": request.prefix.tolist(),
        "token_ids": c.ids.tolist(),
        "logprobs": {"tokens": names, "token_logprobs": [float(p) for p in c.logp], "top_logprobs": None},
    }
    counted = {"prompt_tokens": len(request.prefix), "completion_tokens": len(c.ids)}
    return Reply(
        {
            "id": f"cmpl-{secrets.token_hex(8)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": [choice],
            "usage": {**counted, "total_tokens": sum(counted.values())},
        }
    )
