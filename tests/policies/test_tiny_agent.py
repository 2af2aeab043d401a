"""The built-in agent: what is in the package, its success, transformers alone, and the script that made it."""

import asyncio
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gruppo.engines import NativeEngine, Request, complete
from gruppo.envs import make_env
from gruppo.envs.registry import BUILT_IN
from gruppo.envs.words import vocabulary
from gruppo.policies import WordTokenizer, load_policy, load_tokenizer, names, save_policy
from gruppo.policies.load import WEIGHTS
from gruppo.tasks import load_task
from gruppo.tasks.fit import most_tokens

ROOT = Path(__file__).resolve().parents[2]
FOLDER = WEIGHTS / "tiny-agent"


@pytest.fixture(scope="module")
def script():
    """scripts/make_agent.py."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import make_agent  # type: ignore[import-not-found]

        yield make_agent
    finally:
        sys.path.remove(str(ROOT / "scripts"))
        for name in ("make_agent", "agent_play"):
            sys.modules.pop(name, None)


@pytest.fixture
def game(script):
    """scripts/agent_play.py."""
    return sys.modules["agent_play"]


def observations(count):
    """The first observations of held-out tasks, of all worlds in turn: task and text."""
    out = []
    for i in range(count):
        name = list(BUILT_IN)[i % len(BUILT_IN)]
        task = load_task(name).held_out[i // len(BUILT_IN)]
        out.append(f"{task.prompt}\n{make_env(name).reset(task).text}")
    return out


# what is in the package


def test_shape_and_size():
    policy, tokenizer = load_policy("tiny-agent"), load_tokenizer("tiny-agent")
    assert isinstance(tokenizer, WordTokenizer)
    assert tokenizer.known == vocabulary()  # else: make the weights again
    assert (policy.context, policy.vocab) == (512, tokenizer.vocab)
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert sum(f.stat().st_size for f in FOLDER.iterdir()) <= 3_000_000


def test_the_untrained_twin():
    agent, twin, other = load_policy("tiny-agent"), *(load_policy("tiny-agent-random", seed=s) for s in (3, 4))
    assert twin.config == other.config == agent.config
    again = load_policy("tiny-agent-random", seed=3)
    assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(twin.parameters()), next(other.parameters()))
    assert load_tokenizer("tiny-agent-random").words() == load_tokenizer("tiny-agent").words()


def test_names():
    assert {"tiny-agent", "tiny-agent-random"} <= set(names())
    meant = {"tiny-agnt": "tiny-agent", "tinyagent": "tiny-agent", "tiny-agent-radom": "tiny-agent-random"}
    for wrong, near in meant.items():
        for load in (load_policy, load_tokenizer):
            with pytest.raises(ValueError, match=f"Did you mean '{near}'"):
                load(wrong)


def test_an_action_is_short_unless_a_setting_says_otherwise():
    tasks = load_task("household")
    assert most_tokens(tasks, load_tokenizer("tiny-agent"), 512) == tasks.max_tokens == 32


# transformers alone


@pytest.mark.parametrize("source", ["saved", "shipped"])
def test_greedy_actions_are_the_same_through_transformers_alone(tmp_path, source):
    transformers = pytest.importorskip("transformers")
    policy, own = load_policy("tiny-agent"), load_tokenizer("tiny-agent")
    folder = FOLDER if source == "shipped" else tmp_path / "policy"
    if source == "saved":
        save_policy(folder, policy, own)
        assert load_tokenizer(folder).words() == own.words()
    texts = observations(50)
    prompts = [own.chat([{"role": "user", "content": text}]) for text in texts]
    engine = NativeEngine({"policy": policy}, eos=own.stops)
    requests = [Request(p, 8, key=i, temperature=0.0) for i, p in enumerate(prompts)]
    mine = [own.decode(c.ids) for c in asyncio.run(complete(engine, requests))]
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = tok(texts, padding=True, return_tensors="pt")
    out = model.generate(**batch, max_new_tokens=8, do_sample=False, temperature=None, top_k=None, top_p=None)
    theirs = tok.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    assert theirs == mine
    assert len(set(mine)) > 10
    assert model.generation_config.eos_token_id == own.eos


# success


@pytest.mark.parametrize("name", ["household", "shop"])
def test_it_acts_and_wins_seldom(game, name):
    episodes = game.held_out(name, 1, 60)
    game.play(load_policy("tiny-agent"), episodes)
    assert 0.05 <= np.mean([e.won for e in episodes]) <= 0.3
    assert sum(e.invalid for e in episodes) < 0.4 * sum(len(e.actions) for e in episodes)


def test_an_untrained_agent_does_not_win(game):
    episodes = game.held_out("household", 1, 20)
    game.play(load_policy("tiny-agent-random"), episodes)
    assert not any(e.won for e in episodes)


def test_an_episode_that_does_not_fit_is_lost_and_said_so(game, monkeypatch):
    episodes = game.held_out("household", 1, 4)
    monkeypatch.setattr(game, "CONFIG", replace(game.CONFIG, context=48))
    game.play(load_policy("tiny-agent-random"), episodes)
    assert all(e.full and not e.won and len(e.prefix) + game.ACTION > 48 for e in episodes)


# the script


def test_lines_are_dialogues_of_which_the_actions_are_learned(script):
    tokenizer = script.TOKENIZER
    corpus = script.Corpus(5)
    lines = [line for _ in range(100) for line in corpus.lines()]
    for line in lines:
        spans = np.split(line.learned, np.flatnonzero(np.diff(line.learned) > 1) + 1)
        assert [line.ids[s[0] - 1] for s in spans] == [tokenizer.act] * line.ids.count(tokenizer.act)
        assert [line.ids[s[-1]] for s in spans] == [tokenizer.eos] * line.ids.count(tokenizer.eos)
        assert line.ids[0] == tokenizer.bos and line.ids.count(tokenizer.bos) == 1
        assert len(line.ids) <= script.CONFIG.context


def test_the_corpus_is_a_function_of_its_seed_and_has_no_held_out_task(script):
    a, b, c = (script.Corpus(seed) for seed in (1, 1, 2))
    first = [line.ids for line in a.batch()]
    assert first == [line.ids for line in b.batch()] != [line.ids for line in c.batch()]
    assert len(a.uids) > 20
    for name in set(BUILT_IN) - {"kuhn"}:  # six deals on both sides
        held = load_task(name, level=1).held_out
        assert a.uids.isdisjoint(held[i].uid for i in range(min(100, len(held))))


def test_more_wins_mean_less_care(script, monkeypatch):
    corpus = script.Corpus(0)
    adjust = script.Adjust(corpus, 100)
    lucky = {"lake": True, "shop": False}

    def play(policy, rows):
        for e in rows:
            e.won = lucky.get(e.env.name, False)

    monkeypatch.setattr(script, "play", play)
    adjust(None)
    assert script.LEAST <= corpus.care["lake"] < script.CARE < corpus.care["shop"] <= script.MOST
    assert [s for s in range(100) if adjust.due(s)] == list(range(40, 100, 5))


def test_a_mix_sets_care_and_weight(script):
    mix = script.mix_of(["lake=0.1", "shop=0.5:9"])
    corpus = script.Corpus(0, mix)
    assert (corpus.care["lake"], corpus.care["shop"], corpus.care["guess"]) == (0.1, 0.5, script.CARE)
    weight = dict(zip([*script.WORLDS, *script.GAMES], corpus.weight, strict=True))
    assert (weight["lake"], weight["shop"], weight["kuhn"]) == (script.WEIGHT, 9.0, 1.0)
    with pytest.raises(ValueError, match="'lakes' is no world with one seat"):
        script.mix_of(["lakes=0.1"])


def test_the_page_is_that_of_the_recipe(script):
    recipe = json.loads((FOLDER / "recipe.json").read_text())
    assert (ROOT / "docs" / "agent-policy.md").read_text() == script.page(recipe)
    assert recipe["config"] == asdict(load_policy("tiny-agent").config)
    assert recipe["parameters"] == sum(p.numel() for p in load_policy("tiny-agent").parameters())
