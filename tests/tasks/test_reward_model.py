"""A reward model: classifiers with random weights, made here, judged in a worker and compared with transformers."""

import asyncio
import atexit
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from hf_models import CHATML, GQA, chat_tokenizer, hf_folder

from gruppo.tasks import Scorer, Task, load_task
from gruppo.tasks.judge import Judge, Verdict
from gruppo.tasks.reward_model import RewardModel
from gruppo.tasks.worker import CannotJudge

TASKS = [Task(f"t{i}", f"{i}+{i}=", str(2 * i), 1, "own", system="Be short." if i % 2 else "") for i in range(7)]
TEXTS = ["0", "22", "a long answer", "6", "", "ten", "1 2"]
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


@lru_cache
def classifier(kind: str = "llama", labels: int = 1, chat: bool = True, pad: int | None = 0) -> str:
    """A folder as transformers writes it."""
    import transformers

    tok = chat_tokenizer(CHATML if chat else None)
    names = {0: "good"} if labels == 1 else {i: f"class{i}" for i in range(labels)}
    shared = {"vocab_size": len(tok), "id2label": names, "pad_token_id": pad, "max_position_embeddings": 128}
    cls, shape = ("BertConfig", BERT) if kind == "bert" else ("LlamaConfig", GQA)
    config = getattr(transformers, cls)(**{**shape, **shared})
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0.0, 0.3)
    folder = mkdtemp(prefix="gruppo-classifier-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    return folder


def by_hand(folder: str, chat: bool = True) -> torch.Tensor:
    """The logits of each pair alone, without padding."""
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    rows: list[torch.Tensor] = []
    for task, text in zip(TASKS, TEXTS, strict=True):
        before = [{"role": "system", "content": task.system}] if task.system else []
        talk = [*before, {"role": "user", "content": task.prompt}, {"role": "assistant", "content": text}]
        if chat:
            ids = tok(tok.apply_chat_template(talk, tokenize=False), add_special_tokens=False, return_tensors="pt")
        else:
            ids = tok("\n".join(m["content"] for m in talk[:-1]), text, return_tensors="pt")
        with torch.no_grad():
            rows.append(model(**ids).logits[0])
    return torch.stack(rows)


# ---- laws


@pytest.mark.parametrize("kind", ["llama", "bert"])
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_an_answer_s_score_does_not_depend_on_its_batch(kind: str, chat: bool, batch: int) -> None:
    folder = classifier(kind, chat=chat)
    found = RewardModel(folder, batch=batch, device="cpu")(TASKS, TEXTS)
    wanted = by_hand(folder, chat)[:, 0].tolist()
    assert found == pytest.approx(wanted, abs=1e-5) and len({round(x, 4) for x in wanted}) > 3


def test_a_model_without_a_padding_token_is_read_at_its_last_token() -> None:
    folder = classifier(pad=None)
    model = RewardModel(folder, batch=16, device="cpu")
    assert model.batch == 1
    assert model(TASKS, TEXTS) == pytest.approx(by_hand(folder)[:, 0].tolist(), abs=1e-5)


def test_outputs_and_labels() -> None:
    one, three = classifier(), classifier(labels=3)
    logits = by_hand(three)
    made = {
        "logit": (dict(label="class2"), logits[:, 2]),
        "number": (dict(label=2), logits[:, 2]),
        "sigmoid": (dict(label="class1", output="sigmoid"), logits[:, 1].sigmoid()),
        "softmax": (dict(label="class0", output="softmax"), logits.softmax(-1)[:, 0]),
    }
    for args, wanted in made.values():
        found = RewardModel(three, device="cpu", **args)(TASKS, TEXTS)
        assert found == pytest.approx(wanted.tolist(), abs=1e-5)
    found = RewardModel(one, output="sigmoid", label="good", device="cpu")(TASKS, TEXTS)
    assert found == pytest.approx(by_hand(one)[:, 0].sigmoid().tolist(), abs=1e-5)


def test_an_answer_that_is_too_long_fails_alone() -> None:
    found = RewardModel(classifier(), device="cpu")(TASKS[:3], ["1", "x" * 200, "2"])
    assert isinstance(found[1], CannotJudge) and "reads 1 to 128" in str(found[1])
    assert isinstance(found[0], float) and isinstance(found[2], float)


# ---- in the judge


def test_in_one_worker() -> None:
    args = {"model": classifier(), "device": "cpu"}
    tasks = load_task("addition", scorer="reward_model", args=args)
    assert tasks.scorer == Scorer("gruppo.tasks.reward_model:RewardModel", args)

    def score(judge: Judge, *items: tuple[Task, str]) -> list[Verdict]:
        return asyncio.run(judge.score(items))

    with Judge(tasks.scorer, workers=4) as judge:
        verdicts = score(judge, *zip(TASKS, TEXTS, strict=True), (TASKS[0], "x" * 200))
        assert [v.components.get("task") for v in verdicts[:-1]] == pytest.approx(
            by_hand(args["model"])[:, 0].tolist(), abs=1e-5
        )
        assert (verdicts[-1].status, verdicts[-1].components) == ("env_error", {})
        assert "Traceback" not in verdicts[-1].error and "no reward" in verdicts[-1].error
        assert judge.in_order and len(judge._pool._lanes) == 1
        assert score(judge, *zip(TASKS, TEXTS, strict=True)) == verdicts[:-1]


# ---- refusals


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"model": ""}, "without a model"),
        ({"model": "./no/such/folder"}, "cannot be loaded as a sequence classifier"),
        ({"output": "logits"}, "Did you mean 'logit'"),
        ({"output": "softmax"}, "always 1.*sigmoid"),
        ({"label": "god"}, "no such class.*Did you mean 'good'"),
        ({"label": 3}, "no such class"),
        ({"batch": 0}, "batch=0"),
        ({"device": "cuda:77"}, "cannot be used here"),
        ({"dtype": "float23"}, "Did you mean 'float32'"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){said}"):
        RewardModel(**{"model": classifier(), "device": "cpu", **args})


def test_several_classes_need_a_label() -> None:
    with pytest.raises(ValueError, match=r"3 classes.*class0, class1, class2"):
        RewardModel(classifier(labels=3), device="cpu")


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    """transformers would give it a random head."""
    with pytest.raises(ValueError, match=r"no weights for score\.weight, so its scores would be random"):
        RewardModel(str(hf_folder(tmp_path / "lm")), label=0, device="cpu")


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    """`auto` takes it, in a worker of its own; float32 there agrees with the CPU."""
    assert RewardModel(classifier()).device.type == "cuda"
    args = {"model": classifier(), "dtype": "float32"}
    with Judge(Scorer("gruppo.tasks.reward_model:RewardModel", args)) as judge:
        verdicts = asyncio.run(judge.score(list(zip(TASKS, TEXTS, strict=True))))
    found = [v.components["task"] for v in verdicts]
    assert found == pytest.approx(by_hand(args["model"])[:, 0].tolist(), abs=1e-3)
