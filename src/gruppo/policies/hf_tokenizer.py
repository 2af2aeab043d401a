"""The tokenizer of a Hugging Face model, with its chat template rendered to the very tokens. Needs the extra `hf`."""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer

Ints = NDArray[np.int64]
Messages = Sequence[dict[str, str]]  # {"role": "system" | "user" | "assistant", "content": …}
MARK = "Zq7"  # stands for an answer while a template is looked at
STUB = ({"role": "user", "content": "a"}, {"role": "assistant", "content": MARK})


class HFTokenizer:
    """`encode` is plain text, in which nothing is special; `chat` is a dialogue as the model was taught it.

    bos    the id that stands once, at the start of a prompt; None where there is no such id (ChatML opens every
           turn with the same one)
    stops  ids that end an answer: those of the generation config, the tokenizer's eos and the template's end of turn
    """

    def __init__(self, tok: Any, stops: Iterable[int] = (), name: str = "") -> None:
        self.tok, self.name = tok, name
        self.vocab = max(tok.get_vocab().values()) + 1
        self._special = frozenset(tok.all_special_ids) | {i for i, t in tok.added_tokens_decoder.items() if t.special}
        known = [*([] if self.turn_end is None else [self.turn_end]), *stops]
        known += [] if tok.eos_token_id is None else [int(tok.eos_token_id)]
        self.stops = tuple(dict.fromkeys(int(i) for i in known))
        if not self.stops:
            raise ValueError(
                f"model {name!r}: neither its generation_config.json nor its tokenizer names an id that ends an "
                "answer, so every answer would be cut off. Add eos_token_id to generation_config.json."
            )
        self.eos = self.stops[0]
        self.pad = self.eos if tok.pad_token_id is None else int(tok.pad_token_id)

    # plain text

    def encode(self, text: str) -> Ints:
        """Ids of plain text: nothing is added, and the name of a special id in it is only text."""
        ids = self.tok(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return np.asarray(ids, np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """The text; specials are skipped."""
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
        """Ids of a dialogue, with the start of the next answer if `answer`. Options go to the template.

        Without a template: what the tokenizer puts before a text, then the contents, a blank line between them.
        """
        if not self.has_template:
            return self._untemplated("\n\n".join(m["content"] for m in messages))
        for m in messages:
            self._refuse_specials(m)
        return self._ids(self._rendered(messages, answer, options))

    def follow(self, messages: Messages, last: int | None = None, **options: Any) -> Ints:
        """What comes after an answer of the policy's: the end of its turn, new messages, the start of the next answer.

        `last` is the id that the answer ended with. The tokens of the answer stay as they were sampled, whatever the
        template would make of them later, so a dialogue that grows is always an extension of itself (pitfall 2).
        """
        if not self.has_template or self.turn_end is None:
            raise ValueError(
                f"model {self.name!r} has no chat template with an end of turn, so a dialogue cannot go on after its "
                "first answer. Use a model that was trained for chat, or one turn."
            )
        before, after = self.chat(STUB, answer=False, **options), self.chat([*STUB, *messages], **options)
        k = int(np.flatnonzero(before == self.turn_end)[-1])
        if not np.array_equal(before[: k + 1], after[: k + 1]):
            raise ValueError(
                f"the chat template of {self.name!r} renders an answer differently once the dialogue goes on, so what "
                "follows cannot be told apart from it. Use one turn, or another template."
            )
        return after[k + 1 :] if last == self.turn_end else after[k:]

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
        """Empty, or what the template does to earlier turns, and what is done about it: for the start of a run."""
        if not self.has_template:
            return ""
        for answer in (MARK, f"<think>\n{MARK}\n</think>\n\n{MARK}"):
            talk = [STUB[0], {"role": "assistant", "content": answer}, STUB[0]]
            asked, told, whole = self.chat(talk[:1]), self.chat(talk[:2], answer=False), self.chat(talk)
            k = int(np.flatnonzero(told == self.turn_end)[-1]) + 1 if self.turn_end in told else len(told)
            what = "" if np.array_equal(told[: len(asked)], asked) else "does not begin an answer as it asks for one"
            what = what if np.array_equal(whole[:k], told[:k]) else "rewrites earlier answers when the dialogue goes on"
            if what and answer != MARK:
                what += " (it drops or moves their thinking)"
            if what:
                return (
                    f"the chat template of {self.name!r} {what}. Dialogues are therefore extended, not rendered anew: "
                    "sampled tokens stay as they are and only what follows them is rendered."
                )
        return ""

    def _rendered(self, messages: Messages, answer: bool, options: dict[str, Any]) -> str:
        """The template's text. One that knows no system message gets it in front of the first user message."""

        def render(talk: Messages) -> str:
            text = self.tok.apply_chat_template(list(talk), tokenize=False, add_generation_prompt=answer, **options)
            return str(text)

        try:
            return render(messages)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template of {self.name!r} is no template: {error.message} (line {error.lineno}). Mend it, "
                "or copy the tokenizer files of the model it was made from."
            ) from None
        except jinja2.TemplateError as error:
            if len(messages) > 1 and messages[0]["role"] == "system":
                with contextlib.suppress(jinja2.TemplateError):
                    return render(_system_as_user(messages))
            roles = ", ".join(m["role"] for m in messages)
            raise ValueError(
                f"the chat template of {self.name!r} refuses a dialogue of {roles}: {error}. Change the order of the "
                "roles, or leave the system prompt out."
            ) from None

    def _ids(self, text: str) -> Ints:
        return np.asarray(self.tok(text, add_special_tokens=False)["input_ids"], np.int64)

    def _untemplated(self, text: str) -> Ints:
        added = self.tok("", add_special_tokens=True)["input_ids"]
        start = [i for i in added if i == self.tok.bos_token_id][:1]  # never its eos, which would end the prompt
        return np.concatenate([np.asarray(start, np.int64), self.encode(text)])

    def _refuse_specials(self, message: dict[str, str]) -> None:
        found = None if message["role"] == "assistant" else self._special_words.search(message["content"])
        if found:
            raise ValueError(
                f"a {message['role']} message contains {found[0]!r}, which is a special token of {self.name!r}: the "
                "template would take it for its own, for example for the end of a turn. Take it out of the text."
            )

    @cached_property
    def _special_words(self) -> re.Pattern[str]:
        words = [str(self.tok.convert_ids_to_tokens(i)) for i in sorted(self._special)]
        return re.compile("|".join(map(re.escape, words)) or r"(?!)")

    def words(self) -> Mapping[str, int]:
        """Every token and its id."""
        return self.tok.get_vocab()

    def save(self, folder: str | Path) -> None:
        """Tokenizer and chat template, as `AutoTokenizer` reads them."""
        self.tok.save_pretrained(str(folder))


def _system_as_user(messages: Messages) -> list[dict[str, str]]:
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def load_hf_tokenizer(folder: Path, name: str) -> HFTokenizer:
    """The tokenizer of a folder, with the stop ids of its configuration; its vocabulary must be the model's."""
    try:
        tok = AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:  # each tokenizer class has its own complaints
        said = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise ValueError(
            f"model {name!r}: the tokenizer in {folder} could not be loaded ({said}). Copy the tokenizer files of the "
            "model it was made from into it."
        ) from None
    config, stops = _json(folder / "config.json"), list[int]()
    for table in (_json(folder / "generation_config.json"), config):
        told = table.get("eos_token_id")
        stops += told if isinstance(told, list) else [] if told is None else [told]
    tokenizer = HFTokenizer(tok, stops, name)
    rows = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if rows and not rows / 2 < tokenizer.vocab <= rows:  # models often have some spare rows
        raise ValueError(
            f"model {name!r}: its tokenizer has {tokenizer.vocab} ids, the model {rows}: they do not belong together, "
            "and ids would stand for other words. Copy the tokenizer files of the model it was made from there."
        )
    return tokenizer


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
