"""A method of ours inside verl: an advantage estimator and a policy loss under one name, in verl's two registries.

    from gruppo.inside.verl import register
    print(register("gspo"))     # the settings for verl's command line

An estimator of verl sees rewards and masks of the whole batch, a loss the log-probabilities of one micro-batch and the
sizes of its optimiser step. A method fits if that is enough for it: `refusals` says what is missing. Everything else is
verl's. The module is loaded in verl's workers by VERL_USE_EXTERNAL_MODULES, or by actor_rollout_ref.model.external_lib.
A trainer of its own holds more methods (gruppo.inside.verl_trainer); the loss of its workers is here, too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, pack
from gruppo.inside.answers import Answer, episode_of
from gruppo.inside.fits import ELSEWHERE, Host, whole_step
from gruppo.inside.fits import refusals as refusals_of
from gruppo.methods import method as named
from gruppo.pieces.aggregate import Count
from gruppo.stages import Context, Method, Occupant, Sampling, Stats, kind
from gruppo.stages.goal import Goal, Sum
from gruppo.stages.penalties import EntropyBonus, ReferenceKL

VERL = Host("verl", frozenset({("old", "logp")}), frozenset({("policy", "logp")}))
AGGREGATE = {"token": "token-mean", "sequence": "seq-mean-token-mean", "sequence_sum": "seq-mean-token-sum"}
KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "k1+": "kl+", "k3+": "low_var_kl+"}


def refusals(method: Method) -> list[str]:
    """Why the method cannot run inside verl's two registries, one sentence each; [] if it can."""
    plain = method.but(penalties=())  # verl adds these itself, by its settings
    found = [*refusals_of(plain, VERL), *_rooms(method), *_penalties(method)]
    if not found and whole_step(plain):
        found.append(
            f"{method.name}: its objective couples all rows of an optimiser step, and verl computes a loss by "
            f"micro-batch: it would be another objective. Use gruppo.inside.verl_trainer, {ELSEWHERE}."
        )
    if not found and _needs_components(plain):
        found.append(
            f"{method.name}: {kind(plain.credit)} in credit compares components of the reward, and an estimator of "
            f"verl is given their sum. Use gruppo.inside.verl_trainer, {ELSEWHERE}."
        )
    if not found and not _cut_agrees(plain):
        found.append(
            f"{method.name}: its objective reads more than advantages, masks and log-probabilities, or averages over "
            f"other rows than all tokens of the policy, which verl cannot count. Use "
            f"gruppo.inside.verl_trainer, {ELSEWHERE}."
        )
    return found


def _rooms(method: Method) -> list[str]:
    found = [
        f"{method.name}: {kind(o)} in {room} has no place in verl's registries, which are given no episodes. Use a "
        f"reward manager or a sampler of verl and but({room}=()), {ELSEWHERE}."
        for room in ("reward", "select")
        for o in getattr(method, room)
    ]
    credit = method.credit
    if tuple(credit.writes) != ("adv_N",):
        found.append(
            f"{method.name}: {kind(credit)} in credit writes {', '.join(credit.writes)}, and verl carries advantages "
            f"of tokens alone (adv_N). Choose another credit, {ELSEWHERE}."
        )
    for n in credit.needs(Context()):
        found.append(
            f"{method.name}: {kind(credit)} in credit needs {n}, and an estimator of verl is given no model's words. "
            f"Choose another credit, {ELSEWHERE}."
        )
    for room, o in method.occupants():
        if type(o).observe is not Occupant.observe or "answer_E" in o.reads:
            what = "remembers steps" if type(o).observe is not Occupant.observe else "compares extracted answers"
            found.append(
                f"{method.name}: {kind(o)} in {room} {what}, and verl's registries have no place for that. Choose "
                f"another {room}, {ELSEWHERE}."
            )
    return found


def _penalties(method: Method) -> list[str]:
    """Penalties that verl's settings can express; all of them share one way to average."""
    found, means = list[str](), set[str]()
    for o in method.penalties:
        if isinstance(o, ReferenceKL | EntropyBonus) and str(o.mean) in AGGREGATE:
            known = not isinstance(o, ReferenceKL) or o.estimator in KL
            means.add(str(o.mean))
        else:
            known = False
        if not known or len(means) > 1:
            found.append(
                f"{method.name}: {kind(o)} in penalties cannot be said in verl's settings, where the reference KL and "
                "the entropy have one loss_agg_mode. Use ReferenceKL or EntropyBonus with mean='token' or 'sequence', "
                f"the same for both, {ELSEWHERE}."
            )
    return found


