"""reasoning-gym: every task loads, its own scorer takes its own answer, and an item is the same everywhere."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from gruppo.tasks import Task, gym, load_task
from gruppo.tasks.base import HELD_OUT
from gruppo.tasks.gym_worker import REMADE, Score, Source, own_answer
from gruppo.tasks.judge import Judge
from gruppo.tasks.load import worded
from gruppo.tasks.numbering import hash64

pytest.importorskip("reasoning_gym")
from reasoning_gym.factory import DATASETS

ALL = sorted(set(DATASETS) - {"composite"})
FAST = [
    "chain_sum",
    "leg_counting",
    "graph_color",
    "prime_factorization",
    "acre",
    "survo",
    "word_ladder",
    "ransom_note",
]
MANY_ANSWERS = {"boxnet", "rush_hour"}  # the library names no right answer
SLOW = {"knight_swap", "futoshiki", "sokoban", "zebra_puzzles", "puzzle24", "intermediate_integration"}
MIX = {"datasets": [{"name": "chain_sum"}, {"name": "leg_counting", "weight": 2.0}]}


def options(name: str) -> dict[str, Any]:
    return MIX if name == "composite" else {}


def check_task(name: str) -> None:
    """The item's own answer scores 1; garbage scores less and is never a failure."""
    source = Source(name, (), options(name))
    score = Score(name, [-1], options(name))
    entries = [source.item(-1, hash64("test", name, i)) for i in range(2 if name in SLOW else 4)]
    assert len({e["question"] for e in entries}) > 1
    for entry in entries:
        answer = own_answer(entry)
        task = Task("t", entry["question"], answer, 1, name, meta={"entry": entry, "gym_level": -1})
        if name in MANY_ANSWERS:
            assert answer == ""
        else:
            assert score(task, answer) == 1.0
            assert score(task, f"I think <answer>\n{answer}\n</answer>") == pytest.approx(1.0, abs=0.1)
        for garbage in ("no idea", "", "0", "[[", "{}", "-1,", "\u00e9\U0001f600", "x" * 500):
            assert 0 <= score(task, garbage) <= 1


@pytest.mark.parametrize("name", [*FAST, "composite"])
def test_own_answer_is_right(name: str) -> None:
    check_task(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in ALL if n not in FAST])
def test_own_answer_is_right_everywhere(name: str) -> None:
    check_task(name)


def test_there_are_about_a_hundred() -> None:
    assert len(ALL) >= 100


DIGESTS = """
import hashlib, json, sys
from gruppo.tasks.gym_worker import Source
from gruppo.tasks.numbering import hash64
for name in sys.argv[2].split(","):
    options = json.loads(sys.argv[1]) if name == "composite" else {}
    source = Source(name, (), options)
    order = [0, 1, 2] if len(sys.argv) < 4 else [2, 0, 1, 0]
    found = {i: source.item(-1, hash64("test", name, i)) for i in order}
    text = json.dumps([[found[i]["question"], str(found[i]["answer"])] for i in range(3)])
    print("digest", name, hashlib.sha256(text.encode()).hexdigest()[:16], flush=True)
"""


