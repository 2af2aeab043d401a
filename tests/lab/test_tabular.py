"""The trainer on exact worlds: its tables, batches and gradients are those of the laboratory and of the trainer."""

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from gruppo.data import Batch, pack
from gruppo.lab.exact.bench import Bench
from gruppo.lab.exact.trial import Trial
from gruppo.lab.exact.world import ExactWorld, TablePolicy, entropy
from gruppo.lab.tabular import Setup, World, train_exact
from gruppo.lab.tabular.frame import Frame
from gruppo.lab.tabular.learner import TableLearner
from gruppo.lab.tabular.measure import measured
from gruppo.lab.tabular.probe import EveryGroup, Found, Probe
from gruppo.lab.tabular.quick import prepared
from gruppo.lab.tabular.tables import Tables
from gruppo.methods import method
from gruppo.stages import Context, Memory, need
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.curriculum import Uniform
from gruppo.train.forward import serve
from gruppo.train.learner import Learner, OptimConfig

WORLDS = [ExactWorld(), World(prompts=5, answers=9, depth=2, right=2).of(3), World(prompts=3, answers=8).of(1)]
CLIP = 0.142
SMALL = World(prompts=6, answers=9, depth=2, right=3)


def moved(tables: Tables, world: ExactWorld, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(1, tables.prompts, tables.cells, generator=torch.Generator().manual_seed(seed)).double()
    return tables.start([world]) + 0.7 * noise


@pytest.mark.parametrize("world", WORLDS)
def test_tables_say_what_the_laboratory_and_the_trainer_say(world: ExactWorld) -> None:
    tables, bench = Tables(world), Bench(world)
    assert torch.allclose(tables.start([world])[0].flatten(), world.theta, atol=1e-13)
    theta = moved(tables, world)
    assert torch.allclose(tables.log_mass(theta)[0], bench.log_mass(theta.flatten()), atol=1e-13)
    batch = Frame(tables, torch.tensor([0]), tables.prompts, tables.answers).batch(
        torch.arange(tables.prompts)[None], torch.arange(tables.answers).repeat(tables.prompts)
    )
    model = TablePolicy(world, theta.flatten())
    for readout, table in (("logp", tables.log_p(theta)), ("entropy", tables.entropy(theta))):
        said = serve(model, batch, [need(readout)])[f"{readout}_policy_N"]
        assert torch.allclose(table.flatten()[batch.cell_N], said, atol=1e-13)


@pytest.mark.parametrize("world", WORLDS)
def test_a_frame_is_what_pack_makes_of_the_episodes(world: ExactWorld) -> None:
    """Twice, because the second batch of equally long answers is made from the first."""
    tables = Tables(world)
    frame = Frame(tables, torch.tensor([0, 5]), 2, 3)
    for turn in range(2):
        asked_PX = torch.tensor([[0, 2], [1, 0]])
        answer_E = (torch.arange(12) * (turn + 2)) % tables.answers
        batch = frame.batch(asked_PX, answer_E)
        numbers = (asked_PX.flatten().repeat_interleave(3) * tables.answers + answer_E).tolist()
        episodes = [world.episode(int(u), n) for u, n in zip(frame.uid_E, numbers, strict=True)]
        for e, g in zip(episodes, frame.group_E.tolist(), strict=True):
            e.group = f"group {g}"
        want = pack(episodes, dtype=torch.float64)
        for name, x in want.columns.items():
            if name != "uid_G":  # of the place in the step, not of the prompt
                assert torch.equal(batch.columns[name].nan_to_num(-7), x.nan_to_num(-7)), name
        for name in ("ids_M", "pos_M", "seq_M", "parent_M", "at_N"):
            assert torch.equal(getattr(batch.inputs, name), getattr(want.inputs, name)), name
        assert batch.drawn == want.drawn and batch.components == want.components


# ---- gradients


def a_step(name: str, world: ExactWorld, parts: int = 3) -> tuple[TableLearner, Batch, Tables]:
    """Steps of some policies, after credit and selection."""
    tables, m = Tables(world), method(name)
    theta = torch.cat([moved(tables, world, s) for s in range(parts)])
    learner = TableLearner(m, tables, theta, OptimConfig(lr=0.1, weight_decay=0.1))
    learner.start = tables.start([world]).expand(parts, -1, -1)
    ctx = Context(prompts=2, samples=4, memory=Memory())
    asked_PX = torch.tensor([[0, 2], [1, 0], [2, 1]])[:parts]
    learner.begin(ctx, torch.arange(parts), asked_PX)
    frame = Frame(tables, torch.arange(parts), 2, 4)
    luck = torch.rand(len(frame.uid_E), generator=torch.Generator().manual_seed(1)).double()
    batch = prepared(m, learner, ctx, frame.batch(asked_PX, learner.sampled(luck)))
    return learner, batch, tables


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gspo", "gpg", "cispo"])
def test_a_part_of_a_batch_has_the_gradient_of_the_trainer_alone(name: str, world: ExactWorld) -> None:
    learner, batch, _ = a_step(name, world)
    learner.grad("policy", batch)
    whole = learner._spread(learner.grad_PXJ)
    for p in range(3):
        rows_E = torch.nonzero(batch.spread(batch.part_G, "G", "E") == p)[:, 0]
        alone = batch.minibatch(rows_E)
        model = TablePolicy(world, learner.theta[p].flatten())
        trainer = Learner(method(name), {"policy": model, "ref": TablePolicy(world, world.theta)}, OptimConfig())
        trainer.begin(learner.ctx)
        assert torch.allclose(whole[p].flatten(), -trainer.gradient("policy", alone), atol=1e-13), p


def test_steps_are_those_of_the_trainers_optimiser() -> None:
    """Three steps of AdamW with a norm that clips in one part and not in another, and weight decay."""
    learner, batch, _ = a_step("grpo", WORLDS[0])
    learner.config = OptimConfig(lr=0.1, weight_decay=0.1, clip_norm=CLIP)
    trainers = []
    for p in range(3):
        part = batch.minibatch(torch.nonzero(batch.spread(batch.part_G, "G", "E") == p)[:, 0])
        models = {"policy": TablePolicy(WORLDS[0], learner.theta[p].flatten()), "ref": TablePolicy(*start())}
        trainers.append((Learner(method("grpo"), models, learner.config), part))
    norms = []
    for _ in range(3):
        learner.step("policy", batch)
        norms.append(learner.grad_PXJ.flatten(1).norm(dim=1))
        for trainer, part in trainers:
            trainer.begin(learner.ctx)
            trainer.step("policy", part)
    assert bool((torch.stack(norms) > CLIP).any()) and bool((torch.stack(norms) < CLIP).any())
    for p, (trainer, _) in enumerate(trainers):
        assert torch.allclose(trainer.models["policy"].theta, learner.theta[p].flatten(), atol=1e-11)


def start() -> tuple[ExactWorld, torch.Tensor]:
    return WORLDS[0], WORLDS[0].theta


# One of each kind: by token, by sequence, of a whole group, of a whole step.
FEW, MORE = ("grpo", "gspo", "grpo_passk", "disco"), ("dr_grpo", "rloo", "opo", "dmpo")


@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_the_expected_gradient_is_that_of_the_laboratory(name: str) -> None:
    """At the start and elsewhere, to 1e-12; and with it the variance."""
    world, m = ExactWorld(rates=(0.2, 0.7), answers=("", "a", "ab", "b"), right=("a", "b")), method(name)
    tables, setup = Tables(world), Setup(world=World(prompts=2), prompts=1, samples=3)
    first = tables.start([world])[0]
    every = EveryGroup(Probe(m, setup, tables, together=True), 1)
    with closing(Trial(m, Bench(world, warm=0), 1, 3)) as trial:
        for theta in (first, moved(tables, world)[0]):
            found, want = every.found(theta, first, 0), trial.moments(theta.flatten())
            assert torch.allclose(found.chance_D, want.chance_C, atol=1e-14)
            assert float((found.mean(2).flatten() - want.mean_T).abs().max()) < 1e-12
            noise = float(want.chance_C @ (want.grad_CT - want.mean_T).square().sum(1)) / float(
                want.mean_T.square().sum()
            )
            assert found.noise(2) == pytest.approx(noise, rel=1e-9)


def test_draws_estimate_what_all_groups_give() -> None:
    """Noise and falls over 4,000 draws are near the exact ones, which the sum over all groups has."""
    world = World(prompts=2, answers=4, right=2).of(0)
    m, tables, setup = method("grpo"), Tables(world), Setup(world=World(prompts=2), prompts=1, samples=3)
    probe, first = Probe(m, setup, tables, together=True), tables.start([world])[0]
    exact, drawn = EveryGroup(probe, 1).found(first, first, 0), probe.sampled(first, first, 0, 4000, 0)
    assert drawn.noise(2) == pytest.approx(exact.noise(2), rel=0.1)
    assert drawn.falls(tables, first) == pytest.approx(exact.falls(tables, first), abs=0.03)
    assert (drawn.mean(2) - exact.mean(2)).norm() < 0.1 * exact.mean(2).norm()


def test_a_right_answer_that_falls_is_counted() -> None:
    """One prompt, answers a b c, a and b right; along (1, 0, 0) b falls and a does not; along 0 nothing does."""
    world = ExactWorld(rates=(0.5,), answers=("a", "b", "c"), right=("a", "b"))
    tables = Tables(world)
    grad = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]]).double()
    found = Found(grad, torch.zeros(2, 1, dtype=torch.int64), torch.tensor([0.25, 0.75]).double(), False)
    assert found.falls(tables, tables.start([world])[0]) == pytest.approx(0.25 * 0.5)
    assert found.noise(1) == pytest.approx((0.25 - 0.0625) / 0.0625)


