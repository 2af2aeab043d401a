"""What a run stores for people: prompt, reference, answer, reward, advantage, status; and samples on the screen."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from train_runs import gruppo, train

from gruppo.data import Episode, Growing, pack, single_turn
from gruppo.tasks import TaskConfig
from gruppo.tasks.load import load
from gruppo.train.episodes import Filter, advantages, beside, by_reward, episode_rows, export, in_words, row_of
from gruppo.train.folder import RunFolder
from gruppo.train.progress import Display, change_words, returns_of
from gruppo.train.samples import Samples, sample
from gruppo.train.summary import seat_words


def stored(*settings: str) -> list[dict[str, Any]]:
    assert train("a", "steps=2", "save.episodes_every=1", "eval.every=0", *settings) == 0
    return episode_rows("runs/a", [1, 2])


def test_a_row_says_what_was_asked_written_and_got() -> None:
    rows = stored("method=grpo")
    assert [r["step"] for r in rows] == [1] * 16 + [2] * 16
    assert episode_rows("runs/a") == [r for r in rows if r["step"] == 2]
    tasks = {t.uid: t for t in load(TaskConfig()).train}
    for r in rows:
        task = tasks[r["task"]]
        assert (r["prompt"], r["reference"]) == (task.prompt, task.answer)
        assert r["reward"] == r["rewards"]["task"] == float(r["answer"] == task.answer)
        assert r["tokens"] > 0 and r["status"] in ("ok", "truncated") and r["source"] == "policy"
    accuracy = [json.loads(line)["accuracy"] for line in Path("runs/a/metrics.jsonl").read_text().splitlines()[1:]]
    assert [sum(r["reward"] for r in rows if r["step"] == s) / 16 for s in (1, 2)] == pytest.approx(accuracy)


def test_the_advantage_is_that_of_the_step() -> None:
    """GRPO's is (r - mean) / std of the group: it sums to 0, and follows the reward."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for r in stored("method=grpo"):
        groups.setdefault((r["step"], r["group"]), []).append(r)
    seen = 0
    for rows in groups.values():
        rewards = torch.tensor([r["reward"] for r in rows])
        got = torch.tensor([r["advantage"] for r in rows])
        if rewards.std() == 0:
            assert got.abs().max() == 0
        else:
            seen += 1
            assert torch.allclose(got, (rewards - rewards.mean()) / rewards.std(), atol=1e-3)
    assert seen


def test_a_method_without_advantages_has_none() -> None:
    assert all(math.isnan(r["advantage"]) and r["prompt"] for r in stored("method=dpo", "task=preference"))


def test_only_learned_tokens_count() -> None:
    def answer(uid: int, **fields: Any) -> Any:
        ids = torch.arange(3).numpy()
        return single_turn(uid, "t", "g", ids[:2], ids, torch.zeros(3).numpy(), 0, reward={"task": 1.0}, **fields)

    batch = pack([answer(1), answer(2), answer(3, replayed=True)])
    adv, keep = torch.tensor([1.0, 2, 6, 4, 4, 4, 9, 9, 9]), torch.tensor([1, 1, 0, 0, 0, 0, 1, 1, 1], dtype=torch.bool)
    assert advantages(batch.with_columns(adv_N=adv, keep_N=keep)) == {1: 1.5}  # nothing of 2 is learned, 3 is not new
    assert advantages(None) == advantages(batch) == {}
    task = SimpleNamespace(prompt="p", answer="", solution="s", messages=[{"role": "user", "content": "p"}])
    columns = beside([answer(1), answer(2)], batch.with_columns(adv_N=adv, keep_N=keep), lambda e: task)
    assert columns["prompt"] == ["p"] * 2 and columns["reference"] == ["s"] * 2
    assert columns["advantage"][0] == 1.5 and math.isnan(columns["advantage"][1])

    def unknown(e: Any) -> Any:
        raise ValueError("not in the training set")

    assert beside([answer(1)], None, unknown)["prompt"] == [""]


def row(**fields: Any) -> dict[str, Any]:
    plain = {"step": 1, "task": "t/1", "domain": "t/2", "prompt": "Ask", "reference": "", "answer": "Say", "error": ""}
    plain |= {"reward": 0.5, "rewards": {"task": 0.5}, "advantage": math.nan, "status": "ok", "tokens": 3}
    return plain | fields


