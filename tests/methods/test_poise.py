"""Evidence for poise: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from typing import Any

import evidence
import numpy as np
import pytest
import torch
from hand import answer, batch_of, column, mean
from looking_back import seen
from six_answers import close

from gruppo.data import Batch, Episode, Source, Status, Use
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.same import far
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.poise import POISE, StateProbe, others
from gruppo.pieces import probe
from gruppo.stages import Context, Memory, Need, StepRecord
from gruppo.stages.credit import RunningBaseline

test_laws = evidence.laws("poise")
test_asks = evidence.asks("poise")
test_planted_mistakes = evidence.planted("poise")
test_equivalences = evidence.equivalences("poise")
test_resume = evidence.resume("poise")


NEEDS: tuple[Need, ...] = StateProbe().needs(Context())


DIM = 2


def told(episodes: list[Episode], entropies: list[float], states: list[list[float]] | None = None) -> Batch:
    """A batch with what the probe reads: entropies of tokens, states of answers; those of prompts are 0."""
    batch = batch_of(episodes, entropy_old_N=entropies)
    states = states or [[0.0] * DIM] * len(episodes)
    pools = {NEEDS[0].column: torch.tensor(states).double(), NEEDS[1].column: torch.zeros(len(episodes), DIM).double()}
    return batch.with_columns(**pools)


def reads_entropy(intercept: float = 0.0) -> Memory:
    """A probe whose answer is the mean entropy."""
    size = 2 * DIM + 3
    zero, one = torch.zeros(size).double(), torch.ones(size).double()
    weight = zero.clone()
    weight[2 * DIM] = 1.0 if intercept == 0 else 0.0
    known = {"mean": zero, "scale": one, "weight": weight, "intercept": torch.tensor(intercept, dtype=torch.float64)}
    return Memory(probe=known)


def pair(*rewards: float, **fields: Any) -> list[Episode]:
    return [answer(i, "g", 1, r, **fields) for i, r in enumerate(rewards)]


def credit(batch: Batch, memory: Memory) -> list[float]:
    return column(StateProbe()(Context(memory=memory), batch)["adv_N"])


def test_poise_card() -> None:
    """Card S051: R = (1, 0), the probe says .6 of the first and .7 of the second: A = 1 − .7, 0 − .6."""
    close(credit(told(pair(1.0, 0.0), [0.6, 0.7]), reads_entropy()), [0.3, -0.6])


def test_more_than_two_answers_have_the_mean_of_the_others() -> None:
    """The probe says .6, .7 and 1.4, which counts 1, and −.5, which counts 0."""
    close(
        credit(told(pair(1.0, 0.0, 1.0, 0.0), [0.6, 0.7, 1.4, -0.5]), reads_entropy()),
        [1 - 1.7 / 3, -1.6 / 3, 1 - 1.3 / 3, -2.3 / 3],
    )


def test_an_answer_does_not_judge_itself() -> None:
    """Card S051: whatever the first answer looks like, its baseline stays; the second's moves."""
    one, two = (
        credit(told(pair(1.0, 0.0), [e, 0.7], [[s, s], [1.0, 2.0]]), reads_entropy())
        for e, s in ((0.6, 0.0), (0.1, 9.0))
    )
    assert one[0] == two[0] and one[1] != two[1]


def test_before_the_first_fit_the_others_rewards_are_the_baseline() -> None:
    close(credit(told(pair(1.0, 0.0, 0.0), [0.6, 0.7, 0.1]), Memory()), [1.0, -0.5, -0.5])


def test_edges() -> None:
    """One alone, one beside a failure: 0. A baseline episode lends its features, and is not apart."""
    assert credit(told(pair(1.0), [0.6]), reads_entropy()) == [0.0]
    failed = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 1.0, status=Status.ENV_ERROR)]
    assert credit(told(failed, [0.6, 0.7]), reads_entropy()) == [0.0, 0.0]
    apart = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 1.0, use=Use.APART)]
    assert credit(told(apart, [0.6, 0.7]), reads_entropy()) == [0.0, 0.0]
    based = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0, use=Use.BASELINE)]
    assert credit(told(based, [0.6, 0.7]), reads_entropy())[0] == pytest.approx(0.3)


def test_features_by_hand() -> None:
    """States of the answer, of the prompt, then mean, deviation over n and maximum of the entropies of its tokens."""
    batch = told([answer(0, "g", 2, 1.0), answer(1, "g", 1, 0.0)], [0.2, 0.6, 0.5], [[1.0, 2.0], [3.0, 4.0]])
    close(StateProbe().features(batch).flatten().tolist(), [1, 2, 0, 0, 0.4, 0.2, 0.6, 3, 4, 0, 0, 0.5, 0.0, 0.5])


@pytest.mark.parametrize(("rows", "features"), [(30, 4), (5, 12)])
def test_the_probe_by_another_way(rows: int, features: int) -> None:
    """Ridge regression as least squares with √α more rows; the last feature does not vary, and has no weight."""
    rng = np.random.default_rng(rows)
    x, y = rng.normal(size=(rows, features)) * 3 + 5, rng.integers(0, 2, rows).astype(float)
    x[:, -1] = 7.0
    found = probe.fit(torch.tensor(x), torch.tensor(y), 0.3)
    scale = np.where(x.std(0) > 0, x.std(0), 1.0)
    z = (x - x.mean(0)) / scale
    more = np.vstack([z, np.sqrt(0.3) * np.eye(features)])
    w = np.linalg.lstsq(more, np.concatenate([y - y.mean(), np.zeros(features)]), rcond=None)[0]
    close(column(found["weight"]), list(w))
    assert found["weight"][-1] == 0.0
    close(column(probe.predict(found, torch.tensor(x))), list(y.mean() + z @ w))