# ---- training


def test_a_seed_is_the_same_among_others_and_alone() -> None:
    for name in ("grpo", "gspo"):
        setup = Setup(SMALL, steps=9, prompts=4, samples=4, every=3)
        among, alone = train_exact(name, setup, seeds=[2, 0, 7]), train_exact(name, setup, seeds=[7])
        assert among.how == "together" and among.steps == [0, 3, 6, 9]
        assert torch.allclose(among.theta[2], alone.theta[0], atol=1e-12)
        for metric in ("reward", "grad_norm", "clip_fraction"):
            ours, theirs = among.of(metric)[1:, 2], alone.of(metric)[1:, 0]
            assert ours == pytest.approx(theirs, rel=1e-9), metric
        assert not torch.allclose(among.theta[0], among.theta[1])


@dataclass(frozen=True)
class MixesLater(GroupNormalised):
    """From step 4 on, all advantages are relative to the mean of the batch."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Any]:
        out = super().__call__(ctx, batch)
        return {"adv_N": out["adv_N"] * (1 + batch.reward_E.mean())} if ctx.step >= 4 else out


def test_a_room_that_mixes_seeds_is_noticed_and_each_seed_trained_alone() -> None:
    setup = Setup(SMALL, steps=6, prompts=4, samples=4, every=0)
    mixing = method("grpo").but(name="mixing", credit=MixesLater())
    among, alone = train_exact(mixing, setup, seeds=3), train_exact(mixing, setup, seeds=[1])
    assert among.how == "apart" and "at step 4" in among.why
    assert torch.allclose(among.theta[1], alone.theta[0], atol=1e-12)
    assert train_exact("bnpo", setup, seeds=2).how == "apart"  # one divisor for the batch


def test_the_loop_and_the_quick_way_agree_on_what_an_sgd_step_is() -> None:
    """The same gradient on average: one step of many answers to all prompts, in both ways, from the same table."""
    setup = Setup(World(prompts=2, answers=3, right=1), steps=1, prompts=2, samples=400, optimiser="sgd", every=0)
    plain, loop = method("rloo"), method("rloo").but(curriculum=Mine())
    quick, slow = (train_exact(m, setup, seeds=1, lr=1.0, clip_norm=float("inf")) for m in (plain, loop))
    assert (quick.how, slow.how) == ("together", "loop")
    start = Tables(setup.world.of(0)).start([setup.world.of(0)])
    one, two = quick.theta - start, slow.theta - start
    assert float((one - two).norm()) < 0.25 * float(one.norm()) and float(one.norm()) > 0.05


@dataclass(frozen=True)
class Mine(Uniform):
    """A curriculum of one's own, which asks as usual."""


