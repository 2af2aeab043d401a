"""ARPO, agentic reinforced policy optimisation (Dong et al. 2025, arXiv:2507.19849).

    H_t = −Σ p log p / log|V|       over the first 20 tokens of turn t, of each its ten most probable ids
    P_t = 0.5 + 0.2 (H_t − H_1)     for every turn after an observation; a branch begins at turn t if P_t > 0.5
    A_i = (R_i − mean R) / (std R + ε) over all M leaves,    J = mean_t min(r_t A, clip(r_t, 1 ± 0.2) A)

Differs from GRPO: of the M episodes of a prompt only half begin at the prompt. The others branch off where an
observation made the policy unsure, so that what came before is computed once. If too few turns are unsure, the rest
begins at the prompt, too; M is `samples`. Earlier turns branch first. A branch may branch again, after its own turn.
Shared turns stand in every leaf, so that they learn from the sum of the leaves' advantages ("soft"); with
`credit=shared_turns` each copy has their mean ("hard"). No KL; a mean over tokens. Answers of one turn have no
observation, so this is GRPO there. A world is brought back by playing its actions again, so it must be a pure function
of them. Not the ARPO of GUI agents (arpo_replay).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, gather, key_hash
from gruppo.methods.grpo import GRPO
from gruppo.pieces.advantage import z_score
from gruppo.stages import Context, Occupant, Prompt, setting
from gruppo.stages.credit import COMPARES, judged_N, to_tokens
from gruppo.stages.dialogue import FIRST_ENTROPY
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.play import Fork, Start, sampling_for, starts_of
from gruppo.stages.update import Passes


@dataclass
class Tree:
    """The leaves of one prompt."""

    spare: list[Start]  # episodes that could begin at the prompt
    wanted: int
    leaves: int = 0
    entropy: dict[int, list[float]] = field(default_factory=dict[int, list[float]])  # of an episode, by turn
    unsure: list[tuple[int, Episode]] = field(default_factory=list[tuple[int, Episode]])  # of the last wave


@dataclass(frozen=True)
class Branches(Occupant):
    """Some episodes begin at the prompt; others branch off at turns, P = branch_base + branch_slope · ΔH.

    root_share      share of `samples` that begins at the prompt
    branch_bar      a turn branches if P is above it
    branching       rise: so; chance: if u − branch_slope · ΔH is at most branch_bar, u uniform (the authors' code)
    branch_copies   branches of one turn
    entropy_tokens  first tokens of a turn that ΔH is about
    """

    root_share: float = setting(0.5, above=0, high=1)
    branch_base: float = 0.5
    branch_slope: float = 0.2
    branch_bar: float = 0.5
    branching: Literal["rise", "chance"] = "rise"
    branch_copies: int = setting(1, low=1)
    entropy_tokens: int = setting(20, low=1)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        starts = iter(starts_of(ctx, prompts))
        trees = [Tree([self.watched(next(starts)) for _ in range(p.samples)], p.samples) for p in prompts]
        out: list[list[Episode]] = [[] for _ in trees]
        while any(waves := [self.wave(ctx, tree) for tree in trees]):
            played = iter(await ctx.play([s for wave in waves for s in wave]))
            for tree, mine, wave in zip(trees, out, waves, strict=True):
                new = [next(played) for _ in wave]
                mine += new
                for start, episode in zip(wave, new, strict=True):
                    self.look(ctx, tree, start, episode)
        return [e for mine in out for e in mine]

    def watched(self, start: Start | Fork) -> Start:
        assert isinstance(start, Start)
        ask = replace(start.prompt.ask, how={**start.prompt.ask.how, "entropy_tokens": self.entropy_tokens})
        return replace(start, prompt=replace(start.prompt, ask=ask))

    def wave(self, ctx: Context, tree: Tree) -> list[Start | Fork]:
        """What is played next: roots, then branches at unsure turns, and roots again where there are none."""
        left = tree.wanted - tree.leaves
        roots = max(round(self.root_share * tree.wanted), 1) if not tree.leaves else left
        order = sorted(tree.unsure, key=lambda found: found[0])  # stable: earlier turns first, then earlier episodes
        wave: list[Start | Fork] = []
        wave += [self.fork(ctx, e, t, n) for t, e in order for n in range(self.branch_copies)][:left]
        if not wave:
            wave, tree.spare = [*tree.spare[:roots]], tree.spare[roots:]
        tree.leaves, tree.unsure = tree.leaves + len(wave), []
        return wave

    def fork(self, ctx: Context, e: Episode, turn: int, copy: int) -> Fork:
        t, uid = e.turns[turn], int(key_hash(e.uid, "branch", turn, copy))
        return Fork(e, t.start, uid, sampling_for(ctx, e.ask), sequence=t.sequence)

    def look(self, ctx: Context, tree: Tree, start: Start | Fork, e: Episode) -> None:
        """The turns of its own at which an episode was unsure."""
        noted = e.notes.pop(FIRST_ENTROPY, None)
        own = [] if noted is None else noted.values.tolist()
        first = max(e.fork, 0) if isinstance(start, Fork) else 0
        past = tree.entropy[start.episode.uid][:first] if isinstance(start, Fork) else []
        mine = tree.entropy[e.uid] = [*past, *own[first:]]
        begin = first + 1  # its first own turn has branched, or follows no observation
        if e.status.judged:
            tree.unsure += [(t, e) for t in range(begin, len(mine)) if self.branches(ctx, e.uid, t, mine[t] - mine[0])]

    def branches(self, ctx: Context, uid: int, turn: int, rise: float) -> bool:
        if self.branching == "chance":
            return ctx.uniform("branch", uid, turn) - self.branch_slope * rise <= self.branch_bar
        return self.branch_base + self.branch_slope * rise > self.branch_bar


@dataclass(frozen=True)
class SharedTurns(Occupant):
    """A = (R − mean) / (std + eps) of the leaf; a token that several leaves share has the mean of theirs."""

    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        adv_E = z_score(batch.reward_E, batch.level("E", "G"), where=batch.judged_E, eps=self.eps)
        adv_N, node = to_tokens(batch, adv_E)["adv_N"], batch.key("N", batch.node_N)
        mean_N = node.spread(gather(adv_N, node, "mean", where=judged_N(batch)))
        return {"adv_N": torch.where(judged_N(batch), mean_N, adv_N)}


ARPO_AGENTIC = GRPO.but(
    name="arpo_agentic",
    paper="arXiv:2507.19849",
    checked=(
        "Compared with dongguanting/ARPO, "
        "ARPO/verl_arpo_entropy/verl/workers/rollout/vllm_rollout/vllm_rollout_with_tools.py and ARPO/scripts, read "
        "at commit e257337; P_t, and hard and soft attribution, from notes on the paper. From the scripts: M = 16 "
        "and N = 8, one branch a turn, weight 0.2, bar 0.5, no KL, a mean over tokens, eight updates a step. "
        "Differences. (1) The code looks at the entropy of the turn that called the tool and branches after its "
        "result; the paper, and this, at the first tokens after the result. (2) The code branches at random "
        "(branching=chance). (3) Here episodes are played to their end before it is known where they branch, which "
        "draws from the same distribution; where the budget ends, earlier turns have priority, in the code earlier "
        "moments. (4) The code adds one root at a time when all have ended, here all that are missing. (5) The "
        "reward of the paper's tasks (0.1 more for two kinds of tools, -1 for a wrong format) is left to the world."
    ),
    confidence="code",
    rollout=Branches(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
    penalties=(),
    update=Passes(epochs=1, minibatches=8),
    breaks={
        "fields_matter": "The laws' tasks are answered in one turn, so nothing branches; its tests show every field.",
    },
)
