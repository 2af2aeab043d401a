"""A sampler whose weights are rounded or noisy: what the copies hold, and that nobody else's weights change."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gruppo.engines import NativeEngine
from gruppo.engines.rough import Copies, Roughness, noisy, rounded
from gruppo.policies import learned_state, load_policy

FLOATS = {torch.bfloat16: 8, torch.float16: 11, torch.float8_e4m3fn: 4, torch.float8_e5m2: 3, torch.float32: 24}


def weights(count: int = 20_000) -> Tensor:
    """In the range in which fp8 has all its bits."""
    torch.manual_seed(0)
    x = torch.randn(count)
    return x[(x.abs() > 2**-6) & (x.abs() < 400)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_is_that_of_the_type_with_as_many_bits(dtype: torch.dtype) -> None:
    x = weights()
    assert torch.equal(rounded(x, FLOATS[dtype]), x.to(dtype).float())


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(1, 24))
def test_rounding_is_near_and_does_nothing_twice(x: float, bits: int) -> None:
    one = torch.tensor([x, -x, 0.0])
    near = rounded(one, bits)
    assert float(near[0]) == -float(near[1]) and float(near[2]) == 0
    assert abs(float(near[0]) - x) <= 2.0**-bits * abs(x) + 1e-44  # the last: half of a denormal number
    if abs(x) > 1e-30 or x == 0:
        assert torch.equal(rounded(near, bits), near)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_stay_what_they_are(dtype: torch.dtype) -> None:
    x = weights().to(dtype)
    assert rounded(x, 53).dtype == dtype and torch.equal(rounded(x, 53), x)
    assert torch.equal(rounded(x, 4).float(), rounded(x.float(), 4))
    assert noisy(x, 0.1, 1).dtype == dtype


def test_noise_is_relative_and_a_function_of_its_key() -> None:
    x = torch.cat([weights(), torch.zeros(3)])
    one, same, other = noisy(x, 0.02, 7, "a"), noisy(x, 0.02, 7, "a"), noisy(x, 0.02, 7, "b")
    assert torch.equal(one, same) and not torch.equal(one, other) and not one[-3:].any()
    off = one[:-3] / x[:-3] - 1
    assert float(off.std()) == pytest.approx(0.02, rel=0.03) and abs(float(off.mean())) < 0.001
    assert torch.equal(noisy(x, 0.0, 7), x)


def test_copies_follow_and_leave_the_others_alone() -> None:
    policy, ref = load_policy("tiny-random"), load_policy("tiny-random")
    before = {name: p.detach().clone() for name, p in learned_state(policy).items()}
    copies = Copies({"policy": policy, "ref": ref}, ("policy",), Roughness(bits=8, noise=0.1, seed=3))
    engine = NativeEngine({"policy": policy, "ref": ref}, copies=copies)
    assert engine.models["policy"] is copies.models["policy"] and engine.models["ref"] is ref
    assert "shared" not in engine.promises and "shared" in NativeEngine({"policy": policy}).promises
    seen = [_state(engine)]
    for version in (1, 2, 1):
        engine.sync(version, {"policy": policy, "ref": ref})
        seen.append(_state(engine))
    assert _same(before, learned_state(policy)), "the trainer's weights are its own"
    assert not _same(seen[1], seen[2]) and _same(seen[1], seen[3]), "noise is that of a version"
    for name, w in before.items():
        assert torch.equal(seen[1][name], rounded(noisy(w, 0.1, 3, "sampler", 1, "policy", name), 8)), name
    with torch.no_grad():
        policy.output.weight.zero_()
    engine.sync(3, {"policy": policy})
    assert not copies.models["policy"].output.weight.any()


def test_no_roughness_is_false() -> None:
    assert not Roughness() and Roughness(bits=1) and Roughness(noise=0.1)


def _state(engine: NativeEngine) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in learned_state(engine.models["policy"]).items()}  # type: ignore[arg-type]


def _same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
