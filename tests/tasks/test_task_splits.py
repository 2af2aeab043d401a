"""Splits: disjoint, deterministic, without repeats, in the ranges of their levels."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.tasks import BUILT_IN, Task, TaskSet, family, load_task
from gruppo.tasks.base import HELD_OUT, Family, Tasks
from gruppo.tasks.numbering import Shuffle, arrange, hash64, multiset, multisets

LEVELLED = (*BUILT_IN, "knapsack", "longchain")
CELLS = [(name, level) for name in LEVELLED for level in family(name).levels]
cells = st.sampled_from(CELLS)
seeds = st.integers(0, 2**40)


def canonical(task: Task) -> object:
    """What makes a problem the same problem, from its prompt alone and not from the code under test."""
    prompt = task.prompt
    if task.source == "addition":
        return "addition", *sorted(map(int, prompt.rstrip("=").split("+")))
    head, _, rest = prompt.rstrip(":").partition(" from " if task.source in ("countdown", "knapsack") else " ")
    return task.source, head, *sorted(map(int, rest.split()))


def some(split: Tasks, n: int = 120) -> list[Task]:
    step = max(1, len(split) // n)
    return [split[i] for i in range(0, len(split), step)]


# ---- numbering -----------------------------------------------------------------------------------


@given(st.integers(1, 300), seeds)
def test_shuffle_is_a_permutation_and_back_undoes_it(size: int, key: int) -> None:
    shuffle = Shuffle(size, key)
    image = [shuffle(i) for i in range(size)]
    assert sorted(image) == list(range(size))
    assert [shuffle.back(j) for j in image] == list(range(size))


@given(st.integers(2, 10**12), seeds, st.data())
def test_shuffle_of_large_ranges(size: int, key: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, size - 1))
    shuffle = Shuffle(size, key)
    assert 0 <= shuffle(i) < size
    assert shuffle.back(shuffle(i)) == i


@pytest.mark.parametrize(("values", "size"), [(1, 3), (9, 3), (5, 4), (30, 2)])
def test_multiset_numbers_each_multiset_once(values: int, size: int) -> None:
    rows = [tuple(multiset(r, size)) for r in range(multisets(values, size))]
    assert len(set(rows)) == len(rows)
    assert all(list(row) == sorted(row) and row[0] >= 0 and row[-1] < values for row in rows)


@given(st.lists(st.integers(), max_size=8), st.integers(0, 2**60))
def test_arrange_only_reorders(items: list[int], number: int) -> None:
    assert sorted(arrange(items, number)) == sorted(items)


def test_arrange_reaches_every_order() -> None:
    assert len({tuple(arrange("abcd", n)) for n in range(24)}) == 24


def test_hash_is_that_of_keyed_randomness() -> None:
    """Frozen in gruppo.data.keyed too: splits must never move."""
    keyed = pytest.importorskip("gruppo.data.keyed")
    for parts in (("a", 3), (0,), ("split", "addition", 2, 2**63 + 5)):
        assert hash64(*parts) == keyed.key_hash(*parts) % 2**64


# ---- splits --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(cells, seeds, seeds, st.data())
def test_no_held_out_problem_is_in_train_whatever_the_seeds(cell, one: int, two: int, data) -> None:
    name, level = cell
    train = load_task(name, level=level, seed=one).train
    held = load_task(name, level=level, seed=two).held_out
    i = data.draw(st.integers(0, len(train) - 1))
    assert canonical(train[i]) not in {canonical(t) for t in some(held, 60)}


@pytest.mark.parametrize(("name", "level"), [c for c in CELLS if family(c[0]).count(c[1]) <= 7_000])
def test_small_levels_are_divided_completely(name: str, level: int) -> None:
    tasks = load_task(name, level=level, train_size=10**6, held_out_size=10**6)
    train, held = ({canonical(t) for t in split} for split in (tasks.train, tasks.held_out))
    assert not train & held
    assert len(train) == len(tasks.train)
    assert len(held) == len(tasks.held_out) == family(name).count(level) // HELD_OUT
    assert len(train) + len(held) == family(name).count(level)


@pytest.mark.parametrize("name", LEVELLED)
def test_splits_are_disjoint_across_levels(name: str) -> None:
    held, train = set(), set()
    for level in family(name).levels:
        tasks = load_task(name, level=level)
        held |= {canonical(t) for t in tasks.held_out}
        train |= {canonical(t) for t in some(tasks.train, 2000)}
    assert not held & train


@pytest.mark.parametrize(("name", "level"), CELLS)
def test_rule_and_split_agree(name: str, level: int) -> None:
    kind = family(name)
    for split in ("train", "held_out"):
        for i in range(0, min(60, kind.size(level, split))):
            assert kind.held_out(level, kind.rank(level, split, 7, i)) == (split == "held_out")


@settings(deadline=None, max_examples=60)
@given(cells, seeds, st.data())
def test_items_are_pure_functions_of_their_key(cell, seed: int, data: st.DataObject) -> None:
    name, level = cell
    split = data.draw(st.sampled_from(["train", "held_out"]))
    one = getattr(load_task(name, level=level, seed=seed), split)
    i = data.draw(st.integers(0, len(one) - 1))
    first = one[i]
    again = getattr(load_task(name, level=level, seed=seed), split)
    _ = again[0], again[len(again) - 1]  # the order of access does not matter
    assert again[i] == first


def test_items_never_change() -> None:
    """Frozen: accuracy on held-out problems can be compared between versions only if these stay."""
    found = [load_task(n, seed=3).held_out[5].prompt for n in LEVELLED] + [load_task("addition").train[0].uid]
    assert found[:4] == ["23+51=", "sum 9 9 9 8 3:", "3 from 11 8:", "sort 22 73 96 69:"]
    assert found[4:] == ["5 from 5 2 1 5 2:", "sum 8 1 1 2 8 9 2 7 9 1 5 7:", "addition/2/58+97"]


@pytest.mark.parametrize(("name", "level"), CELLS)
def test_no_problem_comes_twice(name: str, level: int) -> None:
    tasks = load_task(name, level=level, train_size=1500, held_out_size=1500)
    for split in (tasks.train, tasks.held_out):
        assert len({t.uid for t in split}) == len({canonical(t) for t in split}) == len(split)


def test_uid_belongs_to_the_problem_not_to_the_seed() -> None:
    uids = {}
    for seed in range(4):
        for task in load_task("addition", level=1, seed=seed).train:
            assert uids.setdefault(task.uid, canonical(task)) == canonical(task)
    assert len(uids) == 44


def test_seeds_change_order_and_writing() -> None:
    one, two = (load_task("sorting", seed=s, train_size=50).train for s in (0, 1))
    assert [t.uid for t in one] != [t.uid for t in two]
    prompts = {load_task("addition", level=1, seed=s).train[i].prompt for s in range(6) for i in range(44)}
    assert {"1+2=", "2+1="} <= prompts or {"3+4=", "4+3="} <= prompts


# ---- levels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_addition_levels_are_digits(level: int) -> None:
    for task in some(load_task("addition", level=level).train):
        assert all(len(str(task.meta[k])) == level for k in "ab")
        assert task.level == level


@pytest.mark.parametrize(("name", "lengths"), [("sorting", (3, 4, 6, 8)), ("chain", (3, 5, 7, 9))])
def test_levels_are_lengths(name: str, lengths: tuple[int, ...]) -> None:
    least, most = (10, 99) if name == "sorting" else (1, 9)
    for level, length in enumerate(lengths, 1):
        for task in some(load_task(name, level=level).train):
            assert len(task.meta["numbers"]) == length
            assert all(least <= n <= most for n in task.meta["numbers"])


@pytest.mark.parametrize(("level", "length", "largest"), [(1, 2, 30), (2, 3, 12), (3, 4, 9)])
def test_countdown_levels(level: int, length: int, largest: int) -> None:
    for task in some(load_task("countdown", level=level).train):
        assert len(task.meta["numbers"]) == length
        assert all(1 <= n <= largest for n in task.meta["numbers"])
        assert 1 <= task.meta["target"] <= 100


@pytest.mark.parametrize("name", LEVELLED)
def test_prompts_and_answers_fit_a_small_context(name: str) -> None:
    room = 64 if name != "longchain" else 255  # that of the shipped policy, without its first token
    for level in family(name).levels:
        tasks = load_task(name, level=level)
        for task in some(tasks.train):
            assert (task.prompt + task.answer + task.solution).replace("\n", "").isascii()
            assert len(task.prompt) + tasks.max_tokens <= room
            assert len(task.answer) + 1 <= tasks.max_tokens


@pytest.mark.parametrize("level", ["1-3", " 1 - 3 "])
def test_mixture_takes_levels_in_turn(level: str) -> None:
    tasks = load_task("sorting", level=level)
    assert tasks.levels == (1, 2, 3)
    assert [t.level for t in tasks.train[:7]] == [1, 2, 3, 1, 2, 3, 1]
    assert tasks.max_tokens == family("sorting").max_tokens[3]
    alone = load_task("sorting", level=2).train
    assert [t.uid for t in tasks.train[1:9:3]] == [t.uid for t in alone[:3]]


def test_mixture_goes_on_without_a_level_that_has_run_out() -> None:
    train = load_task("addition", level="1-3").train
    levels = [t.level for t in train[:200]]
    assert levels.count(1) == 44
    assert set(levels[132:]) == {2, 3}
    assert len({t.uid for t in train[:2000]}) == 2000
    everything = load_task("chain", level="1-2", train_size=10**6).train
    assert len(everything) == len({t.uid for t in everything}) == 132 + 1030


def test_sequences_behave_as_sequences() -> None:
    train = load_task("chain", level=1).train
    assert train[-1] == train[len(train) - 1]
    assert list(train[2:5]) == [train[2], train[3], train[4]]
    assert sum(1 for _ in train) == len(train)
    with pytest.raises(IndexError, match="there are 132 tasks"):
        train[132]


@pytest.mark.parametrize("level", ["x", "1-", "-2", "", "1-x"])
def test_unreadable_level(level: str) -> None:
    with pytest.raises(ValueError, match=r"not a level.*Write level=2"):
        load_task("addition", level=level)


@pytest.mark.parametrize("level", [0, 5, "3-9", "3-1"])
def test_level_out_of_range(level) -> None:
    with pytest.raises(ValueError, match="levels 1 to 4"):
        load_task("addition", level=level)


# ---- the registry and own tasks------------------------------------------------------------------


def test_unknown_task_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no such task.*Did you mean 'countdown'\?.*Built in: addition"):
        load_task("cuntdown")


def test_sizes_and_unknown_options() -> None:
    assert len(load_task("addition", train_size=7, held_out_size=3).held_out) == 3
    with pytest.raises(ValueError, match="train_size=0"):
        load_task("addition", train_size=0)
    with pytest.raises(ValueError, match="no option colour"):
        load_task("addition", colour="red")


OWN = """
from gruppo.tasks import Task, TaskSet

