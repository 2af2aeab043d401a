"""Equivalences of the agents' methods that change rewards, selection or the horizon."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from graph_history import a_past
from sides import (
    GRPO,
    GRPO_PLAIN,
    NOW,
    OLD,
    PPO,
    RLOO,
    Centred,
    Equivalence,
    Normalised,
    even,
    paid,
    right,
    whole_terms,
    whole_value,
)
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Use, name_hash, single_turn
from gruppo.methods import method
from gruppo.methods.loop import MaskSmall, UnitClipped
from gruppo.methods.rlvmr import TrajectoryAndTags
from gruppo.methods.ufo import MostVaried
from gruppo.stages import Context, Memory, Need, Occupant, Stats, StepRecord, Term, Values
from gruppo.stages.credit import LeaveOneOut
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.reward import InvalidActions
from gruppo.stages.update import Passes

LOOP, SIMPLETIR, OTC, RLVMR = (method(n) for n in ("loop", "simpletir", "otc", "rlvmr"))
SCALINGINTER, IGPO, UFO = (method(n) for n in ("scalinginter", "igpo_gain", "ufo"))


@dataclass(frozen=True)
class UnitsByLoops(Occupant):
    """1/B Σ_i Σ_u min(r A, clip(r, .8, 1.2) A), r the product of the ratios of unit u: a turn or an episode."""

    level: str = "K"
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return whole_terms(batch)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        home = (batch.turn_N if self.level == "K" else batch.episode_N).tolist()
        units: dict[int, list[int]] = {}
        for n in torch.nonzero(batch.learn_N)[:, 0].tolist():
            units.setdefault(home[n], []).append(n)
        episodes = {int(batch.episode_N[rows[0]]) for rows in units.values()}
        total: Tensor = 0.0 * stats.logp_N.sum()
        for rows in units.values():
            r = torch.exp(sum((stats.logp_N[n] - batch.logp_old_N[n] for n in rows), 0.0 * total))
            a, size = float(batch.adv_N[rows[0]]), float(r.detach())
            held = torch.full_like(r, min(max(size, 0.8), 1.2))
            total = total + (r * a if size * a <= float(held) * a else held * a)
        return whole_value(batch, total / max(len(episodes), 1))


def in_use(episodes: list[Episode]) -> list[Episode]:
    return [e for e in episodes if e.use == Use.LEARN and e.status.judged]


def loop_of(unit: str) -> Equivalence:
    level = {"turn": "K", "trajectory": "E"}[unit]
    return Equivalence(
        f"loop_{unit}_by_loops",
        LOOP.but(name=f"loop, a ratio for a {unit}", objective=UnitClipped(unit=unit)),  # type: ignore[arg-type]
        LOOP.but(name=f"loop, {unit} by {unit}", objective=UnitsByLoops(level), credit=Centred(bessel=True)),
        "LOOP (arXiv:2502.01600): one product of ratios a unit, clipped as a whole, summed over an episode.",
    )


@dataclass(frozen=True)
class VoidByLoops(Occupant):
    """Drops every token of an episode that has a void turn, turn by turn."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        flags, home = batch.flags_K.tolist(), batch.up("K", "E").tolist()
        void = {e for flag, e in zip(flags, home, strict=True) if flag % 2}
        keep = [e not in void for e in batch.episode_N.tolist()]
        return torch.tensor(keep), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class FewCallsByLoops(Occupant):
    """OTC's reward, one rollout after the other, with its record in a dict."""

    of_groups = True
    replaces = ("task",)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, Any]:
        fewest = self.after(ctx.memory.get("fewest", {}), episodes)
        out: list[float] = []
        for e in episodes:
            m, n, worth = sum(len(t.tools) for t in e.turns), fewest.get(e.task, 0), e.reward["task"]
            if worth > 0:
                f = 2 * n * m / (m + n) if n else 0.0
                worth *= math.sin(f * math.pi / (2 * n)) if n else math.cos(m * math.pi / (2 * m + 1))
            out.append(worth)
        return {"few": out}

    def after(self, fewest: Mapping[str, int], episodes: Sequence[Episode]) -> dict[str, int]:
        out = dict(fewest)
        for e in episodes:
            if e.source == Source.POLICY and e.reward.get("task", 0.0) > 0:
                out[e.task] = min(out.get(e.task, 99), sum(len(t.tools) for t in e.turns))
        return out

    def observe(self, record: StepRecord, memory: Memory) -> None:
        counted = [e for e in record.drawn if e.status.judged and e.use in (Use.LEARN, Use.BASELINE)]
        memory["fewest"] = self.after(memory.get("fewest", {}), counted)


