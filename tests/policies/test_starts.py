"""The prepared starts `tiny-talk` and `tiny-long`: their writers, what is in the package, and what they can do."""

import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gruppo.engines import NativeEngine, Request, complete
from gruppo.methods.igrpo import Refine
from gruppo.policies import load_policy, load_tokenizer, names, save_policy
from gruppo.policies.load import WEIGHTS
from gruppo.stages.context import Ask
from gruppo.stages.prompting import HintInMessage, plain
from gruppo.tasks import load_object, load_task
from gruppo.tasks.load import worded

ROOT = Path(__file__).resolve().parents[2]
STARTS = [n for n in ("tiny-talk", "tiny-long") if (WEIGHTS / n).is_dir()]
MODULES = ("make_weights", "start_writers", "start_measures", "make_starts")


@pytest.fixture(scope="module")
def script():
    """The four files of scripts/ as one namespace; of equal names the last counts."""
    path = list(sys.path)
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        found = [import_module(name) for name in MODULES]
        yield SimpleNamespace(**{k: v for m in found for k, v in vars(m).items() if k[0] != "_"})
    finally:
        sys.path[:] = path
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def sure(script, monkeypatch):
    """Writers who add at once without an error."""
    monkeypatch.setattr(sys.modules["start_writers"], "AT_ONCE", 1.0)


def chain(level=2, at=0):
    return load_task("chain", level=level).train[at]


def context():
    return SimpleNamespace(tokenizer=load_tokenizer("tiny"))


# what the writers write


@pytest.mark.parametrize("name", ["tiny-talk", "tiny-long"])
def test_lines_are_a_function_of_the_seed_and_no_problem_is_held_out(script, name):
    for stage in script.STAGES[name]:
        short, long = stage._replace(steps=2, tokens=2000), stage._replace(steps=1, tokens=60_000)
        a, b, c = (script.Lines(short, name, seed) for seed in (1, 1, 2))
        first, again, other = ([x.ids_M.tolist() for x in lines.batches()] for lines in (a, b, c))
        assert first == again != other
        list((more := script.Lines(long, name, 3)).batches())
        assert len(more.uids) > 300 and more.uids.isdisjoint(script.held_out_uids())


def test_a_held_out_problem_would_be_found(script, monkeypatch, tmp_path):
    intruder = load_task("chain", level=2).held_out[7]
    stage = script.Stage(1, 50, 1e-3, {lambda draw: (intruder.uid, intruder.prompt, "1"): 1.0})
    monkeypatch.setitem(script.STAGES, "tiny-talk", [stage])
    with pytest.raises(AssertionError, match="1 held-out problems are in the corpus: chain/2/"):
        script.main(["tiny-talk", "--out", str(tmp_path / "out")])


def test_what_follows_the_given_text_is_learned(script):
    inputs = script.inputs_of([("a", "1+2=", "3"), ("b", "sum 1 2:3\n", "3")])
    tokenizer = load_tokenizer("tiny")
    assert (inputs.pos_M == 0).sum() == 2
    assert inputs.ids_M[inputs.at_N].tolist() == [*tokenizer.encode("3"), tokenizer.eos] * 2


@pytest.mark.parametrize("what", ["draft", "hint", "budget"])
def test_texts_are_worded_as_the_methods_word_them(script, what):
    task, ctx = chain(), context()
    ask = Ask(task, "g", 1, how={"draft": "13 22", "hint_level": 2})
    if what == "budget":  # as task.system="at most 8"
        told = worded([task], "", "at most 8")[0]
        mine, theirs = script.BUDGET.format(budget=8, prompt=task.prompt), plain(ctx, replace(ask, task=told))
    elif what == "draft":
        mine, theirs = script.DRAFT.format(draft="13 22", prompt=task.prompt), Refine()(ctx, ask, plain(ctx, ask))
    else:
        mine = script.HINT.format(hint=task.hints[1], prompt=task.prompt)
        theirs = HintInMessage()(ctx, ask, plain(ctx, ask))
    assert theirs[0].ids.tolist() == [ctx.tokenizer.bos, *ctx.tokenizer.encode(mine)]