def test_filters() -> None:
    none = row(reward=math.nan)
    for wanted, yes, no in (
        (Filter(), row(), None),
        (Filter(status="ok"), row(), row(status="truncated")),
        (Filter(least=0.5), row(), row(reward=0.4)),
        (Filter(least=-9), row(), none),
        (Filter(most=0.5), row(), row(reward=0.6)),
        (Filter(most=9), row(), none),
        (Filter(task="t/1"), row(), row(task="u/1")),
        (Filter(task="t/2"), row(), row(domain="t/3")),
        (Filter(contains="SAY"), row(), row(answer="")),
        (Filter(contains="ask"), row(), row(prompt="")),
    ):
        assert wanted(yes) and (no is None or not wanted(no)), wanted
    with pytest.raises(ValueError, match=r"--status okay: .*nearest: ok"):
        Filter(status="okay")
    rows = [row(reward=r, uid=i) for i, r in enumerate((0.0, 1.0, math.nan, 1.0, -1.0))]
    assert [r["uid"] for r in by_reward(rows, best=True)] == [1, 3, 0, 4]
    assert [r["uid"] for r in by_reward(rows, best=False)] == [4, 0, 1, 3]


def test_in_words_fits_the_width_and_no_answer_moves_the_cursor() -> None:
    long = row(prompt="x y " * 500, answer="begin " + "z " * 500 + "end\x1b[2J", advantage=-0.5)
    for width in (40, 80, 200):
        said = in_words(long, width)
        assert all(len(line) <= max(width, 80) for line in said.splitlines()) and "\x1b" not in said
        assert "advantage -0.5" in said and "begin" in said and "end" in said and len(said.splitlines()) == 3
    whole = in_words(row(answer="one\ntwo", reference="r", status="truncated", rewards={"task": 0.5, "short": 0.25}))
    assert "one\n             two" in whole and "cut off" in whole and "task 0.5, short 0.25" in whole
    assert "reward none" in in_words(row(reward=math.nan))


def game(outcome: float) -> Episode:
    made = Growing(int(outcome) + 5, "kuhn", "g")
    for seat, paid in (("first", outcome), ("second", -outcome)):
        made.begin(torch.arange(2).numpy())
        made.act(torch.arange(2).numpy(), torch.zeros(2).numpy(), 0, agent=seat, reward={"task": paid})
    return made.finish()


def test_a_game_is_shown_by_its_seats(tmp_path: Path) -> None:
    """Law: what is shown is `returns`, that of the data; the total of a zero-sum game is 0, whatever happened."""
    rows = [row_of(game(x), 3, "p", "r", 0.0) for x in (1.0, -2.0, 0.0)]
    assert [r["returns"] for r in rows] == [game(x).returns for x in (1.0, -2.0, 0.0)]
    assert "return first -2, second 2" in in_words(rows[1]) and "reward" not in in_words(rows[1])
    assert (
        [r["uid"] for r in by_reward(rows, best=True)] == [3, 6, 5] == [r["uid"] for r in by_reward(rows, best=False)]
    )
    assert [Filter(least=1.5)(r) for r in rows] == [False, True, False]
    assert [Filter(most=-0.5)(r) for r in rows] == [True, True, False]
    export(rows, tmp_path / "rows.parquet")
    found = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [(r["return/first"], r["return/second"]) for r in found] == [(1.0, -1.0), (-2.0, 2.0), (0.0, 0.0)]
    alone = row_of(single_turn(1, "t", "g", *[torch.arange(2).numpy()] * 2, torch.zeros(2).numpy(), 0), 3, "p", "r", 0)
    assert alone["returns"] == {} and "reward none" in in_words(alone)


def test_the_line_of_a_game_has_the_returns_of_its_seats(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"reward": 0.0, "return/first": 0.25, "return/second": -0.25, "accuracy": 0.0, "kl_ref": 1.0}
    Display("run", 2).update(2, row)
    said = capsys.readouterr().out
    assert "return/first 0.25  return/second -0.25  left" in said
    Display("run", 2).update(2, {"reward": 0.5})
    assert "reward 0.5 " in capsys.readouterr().out
    display = Display("run", 2)
    display.update(2, row | {"held_out": 0.0, "held_out/return/first": 0.25})
    assert "held_out/return/first 0.25" in capsys.readouterr().out
    display.update(2, {"reward": -2.0, "held_out": -1.5})  # only one seat acts
    assert "reward -2  held_out -1.5  left" in capsys.readouterr().out.replace("accuracy 0  ", "")