@dataclass(frozen=True)
class TagsByLoops(Occupant):
    """RLVMR's advantage with its rules, turn by turn: weights a and b, statistics of R over episodes or turns."""

    a: float = 0.5
    b: float = 0.5
    turns: bool = False
    raw: bool = False
    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        home, group = batch.up("K", "E").tolist(), batch.group_E.tolist()
        judged, total = batch.judged_E.tolist(), batch.reward_E.tolist()
        order = sorted(range(len(home)), key=lambda k: (home[k], int(batch.turn_index_K[k])))
        task = batch.return_EC[:, batch.components.index("task")].tolist()
        paid, classes, episodes = dict[int, float](), dict[tuple[int, int], list[int]](), dict[int, list[int]]()
        for k in order:
            e, tag, bad = home[k], int(batch.tag_K[k]), int(batch.flags_K[k]) & 3 > 0
            past = [j for j in order[: order.index(k)] if home[j] == e]
            act = {j: int(batch.action_key_K[j]) for j in (*past, k)}
            fine = [j for j in past if int(batch.flags_K[j]) & 3 == 0]
            word = {
                name_hash("planning"): task[e] > 0,
                name_hash("explore"): all(act[j] != act[k] for j in fine),
                name_hash("reflection"): not past or (past[-1] not in fine and act[past[-1]] != act[k]),
            }
            paid[k] = float(not bad and word.get(tag, False))
            if judged[e]:
                classes.setdefault((group[e], 0 if bad else tag), []).append(k)
                episodes.setdefault(group[e], []).append(k)
        adv = dict.fromkeys(order, 0.0)
        for rows in classes.values():
            z = [paid[rows[0]]] if self.raw and len(rows) == 1 else _z([paid[k] for k in rows])
            adv |= {k: self.b * x for k, x in zip(rows, z, strict=True)}
        for rows in episodes.values():
            mine = rows if self.turns else list({home[k]: k for k in rows}.values())
            score = dict(zip([home[k] for k in mine], _z([total[home[k]] for k in mine]), strict=True))
            for k in rows:
                adv[k] += self.a * score[home[k]]
        return {"adv_N": torch.tensor([adv[k] for k in batch.turn_N.tolist()], dtype=torch.float64)}


def _z(x: list[float]) -> list[float]:
    """(x − mean) / (std + 1e-6), std with n − 1; 0 for a single one."""
    mean = math.fsum(x) / len(x)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in x) / max(len(x) - 1, 1))
    return [(v - mean) / (std + 1e-6) for v in x]


@dataclass(frozen=True)
class GainByLoops(Occupant):
    """IGPO's reward: the answer is read after every context by itself."""

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, Any]:
        out: list[list[float]] = []
        for e in episodes:
            answer, chance = ctx.tokenizer.encode(str(e.ask.task.answer)), list[float]()
            for t in e.turns:
                seen, unknown = e.sequences[t.sequence].ids[: t.start], np.full(len(answer), np.nan, np.float32)
                read = ctx.read([single_turn(1, e.task, "g", seen, answer, unknown, 0, source=Source.EXPERT)])
                chance.append(math.exp(math.fsum(read.logp_policy_N.tolist()) / len(answer)))
            out.append([b - a for a, b in pairwise(chance)] + [0.0])
        return {"gain": out}


