"""Named scorers: a right answer is 1 in every way of writing it, a wrong one is 0, and what breaks is never 0."""

import asyncio
import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.tasks import Scorer, Task
from gruppo.tasks.extract import auto, boxed, hashes, is_number, last_number, number, tagged
from gruppo.tasks.judge import Judge
from gruppo.tasks.scorers import SCORERS, Exact, JsonSchema, Math, Numeric, Regex, listed


def task(answer: str, **meta: object) -> Task:
    return Task("t", "?", answer, 1, "own", meta=meta)


# ---- where the answer is ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} and then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{ {1, 2} }", "{1, 2}"),
        (r"\boxed{1} and \boxed{2", "1"),  # one that never closes is none
        (r"\fbox{7}", "7"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        ("nothing", None),
    ],
)
def test_boxed(text: str, found: str | None) -> None:
    assert boxed(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the answer is 42.", "42"),
        ("1,234.50 dollars", "1,234.50"),
        ("1, 2", "2"),
        ("1,23", "23"),
        ("12,3456", "3456"),
        ("it is -3", "-3"),
        ("5-3", "3"),
        ("8 - 3", "3"),
        ("x=-3", "-3"),
        ("x3", None),
        (".5", ".5"),
        ("1/2", "1/2"),
        ("6e23", "6e23"),
        ("7e99999", None),  # too large
        ("-$5", "-$5"),
        ("50%", "50"),
        ("v1.2.3", None),
        ("", None),
    ],
)
def test_last_number(text: str, found: str | None) -> None:
    assert last_number(text) == found


@pytest.mark.parametrize("text", ["42", "-1", "1,000", "3.5", "1/2", " 7 ", "50%", "$3"])
def test_is_number(text: str) -> None:
    assert is_number(text)


@pytest.mark.parametrize("text", ["", "4 apples", "A", "1 2", "x=3", "1e99999"])
def test_is_no_number(text: str) -> None:
    assert not is_number(text)


@given(st.integers(-(10**9), 10**9), st.text(alphabet="abc .,:=\n", max_size=20))
def test_a_number_after_any_words_is_found(value: int, words: str) -> None:
    assert number(f"{words.rstrip('.')} {value}") == value
    assert number(f"{words.rstrip('.')} {value:,}.") == value


@given(st.fractions(max_denominator=10**6))
def test_a_fraction_is_read_exactly(value: Fraction) -> None:
    assert number(str(value)) == value


def test_no_number_costs_memory_or_breaks() -> None:
    assert number("9" * 5000) is None
    assert number("1/0") is None


def test_order_of_places() -> None:
    assert hashes("steps\n#### 5\n#### 6\nbye") == "6"
    assert tagged("<answer>1</answer> <answer> 2 </answer>") == "2"
    assert auto(r"<answer>1</answer> \boxed{2} #### 3") == "1"
    assert auto(r"\boxed{2} #### 3") == "2"
    assert auto("a #### 3") == "3"
    assert auto("<think>\\boxed{9}</think> 4 ") == "4"


# ---- exact, numeric ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "answer", "text", "score"),
    [
        (Exact(), "Paris", " Paris\n", 1),
        (Exact(), "New  York", "New York", 1),
        (Exact(), "Paris", "paris", 0),
        (Exact(ignore_case=True), "Paris", "PARIS", 1),
        (Exact(), "Paris", "It is Paris", 0),
        (Exact(), "Paris", "It is <answer>Paris</answer>", 1),
        (Exact(extract="whole"), "Paris", "It is <answer>Paris</answer>", 0),
        (Exact(extract="tags"), "Paris", "Paris", 0),
        (Exact(), "Paris", "", 0),
        (Numeric(), "125", "The sum is 125.", 1),
        (Numeric(), "1000", "1,000", 1),
        (Numeric(), "0.5", "1/2", 1),
        (Numeric(), "5", "5.0", 1),
        (Numeric(), "-5", "\u22125", 1),
        (Numeric(), "5", "5.0001", 0),
        (Numeric(), "5", "none", 0),
        (Numeric(), "5", "1/0", 0),
        (Numeric(), "0.1", "0.1", 1),
        (Numeric(tolerance=0.01), "3.14", "3.1415", 1),
        (Numeric(tolerance=0.001), "3.14", "3.1415", 0),
        (Numeric(relative=0.1), "100", "109", 1),
        (Numeric(relative=0.1), "100", "111", 0),
        (Numeric(extract="boxed"), "5", "5", 0),
        (Numeric(extract="boxed"), "5", r"\boxed{5} or 6", 1),
        (Numeric(), "so 6 * 7 is\n#### 42", "42", 1),
    ],
)
def test_exact_and_numeric(scorer: Exact | Numeric, answer: str, text: str, score: float) -> None:
    assert scorer(task(answer), text) == score