def test_the_last_words_on_a_game_are_of_its_seats(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = [
        {"step": i, "held_out": 0.0, "held_out/return/first": x, "held_out/return/second": -x}
        for i, x in ((1, 1), (2, 0.5))
    ]
    folder["metrics.jsonl"].write_text("".join(json.dumps(r) + "\n" for r in [*rows, {"step": 3, "reward": 0.0}]))
    assert seat_words(folder) == "held-out return first 1.000 → 0.500, second -1.000 → -0.500"
    folder["metrics.jsonl"].write_text('{"step": 1, "held_out": 0.5}\n')
    assert seat_words(folder) == ""


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        ((1.0, -1.0), (0.5, -0.5), "first 1.000 → 0.500, second -1.000 → -0.500"),
        ((1.0, -1.0), (0.5, None), "first 1.000 → 0.500, second -1.000 → —"),
        ((1.0, -1.0), (None, None), "first 1.000 → —, second -1.000 → —"),
        ((None, None), (1.0, -1.0), "first — → 1.000, second — → -1.000"),
        ((None, None), (None, None), ""),
        ((1.0, -1.0), None, "first 1.000, second -1.000"),
    ],
)
def test_a_seat_that_does_not_act_after_training_has_no_return_from_before(first: Any, last: Any, words: str) -> None:
    """An evaluation in which one seat alone acts has no returns of seats."""
    rows = [
        {"step": i, "held_out": 0.0}
        | {f"held_out/return/{seat}": r for seat, r in zip(("first", "second"), of, strict=True) if r is not None}
        for i, of in enumerate((first, last))
        if of
    ]
    found = returns_of([*rows, {"step": 3, "reward": 1.0}])
    assert ", ".join(f"{seat} {change_words(of)}" for seat, of in found.items()) == words


def test_an_answer_without_a_verdict_is_not_judged_and_its_error_is_whole() -> None:
    error = "The scorer raised, so the answer has no reward:\n  File reward.py, line 3\n" + "ValueError: " + "x" * 200
    said = in_words(row(reward=math.nan, status="env_error", error=error), 60)
    assert "· not judged\n" in said and "env" not in said and "line 3\n" in said and said.endswith("x" * 200)
    assert "not judged in time" in in_words(row(reward=math.nan, status="timeout"))


def test_samples_are_shown_at_the_first_step_and_then_by_the_clock(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("gruppo.train.samples.time.monotonic", lambda: now[0])
    monkeypatch.setattr("gruppo.train.samples.sample", lambda trainer, step: f"sample of {step.done}")
    said: list[str] = []
    trainer: Any = SimpleNamespace(display=SimpleNamespace(quiet=False, say=said.append))
    samples = Samples(30)
    for step, at in enumerate((1.0, 2.0, 30.9, 31.0, 40.0, 61.0), 1):
        now[0] = at
        samples.step(trainer, SimpleNamespace(done=step))  # type: ignore[arg-type]
    assert said == ["sample of 1", "sample of 4", "sample of 6"]
    trainer.display.quiet = True
    Samples(30).step(trainer, SimpleNamespace(done=7))  # type: ignore[arg-type]
    trainer.display.quiet = False
    Samples(0).step(trainer, SimpleNamespace(done=8))  # type: ignore[arg-type]
    assert len(said) == 3


def test_a_run_shows_a_sample_unless_it_is_told_not_to(capsys: pytest.CaptureFixture[str]) -> None:
    for name, settings, times in (("a", (), 1), ("b", ("show=0",), 0)):
        assert train(name, "steps=2", "eval.every=0", *settings) == 0
        out = capsys.readouterr().out
        assert out.count("\n  prompt ") == out.count("\n  reference ") == times
    assert gruppo("train", "--resume", "runs/a", "show=0") == 0  # no change of the run
    assert train("c", "steps=1", "eval.every=0", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["steps"] == 1


def test_nothing_drawn_nothing_shown() -> None:
    step = SimpleNamespace(record=SimpleNamespace(drawn=[]))
    assert sample(None, step) == ""  # type: ignore[arg-type]


def test_a_dialogue_is_shown_with_its_roles() -> None:
    from gruppo.tasks import Task
    from gruppo.train.episodes import prompt_of

    assert prompt_of(Task("u", "Hi", "", 1, "s")) == "Hi"
    assert prompt_of(Task("u", "Hi", "", 1, "s", system="Be brief")) == "system: Be brief\nuser: Hi"
    assert (
        row_of(single_turn(1, "t", "g", *[torch.arange(2).numpy()] * 2, torch.zeros(2).numpy(), 0), 3, "p", "r", 0)[
            "step"
        ]
        == 3
    )


def test_the_time_left_counts_from_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gruppo.train.progress.time.perf_counter", lambda: now[0])
    display = Display("", steps=10, start=4)
    now[0] = 1000.0  # loading, and the evaluation before the first step
    display.start()
    display.row = {"reward": 0.5, "truncated": 0.25}
    now[0] = 1006.0
    assert display._line(6) == "step 6/10  reward 0.5  truncated 0.25  left 12 s"
