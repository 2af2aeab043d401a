"""Equivalences of methods that give credit to the turns of agents."""

import math
from dataclasses import dataclass, replace

import torch
from sides import GRPO, GRPO_PLAIN, REINFORCE, Centred, Equivalence, even, one_group, whole_terms, whole_value
from torch import Tensor

from gruppo.data import Batch, Episode, Source
from gruppo.methods import method
from gruppo.methods.gigpo import AnchorGroups
from gruppo.methods.hgpo import NestedAnchors
from gruppo.methods.poad import ActionGae
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values
from gruppo.stages.credit import Gae
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient
from gruppo.stages.penalties import ReferenceKL

GIGPO, HGPO, SALT, DRMAS, MARS, POAD = (method(n) for n in ("gigpo", "hgpo", "salt", "drmas", "mars", "poad"))
ARCHER = method("archer")
Parts = dict[object, list[int]]


# The other sides, written by loops


def in_time(batch: Batch) -> list[list[int]]:
    """For every judged episode, its turns in the order of time."""
    out: dict[int, list[int]] = {}
    for k in sorted(range(batch.size("K")), key=lambda k: int(batch.turn_index_K[k])):
        e = int(batch.episode_S[batch.seq_K[k]])
        if bool(batch.judged_E[e]):
            out.setdefault(e, []).append(k)
    return list(out.values())


def episode_of(batch: Batch, k: int) -> int:
    return int(batch.episode_S[batch.seq_K[k]])


def returns_by_loops(batch: Batch, gamma: float) -> dict[int, float]:
    """{turn: its discounted return}; the reward of the episode itself comes with its last turn."""
    out: dict[int, float] = {}
    for turns in in_time(batch):
        ahead = float(torch.nan_to_num(batch.reward_EC[episode_of(batch, turns[0])]).sum())
        for i, k in enumerate(reversed(turns)):
            ahead = float(batch.reward_K[k]) + (gamma if i else 1.0) * ahead
            out[k] = ahead
    return out


def normalised(x: dict[int, float], parts: Parts, ddof: int, eps: float = 1e-6) -> dict[int, float]:
    out: dict[int, float] = {}
    for rows in parts.values():
        mine = [x[k] for k in rows]
        mean = math.fsum(mine) / len(mine)
        var = math.fsum((v - mean) ** 2 for v in mine) / max(len(mine) - ddof, 1)
        flat = len(mine) <= ddof or max(mine) - min(mine) < 1e-12
        out |= {k: 0.0 if flat else (x[k] - mean) / (math.sqrt(var) + eps) for k in rows}
    return out


def of_turns(batch: Batch, adv: dict[int, float]) -> dict[str, Tensor]:
    return {"adv_N": torch.tensor([adv.get(k, 0.0) for k in batch.turn_N.tolist()], dtype=torch.float64)}


@dataclass(frozen=True)
class AnchorsByLoops(Occupant):
    """`whole` · z of R over the episodes of the group, plus z of the return over turns of it with the same state."""

    whole: float = 1.0
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        episodes: Parts = {}
        anchors: Parts = {}
        for turns in in_time(batch):
            e = episode_of(batch, turns[0])
            group = int(batch.group_E[e])
            episodes.setdefault(group, []).append(e)
            for k in turns:
                anchors.setdefault((group, int(batch.state_K[k])), []).append(k)
        whole = normalised(dict(enumerate(batch.reward_E.tolist())), episodes, 1)
        step = normalised(returns_by_loops(batch, 0.95), anchors, 1)
        return of_turns(batch, {k: self.whole * whole[episode_of(batch, k)] + a for k, a in step.items()})


