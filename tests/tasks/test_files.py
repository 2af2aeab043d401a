"""JSONL files: rows become tasks, splits that nothing moves, and a sentence for every bad row."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.tasks import Scorer, Task, TaskSet, load_task

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*rows: Any, name: str = "data.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
        return str(path)

    return write


def rows(n: int) -> list[dict[str, Any]]:
    return [{"question": f"{i}+1=", "answer": i + 1, "unit": "m"} for i in range(n)]


def refused(*said: str, **settings: Any) -> None:
    with pytest.raises(ValueError) as caught:
        load_task(**settings)
    for part in said:
        assert part in str(caught.value)


def by_uid(tasks: TaskSet) -> dict[str, Task]:
    return {t.uid: t for t in (*tasks.train, *tasks.held_out)}


# ---- what a row becomes --------------------------------------------------------------------------


def test_a_row(write: Write) -> None:
    tasks = load_task(write(*rows(20)))
    task = next(t for t in tasks.train if t.prompt == "3+1=")
    assert (task.answer, task.solution, task.meta, task.level, task.system) == ("4", "4", {"unit": "m"}, 1, "")
    assert (len(tasks.train), len(tasks.held_out)) == (18, 2)
    assert tasks.scorer == "gruppo.tasks.scorers:Numeric"
    assert tasks.max_tokens == 16
    assert "20 rows; prompt=question, answer=answer" in tasks.notes[0]


def test_named_and_nested_fields(write: Write) -> None:
    row = {"prompt": "no", "q": {"text": "1?"}, "gold": [{"v": "one"}]}
    tasks = load_task(write(row, {**row, "q": {"text": "2?"}}), prompt="q.text", answer="gold.0.v")
    assert {t.prompt for t in by_uid(tasks).values()} == {"1?", "2?"}
    assert tasks.train[0].answer == "one" and tasks.scorer == "gruppo.tasks.scorers:Exact"


@pytest.mark.parametrize(
    ("answer", "short", "solution"),
    [
        ("6*7=42\n#### 42", "42", "6*7=42\n#### 42"),
        (r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}", r"so \boxed{\frac{1}{2}}"),
        ("# Title\n#### Part\ntext", "# Title\n#### Part\ntext", "# Title\n#### Part\ntext"),
        (True, "true", "true"),
        (1.5, "1.5", "1.5"),
    ],
)
def test_short_answers_and_solutions(write: Write, answer: Any, short: str, solution: str) -> None:
    task = load_task(write({"prompt": "a", "answer": answer}, {"prompt": "b", "answer": answer})).train[0]
    assert (task.answer, task.solution) == (short, solution)
    # a worked solution is also a recorded answer to learn from; the scorer says what it is worth
    assert task.meta == ({"answers": [{"text": solution}]} if short != solution else {})


def test_solution_field(write: Write) -> None:
    two = ({"problem": p, "solution": "steps, 3", "answer": "3"} for p in "ab")
    task = load_task(write(*two)).train[0]
    assert (task.answer, task.solution, task.meta["answers"]) == ("3", "steps, 3", [{"text": "steps, 3"}])


def test_template_and_system(write: Write) -> None:
    file = write(*rows(10))
    plain = load_task(file)
    tasks = load_task(file, template="Q: {question} in {unit} {{}} {answer:03d} {prompt!r}", system="Be short.")
    task = next(t for t in tasks.train if t.answer == "4")
    assert (task.prompt, task.system) == ("Q: 3+1= in m {} 004 '3+1='", "Be short.")
    assert {t.answer for t in plain.held_out} == {t.answer for t in tasks.held_out}  # wording moves nothing
    only = load_task(write({"a": 1, "b": 2, "answer": 3}, {"a": 2, "b": 2, "answer": 4}), template="{a}+{b}=")
    assert {t.prompt for t in by_uid(only).values()} == {"1+2=", "2+2="}


def test_messages(write: Write) -> None:
    def talk(last: str) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "yes?"},
            {"role": "user", "content": last},
        ]

    task = load_task(write(*({"prompt": talk(x), "answer": x} for x in "ab"))).train[0]
    assert (task.prompt, task.system) in (("a", "S"), ("b", "S"))
    assert task.meta["messages"] == talk("a")[1:3]
    whole = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    two = load_task(write({"messages": whole}, {"messages": [{"role": "user", "content": "x"}, whole[1]]}))
    assert {(t.prompt, t.answer) for t in by_uid(two).values()} == {("1+1=", "2"), ("x", "2")}
    shared = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    assert load_task(write({"conversations": shared}, {"conversations": whole})).train[0].answer in ("ho", "2")


def test_preferences(write: Write) -> None:
    pairs = [{"prompt": p, "chosen": "good", "rejected": "bad", "id": 7} for p in "ab"]
    tasks = load_task(write(*pairs))
    task = tasks.train[0]
    assert task.meta == {"id": 7, "answers": [{"text": "good", "reward": 1.0}, {"text": "bad", "reward": 0.0}]}
    assert (task.answer, tasks.scorer) == ("good", "gruppo.tasks.scorers:listed")
    named = load_task(
        write({"prompt": "a", "w": "1", "l": "2"}, {"prompt": "b", "w": "1", "l": "2"}), chosen="w", rejected="l"
    )
    assert [a["text"] for a in named.train[0].meta["answers"]] == ["1", "2"]


def test_preferences_as_conversations(write: Write) -> None:
    def talk(ask: str, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]

    pairs = [{"chosen": talk(p, "good"), "rejected": talk(p, "bad")} for p in "ab"]
    task = load_task(write(*pairs)).train[0]
    assert task.prompt in "ab" and [a["text"] for a in task.meta["answers"]] == ["good", "bad"]
    refused("line 1", "do not begin alike", name=write({"chosen": talk("a", "x"), "rejected": talk("b", "y")}))
    refused("no prompt", "task.prompt=FIELD", name=write({"chosen": "x", "rejected": "y"}))
    refused("no prompt", name=write({"chosen": talk("a", "x")[1:], "rejected": talk("a", "y")[1:]}))
    refused(
        "line 1", "does not end with a turn", name=write({"chosen": talk("a", "x")[:1], "rejected": talk("a", "y")})
    )


@pytest.mark.parametrize("as_messages", [False, True])
def test_preferences_with_a_prompt_and_answers_as_turns(write: Write, as_messages: bool) -> None:
    """The explicit form: the prompt in its own field, and only the turn of the assistant on each side."""

    def row(ask: str) -> dict[str, Any]:
        chosen, rejected = ([{"role": "assistant", "content": x}] for x in ("good", "bad"))
        return {
            "prompt": [{"role": "user", "content": ask}] if as_messages else ask,
            "chosen": chosen,
            "rejected": rejected,
        }

    task = load_task(write(row("a"), row("b"))).train[0]
    assert task.prompt in "ab" and [a["text"] for a in task.meta["answers"]] == ["good", "bad"]


def test_what_was_said_before_the_preferred_answer_is_kept(write: Write) -> None:
    """A prompt that repeats one turn of the conversation does not stand for all of it."""
    before = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "well"}]

    def side(ask: str, answer: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": "Be short."}]
        return [*system, *before, {"role": "user", "content": ask}, {"role": "assistant", "content": answer}]

    for prompt in ("first", None):
        rows = [{"chosen": side(ask, "good"), "rejected": side(ask, "bad")} for ask in "ab"]
        task = load_task(write(*({**r, "prompt": prompt or "ab"[i]} for i, r in enumerate(rows)))).train[0]
        assert task.prompt in "ab" and task.system == "Be short." and task.meta["messages"] == before
    other = [{"prompt": f"{ask}, in other words", "chosen": side(ask, "x"), "rejected": side(ask, "y")} for ask in "ab"]
    assert load_task(write(*other)).train[0].prompt.endswith("in other words")


def test_scored_and_labelled_answers(write: Write) -> None:
    scored = [{"text": "x", "reward": 0.5}, {"text": "y", "reward": 0}]
    task = load_task(write({"prompt": "a", "answers": scored}, {"prompt": "b", "answers": scored})).train[0]
    assert task.meta["answers"] == [{"text": "x", "reward": 0.5}, {"text": "y", "reward": 0.0}]
    kto = load_task(write(*({"prompt": p, "completion": "c", "label": p == "a"} for p in "ab")))
    assert {t.prompt: (t.meta["answers"], t.answer) for t in by_uid(kto).values()} == {
        "a": ([{"text": "c", "reward": 1.0}], "c"),
        "b": ([{"text": "c", "reward": 0.0}], ""),
    }
    numbers = load_task(write(*({"prompt": p, "completion": "c", "label": int(p == "a")} for p in "ab")))
    assert {t.prompt: t.meta["answers"][0]["reward"] for t in by_uid(numbers).values()} == {"a": 1.0, "b": 0.0}
    other = load_task(write(*({"prompt": p, "answer": "c", "label": int(p == "a")} for p in "ab")))
    assert all("answers" not in t.meta and t.answer == "c" for t in by_uid(other).values())
    squad = load_task(
        write({"question": "a", "answers": {"text": ["x"]}}, {"question": "b", "answers": {"text": ["x"]}}),
        answer="answers.text.0",
    )
    assert squad.train[0].answer == "x" and "answers" not in squad.train[0].meta


def test_levels(write: Write) -> None:
    some = [{"prompt": f"{i}", "answer": "x", "level": f"Level {1 + i % 3}"} for i in range(60)]
    assert load_task(write(*some)).levels == (1, 2, 3)
    assert {t.level for t in by_uid(load_task(write(*some), level="2-3")).values()} == {2, 3}
    refused("levels 1 to 3", name=write(*some), level=7)


def test_a_reward_of_ones_own_needs_no_answer(write: Write, tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("def f(task, text, n): return 1.0")
    own = f"{tmp_path}/r.py:f"
    tasks = load_task(write({"prompt": "a", "x": [1]}, {"prompt": "b", "x": [2]}), scorer=own, args={"n": (1, 2)})
    assert tasks.scorer == Scorer(own, {"n": [1, 2]})
    assert (tasks.train[0].answer, tasks.max_tokens) == ("", 64)
    odd = load_task(write({"prompt": "a", "answer": [1]}, {"prompt": "b", "answer": None}), scorer=own)
    assert {str(t.meta.get("answer")) for t in by_uid(odd).values()} == {"[1]", "None"}


# ---- splits --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    asks=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=3, max_size=60),
    share=st.sampled_from([0.1, 0.3, 0.9]),
    seed=st.integers(0, 5),
)
def test_splits_are_disjoint_and_nothing_moves_them(asks: list[tuple[int, int]], share: float, seed: int) -> None:
    if len({a for a, _ in asks}) < 2:
        return
    from gruppo.tasks.build import task_set
    from gruppo.tasks.rows import Table
    from gruppo.tasks.settings import TaskConfig

    def split(order: list[tuple[int, int]], seed: int) -> tuple[set[str], set[str], TaskSet]:
        table = Table("t", [{"prompt": f"{a}?", "answer": f"{b}"} for a, b in order], str)
        made = task_set("t", table, share, TaskConfig("t", seed=seed))
        return {t.prompt for t in made.train}, {t.prompt for t in made.held_out}, made

    train, held, one = split(asks, 0)
    mixed = list(asks)
    Random(seed).shuffle(mixed)
    again_train, again_held, two = split([*mixed, *mixed[:3]], seed)
    assert not train & held
    assert (train, held) == (again_train, again_held)
    assert [t.uid for t in one.held_out] == [t.uid for t in two.held_out]
    assert {t.uid for t in one.train} == {t.uid for t in two.train}
    assert len(held) == min(max(1, round(share * len(train | held))), len(train | held) - 1)
    assert len(one.train) + len(one.held_out) == len(set(asks))


def test_seed_chooses_and_orders(write: Write) -> None:
    file = write(*rows(100))
    zero, one = (load_task(file, seed=s, train_size=10) for s in (0, 1))
    assert {t.uid for t in zero.train} != {t.uid for t in one.train}
    assert [t.uid for t in zero.held_out] == [t.uid for t in one.held_out]
    assert [t.uid for t in load_task(file).train[:10]] == [t.uid for t in zero.train]
    assert load_task(file).digest == zero.digest != load_task(write(*rows(99), name="b.jsonl")).digest


def test_duplicates_are_counted(write: Write) -> None:
    tasks = load_task(write(*rows(10), *rows(3), {"question": "0+1=", "answer": 9}))
    assert len(by_uid(tasks)) == 11
    assert any("3 rows of data left out: they repeat an earlier one" in n for n in tasks.notes)
    assert any("1 row of data with the prompt of an earlier one and another answer" in n for n in tasks.notes)


def test_held_out_file(write: Write) -> None:
    train, held = write(*rows(10)), write(*rows(15)[8:], name="test.jsonl")
    tasks = load_task(train, held_out=held)
    assert (len(tasks.train), len(tasks.held_out)) == (8, 7)
    assert any("2 rows left out: the same prompt is held out" in n for n in tasks.notes)
    assert not {t.prompt for t in tasks.train} & {t.prompt for t in tasks.held_out}


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_large_files_take_seconds(write: Write, count: int) -> None:
    file = write(*({"question": f"{i}+{i}= " + "x" * 200, "answer": f"{2 * i}", "n": i} for i in range(count)))
    begun = time.process_time()
    tasks = load_task(file)
    assert len(tasks.train) == 0.9 * count
    assert time.process_time() - begun < count / 5_000  # a fifth of that where it was measured


# ---- bad input -----------------------------------------------------------------------------------

GOOD = {"prompt": "a", "answer": "b"}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"prompt": "a", "answer": }', "line 3, column 27: Expecting value"),
        ('{"prompt": "a"', "line 3, column 15"),
        ("[1, 2]", "line 3: list and not an object"),
        ("3", "line 3: int and not an object"),
        ({"prompt": "a"}, "line 3: it has no field 'answer' (it has: prompt)"),
        ({"prompt": None, "answer": "b"}, "line 3: the field 'prompt' is null"),
        ({"prompt": "a", "answer": None}, "line 3: the field 'answer' is null"),
        ({"prompt": 7, "answer": "b"}, "line 3: its prompt is int and neither a text nor a list of messages"),
        ({"prompt": " ", "answer": "b"}, "line 3: its prompt is empty"),
        ({"prompt": "a", "answer": ""}, "line 3: the field 'answer' is empty"),
        ({"prompt": "a", "answer": ["b"]}, "line 3: the field 'answer' is list and not a text or number; a part of it"),
        ({"prompt": [], "answer": "b"}, "no turn of the user"),
        ({"prompt": ["hi"], "answer": "b"}, "one of its messages is str"),
        ({"prompt": [{"role": "robot", "content": "x"}], "answer": "b"}, "the role 'robot'"),
        ('{"prompt": "a", "answer": NaN}', "line 3: the field 'answer' is NaN"),
        (
            '{"prompt": "a", "answer": "b", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
            "line 3: lists or objects are nested too deep",
        ),
        *(
            (
                '{"prompt": "a", "answers": [{"text": "x", "reward": ' + reward + "}]}",
                "line 3: one of its answers has the",
            )
            for reward in ("null", "[1]", "NaN", "-Infinity", '"x"', "1" + "0" * 400)
        ),
    ],
)
def test_a_bad_row_is_named_by_its_line(write: Write, bad: Any, said: str) -> None:
    refused(said, name=write(GOOD, "", bad, {"prompt": "c", "answer": "d"}))


def test_bad_files(write: Write, tmp_path: Path) -> None:
    refused("data.jsonl is empty", "one JSON object on each line", name=write("", " "))
    refused("there is no file", "Did you mean 'data.jsonl'?", name=str(tmp_path / "dat.jsonl"))
    refused("has only one prompt", "nothing can be held out", name=write(GOOD, GOOD))
    refused("task=hf:", name=write("[", "{}", "]"))
    refused("task=hf:", name=str(tmp_path / "x.csv"))
    (tmp_path / "folder.jsonl").mkdir()
    refused("is a folder", "task=hf:", name=str(tmp_path / "folder.jsonl"))
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(json.dumps(GOOD).encode() + b'\n{"prompt": "caf\xe9", "answer": "b"}\n')
    refused("latin.jsonl, line 2: byte 0xe9 is not UTF-8", "Save it as UTF-8", name=str(latin))
    wide = tmp_path / "wide.jsonl"
    wide.write_bytes(json.dumps(GOOD).encode("utf-16"))
    refused("line 1", "iconv -f utf-16", name=str(wide))
    bom = tmp_path / "bom.jsonl"
    bom.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n" + json.dumps({**GOOD, "prompt": "z"}).encode()
    )
    assert len(load_task(str(bom)).train) == 1


def test_missing_fields_name_those_that_are_there(write: Write) -> None:
    file = write({"questoin": "a", "anwser": "b"})
    refused("none of the fields prompt, question", "Fields: questoin, anwser", "task.prompt=FIELD", name=file)
    refused(
        "no field with the right answer", "Did you mean 'anwser'?", "task.answer=FIELD", name=file, prompt="questoin"
    )
    refused("task.prompt=question", "Did you mean 'questoin'?", name=file, prompt="question")
    refused("task.answer=answer", "Did you mean 'anwser'?", name=file, prompt="questoin", answer="answer")
    refused("math cannot judge", name=file, prompt="questoin", scorer="math")
    refused("'chosen' and none called 'rejected'", name=write({"prompt": "a", "chosen": "b"}))
    refused("in every row both answers are the same", name=write({"prompt": "a", "chosen": "b", "rejected": "b"}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"template": "{questin}"},
            ("names the field 'questin'", "Did you mean 'question'?", "Fields: question, answer"),
        ),
        ({"template": "Add."}, ("names no field, so every prompt would be the same", "Fields: question, answer")),
        ({"template": "{question"}, ("is no template", "{{ and }} for braces")),
        ({"template": "{answer:zz}"}, ("line 1", "cannot show 'answer' as 'zz'")),
        ({"held_out": 1.5}, ("task.held_out=1.5", "between 0 and 1")),
        ({"held_out": 0}, ("task.held_out=0", "between 0 and 1")),
        ({"held_out": "half"}, ("task.held_out=half is neither a share of the rows nor a JSONL file",)),
        ({"held_out": "./gone.jsonl"}, ("there is no file gone.jsonl",)),
        ({"split": "test"}, ("has no option split",)),
        ({"colour": "red"}, ("has no option colour",)),
        ({"scorer": "numerc"}, ("task.reward='numerc'", "Did you mean 'numeric'?", "./file.py:function")),
        ({"train_size": -1}, ("train_size=-1",)),
    ],
)
def test_bad_settings(write: Write, settings: dict[str, Any], said: tuple[str, ...]) -> None:
    refused(*said, name=write(*rows(5)), **settings)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hff:openai/gsm8k", ("'hff' is no kind of data", "Did you mean 'hf'?")),
        ("s3:bucket/x", ("'s3' is no kind of data", "hf:NAME")),
        ("adition", ("Did you mean 'addition'?", "./data.jsonl")),
    ],
)
def test_unknown_kinds(name: str, said: tuple[str, ...]) -> None:
    refused(*said, name=name)


@pytest.mark.parametrize("setting", ["prompt", "answer", "chosen", "config", "split", "held_out"])
def test_generated_tasks_refuse_settings_of_rows(setting: str) -> None:
    refused(f"addition has no option {setting}", name="addition", **{setting: "x"})


def test_generated_tasks_in_other_words() -> None:
    tasks = load_task("addition", template="What is {a} plus {b}? ({prompt})", system="Just the number.")
    task = tasks.train[0]
    assert task.prompt.startswith(f"What is {task.meta['a']} plus") and task.system == "Just the number."
    assert task.uid == load_task("addition").train[0].uid
    assert len(tasks.held_out[:3]) == 3 and tasks.held_out[-1].system
    refused("names the field 'c'", name="addition", template="{c}")
