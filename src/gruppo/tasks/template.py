"""Templates over the fields of a row: `"{question} Answer with a number."`. Fields may be nested: `{a.b}`, `{a.0}`."""

from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from gruppo.tasks.imports import nearest

MISSING = object()


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value of a field, or of a field in it (`reward_model.ground_truth`, `answers.text.0`); else MISSING."""
    if path in row:
        return row[path]
    found: Any = row
    for part in path.split("."):
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, Sequence) and not isinstance(found, str) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return MISSING
    return found


def prompts(template: str, known: Sequence[str], whose: str) -> Callable[[Mapping[str, Any]], str]:
    """As `compiled`, for the prompts of tasks: without any field all of them would be one."""
    fill = compiled(template, known, whose)
    if all(name is None for _, name, _, _ in Formatter().parse(template)):
        raise ValueError(
            f"task.template={template!r} names no field, so every prompt would be the same text. Write {{FIELD}} where "
            f"the words of a row belong. Fields: {', '.join(known)}."
        )
    return fill


def compiled(template: str, known: Sequence[str], whose: str) -> Callable[[Mapping[str, Any]], str]:
    """A function from a row to text; a ValueError names a field that no row has."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"task.template={template!r} is no template ({error}). Write {{field}} for a field, and {{{{ and }}}} for "
            "braces."
        ) from None
    for _, name, _, _ in parts:
        if name is not None and name.split(".")[0] not in {k.split(".")[0] for k in known} | set(known):
            raise ValueError(
                f"task.template names the field {name!r}, which {whose} does not have.{nearest(name, known)} Fields: "
                f"{', '.join(known)}. Write {{{{ and }}}} for braces."
            )

    def fill(row: Mapping[str, Any]) -> str:
        return "".join(text + _shown(row, name, how, spec) for text, name, spec, how in parts)

    return fill


def _shown(row: Mapping[str, Any], name: str | None, how: str | None, spec: str | None) -> str:
    if name is None:
        return ""
    value = lookup(row, name)
    if value is MISSING or value is None:
        raise ValueError(f"the field {name!r} of the template is {'missing' if value is MISSING else 'null'}")
    changed = {"r": repr, "a": ascii}.get(how or "", lambda v: v)(value)
    try:
        return format(changed, spec or "")
    except (TypeError, ValueError) as error:
        raise ValueError(f"the template cannot show {name!r} as {spec!r}: {error}") from None