def test_the_expected_gradient_climbs_and_is_the_same_by_draw() -> None:
    """`reinforce` remembers steps, so that the laboratory adds its draws up one by one."""
    setup = Setup(World(prompts=2, answers=3, right=1), steps=4, prompts=1, samples=2, gradient="expected", every=1)
    one = train_exact("rloo", setup, seeds=2, optimiser="sgd", lr=0.5)
    assert one.how == "expected" and not one.why and bool((one.of("reward")[1:] > one.of("reward")[:-1]).all())
    other = train_exact("reinforce", setup, seeds=2, optimiser="sgd", lr=0.5)
    assert "remembers" in other.why and bool((other.of("reward")[-1] > other.of("reward")[0]).all())


def test_noise_along_the_expected_gradient_is_exact() -> None:
    """At the start it is that of all groups, whatever the number of draws that is asked for."""
    setup = Setup(World(prompts=2, answers=3, right=1), steps=1, prompts=1, samples=2, gradient="expected", noise=1)
    done = train_exact("grpo", setup, seeds=[4])
    tables, first = Tables(setup.world.of(4)), Tables(setup.world.of(4)).start([setup.world.of(4)])[0]
    found = EveryGroup(Probe(method("grpo"), setup, tables, together=True), 1).found(first, first, 0)
    assert done.of("noise")[0, 0] == pytest.approx(found.noise(2), rel=1e-12)
    assert done.of("falls")[0, 0] == pytest.approx(found.falls(tables, first), rel=1e-12)
    assert "noise" not in train_exact("reinforce", setup, seeds=1).columns  # added up by the laboratory


