"""The tiny policy and the draws are what they say: checked by sums that share no code with them."""

import math
from collections.abc import Callable
from itertools import product

import by_hand
import numpy as np
import pytest
import torch

from gruppo.data import pack
from gruppo.engines.base import Request
from gruppo.lab.exact.bench import Bench
from gruppo.lab.exact.groups import Masses, Script, Unlike, all_draws
from gruppo.lab.exact.world import ExactWorld, TableCritic, TablePolicy, entropy
from gruppo.stages import need
from gruppo.train.forward import serve

WORLDS = [
    ExactWorld(),
    ExactWorld(rates=(0.25, 0.6, 0.99), answers=("a", "b", "cab"), right=("cab",), seed=3),
    ExactWorld(rates=(0.5,), answers=("", "a"), right=("",)),
]


@pytest.mark.parametrize("world", WORLDS)
def test_masses_are_those_of_the_table(world: ExactWorld) -> None:
    bench = Bench(world)
    mass = bench.log_mass(world.theta).exp()
    assert np.allclose(mass.numpy(), by_hand.mass(world, world.theta.numpy()), atol=1e-14)
    assert torch.allclose(mass, world.mass_QA, atol=1e-14)
    assert torch.allclose(mass.sum(1), torch.ones(len(world.rates)).double(), atol=1e-14)
    solved = (mass * world.reward_QA).sum(1)
    assert torch.allclose(solved, torch.tensor(world.rates, dtype=torch.float64), atol=1e-14)


@pytest.mark.parametrize("world", WORLDS)
def test_the_trainer_reads_the_same_log_probabilities(world: ExactWorld) -> None:
    """The table as a model, through pack, forward and readout."""
    width = len(world.answers)
    batch = pack([world.episode(i, i) for i in range(len(world.rates) * width)], dtype=torch.float64)
    logp_N = serve(TablePolicy(world, world.theta), batch, [need("logp")])["logp_policy_N"]
    logp_E = batch.gather(logp_N, "N", "E", "sum")
    assert torch.allclose(logp_E.exp().view(-1, width), world.mass_QA, atol=1e-14)


def test_a_critic_knows_what_is_still_to_be_won() -> None:
    world = ExactWorld()
    values = TableCritic(world, world.mass_QA).values[:, 0].detach()
    for q, p in enumerate(world.rates):
        mass = dict(zip(world.answers, world.mass_QA[q].tolist(), strict=True))
        assert float(values[world.node(q, "")]) == pytest.approx(p)
        after_a = sum(mass[a] for a in ("a", "ab")) / sum(mass[a] for a in ("a", "aa", "ab"))
        assert float(values[world.node(q, "a")]) == pytest.approx(after_a)
        assert float(values[world.node(q, "bb")]) == 1.0 and float(values[world.node(q, "ba")]) == 0.0
    assert not TableCritic(world, None).values.any()


def test_entropy() -> None:
    assert float(entropy(torch.full((3, 4), 0.25))) == pytest.approx(math.log(4))
    assert float(entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))) == pytest.approx(math.log(2) / 2)


