"""Evaluation by task and level, and the exact exploitability in Kuhn poker."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from gruppo.cli import main
from gruppo.engines import NativeEngine
from gruppo.envs.kuhn import Kuhn
from gruppo.envs.kuhn_exact import ALL, exploitability
from gruppo.policies import CharTokenizer, TinyConfig, TinyTransformer, load_policy, load_tokenizer
from gruppo.stages import Sampling
from gruppo.stages.converse import Converse
from gruppo.tasks import TaskSet, load_task
from gruppo.train.evaluate import Evaluation, evaluate
from gruppo.train.kuhn import chances, dialogue, exploited, strategy_of
from gruppo.train.metrics import known


def evaluated(tasks: TaskSet, prompts: int, samples: int = 1, play: Converse | None = None, **how: Any) -> Evaluation:
    policy, tokenizer = load_policy("tiny-agent"), load_tokenizer("tiny-agent")
    engine = NativeEngine({"policy": policy}, eos=tokenizer.stops)
    sampling = Sampling(max_tokens=8, **how)
    return asyncio.run(evaluate(engine, tokenizer, None, tasks, sampling, prompts, samples, play=play or Converse()))


# ---- by task


@pytest.mark.parametrize("samples", [1, 2])
def test_the_parts_are_the_whole(samples: int) -> None:
    """Law: scores, tokens, turns and flags of the parts, weighted by their sizes, are those of all."""
    e = evaluated(load_task("mix:guess@1-2+calculator"), 12, samples)
    assert set(e.by_task) == {"guess/1", "guess/2", "calculator/1"}
    parts = list(e.by_task.values())
    assert sum(of["prompts"] for of in parts) == e.prompts == 12

    def mean(name: str, weight: str = "prompts") -> float:
        return sum(of[weight] * of[name] for of in parts) / sum(of[weight] for of in parts)

    assert mean("accuracy") == pytest.approx(e.accuracy) and mean("length") == pytest.approx(e.length)
    assert mean("turns") == pytest.approx(e.turns["turns"])
    assert mean("tool_calls") == pytest.approx(e.turns.get("tool_calls", 0.0))
    turns = [of["prompts"] * of["turns"] for of in parts]
    assert all(("recurring" in of) == (samples > 1) for of in parts)
    for flag in ("invalid", "void", "repeated", *(("recurring",) if samples > 1 else ())):
        assert np.average([of[flag] for of in parts], weights=turns) == pytest.approx(e.turns.get(f"turns/{flag}", 0.0))
    logged = e.logged()
    assert logged["held_out/task/guess/2"] == e.by_task["guess/2"]["accuracy"]
    assert logged["held_out/task/calculator/1/tool_calls"] == e.by_task["calculator/1"]["tool_calls"]
    assert logged["held_out/task/guess/1/repeated"] == e.by_task["guess/1"]["repeated"]
    assert ("held_out/task/guess/1/recurring" in logged) == (samples > 1)
    assert all(known(name) for name in logged)


def test_one_task_at_one_level_has_no_parts() -> None:
    e = evaluated(load_task("guess", level=1), 4)
    assert e.by_task == {} and not any("/task/" in name for name in e.logged())


def test_seats_of_a_game_are_told_apart_in_its_part() -> None:
    e = evaluated(load_task("mix:kuhn+guess"), 12)
    returns = e.by_task["kuhn/1"]["by_agent"]
    assert set(returns) == {"first", "second"} and sum(returns.values()) == pytest.approx(0)
    assert e.by_task["guess/1"]["by_agent"] == {} and "held_out/task/kuhn/1/return/first" in e.logged()


def test_lines_of_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "tiny-agent", "task=mix:kuhn+household@1-2", "eval.prompts=12"]) == 0
    out = capsys.readouterr().out
    assert "\n  kuhn/1: return first " in out and "\n  household/2: success " in out and "\n  level " not in out
    for word in ("on 6 prompts", "turns ", "tool calls ", "tokens ", "invalid ", "void ", "repeated "):
        assert word in out
    assert "recurring" not in out
    assert main(["eval", "tiny-agent", "task=mix:kuhn+household@1-2", "eval.prompts=6", "eval.samples=2"]) == 0
    assert capsys.readouterr().out.count(", recurring ") == 3
    assert main(["eval", "tiny", "task=mix:addition@1+chain", "eval.prompts=8", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["by_task"]
    assert len(parts) == 2 and all("turns" not in of and of["prompts"] == 4 for of in parts.values())


# ---- Kuhn poker


def test_evaluation_has_the_exact_exploitability(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = exploitability(strategy_of(load_policy("tiny-agent"), load_tokenizer("tiny-agent")))
    for tasks in (load_task("kuhn"), load_task("mix:guess+kuhn"), load_task("kuhn", against="random")):
        e = evaluated(tasks, 4)
        assert e.exact["exploitability"] == pytest.approx(wanted) and 0.9 < e.exact["legal"] <= 1
        assert e.logged()["held_out/exploitability"] == e.exact["exploitability"] and known("held_out/exploitability")
    assert evaluated(load_task("guess"), 2).exact == {}
    assert main(["eval", "tiny-agent", "task=kuhn", "eval.prompts=4"]) == 0
    assert f"exploitability {wanted:.3f} antes, exact" in capsys.readouterr().out


def test_not_where_it_could_not_be_exact() -> None:
    from gruppo.envs.format import format_of

    policy, tokenizer = load_policy("tiny-agent"), load_tokenizer("tiny-agent")
    engine = NativeEngine({"policy": policy}, eos=tokenizer.stops)
    tasks = load_task("kuhn").held_out[:1]
    assert exploited(engine, tokenizer, tasks, Converse(), 1.0)
    for play in (Converse(format_of("tags")), Converse(window=0)):
        assert exploited(engine, tokenizer, tasks, play, 1.0) == {}


def test_chances_are_of_the_temperature_that_is_sampled_with() -> None:
    policy, tokenizer = load_policy("tiny-agent"), load_tokenizer("tiny-agent")
    plain, cold = chances(policy, tokenizer), chances(policy, tokenizer, 0.0)
    strategy = strategy_of(policy, tokenizer)
    for s in ALL:
        assert 0 < sum(plain[s]) <= 1 and plain[s][1] / sum(plain[s]) == pytest.approx(strategy[s])
        assert cold[s][plain[s][1] > plain[s][0]] == 1.0 and sum(cold[s]) == 1.0
        nearly = chances(policy, tokenizer, 1e-3)[s]
        assert nearly == pytest.approx(cold[s], abs=1e-3) or abs(plain[s][0] - plain[s][1]) < 0.01


def test_each_seat_is_read_from_the_model_that_writes_it() -> None:
    config = TinyConfig(vocab=CharTokenizer().vocab, dim=16, layers=1, heads=2, kv_heads=1, ffn=16, context=256)
    one, two = (TinyTransformer(config) for _ in range(2))
    with_scale = two.state_dict()
    two.load_state_dict({k: 3 * v for k, v in with_scale.items()})
    tokenizer, tasks = CharTokenizer(), load_task("kuhn").held_out[:1]
    engine = NativeEngine({"policy": one, "other": two}, eos=CharTokenizer.eos)
    found = exploited(engine, tokenizer, tasks, Converse(writers={"second": "other"}), 1.0)
    first, second = strategy_of(one, tokenizer), strategy_of(two, tokenizer)
    of_both = {s: (second if len(s.split()) == 2 else first)[s] for s in ALL}
    assert found["exploitability"] == pytest.approx(exploitability(of_both)) != pytest.approx(exploitability(first))


def test_dialogues_are_those_of_the_games_also_with_rules() -> None:
    """As `Converse` writes them for a model with a chat template, whose system prompt has the rules."""
    tokenizer = load_tokenizer("tiny-agent")
    e = evaluated(load_task("kuhn"), 40, play=Converse(rules=True))
    seen = {
        t.state: x.sequences[t.sequence].ids[: t.start].tolist()
        for x in e.episodes
        for i, t in enumerate(x.turns)
        if not any(u.flags for u in x.turns[:i])  # only first turns, if the rules confuse this policy
    }
    assert len(seen) >= 3
    assert all(dialogue(tokenizer, s, "", Kuhn.rules).tolist() == ids for s, ids in seen.items())
