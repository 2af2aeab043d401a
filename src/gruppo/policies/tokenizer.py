"""A character tokenizer: three special tokens, newline and printable ASCII."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gruppo.policies.files import read_json, write_json

SPECIALS = ("<pad>", "<bos>", "<eos>")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))


def refuse_tools(messages: Sequence[Mapping[str, Any]], who: str) -> None:
    """For a tokenizer without a chat template: joined contents would not show who calls what."""
    if any(m.get("role") == "tool" or m.get("tool_calls") for m in messages):
        raise ValueError(
            f"{who} has no chat template, so calls and results of tools would be lost or look like the user's words. "
            "Use a chat model with tools, or data without them."
        )


def write_fast(folder: str | Path, specials: Sequence[str], pieces: Mapping[str, Any]) -> None:
    """tokenizer.json, of these pieces in the words of the package tokenizers, and tokenizer_config.json.

    The special tokens are the first ids. There is no chat template: its text would pass through the tokenizer, where
    `<bos>` is five characters.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    added = [
        {"id": i, "content": t, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, t in enumerate(specials)
    ]
    tokenizer = dict.fromkeys(("truncation", "padding", "normalizer")) | {"version": "1.0", "added_tokens": added}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # `<eos>` in a text stays five characters
        "model_input_names": ["input_ids", "attention_mask"],  # a Llama takes no token_type_ids
        "padding_side": "left",  # prompts of a batch end together, and answers follow
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
    }
    write_json(folder / "tokenizer.json", tokenizer | dict(pieces))
    write_json(folder / "tokenizer_config.json", config)


def starting(single: Sequence[str], pair: Sequence[str], special: Mapping[str, Any]) -> dict[str, Any]:
    """What is put around one text A, and around two texts A and B."""

    def piece(name: str) -> dict[str, Any]:
        return {"SpecialToken" if name in special else "Sequence": {"id": name, "type_id": 0}}

    pieces = {"single": [piece(p) for p in single], "pair": [piece(p) for p in pair]}
    return {"type": "TemplateProcessing", **pieces, "special_tokens": dict(special)}


class CharTokenizer:
    """ids 0, 1, 2 are `<pad>`, `<bos>`, `<eos>`; 3 is newline; then the characters 32 to 126 in order.

    `<eos>` in a text is five characters, never a special token, and `encode` adds no `<bos>` (pitfall 4). `chat` adds
    it, and so does the tokenizer that `save` writes for transformers.
    """

    pad, bos, eos = 0, 1, 2
    stops = (eos,)  # ids that end an answer
    rewrites = ""  # no chat template, no warning
    vocab = len(SPECIALS) + len(CHARACTERS)

    def __init__(self) -> None:
        self.tokens = (*SPECIALS, *CHARACTERS)
        self._id = {c: i for i, c in enumerate(self.tokens)}

    def encode(self, text: str) -> NDArray[np.int64]:
        for at, c in enumerate(text):
            if c not in CHARACTERS:
                raise ValueError(
                    f"character {c!r} at position {at} is not in the vocabulary, so the text cannot be encoded. Use "
                    "newline and printable ASCII only."
                )
        return np.fromiter((self._id[c] for c in text), np.int64, len(text))

    def decode(self, ids: Iterable[int]) -> str:
        """The text, without special tokens."""
        numbers = [int(i) for i in ids]
        for at, i in enumerate(numbers):
            if not 0 <= i < self.vocab:
                raise ValueError(
                    f"id {i} at position {at} is outside 0..{self.vocab - 1}, so it has no character. Decode ids of "
                    "this tokenizer only."
                )
        return "".join(self.tokens[i] for i in numbers if i >= len(SPECIALS))

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> NDArray[np.int64]:
        """`<bos>` and the contents, separated by blank lines: there is no chat template."""
        refuse_tools(messages, "the built-in policy")
        text = "\n\n".join(m["content"] for m in messages)
        return np.concatenate([np.array([self.bos], np.int64), self.encode(text)])

    def follow(self, messages: Sequence[Mapping[str, Any]], last: int | None = None) -> NDArray[np.int64]:
        """What follows a sampled answer, whose last id is `last`: `<eos>`, unless that is the last, and the contents.

        `chat` has no `<eos>` after an answer, so it does not render such a dialogue: extend it.
        """
        refuse_tools(messages, "the built-in policy")
        text = self.encode("\n\n".join(m["content"] for m in messages))
        return text if last == self.eos else np.concatenate([np.array([self.eos], np.int64), text])

    def words(self) -> Mapping[str, int]:
        """Every token and its id."""
        return self._id

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json for `AutoTokenizer`, which gives the ids of `chat`."""
        # Every character, newline included, is a word of its own; unknown words are an error there too.
        split = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        model = {"type": "WordLevel", "vocab": self._id, "unk_token": "<unk>"}
        special = {"<bos>": {"id": "<bos>", "ids": [self.bos], "tokens": ["<bos>"]}}
        added = starting(("<bos>", "A"), ("<bos>", "A", "B"), special)
        pieces = {"pre_tokenizer": split, "model": model, "post_processor": added, "decoder": {"type": "Fuse"}}
        write_fast(folder, SPECIALS, pieces)

    @classmethod
    def fits(cls, folder: str | Path) -> bool:
        """Whether the tokenizer of a folder is this one."""
        model = read_json(Path(folder) / "tokenizer.json").get("model")
        return isinstance(model, dict) and model.get("vocab") == cls()._id

    @classmethod
    def load(cls, folder: str | Path) -> "CharTokenizer":
        if not cls.fits(folder):
            raise ValueError(
                f"{folder}/tokenizer.json has another vocabulary than CharTokenizer, so ids would mean other "
                "characters. Load it with the tokenizer that wrote it."
            )
        return cls()
