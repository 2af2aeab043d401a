"""Mistakes of methods that give credit to the turns of agents: one for each method."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, Source, Use, centre
from gruppo.methods import method
from gruppo.methods.archer import Q, TemporalDifference, V
from gruppo.methods.drmas import AgentNormalised
from gruppo.methods.gigpo import AnchorGroups
from gruppo.methods.hgpo import NestedAnchors
from gruppo.methods.mars import PlayerCentred
from gruppo.methods.poad import ActionGae
from gruppo.methods.salt import MergedSteps
from gruppo.pieces import advantage
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Method, Occupant, Stats, Values
from gruppo.stages.credit import in_time, token_reward, turn_reward, whitened_gae
from gruppo.stages.turns import anchor_K, judged_K, seat_advantage, seat_return, turn_return


@dataclass(frozen=True)
class FailedAnchors(AnchorGroups):
    """GiGPO whose anchors also hold the turns of failed episodes, with whatever they were paid until then."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        anchors = batch.key("K", batch.group_K, anchor_K(batch))
        step_K = advantage.z_score(turn_return(batch, self.gamma), anchors, eps=self.eps)
        whole_E = advantage.z_score(batch.reward_E, batch.level("E", "G"), where=batch.judged_E, eps=self.eps)
        judged_N = batch.spread(batch.judged_E, "E", "N")
        adv_N = batch.spread(whole_E, "E", "N") + batch.spread(step_K, "K", "N")
        return {"adv_N": torch.where(judged_N, adv_N, torch.zeros_like(adv_N))}


@dataclass(frozen=True)
class ApartAmongAnchors(NestedAnchors):
    """HGPO whose groups also hold the turns of experts and of other episodes that are in no statistic."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        paid_E = torch.where(batch.learn_E, torch.nan_to_num(batch.reward_E), batch.reward_E)
        use_E = torch.where(batch.use_E == Use.APART, int(Use.LEARN), batch.use_E)
        return super().__call__(ctx, batch.with_columns(reward_E=paid_E, use_E=use_E))


@dataclass(frozen=True)
class FailedEdges(MergedSteps):
    """SALT whose edges also hold the turns of failed episodes, with an advantage of 0."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        edges, whole_K = self.edges(batch), seat_advantage(batch, self.compared)
        return {"adv_N": batch.spread(edges.spread(batch.gather(whole_K, "K", edges, "mean")), "K", "N")}


@dataclass(frozen=True)
class FailedTurns(AgentNormalised):
    """Dr. MAS whose statistics of an agent also have its turns in failed episodes, with what they were paid."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        paid_K = torch.nan_to_num(seat_return(batch))
        adv_K = advantage.z_score(paid_K, batch.key("K", batch.group_K, batch.agent_K), eps=self.eps)
        return {"adv_N": batch.spread(torch.where(judged_K(batch), adv_K, torch.zeros_like(adv_K)), "K", "N")}


@dataclass(frozen=True)
class FailedGames(PlayerCentred):
    """MARS whose mean of a player also has the turns of failed games, with what they were paid until then."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        adv_K = centre(turn_return(batch, self.gamma), self.players(batch))
        return {"adv_N": batch.spread(torch.where(judged_K(batch), adv_K, torch.zeros_like(adv_K)), "K", "N")}


@dataclass(frozen=True)
class RunsOn(ActionGae):
    """POAD whose backup goes on into the next episode of the batch, as over a flat buffer without its masks."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine = in_time(batch, batch.sampled_N)
        value, gamma = batch.value_critic_N[mine], self.discounts(batch)[mine]
        adv, ret = advantage.gae(token_reward(batch, mine, 0.0), value, torch.zeros_like(mine), gamma, self.lam)
        known = (batch.judged_E | batch.open_E)[batch.episode_N[mine]]
        return whitened_gae(batch, mine, adv, ret, known, known)


@dataclass(frozen=True)
class NextInTheSequence(TemporalDifference):
    """ArCHer that takes the next row for the next turn, which may be of another agent's context or another time."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        later_K4 = torch.cat([stats.value_target_K[1:], torch.zeros_like(stats.value_target_K[:1])])
        goal_K2 = stop(turn_reward(batch)[:, None].nan_to_num() + self.gamma * later_K4[:, V])
        found = super().__call__(ctx, batch, stats)
        return found | {"q": -((stats.value_after_K[:, Q] - goal_K2) ** 2).sum(1)}


@dataclass(frozen=True)
class LearnsFromFailures(TemporalDifference):
    """ArCHer whose Q also learns from episodes that failed, as if they had been paid nothing."""

    def over(self, batch: Batch) -> dict[str, Tensor]:
        said_K = batch.gather(batch.source_N == Source.POLICY, "N", "K", "any")
        return super().over(batch) | {"q": said_K & (batch.chosen_K > 0)}


def critic_spoiled(objective: Occupant) -> Method:
    return spoiled("archer", objective={**method("archer").objectives, "critic": objective})  # type: ignore[arg-type]


def spoiled(name: str, **rooms: Occupant) -> Method:
    return method(name).but(name="spoiled", **rooms)


SPOILED: dict[str, tuple[str, Method]] = {
    "gigpo, failures among anchors": ("failures", spoiled("gigpo", credit=FailedAnchors())),
    "hgpo, episodes apart among anchors": ("unused", spoiled("hgpo", credit=ApartAmongAnchors())),
    "salt, failures among edges": ("failures", spoiled("salt", credit=FailedEdges())),
    "drmas, failures in the statistics": ("failures", spoiled("drmas", credit=FailedTurns())),
    "mars, failed games in the mean": ("failures", spoiled("mars", credit=FailedGames())),
    "poad, into the next episode": ("order", spoiled("poad", credit=RunsOn())),
    "archer, the next row for the next turn": ("order", critic_spoiled(NextInTheSequence())),
    "archer, failures in Q": ("failures", critic_spoiled(LearnsFromFailures())),
}
