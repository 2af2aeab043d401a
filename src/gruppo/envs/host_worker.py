"""The process that hosts an environment: `main()` is the child's end of a channel.

The parent is trusted and sends pickles; what goes back is JSON.
"""

import pickle
from dataclasses import asdict, fields
from typing import Any

from gruppo.envs.base import Seen, seats_of
from gruppo.envs.registry import env_class
from gruppo.tasks.child import Parent

HOSTED = {"actions", "gold"}  # what goes through the pipe


def main() -> None:
    parent = Parent()
    name, options = pickle.loads(parent.receive())
    try:
        env = env_class(name)(**options)
    except ValueError as error:
        parent.send("refused", str(error))
        return
    except Exception as error:
        parent.send("refused", f"env={name!r} cannot be made with {options}: {type(error).__name__}: {error}")
        return
    can, rules = sorted(HOSTED & set(getattr(env, "can", ()))), str(getattr(env, "rules", ""))
    parent.send("ready", {"can": can, "seats": list(seats_of(env)), "rules": rules})
    while True:
        call, argument = pickle.loads(parent.receive())
        try:
            kind, content = answered(env, call, argument)
            parent.send(kind, content)
        except Exception as error:  # also what JSON cannot hold
            parent.send("raised", f"{type(error).__name__}: {error}")


def answered(env: Any, call: str, argument: Any) -> tuple[str, Any]:
    """What a call of an environment gives, in plain types."""
    if call in HOSTED:
        value = getattr(env, call)()
        return "value", value if isinstance(value, str) else list(value)
    seen = env.reset(argument) if call == "reset" else env.step(argument)
    if not isinstance(seen, Seen):
        raise TypeError(f"{call} gave {type(seen).__name__} and not a Seen")
    return "seen", {f.name: _plain(getattr(seen, f.name)) for f in fields(Seen)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [asdict(call) for call in value]
    return dict(value) if hasattr(value, "items") else value
