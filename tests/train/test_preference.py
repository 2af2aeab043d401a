"""Runs on recorded answers and on pairs, as a user makes them: files, sampled groups, win rates, resume, refusals."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from train_runs import gruppo, metrics, same_run, saved, train

from gruppo.data import Episode, Source, Status
from gruppo.data.store import load_episodes
from gruppo.policies import CharTokenizer
from gruppo.stages import Ask, Context, Sampling
from gruppo.stages.prompting import plain
from gruppo.stages.recorded import Recorded, from_both_ends
from gruppo.tasks import Task
from gruppo.tasks.recorded import Answer
from gruppo.train.metrics import known
from gruppo.train.trainer import Trainer
from gruppo.train.winrate import win_rate, win_words

TINY = ("prompts=3", "samples=3", "eval.prompts=6", "eval.every=2", "steps=4", "save.checkpoint_every=2")
PAIRED = ("dpo", "ipo", "kto", "orpo", "simpo")


def summary(run: str) -> dict[str, Any]:
    return json.loads((Path("runs") / run / "summary.json").read_text())


def preferences(rows: int = 20, *, same: bool = False) -> str:
    """A preference file of one's own."""
    lines = [
        {"prompt": f"{i}+1=", "chosen": str(i + 1), "rejected": str(i + 1) if same else str(i + 2)} for i in range(rows)
    ]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return "task=./pairs.jsonl"


# recorded answers as episodes


def ask(text: str, most: int = 9, samples: int = 4, **meta: Any) -> list[Any]:
    import asyncio

    task = Task("u", "1+1=", "2", 1, "own", meta=meta or {"answers": [{"text": text, "reward": 1.0}]})
    ctx = Context(tokenizer=CharTokenizer(), sampling=Sampling(max_tokens=most))
    return asyncio.run(Recorded()(ctx, plain(ctx, Ask(task, samples))))


def test_a_recorded_answer_is_an_expert_s_and_ends_in_eos() -> None:
    [e] = ask("12")
    s = e.sequences[0]
    tokens = CharTokenizer()
    assert s.ids.tolist() == [tokens.bos, *tokens.encode("1+1="), *tokens.encode("12"), tokens.eos]
    assert s.source.tolist() == [Source.ENV] * 5 + [Source.EXPERT] * 3
    assert (e.source, e.status, e.text, e.reward) == (Source.EXPERT, Status.OK, "12", {"task": 1.0})
    assert all(math.isnan(x) for x in s.logp) and set(s.version.tolist()) == {-1} and e.tokens == 0


def test_a_long_one_is_cut_and_says_so() -> None:
    [e] = ask("12345", most=3)
    assert (e.text, e.status, len(e.sequences[0].ids)) == ("123", Status.TRUNCATED, 8)
    [e] = ask("", most=3)
    assert (e.text, e.status) == ("", Status.OK) and e.sequences[0].source.tolist()[-1] == Source.EXPERT


def test_an_answer_without_a_reward_waits_for_the_scorer() -> None:
    [e] = ask("", answers=[{"text": "3"}])
    assert e.reward == {}


def test_of_many_answers_both_ends_are_taken() -> None:
    many = [Answer(str(i), float(r)) for i, r in enumerate([3, 9, 1, 7, 5])]
    assert [a.reward for a in from_both_ends(many, 5)] == [3, 9, 1, 7, 5]
    assert [a.reward for a in from_both_ends(many, 4)] == [9, 1, 7, 3]
    assert [a.reward for a in from_both_ends(many, 1)] == [9]
    rows = [{"text": a.text, "reward": a.reward} for a in many]
    made = ask("", samples=2, answers=rows)
    assert [e.reward["task"] for e in made] == [9.0, 1.0] and made[0].uid != made[1].uid


# runs


@pytest.mark.parametrize("name", PAIRED)
def test_a_preference_file(name: str) -> None:
    assert train("a", f"method={name}", preferences(), *TINY) == 0
    rows, done = metrics("a"), summary("a")
    assert all(known(k) for row in rows for k in row) and rows[1]["grad_norm"] > 0
    assert rows[0]["win_rate"] == 0.5
    assert 0 <= done["preferred_after"] <= 1 and 0 <= done["win_rate"] <= 1
    if name in ("dpo", "ipo", "kto"):  # against a reference that is the policy itself
        assert done["preferred_before"] == 0.5
    if name != "kto":
        assert rows[1]["pairs"] == 3 and "margin" in rows[1]
    assert "entropy" not in rows[1] and "kept" not in rows[1], "nothing was sampled"
    assert rows[1]["tokens"] > 0 and math.isfinite(rows[1]["length"]) and rows[1]["failed"] == 0
    written = load_episodes(sorted((Path("runs") / "a" / "episodes").iterdir())[-1])
    assert len(written) == 6 and {e.source for e in written} == {Source.EXPERT}


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_pairs_of_sampled_answers(name: str) -> None:
    """The same method on groups that are scored on the fly: best against worst."""
    Path("own.py").write_text("def score(task, text):\n    return sum(map(ord, text)) % 7 / 7\n")
    settings = ("method.rollout=group", "task.reward=./own.py:score", "model=tiny-random", *TINY)
    assert train("a", f"method={name}", *settings) == 0
    rows = metrics("a")
    assert rows[1]["grad_norm"] > 0 and rows[1]["entropy"] > 0 and rows[1]["kept"] == 1.0
    if name == "dpo":
        assert rows[1]["pairs"] == 3