def test_a_reference_without_a_number_is_an_error_and_not_zero() -> None:
    with pytest.raises(ValueError, match=r"'many' has no number.*task.reward=exact"):
        Numeric()(task("many"), "5")


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_bad_tolerance(value: float) -> None:
    with pytest.raises(ValueError, match="every answer would be wrong"):
        Numeric(tolerance=value)


def test_unknown_place() -> None:
    with pytest.raises(ValueError, match=r"extract='boxd'.*Did you mean 'boxed'\?"):
        Exact(extract="boxd")


# ---- math ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def maths() -> Math:
    pytest.importorskip("math_verify")
    return Math()


@pytest.mark.parametrize(
    ("answer", "text", "score"),
    [
        (r"\frac{1}{2}", "The answer is $0.5$.", 1),
        ("1/2", r"\boxed{\frac{2}{4}}", 1),
        ("42", "42", 1),
        ("42", "I think it is 41", 0),
        ("1,234", "1234", 1),
        (r"x^2 + 2x + 1", r"$(x+1)^2$", 1),
        (r"\{1, 2\}", r"$\{2, 1\}$", 1),
        ("(1, 2)", r"\boxed{(1,2)}", 1),
        ("(1, 2)", r"\boxed{(2,1)}", 0),
        (r"\sqrt{8}", r"$2\sqrt{2}$", 1),
        ("So it is\n#### 7", "7", 1),
        (r"so \boxed{7}", "7", 1),
        ("7", "", 0),
        ("7", "no idea", 0),
        ("7", r"\boxed{", 0),
        ("7", "<answer>It is $7$.</answer>", 1),
        (r"\\frac{3}{4}", "<answer>0.75</answer>", 1),
        ("2", r"\boxed{(1,2)}", 0),
    ],
)
def test_math(maths: Math, answer: str, text: str, score: float) -> None:
    assert maths(task(answer), text) == score


def test_math_only_in_a_box(maths: Math) -> None:
    strict = Math(extract="boxed")
    assert [strict(task("7"), t) for t in ("7", r"\boxed{7}", r"\boxed{7} no, 8")] == [0, 1, 1]


def test_math_reference_that_is_no_formula(maths: Math) -> None:
    with pytest.raises(ValueError, match="no formula that math-verify can read"):
        maths(task(""), "7")


# ---- regular expressions and JSON ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorer", "text", "score"),
    [
        (Regex(r"\d+"), "abc 12", 1),
        (Regex(r"\d+"), "abc", 0),
        (Regex(r"\d+", full=True), "abc 12", 0),
        (Regex(r"\d+", full=True), " 12\n", 1),
        (Regex("yes", ignore_case=True), "YES", 1),
        (Regex(r"Answer: (?P<answer>\d+)"), "Answer: 5\nAnswer: 7", 1),
        (Regex(r"Answer: (?P<answer>\d+)"), "Answer: 7\nAnswer: 5", 0),
        (Regex(r"Answer: (?P<answer>\d+)?"), "Answer: ", 0),
        (Regex(r"^Answer: (?P<answer>\d+)$"), "so\nAnswer: 7", 1),
    ],
)
def test_regex(scorer: Regex, text: str, score: float) -> None:
    assert scorer(task("7"), text) == score