def settings(method: Method, name: str, steps: Context | None = None) -> dict[str, Any]:
    """What to set in verl so that the rest of the method holds, too: names, penalties, passes."""
    ctx, actor = steps or Context(), "actor_rollout_ref.actor"
    out: dict[str, Any] = {
        "algorithm.adv_estimator": name,
        f"{actor}.policy_loss.loss_mode": name,
        f"{actor}.ppo_epochs": method.update.epochs,
        f"{actor}.entropy_coeff": 0,
        f"{actor}.use_kl_loss": False,
    }
    for o in method.penalties:
        out[f"{actor}.loss_agg_mode"] = AGGREGATE[str(o.mean)]
        if isinstance(o, EntropyBonus):
            out[f"{actor}.entropy_coeff"] = ctx.at(o.entropy_coef)
        else:
            kl = {"use_kl_loss": True, "kl_loss_coef": ctx.at(o.kl_coef), "kl_loss_type": KL[o.estimator]}
            out |= {f"{actor}.{k}": v for k, v in kl.items()}
    return out


# the loss of our own trainer

LOGP, ENTROPY, VALUE = "gruppo_logp", "gruppo_entropy", "gruppo_value"  # fields of a row: slopes, and its share of J


def slope_loss(model_output: Mapping[str, Any], data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
    """−J of a micro-batch, for verl's `set_loss_fn`. Its gradient is that of slope · statistic, its value a share of J.

    verl averages over processes, so it is multiplied by their number.
    """
    from verl.workers.utils.padding import no_padding_2_padding  # type: ignore[import-not-found]

    total = torch.zeros(())
    for field, readout in ((LOGP, "log_probs"), (ENTROPY, "entropy")):
        if model_output.get(readout) is not None:
            stat_BT = no_padding_2_padding(model_output[readout], data)
            slope_BT = torch.nested.to_padded_tensor(data[field], 0.0, output_size=stat_BT.shape).to(stat_BT.device)
            total = total + (slope_BT * stat_BT.masked_fill(slope_BT == 0, 0.0)).sum()
    value = data[VALUE].sum().to(total.device)
    return -data["dp_size"] * (total - total.detach() + value), {}


# the two functions


def batch_of(mask_BT: Tensor, groups: Sequence[Any], reward_B: Tensor, ctx: Context) -> Batch:
    """Rows of verl as a batch without words: its decisions are the tokens in the mask."""
    made = [
        Answer("", [0], [0] * len(own), own, {"task": float(r)})
        for own, r in zip(mask_BT.bool().tolist(), reward_B.tolist(), strict=True)
    ]
    episodes = [episode_of(a, i, str(g), ctx) for i, (a, g) in enumerate(zip(made, groups, strict=True))]
    return pack(episodes, share=2.0, dtype=reward_B.dtype).to(mask_BT.device)


def advantages(
    method: Method, ctx: Context, token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[Any]
) -> Tensor:
    """adv_N of the whole batch, (B, T); groups are rows with the same index."""
    mask_BT = response_mask.bool()
    batch = batch_of(mask_BT, index, (token_level_rewards * mask_BT).sum(-1), ctx)
    adv_N = method.credit(ctx, batch)["adv_N"].to(token_level_rewards.dtype)
    return torch.zeros_like(token_level_rewards).masked_scatter(mask_BT, adv_N)


def policy_loss(
    method: Method,
    ctx: Context,
    columns: Mapping[str, Tensor],
    response_mask: Tensor,
    info: Mapping[str, Any],
    weight_BT: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """−J of a micro-batch, with the denominators of its whole optimiser step, and the means of its terms.

    columns  log_prob, old_log_prob, advantages, (B, T) each
    info     verl's global_batch_info: dp_size, batch_num_tokens, global_batch_size
    """
    mask_BT = response_mask.bool()
    flat = {name: x[mask_BT] for name, x in columns.items()}
    rows = torch.zeros(len(mask_BT), dtype=flat["log_prob"].dtype)
    batch = batch_of(mask_BT, range(len(mask_BT)), rows, ctx)
    given = {"adv_N": flat["advantages"], "logp_old_N": flat["old_log_prob"]}
    if weight_BT is not None:
        given["weight_N"] = weight_BT.expand_as(mask_BT)[mask_BT].to(batch.weight_N.dtype)
    batch = batch.with_columns(**given)
    stats, goal = Stats(logp_N=flat["log_prob"]), Goal(method, ctx, penalties=False)
    terms = goal.terms(batch)
    own = Count(float(mask_BT.sum()), float(mask_BT.any(-1).sum()))
    whole = Count(
        own.rows if info.get("batch_num_tokens") is None else float(info["batch_num_tokens"]),
        own.units if info.get("global_batch_size") is None else float(info["global_batch_size"]),
    )
    total = Sum(terms, [t.weights(batch, whole) for t in terms])
    value = total.add(goal.values(batch, stats, terms), total.weights, stats)
    return -value * info.get("dp_size", 1), {f"actor/{k}": float(v) for k, v in total.totals.items()}


def register(method: str | Method = "grpo", name: str = "", max_tokens: int = 0) -> dict[str, Any]:
    """Registers the method's credit and objective in verl, by default as gruppo_NAME; returns verl's settings for it.

    max_tokens  verl's data.max_response_length, for methods that divide by the longest answer
    """
    from verl.trainer.ppo.core_algos import (  # type: ignore[import-not-found]
        register_adv_est,
        register_policy_loss,
    )

    m = named(method) if isinstance(method, str) else method
    if found := refusals(m):
        raise ValueError("\n".join(found))
    if not max_tokens and any("/max_tokens" in str(getattr(o, "mean", "")) for o in m.objectives["policy"]):
        raise ValueError(
            f"{m.name} divides by the longest answer that is allowed, which a loss of verl is not told. Give it: "
            "register(…, max_tokens=data.max_response_length)."
        )
    ctx, name = Context(sampling=Sampling(max_tokens=max_tokens)), name or f"gruppo_{m.name}"

    def estimator(token_level_rewards: Tensor, response_mask: Tensor, index: Any = None, **_: Any) -> Any:
        rows = range(len(response_mask)) if index is None else index
        adv_BT = advantages(m, ctx, token_level_rewards, response_mask, list(rows))
        return adv_BT, adv_BT

    def loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> Any:
        columns = {"log_prob": log_prob, "old_log_prob": old_log_prob, "advantages": advantages}
        return policy_loss(m, ctx, columns, response_mask, config.global_batch_info, rollout_is_weights)

    register_adv_est(name)(estimator)
    register_policy_loss(name)(loss)
    return settings(m, name, ctx)


# does it agree?


def _needs_components(method: Method) -> bool:
    """Whether credit changes when rewards are divided into components with the same sum."""
    ctx, total = Context(samples=4), [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    part = [0.5, 0.25, 0.0, -1.0, 0.75, 0.0, 0.5, 0.125]
    found: list[Tensor] = []
    for split in (False, True):
        rewards = [{"task": r - c, "style": c} if split else {"task": r} for r, c in zip(total, part, strict=True)]
        made = [Answer("", [0], [0, 0], [True] * 2, reward) for reward in rewards]
        batch = pack([episode_of(a, i, str(i // 4), ctx) for i, a in enumerate(made)])
        found.append(method.credit(ctx, batch)["adv_N"])
    return not torch.allclose(found[0], found[1], atol=1e-6)


def _cut_agrees(method: Method) -> bool:
    """Whether the two functions, on parts of a small batch, have the slopes of the whole by our own goal."""
    draw, ctx = torch.Generator().manual_seed(0), Context(samples=4, sampling=Sampling(max_tokens=4))
    mask = torch.rand(16, 4, generator=draw) < 0.8
    mask[:, 0] = True
    x = {n: torch.rand(16, 4, generator=draw, dtype=torch.float64) - 1 for n in ("log_prob", "old_log_prob")}
    reward_B = (torch.rand(16, generator=draw) < 0.5).double()
    groups = [i // 4 for i in range(16)]
    spread = torch.zeros(16, 4, dtype=torch.float64)
    spread[:, 0] = reward_B
    wanted = _by_goal(method, ctx, mask, groups, reward_B, x)
    try:
        x["advantages"] = advantages(method, ctx, spread, mask, groups)
        found = _by_parts(method, ctx, mask, x)
    except (AttributeError, KeyError, RuntimeError):
        return False
    return torch.allclose(found, wanted, rtol=1e-6, atol=1e-9)


def _by_goal(
    method: Method, ctx: Context, mask: Tensor, groups: Sequence[int], reward_B: Tensor, x: Mapping[str, Tensor]
) -> Tensor:
    batch = batch_of(mask, groups, reward_B, ctx)
    batch = batch.with_columns(logp_old_N=x["old_log_prob"][mask])
    batch = batch.with_columns(**method.credit(ctx, batch))
    now = x["log_prob"].clone().requires_grad_()
    value = Goal(method, ctx, penalties=False).whole(batch, Stats(logp_N=now[mask])).value
    return torch.autograd.grad(-value, now)[0]


def _by_parts(method: Method, ctx: Context, mask: Tensor, x: Mapping[str, Tensor]) -> Tensor:
    now = x["log_prob"].clone().requires_grad_()
    info = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}
    parts = [(slice(0, 5)), (slice(5, 16))]
    loss = sum(
        policy_loss(method, ctx, {**{n: v[at] for n, v in x.items()}, "log_prob": now[at]}, mask[at], info)[0]
        for at in parts
    )
    return torch.autograd.grad(loss, now)[0]  # type: ignore[arg-type]
