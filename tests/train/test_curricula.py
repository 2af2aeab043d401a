"""Which tasks next: keyed draws by weight, and the domain and the index of a task on their way to the batch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gruppo.data import name_hash, single_turn
from gruppo.data.store import load_episodes
from gruppo.stages import Ask, Context
from gruppo.stages.curriculum import Uniform, in_turn, weighted
from gruppo.tasks import Task, TaskConfig, load_task
from gruppo.train.config import RunConfig
from gruppo.train.run import Run


def counts(draw: Callable[[Context], Sequence[int]], size: int, times: int = 2000) -> torch.Tensor:
    out = torch.zeros(size, dtype=torch.float64)
    for step in range(times):
        for i in draw(Context(step=step)):
            out[i] += 1
    return out / times


def test_the_first_pick_has_the_chances_of_the_weights() -> None:
    weight = torch.tensor([1.0, 0.0, 3.0, 6.0])
    for replace_ in (True, False):
        seen = counts(lambda ctx, r=replace_: weighted(ctx, weight, 1, "x", replace=r), 4)
        assert seen[1] == 0 and seen.tolist() == pytest.approx([0.1, 0.0, 0.3, 0.6], abs=0.03)


def test_without_replacement_pairs_come_as_if_one_picked_after_the_other() -> None:
    p = [0.1, 0.3, 0.6]
    seen = counts(lambda ctx: weighted(ctx, torch.tensor(p), 2, "x"), 3)
    wanted = [
        p[i] + sum(p[j] * p[i] / (1 - p[j]) for j in range(3) if j != i) for i in range(3)
    ]  # first, or second after j
    assert seen.tolist() == pytest.approx(wanted, abs=0.03)


def test_with_replacement_the_expected_number_is_n_times_the_chance() -> None:
    seen = counts(lambda ctx: weighted(ctx, torch.tensor([2.0, 0.0, 6.0]), 8, "x", replace=True), 3, 1000)
    assert seen.tolist() == pytest.approx([2.0, 0.0, 6.0], abs=0.2)


def test_a_draw_is_a_function_of_seed_step_round_and_key() -> None:
    weight, ctx = torch.rand(500), Context(seed=1, step=2)
    for with_ in (True, False):
        first = weighted(ctx, weight, 20, "a", replace=with_)
        assert first == weighted(Context(seed=1, step=2), weight * 7, 20, "a", replace=with_)
        others = [replace(ctx, seed=2), replace(ctx, step=3), replace(ctx, round=1)]
        assert all(first != weighted(c, weight, 20, "a", replace=with_) for c in others)
        assert first != weighted(ctx, weight, 20, "b", replace=with_)
    assert len(set(weighted(ctx, weight, 400))) == 400


def test_weights_that_are_all_0_count_as_equal_and_too_few_give_fewer() -> None:
    assert sorted(weighted(Context(), torch.zeros(4), 9)) == [0, 1, 2, 3]
    assert set(weighted(Context(), torch.zeros(4), 99, replace=True)) == {0, 1, 2, 3}
    assert sorted(weighted(Context(), torch.tensor([0.0, 1.0, 1e-30, 0.0]), 4)) == [1, 2]


@pytest.mark.parametrize("bad", [-0.5, float("nan"), float("inf")])
def test_what_is_no_chance_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"1 of 3 weights of tasks are .*, the first is .* Give finite"):
        weighted(Context(), torch.tensor([1.0, bad, 1.0]), 1)


def test_a_draw_among_a_hundred_thousand_takes_milliseconds() -> None:
    weight = torch.rand(100_000)
    best = min(_seconds(lambda i=i: weighted(Context(step=i), weight, 512)) for i in range(5))
    assert best < 0.1


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()  # of this process alone, however busy the machine is
    work()
    return time.process_time() - start


def test_uniform_says_the_index_of_every_task() -> None:
    tasks = load_task("addition", train_size=7).train
    for step, round_ in ((0, 0), (3, 0), (1, 2)):
        ctx = Context(step=step, round=round_, prompts=3, seed=4)
        asks = Uniform()(ctx, tasks)
        assert [a.index for a in asks] == in_turn(ctx, 7, 3) and all(tasks[a.index] == a.task for a in asks)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    task = TaskConfig("mix:addition@1+chain", train_size=20)
    made = Run(RunConfig(task=task, model=replace(RunConfig().model, name="tiny-random")), say=lambda _: None)
    yield made
    made.close()


def test_the_task_of_an_episode_of_an_earlier_process_is_found_by_its_index(run: Run) -> None:
    task = run.tasks.train[5]
    e = single_turn(1, task.uid, "g", torch.tensor([1]).numpy(), torch.tensor([2]).numpy(), torch.zeros(1).numpy(), 0)
    assert e.ask is None
    for index in (e.index, -20, 20, 4):  # it does not say; none of the set's, from either end; another task
        e.index = index
        with pytest.raises(ValueError, match=r"not in the training set.*Put the data back"):
            run.walk.task_of(e)
    e.index = 5
    assert run.walk.task_of(e) == task
    e.ask, e.index = Ask(task, 1), 4  # one of this process has its ask, whatever else it says
    assert run.walk.task_of(e) == task


def test_domain_and_index_come_down_to_the_episodes_of_a_run(tmp_path: Path) -> None:
    from gruppo.cli import main

    settings = ["model=tiny-random", "task=mix:addition@1+chain", "prompts=4", "samples=2", "steps=1"]
    settings += ["eval.prompts=4", "save.tensorboard=no", f"save.folder={tmp_path}", "--json"]
    assert main(["train", "method=rloo", *settings]) == 0
    [file] = tmp_path.rglob("episodes*/*.arrow")
    episodes = load_episodes(file)
    tasks: Sequence[Task] = load_task("mix:addition@1+chain").train
    assert len(episodes) == 8
    for e in episodes:
        assert tasks[e.index].uid == e.task and tasks[e.index].domain == e.domain
    assert {e.domain for e in episodes} <= {"addition/1", "chain/2"} and name_hash(episodes[0].domain) != 0


@pytest.mark.parametrize(
    ("method", "size", "warned"), [("hapo_history", 17, 1), ("hapo_history", 16, 0), ("grpo", 17, 0)]
)
def test_a_memory_of_tasks_that_hardly_come_again_is_said(
    method: str, size: int, warned: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gruppo.cli import main

    settings = [f"task.train_size={size}", "prompts=16", "samples=2", "steps=2", "eval.prompts=4"]
    settings += ["model=tiny-random", "save.tensorboard=no", f"save.folder={tmp_path}"]
    assert main(["train", f"method={method}", *settings]) == 0
    said = capsys.readouterr().out
    assert said.count("32 prompts are drawn from 17 tasks: few come twice. Use task.train_size=8") == warned
    assert warned or "few come twice" not in said
