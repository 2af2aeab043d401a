"""Evidence for vapo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from typing import Any

import evidence
import pytest
import torch
from hand import answer, batch_of, column, mean, worked
from six_answers import close

from gruppo.data import Batch, Status, Use
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.vapo import CriticFirst, ImitateRight, LengthAdaptiveGae, adaptive_lambda
from gruppo.stages import Context

test_laws = evidence.laws("vapo")
test_asks = evidence.asks("vapo")
test_terms = evidence.terms("vapo")
test_planted_mistakes = evidence.planted("vapo")
test_equivalences = evidence.equivalences("vapo")
test_resume = evidence.resume("vapo")


def test_vapo_card() -> None:
    """Card B12: l = 20 → λ = 0, 100 → .8, 1000 → .98; shorter answers are held at 0."""
    lengths = torch.tensor([0.0, 1.0, 20.0, 100.0, 1000.0], dtype=torch.float64)
    close(column(adaptive_lambda(lengths, 0.05)), [0.0, 0.0, 0.0, 0.8, 0.98])


def vapo_credit(credit: LengthAdaptiveGae, *episodes: Any, values: list[float]) -> dict[str, list[float]]:
    batch = batch_of(list(episodes), value_critic_N=values)
    return {k: column(v) for k, v in credit(Context(), batch).items()}


def test_vapo_decouples_the_two_lambdas() -> None:
    """V = .2, .4, .6, reward 1 at the end (card B03). The critic's target is the return, 1, at every token.

    The policy's λ: 3 tokens with length_share 1 → 1 − 1/3 = 2/3. δ = .2, .2, .4, so Â_3 = .4,
    Â_2 = .2 + 2/3 · .4 = 7/15, Â_1 = .2 + 2/3 · 7/15 = 23/45; whitened: (x − m) / sqrt(var + 1e-8)."""
    out = vapo_credit(LengthAdaptiveGae(length_share=1.0), answer(0, "g", 3, 1.0), values=[0.2, 0.4, 0.6])
    close(out["ret_N"], [1.0, 1.0, 1.0])
    raw = [23 / 45, 7 / 15, 0.4]
    scale = math.sqrt(sum((x - mean(raw)) ** 2 for x in raw) / 2 + 1e-8)
    close(out["adv_N"], [(x - mean(raw)) / scale for x in raw])


def test_vapo_has_a_lambda_for_each_answer() -> None:
    """Length_share 1: an answer of 2 tokens has λ = ½, one of 4 has ¾. Before whitening, V = 0: Â of the first token
    is λ^(T−1) R: ½ and 27/64; so the whitened ones have these distances."""
    two, four = answer(0, "g", 2, 1.0), answer(1, "g", 4, 1.0)
    out = vapo_credit(LengthAdaptiveGae(length_share=1.0), two, four, values=[0.0] * 6)["adv_N"]
    raw = [0.5, 1.0, 27 / 64, 9 / 16, 3 / 4, 1.0]
    unit = (out[1] - out[0]) / (raw[1] - raw[0])
    close([(x - out[0]) / unit for x in out], [x - raw[0] for x in raw])


def test_vapo_marks_right_answers() -> None:
    """Judged, and above 0. A failed answer, and one apart, is not right whatever reward it had."""
    episodes = [answer(0, "g", 2, 1.0), answer(1, "g", 1, 0.0), answer(2, "g", 1, -1.0)]
    episodes += [answer(3, "g", 1, 1.0, status=Status.ENV_ERROR), answer(4, "g", 1, 1.0, use=Use.APART)]
    out = vapo_credit(LengthAdaptiveGae(), *episodes, values=[0.0] * 6)
    assert out["right_N"] == [1, 1, 0, 0, 0, 0]


def imitation(rewards: list[float]) -> tuple[float, list[float]]:
    episodes = [answer(i, "g", n, r) for i, (n, r) in enumerate(zip((2, 3, 1), rewards, strict=True))]
    batch = batch_of(episodes, value_critic_N=[0.0] * 6)
    batch = batch.with_columns(**LengthAdaptiveGae()(Context(), batch))
    logp_N = torch.tensor([-1.0, -2.0, -3.0, -1.0, -1.0, -0.5], dtype=torch.float64, requires_grad=True)
    [term] = worked(ImitateRight(nll_coef=0.1), batch, logp_N=logp_N).values()
    total = term.total(batch)
    return float(total.detach()), column(torch.autograd.grad(total, logp_N)[0])


def test_vapo_imitates_right_answers() -> None:
    """Card B12: μ Σ log π of right answers / their tokens: .1 · (−1 − 2 − .5) / 3; nothing when none is right."""
    value, slope = imitation([1.0, 0.0, 1.0])
    close(value, -0.35 / 3)
    close(slope, [0.1 / 3, 0.1 / 3, 0, 0, 0, 0.1 / 3])
    value, slope = imitation([0.0, 0.0, 0.0])
    assert value == 0.0 and slope == [0.0] * 6


def flat(world: World, role: str) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in world.models[role].parameters()])


@pytest.mark.parametrize("step", [0, 2, 3])
def test_vapo_trains_the_critic_alone_first(step: int) -> None:
    """warmup = 3: at steps 0 to 2 only the critic moves, from step 3 on both do."""
    vapo = method("vapo").but(update=CriticFirst(minibatches=2, warmup=3))
    world = World(vapo, 0)
    world.ctx.step = step
    batch = world.prepared(world.packed(random_episodes(0)))
    before = {role: flat(world, role) for role in ("policy", "critic")}
    vapo.update(world.ctx, world.learner, batch)
    moved = {role: not torch.equal(x, flat(world, role)) for role, x in before.items()}
    assert moved == {"policy": step >= 3, "critic": True}


def test_without_a_critic_there_is_no_warm_up() -> None:
    grpo = method("grpo").but(update=CriticFirst(warmup=3))
    world = World(grpo, 0)
    before = flat(world, "policy")
    grpo.update(world.ctx, world.learner, world.prepared(world.packed(random_episodes(0))))
    assert not torch.equal(before, flat(world, "policy"))


def test_lambda_by_the_length() -> None:
    """1 − 1/(share · length), at least 0; an answer without tokens counts as one of one."""
    length = torch.tensor([0.0, 1.0, 2.0, 5.0, 50.0], dtype=torch.float64)
    assert adaptive_lambda(length, 2.0).tolist() == pytest.approx([0.5, 0.5, 0.75, 0.9, 0.99])
    assert adaptive_lambda(length, 0.05).tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.6])


def test_an_open_answer_goes_on_from_its_last_value() -> None:
    """Both returns: the critic's target of an open answer is its last value, all of it with λ = 1."""
    whole, unfinished = answer(1, "g", 2, 1.0), answer(2, "g", 2, None, status=Status.OPEN)
    batch = batch_of([whole, unfinished], value_critic_N=[0.3, 0.4, 0.5, 0.6])
    made = LengthAdaptiveGae()(Context(), batch)
    assert made["ret_N"].tolist() == pytest.approx([1.0, 1.0, 0.6, 0.6])
    assert made["right_N"].tolist() == [1.0, 1.0, 0.0, 0.0]
    half = LengthAdaptiveGae(gamma=0.5)(Context(), batch)["ret_N"].tolist()
    assert half == pytest.approx([0.5, 1.0, 0.15, 0.3])


class Learner:
    def __init__(self, *trained: str) -> None:
        self.trained, self.steps = trained, list[tuple[str, int]]()
        self.writers = ("policy", "verifier")

    def step(self, role: str, part: Batch) -> None:
        self.steps.append((role, len(part.uid_E)))


@pytest.mark.parametrize(
    ("step", "trained", "roles"),
    [(0, "policy critic", ["critic"]), (9, "policy critic", ["critic"]), (10, "policy critic", ["policy", "critic"]),
     (0, "policy", ["policy"]), (0, "policy critic verifier", ["critic"]),
     (0, "policy verifier", ["policy", "verifier"])],
)  # fmt: skip
def test_the_critic_first(step: int, trained: str, roles: list[str]) -> None:
    batch = batch_of([answer(i, f"g{i}", 1, 1.0) for i in range(4)])
    learner = Learner(*trained.split())
    CriticFirst(epochs=3, minibatches=2)(Context(step=step), learner, batch)
    assert learner.steps == [(role, 2) for _ in range(6) for role in roles]