@pytest.mark.parametrize(("pattern", "said"), [("(", "is no regular expression"), ("", "without a pattern")])
def test_bad_pattern(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Regex(pattern)


SCHEMA = (
    '{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}, "additionalProperties": false}'
)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"n": 1}', 1),
        ('{"n": "1"}', 0),
        ('{"n": 1, "m": 2}', 0),
        ('Here it is:\n```json\n{"n": 3}\n```', 1),
        ('<answer>{"n": 3}</answer>', 1),
        ("{n: 1}", 0),
        ("", 0),
        ('{"n": NaN}', 0),
        ("[" * 100_000, 0),
        ('{"n": ' + "9" * 10_000 + "}", 0),
    ],
)
def test_json_schema(text: str, score: float) -> None:
    pytest.importorskip("jsonschema")
    assert JsonSchema(SCHEMA)(task(""), text) == score


def test_json_schema_from_a_file_and_of_a_row(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA)
    assert JsonSchema(str(file))(task(""), '{"n": 1}') == 1
    own = JsonSchema(field="schema")
    assert own(task("", schema={"type": "integer"}), "3") == 1
    assert own(task("", schema=SCHEMA), "3") == 0
    with pytest.raises(ValueError, match=r"no field 'schema'.*Its fields: other"):
        own(task("", other=1), "3")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"schema": '{"type": "strin"}'}, "is no JSON schema"),
        ({"schema": "{"}, "is no JSON schema"),
        ({"schema": "./gone.json"}, "cannot be read"),
        ({}, "requires one of"),
        ({"schema": "{}", "field": "x"}, "requires one of"),
    ],
)
def test_bad_schema(arguments: dict[str, str], said: str) -> None:
    pytest.importorskip("jsonschema")
    with pytest.raises(ValueError, match=said):
        JsonSchema(**arguments)


def test_a_schema_never_reads_the_network() -> None:
    pytest.importorskip("jsonschema")
    scorer = JsonSchema(json.dumps({"$ref": "http://localhost:9/schema.json"}))
    with pytest.raises(Exception, match="localhost:9"):
        scorer(task(""), "3")


def test_listed() -> None:
    row = task("", answers=[{"text": "a", "reward": 1.0}, {"text": "b", "reward": 0.25}])
    assert [listed(row, t) for t in (" a ", "b", "c")] == [1.0, 0.25, 0.0]
    with pytest.raises(ValueError, match="lists no answers"):
        listed(task("a"), "a")


# ---- in the judge --------------------------------------------------------------------------------


def test_names_lead_to_scorers_that_load() -> None:
    args = {"regex": {"pattern": "a"}, "json_schema": {"schema": "{}"}}
    args["llm_judge"] = {"address": "http://localhost:1/v1", "model": "m"}
    for name, (path, *_) in SCORERS.items():
        if name in ("reward_model", "program"):  # need a model and a sandbox: test_reward_model.py, tests/sandbox
            continue
        with Judge(Scorer(path, args.get(name, {}))):
            pass


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("regex", {"pattern": "("}, "is no regular expression"),
        ("numeric", {"tolerence": 1}, r"tolerence.*Did you mean 'tolerance'\?.*task.args.NAME"),
        ("exact", {"extract": "hash"}, "Did you mean 'hashes'"),
        ("listed", {"x": 1}, "It has no arguments: leave task.args out"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_judged(name: str, args: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){said}"):
        Judge(Scorer(SCORERS[name][0], args)).start()


def test_a_pattern_that_explodes_is_a_timeout_and_not_zero() -> None:
    with Judge(Scorer(SCORERS["regex"][0], {"pattern": "(a+)+$"}), seconds=0.5) as judge:
        bad, good = asyncio.run(judge.score([(task(""), "a" * 40 + "b"), (task(""), "aaa")]))
    assert (bad.status, bad.components) == ("timeout", {})
    assert good.components == {"task": 1.0}
