"""A tokenizer of single characters: three specials, newline and printable ASCII."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SPECIALS = ("<pad>", "<bos>", "<eos>")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))


class CharTokenizer:
    """ids 0, 1, 2 are `<pad>`, `<bos>`, `<eos>`; 3 is newline; then the characters 32 to 126 in order.

    Text never becomes a special: `<eos>` in a text is five characters. Nothing is added silently: who wants a
    `<bos>` puts `tokenizer.bos` there (pitfall 4).
    """

    pad, bos, eos = 0, 1, 2
    stops = (eos,)  # ids that end an answer
    rewrites = ""  # there is no chat template that could
    vocab = len(SPECIALS) + len(CHARACTERS)

    def __init__(self) -> None:
        self.tokens = (*SPECIALS, *CHARACTERS)
        self._id = {c: i for i, c in enumerate(self.tokens)}

    def encode(self, text: str) -> NDArray[np.int64]:
        for at, c in enumerate(text):
            if c not in CHARACTERS:
                raise ValueError(
                    f"character {c!r} at position {at} is not in the vocabulary: dropping it would change "
                    "the text. Use newline and printable ASCII only."
                )
        return np.fromiter((self._id[c] for c in text), np.int64, len(text))

    def decode(self, ids: Iterable[int]) -> str:
        """The text; specials are skipped."""
        numbers = [int(i) for i in ids]
        for at, i in enumerate(numbers):
            if not 0 <= i < self.vocab:
                raise ValueError(
                    f"id {i} at position {at} is outside 0..{self.vocab - 1}: it has no character. "
                    "Decode ids of this tokenizer only."
                )
        return "".join(self.tokens[i] for i in numbers if i >= len(SPECIALS))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> NDArray[np.int64]:
        """`<bos>` and the contents, a blank line between them: there is no chat template."""
        text = "\n\n".join(m["content"] for m in messages)
        return np.concatenate([np.array([self.bos], np.int64), self.encode(text)])

    def words(self) -> Mapping[str, int]:
        """Every token and its id."""
        return self._id

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, as Hugging Face's `AutoTokenizer` reads them."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        added = [
            {"id": i, "content": t, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i, t in enumerate(SPECIALS)
        ]
        # Any character, newline included, is a word of its own; a word that is unknown is an error there too.
        split = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        model = {"type": "WordLevel", "vocab": self._id, "unk_token": "<unk>"}
        tokenizer = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor"))
        tokenizer |= {"version": "1.0", "added_tokens": added, "pre_tokenizer": split, "model": model}
        tokenizer |= {"decoder": {"type": "Fuse"}}
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,  # `<eos>` in a text stays five characters
            "pad_token": "<pad>",
            "bos_token": "<bos>",
            "eos_token": "<eos>",
        }
        for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
            (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def fits(cls, folder: str | Path) -> bool:
        """Whether the folder's tokenizer is this one."""
        path = Path(folder) / "tokenizer.json"
        return path.is_file() and json.loads(path.read_text(encoding="utf-8"))["model"].get("vocab") == cls()._id

    @classmethod
    def load(cls, folder: str | Path) -> "CharTokenizer":
        path, own = Path(folder) / "tokenizer.json", cls()
        if not cls.fits(folder):
            raise ValueError(
                f"{path} has another vocabulary than CharTokenizer: ids would stand for other characters. "
                "Load it with the tokenizer that wrote it."
            )
        return own