def test_the_true_gradient_is_followed_by_an_unbiased_method() -> None:
    """One expected step of rloo by sgd is lr · prompts · ∇J, with ∇J from the measured reward itself."""
    setup = Setup(World(prompts=2, answers=3, right=1), steps=1, prompts=1, samples=2, gradient="expected", every=0)
    m = method("rloo").but(objective=method("dr_grpo").objective)  # sums tokens, divides by their largest number
    done = train_exact(m, setup, seeds=1, optimiser="sgd", lr=0.5, clip_norm=float("inf"))
    tables = Tables(setup.world.of(0))
    theta = tables.start([setup.world.of(0)]).requires_grad_()
    [true] = torch.autograd.grad(measured(tables, theta, theta.detach())["reward"].sum(), theta)
    assert torch.allclose(done.theta - theta.detach(), 0.5 * true / tables.max_tokens, atol=1e-12)


def test_measures_by_hand() -> None:
    """Two prompts: one with chances 1/2, 1/4, 1/4 of a, b (right) and c; one where all has gone to a."""
    world = ExactWorld(rates=(0.5, 0.5), answers=("a", "b", "c"), right=("a", "b"))
    tables = Tables(world)
    theta = torch.tensor([[[0.5, 0.25, 0.25], [1.0, 1e-30, 1e-30]]]).double().log()
    flat = torch.zeros(1, 2, 3).double()
    got = {k: float(v[0]) for k, v in measured(tables, theta, flat).items()}
    log = torch.tensor([2.0, 3.0]).double().log().tolist()
    assert got["reward"] == pytest.approx((0.75 + 1) / 2)
    assert got["entropy"] == pytest.approx((1.5 * log[0] + 0) / 2)
    assert got["right_entropy"] == pytest.approx((log[1] - 2 / 3 * log[0]) / 2)
    assert got["kl_start"] == pytest.approx((log[1] - 1.5 * log[0] + log[1]) / 2)
    assert got["pass@8"] == pytest.approx((1 - 0.25**8 + 1) / 2)
    assert entropy(tables.log_mass(theta)[0].exp()) == pytest.approx(got["entropy"])


def test_settings_that_make_no_sense() -> None:
    for changes, said in (
        ({"prompts": 99}, "the world has 64"),
        ({"world": World(answers=15, depth=2)}, "no alphabet"),
        ({"world": World(right=16)}, "must be wrong ones"),
        ({"stepz": 3}, "nearest: steps"),
        ({"seeds": [1, 1]}, "same one twice"),
        ({"seeds": "abc"}, "seeds=abc: no run"),
        ({"seeds": 1.5}, "seeds=1.5: no run"),
        ({"world": 3}, r"world=3: .* Write world\.prompts=VALUE"),
        ({"optim": None}, r"optim=None: .* Write optim\."),
        ({"samples": 9, "gradient": "expected"}, "different draws"),
    ):
        with pytest.raises(ValueError, match=said):
            train_exact("grpo", **{"seeds": 1, "steps": 1, **changes})
    with pytest.raises(ValueError, match=r"rewrd: it was not measured \(nearest: reward"):
        train_exact("grpo", seeds=1, steps=1).last("rewrd")
