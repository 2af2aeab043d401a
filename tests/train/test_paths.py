"""Rollouts that go on from what was drawn: early exits, continuations that tell a value, and answers in windows."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from train_runs import checkpoint, gruppo, metrics, train

from gruppo.cli import overrides
from gruppo.data import Episode, Source, Status, Use, pack
from gruppo.lab.laws.desk import Desk
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.s_grpo import SerialGroup
from gruppo.methods.spo_segment import Segments
from gruppo.stages import Context, Occupant, Sampling
from gruppo.stages.check import check_first_batch
from gruppo.stages.rollout import Group
from gruppo.train.checkpoint import load_checkpoint
from gruppo.train.config import RunConfig
from gruppo.train.doctor import step_zero
from gruppo.train.loop import train_step
from gruppo.train.run import Run


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


# Values by continuations


def test_continuations_start_at_every_cut_once_a_state() -> None:
    rollout = Segments(sure=0.05, interval=2, probes=3)
    _, episodes = drawn(rollout, 4, "spo_segment")
    paths = [e for e in episodes if e.use != Use.NONE]
    probes = [e for e in episodes if e.use == Use.NONE]
    plain = drawn(Group(), 4, "spo_segment")[1]
    assert [e.sequences[0].ids.tolist() for e in paths] == [e.sequences[0].ids.tolist() for e in plain]
    states = {(e.task, tuple(e.sequences[0].ids[:at].tolist())) for e in paths for at in rollout.cuts(e)}
    assert len(probes) == 3 * len(states) > 3 * 4  # the prompts, and more
    assert len({e.uid for e in episodes}) == len(episodes) and all(e.reward for e in episodes)
    begun: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    for s in states:
        mine = [p for p in probes if (p.task, tuple(p.sequences[0].ids[: len(s[1])].tolist())) == s]
        exact = [p for p in mine if int((p.sequences[0].node == -1).sum()) == len(p.sequences[0].ids) - inside(p, s)]
        begun[s] = [p.total for p in exact]
        assert len(exact) == 3 and all(len(p.sequences[0].ids) - p.sequences[0].prompt_len <= 12 for p in exact)
    for path in paths:
        ids, at = path.sequences[0].ids.tolist(), rollout.cuts(path)
        values = [float(np.mean(begun[path.task, tuple(ids[:p])])) for p in at]
        gain = path.notes["gain"].values
        assert len(gain) == path.tokens == len(path.notes["unsure"].values)
        ends = [p - path.sequences[0].prompt_len for p in at]
        assert float(gain[ends].sum()) == pytest.approx(path.total - values[0], abs=1e-6)
        below = path.sequences[0].logp[path.sequences[0].prompt_len :] < np.log(0.05)
        assert path.notes["unsure"].values.tolist() == below.astype(float).tolist()


def inside(probe: Episode, state: tuple[str, tuple[int, ...]]) -> int:
    """Decisions that the continuation shares with its path, if it parted there."""
    return len(state[1]) - probe.sequences[0].prompt_len


def test_one_segment_is_a_sample_against_the_mean_of_others() -> None:
    _, episodes = drawn(Segments(interval=99, probes=5), 3, "spo_segment")
    others = {e.task: [p.total for p in episodes if p.use == Use.NONE and p.task == e.task] for e in episodes}
    for path in (e for e in episodes if e.use != Use.NONE):
        assert len(others[path.task]) == 5
        want = path.total - float(np.mean(others[path.task]))
        assert path.notes["gain"].values.tolist() == pytest.approx([want] * path.tokens)


def test_a_run_counts_what_the_continuations_cost() -> None:
    assert train("a", "method=spo_segment", *CHAIN, "steps=1") == 0
    row = metrics("a")[1]
    assert row["sampled"] > 1.5 * row["tokens"] and row["kept"] < 1.0 and row["grad_norm"] > 0


# Windows

CHAIN = ("task=chain", "task.level=2", "prompts=4", "samples=4", "model=tiny", "save.tensorboard=no", "threads=1")


@pytest.fixture
def windows(request: pytest.FixtureRequest):
    """A run of T-PPO in windows of so many tokens, answers of at most nine."""
    settings = ("method=t_ppo", *CHAIN, "steps=9", "sampling.max_tokens=9")
    config = overrides.apply(RunConfig(), (*settings, f"method.rollout.window_tokens={request.param}"))
    run = Run(config, say=lambda said: None)
    yield run
    run.close()


@pytest.mark.parametrize("windows", [4], indirect=True)
def test_every_token_is_learned_once_in_its_window(windows: Run) -> None:
    """Over some steps: what the sampler drew is what the objective counted; answers keep their beginnings."""
    counted, known, seen = 0, dict[int, list[int]](), {Status.OPEN: 0, Status.OK: 0, Status.TRUNCATED: 0}
    for step in range(6):
        record = asyncio.run(train_step(windows, step))
        batch = record.batch
        assert batch is not None and len(record.episodes) == 16  # a place that is free is filled
        [objective] = windows.method.objectives["policy"]
        term = objective.terms(Context(version=step), batch)[0]
        counted += int(term.over.sum())
        assert bool((batch.version_N[term.over] == step).all())
        for e in record.episodes:
            ids = e.sequences[0].ids.tolist()
            assert ids[: len(known.get(e.uid, []))] == known.get(e.uid, [])
            known[e.uid] = ids
            seen[e.status] += 1
            new = int((e.sequences[0].version == step).sum())
            assert 1 <= new <= 4 and e.tokens <= 9
            assert (e.status == Status.OPEN) == (new == 4 and ids[-1] != 2 and e.tokens < 9)
            assert bool(e.reward) == (e.status != Status.OPEN)
        waiting = [e.uid for e in record.episodes if e.status == Status.OPEN]
        assert [e.uid for e in windows.replay] == waiting
        assert record.facts["open"] == len(waiting) / 16
    assert counted == windows.engine.sampled and all(seen.values())


@pytest.mark.parametrize("windows", [1], indirect=True)
def test_step_zero_and_the_first_batch_take_open_answers(windows: Run) -> None:
    """A window of one token leaves every answer open: nothing has failed, and the critic has nothing to learn yet."""
    checks = {c.name: c for c in asyncio.run(step_zero(windows))}
    assert all(c.ok for c in checks.values()) and checks["judged"].value == 1.0
    record = asyncio.run(train_step(windows, 0))
    assert {e.status for e in record.episodes} == {Status.OPEN}
    assert record.facts["grad_norm_critic"] == 0.0 and record.facts["open"] == 1.0
    assert np.isnan(record.facts["reward"]) and record.facts["failed"] == 0.0


def test_a_first_batch_that_failed_is_refused_also_beside_open_answers() -> None:
    made = drawn(Group(), 2)[1]
    for e in made:
        e.status, e.error = Status.ENV_ERROR, "broken"
    with pytest.raises(ValueError, match="no episode of the first batch was judged"):
        check_first_batch(method("t_ppo"), pack(made))


def test_a_window_as_long_as_an_answer_is_ppo() -> None:
    """By the weights of both roles after two steps, bit for bit."""
    assert train("a", "method=ppo", *CHAIN, "steps=2") == 0
    whole = ("method.rollout.window_tokens=99", "method.credit.lam_value=0.95")
    assert train("b", "method=t_ppo", *CHAIN, "steps=2", *whole) == 0
    left, right = (load_checkpoint(checkpoint(name, 2)).weights for name in ("a", "b"))
    assert left.keys() == right.keys() == {"policy", "critic"}
    for role in left:
        assert all(torch.equal(x, right[role][k]) for k, x in left[role].items())
    assert [r["reward"] for r in metrics("a")[1:]] == [r["reward"] for r in metrics("b")[1:]]


def test_open_answers_go_on_after_a_resume() -> None:
    """Five steps are two, a resume and three more: the pool is saved, and its answers are judged by another process."""
    settings = ("method=t_ppo", "method.rollout.window_tokens=4", *CHAIN, "save.checkpoint_every=2", "steps=5")
    assert train("a", *settings) == 0
    assert load_checkpoint(checkpoint("a", 5)).replay
    assert train("b", *settings[:-1], "steps=2") == 0
    assert gruppo("train", "--resume", "runs/b", "steps=5", "--allow-changes") == 0
    one, two = (load_checkpoint(checkpoint(name, 5)) for name in ("a", "b"))
    assert all(torch.equal(x, two.weights["policy"][k]) for k, x in one.weights["policy"].items())
    assert [e.uid for e in one.replay] == [e.uid for e in two.replay]