@dataclass(frozen=True)
class ReturnsByLoops(Occupant):
    """IGPO's advantage: all rewards of a group normalised together, then added up from the end of each episode."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        home, group = batch.up("K", "E").tolist(), batch.group_E.tolist()
        own = torch.where(batch.paid_EC, batch.reward_EC.nan_to_num(0.0), 0.0).sum(-1).tolist()
        time: dict[int, list[int]] = {}
        for k in sorted(range(len(home)), key=lambda k: int(batch.turn_index_K[k])):
            time.setdefault(home[k], []).append(k)
        rows: dict[int, list[int]] = {}
        reward: dict[int, float] = {}
        for e, turns in time.items():
            reward |= {k: float(batch.reward_K[k]) + (own[e] if k == turns[-1] else 0.0) for k in turns}
            if bool(batch.judged_E[e]):
                rows.setdefault(group[e], []).extend(turns)
        scaled = dict.fromkeys(range(len(home)), 0.0)
        for mine in rows.values():
            scaled |= dict(zip(mine, _z([reward[k] for k in mine]), strict=True))
        adv = {k: math.fsum(scaled[j] for j in turns[i:]) for turns in time.values() for i, k in enumerate(turns)}
        return {"adv_N": torch.tensor([adv[k] for k in batch.turn_N.tolist()], dtype=torch.float64)}


@dataclass(frozen=True)
class VariedByLoops(Occupant):
    """Keeps a quarter of the groups: one after the other, the one with the largest variance that is left."""

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Any]]:
        left: dict[str, list[float]] = {}
        for e in episodes:
            if e.status.judged and e.use in (Use.LEARN, Use.BASELINE):
                left.setdefault(e.group, []).append(e.total)
        kept = set[str]()
        for _ in range(-(-len(left) // 4)):
            spread = {g: math.fsum((a - b) ** 2 for a in x for b in x) / len(x) ** 2 for g, x in left.items()}
            best = max(spread, key=lambda g: spread[g])
            kept.add(best)
            del left[best]
        return [e.group in kept for e in episodes], []


def told(**fields: Any) -> Callable[[list[Episode]], list[Episode]]:
    """Episodes whose turns have these fields."""
    return lambda episodes: [replace(e, turns=[replace(t, **fields) for t in e.turns]) for e in episodes]


GRAPH: list[Equivalence] = [
    Equivalence(
        "loop_is_rloo",
        LOOP.but(name="loop, all rollouts", select=(MaskSmall(least_adv=0.0),)),
        RLOO.but(name="rloo without kl", credit=LeaveOneOut(kl_coef=0.0)),
        "LOOP: in its first step, with all rollouts, it is RLOO.",
        on_policy=True,
    ),
    Equivalence(
        "loop_of_one_turn",
        LOOP.but(name="loop, a ratio for an answer", objective=UnitClipped(unit="turn")),
        LOOP.but(name="loop, a ratio for its trajectory", objective=UnitClipped(unit="trajectory")),
        "LOOP: an episode of one turn is its turn.",
        episodes=even,
    ),
    loop_of("turn"),
    loop_of("trajectory"),
    Equivalence(
        "simpletir_without_voids",
        SIMPLETIR,
        GRPO_PLAIN.but(name="grpo, clips of simpletir", objective=SIMPLETIR.objective),
        "SimpleTIR (arXiv:2509.02479): where every turn has an action, it is GRPO with its clips.",
        episodes=told(flags=frozenset()),
    ),
    Equivalence(
        "simpletir_by_loops",
        SIMPLETIR,
        GRPO_PLAIN.but(
            name="void turns by loops", credit=Normalised(), select=(VoidByLoops(),), objective=SIMPLETIR.objective
        ),
        "SimpleTIR: rollouts with a void turn count in the group, and teach nothing.",
    ),
    Equivalence(
        "otc_without_calls", OTC, GRPO, "OTC (arXiv:2504.14870): without calls it is GRPO.", episodes=told(tools=())
    ),
    Equivalence(
        "otc_by_loops",
        OTC,
        GRPO.but(name="few calls by loops", reward=(FewCallsByLoops(),)),
        "OTC: calls counted one by one, the fewest by task in a dict.",
        before=a_past,
    ),
    Equivalence(
        "rlvmr_without_tags",
        RLVMR.but(name="rlvmr, whole trajectories", credit=TrajectoryAndTags(traj_coef=1.0)),
        GRPO.but(
            name="grpo, turns as samples",
            reward=(InvalidActions(),),
            objective=RLVMR.objective,
            penalties=RLVMR.penalties,
        ),
        "RLVMR (arXiv:2507.22844): where no thought has a tag, it is GRPO with a price on invalid actions.",
        episodes=told(tag=""),
    ),
    Equivalence(
        "rlvmr_by_loops",
        RLVMR,
        RLVMR.but(name="rlvmr, turn by turn", credit=TagsByLoops(), reward=(InvalidActions(),)),
        "RLVMR: rules, classes and statistics, one turn after the other.",
    ),
    Equivalence(
        "rlvmr_as_released",
        RLVMR.but(name="rlvmr, as released", credit=TrajectoryAndTags(1.0, 1.0, over="turn", alone="raw")),
        RLVMR.but(name="the sum, turn by turn", credit=TagsByLoops(1.0, 1.0, True, True), reward=(InvalidActions(),)),
        "RLVMR: the released code adds, compares R over turns, and keeps the raw reward of a tag that occurs once.",
    ),
    Equivalence(
        "scalinginter_learns_as_grpo",
        SCALINGINTER,
        GRPO.but(name="grpo, two passes, kl 0.001", penalties=ReferenceKL(0.001), update=Passes(2, 4)),
        "ScalingInter-RL (arXiv:2509.08755): how long episodes may be is all that differs.",
        update=True,
    ),
    Equivalence(
        "igpo_gain_of_one_turn",
        IGPO,
        GRPO.but(name="grpo, kl 0.001", penalties=ReferenceKL(0.001)),
        "IGPO (arXiv:2510.14967): with one turn there is no gain, and it is GRPO.",
        episodes=even,
    ),
    Equivalence(
        "igpo_gain_by_loops",
        IGPO,
        IGPO.but(name="igpo, turn by turn", reward=(GainByLoops(),), credit=ReturnsByLoops()),
        "IGPO: every context read by itself, every return added up by itself.",
    ),
    Equivalence(
        "ufo_of_all_groups",
        UFO.but(name="ufo, all groups", select=(MostVaried(share=1.0),)),
        PPO.but(name="ppo, settings of ufo", credit=UFO.credit, objective=UFO.objective, penalties=UFO.penalties),
        "UFO (arXiv:2507.14295): what was tried again is for the environment; with all groups it learns as PPO.",
        episodes=in_use,
        roles=("policy", "critic"),
    ),
    Equivalence(
        "ufo_by_loops",
        UFO,
        PPO.but(
            name="ppo on the most varied, one by one",
            select=(VariedByLoops(),),
            credit=UFO.credit,
            objective=UFO.objective,
            penalties=UFO.penalties,
        ),
        "UFO: the groups whose returns vary most, chosen one after the other, where no two vary alike.",
        episodes=paid(lambda e: {"task": right(e) * (1 + e.index / 7)}),
        roles=("policy", "critic"),
    ),
]
