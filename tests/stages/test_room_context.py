"""What every room is given: keyed draws, schedules, what is not there, and names of a task's group."""

import pytest
from rooms import context, task

from gruppo.data.keyed import uniform
from gruppo.stages import Ask, Context, Memory, Schedule
from gruppo.stages.schedule import at


def test_a_context_as_it_begins() -> None:
    c = Context()
    assert (c.step, c.steps, c.seed, c.round, c.version, c.prompts, c.samples) == (0, 1, 0, 0, 0, 1, 2)
    assert c.memory == {} and c.cast == {} and c.episodes == c.replay == ()


@pytest.mark.parametrize(
    ("step", "steps", "share"), [(0, 10, 0.0), (5, 10, 0.5), (3, 4, 0.75), (2, 0, 2.0), (1, 1, 1.0)]
)
def test_progress(step: int, steps: int, share: float) -> None:
    assert Context(step=step, steps=steps).progress == share


def test_draws_go_by_seed_step_and_key() -> None:
    assert Context(seed=3, step=4).uniform("a", 5) == uniform(3, 4, "a", 5)
    draws = {Context(seed=s, step=t).uniform(k) for s in (0, 1) for t in (0, 1) for k in ("a", "b")}
    assert len(draws) == 8


@pytest.mark.parametrize("name", ["play", "reward", "draw", "read", "fresh"])
def test_what_is_not_there_says_so(name: str) -> None:
    with pytest.raises(ValueError, match=f"ctx.{name} is not available here"):
        getattr(Context(), name)(1)


def test_a_group_is_the_task_unless_it_is_named() -> None:
    assert Ask(task(4), 2).group == "t4" and Ask(task(4), 2, group="g").group == "g"
    assert Ask(task(4), 2).how == {} and Ask(task(4), 2).notes == {} and Ask(task(4), 2).key == ""


def test_memory_is_written_in_observe_only_and_closed_again() -> None:
    memory = Memory()
    with memory.writing():
        memory["a"] = 1
    for write in (lambda: memory.update(a=2), lambda: memory.__setitem__("a", 2), lambda: memory.pop("a")):
        with pytest.raises(ValueError, match="written outside observe"):
            write()
    with pytest.raises(RuntimeError), memory.writing():
        raise RuntimeError
    with pytest.raises(ValueError, match="written outside observe"):
        memory.clear()
    assert memory == {"a": 1}


# schedules

CASES = [
    ("linear(1.0, 0.0, steps=4)", [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
    ("linear(1.0, 0.0, steps=1)", [1.0, 0.0, 0.0]),
    ("linear(1.0, 3.0, steps=0)", [3.0, 3.0]),
    ("cosine(1.0, 0.0, steps=2)", [1.0, 0.5, 0.0, 0.0]),
    ("warmup(2.0, steps=4)", [0.5, 1.0, 1.5, 2.0, 2.0]),
    ("warmup(2.0, steps=1)", [2.0, 2.0]),
    ("warmup(2.0, steps=0)", [2.0, 2.0]),
    ("switch(2, 5.0, 7.0)", [5.0, 5.0, 7.0, 7.0]),
    ("steps({1: 3.0, 3: 4.0})", [3.0, 3.0, 3.0, 4.0, 4.0]),
    ("then({0: linear(0.0, 1.0, steps=2), 2: cosine(3.0, 1.0, steps=2), 5: 7.0})", [0, 0.5, 3, 2, 1, 7, 7]),
    ("then({1: warmup(2.0, steps=2), 3: then({0: 4, 1: switch(1, 5.0, 6.0)})})", [1, 1, 2, 4, 5, 6]),
    ("then({0: memory('x', 2.0)})", [2.0]),
    ("memory('x')", [0.0]),
    ("memory('x', 2.0)", [2.0]),
]


@pytest.mark.parametrize(("text", "values"), CASES)
def test_a_schedule_by_hand(text: str, values: list[float]) -> None:
    assert [at(text, t, {}) for t in range(len(values))] == pytest.approx(values, abs=1e-12)
    assert [context(step=t).at(Schedule(text)) for t in range(len(values))] == pytest.approx(values, abs=1e-12)


def test_a_schedule_of_memory_reads_it() -> None:
    ctx = context()
    with ctx.memory.writing():
        ctx.memory["x"] = 0.5
    assert ctx.at("memory('x', 2.0)") == 0.5


@pytest.mark.parametrize("inner", [text for text, _ in CASES])
def test_a_schedule_inside_another_one_counts_from_its_own_start(inner: str) -> None:
    """Law: from there on it is the inner one, later; before, the one before it. Its extremes are those of both."""
    outer, own = Schedule(f"then({{0: 9.0, 3: {inner}}})"), Schedule(inner)
    assert [at(outer, t, {}) for t in range(9)] == [9.0] * 3 + [at(own, t, {}) for t in range(6)]
    assert outer.extremes() == (9.0, *own.extremes())
    assert at(f"then({{0: {inner}}})", 2, {"x": 3.0}) == at(inner, 2, {"x": 3.0})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("then({0: linar(1.0, 0.0, steps=3)})", "'linar' is no kind of schedule"),
        ("then({0: linear(1.0)})", r"Write linear\(start, end, steps\)\."),
        ("then({0: 1.0, 5: cosine(1.0)})", r"Write cosine\(start, end, steps\)\."),
        ("then({})", r"says nothing about any step.*Write then\(\{0: linear"),
        ("then(1.0)", r"is no schedule.*Write then\(\{0: linear"),
        ("then({0: 'x'})", r"is no schedule.*Write then\(\{0: linear"),
        ("then({'a': 1.0})", r"is no schedule.*Write then\(\{0: linear"),
        ("linear(linear(1.0, 0.0, steps=2), 0.0, steps=2)", r"Write linear\(start, end, steps\)\."),
        ("steps({0: linear(1.0, 0.0, steps=2)})", r"Write steps\(\{0: 1.0, 100: 0.5\}\)"),
    ],
)
def test_what_is_wrong_inside_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Schedule(text)


@pytest.mark.parametrize("text", ["1 + 2", "a.linear(1.0, 0.0, steps=2)", "linear", "3", "linear(1.0"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no schedule, so the field has no value"):
        Schedule(text)


def test_a_refusal_names_the_arguments() -> None:
    with pytest.raises(ValueError, match=r"Write linear\(start, end, steps\)\."):
        Schedule("linear(1.0)")
    with pytest.raises(ValueError, match=r"'linar' is no kind of schedule .nearest: linear"):
        Schedule("linar(1.0, 0.0, steps=3)")