@dataclass(frozen=True)
class HistoriesByLoops(Occupant):
    """Σ_k k a_k / Σ_k k over a_k ≠ 0, a_k: z of the return over turns of the group with the same last k states."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        returns, depths = returns_by_loops(batch, 0.95), [Parts() for _ in range(3)]
        for turns in in_time(batch):
            group, states = int(batch.group_E[episode_of(batch, turns[0])]), [int(batch.state_K[k]) for k in turns]
            for t, k in enumerate(turns):
                for depth in range(1, min(3, t + 1) + 1):
                    depths[depth - 1].setdefault((group, *states[t - depth + 1 : t + 1]), []).append(k)
        items = [normalised(returns, parts, 0) for parts in depths]
        adv: dict[int, float] = {}
        for k in returns:
            said = [(d + 1, a[k]) for d, a in enumerate(items) if abs(a.get(k, 0.0)) > 1e-5]
            adv[k] = sum(w * a for w, a in said) / sum(w for w, _ in said) if said else 0.0
        return of_turns(batch, adv)


@dataclass(frozen=True)
class EdgesByLoops(Occupant):
    """The mean z of R over all turns of the group with the same state, action and next state."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        episodes: Parts = {}
        edges: Parts = {}
        for turns in in_time(batch):
            e = episode_of(batch, turns[0])
            group = int(batch.group_E[e])
            episodes.setdefault(group, []).append(e)
            for k, after in zip(turns, [*turns[1:], None], strict=True):
                end = ("end of", e) if after is None else int(batch.state_K[after])  # no final state is known
                edges.setdefault((group, int(batch.state_K[k]), int(batch.action_key_K[k]), end), []).append(k)
        whole = normalised(dict(enumerate(batch.reward_E.tolist())), episodes, 1)
        adv: dict[int, float] = {}
        for rows in edges.values():
            mean = math.fsum(whole[episode_of(batch, k)] for k in rows) / len(rows)
            adv |= dict.fromkeys(rows, mean)
        return of_turns(batch, adv)


@dataclass(frozen=True)
class AgentsByLoops(Occupant):
    """z of the agent's return, with the extra rewards of the turn alone, over the turns of the group and agent."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        paid: dict[int, float] = {}
        parts: Parts = {}
        for turns in in_time(batch):
            e = episode_of(batch, turns[0])
            for k in turns:
                mine = [j for j in turns if int(batch.agent_K[j]) == int(batch.agent_K[k])]
                rewards = {j: dict(zip(batch.components, batch.reward_KC[j].tolist(), strict=True)) for j in mine}
                task = [r.get("task", 0.0) for r in rewards.values()]
                extra = [r for name, r in rewards[k].items() if name != "task"]
                own = batch.reward_EC[e].tolist()
                paid[k] = math.fsum(r for r in (*task, *extra, *own) if not math.isnan(r))
                parts.setdefault((int(batch.group_E[e]), int(batch.agent_K[k])), []).append(k)
        return of_turns(batch, normalised(paid, parts, 1))


@dataclass(frozen=True)
class PlayersByLoops(Occupant):
    """What a player is paid from the turn on, less the mean of that over its turns in the step."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        ahead: dict[int, float] = {}
        players: Parts = {}
        for turns in in_time(batch):
            own = float(torch.nan_to_num(batch.reward_EC[episode_of(batch, turns[0])]).sum())
            for player in {int(batch.agent_K[k]) for k in turns}:
                mine = [k for k in turns if int(batch.agent_K[k]) == player]
                players.setdefault(player, []).extend(mine)
                ahead |= {k: own + sum(float(batch.reward_K[j]) for j in mine[i:]) for i, k in enumerate(mine)}
        adv: dict[int, float] = {}
        for mine in players.values():
            mean = math.fsum(ahead[k] for k in mine) / len(mine)
            adv |= {k: ahead[k] - mean for k in mine}
        return of_turns(batch, adv)


def two_agents(episodes: list[Episode]) -> list[Episode]:
    """Every other turn is that of a second agent; all are paid something."""
    return [
        replace(
            e,
            turns=[
                replace(t, agent=("one", "two")[i % 2], reward={**t.reward, "task": 0.25 * ((e.uid + i) % 3)})
                for i, t in enumerate(e.turns)
            ],
        )
        for e in episodes
    ]


