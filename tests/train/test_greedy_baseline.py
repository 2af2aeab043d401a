"""ReMax's greedy answer: one a prompt, the most probable tokens, a baseline and nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from train_runs import gruppo

from gruppo.data import Episode, Use, pack
from gruppo.lab.laws.desk import Desk
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.policies import CharTokenizer
from gruppo.stages import Sampling, need
from gruppo.stages.check import check_first_batch
from gruppo.stages.rollout import Group
from gruppo.train.forward import serve
from gruppo.train.metrics import episode_metrics

REMAX = method("remax")


def desk(seed: int = 0) -> Desk:
    made = Desk(World(REMAX, seed))
    made.ctx.sampling = Sampling(max_tokens=6, top_p=0.9)
    return made


def split(episodes: list[Episode]) -> tuple[list[Episode], list[Episode]]:
    return [e for e in episodes if e.use == Use.LEARN], [e for e in episodes if e.use == Use.BASELINE]


def test_one_greedy_answer_a_prompt() -> None:
    """In the group of its prompt, at temperature 0, whatever the run's sampling; with a probability of 1 each token."""
    made = desk()
    episodes = made.episodes(REMAX.rollout)
    sampled, greedy = split(episodes)
    assert [e.group for e in greedy] == [p.group for p in made.prompts(())] and len(sampled) == 16
    assert len({e.uid for e in episodes}) == len(episodes)
    engine, ids = made.ctx.engine, [np.array([v]) for v in range(CharTokenizer.vocab)]
    for e in greedy:
        s = e.sequences[0]
        assert np.nanmax(np.abs(s.logp)) == 0.0 and set(s.allowed) == {*range(s.prompt_len, len(s.ids))}
        for p in range(s.prompt_len, len(s.ids)):
            every = engine.logprobs([s.ids[:p]] * len(ids), ids)
            [chosen] = engine.logprobs([s.ids[:p]], [s.ids[p : p + 1]])
            assert float(chosen[0]) >= max(float(x[0]) for x in every) - 1e-12


def test_greedy_answers_change_no_sample() -> None:
    """The samples are those of the plain rollout, token for token: luck is a function of the key."""
    sampled, greedy = split(desk().episodes(REMAX.rollout))
    plain = desk().episodes(Group())
    assert [e.uid for e in sampled] == [e.uid for e in plain]
    assert all(np.array_equal(a.sequences[0].ids, b.sequences[0].ids) for a, b in zip(sampled, plain, strict=True))
    again = desk()
    again.ctx.step = 7
    for a, b in zip(greedy, split(again.episodes(REMAX.rollout))[1], strict=True):
        assert a.uid != b.uid and np.array_equal(
            a.sequences[0].ids, b.sequences[0].ids
        )  # another step, the same answer


def test_the_trainer_reads_what_the_sampler_wrote() -> None:
    """The greedy token is the only one that could be drawn, so its log-probability is 0 for the trainer, too."""
    made = desk()
    episodes = made.episodes(REMAX.rollout)
    for e in episodes:
        e.reward = {"task": 1.0}
    batch = pack(episodes)
    logp_N = serve(made.ctx.engine.models["policy"], batch, [need("logp", "old")])["logp_old_N"]
    base_N = batch.spread(batch.use_E == Use.BASELINE, "E", "N")
    assert float(logp_N[base_N].abs().max()) == 0.0 and float(logp_N[~base_N].abs().max()) > 0
    assert float((logp_N - batch.logp_gen_N).abs().max()) < 1e-5
    assert not bool(batch.learn_N[base_N].any()) and bool(batch.learn_N[~base_N].all())


def test_metrics_leave_it_out() -> None:
    """Reward, accuracy, length and entropy are of what was sampled; a prompt is dead if sample and greedy agree."""
    sampled, greedy = split(desk().episodes(REMAX.rollout))
    for i, e in enumerate(sampled):
        e.reward = {"task": float(i % 4 == 0)}
    for e in greedy:
        e.reward = {"task": 1.0}
    both, alone = episode_metrics([*sampled, *greedy]), episode_metrics(sampled)
    for name in ("reward", "accuracy", "length", "entropy", "truncated"):
        assert both[name] == alone[name], name
    assert both["tokens"] == sum(e.tokens for e in (*sampled, *greedy)) > alone["tokens"]
    singles = [replace(e, reward={"task": 0.0}) for e in sampled[::2]]
    assert episode_metrics(singles)["dead_groups"] == 1.0
    assert episode_metrics([*singles, *greedy])["dead_groups"] == 0.0


def test_its_credit_is_refused_without_its_rollout() -> None:
    """Every advantage would be 0, and the run would go on in silence."""
    sampled, greedy = split(desk().episodes(REMAX.rollout))
    for e in (*sampled, *greedy):
        e.reward = {"task": 1.0}
    ready = World(REMAX, 0)
    check_first_batch(REMAX, ready.prepared(ready.packed([*sampled, *greedy])))
    with pytest.raises(
        ValueError, match=r"against_greedy in credit requires baseline_episodes.*method.rollout=with_greedy"
    ):
        check_first_batch(REMAX, ready.prepared(ready.packed(sampled)))


@pytest.mark.parametrize("settings", [("method=remax", "samples=1"), ("method=grpo", "method.credit=remax")])
def test_it_trains(settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample a prompt is enough; and who takes its credit takes its rollout along."""
    monkeypatch.chdir(tmp_path)
    rest = ("steps=2", "prompts=16", "eval.prompts=8", "save.name=a", "save.episodes_every=1", "save.tensorboard=no")
    assert gruppo("train", *settings, *rest, "threads=1") == 0
    rows = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert all(row["grad_norm"] > 0 and row["groups"] == 16 for row in rows[1:])
    assert max(row["sampler_gap_max"] for row in rows[1:]) < 1e-3
