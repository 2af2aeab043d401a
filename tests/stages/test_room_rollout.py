"""From prompts to episodes: what is asked of the engine, and that an episode is exactly what it answered."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rooms import TOKENS, Says, context, prompt, rolled, task

from gruppo.data import Source, Status, Use
from gruppo.methods.remax import WithGreedy, greedy
from gruppo.stages import Ask, Sampling
from gruppo.stages.play import episode_uid, prompt_source, sampling_for
from gruppo.stages.rollout import Group

ASK = Ask(task(3), 2)


def test_an_ask_may_say_how_to_sample() -> None:
    """Only what sampling has: `how` may tell other rooms something, too."""
    ctx = context(sampling=Sampling(max_tokens=5, temperature=0.7))
    said = sampling_for(ctx, replace(ASK, how={"top_k": 4, "max_tokens": 9, "hint": 0.5}))
    assert said == Sampling(max_tokens=9, temperature=0.7, top_k=4)
    assert sampling_for(ctx, ASK) == ctx.sampling


KEYS: dict[str, dict[str, Any]] = {
    "seed": {"ctx": {"seed": 1}},
    "step": {"ctx": {"step": 1}},
    "round": {"ctx": {"round": 1}},
    "group": {"prompt": {"group": "other"}},
    "key": {"ask": {"key": "again"}},
    "how": {"ask": {"how": {"hint": 0.5}}},
    "how much": {"ask": {"how": {"hint": 0.25}}},
    "number": {"number": 1},
    "sample": {"sample": 1},
}


def test_an_episode_has_its_own_luck() -> None:
    """Another run, step, round, group, wish, number or sample: another uid. The same of each: the same uid."""

    def uid(ctx: Any = (), ask: Any = (), number: int = 0, sample: int = 0, **rest: Any) -> int:
        asked = prompt(replace(ASK, **dict(ask)), **rest.get("prompt", {}))
        return episode_uid(context(**dict(ctx)), asked, number, sample)

    uids = [uid(), *(uid(**change) for change in KEYS.values())]
    assert len(set(uids)) == len(uids) and uid() == uids[0]
    both = [uid(ask={"how": h}) for h in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    assert both[0] == both[1]


def test_the_kind_of_key_is_part_of_it() -> None:
    """No other draw of the step goes by the same numbers: "episode" stands between them."""
    from gruppo.data import key_hash

    assert episode_uid(context(), prompt(ASK), 0, 0) == key_hash(0, 0, "episode", 0, "t3", "", "", 0, 0)


def test_what_is_asked_of_the_engine() -> None:
    ctx = context(sampling=Sampling(max_tokens=4, temperature=0.5, top_k=3, top_p=0.9), seed=2)
    prompts = [prompt(ASK), prompt(Ask(task(1), 3, how={"top_k": 0}))]
    made, heard = rolled(Group(), ctx, prompts), ctx.engine.heard
    numbers = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [e.ask for e in made] == [prompts[number].ask for number, _ in numbers]
    for e, r, (number, sample) in zip(made, heard, numbers, strict=True):
        p = prompts[number]
        assert e.uid == r.key == episode_uid(ctx, p, number, sample)
        assert r.prefix is p.ids and r.stop == (TOKENS.eos,)
        assert (r.max_tokens, r.temperature, r.top_k, r.top_p) == (4, 0.5, 0 if number else 3, 0.9)


def test_who_wrote_the_prompt() -> None:
    p = prompt(ASK, given=((2, 4, "hint"), (4, 5, "forced")))
    source = prompt_source(p)
    assert source.dtype == np.int8
    assert source.tolist() == [0, 0, Source.HINT, Source.HINT, Source.FORCED]


def test_an_episode_is_what_the_engine_answered() -> None:
    ctx = context(engine=Says("ab"), step=4, sampling=Sampling(max_tokens=8, temperature=0.5))
    ask = replace(ASK, notes={"level": 2.0})
    first, second = rolled(Group(), ctx, [prompt(ask)])
    for i, e in enumerate((first, second)):
        s, p = e.sequences[0], len(TOKENS.chat(ask.task.messages))
        assert (e.task, e.group, e.status, e.use, e.source) == ("t3", "t3", Status.OK, Use.LEARN, Source.POLICY)
        assert e.uid == episode_uid(ctx, prompt(ask), 0, i) and e.step == 4
        assert e.text == TOKENS.decode(ctx.engine.ids)
        assert s.ids.tolist() == [*TOKENS.chat(ask.task.messages), *TOKENS.encode("ab"), TOKENS.eos]
        assert s.source.tolist() == [Source.ENV] * p + [Source.POLICY] * 3
        assert np.isnan(s.logp[:p]).all() and s.logp[p:].tolist() == [-0.5 - i, -1.5 - i, -2.5 - i]
        assert s.version.tolist() == [-1] * p + [10, 11, 12]
        assert s.temperature is not None and s.temperature.tolist() == [0.5] * (p + 3)
        assert s.train_as is None and s.allowed is None and s.prompt_len == p
        assert e.notes["level"].values.dtype == np.float32 and e.notes["level"].values.tolist() == [2.0]
        assert e.reward == {} and e.turns[0].start == p and e.turns[0].stop == p + 3


def test_what_does_not_end_is_truncated() -> None:
    [e] = rolled(Group(), context(sampling=Sampling(max_tokens=2)), [prompt(ASK, samples=1)])
    assert e.status == Status.TRUNCATED and len(e.sequences[0].ids) == len(TOKENS.chat(ASK.task.messages)) + 2


def test_given_pieces_are_part_of_the_answer() -> None:
    """A hint is a decision made for the policy: it is in the text and has its source; `train_as` goes along."""
    ids, other = TOKENS.chat(ASK.task.messages), np.array([1, 9, 9])
    hint = TOKENS.encode("xy")
    p = prompt(
        ASK, ids=np.concatenate([ids, hint]), given=((len(ids), len(ids) + 2, "hint"),), train_as=other, samples=1
    )
    [e] = rolled(Group(), context(engine=Says("z")), [p])
    assert e.text == TOKENS.decode([*hint, *TOKENS.encode("z"), TOKENS.eos])
    assert e.sequences[0].source[len(ids) :].tolist() == [Source.HINT] * 2 + [Source.POLICY] * 2
    assert e.sequences[0].train_as is other


def test_truncation_sets_come_along() -> None:
    ctx = context(sampling=Sampling(max_tokens=8, top_k=2))
    [e] = rolled(Group(), ctx, [prompt(ASK, samples=1)])
    s = e.sequences[0]
    assert s.allowed is not None and {p: x.tolist() for p, x in s.allowed.items()} == {
        s.prompt_len + i: [int(t), 5] for i, t in enumerate(ctx.engine.ids)
    }


# ReMax: a greedy answer beside the others


def test_the_greedy_prompt() -> None:
    asked = greedy(prompt(replace(ASK, how={"top_k": 3, "top_p": 0.5, "hint": 1}, key="k"), samples=4))
    assert asked.samples == asked.ask.samples == 1 and asked.group == ASK.group and asked.ask.task == ASK.task
    assert asked.ask.how == {"top_k": 0, "top_p": 1.0, "temperature": 0.0, "hint": 1}
    assert asked.ask.key == "k greedy"
    assert asked.ids.tolist() == prompt(ASK).ids.tolist()


@pytest.mark.parametrize("samples", [1, 3])
def test_one_baseline_a_prompt_and_the_samples_are_those_of_the_group(samples: int) -> None:
    ctx = context(sampling=Sampling(max_tokens=8, temperature=0.9, top_p=0.8))
    prompts = [prompt(Ask(task(i), samples)) for i in range(3)]
    episodes = rolled(WithGreedy(), ctx, prompts)
    assert [e.use for e in episodes] == [Use.LEARN] * 3 * samples + [Use.BASELINE] * 3
    assert [e.group for e in episodes[-3:]] == ["t0", "t1", "t2"]
    assert len({e.uid for e in episodes}) == len(episodes)
    assert [e.uid for e in episodes[:-3]] == [e.uid for e in rolled(Group(), ctx, prompts)]
    how = [(r.temperature, r.top_k, r.top_p) for r in ctx.engine.heard[: 3 * samples + 3]]
    assert how == [(0.9, 0, 0.8)] * 3 * samples + [(0.0, 0, 1.0)] * 3