def test_after_an_exit_the_sum_follows_from_the_last_whole_total(script, sure):
    task = replace(chain(), meta={"numbers": [8, 5, 9, 4], "totals": [13, 22, 26]})
    for steps, follows, sum_ in [("13 2", "2", "26"), ("13", " ", "26"), ("1", "3", "26"), ("13 22 26", "", "26"),
                                 ("14", " ", "27"), ("13 25", " ", "29"), ("13 25 ", "2", "29")]:  # fmt: skip
        assert script.rest_of(task, steps, follows, Random(0)) == sum_


def test_adding_at_once_fails_the_more_often_the_more_is_left(script):
    draw = Random(0)
    rate = [np.mean([script.at_once(7, [3] * n, draw) == 7 + 3 * n for _ in range(4000)]) for n in range(5)]
    assert np.allclose(rate, script.AT_ONCE ** np.arange(5), atol=0.03)


def test_an_answer_fits_its_budget_unless_it_is_a_single_number(script):
    draw, lengths = Random(0), Counter()
    for _ in range(500):
        _, given, answer = script.budgeted(draw)
        budget = int(given.split()[2])
        assert len(answer) + 1 <= budget or answer.isdecimal()
        lengths[len(answer.split())] += 1
    assert min(lengths.values()) > 10 and set(lengths) >= {1, 2, 3, 4}


@pytest.mark.parametrize(("writer", "after_right", "after_wrong"), [("drafted", 0.964, 0.64), ("mended", 0.94, 0.6)])
def test_an_answer_after_a_draft_is_better_than_one_without(script, writer, after_right, after_wrong):
    draw, right = Random(0), {True: [], False: []}
    lines = [getattr(script, writer)(draw) for _ in range(5000)]
    for uid, given, answer in (line for line in lines if line[0].startswith("addition/2/")):
        sum_ = str(sum(map(int, uid.split("/")[-1].split("+"))))
        right[given.split("\n")[0] == sum_].append(answer == sum_)
    assert np.mean(right[True]) == pytest.approx(after_right, abs=0.03)
    assert np.mean(right[False]) == pytest.approx(after_wrong, abs=0.05)  # 0.4 without a draft


def test_a_draft_is_put_right_in_its_own_form(script):
    task = replace(chain(), answer="26", meta={"numbers": [8, 5, 9, 4], "totals": [13, 22, 26]})
    for draft, right in [("27", "26"), ("13 23 27", "13 22 26"), ("14\n27", "13\n26"), ("13 22\n16", "13 22\n26")]:
        assert script.put_right(task, draft) == right


def test_a_slip_in_a_long_chain_goes_on(script):
    draw, slips, steps = Random(0), 0, 0
    for _ in range(300):
        _, given, answer = script.chained(draw)
        numbers = [int(n) for n in given[4:-1].split()]
        totals = [int(w.split("=")[-1]) for w in answer.split()][: len(numbers) - 1]
        assert len(totals) == len(numbers) - 1 and str(totals[-1]) == answer.split()[-1].split("=")[-1]
        before = [numbers[0], *totals[:-1]]
        slips += sum(b + n != t for b, n, t in zip(before, numbers[1:], totals, strict=True))
        steps += len(totals)
    assert script.SLIP_WORKED < slips / steps < script.SLIP


# what is in the package


@pytest.mark.parametrize("name", ["tiny-talk", "tiny-long"])
def test_a_start_begins_as_tiny_with_more_positions(script, name):
    policy, tiny = script.start(name), load_policy("tiny")
    assert policy.config == replace(tiny.config, context=script.CONTEXT[name])
    inputs = script.inputs_of([("", "sum 8 5 9:", "13 22")])
    assert torch.equal(policy(inputs)[0], tiny(inputs)[0])


