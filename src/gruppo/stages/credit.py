"""How much did each token contribute? Returns named columns such as `adv_N`."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gruppo.data import Batch, Key, Level, Source, centre, segment
from gruppo.pieces import advantage
from gruppo.pieces.divergence import k1
from gruppo.stages.context import Context, Memory, StepRecord
from gruppo.stages.occupant import Occupant, setting
from gruppo.stages.readouts import Need, need
from gruppo.stages.requires import Samples

COMPARES = Samples(2)


class Credit(Protocol):
    writes: tuple[str, ...]

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]: ...


def to_tokens(batch: Batch, adv_E: Tensor) -> dict[str, Tensor]:
    """One advantage for all tokens of an episode."""
    return {"adv_N": batch.spread(adv_E, "E", "N")}


def judged_N(batch: Batch) -> Tensor:
    """Tokens that the policy sampled, in episodes that are in statistics, baseline episodes included."""
    return (batch.source_N == Source.POLICY) & batch.spread(batch.judged_E, "E", "N")


def whitened(batch: Batch, mine: Tensor, x: Tensor, by_agent: bool = False) -> dict[str, Tensor]:
    """Values of these tokens, whitened over them. 0 for other tokens, and for a single one: it cannot be compared.

    by_agent  the tokens of each agent are whitened among themselves
    """
    every = torch.ones_like(x, dtype=torch.bool)
    adv = torch.zeros_like(x)
    for part in _agents(batch, mine, every) if by_agent else [every]:
        adv = torch.where(part, advantage.whiten(x, part), adv) if int(part.sum()) > 1 else adv
    return {"adv_N": torch.zeros_like(batch.weight_N).index_copy(0, mine, adv)}


def _agents(batch: Batch, mine: Tensor, over: Tensor) -> list[Tensor]:
    """The rows of `over` that belong to each agent."""
    if len(batch.agents) == 1:
        return [over]
    agent = batch.spread(batch.agent_K, "K", "N").index_select(0, mine)
    return [over & (agent == a) for a in range(len(batch.agents))]


@dataclass(frozen=True)
class GroupNormalised(Occupant):
    """A_i = (R_i − mean) / (std + eps) inside the group, std with n − 1 (GRPO, arXiv:2402.03300)."""

    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups = batch.level("E", "G")
        return to_tokens(batch, advantage.z_score(batch.reward_E, groups, where=batch.judged_E, eps=self.eps))


@dataclass(frozen=True)
class GroupCentred(Occupant):
    """A_i = R_i − mean of the group, not divided by its standard deviation (Dr.GRPO, arXiv:2503.20783)."""

    writes = ("adv_N",)
    ignores = ("shift",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return to_tokens(batch, centre(batch.reward_E, batch.level("E", "G"), where=batch.judged_E))


@dataclass(frozen=True)
class LeaveOneOut(Occupant):
    """A_i = R_i − mean of the other rewards of the group, after R_i −= kl_coef Σ_t (log π_old − log π_ref)."""

    kl_coef: float = setting(0.0, low=0, witness=0.5)
    writes = ("adv_N",)
    ignores = ("shift",)
    requires = (COMPARES,)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "old"), need("logp", "ref")) if self.kl_coef else ()

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        reward_E = batch.reward_E
        if self.kl_coef:
            kl_N = k1(batch.logp_old_N, batch.logp_ref_N)
            reward_E = reward_E - self.kl_coef * batch.gather(kl_N, "N", "E", "sum", where=judged_N(batch))
        groups = batch.level("E", "G")
        return to_tokens(batch, advantage.leave_one_out(reward_E, groups, where=batch.judged_E))


@dataclass(frozen=True)
class RunningBaseline(Occupant):
    """A_i = R_i − b, with b ← decay · b + (1 − decay) · mean(R) after each step; b starts as the batch mean."""

    decay: float = setting(0.9, low=0, high=1)
    writes = ("adv_N",)
    ignores = ("shift",)  # while memory is empty; later b follows with the decay

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        judged = batch.judged_E
        rewards = torch.where(judged, batch.reward_E, torch.zeros_like(batch.reward_E))
        fallback = self._mean(batch)
        baseline = ctx.memory.get("baseline")
        adv_E = rewards - (fallback if baseline is None else baseline)
        return to_tokens(batch, torch.where(judged, adv_E, torch.zeros_like(adv_E)))

    def _mean(self, batch: Batch) -> float:
        mine = batch.reward_E[batch.judged_E]
        return float(mine.mean()) if len(mine) else 0.0

    def observe(self, record: StepRecord, memory: Memory) -> None:
        if record.batch is None or not bool(record.batch.judged_E.any()):
            return
        now, before = self._mean(record.batch), memory.get("baseline")
        memory["baseline"] = now if before is None else self.decay * before + (1 - self.decay) * now


@dataclass(frozen=True)
class Gae(Occupant):
    """Generalised advantage estimation over the decisions of an episode, whitened; `ret_N` is the critic's target.

    Of several agents each has a recursion of its own, from its own rewards and values, and is whitened for itself.
    Token rewards: the episode's reward at its last decision, turn rewards at the last decision of each turn (of a turn
    without one at the last before it), minus kl_coef (log π_old − log π_ref) at each token. An open episode bootstraps
    from its last value.
    """

    gamma: float = setting(1.0, low=0, high=1)
    lam: float = setting(0.95, low=0, high=1)
    kl_coef: float = setting(0.0, low=0, witness=0.5)
    writes = ("adv_N", "ret_N")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        kl = (need("logp", "old"), need("logp", "ref")) if self.kl_coef else ()
        return (need("value", "critic"), *kl)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine, adv, ret, known = two_gaes(batch, self.gamma, self.lam, self.lam, self.kl_coef)
        return whitened_gae(batch, mine, adv, ret, known, known)


def two_gaes(
    batch: Batch, gamma: float | Tensor, lam: float | Tensor, lam_value: float, kl_coef: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Advantages with `lam`, and the critic's targets with `lam_value`. Agents of an episode do not see each other.

    gamma  a number, or one for each decision: the discount of what comes after it
    lam    a number, or one for each decision

    Returns (rows, advantage, target, known) for the policy's decisions, `in_time`; given tokens are not steps. `known`:
    the episode is judged or open. An open episode bootstraps from its last value, that of each agent.
    """
    mine = in_time(batch, batch.sampled_N)
    episode, value = batch.episode_N.index_select(0, mine), batch.value_critic_N.index_select(0, mine)
    seat, open_E = seat_N(batch).index_select(0, mine), batch.open_E
    tail = value * open_E.to(value.dtype).index_select(0, episode) if bool(open_E.any()) else None
    gamma = gamma.index_select(0, mine) if isinstance(gamma, Tensor) else gamma
    error = advantage.errors(token_reward(batch, mine, kl_coef), value, seat, gamma, tail)
    lam_N = lam.index_select(0, mine) if isinstance(lam, Tensor) else lam
    adv = segment.scan(error, gamma * lam_N, seat)
    same = isinstance(lam, float) and lam == lam_value
    ret = value + (adv if same else segment.scan(error, gamma * lam_value, seat))
    return mine, adv, ret, (batch.judged_E | open_E).index_select(0, episode)


