"""Tasks of several distributions: parts take turns, hold out the same problems, and have their own scorers."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from gruppo.stages import Context
from gruppo.stages.curriculum import asked
from gruppo.tasks import NAMES, Task, family, load_task
from gruppo.tasks.base import Turns, domains_of
from gruppo.tasks.judge import Judge
from gruppo.tasks.load import short_name


def read(tasks: Sequence[Task]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for i in range(len(tasks)):
        out.setdefault(tasks[i].domain, []).append(i)
    return out


@pytest.mark.parametrize("sizes", [(3,), (1, 4, 2), (0, 2), (2, 2), (5, 0, 5, 1)])
def test_turns_are_taken_until_each_has_run_out(sizes: tuple[int, ...]) -> None:
    left, wanted = [list(range(n)) for n in sizes], []
    while any(left):
        wanted += [(i, rest.pop(0)) for i, rest in enumerate(left) if rest]
    turns = Turns(sizes)
    assert [turns(i) for i in range(len(turns))] == wanted
    for limit in range(len(wanted) + 1):
        for which in range(len(sizes)):
            assert [*turns.indices(which, limit)] == [i for i, (k, _) in enumerate(wanted[:limit]) if k == which]


@pytest.mark.parametrize(
    "name",
    [*NAMES, "mix:addition@1-2+chain", "mix:addition@1+addition@3+chain+sorting", "mix:3*addition@1-2+2*chain+sorting"],
)
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_domains_by_arithmetic_are_those_that_one_reads(name: str, split: str) -> None:
    for size in (1, 90, 300):
        tasks = getattr(load_task(name, train_size=size, held_out_size=size), split)
        assert {k: [*v] for k, v in domains_of(tasks).items()} == read(tasks)
    assert {k: [*v] for k, v in domains_of(tasks[:]).items()} == read(tasks)  # of a list, by reading


def test_levels_of_one_task_are_domains_too() -> None:
    tasks = load_task("addition", level="1-3", train_size=200).train  # level 1 has 44 problems: it runs out
    assert {k: len(v) for k, v in domains_of(tasks).items()} == {"addition/1": 44, "addition/2": 78, "addition/3": 78}


def test_domains_in_other_words() -> None:
    tasks = load_task("mix:addition+chain", train_size=8, template="Please: {prompt}").train
    assert {k: [*v] for k, v in domains_of(tasks).items()} == read(tasks) and tasks[0].prompt.startswith("Please: ")


def test_parts_take_turns_and_nothing_held_out_is_trained_on() -> None:
    mix = load_task("mix:addition@2+chain+sorting@1", train_size=3000, held_out_size=600)
    assert [t.domain for t in mix.train[:4]] == ["addition/2", "chain/2", "sorting/1", "addition/2"]
    assert len(mix.train) == 3000 and len(mix.held_out) == 600 and mix.train[-1] == mix.train[2999]
    assert len({t.uid for t in mix.train}) == 3000 and not {t.uid for t in mix.train} & {t.uid for t in mix.held_out}
    assert all(family(t.source).max_tokens[t.level] <= mix.max_tokens for t in mix.train[:3]) and mix.levels == (1, 2)
    alone = load_task("chain", train_size=3000)
    assert [t.uid for t in mix.train[1:30:3]] == [t.uid for t in alone.train[:10]]
    with pytest.raises(IndexError, match="there are 3000 tasks"):
        mix.train[3000]


def test_a_part_comes_as_often_as_it_says_and_in_its_own_order() -> None:
    mix, even = (
        load_task(name, train_size=60, held_out_size=60) for name in ("mix:3*addition+chain", "mix:addition+chain")
    )
    assert [t.domain for t in mix.train[:8]] == ["addition/2"] * 3 + ["chain/2"] + ["addition/2"] * 3 + ["chain/2"]
    for source in ("addition", "chain"):
        alone = load_task(source, train_size=60).train
        mine = [t for t in mix.train if t.source == source]
        assert mine == alone[: len(mine)] and len(mine) == {"addition": 45, "chain": 15}[source]
    assert mix.held_out[:] == even.held_out[:], "what is measured does not depend on how often something is trained"
    assert load_task("mix:1*addition+chain", train_size=60).train[:] == even.train[:]


def test_a_part_that_is_too_small_for_its_share_is_told() -> None:
    few = load_task("mix:3*addition@1+chain")
    [said] = few.notes
    assert "addition has 44 problems to train on, so it is 4% of them and not 75%; task.train_size=58" in said
    kept = load_task("mix:3*addition@1+chain", train_size=58)
    assert not kept.notes and {k: len(v) for k, v in domains_of(kept.train).items()} == {
        "addition/1": 44,
        "chain/2": 14,
    }
    assert load_task("mix:3*addition@1+chain", train_size=64).notes and not load_task("mix:addition@1+chain").notes


def test_each_answer_is_judged_by_the_scorer_of_its_task() -> None:
    mix = load_task("mix:addition@1+chain@1+sorting@1", train_size=9)
    with Judge(mix.scorer) as judge:
        right = asyncio.run(judge.score([(t, f"so {t.answer}") for t in mix.train]))  # chain minds the last word only
        said = asyncio.run(judge.answers([[(t, f"so {t.answer}")] for t in mix.train]))
    for task, verdict in zip(mix.train, right, strict=True):
        assert verdict.components == {"task": float(task.source == "chain")}, verdict
    assert said == [[t.answer if t.source == "chain" else f"so {t.answer}"] for t in mix.train]


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("mix:", {}, "has an empty part"),
        ("mix:addition++chain", {}, "has an empty part"),
        ("mix:adition+chain", {}, "Did you mean 'addition'?"),
        ("mix:addition@9+chain", {}, "addition has the levels 1 to 4"),
        ("mix:addition@x", {}, "not a level"),
        ("mix:addition@1-3+chain+addition@2", {}, "has addition@2 twice"),
        ("mix:addition+addition@2", {}, "has addition@2 twice"),
        ("mix:0*addition+chain", {}, "'0' before the * is not how often a part comes. Use a whole number from 1"),
        ("mix:2.5*addition@1+chain", {}, "as in 3*addition"),
        ("mix:addition*3+chain", {}, "'addition' before the * is not how often a part comes"),
        ("mix:*addition", {}, "'' before the * is not how often"),
        ("mix:3*", {}, "has an empty part"),
        ("mix:addition+chain", {"level": 2}, "Write it behind each part"),
        ("mix:addition+chain", {"prompt": "question"}, "no option prompt"),
        ("mixx:addition+chain", {}, "Did you mean 'mix'?"),
    ],
)
def test_what_cannot_be_mixed_is_refused(name: str, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError) as refused:
        load_task(name, **settings)  # type: ignore[arg-type]
    assert says in str(refused.value)


def test_a_mixture_has_a_short_name() -> None:
    assert short_name("mix:addition@1+chain") == "mix"


def test_domains_of_many_tasks_take_milliseconds() -> None:
    tasks = load_task("mix:addition@3-4+chain@4+sorting", train_size=100_000).train
    start = time.process_time()  # of this process alone, however busy the machine is
    found = domains_of(tasks)
    assert time.process_time() - start < 0.5 and sum(map(len, found.values())) == 100_000


def test_a_task_that_comes_twice_has_two_groups_and_two_keys() -> None:
    tasks = load_task("addition", train_size=5).train
    one, other, again, third = asked(Context(samples=3), tasks, [4, 0, 4, 4])
    assert [a.index for a in (one, other, again, third)] == [4, 0, 4, 4] and one.task == again.task
    assert one.group == one.task.uid and len({a.group for a in (one, other, again, third)}) == 4
    assert len({(a.task.uid, a.key) for a in (one, other, again, third)}) == 4 and one.samples == 3
