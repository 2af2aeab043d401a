"""The tokenizer and chat template of a Hugging Face model, token-exact. Needs the extra `hf`."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig, AutoTokenizer

from gruppo.policies.described import ends_of
from gruppo.policies.files import first_line, read_json
from gruppo.policies.tokenizer import refuse_tools

Ints = NDArray[np.int64]
Messages = Sequence[Mapping[str, Any]]  # {"role": "system" | "user" | "assistant" | "tool", "content": …}
MARK = "Zq7"  # stands for an answer while a template is examined
STUB = ({"role": "user", "content": "a"}, {"role": "assistant", "content": MARK})


class HFTokenizer:
    """`encode` takes plain text, without special tokens; `chat` takes a dialogue and applies the chat template.

    bos    the id that occurs once, at the start of a prompt; None if there is none (ChatML opens every turn with the
           same id)
    stops  ids that end an answer: the template's end of turn, those of the generation config, the tokenizer's eos
    """

    def __init__(self, tok: Any, stops: Iterable[int] = (), name: str = "") -> None:
        self.tok, self.name = tok, name
        self.vocab = max(tok.get_vocab().values()) + 1
        self._special = frozenset(tok.all_special_ids) | {i for i, t in tok.added_tokens_decoder.items() if t.special}
        known = (self.turn_end, *stops, tok.eos_token_id)
        self.stops = tuple(dict.fromkeys(int(i) for i in known if i is not None))
        if not self.stops:
            raise ValueError(
                f"model {name!r}: neither its generation_config.json nor its tokenizer has an id that ends an answer, "
                "so every answer would be truncated. Add eos_token_id to generation_config.json."
            )
        self.eos = self.stops[0]
        self.pad = self.eos if tok.pad_token_id is None else int(tok.pad_token_id)

    # plain text

    def encode(self, text: str) -> Ints:
        """Ids of plain text. Nothing is added, and the name of a special token is plain text too."""
        ids = self.tok(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return np.asarray(ids, np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """The text, without special tokens."""
        numbers = [int(i) for i in ids]
        return str(self.tok.decode(numbers, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def bos(self) -> int | None:
        ids = self.chat([*STUB, STUB[0]])
        first = int(ids[0]) if len(ids) else -1
        return first if first in self._special and (ids == first).sum() == 1 else None

    # dialogues

    @property
    def has_template(self) -> bool:
        return bool(self.tok.chat_template)

    def chat(self, messages: Messages, answer: bool = True, **options: Any) -> Ints:
        """Ids of a dialogue, followed by the start of the next answer if `answer`. Options go to the template.

        Without a template: the tokenizer's bos if it adds one, then the contents, separated by blank lines.
        """
        if not self.has_template:
            refuse_tools(messages, f"model {self.name!r}")
            return self._untemplated("\n\n".join(m["content"] for m in messages))
        for m in messages:
            self._refuse_specials(m)
        text = self._rendered(messages, answer, options)
        self._refuse_unseen_tools(messages, text, answer, options)
        return self._ids(text)

    def follow(self, messages: Messages, last: int | None = None, **options: Any) -> Ints:
        """What follows a sampled answer: the end of its turn, new messages, the start of the next answer.

        `last` is the last id of the answer. Sampled tokens stay as they are, whatever the template would make of
        them, so a longer dialogue always extends the shorter one (pitfall 2).
        """
        if self.stuck:
            raise ValueError(
                f"{self.stuck}, so a dialogue cannot continue after its first answer. Use a chat model, another "
                "template, or a single turn."
            )
        before, after = self.chat(STUB, answer=False, **options), self.chat([*STUB, *messages], **options)
        k = self._common(before, after)
        if k < 0:
            raise ValueError(
                f"{self._differently} with {' and '.join(m['role'] for m in messages)}, so they cannot be "
                "separated. Use a single turn, or another template."
            )
        return after[k + 1 :] if last == self.turn_end else after[k:]

    @cached_property
    def stuck(self) -> str:
        """Empty, or why no dialogue can be extended, without a full stop: only rendering it whole is left."""
        if not self.has_template or self.turn_end is None:
            return f"model {self.name!r} has no chat template with an end of turn"
        before, after = self.chat(STUB, answer=False), self.chat([*STUB, STUB[0]])
        return self._differently if self._common(before, after) < 0 else ""

    @property
    def _differently(self) -> str:
        return f"the chat template of {self.name!r} renders an answer differently once the dialogue continues"

    def _common(self, before: Ints, after: Ints) -> int:
        """Where the answer ends, in the dialogue and in its continuation alike; -1 if they differ before."""
        k = int(np.flatnonzero(before == self.turn_end)[-1])
        return k if np.array_equal(before[: k + 1], after[: k + 1]) else -1

    @cached_property
    def turn_end(self) -> int | None:
        """The special id that the template puts after an answer."""
        if not self.has_template:
            return None
        tail = self._rendered(STUB, False, {}).rpartition(MARK)[2]
        ids = self._ids(tail.lstrip())
        return int(ids[0]) if len(ids) and int(ids[0]) in self._special else None

    @cached_property
    def rewrites(self) -> str:
        """Empty, or a warning for the start of a run: how the template changes earlier turns."""
        if not self.has_template:
            return ""
        for answer in (MARK, f"<think>\n{MARK}\n</think>\n\n{MARK}"):
            talk = [STUB[0], {"role": "assistant", "content": answer}, STUB[0]]
            asked, given, whole = self.chat(talk[:1]), self.chat(talk[:2], answer=False), self.chat(talk)
            k = int(np.flatnonzero(given == self.turn_end)[-1]) + 1 if self.turn_end in given else len(given)
            what = "" if np.array_equal(given[: len(asked)], asked) else "renders answers unlike its generation prompt"
            what = what if np.array_equal(whole[:k], given[:k]) else "rewrites earlier answers in later turns"
            if what and answer != MARK:
                what += " (it drops or moves their thinking)"
            if what:
                extended = (
                    "Dialogues are therefore extended, not rendered again: sampled tokens stay as they are, and only "
                    "what follows them is rendered."
                )
                anew = "It cannot be extended either, so each turn of a dialogue is a sequence of its own."
                return f"the chat template of {self.name!r} {what}. {anew if self.stuck else extended}"
        return ""

    def _rendered(self, messages: Messages, answer: bool, options: dict[str, Any]) -> str:
        """The rendered text. Without support for system messages, theirs is put before the first user message."""

        def render(talk: Messages) -> str:
            talk = [_in_parts(m) for m in talk] if self.takes_parts else list(talk)
            return str(self.tok.apply_chat_template(talk, tokenize=False, add_generation_prompt=answer, **options))

        try:
            return render(messages)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template of {self.name!r} is not valid: {error.message} (line {error.lineno}). Correct it, "
                "or copy the tokenizer files of the base model."
            ) from None
        except (jinja2.TemplateError, TypeError) as error:  # a TypeError: "…" + null in the template
            if len(messages) > 1 and messages[0]["role"] == "system":
                system, first, *rest = messages
                with contextlib.suppress(jinja2.TemplateError):
                    return render([{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest])
            roles = ", ".join(m["role"] for m in messages)
            raise ValueError(
                f"the chat template of {self.name!r} refuses a dialogue of {roles}: {error}. Change the order of the "
                "roles, or remove the system prompt."
            ) from None

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template shows contents only as lists of parts, [{"type": "text", "text": …}], not as texts."""
        talk: list[Mapping[str, Any]] = [{"role": "user", "content": MARK}]
        with contextlib.suppress(jinja2.TemplateError, TypeError):
            if MARK in str(self.tok.apply_chat_template(talk, tokenize=False)):
                return False
        with contextlib.suppress(jinja2.TemplateError, TypeError):
            return MARK in str(self.tok.apply_chat_template([_in_parts(m) for m in talk], tokenize=False))
        return False

    def _refuse_unseen_tools(self, messages: Messages, text: str, answer: bool, options: dict[str, Any]) -> None:
        """Refuse calls and results that the template does not show: other ones would give the same text."""
        for i, message in enumerate(messages):
            for what, other in _other_tools(message):
                if self._rendered([*messages[:i], other, *messages[i + 1 :]], answer, options) == text:
                    raise ValueError(
                        f"the chat template of {self.name!r} does not show {what}, so the model would answer without "
                        "it. Use a model whose template has tools, or data without them."
                    )

    def _ids(self, text: str) -> Ints:
        return np.asarray(self.tok(text, add_special_tokens=False)["input_ids"], np.int64)

    def _untemplated(self, text: str) -> Ints:
        added = self.tok("", add_special_tokens=True)["input_ids"]
        start = [i for i in added if i == self.tok.bos_token_id][:1]  # never its eos, which would end the prompt
        return np.concatenate([np.asarray(start, np.int64), self.encode(text)])

    def _refuse_specials(self, message: Mapping[str, Any]) -> None:
        found = None if message["role"] == "assistant" else self._special_words.search(message["content"])
        if found:
            raise ValueError(
                f"a {message['role']} message contains {found[0]!r}, a special token of {self.name!r}: it would be "
                "encoded as one, for example as the end of a turn. Remove it from the text."
            )

    @cached_property
    def _special_words(self) -> re.Pattern[str]:
        words = [str(self.tok.convert_ids_to_tokens(i)) for i in sorted(self._special)]
        return re.compile("|".join(map(re.escape, words)) or r"(?!)")

    def words(self) -> Mapping[str, int]:
        """Every token and its id."""
        return self.tok.get_vocab()

    def save(self, folder: str | Path) -> None:
        """Write tokenizer and chat template for `AutoTokenizer`."""
        self.tok.save_pretrained(str(folder))


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _other_tools(message: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what is changed, the message with this change) for the result, and for every call, of a tool."""
    if message["role"] == "tool":
        yield "the result of a tool", {**message, "content": message["content"] + MARK}
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    for i, call in enumerate(calls):
        f = call["function"]
        for what, changed in (("call", {"name": f["name"] + MARK}), ("arguments", {"arguments": {MARK: MARK}})):
            other = [*calls[:i], {**call, "function": {**f, **changed}}, *calls[i + 1 :]]
            yield f"the {what} of the tool {f['name']!r}", {**message, "tool_calls": other}


def _refuse_config(folder: Path) -> None:
    """A tokenizer is not loaded either if transformers does not like the config.json."""
    try:
        AutoConfig.from_pretrained(str(folder))
    except Exception as error:  # each model type raises its own
        raise ValueError(
            f"{folder}/config.json cannot be read by transformers ({first_line(error)}), so neither can the tokenizer. "
            "Correct it, or copy the file of the original model into the folder."
        ) from None


def load_hf_tokenizer(folder: Path, name: str) -> HFTokenizer:
    """The tokenizer of a folder, with the stop ids of its configuration. It must fit the model's vocabulary."""
    try:
        tok = AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:  # each tokenizer class raises its own
        _refuse_config(folder)
        raise ValueError(
            f"model {name!r}: the tokenizer in {folder} could not be loaded ({first_line(error)}). Copy the tokenizer "
            "files of the base model into it."
        ) from None
    config = read_json(folder / "config.json")
    tokenizer = HFTokenizer(tok, ends_of(folder), name)
    text = config.get("text_config")
    rows = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    if (
        isinstance(rows, int) and rows > 0 and not rows / 2 < tokenizer.vocab <= rows
    ):  # models often have some spare rows
        raise ValueError(
            f"model {name!r}: its tokenizer has {tokenizer.vocab} ids, the model {rows}. They do not belong together, "
            "and ids would mean other tokens. Copy the tokenizer files of the base model into the folder."
        )
    return tokenizer