def test_it_learns_the_mean_of_the_others() -> None:
    """Two steps of pairs: the examples are (φ_1, R_2) and (φ_2, R_1), of the last `window` steps, at most `examples`
    a step; an answer alone, and one that failed, is none."""
    episodes = [answer(i, f"g{i // 2}", 1, float(i % 2)) for i in range(6)]
    episodes += [answer(6, "one", 1, 1.0), answer(7, "g0", 1, 1.0, status=Status.TIMEOUT)]
    batch = told(episodes, [0.1 * i for i in range(8)])
    memory = Memory()
    with memory.writing() as state:
        for step in range(3):
            StateProbe(window=2).observe(StepRecord(step, episodes, batch, {}), state)
    assert [len(m["y"]) for m in memory["examples"]] == [6, 6]
    entropy, want = memory["examples"][0]["x"][:, 2 * DIM], {0.1 * i: 1.0 - i % 2 for i in range(6)}
    for e, y in zip(column(entropy), column(memory["examples"][0]["y"]), strict=True):
        assert y == want[min(want, key=lambda k: abs(k - e))]
    with memory.writing() as state:
        StateProbe(examples=2, window=1).observe(StepRecord(3, episodes, batch, {}), state)
    assert [len(m["y"]) for m in memory["examples"]] == [2]
    close(column(others(batch, batch.reward_E))[:6], [1.0, 0.0] * 3)


def test_a_step_without_pairs_teaches_the_probe_nothing() -> None:
    memory = Memory()
    with memory.writing() as state:
        StateProbe().observe(StepRecord(0, [], told(pair(1.0), [0.5]), {}), state)
        StateProbe().observe(StepRecord(1, [], None, {}), state)
    assert not memory


def test_a_constant_probe_is_a_constant_baseline() -> None:
    """Card S051: if the probe says the same of everything, it is REINFORCE with that baseline, by the gradient of the
    whole method. Groups of one are left out of both."""
    episodes = [e for e in random_episodes(3) if e.group in ("g0", "g1")]
    grads = []
    for m, memory in ((POISE, {}), (POISE.but(name="fixed", credit=RunningBaseline()), {"baseline": 0.3})):
        world = World(m, 3)
        if not memory:
            width = len(StateProbe().features(world.packed(episodes))[0])
            zero, one = torch.zeros(width).double(), torch.ones(width).double()
            memory = {
                "probe": {
                    "mean": zero,
                    "scale": one,
                    "weight": zero,
                    "intercept": torch.tensor(0.3, dtype=torch.float64),
                }
            }
        world.ctx.memory = Memory(memory)
        grads.append(world.gradient(episodes))
    assert float(grads[0].norm()) > 1e-6 and far(*grads) <= 1e-9


@pytest.mark.parametrize("fields", [{"ridge": 0.0}, {"window": 0}, {"examples": 1}, {"last": 0}])
def test_refused(fields: dict[str, Any]) -> None:
    [(name, value)] = fields.items()
    with pytest.raises(ValueError, match=f"{name}={value} is out of range"):
        StateProbe(**fields)


def test_it_is_the_registered_one() -> None:
    assert method("poise").credit == StateProbe()


def pools(batch: Batch) -> Batch:
    """With states of two numbers a sequence, and entropies, of any size."""
    generator = torch.Generator().manual_seed(0)
    states = {
        n.column: torch.randn(batch.size("S"), 2, generator=generator).double()
        for n in StateProbe().needs(Context())[:2]
    }
    return batch.with_columns(entropy_old_N=torch.rand(batch.size("N"), generator=generator).double(), **states)


@pytest.mark.parametrize("seed", [0, 1])
def test_poise_features_of_answers_in_several_sequences(seed: int) -> None:
    """The mean over its sequences; mean, deviation and maximum over the tokens that the policy wrote in it."""
    batch = pools(batch_of(random_episodes(seed)))
    answer_S2, prompt_S2 = (batch.columns[n.column].tolist() for n in StateProbe().needs(Context())[:2])
    found, split = StateProbe().features(batch).tolist(), 0
    for e in range(batch.size("E")):
        if not batch.judged_E[e]:
            continue
        rows_S = [s for s, owner in enumerate(batch.episode_S.tolist()) if owner == e]
        split += len(rows_S) > 1
        mine = [
            h
            for h, owner, who in zip(
                *(x.tolist() for x in (batch.entropy_old_N, batch.episode_N, batch.source_N)), strict=True
            )
            if owner == e and who == Source.POLICY
        ]
        want = [mean([x[s][i] for s in rows_S]) for x in (answer_S2, prompt_S2) for i in range(2)]
        want += [mean(mine), float(np.std(mine)), max(mine)] if mine else [0.0] * 3
        assert found[e] == pytest.approx(want, abs=1e-12)
    assert split > 1


def test_poise_learns_from_a_single_pair() -> None:
    """Of two answers each is an example of what the other earned; of one alone nothing is learned."""
    pair = [answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0)]
    memory = seen(StateProbe(), pair, batch=pools(batch_of(pair)))
    assert sorted(memory["examples"][0]["y"].tolist()) == [0.0, 1.0] and "probe" in memory
    assert dict(seen(StateProbe(), pair[:1], batch=pools(batch_of(pair[:1])))) == {}


def test_poise_takes_other_examples_in_another_step() -> None:
    """Two of sixteen, of an episode that comes again too."""
    episodes = [answer(i, f"g{i // 2}", 1, float(i % 2)) for i in range(16)]
    memory = seen(StateProbe(examples=2, window=5), *[episodes] * 5, batch=pools(batch_of(episodes)))
    assert len({tuple(m["x"].flatten().tolist()) for m in memory["examples"]}) > 1
