"""Inside verl: what fits, whole and cut; through verl's own functions where it is installed."""

import re
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import Status, pack, single_turn
from gruppo.inside.verl import advantages, policy_loss, refusals, register, settings
from gruppo.methods import all_methods, method
from gruppo.stages import Context, Method, Sampling, Stats
from gruppo.stages.goal import Goal
from gruppo.stages.penalties import EntropyBonus, ReferenceKL

FITS = [m for m in all_methods().values() if not refusals(m)]
B, T, SAMPLES = 16, 9, 4
CTX = Context(samples=SAMPLES, sampling=Sampling(max_tokens=T))
needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed: docs/scale.md says how")


class Rows:
    """16 answers of up to 9 tokens in four groups, in float64."""

    def __init__(self, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        length = torch.randint(1, T + 1, (B,), generator=draw)
        self.mask = torch.arange(T)[None] < length[:, None]
        self.now, self.old = (-2 * torch.rand(B, T, generator=draw, dtype=torch.float64) for _ in range(2))
        self.reward_B = (torch.rand(B, generator=draw) < 0.5).double()
        self.reward_B[:2] = torch.tensor([0.0, 1.0])
        self.scores = torch.zeros(B, T, dtype=torch.float64)
        self.scores[torch.arange(B), length - 1] = self.reward_B
        self.uid = np.array([f"prompt {i // SAMPLES}" for i in range(B)], dtype=object)

    def by_hand(self, m: Method) -> tuple[Tensor, Tensor, Tensor]:
        """(advantages, loss, gradient) by our own batch, made from episodes with words."""
        episodes = [
            single_turn(
                i, "t", self.uid[i], np.array([1, 2]), np.arange(3, 3 + n), np.zeros(n, np.float32), 0,
                reward={"task": float(self.reward_B[i])}, status=Status.OK,
            )
            for i, n in enumerate(self.mask.sum(-1).tolist())
        ]  # fmt: skip
        now = self.now.clone().requires_grad_()
        batch = pack(episodes, dtype=torch.float64).with_columns(logp_old_N=self.old[self.mask])
        batch = batch.with_columns(**m.credit(CTX, batch))
        loss = -Goal(m, CTX, penalties=False).whole(batch, Stats(logp_N=now[self.mask])).value
        return batch.adv_N, loss, torch.autograd.grad(loss, now)[0]


def cuts() -> list[list[slice]]:
    return [[slice(0, B)], [slice(i, i + 4) for i in range(0, B, 4)], [slice(0, 3), slice(3, 4), slice(4, B)]]


@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_whole_and_cut_are_those_of_our_goal(m: Method) -> None:
    rows = Rows()
    adv_N, loss, grad = rows.by_hand(m)
    adv_BT = advantages(m, CTX, rows.scores, rows.mask, rows.uid)
    assert torch.allclose(adv_BT[rows.mask], adv_N, atol=1e-9) and not bool(adv_BT[~rows.mask].any())
    info = {"dp_size": 2, "batch_num_tokens": int(rows.mask.sum()), "global_batch_size": B}
    for cut in cuts():
        now, total = rows.now.clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
        for at in cut:
            columns = {"log_prob": now[at], "old_log_prob": rows.old[at], "advantages": adv_BT[at]}
            total = total + policy_loss(m, CTX, columns, rows.mask[at], info)[0] / 2  # two ranks are averaged
        assert float(total.detach()) == pytest.approx(float(loss), abs=1e-6)
        assert torch.allclose(torch.autograd.grad(total, now)[0], grad, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kl_cov", r"redraw_equal_groups in select has no place"),
        ("bapo", r"couples all rows of an optimiser step, and verl computes a loss by micro-batch"),
        ("disco", r"right_against_wrong in credit writes right_N, and verl carries advantages"),
        ("rloo", r"leave_one_out in credit needs logp@ref"),
        ("gdpo", r"compares components of the reward"),
        ("reinforce", r"running_baseline in credit remembers steps"),
        ("ppo", r"gae in credit needs value@critic"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, said: str) -> None:
    found = refusals(method(name))
    assert any(re.search(said, s) for s in found) and all(s.endswith(".") for s in found)
    bare = method("kl_cov").but(select=())
    assert "couples all rows" in refusals(bare)[0]


def test_a_weight_of_the_rollout_scales_the_numerator() -> None:
    rows, m = Rows(), method("grpo")
    adv_BT = advantages(m, CTX, rows.scores, rows.mask, rows.uid)
    columns = {"log_prob": rows.now, "old_log_prob": rows.old, "advantages": adv_BT}
    plain, _ = policy_loss(m, CTX, columns, rows.mask, {})
    half, _ = policy_loss(m, CTX, columns, rows.mask, {}, torch.full((B, T), 0.5, dtype=torch.float64))
    assert float(half) == pytest.approx(0.5 * float(plain), rel=1e-12)


def test_penalties_are_settings_of_verl() -> None:
    m = method("grpo").but(penalties=(ReferenceKL(kl_coef=0.1, mean="token"), EntropyBonus(entropy_coef=0.02)))
    said = settings(m, "mine")
    actor = "actor_rollout_ref.actor"
    assert said[f"{actor}.kl_loss_coef"] == 0.1 and said[f"{actor}.kl_loss_type"] == "low_var_kl"
    assert said[f"{actor}.loss_agg_mode"] == "token-mean" and said[f"{actor}.entropy_coeff"] == 0.02
    mixed = method("grpo").but(penalties=(ReferenceKL(mean="sequence"), EntropyBonus(mean="token")))
    assert "entropy_bonus in penalties cannot be said" in refusals(mixed)[0]


@needs_verl
@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_through_the_registries_of_verl(m: Method) -> None:
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.ray_trainer import compute_advantage

    said, rows = register(m, max_tokens=T), Rows(1)
    tensors = {"token_level_rewards": rows.scores, "response_mask": rows.mask.long()}
    data = DataProto(TensorDict(tensors, batch_size=B), {"uid": rows.uid})
    data = compute_advantage(data, said["algorithm.adv_estimator"], config=None)
    adv_N, loss, grad = rows.by_hand(m)
    assert torch.allclose(data.batch["advantages"][rows.mask], adv_N, atol=1e-9)
    fn = get_policy_loss_fn(said["actor_rollout_ref.actor.policy_loss.loss_mode"])
    info = {"dp_size": 1, "batch_num_tokens": int(rows.mask.sum()), "global_batch_size": B, "loss_scale_factor": None}
    config: Any = SimpleNamespace(global_batch_info=info)
    for cut in cuts():
        now = rows.now.clone().requires_grad_()
        total = sum(
            fn(old_log_prob=rows.old[at], log_prob=now[at], advantages=data.batch["advantages"][at],
               response_mask=rows.mask[at], loss_agg_mode="token-mean", config=config, rollout_is_weights=None)[0]
            for at in cut
        )  # fmt: skip
        assert float(total) == pytest.approx(float(loss), abs=1e-6)
        assert torch.allclose(torch.autograd.grad(total, now)[0], grad, atol=1e-6)


@needs_verl
def test_the_loss_of_verl_adds_the_reference_as_ours_does() -> None:
    """With the settings that `register` returns, verl's KL is the penalty of the method."""
    from verl.trainer.ppo.core_algos import agg_loss, kl_penalty

    m, rows = method("grpo"), Rows(2)
    said = settings(m, "x")
    now, ref = rows.now, rows.old
    kl = kl_penalty(now, ref, said["actor_rollout_ref.actor.kl_loss_type"])
    theirs = agg_loss(kl, rows.mask, said["actor_rollout_ref.actor.loss_agg_mode"], global_batch_size=B)
    d = (ref - now).exp() - (ref - now) - 1
    ours = ((d * rows.mask).sum(-1) / rows.mask.sum(-1)).mean()
    assert float(theirs) == pytest.approx(float(ours), rel=1e-6)
    assert said["actor_rollout_ref.actor.kl_loss_coef"] == m.penalties[0].kl_coef