def unlike(episodes: list[Episode]) -> list[Episode]:
    """Nobody does what another one does."""
    return [replace(e, turns=[replace(t, action_key=f"{e.uid} {i}") for i, t in enumerate(e.turns)]) for e in episodes]


OVER_TURNS = GRPO.but(
    name="grpo, mean over turns",
    objective=ClippedSurrogate(mean="turn"),
    penalties=ReferenceKL(kl_coef=0.01, mean="turn"),
)


@dataclass(frozen=True)
class WorthByLoops(Occupant):
    """min Q − min V of every turn, on its tokens."""

    writes = ("adv_N", "whole_N", "foreseen_N", "chosen_K")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return ARCHER.credit.needs(ctx)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        after, before = batch.value_critic_after_K.tolist(), batch.value_critic_K.tolist()
        worth = [min(q[0], q[1]) - min(v[2], v[3]) for q, v in zip(after, before, strict=True)]
        none = torch.zeros_like(batch.weight_N)
        return {
            **of_turns(batch, dict(enumerate(worth))),
            "whole_N": none,
            "foreseen_N": none,
            "chosen_K": none.new_ones(len(worth)),
        }


@dataclass(frozen=True)
class TdByLoops(Occupant):
    """Both pairs of squared errors of ArCHer, turn by turn, from what each agent says and is paid."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return ARCHER.objectives["critic"][0].needs(ctx)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch, "both")

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        wrote = {int(k) for k, mine in zip(batch.turn_N, batch.policy_N, strict=True) if mine}
        said = {int(k) for k, s in zip(batch.turn_N, batch.source_N, strict=True) if int(s) == Source.POLICY}
        errors: dict[str, list[Tensor]] = {"q": [], "v": []}
        for k in wrote:
            if not bool(batch.replayed_E[episode_of(batch, k)]):
                gap = stats.value_K[k, 2:4] - stats.value_target_after_K[k, :2].detach()
                errors["v"].append((gap**2).sum())
        for turns in in_time(batch):
            for agent in {int(batch.agent_K[k]) for k in turns}:
                mine = [k for k in turns if int(batch.agent_K[k]) == agent]
                paid = [float(batch.reward_K[k]) for k in mine]
                paid[-1] += float(torch.nan_to_num(batch.reward_EC[episode_of(batch, mine[0])]).sum())
                for i, k in enumerate(mine):
                    later = next((j for j in range(i + 1, len(mine)) if mine[j] in said), len(mine))
                    value = stats.value_target_K[mine[later], 2:4] if later < len(mine) else torch.zeros(2)
                    goal = math.fsum(paid[i:later]) + 0.95 * value.detach()
                    if k in wrote:
                        errors["q"].append(((stats.value_after_K[k, :2] - goal) ** 2).sum())
        total = sum(torch.stack(some).mean() for some in errors.values() if some)
        return whole_value(batch, -torch.as_tensor(total), "both")


def knows_the_outcome(batch: Batch) -> Batch:
    """Q of an answer is its reward, V the mean of all."""
    reward_K = batch.spread(batch.reward_E, "E", "K")
    after_K5, before_K5 = (
        x[:, None].expand(-1, 5) for x in (reward_K, torch.full_like(reward_K, float(reward_K.mean())))
    )
    return batch.with_columns(value_critic_after_K=after_K5, value_critic_K=before_K5)


GRAPH: list[Equivalence] = [
    Equivalence(
        "gigpo_without_steps_is_grpo",
        GIGPO.but(name="gigpo, ω = 0", credit=AnchorGroups(step_coef=0.0)),
        OVER_TURNS,
        "GiGPO (arXiv:2505.10978) adds the advantage of a turn to that of GRPO.",
    ),
    Equivalence(
        "gigpo_by_loops",
        GIGPO,
        GIGPO.but(name="gigpo by loops", credit=AnchorsByLoops()),
        "The second advantage compares the turns of a task that begin in the same state.",
    ),
    Equivalence(
        "hgpo_without_history_is_the_step_of_gigpo",
        HGPO.but(name="hgpo, K = 0, n - 1", credit=NestedAnchors(history=0, ddof=1)),
        GIGPO.but(name="gigpo, its steps alone", credit=AnchorsByLoops(whole=0.0)),
        "HGPO (arXiv:2602.22817) that looks at the present state alone makes the groups of GiGPO.",
    ),
    Equivalence(
        "hgpo_by_loops",
        HGPO,
        HGPO.but(name="hgpo by loops", credit=HistoriesByLoops()),
        "Groups of turns that agree in their last k states, one k after the other.",
    ),
    Equivalence(
        "hgpo_of_one_turn_is_grpo",
        HGPO.but(name="hgpo, n - 1", credit=NestedAnchors(ddof=1)),
        OVER_TURNS,
        "All answers of a task begin at the task, so that is their group.",
        episodes=even,
    ),
    Equivalence(
        "salt_without_common_steps_is_grpo",
        SALT,
        OVER_TURNS,
        "SALT (arXiv:2510.20022) changes the advantage of steps that occur more than once.",
        episodes=unlike,
    ),
    Equivalence(
        "salt_by_loops",
        SALT,
        SALT.but(name="salt by loops", credit=EdgesByLoops()),
        "Steps that are the same have the mean of their advantages.",
    ),
    Equivalence(
        "drmas_of_one_turn_is_grpo",
        DRMAS,
        GRPO_PLAIN,
        "Dr. MAS (arXiv:2602.08847): where one agent acts once, its turns are the episodes of the group.",
        episodes=even,
    ),
    Equivalence(
        "drmas_by_loops",
        DRMAS,
        DRMAS.but(name="drmas by loops", credit=AgentsByLoops()),
        "Every agent is compared with itself.",
        episodes=two_agents,
    ),
    Equivalence(
        "mars_of_one_player_and_turn_is_centred",
        MARS,
        MARS.but(name="mars, R - mean", credit=Centred()),
        "MARS (arXiv:2510.15414): with one player, one turn and one task its baseline is the mean of the group.",
        episodes=lambda episodes: one_group(even(episodes)),
    ),
    Equivalence(
        "mars_by_loops",
        MARS,
        MARS.but(name="mars by loops", credit=PlayersByLoops()),
        "Every player has its own returns and its own mean.",
        episodes=two_agents,
    ),
    Equivalence(
        "archer_that_knows_the_outcome_is_reinforce",
        ARCHER,
        REINFORCE.but(name="reinforce, R - mean", credit=Centred()),
        "ArCHer (arXiv:2402.19446): with one turn, Q = r and V = E r its advantage is r - mean r.",
        episodes=lambda episodes: one_group(even(episodes)),
        batch=knows_the_outcome,
    ),
    Equivalence(
        "archer_by_loops",
        ARCHER,
        ARCHER.but(
            name="archer by loops",
            credit=WorthByLoops(),
            objective={"policy": PolicyGradient(mean="turn_sum"), "critic": TdByLoops()},
        ),
        "Every agent has its own next turn, wherever it is written.",
        episodes=two_agents,
        roles=("policy", "critic"),
    ),
    Equivalence(
        "poad_without_a_discount_is_ppo",
        POAD.but(name="poad, γ = 1", credit=ActionGae(gamma=1.0)),
        POAD.but(name="ppo, γ = 1", credit=Gae(gamma=1.0, lam=0.95)),
        "POAD (arXiv:2405.15821) and PPO over tokens differ by a discount inside actions.",
        roles=("policy", "critic"),
    ),
    Equivalence(
        "poad_with_one_discount_is_ppo_over_tokens",
        POAD.but(name="poad, γ also inside", credit=ActionGae(gamma=0.8, gamma_inside=0.8)),
        POAD.but(name="ppo, γ = .8", credit=Gae(gamma=0.8, lam=0.95)),
        "NTPO: the same discount after every token.",
        roles=("policy", "critic"),
    ),
]
