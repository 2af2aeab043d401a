"""Rollouts that go on from what was drawn: early exits."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from gruppo.data import Episode, Source, Status, pack
from gruppo.lab.world import Desk, World
from gruppo.methods import method
from gruppo.methods.s_grpo import SerialGroup
from gruppo.stages import Occupant, Sampling
from gruppo.stages.rollout import Group


def drawn(rollout: Occupant, samples: int, name: str = "s_grpo", **sampling: float) -> tuple[Desk, list[Episode]]:
    desk = Desk(World(method(name), 0))
    desk.ctx.sampling = Sampling(**{"max_tokens": 12, **sampling})  # type: ignore[arg-type]
    prompts = [replace(p, samples=samples) for p in desk.prompts(())]
    return desk, asyncio.run(rollout(desk.ctx, prompts))  # type: ignore[operator]


def serial_groups(episodes: list[Episode]) -> dict[str, list[Episode]]:
    out: dict[str, list[Episode]] = {}
    for e in sorted(episodes, key=lambda e: float(e.notes["exit"].values[0])):
        out.setdefault(e.group, []).append(e)
    return out


def test_a_serial_group_is_one_path_and_its_early_exits() -> None:
    desk, episodes = drawn(SerialGroup(inducer="=;", answer_tokens=3), 5)
    marks = desk.ctx.tokenizer.encode("=;").tolist()
    groups = serial_groups(episodes)
    assert len(groups) == 4 and len({e.uid for e in episodes}) == len(episodes)
    for members in groups.values():
        *early, path = members
        whole = path.sequences[0]
        assert not (whole.source == Source.INJECTED).any()
        places = [int(e.notes["exit"].values[0]) for e in early]
        most = min(4, min(len(whole.ids) - 1, whole.prompt_len + 9) - whole.prompt_len)
        assert places == sorted(set(places)) and len(places) == most  # different ones, all that there is room for
        for at, e in zip(places, early, strict=True):
            s = e.sequences[0]
            assert whole.prompt_len < at < len(whole.ids) and s.ids[:at].tolist() == whole.ids[:at].tolist()
            assert s.ids[at : at + 2].tolist() == marks and (s.source[at : at + 2] == Source.INJECTED).all()
            assert (s.source[at + 2 :] == Source.POLICY).all() and 1 <= len(s.ids) - at - 2 <= 3
            assert len(s.ids) - s.prompt_len <= 12
            assert np.isnan(s.logp[at : at + 2]).all() and np.isfinite(s.logp[at + 2 :]).all()
            assert e.text == desk.ctx.tokenizer.decode(s.ids[s.prompt_len :])
            assert e.status == (Status.OK if s.ids[-1] == desk.ctx.tokenizer.eos else Status.TRUNCATED)


def test_paths_are_those_of_a_plain_group_and_a_second_draw_is_the_first() -> None:
    once, again = (drawn(SerialGroup(), 5)[1] for _ in range(2))
    assert [(e.uid, e.sequences[0].ids.tolist()) for e in once] == [(e.uid, e.sequences[0].ids.tolist()) for e in again]
    plain = drawn(Group(), 1)[1]
    assert [e.sequences[0].ids.tolist() for e in once[:4]] == [e.sequences[0].ids.tolist() for e in plain]


def test_the_inducer_is_context_and_what_members_share_is_one_node() -> None:
    _, episodes = drawn(SerialGroup(inducer="="), 5)
    for e in episodes:
        e.reward = {"task": float(e.uid % 2)}
    batch = pack(episodes)
    assert not bool((batch.policy_N & (batch.source_N == Source.INJECTED)).any())
    sampled = {n for n, who in zip(batch.node_N.tolist(), batch.source_N.tolist(), strict=True) if who == Source.POLICY}
    paths = sum(e.tokens for e in episodes[:4])
    answers = sum(e.tokens - (int(e.notes["exit"].values[0]) - e.sequences[0].prompt_len) for e in episodes[4:])
    assert len(sampled) == paths + answers < int((batch.source_N == Source.POLICY).sum())


def test_a_short_path_has_few_exits_and_a_long_inducer_none() -> None:
    _, episodes = drawn(SerialGroup(), 8, max_tokens=3)  # one token of the path, the inducer, one to answer
    assert all(len(members) <= 2 for members in serial_groups(episodes).values())
    with pytest.raises(ValueError, match="inducer='now answer' has 10 tokens, and an answer max_tokens=11: no exit"):
        drawn(SerialGroup(inducer="now answer"), 4, max_tokens=11)
