"""A reward model: `task.reward=reward_model task.args.model=FOLDER_OR_NAME`, any Hugging Face sequence classifier.

It is batched and may not be split, so it is loaded once, in one worker. The answers of a call are judged together, in
batches that depend on the call alone: the last bits of a logit depend on the batch, and must not depend on timing.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from gruppo.tasks.base import Task
from gruppo.tasks.dialogue import said
from gruppo.tasks.imports import library, nearest
from gruppo.tasks.worker import CannotJudge

Output = Literal["logit", "sigmoid", "softmax"]


class RewardModel:
    """The logit of a sequence classifier for the prompt and the answer.

    model    a folder, or a name on the hub
    label    the class whose logit counts, by name or number; empty: the only one
    output   logit; sigmoid of it; or softmax, the probability of the class among all
    device   auto (a GPU if there is one), cpu, cuda, cuda:1
    dtype    auto (as stored on a GPU, float32 on a CPU), float32, bfloat16, float16
    batch    answers in one forward pass
    """

    def __init__(
        self,
        model: str = "",
        label: str | int = "",
        output: Output = "logit",
        device: str = "auto",
        dtype: str = "auto",
        batch: int = 16,
    ) -> None:
        if not model:
            raise ValueError("task.reward=reward_model without a model. Set task.args.model to a folder or a name.")
        if output not in get_args(Output):
            raise ValueError(f"task.args.output={output!r} is unknown.{nearest(output, get_args(Output))} Use one of "
                             f"{', '.join(get_args(Output))}.")  # fmt: skip
        if batch < 1:
            raise ValueError(f"task.args.batch={batch}: no answer would be judged. Use 1 or more.")
        transformers = library("transformers", "task.reward=reward_model loads its classifier with it", "hf")
        self.torch = library("torch", "task.reward=reward_model computes with it", "hf")
        transformers.utils.logging.disable_progress_bar()
        self.device = self._device(device)
        self.tokenizer, self.model = self._loaded(transformers, model, self._dtype(dtype))
        self.row = self._row(label, output)
        self.output = output
        config = self.model.config.get_text_config()
        self.pad = config.pad_token_id
        # Without a padding token, a model of transformers reads the last position of the batch, for each row.
        self.batch = batch if self.pad is not None else 1
        self.longest = min(getattr(config, "max_position_embeddings", None) or 10**9, self.tokenizer.model_max_length)

    def _device(self, device: str) -> Any:
        torch = self.torch
        if device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.zeros(1, device=device).device
        except (RuntimeError, AssertionError) as error:
            said = str(error).splitlines()[0].rstrip(".")
            raise ValueError(f"task.args.device={device} cannot be used here ({said}). Use auto or cpu.") from None

    def _dtype(self, dtype: str) -> Any:
        if dtype == "auto":
            return "auto" if self.device.type == "cuda" else self.torch.float32
        known = ("auto", "float32", "bfloat16", "float16")
        if dtype not in known:
            raise ValueError(f"task.args.dtype={dtype!r} is unknown.{nearest(dtype, known)} Use one of {known}.")
        return getattr(self.torch, dtype)

    def _loaded(self, transformers: Any, name: str, dtype: Any) -> tuple[Any, Any]:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(name)
            model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
                name, dtype=dtype, output_loading_info=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            said = str(error).strip().splitlines()[0]
            raise ValueError(
                f"task.args.model={name!r} cannot be loaded as a sequence classifier ({said}). Name a folder with a "
                "model and its tokenizer, or a model of the hub."
            ) from None
        if missing := sorted(info["missing_keys"]):
            raise ValueError(
                f"task.args.model={name!r} has no weights for {', '.join(missing[:3])}, so its scores would be random. "
                "Name a model that was trained as a classifier or reward model."
            )
        return tokenizer, model.to(self.device).eval()

    def _row(self, label: str | int, output: Output) -> int:
        config = self.model.config
        names = {str(name): int(i) for i, name in config.id2label.items()}
        count = int(config.num_labels)
        if label == "" and count > 1:
            raise ValueError(
                f"the model has {count} classes, and which of them is the reward is unknown. Set task.args.label to "
                f"one of {', '.join(names)}, or to its number."
            )
        if output == "softmax" and count == 1:
            raise ValueError("the model has one logit, whose softmax is always 1. Use task.args.output=sigmoid.")
        text = str(label)
        row = names.get(text, int(text) if text.isdecimal() else 0 if label == "" else -1)
        if not 0 <= row < count:
            raise ValueError(
                f"task.args.label={label!r}: the model has no such class.{nearest(text, names)} Its classes: "
                f"{', '.join(names)}."
            )
        return row

    def __call__(self, tasks: Sequence[Task], texts: Sequence[str]) -> list[float | CannotJudge]:
        inputs = [self.encoded(task, text) for task, text in zip(tasks, texts, strict=True)]
        lengths = [len(i["input_ids"]) for i in inputs]
        out: list[float | CannotJudge] = [self._too_long(n) for n in lengths]
        fitting = [i for i, n in enumerate(lengths) if 0 < n <= self.longest]
        fitting.sort(key=lambda i: lengths[i])  # little padding
        for start in range(0, len(fitting), self.batch):
            some = fitting[start : start + self.batch]
            for i, score in zip(some, self.scores([inputs[i] for i in some]), strict=True):
                out[i] = score
        return out

    def encoded(self, task: Task, text: str) -> dict[str, list[int]]:
        """The tokens of a dialogue, by the model's chat template; without one, those of prompt and answer as a pair."""
        tok = self.tokenizer
        if tok.chat_template:
            dialogue = [*task.messages, {"role": "assistant", "content": text}]
            return dict(tok(tok.apply_chat_template(dialogue, tokenize=False), add_special_tokens=False))
        return dict(tok("\n".join(map(said, task.messages)), text))

    def scores(self, inputs: Sequence[dict[str, list[int]]]) -> list[float]:
        """One forward pass. Padded on the right, where positions do not change."""
        torch = self.torch
        longest = max(len(i["input_ids"]) for i in inputs)

        def padded(name: str, fill: int) -> Any:
            rows = [i[name] + [fill] * (longest - len(i[name])) for i in inputs]
            return torch.tensor(rows, device=self.device)

        given = {n: padded(n, 0 if n != "input_ids" or self.pad is None else self.pad) for n in inputs[0]}
        with torch.inference_mode():
            logits = self.model(**given).logits.float()
            if self.output == "softmax":
                logits = logits.softmax(-1)
            found = logits[:, self.row]
            return (found.sigmoid() if self.output == "sigmoid" else found).tolist()

    def _too_long(self, length: int) -> CannotJudge:
        return CannotJudge(
            f"Prompt and answer have {length} tokens, and the reward model reads 1 to {self.longest}, so there is no "
            "reward. Lower sampling.max_tokens, or use a model with a longer context."
        )