def whitened_gae(
    batch: Batch, mine: Tensor, adv: Tensor, ret: Tensor, known: Tensor, over: Tensor
) -> dict[str, Tensor]:
    """The result of `two_gaes` as columns: advantages whitened over `over`, by agent; targets where known, else 0."""
    zero = torch.zeros_like(batch.value_critic_N)
    white = torch.zeros_like(adv)
    for part in _agents(batch, mine, over):
        white = torch.where(part, advantage.whiten(adv, part), white)
    return {
        "adv_N": zero.index_copy(0, mine, white),
        "ret_N": zero.index_copy(0, mine, torch.where(known, ret, zero[:1])),
    }


def seat_N(batch: Batch) -> Tensor:
    """Of each decision, its agent in its episode: the part of `batch.seats`."""
    return batch.spread(batch.seats.index, "K", "N")


def in_time(batch: Batch, where: Tensor) -> Tensor:
    """The decisions in `where`, episode by episode, agent by agent, in the order of time."""
    return batch.time_order("N", Key(seat_N(batch), batch.seats.size), where)


def judged_in_time(batch: Batch) -> Tensor:
    """The rows of `judged_N`, as `in_time`."""
    return in_time(batch, judged_N(batch))


def return_to_go(batch: Batch, mine: Tensor, gamma: float = 1.0, kl_coef: float = 0.0) -> Tensor:
    """G_t = r_t + gamma G_{t+1} for these decisions, `in_time`, with r_t = `token_reward`: of its agent alone."""
    return segment.scan(token_reward(batch, mine, kl_coef), gamma, seat_N(batch)[mine])


