"""Equivalences of spear, arpo_replay, arpo_agentic, latr, spiral and memact."""

from dataclasses import dataclass, replace

from sides import GRPO_PLAIN, Equivalence, by_episode, even
from torch import Tensor

from gruppo.data import Batch, Episode
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.fields import observe_twice
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.arpo_agentic import SharedTurns
from gruppo.methods.memact import SomeSegments
from gruppo.methods.spear import NowAndThen
from gruppo.stages import Context, Memory, Occupant, StepRecord
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient
from gruppo.stages.replay import Forget

SPEAR, DR_GRPO, ARPO = method("spear"), method("dr_grpo"), method("arpo_replay")
AGENTIC, SPIRAL, MEMACT = method("arpo_agentic"), method("spiral"), method("memact")
BARE = {"reward": (), "select": (), "replay": Forget()}
NONE = {"share": 0.0, "low": 1.0, "high": 5.0}
LENGTH = "sequence_sum/max_tokens"


def fresh(episodes: list[Episode]) -> list[Episode]:
    return [replace(e, replayed=False) for e in episodes]


def not_alone(episodes: list[Episode]) -> list[Episode]:
    """A group of one may fail."""
    return [e for e in episodes if e.group != "one"]


def a_past(world: World) -> None:
    """Two steps on other answers to the same tasks, of which some are remembered."""
    observe_twice(world, random_episodes(world.seed + 1, groups=4))
    assert world.method.replay == Forget() or world.ctx.replay


@dataclass(frozen=True)
class RunningByLoops(Occupant):
    """The baseline of each domain, one episode after the other; one agent."""

    writes = ("adv_N",)

    def walked(self, batch: Batch, memory: Memory) -> tuple[dict[int, float], dict[str, float]]:
        b, adv = dict(memory.get("by domain", {})), dict[int, float]()
        for i in sorted(range(batch.size("E")), key=lambda i: int(batch.uid_E[i])):
            if bool(batch.judged_E[i]):
                name, r = str(int(batch.domain_E[i])), float(batch.reward_E[i])
                adv[i] = r - b.get(name, 0.0)
                b[name] = 0.95 * b.get(name, 0.0) + 0.05 * r
        return adv, b

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return by_episode(batch, self.walked(batch, ctx.memory)[0])

    def observe(self, record: StepRecord, memory: Memory) -> None:
        assert record.batch is not None
        memory["by domain"] = self.walked(record.batch, memory)[1]


GRAPH = [
    Equivalence(
        "spear_without_a_past",
        SPEAR.but(
            name="spear, nothing left out",
            objective=NowAndThen(left_out=NONE),
            **BARE,
        ),
        DR_GRPO.but(name="dr_grpo, clips of dapo", objective=ClippedSurrogate(0.2, 0.28, mean=LENGTH)),
        "Nothing is remembered, no token is left out, no turn is paid for.",
        episodes=fresh,
    ),
    Equivalence(
        "arpo_replay_without_failures",
        ARPO.but(name="arpo_replay, any format", reward=()),
        GRPO_PLAIN.but(name="grpo, clips of arpo_replay", objective=ClippedSurrogate(0.2, 0.3, mean="token")),
        "Every group has a success, so none is replaced, and the format is not paid for.",
        episodes=not_alone,
        before=a_past,
    ),
    Equivalence(
        "arpo_agentic_of_single_leaves",
        AGENTIC.but(name="arpo_agentic, hard", credit=SharedTurns()),
        GRPO_PLAIN.but(name="grpo, mean over tokens", objective=ClippedSurrogate(mean="token")),
        "No turn is shared, so a token has the advantage of its own leaf.",
    ),
    Equivalence(
        "latr_is_grpo",
        method("latr"),
        method("grpo"),
        "Given the same answers, it learns the same: only the rollout differs.",
    ),
    Equivalence(
        "spiral_by_loops",
        SPIRAL,
        SPIRAL.but(name="spiral by loops", credit=RunningByLoops()),
        "With one agent there is one baseline for each domain, and every episode changes it.",
        before=a_past,
    ),
    Equivalence(
        "memact_without_edits",
        MEMACT.but(name="memact, free of cost", reward=(), penalties=(), select=(SomeSegments(segments=6),)),
        GRPO_PLAIN.but(name="grpo, policy gradient", objective=PolicyGradient(mean="sequence_sum")),
        "One segment each, in groups of three: each is drawn twice, and none counts more than another.",
        episodes=even,
    ),
]