@pytest.mark.parametrize("prompts, samples", [(1, 3), (2, 2), (3, 1)])
def test_draws_are_all_draws(prompts: int, samples: int) -> None:
    """Ordered samples, counted one by one, fall into the sets with these probabilities."""
    world = ExactWorld(rates=(0.2, 0.5, 0.8), answers=("a", "b", ""), right=("a",))
    draws, width = all_draws(world, prompts, samples), len(world.answers)
    chance = draws.chances(world.mass_QA.log())
    assert float(chance.sum()) == pytest.approx(1.0, abs=1e-14)
    want: dict[tuple[int, ...], float] = {}
    subsets = [s for s in product(range(3), repeat=prompts) if list(s) == sorted(set(s))]
    for qs in subsets:
        for picks in product(range(width), repeat=prompts * samples):
            rows = [qs[i // samples] * width + a for i, a in enumerate(picks)]
            key = tuple(sorted(rows))
            p = math.prod(float(world.mass_QA[r // width, r % width]) for r in rows) / len(subsets)
            want[key] = want.get(key, 0.0) + p
    got = {tuple(sorted(row)): float(c) for row, c in zip(draws.places.tolist(), chance, strict=True)}
    assert got.keys() == want.keys() and all(got[k] == pytest.approx(want[k]) for k in want)


@pytest.mark.parametrize(
    "world, said",
    [
        ({"rates": (0.5, 1.0)}, "between 0 and 1"),
        ({"rates": ()}, "between 0 and 1"),
        ({"rates": (0.5,) * 257}, "Give fewer"),
        ({"right": ("z",)}, "some of the answers"),
        ({"right": ()}, "some of the answers"),
        ({"answers": ("a",), "right": ("a",)}, "not all"),
        ({"answers": ("a", "B"), "right": ("a",)}, "small letters"),
        ({"answers": ("a", "b", "a"), "right": ("a",)}, "different words"),
    ],
)
def test_worlds_that_make_no_sense(world: dict[str, tuple[str, ...]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ExactWorld(**world)  # type: ignore[arg-type]


def test_too_many_draws_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"150300150 different draws.*Use fewer samples"):
        all_draws(ExactWorld(), 2, 9)
    with pytest.raises(ValueError, match="has 4 different prompts"):
        all_draws(ExactWorld(), 5, 1)
    with pytest.raises(ValueError, match="samples=0"):
        all_draws(ExactWorld(), 1, 0)


async def _asked(script: Script, *requests: Request) -> list[list[int]]:
    return [c.ids.tolist() async for _, c in script.generate(requests)]


def test_the_script_hands_out_a_draw_and_refuses_other_luck() -> None:
    import asyncio

    world = ExactWorld()
    script, prompt, width = Script(world, lambda *key: 0.5, masses(world)), world.prompt(1), len(world.answers)
    script.begin([width + 2, width + 4])
    plain, greedy = Request(prompt, 4, 0), Request(prompt, 4, 0, temperature=0.0)
    got = asyncio.run(_asked(script, plain, greedy, plain))
    best = int(world.mass_QA[1].argmax())
    assert got == [world.ids(2).tolist(), world.ids(best).tolist(), world.ids(4).tolist()]
    assert script.taken(2) == 2
    for strange, said in (
        (Request(world.prompt(1)[:-1], 4, 0), "without a prompt"),
        (Request(np.append(prompt, [world.tokenizer.eos] * 2), 4, 0), "begin no answer"),
        (Request(prompt, 4, 0, top_k=1), "truncated"),
        (Request(prompt, 4, 0, role="teacher"), "teacher"),
    ):
        with pytest.raises(Unlike, match=said):
            asyncio.run(_asked(script, strange))
    script.begin([width, width + 1])
    asyncio.run(_asked(script, plain))
    assert script.taken(2) == 1


def masses(world: ExactWorld, heard: list[float] | None = None) -> Callable[[float], Masses]:
    """What the policy says of whole answers; at a temperature, P^(1/T) over its sum, as nobody would sample tokens."""

    def at(temperature: float) -> Masses:
        if heard is not None:
            heard.append(temperature)
        warm = world.mass_QA ** (1 / temperature)
        lengths = [len(world.ids(a)) for _ in world.rates for a in range(len(world.answers))]
        return Masses(warm / warm.sum(1, keepdim=True), [torch.full((n,), -0.5) for n in lengths])

    return at


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("written", [0, 1])
def test_what_the_draw_does_not_have_is_sampled_by_luck(written: int, temperature: float) -> None:
    """More answers, and what goes on from inside one, as often as the policy would, given what is written."""
    import asyncio

    world = ExactWorld()
    answers = [world.ids(a).tolist() for a in range(len(world.answers))]
    start, points = answers[3][:written], 400
    heard: list[float] = []
    script = Script(world, lambda name, key: key / points, masses(world, heard))
    script.begin([len(answers) + 1] if temperature != 1 else [])  # what is heated is not answered from the draw
    prefix = np.array([*world.prompt(1), *start], np.int64)
    got = asyncio.run(_asked(script, *(Request(prefix, 4, i, temperature=temperature) for i in range(points))))
    assert set(heard) == {temperature} and script.taken(1) == (temperature == 1)
    warm = masses(world)(temperature).mass[1]
    mass = [float(m) * (a[:written] == start) for m, a in zip(warm, answers, strict=True)]
    shares = [sum(start + rest == a for rest in got) / points for a in answers]
    assert shares == pytest.approx([m / sum(mass) for m in mass], abs=2 / points)
