"""A step by slopes: whatever it is cut into, the sum of slope · statistic has the gradient of J; settings of verl."""

import pytest
import torch

from gruppo.inside.answers import Answer, Told
from gruppo.inside.fits import VERL_TRAINER, refusals
from gruppo.inside.slopes import filled, slopes_of
from gruppo.inside.verl_settings import ACTOR, refuse_settings, settings_of
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.methods import all_methods, method
from gruppo.stages import Method

FITS = [m for m in all_methods().values() if not refusals(m, VERL_TRAINER)]


def test_the_trainer_of_verl_holds_what_trl_holds() -> None:
    assert [m.name for m in FITS] == [m.name for m in all_methods().values() if not refusals(m)] and len(FITS) == 38
    assert all(
        "inside verl" in said or "verl" in said for m in all_methods().values() for said in refusals(m, VERL_TRAINER)
    )


@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_slopes_are_those_of_the_whole_step(m: Method) -> None:
    world, episodes = World(m, 3), [e for e in random_episodes(3) if len(e.sequences) == 1]
    batch = world.prepared(world.packed(episodes))
    stats, wanted = world.statistics(batch), world.slopes(batch, world.statistics(batch))
    uids: list[int] = batch.uid_E[batch.episode_S].tolist()
    assert len(set(uids)) == len(uids) > 3
    sizes = torch.bincount(batch.up("N", "S"), minlength=len(uids)).tolist()
    rows = dict(zip(uids, torch.split(batch.token_N, sizes), strict=True))
    last = max(uids) + 1
    answers = [
        Answer("", [], ids := rows.get(u, torch.zeros(0)).long().tolist(), [True] * len(ids)) for u in range(last)
    ]
    now = Told(answers)
    for name, x in stats.items():
        by = dict(zip(uids, torch.split(x, sizes), strict=True))
        now.put("policy", name.removesuffix("_N"), [by.get(u, torch.zeros(0)) for u in range(last)])
    found = slopes_of(world.goal(), batch, now)
    for name, slope in wanted.items():
        mine = found.of.get(name.removesuffix("_N"), {u: torch.zeros(n) for u, n in zip(uids, sizes, strict=True)})
        assert torch.allclose(torch.cat([mine[u] for u in uids]), slope, atol=1e-12, rtol=1e-9)
    assert found.value == pytest.approx(float(world.value(batch, stats)), abs=1e-9)


def test_a_step_is_filled_with_the_shortest_rows_that_are_not_in_it() -> None:
    assert filled([3, 0], [5, 2, 9, 1, 4], 4) == [3, 0, 1, 4] and filled([3, 0], [5, 2, 9, 1, 4], 2) == [3, 0]
    with pytest.raises(ValueError, match=r"3 of 4 rows, and its processes want a multiple of 8\. Use fewer answers"):
        filled([0, 1, 2], [1] * 4, 8)


def test_settings_of_verl_that_the_method_decides_are_refused() -> None:
    m, bare = method("grpo"), method("grpo").but(penalties=())
    assert settings_of(m, "x")[f"{ACTOR}.use_kl_loss"] and not settings_of(bare, "x")[f"{ACTOR}.use_kl_loss"]
    refuse_settings({"actor_rollout_ref": {"actor": {"use_kl_loss": True, "clip_ratio": 0.2}}}, m)
    refuse_settings({"actor_rollout_ref": {"actor": {"use_kl_loss": False}}}, bare)
    with pytest.raises(ValueError, match=r"clip_ratio=0\.3 would be ignored: grpo decides it in its room objective"):
        refuse_settings({"actor_rollout_ref": {"actor": {"use_kl_loss": True, "clip_ratio": 0.3}}}, m)
    with pytest.raises(ValueError, match=r"use_kl_loss=False: in grpo a room reads .* Use .*use_kl_loss=True"):
        refuse_settings({"actor_rollout_ref": {"actor": {"use_kl_loss": False}}}, m)
    with pytest.raises(ValueError, match=r"use_kl_loss=True: in grpo no room reads .* Use .*use_kl_loss=False"):
        refuse_settings({"actor_rollout_ref": {"actor": {"use_kl_loss": True}}}, bare)