def make(level=1, n=3, **rest):
    def row(i):
        return Task(uid=f"own/{i}", prompt=f"{i}?", answer=str(i), level=level, source="own")
    return TaskSet("own", [row(i) for i in range(n)], [row(i + n) for i in range(n)], "./own.py:reward", 4)

def reward(task, text):
    return float(text == task.answer)

def odd():
    return 3
"""


def test_own_task_from_a_file(tmp_path, monkeypatch) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    tasks = load_task("./own.py:make", level=2, n=5)
    assert (len(tasks.train), tasks.train[0].level, tasks.name) == (5, 2, "own")
    assert load_task("./own.py:make").train[0].level == 1
    assert load_task("./own.py:make", scorer="./own.py:reward").scorer == "./own.py:reward"
    with pytest.raises(ValueError, match="gave int and not a TaskSet"):
        load_task("./own.py:odd")
    with pytest.raises(ValueError, match="is no import path"):
        load_task("addition", scorer="mine")


def test_own_family_from_a_file(tmp_path) -> None:
    (tmp_path / "fam.py").write_text("from gruppo.tasks.addition import FAMILY\n")
    assert load_task(f"{tmp_path}/fam.py:FAMILY", level=1).train[0].level == 1


def test_own_lists_are_checked() -> None:
    one = Task("a", "p", "a", 1, "own")
    with pytest.raises(ValueError, match="in train and again in held_out"):
        TaskSet("own", [one], [one], "m:f", 4)
    with pytest.raises(ValueError, match="train is empty"):
        TaskSet("own", [], [one], "m:f", 4)
    with pytest.raises(ValueError, match="max_tokens=0"):
        TaskSet("own", [one], [], "m:f", 0)
    assert hash(one) == hash(Task("a", "p", "a", 1, "own", meta={"x": []}))


@pytest.mark.parametrize("name", BUILT_IN)
def test_families_are_complete(name: str) -> None:
    kind = family(name)
    assert isinstance(kind, Family)
    assert kind.name == name
    assert kind.default in kind.levels
    assert kind.levels[0] == 1
    assert all(b - a == 1 for a, b in pairwise(kind.levels))
