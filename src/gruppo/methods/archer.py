"""ArCHer, an actor-critic with a hierarchical structure (Zhou et al. 2024, arXiv:2402.19446).

    Q_i(s, u) → r + γ V̄_i(s')                          remembered turns; V̄ = 0 after the last; i = 1, 2; γ = 0.95
    V_i(s) → Q̄_i(s, ũ),   ũ ~ π(· | s)                  utterances drawn anew where remembered turns began
    θ̄ ← (1 − τ) θ̄ + τ θ                                after each of these steps; τ = 0.1
    A(s, ũ) = min_i Q_i(s, ũ) − min_i V_i(s),           J_π = mean over ũ of A Σ_j log π(ũ_j | s, ũ_<j)

Differs from REINFORCE: what an utterance (a turn) is worth is learned by TD from a buffer of old episodes, so one
episode teaches many times; then the policy learns inside of utterances, on fresh ones that no environment hears: Q
judges them. All values are outputs of one critic, V before an utterance and Q after its last token; `target` is its
slow copy. Each of 50 critic steps has 256 remembered turns and as many fresh utterances, then each of 3 steps of the
policy 256 fresh utterances; in the first 20 steps of a run only the critic learns. A laptop wants less, such as
`method.update.critic_epochs=8 method.update.utterances=64 method.update.warmup=2`. `token_baseline=learned` subtracts
v(s, ũ_<j), a further output, which learns A by squared error. Checkpoints hold the buffer. A turn in which nothing was
said is no step: what it is paid belongs to the utterance before it. A task of one answer is an episode of one turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Use
from gruppo.methods.reinforce import REINFORCE
from gruppo.pieces.stop import stop
from gruppo.stages import ByUpdate, Context, Need, Occupant, Prompt, Role, Stats, Term, Values, need, setting
from gruppo.stages.credit import turn_reward
from gruppo.stages.objective import PolicyGradient
from gruppo.stages.play import prompt_before
from gruppo.stages.requires import InRoom, Outputs

INSIDE, BEFORE = need("value", "critic"), need("value", "critic", at="K")  # at every token; before an utterance
AFTER = replace(BEFORE, side="after")
Q, V, TOKEN = slice(0, 2), slice(2, 4), 4  # the outputs of the critic
Turns = Sequence[tuple[Episode, int]]


@dataclass(frozen=True)
class UtteranceAdvantage(Occupant):
    """A = min Q(s, u) − min V(s) of the critic, for all tokens of an utterance.

    token_baseline  learned: A − v(s, u_<j), with v as the critic has it; and A is what v then learns
    """

    token_baseline: Literal["none", "learned"] = "none"
    writes = ("adv_N", "whole_N", "foreseen_N", "chosen_K")
    requires = (Outputs("critic", 5),)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (BEFORE, AFTER) if self.token_baseline == "none" else (BEFORE, AFTER, INSIDE)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        worth_K = batch.value_critic_after_K[:, Q].amin(1) - batch.value_critic_K[:, V].amin(1)
        whole_N, learned = batch.spread(worth_K, "K", "N"), self.token_baseline == "learned"
        return {
            "adv_N": whole_N - batch.value_critic_N[:, TOKEN] if learned else whole_N,
            "whole_N": whole_N,
            "foreseen_N": torch.full_like(whole_N, float(learned)),  # whether v learns A here
            "chosen_K": torch.ones_like(worth_K),  # turns that Q and V learn from
        }


@dataclass(frozen=True)
class TemporalDifference(Occupant):
    """−Σ_i (Q_i(s,u) − [r + gamma V̄_i(s')])² over turns with an outcome; −Σ_i (V_i(s) − Q̄_i(s,u))² over turns of the
    present policy; −(A − v)² over tokens whose utterance has a baseline."""

    gamma: float = setting(0.95, low=0, high=1, witness=0.5)
    reads = ("whole_N", "foreseen_N", "chosen_K")
    requires = (Outputs("critic", 5), Outputs("target", 5))

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        now = [replace(n, when="step") for n in (BEFORE, AFTER, INSIDE)]
        return (*now, *(replace(n, role="target") for n in now[:2]))

    def over(self, batch: Batch) -> dict[str, Tensor]:
        """The rows of each term that has any."""
        mine_K = batch.gather(batch.policy_N, "N", "K", "any") & (batch.chosen_K > 0)
        judged_K, past_K = (batch.spread(x_E, "E", "K") for x_E in (batch.judged_E, batch.replayed_E))
        rows = {
            "q": mine_K & judged_K,
            "v": mine_K & ~past_K,
            "token_baseline": batch.policy_N & (batch.foreseen_N > 0),
        }
        return {name: x for name, x in rows.items() if bool(x.any())} or {"q": rows["q"]}

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        rows = self.over(batch)  # not additive: the next turn may be in another sequence
        return [Term(n, x, at="N" if n == "token_baseline" else "K", additive=False) for n, x in rows.items()]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        reward_K, next_K2 = until_the_next(batch, stats.value_target_K[:, V])
        goal_K2 = stop(reward_K[:, None] + self.gamma * next_K2)
        error = {
            "q": ((stats.value_after_K[:, Q] - goal_K2) ** 2).sum(1),
            "v": ((stats.value_K[:, V] - stop(stats.value_target_after_K[:, Q])) ** 2).sum(1),
            "token_baseline": (stats.value_N[:, TOKEN] - batch.whole_N) ** 2,
        }
        return {name: -error[name] for name in self.over(batch)}


def until_the_next(batch: Batch, value_K2: Tensor) -> tuple[Tensor, Tensor]:
    """What an agent is paid until it speaks again, and the values of the state in which it does; 0 if it does not."""
    seats, said_K = batch.seats, batch.gather(batch.source_N == Source.POLICY, "N", "K", "any")
    silent_K = (~said_K).to(value_K2.dtype)
    paid_K = torch.where(batch.spread(batch.judged_E, "E", "K"), turn_reward(batch, seats), 0.0)
    reward_K = batch.scan(paid_K, batch.lag(silent_K, -1, "K", seats), "K", seats)
    spoken_K2 = batch.scan(torch.where(said_K[:, None], value_K2, 0.0), silent_K, "K", seats)
    return reward_K, batch.lag(spoken_K2, -1, "K", seats)


@dataclass(frozen=True)
class UtteranceBuffer(Occupant):
    """The newest judged episodes with `capacity` utterances in all, for the update. They do not join the batch."""

    capacity: int = setting(100_000, low=1, witness=[5, 9])
    joins = False
    proximal = "now"
    credited = "now"

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        every, size = [*store, *(e for e in episodes if spoken(e))], 0
        for first in reversed(range(len(every))):
            size += len(spoken(every[first]))
            if size > self.capacity:
                return every[first + 1 :]
        return every

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return list(store)


def spoken(e: Episode) -> list[int]:
    """The turns in which the policy said something; none of an episode without an outcome to learn from."""
    if not e.status.judged or (e.use, e.source) != (Use.LEARN, Source.POLICY) or np.isnan(e.total):
        return []
    sources = (e.sequences[t.sequence].source[t.start : t.stop] for t in e.turns)
    return [i for i, source in enumerate(sources) if (source == Source.POLICY).any()]


@dataclass(frozen=True)
class CriticThenActor(Occupant):
    """Steps of the critic, the target following each with rate `target_tau`; then, after `warmup` steps, of the policy.

    critic_epochs  each on `utterances` remembered turns, and as many fresh ones where they began
    actor_epochs   each on so many fresh ones
    """

    critic_epochs: int = setting(50, low=0, witness=[2, 3])
    actor_epochs: int = setting(3, low=0, witness=1)
    utterances: int = setting(256, low=1, witness=3)
    warmup: int = setting(20, low=0, witness=0)
    target_tau: float = setting(0.1, low=0, high=1, witness=1.0)
    reads = ("foreseen_N", "chosen_K")
    requires = (InRoom("replay", ("utterance_buffer",)), InRoom("objective", ("temporal_difference",)))

    async def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        known = [(e, i) for e in (*ctx.replay, *ctx.episodes) for i in spoken(e)]
        for epoch in range(self.critic_epochs if known else 0):
            some = chosen(ctx, known, self.utterances, f"critic {epoch}")
            fresh = await ctx.answer(states(some, f"critic {epoch}"))
            learner.step("critic", transitions(ctx, some, fresh))
            learner.copy("critic", "target", tau=self.target_tau)
        for epoch in range(self.actor_epochs if known and ctx.step >= self.warmup else 0):
            some = chosen(ctx, known, self.utterances, f"actor {epoch}")
            acted = ctx.ready(await ctx.answer(states(some, f"actor {epoch}")))
            learner.step("policy", acted)
            if bool(acted.foreseen_N.any()):
                learner.step("critic", acted.with_columns(chosen_K=torch.zeros_like(acted.chosen_K)))


def chosen(ctx: Context, known: Turns, most: int, key: str) -> Turns:
    """At most so many of these turns, at random."""
    uid, turn = (torch.tensor(x) for x in zip(*((e.uid, i) for e, i in known), strict=True))
    order = torch.argsort(ctx.uniform("archer", key, uid, turn), stable=True)
    return [known[i] for i in sorted(order[:most].tolist())]


def states(turns: Turns, key: str) -> list[Prompt]:
    """The prompts that end where these turns began."""
    return [prompt_before(e, i, f"{key} {e.uid} {i}") for e, i in turns]


def transitions(ctx: Context, turns: Turns, fresh: Sequence[Episode]) -> Batch:
    """Remembered turns for Q and fresh utterances for V, as one batch."""
    past = {e.uid: replace(e, replayed=True, notes={}) for e, _ in turns}
    batch = ctx.read([*past.values(), *fresh], readouts=())
    wanted = {(e.uid, i) for e, i in turns} | {(e.uid, 0) for e in fresh}
    rows = zip(batch.spread(batch.uid_E, "E", "K").tolist(), batch.turn_index_K.tolist(), strict=True)
    chosen_K = batch.reward_K.new_tensor([float(row in wanted) for row in rows])
    none_N = torch.zeros_like(batch.weight_N)
    return batch.with_columns(chosen_K=chosen_K, whole_N=none_N, foreseen_N=none_N)


ARCHER = REINFORCE.but(
    name="archer",
    paper="arXiv:2402.19446",
    checked=(
        "Compared with YifeiZhou02/ArCHer: archer/algorithms/archer/trainer.py, archer/models/critic.py, "
        "archer/models/archer_agent.py, archer/data/utils.py, archer/algorithms/offpolicy_train_loop.py and "
        "scripts/config, read at commit 7c771a7. The same: both pairs of errors with their targets, fresh utterances "
        "for V at every critic step and for each step of the policy, one optimiser step an epoch on 8 · 32 turns, τ "
        "after each, both minima, 50 and 3 epochs, 20 steps of warm-up (10 in two configurations), 100,000 "
        "utterances, γ = 0.95. Differences. (1) Its critic is roberta-base, which reads observation and action apart, "
        "with two hidden layers for each value; here it is a copy of the policy with linear outputs, which reads the "
        "dialogue up to the utterance, or with it. (2) Turns are drawn with replacement there, without here. (3) Its "
        "buffer drops the oldest turn, here the oldest episode. (4) The token baseline is an output of its actor and "
        "learns in the actor's step (use_baseline, off in all configurations); here it is an output of the critic and "
        "learns right after that step. (5) The learning rates of its configurations are 1e-6 to 1e-5 for the actor and "
        "1e-5 to 2e-5 for the critic, here the run's unless cast.critic.lr is set. Its IQL and PPO variants are left "
        "out."
    ),
    confidence="code",
    credit=UtteranceAdvantage(),
    objective={"policy": PolicyGradient(mean="turn_sum"), "critic": TemporalDifference(gamma=0.95)},
    update=CriticThenActor(critic_epochs=50, actor_epochs=3, utterances=256, warmup=20, target_tau=0.1),
    replay=UtteranceBuffer(capacity=100_000),
    cast={
        "critic": Role(as_="head", train=True, outputs=5),
        "target": Role(start="critic", as_="head", outputs=5, refresh=ByUpdate()),
    },
    together=("credit", "objective", "update", "replay"),
    breaks={
        "equal_rewards": "The advantage is the critic's guess alone, which may differ where all rewards are equal.",
        "direction": "Rewards reach the policy through the critic only: without its values nothing is pushed.",
        "roles": "In the first steps the critic is trained alone: the policy, although trained later, stays as it is.",
    },
)