def digests(names: list[str], *more: str) -> dict[str, str]:
    """Items as another process draws them, in another order: what was drawn before must not matter."""
    env = {"PYTHONHASHSEED": "0", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", DIGESTS, json.dumps(MIX), ",".join(names), *more]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1200)
    assert run.returncode == 0, run.stderr[-2000:]
    lines = [line.split() for line in run.stdout.splitlines() if "digest " in line]
    return {line[-2]: line[-1] for line in lines}


def test_items_are_the_same_in_every_process() -> None:
    names = [*FAST, "composite", "list_functions", "isomorphic_strings"]
    one, two = digests(names), digests(names, "shuffled")
    assert len(one) == len(names) and one == two


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_items_are_the_same_in_every_process_everywhere() -> None:
    names = [n for n in ALL if n not in SLOW] + sorted(SLOW)
    one, two = digests(names), digests(names, "shuffled")
    assert len(one) == len(names)
    assert [n for n in names if one[n] != two[n]] == []


@pytest.fixture(scope="module")
def items() -> gym.Items:
    return gym.Items("chain_sum", (0, 1), {"max_terms": 2})


def test_splits_are_disjoint_for_every_seed(items: gym.Items) -> None:
    held = gym.split(items, "held_out", 0, 60)
    asked = {t.prompt for t in held}
    assert all(hash64("split", p) % HELD_OUT == 0 for p in asked)
    firsts = []
    for seed in (0, 1):
        train = gym.split(items, "train", seed, 150)
        assert not asked & {t.prompt for t in train}
        firsts.append([t.uid for t in train[:20]])
        again = gym.split(items, "train", seed, 20_000)
        assert [again[i].uid for i in reversed(range(20))] == firsts[-1][::-1]
    assert firsts[0] != firsts[1]


def test_a_set_with_levels_options_tags_and_words() -> None:
    tasks = load_task(
        "gym:chain_sum", level="0-1", max_terms=2, args={"extract": "tags"}, template="{prompt} Tags!", system="Think."
    )
    assert [t.level for t in tasks.train[:4]] == [0, 1, 0, 1] and tasks.levels == (0, 1)
    assert {t.meta["entry"]["metadata"]["num_terms"] for t in tasks.train[:20]} == {2}
    assert len(tasks.train) == 20_000 and tasks.train[-1] == tasks.train[19_999]
    task = tasks.train[0]
    assert task.prompt.endswith(" Tags!") and task.system == "Think."
    with pytest.raises(IndexError, match="there are 20000 tasks"):
        tasks.train[20_000]
    with Judge(tasks.scorer) as judge:
        rows = [(t, f"<answer>{t.answer}</answer>") for t in tasks.train[:6]] + [(task, task.answer)]
        assert [v.components.get("task") for v in asyncio.run(judge.score(rows))] == [1.0] * 6 + [0.0]
    with pytest.raises(ValueError, match="names the field 'nothing'"):
        worded(tasks.train, "{nothing}", "")[0]


def test_a_broken_scorer_is_an_error_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    score = Score("chain_sum", [-1], {})
    entry = score.source.item(-1, 5)
    task = Task("t", "", entry["answer"], 1, "x", meta={"entry": entry, "gym_level": -1})

    def broken(answer: str, entry: object) -> float:
        raise RuntimeError("no such table")

    monkeypatch.setattr(score.source.sets[-1], "score_answer", broken)
    with pytest.raises(RuntimeError, match="no such table"):
        score(task, "7")


def test_scores_between_are_kept() -> None:
    score = Score("countdown", [-1], {"max_numbers": 4, "min_numbers": 3})
    entry = score.source.item(-1, 5)
    task = Task("t", "", entry["answer"], 1, "x", meta={"entry": entry, "gym_level": -1})
    assert 0 < score(task, "1+1") < 1


@pytest.mark.parametrize(
    ("name", "levels", "given", "said"),
    [
        ("cuntdown", (), {}, ("no such task", "Did you mean 'countdown'?")),
        ("", (), {}, ("no such task",)),
        ("countdown", (), {"max_number": 5}, ("task.options.max_number", "Did you mean 'max_numbers'?")),
        ("countdown", (), {"min_numbers": 9}, ("cannot be made with min_numbers=9", "max_numbers must be >=")),
        ("countdown", (77,), {}, ("task.level=77", "levels are 0 to 4")),
        ("acre", (1,), {}, ("has no levels", "leave out task.level=1")),
        ("composite", (), {}, ("at least one dataset",)),
    ],
)
def test_what_the_library_does_not_have(
    name: str, levels: tuple[int, ...], given: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as caught:
        Source(name, levels, given)
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "gym:cuntdown"}, "Did you mean 'countdown'"),  # also from the other process
        ({"name": "gym:countdown", "options": {"seed": 3}}, "Use task.seed"),
        ({"name": "gym:countdown", "options": {"size": 3}}, "Use task.train_size"),
        ({"name": "gym:countdown", "prompt": "question"}, "has no option prompt"),
        ({"name": "gym:countdown", "level": "x"}, "not a level"),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_task(**settings)


def test_a_task_with_few_questions_says_so(items: gym.Items, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym.Items, "item", lambda self, level, key: {"question": "q", "answer": "a", "metadata": {}})
    with pytest.raises(ValueError, match="too few different questions"):
        [gym.split(items, split, 0, 9)[0] for split in ("train", "held_out")]


def test_a_generator_that_hangs_or_dies_says_so(items: gym.Items, monkeypatch: pytest.MonkeyPatch) -> None:
    other = gym.Items("chain_sum", (), {})
    monkeypatch.setattr(gym, "ITEM_SECONDS", 0.0001)
    with pytest.raises(ValueError, match=r"took longer than 0.0001 s.*task.options"):
        for key in range(1000):
            other.item(-1, key)
    with pytest.raises(ValueError, match="has ended"):
        other.item(-1, 1)


def test_remade_tasks_exist() -> None:
    assert set(REMADE) <= set(DATASETS)