def own_reward(batch: Batch) -> Tensor:
    """The rewards of episodes without those of their turns; 0 where the episode is not in statistics."""
    own_EC = torch.where(batch.paid_EC, torch.nan_to_num(batch.reward_EC), 0.0)
    return torch.where(batch.judged_E, own_EC.sum(-1), 0.0)


def token_reward(batch: Batch, mine: Tensor, kl_coef: float) -> Tensor:
    """For these decisions, `in_time`: rewards of episodes and turns at the last of each, minus the KL.

    The rewards of the episode are those of each agent. A turn without a decision is paid at the last one of its agent
    before it, or at the first one after it if there is none. So the rewards of an agent that decides anything add up to
    its return, `reward_EA`, and with one agent to `reward_E`.
    """
    episode, seat = batch.episode_N.index_select(0, mine), seat_N(batch).index_select(0, mine)
    reward = advantage.ends(seat) * own_reward(batch).index_select(0, episode)
    if len(mine) and bool(batch.reward_K.any()):
        place = Key(paid_at(batch, mine), len(mine) + 1)
        reward = reward + segment.gather(batch.reward_K, place, "sum")[:-1]
    return reward - kl_coef * k1(batch.logp_old_N[mine], batch.logp_ref_N[mine]) if kl_coef else reward


def paid_at(batch: Batch, mine: Tensor) -> Tensor:
    """For each turn the place in `mine` where its reward stands; len(mine) if its agent decides nothing there."""
    seat_K, order = batch.seats.index, batch.time_order("K", batch.seats)
    rank_K = torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device))
    turn = batch.turn_N.index_select(0, mine)
    before = torch.searchsorted(rank_K[turn], rank_K, right=True) - 1  # its own last decision, or an earlier one
    after = before + 1
    of = torch.cat([seat_K[turn], seat_K.new_full((1,), -1)])  # of no seat, at both ends
    found = torch.where(of[after] == seat_K, after, len(mine))
    return torch.where(of[before] == seat_K, before, found)


def turn_reward(batch: Batch, within: Level | Key = "E") -> Tensor:
    """The rewards of turns, and those of the episode on the last turn of each part of `within`, in the order of time.

    Over an episode they add up to its return, `reward_E`. With `within=batch.seats` every agent has the rewards of the
    episode on its own last turn, and they add up to `reward_EA`. Failed episodes are for the caller to leave out.
    """
    episode_K = batch.up("K", "E")
    if isinstance(within, Key):
        first, last = (batch.gather(episode_K.double(), "K", within, how) for how in ("min", "max"))
        if bool((first != last).any()):
            raise ValueError(
                "a part of the key holds turns of several episodes, so the reward of some would be lost. Make the key "
                "finer than episodes, such as batch.seats."
            )
    last_K = batch.lag(torch.ones_like(batch.reward_K), -1, "K", within) == 0
    return batch.reward_K + torch.where(last_K, own_reward(batch)[episode_K], 0.0)
