"""Held-out evaluation: which answers are drawn, and what is made of their scores."""

import asyncio
import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from gruppo.cli import main
from gruppo.data import key_hash, single_turn
from gruppo.engines import NativeEngine
from gruppo.engines.base import Completion, complete
from gruppo.policies import load_policy, load_tokenizer
from gruppo.stages import Sampling
from gruppo.tasks import Task, TaskSet
from gruppo.tasks.extract import answer_of
from gruppo.tasks.judge import Verdict
from gruppo.train.config import RunConfig
from gruppo.train.evaluate import Evaluation, _entropy, evaluate, wanted_k
from gruppo.train.metrics import episode_metrics

TOKENIZER = load_tokenizer("tiny-random")


@dataclass
class Scripted:
    """An engine that answers what it was told, sample after sample of each prompt, and remembers the requests."""

    texts: list[str]
    logp: float = -0.5
    requests: list[Any] = field(default_factory=list[Any])

    async def generate(self, requests: list[Any]) -> Any:
        self.requests = list(requests)
        for i, r in enumerate(requests):
            ids = np.array([*TOKENIZER.encode(self.texts[i % len(self.texts)]), TOKENIZER.eos])
            length = len(ids) > r.max_tokens
            ids = ids[: r.max_tokens]
            logp = np.full(len(ids), self.logp, np.float32)
            yield i, Completion(ids, logp, np.zeros(len(ids), np.int32), "length" if length else "stop")


class Judge:
    """Right is right; `?` cannot be judged."""

    async def score(self, items: list[tuple[Task, str]]) -> list[Verdict]:
        return [
            Verdict({}, "env_error", "no idea") if text == "?" else Verdict({"task": float(text == task.answer)})
            for task, text in items
        ]

    async def answers(self, groups: list[list[tuple[Task, str]]]) -> list[list[str]]:
        return [[answer_of(text) for _, text in group] for group in groups]


def tasks(*answers: str, levels: tuple[int, ...] = ()) -> TaskSet:
    made = [Task(f"t{i}", f"{i}:", a, levels[i] if levels else 1, "test") for i, a in enumerate(answers)]
    other = [Task("train", "0:", "0", 1, "test")]
    return TaskSet("test", other, made, "gruppo.tasks.addition:score", max_tokens=8)


def evaluated(engine: Any, tasks: TaskSet, samples: int = 1, k: tuple[int, ...] = (), **how: Any) -> Evaluation:
    sampling = Sampling(max_tokens=8, **how)
    return asyncio.run(evaluate(engine, TOKENIZER, Judge(), tasks, sampling, 500, samples, k))


def native(name: str = "tiny") -> NativeEngine:
    return NativeEngine({"policy": load_policy(name)}, eos=TOKENIZER.eos)


# ---- which answers


def test_the_first_answer_has_the_key_it_always_had() -> None:
    engine = Scripted(["1"])
    evaluated(engine, tasks("1", "2"))
    assert [r.key for r in engine.requests] == [key_hash("eval", "t0"), key_hash("eval", "t1")]


def test_more_answers_add_to_the_first_and_change_none() -> None:
    engine = native()
    one, three = (evaluated(engine, tasks("1", "2", "3"), samples) for samples in (1, 3))
    assert [e.text for e in three.episodes][::3] == [e.text for e in one.episodes]
    assert len({e.uid for e in three.episodes}) == 9


def test_answers_of_one_prompt_differ() -> None:
    found = evaluated(native("tiny-random"), tasks("1"), 8)
    assert len({e.text for e in found.episodes}) > 4


def test_twice_is_the_same() -> None:
    a, b = (evaluated(native(), tasks("1", "2"), 4).table() for _ in range(2))
    assert a == b


# ---- what is made of them


def test_worked_numbers() -> None:
    """Two prompts, four answers each: 7 7 8 9 to a 7, and 1 2 2 2 to a 1."""
    engine = Scripted(["7", "7", "8", "9", "1", "2", "2", "2"])
    e = evaluated(engine, tasks("7", "1"), 4, (1, 2, 4))
    assert e.accuracy == pytest.approx((0.5 + 0.25) / 2) and e.avg_at[4].mean == e.accuracy
    assert e.error == pytest.approx(np.std([0.5, 0.25], ddof=1) / math.sqrt(2))
    # pass@2: 1 - C(2,2)/C(4,2) = 5/6 and 1 - C(3,2)/C(4,2) = 1/2
    assert [i.mean for i in e.pass_at.values()] == pytest.approx([0.375, (5 / 6 + 1 / 2) / 2, 1.0])
    assert list(e.maj_at) == [4] and e.maj_at[4].mean == 0.5  # 7 has the most votes, 2 has the most votes
    assert e.entropy == pytest.approx(0.5) and e.length == 2 and e.truncated == 0 and e.failed == 0
    assert e.prompts == 2 and e.samples == 4


