"""A tokenizer of words: each word that it knows is one token, and everything else is written byte by byte.

A dialogue in ids, where an agent sees and acts in turn:

    <bos> observation <act> action <eos> observation <act> action <eos> …
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gruppo.policies.files import read_json
from gruppo.policies.tokenizer import refuse_tools, starting, write_fast

SPECIALS = ("<pad>", "<bos>", "<eos>", "<act>")
SPACE = "Ġ"  # the letter of the byte 32: with it a word begins
SPLIT = re.compile(r" [^ \n]*|\n")


def _letters() -> tuple[str, ...]:
    """A visible letter for each byte, as byte-level tokenizers have it since GPT-2: printable ones stay as they are."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = iter(range(256, 512))
    return tuple(chr(b if b in plain else next(rest)) for b in range(256))


LETTERS = _letters()
BYTES = {letter: b for b, letter in enumerate(LETTERS)}


class WordTokenizer:
    """ids 0 to 3 are `<pad>`, `<bos>`, `<eos>`, `<act>`; 4 to 259 the bytes 0 to 255; then the words.

    Every text of Unicode can be encoded, and `decode(encode(text)) == text`, spaces and newlines included. A word is
    what stands between spaces and newlines. One that is known is one token; any other is the token of a space and one
    token for each of its bytes. `<eos>` in a text is such a word, never a special token, and `encode` adds nothing.
    """

    pad, bos, eos, act = range(4)
    stops = (eos,)  # ids that end an action
    rewrites = ""  # no chat template, no warning

    def __init__(self, words: Iterable[str]) -> None:
        self.known = tuple(words)
        for word in self.known:
            if not word or not word.isascii() or not word.isprintable() or " " in word:
                raise ValueError(f"{word!r} is no word of printable ASCII without spaces, so no text could contain it.")
        self.tokens = (*SPECIALS, *LETTERS, *(SPACE + word for word in self.known))
        self._id = {token: i for i, token in enumerate(self.tokens)}
        if len(self._id) < len(self.tokens):
            twice = next(word for word in self.known if self.known.count(word) > 1)
            raise ValueError(f"the word {twice!r} is there twice, so it would have two ids. Give each word once.")
        self.vocab = len(self.tokens)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Ids of plain text. Nothing is added."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the character at position {error.start} is half of a surrogate pair, so it is no text. Remove it."
            ) from None
        ids: list[int] = []
        # Each line begins with a space of its own, so that its first word has the token of all others.
        for piece in SPLIT.findall(" " + text.replace("\n", "\n ") if text else ""):
            letters = "".join(LETTERS[b] for b in piece.encode())
            whole = self._id.get(letters)
            ids += [self._id[letter] for letter in letters] if whole is None else [whole]
        return np.array(ids, np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """The text, without special tokens; bytes that are no text are shown as �."""
        numbers = [int(i) for i in ids]
        for at, i in enumerate(numbers):
            if not 0 <= i < self.vocab:
                raise ValueError(
                    f"id {i} at position {at} is outside 0..{self.vocab - 1}, so it has no word. Decode ids of this "
                    "tokenizer only."
                )
        letters = "".join(self.tokens[i] for i in numbers if i >= len(SPECIALS))
        text = bytes(BYTES[letter] for letter in letters).decode(errors="replace")
        return text.removeprefix(" ").replace("\n ", "\n")

    # dialogues

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> NDArray[np.int64]:
        """`<bos>`, then what was seen and `<act>`, what was done and `<eos>`, in turn.

        What the assistant said was done, all other messages were seen. Those that follow one another, such as a
        task and the first observation, are lines of one text.
        """
        return self._turns([self.bos], messages)

    def follow(self, messages: Sequence[Mapping[str, Any]], last: int | None = None) -> NDArray[np.int64]:
        """What follows a sampled action: what is seen now, and `<act>`.

        `last` is the last id of the action. Unless it is `<eos>`, as in an action that was cut off at max_tokens,
        `<eos>` comes first: the policy then reads what it would have read after a complete one. That token was not
        sampled, so it is no part of the action.
        """
        return self._turns([] if last == self.eos else [self.eos], messages)

    def _turns(self, ids: list[int], messages: Sequence[Mapping[str, Any]]) -> NDArray[np.int64]:
        refuse_tools(messages, "the built-in agent")
        for done, part in groupby(messages, lambda m: m.get("role") == "assistant"):
            text = "\n".join(m["content"] for m in part)
            ids += [*self.encode(text).tolist(), self.eos if done else self.act]
        return np.array(ids, np.int64)

    def words(self) -> Mapping[str, int]:
        """Every token and its id."""
        return self._id

    # folders

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json for `AutoTokenizer`.

        There a text is encoded as an observation of `chat`, and a pair as an observation and its action.
        """
        space = {"type": "Prepend", "prepend": " "}
        lines = {"type": "Replace", "pattern": {"String": "\n"}, "content": "\n "}
        split = {"type": "Split", "pattern": {"Regex": SPLIT.pattern}, "behavior": "Isolated", "invert": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        back = {"type": "Replace", "pattern": {"String": "\n "}, "content": "\n"}
        # BPE without merges: a word of the vocabulary, or its letters.
        bpe = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
        bpe |= {"type": "BPE", "fuse_unk": False, "byte_fallback": False, "ignore_merges": True}
        pieces = {
            "normalizer": {"type": "Sequence", "normalizers": [space, lines]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "model": bpe | {"vocab": self._id, "merges": []},
            "post_processor": self._post_processor(),
            "decoder": {"type": "Sequence", "decoders": [level, strip, back]},
        }
        write_fast(folder, SPECIALS, pieces)

    def _post_processor(self) -> dict[str, Any]:
        special = {t: {"id": t, "ids": [i], "tokens": [t]} for i, t in enumerate(SPECIALS[1:], 1)}
        return starting(("<bos>", "A", "<act>"), ("<bos>", "A", "<act>", "B", "<eos>"), special)

    @classmethod
    def fits(cls, folder: str | Path) -> bool:
        """Whether the tokenizer of a folder is one of words."""
        return _known(folder) is not None

    @classmethod
    def load(cls, folder: str | Path) -> "WordTokenizer":
        """The tokenizer of a folder, with its own words."""
        known = _known(folder)
        if known is None:
            raise ValueError(
                f"{folder}/tokenizer.json is not the file of a WordTokenizer, so ids would mean other words. Load it "
                "with the tokenizer that wrote it."
            )
        return cls(known)


def _known(folder: str | Path) -> list[str] | None:
    """The words of a saved WordTokenizer; None if a folder has another tokenizer."""
    model = read_json(Path(folder) / "tokenizer.json").get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("merges") or "vocab" not in model:
        return None
    vocab = model["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    first = (*SPECIALS, *LETTERS)
    words = tokens[len(first) :]
    mine = tuple(tokens[: len(first)]) == first and all(len(t) > 1 and t[0] == SPACE for t in words)
    in_order = sorted(vocab.values()) == list(range(len(tokens)))
    return [t[1:] for t in words] if mine and in_order and model.get("ignore_merges") else None