def test_all_pairs_and_several_updates() -> None:
    """Pairs survive minibatches: three optimiser steps a batch, each with the pairs of its groups."""
    more = ("method.credit.most=0", "method.update.minibatches=3", "method.update.epochs=2")
    assert train("a", "method=dpo", "task=preference", *more, *TINY) == 0
    assert metrics("a")[1]["pairs"] == 3 and metrics("a")[1]["margin"] != 0


@pytest.mark.parametrize("name", ["sft", "rft"])
def test_given_and_accepted_answers(name: str) -> None:
    assert train("a", f"method={name}", *TINY) == 0
    rows = metrics("a")
    assert any(row.get("likelihood", 0) < 0 for row in rows)
    assert "win_rate" not in rows[0] and "win_rate" not in summary("a")


def test_sft_learns_answers_of_a_file() -> None:
    Path("own.jsonl").write_text("".join(json.dumps({"prompt": f"{i}?", "answer": str(i)}) + "\n" for i in range(20)))
    assert train("a", "method=sft", "task=./own.jsonl", *TINY) == 0
    assert metrics("a")[-1]["likelihood"] < 0


def test_a_win_rate_for_any_method_on_a_task_with_pairs() -> None:
    assert train("a", "task=preference", *TINY) == 0
    assert summary("a")["win_rate"] >= 0 and "preferred_after" not in summary("a")


@pytest.mark.parametrize("name", ["dpo", *(pytest.param(n, marks=pytest.mark.slow) for n in ("kto", "rft"))])
def test_resume_is_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the win rate: the scores of the start come with the checkpoint."""
    settings = (f"method={name}", "task=preference", "method.update.minibatches=2", *TINY)
    assert train("a", *settings) == 0
    plain_step = Trainer._after_step

    async def stop_early(self: Any, step: Any) -> None:
        await plain_step(self, step)
        if step.done == 2:
            raise ValueError("pulled the plug")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_after_step", stop_early)
        assert train("b", *settings) == 2 and saved("b") == ["step-000002"]
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b")
    left, right = summary("a"), summary("b")
    keys = [k for k in left if k.startswith(("win_rate", "preferred"))]
    assert len(keys) >= 3 and [left[k] for k in keys] == [right[k] for k in keys]


# refusals and warnings


def refused(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    assert train("x", *settings, *TINY) == 2
    return capsys.readouterr().err


def test_no_pair_in_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.jsonl").write_text("".join(json.dumps({"prompt": f"{i}?", "answer": str(i)}) + "\n" for i in range(20)))
    said = refused(capsys, "method=dpo", "task=./one.jsonl")
    assert "pair_up in credit requires pairs: no task has two recorded answers of different reward" in said
    assert "method.rollout=group" in said


def test_one_sample_is_no_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("x", "method=dpo", *TINY, "samples=1") == 2
    assert "samples=1: dpo has pair_up in credit. A pair takes two answers" in capsys.readouterr().err


def test_an_objective_without_a_rule_for_experts(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "method=grpo", "method.rollout=recorded")
    assert "recorded in rollout makes expert tokens, and no objective or penalty has a rule" in said


def test_an_objective_of_pairs_without_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "method=grpo", "method.objective=dpo")
    assert "direct_preference in objective reads win_P, but credit group_normalised writes adv_N" in said


def test_when_nothing_is_accepted_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("x", "method=sft", *TINY, "method.select.accepted.threshold=2") == 0
    assert "accepted kept no episode of the last three steps, so nothing was learned" in capsys.readouterr().out


def test_equal_rewards_are_no_warning_where_nothing_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("x", "method=sft", *TINY) == 0
    assert "warning" not in capsys.readouterr().out


# the win rate itself


def found(*scores: float | None, prompts: int = 0) -> Any:
    """An evaluation with these task scores; None: not judged."""
    rows = [
        Episode(i, "t", f"p{i % (prompts or len(scores))}", [], [], {} if s is None else {"task": s})
        for i, s in enumerate(scores)
    ]
    return SimpleNamespace(episodes=rows)


def test_win_rate_by_hand() -> None:
    before = {"0": 0.0, "1": 0.5, "2": 1.0, "3": 0.2}
    won = win_rate(before, found(1.0, 0.5, 0.0, 0.3))
    assert won is not None and won.mean == (1 + 0.5 + 0 + 1) / 4 and won.low < won.mean < won.high


def test_the_start_against_itself_is_one_half() -> None:
    won = win_rate({"0": 0.3, "1": 1.0}, found(0.3, 1.0))
    assert won is not None and won.mean == 0.5


def test_what_was_not_judged_is_in_no_win_rate() -> None:
    won = win_rate({"0": 0.0, "2": 0.0}, found(1.0, 1.0, None))
    assert won is not None and (won.mean, won.n) == (1.0, 1)
    assert win_rate({}, found(1.0)) is None


def test_several_answers_of_a_prompt_are_one_unit() -> None:
    won = win_rate({str(i): 0.0 for i in range(4)}, found(1.0, 0.0, 1.0, 0.0, prompts=2))
    assert won is not None and (won.mean, won.n) == (0.75, 2)


def test_words() -> None:
    assert win_words({}) == []
    said = {"win_rate": 0.75, "win_rate_low": 0.7, "win_rate_high": 0.8}
    assert win_words(said) == ["win rate against the start 0.750 (0.700 to 0.800)"]
    assert win_words(said | {"win_rate_low": math.nan, "win_rate_high": math.nan})[0].endswith("start 0.750")
    more = said | {"preferred_before": 0.5, "preferred_after": 0.9}
    assert win_words(more)[0].endswith("held-out pairs preferred 0.500 → 0.900")
