"""Answers that are written down become episodes of an expert; which of many; and which are good enough."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from rooms import TOKENS, context, prompt, rolled, task

from gruppo.data import Episode, Source, Status, Use, pack
from gruppo.data.keyed import uniform
from gruppo.stages import Ask, Sampling
from gruppo.stages.play import episode_uid
from gruppo.stages.recorded import Accepted, Recorded, answer_N, from_both_ends
from gruppo.tasks.recorded import Answer

BOTH = [{"text": "good", "reward": 1.0}, {"text": "bad", "reward": 0.0}]


def asked(answers: list[dict[str, Any]], samples: int = 2, **fields: Any) -> Ask:
    return Ask(task(1, meta={"answers": answers}), samples, **fields)


def test_a_recorded_answer_is_an_episode_of_an_expert() -> None:
    ctx, ask = context(step=3), asked(BOTH, notes={"level": 2.0})
    p = prompt(ask)
    first, second = rolled(Recorded(), ctx, [p])
    for i, (e, text) in enumerate(((first, "good"), (second, "bad"))):
        s, n, answer = e.sequences[0], len(p.ids), [*TOKENS.encode(text), TOKENS.eos]
        assert (e.task, e.group, e.status, e.use, e.source) == ("t1", "t1", Status.OK, Use.LEARN, Source.EXPERT)
        assert e.uid == episode_uid(ctx, p, 0, i) and e.step == 3 and e.text == TOKENS.decode(answer)
        assert e.reward == {"task": BOTH[i]["reward"]}
        assert s.ids.tolist() == [*p.ids, *answer] and s.ids.dtype == np.int64
        assert s.source.tolist() == [Source.ENV] * n + [Source.EXPERT] * len(answer)
        assert np.isnan(s.logp).all() and s.logp.dtype == np.float32, "nobody sampled it"
        assert s.version.tolist() == [-1] * len(s.ids) and s.train_as is None
        assert e.notes["level"].values.tolist() == [2.0] and e.notes["level"].values.dtype == np.float32


def test_numbers_are_prompts_and_samples_are_answers() -> None:
    ctx, prompts = context(), [prompt(asked(BOTH)), prompt(asked(BOTH, group="other"))]
    uids = [episode_uid(ctx, p, number, i) for number, p in enumerate(prompts) for i in range(2)]
    assert [e.uid for e in rolled(Recorded(), ctx, prompts)] == uids


def test_an_answer_without_a_reward_is_for_the_scorer() -> None:
    [e] = rolled(Recorded(), context(), [prompt(asked([{"text": "a"}]))])
    assert e.reward == {} and math.isnan(e.total)


@pytest.mark.parametrize(("most", "status", "kept"), [(5, Status.OK, 5), (4, Status.TRUNCATED, 4), (6, Status.OK, 5)])
def test_an_answer_longer_than_the_budget_is_cut(most: int, status: Status, kept: int) -> None:
    """With eos, "good" has five tokens."""
    [e] = rolled(Recorded(), context(sampling=Sampling(max_tokens=most)), [prompt(asked(BOTH[:1]))])
    assert e.status == status and e.sequences[0].ids[-kept:].tolist() == [*TOKENS.encode("good"), TOKENS.eos][:kept]
    assert len(e.sequences[0].ids) == e.sequences[0].prompt_len + kept


def test_an_ask_may_give_another_budget() -> None:
    [e] = rolled(Recorded(), context(), [prompt(asked(BOTH[:1], how={"max_tokens": 3}))])
    assert e.status == Status.TRUNCATED and e.text == "goo"


def test_hints_and_other_prompts_come_along() -> None:
    ids = prompt(asked(BOTH)).ids
    other, n = np.array([1, 8]), len(ids)
    p = prompt(
        asked(BOTH[:1]), ids=np.concatenate([ids, TOKENS.encode("h")]), given=((n, n + 1, "hint"),), train_as=other
    )
    [e] = rolled(Recorded(), context(), [p])
    assert e.sequences[0].train_as is other and e.sequences[0].source[n] == Source.HINT
    assert e.text == TOKENS.decode([*TOKENS.encode("hgood"), TOKENS.eos])


def test_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="'t1' has no recorded answer"):
        rolled(Recorded(), context(), [prompt(asked([]))])


# which of many


def rewards(values: list[float], most: int) -> list[float]:
    return [a.reward for a in from_both_ends([Answer(str(i), v) for i, v in enumerate(values)], most)]


def test_all_as_they_come_if_there_are_not_too_many() -> None:
    assert rewards([0.0, 2.0, 1.0], 3) == rewards([0.0, 2.0, 1.0], 4) == [0.0, 2.0, 1.0]


def test_of_more_the_best_the_worst_the_second_best_and_so_on() -> None:
    mixed = [3.0, 1.0, 5.0, 2.0, 4.0]
    assert rewards([*mixed, 0.0, 6.0, 7.0], 6) == [7.0, 0.0, 6.0, 1.0, 5.0, 2.0]
    assert [rewards(mixed, n) for n in (1, 2, 3, 4)] == [[5.0], [5.0, 1.0], [5.0, 1.0, 4.0], [5.0, 1.0, 4.0, 2.0]]


def test_without_rewards_the_order_of_the_file_counts() -> None:
    nan = math.nan
    found = from_both_ends([Answer("a", nan), Answer("b", nan), Answer("c", nan)], 2)
    assert [a.text for a in found] == ["a", "c"]
    assert [a.text for a in from_both_ends([Answer("a", -0.5), Answer("b", nan), Answer("c", 0.5)], 2)] == ["c", "a"]


# which are good enough


def episodes(*rows: tuple[str, float], **fields: Any) -> list[Episode]:
    out = rolled(Recorded(), context(), [prompt(asked([{"text": t, "reward": r} for t, r in rows], samples=99))])
    for e in out:
        for name, value in fields.items():
            setattr(e, name, value)
    return out


def kept(occupant: Accepted, found: list[Episode], **ctx: Any) -> list[bool]:
    keep, again = occupant.episodes(context(**ctx), found)
    assert again == []
    return keep


def test_from_the_threshold_on_and_each_text_once() -> None:
    found = episodes(("a", 1.0), ("b", 0.99), ("a", 1.0), ("c", 2.0))
    assert kept(Accepted(), found) == [True, False, False, True]
    found[2].group = "another"
    assert kept(Accepted(), found) == [True, False, True, True]


def test_failed_ones_are_not_kept_and_baselines_are() -> None:
    assert kept(Accepted(), episodes(("a", 5.0), status=Status.ENV_ERROR)) == [False]
    assert kept(Accepted(), episodes(("a", 0.0), use=Use.BASELINE)) == [True], "statistics still need it"
    assert kept(Accepted(), episodes(("a", 5.0), use=Use.APART)) == [True]


def test_at_most_the_best_of_a_group_and_luck_decides_between_equals() -> None:
    found = episodes(("a", 1.0), ("b", 3.0), ("c", 2.0), ("d", 3.0))
    assert kept(Accepted(most=3), found) == [False, True, True, True]
    seen = set[tuple[bool, ...]]()
    for seed in range(20):
        u = uniform(seed, 0, "accepted", torch.tensor([e.uid for e in found]))
        assert isinstance(u, torch.Tensor)
        first = 1 if u[1] < u[3] else 3
        assert kept(Accepted(most=1), found, seed=seed) == [i == first for i in range(4)]
        seen.add(tuple(kept(Accepted(most=1), found, seed=seed)))
    assert len(seen) == 2


def test_what_is_learned_of_answers() -> None:
    """The policy's tokens and an expert's, in episodes to learn from, that selection kept."""
    found = episodes(("a", 1.0), ("b", 0.0))
    found[1].status = Status.ENV_ERROR
    batch = pack(found)
    assert answer_N(batch).tolist() == [True, True, False, False]
    assert answer_N(batch.with_columns(keep_N=batch.token_N != TOKENS.eos)).tolist() == [True, False, False, False]
    assert answer_N(batch.with_columns(source_N=torch.full_like(batch.source_N, Source.HINT))).sum() == 0