def test_different_right_answers_are_counted_by_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 and 2 are right, 3 is worth a half; equal answers count once."""

    async def score(self: Judge, items: Any) -> list[Verdict]:
        return [Verdict({"task": {"1": 1.0, "2": 1.0, "3": 0.5}.get(text, 0.0)}) for _, text in items]

    monkeypatch.setattr(Judge, "score", score)
    e = evaluated(Scripted(["1", "2", "2", "3", "1", "1", "1", "3", "3", "4", "5", "3"]), tasks("1", "1", "1"), 4)
    assert e.distinct == (2 + 1 + 0) / 3 and e.logged()["held_out/distinct"] == e.distinct == e.table()["distinct"]
    two = evaluated(Scripted(["1", "2"]), tasks("1"), 2)
    assert two.distinct is None and "held_out/distinct" not in two.logged()


def test_one_answer_a_prompt_is_what_it_was() -> None:
    right = [True, False, True, True]
    e = evaluated(Scripted(["1" if r else "0" for r in right]), tasks("1", "1", "1", "1"))
    assert e.accuracy == np.mean(right) and e.error == pytest.approx(np.std(right, ddof=1) / 2)
    assert e.pass_at[1].mean == e.accuracy and not e.maj_at
    assert e.logged() == {"held_out": 0.75, "held_out/length": 2.0}


def test_levels() -> None:
    engine = Scripted(["1", "1", "1", "0", "0", "0"])
    e = evaluated(engine, tasks("1", "1", "1", levels=(3, 2, 2)), 2, (1, 2))
    assert list(e.by_level) == [2, 3]
    assert e.by_level[3]["accuracy"] == 1 and e.by_level[3]["prompts"] == 1 and math.isnan(e.by_level[3]["low"])
    two = e.by_level[2]
    assert two["accuracy"] == 0.25 and two["pass_at"][2].mean == 0.5 and two["low"] < 0.25 < two["high"]


def test_what_cannot_be_judged_is_no_zero() -> None:
    e = evaluated(Scripted(["1", "?", "?", "?", "1", "0"]), tasks("1", "1", "1"), 2, (1, 2))
    assert e.failed == 3 and e.accuracy == pytest.approx((1 + 0.5) / 2)  # the second prompt is in no score
    assert e.pass_at[2].n == 1 and e.pass_at[2].mean == 1  # and only the third has two judged answers
    assert np.isnan(e.score_P).tolist() == [False, True, False]


def test_nothing_judged_is_refused() -> None:
    with pytest.raises(ValueError, match=r"none of 2 held-out answers could be judged\. First error: no idea"):
        evaluated(Scripted(["?"]), tasks("1", "1"))


def test_truncated_and_long_answers() -> None:
    e = evaluated(Scripted(["123456789012", "1"]), tasks("1", "1"))
    assert e.truncated == 0.5 and e.length == (8 + 2) / 2


def test_no_held_out_problems_is_refused() -> None:
    with pytest.raises(ValueError, match="task test has no held-out problems"):
        evaluated(Scripted(["1"]), tasks())


@pytest.mark.parametrize(
    ("text", "answer"),
    {
        "12": "12",
        " 3  + 4 \n": "3 + 4",
        "5-3=2\n2*8=16\n(5-3)*8\n\n": "(5-3)*8",
        "so \\boxed{\\frac{1}{2}} it is": "\\frac{1}{2}",
        "first\n#### 42\nthanks": "42",
        "<answer>\nred\n</answer> I think": "red",
        "": "",
    }.items(),
)
def test_what_a_text_votes_for(text: str, answer: str) -> None:
    assert answer_of(text) == answer


def test_the_entropy_of_greedy_answers_has_no_sign() -> None:
    certain = single_turn(0, "t", "g", np.array([1]), np.array([2]), np.zeros(1, np.float32), version=0)
    for found in (_entropy([certain]), episode_metrics([certain])["entropy"]):
        assert f"{found:.3g}" == "0"


def test_the_entropy_is_that_of_the_policy() -> None:
    """The mean surprise of the sampled tokens estimates the mean entropy of what they were drawn from."""
    engine, watched = native(), Scripted(["1"])
    evaluated(watched, tasks(*"1234"), 200)
    whole = [replace(r, topk_logprobs=TOKENIZER.vocab) for r in watched.requests]
    done = asyncio.run(complete(engine, whole))
    logp_NV = np.concatenate([c.topk[1] for c in done if c.topk is not None]).astype(np.float64)
    entropy_N = -(np.exp(logp_NV) * logp_NV).sum(1)
    e = evaluated(engine, tasks(*"1234"), 200)
    surprise_N = -np.concatenate([s.logp[s.prompt_len :] for x in e.episodes for s in x.sequences]).astype(np.float64)
    assert len(surprise_N) == len(entropy_N) and e.entropy == pytest.approx(float(surprise_N.mean()))
    assert e.entropy == pytest.approx(entropy_N.mean(), abs=4 * float(surprise_N.std()) / math.sqrt(len(surprise_N)))
    assert evaluated(engine, tasks("1"), temperature=0.0).entropy == 0  # a point mass


# ---- what is asked for


def test_which_k() -> None:
    assert wanted_k(16, ()) == (1, 16) and wanted_k(1, ()) == (1,) and wanted_k(8, (8, 1, 1)) == (1, 8)


@pytest.mark.parametrize(
    ("samples", "k", "temperature", "words"),
    [
        (4, (1, 8), 1.0, r"eval.k=8 with eval.samples=4.*Use eval.samples=8 or more, or eval.k from 1 to 4"),
        (1, (3,), 1.0, r"eval.samples must be at least k. Use eval.samples=3 or more, or eval.k=1\.$"),
        (4, (0,), 1.0, r"eval.k=0 with eval.samples=4: a try has at least one answer. Use eval.k from 1 to 4"),
        (4, (), 0.0, "eval.samples=4 with eval.temperature=0: greedy"),
        (2000, (), 1.0, "eval.samples=2000.*1000 answers at most"),
    ],
)
def test_bad_k(samples: int, k: tuple[int, ...], temperature: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wanted_k(samples, k, temperature)


def test_settings_round_trip() -> None:
    from gruppo.cli.overrides import apply
    from gruppo.stages.record import from_table, to_table

    config = apply(RunConfig(), ["eval.k=1,4,16", "eval.samples=16"])
    assert config.eval.k == (1, 4, 16) and config.eval.samples == 16
    assert from_table(json.loads(json.dumps(to_table(config)))).eval == config.eval


# ---- the command


SMALL = ("task.level=1-2", "eval.prompts=20", "eval.samples=4", "eval.k=1,2,4")


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tiny", *SMALL, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["samples"] == 4 and list(facts["pass_at"]) == ["1", "2", "4"] and list(facts["maj_at"]) == ["4"]
    assert facts["pass_at"]["1"]["mean"] == pytest.approx(facts["accuracy"])
    assert facts["low"] < facts["accuracy"] < facts["high"] and facts["avg_at"]["4"]["n"] == 20
    assert set(facts["by_level"]) == {"1", "2"} and facts["entropy"] > 0
    assert main(["eval", "tiny", *SMALL]) == 0
    words = capsys.readouterr().out
    assert f"accuracy {facts['accuracy']:.3f} [" in words and "20 held-out prompts × 4 answers" in words
    assert "pass@4" in words and "maj@4" in words and "intervals: 95 %, over prompts" in words


def test_several_policies_are_compared_by_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tiny", "tiny-random", "eval.prompts=40", "task.level=1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [p["policy"] for p in facts["policies"]] == ["tiny", "tiny-random"]
    [d] = facts["differences"]
    accuracy = [p["accuracy"] for p in facts["policies"]]
    assert d["difference"]["mean"] == pytest.approx(accuracy[0] - accuracy[1]) and d["beyond_noise"]
    assert main(["eval", "tiny", "tiny-random", "eval.prompts=40", "task.level=1"]) == 0
    assert "tiny - tiny-random: +" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    {
        "eval.k=4": "eval.k=4 with eval.samples=1",
        "eval.samples=0": "eval.samples=0 is out of range: use a whole number >= 1.",
        "eval.samples=4 eval.temperature=0": "greedy",
        "eval.k=few": "eval.k=few is not a list of whole numbers",
        "tiny tiny": "tiny is there twice",
    }.items(),
)
def test_command_refuses(argv: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *argv.split()]) == 2
    out, err = capsys.readouterr()
    assert words in err and not out and "Traceback" not in err


def test_a_run_logs_what_several_answers_say() -> None:
    from train_runs import metrics, train

    assert train("a", "steps=1", "eval.samples=4", "eval.k=2,4") == 0
    rows = metrics("a")
    assert all({"held_out", "held_out/pass@2", "held_out/pass@4", "held_out/maj@4"} <= row.keys() for row in rows)


def test_a_run_with_a_bad_k_leaves_nothing(here: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from train_runs import train

    assert train("a", "steps=1", "eval.k=4") == 2
    assert "eval.k=4 with eval.samples=1" in capsys.readouterr().err and not list(here.glob("runs/*"))


def test_nothing_is_counted_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """A game is a prompt, unless there are several samples."""
    game = ("eval", "tiny-agent", "task=mix:kuhn+guess", "task.against=random", "eval.prompts=2")
    assert main([*game]) == 0
    words = capsys.readouterr().out
    assert "games 1, turns" in words and "on 1 prompt, " in words and "games 1 on" not in words
    assert main([*game, "eval.samples=2"]) == 0
    assert "games 2 on 1 prompt, " in capsys.readouterr().out
    assert main(["eval", "tiny", "eval.prompts=1"]) == 0
    assert "on 1 held-out prompt, T=1" in capsys.readouterr().out
