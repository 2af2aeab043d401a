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
    if not _whole(prompt):
        said = "prompt is no list of ids: texts are completed by /v1/chat/completions. Send whole numbers."
        raise Refusal(400, said, param="prompt")
    given = {name: body[name] for name in ("temperature", "top_p") if body.get(name) is not None}
    for name, value in given.items():
        if not isinstance(value, int | float):
            raise Refusal(400, f"{name}={value!r} is no number. Send one, or leave it out.", param=name)
    if not _whole(stop := body.get("stop_token_ids") or []):
        raise Refusal(400, f"stop_token_ids={stop!r} is no list of ids. Send whole numbers.", param="stop_token_ids")
    top_k, seed, most = body.get("top_k") or 0, body.get("seed"), body.get("max_tokens")
    try:
        return Request(
            np.array(prompt, np.int64),
            max_tokens=16 if most is None else most,
            key=key if seed is None else seed,
            top_k=0 if top_k == -1 else top_k,
            stop=tuple(stop),
            **given,
        )
    except OverflowError:
        raise Refusal(400, "prompt has an id beyond 64 bits, outside the vocabulary.", param="prompt") from None
    except ValueError as error:
        raise Refusal(400, str(error)) from None


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)


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
