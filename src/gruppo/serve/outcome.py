"""How the program of an episode ended: its reward, or why there is none. Light to import."""

import json
from typing import Any

from gruppo.tasks.worker import components, failed

Row = tuple[dict[str, float], str, str]  # components, status (ok, env_error, timeout), error


def paid(value: Any) -> Row:
    """What an agent returned, as named finite numbers."""
    found, status, error = components(value)
    if status == "ok" and "task" not in found:
        names = ", ".join(found)
        said = f"The agent returned the components {names} but none called `task`: it is unknown what counts as solved."
        return {}, "env_error", f"{said} Return {{'task': …}} among them."
    return found, status, _of_agent(error)


def raised(error: BaseException, by: str) -> Row:
    """`by` is the file that called the agent."""
    found, status, said = failed(error, by)
    return found, status, _of_agent(said)


def printed(output: str, code: int, errors: str) -> Row:
    """Of a program: the last line of its output is the reward, as JSON."""
    tail = "\n".join(errors.strip().splitlines()[-6:])
    tail = f" It said:\n{tail}" if tail else ""
    if code:
        return {}, "env_error", f"The agent ended with exit code {code}, so the episode has no reward.{tail}"
    lines = output.strip().splitlines()
    if not lines:
        said = "The agent printed nothing, so the episode has no reward. Print it as the last line, as JSON: 1.0"
        return {}, "env_error", f"{said}.{tail}"
    try:
        return paid(json.loads(lines[-1]))
    except (ValueError, RecursionError):
        said = f"The agent's last line is {lines[-1][:80]!r} and no JSON, so the episode has no reward."
        return {}, "env_error", f'{said} Print a number, or {{"task": 1.0, "style": 0.2}}.{tail}'


def hung(seconds: float) -> Row:
    said = f"The agent took longer than {seconds:g} s (without its waiting for the policy), so it was killed and the"
    return {}, "timeout", f"{said} episode has no reward. Raise task.seconds, or make the agent faster."


def _of_agent(said: str) -> str:
    said = said.replace("The scorer", "The agent").replace("the answer has no reward", "the episode has no reward")
    said = said.replace("if the answer cannot be judged", "if the episode cannot be judged")
    return said.replace(" To return a list, one value per answer, write (tasks, texts).", "")