@pytest.mark.parametrize("name", STARTS)
def test_shape_and_size(script, name):
    policy, recipe = load_policy(name), json.loads((WEIGHTS / name / "recipe.json").read_text())
    assert name in names() and load_tokenizer(name).words() == load_tokenizer("tiny").words()
    assert json.loads(json.dumps(asdict(policy.config))) == recipe["config"]
    assert policy.context == script.CONTEXT[name]
    assert recipe["parameters"] == sum(p.numel() for p in policy.parameters())
    assert sum(f.stat().st_size for f in (WEIGHTS / name).iterdir()) <= 3_000_000
    with pytest.raises(ValueError, match=f"Did you mean '{name}'"):
        load_policy(name.replace("-", "_"))


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("source", ["saved", "shipped"])
def test_greedy_answers_are_the_same_through_transformers_alone(tmp_path, name, source):
    transformers = pytest.importorskip("transformers")
    policy, own = load_policy(name), load_tokenizer(name)
    folder = WEIGHTS / name if source == "shipped" else tmp_path / "policy"
    if source == "saved":
        save_policy(folder, policy, own)
    texts = [t.prompt for t in list(load_task("chain", level=2).held_out)[:20]]
    texts += [f"19\n{text}" for text in texts[:10]]
    engine = NativeEngine({"policy": policy}, eos=own.stops)
    prompts = [own.chat([{"role": "user", "content": text}]) for text in texts]
    done = asyncio.run(complete(engine, [Request(p, 20, key=i, temperature=0.0) for i, p in enumerate(prompts)]))
    mine = [own.decode(c.ids) for c in done]
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = tok(texts, padding=True, return_tensors="pt")
    out = model.generate(**batch, max_new_tokens=20, do_sample=False, temperature=None, top_k=None, top_p=None)
    assert tok.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True) == mine
    assert len(set(mine)) > 10


@pytest.mark.parametrize("name", STARTS)
def test_the_page_has_the_figures_of_the_recipe(script, name):
    recipe, page = json.loads((WEIGHTS / name / "recipe.json").read_text()), (ROOT / "docs" / "models.md").read_text()
    assert all(table in page for table in script.tables(recipe["held_out"]))


# what they can do


@pytest.mark.skipif("tiny-talk" not in STARTS, reason="its weights are not in the package yet")
def test_talk_reads_drafts_exits_and_budgets(script):
    policy, tasks = load_policy("tiny-talk"), script.held_out("chain", 2, 100)
    ask = {
        "plain": lambda t: t.prompt,
        "right": lambda t: script.DRAFT.format(prompt=t.prompt, draft=script.right_draft(t)),
        "soon": lambda t: script.after(t, 1),
        "late": lambda t: script.after(t, 4),
        "short": lambda t: script.BUDGET.format(prompt=t.prompt, budget=3),
        "long": lambda t: script.BUDGET.format(prompt=t.prompt, budget=12),
    }
    got = {how: script.row(policy, tasks, of, most=24) for how, of in ask.items()}
    assert got["right"]["accuracy"] > got["plain"]["accuracy"] + 0.05
    assert got["late"]["accuracy"] > got["soon"]["accuracy"] + 0.15
    assert got["short"]["length"] < 5 and got["long"]["length"] > 8
    tiny, texts = load_policy("tiny"), ("right", "soon", "late")
    untold = [script.row(tiny, tasks, ask[how], most=24)["accuracy"] for how in texts]
    assert max(untold) < 0.3  # tiny reads none of these


@pytest.mark.skipif("tiny-long" not in STARTS, reason="its weights are not in the package yet")
def test_long_writes_chains_of_twenty_to_forty_numbers_and_slips(script):
    policy, tasks = load_policy("tiny-long"), script.held_out("longchain", 3, 60)
    score = load_object("gruppo.tasks.longchain:score")
    got = script.answers(policy, [t.prompt for t in tasks], script.LONG)
    assert 0.05 < np.mean([score(t, text) for t, (text, _) in zip(tasks, got, strict=True)]) < 0.5
    assert np.mean([n for _, n in got]) > 80 and max(n for _, n in got) > 200
