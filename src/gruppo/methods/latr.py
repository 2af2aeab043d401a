"""LATR, lookahead tree-based rollouts (Xing et al. 2025, arXiv:2510.24302).

    Of the G answers to a prompt, k = round(η G) are leaves of a tree, grown token by token from one root. Every row
    takes its most probable token, p_1 (softmax without temperature).
    branch   a copy takes candidate c ≥ 2 instead, if p_c > τ_abs and p_1 − p_c < τ_rel and there are fewer than k rows
    prune    a branch of L = 20, 30 or 50 tokens goes, with its own branches, if
             edit distance(its last L tokens, those of its parent) / L < τ_ed
    end      when the tree is full and no branch is younger than 50, every row is sampled to its end

Differs from GRPO: the rollout alone. Answers differ by a decision that the policy was unsure of and by what came of it,
not at random. The other G − k answers, and leaves that a tree lacks, are ordinary samples. Evaluation samples.

A token of the tree was not drawn. Its note `forced` is 1, and it has the policy's own log-probability, as engines
record what they force. It is learned from like any other: there the ratio π/π_old says how far its probability has
moved in this step, which is what the clip holds, but it weighs no draw, so the gradient is not that of the policy's own
mean reward. L is for answers of thousands of tokens. One with fewer than 20 is never pruned, and nothing in it is
sampled; for about ten tokens use method.rollout.lookaheads=2,4. An answer is one turn: tasks with an environment are
refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gruppo.data import Episode, Growing, Status
from gruppo.engines.base import Reals
from gruppo.methods.grpo import GRPO
from gruppo.pieces.diversity import edit_distance
from gruppo.stages import Context, Occupant, Prompt, Sched, Schedule, setting
from gruppo.stages.play import Fork, Start, starts_of
from gruppo.stages.requires import Promised
from gruppo.stages.tree import Look, Row, Tree, look, note_forced


@dataclass(frozen=True)
class LookaheadTree(Occupant):
    """Of `samples` answers, the share `eta` are leaves of a tree; the others are ordinary samples.

    max_candidates  most probable ids that may be taken at a token
    sample_nk       where a row does not branch: none: it takes the most probable id; full: it is sampled once the tree
                    has all its rows; always: it is sampled
    full_bar        the tree is full with round(k · (full_bar − full_decay · tokens / max_tokens)) rows
    tree_tokens     it ends after so many tokens at the latest
    fill            leaves that it lacks: sample: are ordinary; copy: go on from its root (the authors' code)
    """

    eta: Sched = setting(Schedule("steps({0: 1.0, 100: 0.75, 200: 0.5, 300: 0.25})"), low=0, high=1)
    tau_abs: float = setting(0.15, low=0, high=1)
    tau_rel: float = setting(0.25, low=0, high=1)
    tau_ed: float = setting(0.4, low=0)
    lookaheads: tuple[int, ...] = (20, 30, 50)
    max_candidates: int = setting(2, low=2)
    sample_nk: Literal["none", "full", "always"] = "none"
    full_bar: float = setting(0.98, above=0, high=1)
    full_decay: float = setting(0.05, low=0)
    tree_tokens: int = setting(1024, low=1)
    fill: Literal["sample", "copy"] = "sample"
    writes = ("note_forced_N",)
    requires = (Promised("steer", "its rollout reads every distribution, and forces tokens"),)

    def wrong(self) -> str:
        said = ",".join(map(str, self.lookaheads))
        if all(n >= 1 and n == int(n) for n in self.lookaheads):
            rising = sorted(set(self.lookaheads))
            if list(self.lookaheads) == rising:
                return ""
            return (
                f"lookaheads={said}: a branch grows, so it is compared at its ages in this order: write "
                f"lookaheads={','.join(map(str, rising))}."
            )
        return f"lookaheads={said}: a branch has a token of its own. Use whole numbers >= 1, such as 20,30,50."

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        eta, starts = ctx.at(self.eta), iter(starts_of(ctx, prompts))
        groups = [[next(starts) for _ in range(p.samples)] for p in prompts]
        trees = [self.planted(ctx, mine, round(eta * len(mine))) for mine in groups]
        while asked := [(tree, row) for tree in trees if tree for row in self.grown(tree)]:
            looks = [Look(self.max_candidates, t.start.sampling.temperature, not self.drawn(t)) for t, _ in asked]
            pairs = zip(asked, looks, strict=True)
            await look(ctx, [(r, t.request(ctx, r, self.most(t), mine)) for (t, r), mine in pairs])
        parts = [self.leaves(ctx, tree, mine) for tree, mine in zip(trees, groups, strict=True)]
        played = iter(await ctx.play([x for part in parts for x in part if not isinstance(x, Episode)]))
        out = [x if isinstance(x, Episode) else next(played) for part in parts for x in part]
        if any(trees):
            forced = {r.uid: [t.forced for t in r.tokens[: tree.step]] for tree in trees if tree for r in tree.rows}
            note_forced(out, [forced.get(e.uid, forced.get(e.parent, [])) for e in out])  # a copy has those of the root
        return out

    def planted(self, ctx: Context, starts: Sequence[Start | Fork], width: int) -> Tree | None:
        return Tree.of(ctx, starts[0], width) if width and isinstance(starts[0], Start) else None

    def most(self, tree: Tree) -> int:
        return min(self.tree_tokens, tree.start.sampling.max_tokens)

    def drawn(self, tree: Tree) -> bool:
        """Whether rows that do not branch are sampled at this token."""
        return self.sample_nk == "always" or (self.sample_nk == "full" and len(tree.rows) >= tree.width)

    def grown(self, tree: Tree) -> list[Row]:
        """Decide token after token, as far as they were looked at. Returns the rows whose next one was not."""
        while not tree.over:
            t, live = tree.step, tree.live
            if unknown := [row for row in live if len(row.tokens) == t]:
                return unknown
            born = self.born(tree, live)
            parents = {parent for parent, _ in born}
            sampled = {row for row in live if self.drawn(tree) and row not in parents}
            if unknown := [row for row in live if row in sampled and row.tokens[t].forced]:
                for row in unknown:  # it was looked at before the tree was full
                    del row.tokens[t:]
                return unknown
            tree.rows += [parent.branch(t, rank) for parent, rank in born]
            for row in live:
                if row not in sampled:
                    row.force(t)
            tree.step += 1
            self.prune(tree)
            tree.over = self.over(tree)
        return []

    def born(self, tree: Tree, live: Sequence[Row]) -> list[tuple[Row, int]]:
        """Rows and ranks that become branches: the most probable ranks first, then older rows, while there is room."""
        found = [(c, i) for i, row in enumerate(live) for c in self.candidates(row.tokens[tree.step].seen.p)]
        kept = sorted(found)[: tree.width - len(tree.rows)]
        return [(live[i], c) for i, c in sorted((i, c) for c, i in kept)]

    def candidates(self, p: Reals) -> list[int]:
        """Ranks of ids that may branch off, given the probabilities of the best; 0, the best itself, goes on."""
        return [c for c in range(1, len(p)) if p[c] > self.tau_abs and p[0] - p[c] < self.tau_rel]

    def prune(self, tree: Tree) -> None:
        gone = {row for row in tree.rows if self.similar(tree, row)}
        for row in tree.rows:
            if row.parent in gone:
                gone.add(row)
        tree.rows = [row for row in tree.rows if row not in gone]

    def similar(self, tree: Tree, row: Row) -> bool:
        """Whether a branch of such an age is still too much like its parent. If one of them has ended, it is not."""
        age, parent = tree.step - row.birth, row.parent
        if parent is None or age not in self.lookaheads or tree.ended(row) or tree.ended(parent):
            return False
        return edit_distance(row.ids(row.birth, tree.step), parent.ids(row.birth, tree.step)) / age < self.tau_ed

    def over(self, tree: Tree) -> bool:
        bar = self.full_bar - self.full_decay * tree.step / tree.start.sampling.max_tokens
        full = len(tree.rows) >= round(tree.width * bar)
        settled = all(tree.step - row.birth >= max(self.lookaheads, default=0) for row in tree.rows)
        return (full and settled) or tree.step >= self.most(tree) or not tree.live

    def leaves(self, ctx: Context, tree: Tree | None, starts: Sequence[Start | Fork]) -> list[Episode | Start | Fork]:
        """The rows of a tree, to be gone on with unless they have ended, and ordinary samples."""
        if tree is None:
            return [*starts]
        made = tree.written(ctx)
        if self.fill == "copy":
            root, end = made[0], len(made[0].sequences[0].ids)
            twins = [Growing.of(root).fork(s.uid, 0, end) for s in starts[len(made) : tree.width]]
            made += [twin.finish(root.status, text=root.text) for twin in twins]
        how = tree.start.sampling
        rest = replace(how, max_tokens=max(how.max_tokens - tree.step, 1))
        going = [Fork(e, len(e.sequences[0].ids), e.uid, rest) if e.status == Status.OPEN else e for e in made]
        return [*going, *starts[len(made) :]]


LATR = GRPO.but(
    name="latr",
    paper="arXiv:2510.24302",
    checked=(
        "Compared with starreeze/latr, model/generation.py, model/sample_filter.py, model/utils.py and scripts, at "
        "commit 2adb0ed. tau_abs, tau_rel, eta and tree_tokens are those of its mathematics scripts, tau_ed that of "
        "Countdown; there the others are 0.25, 0.15, {0: 1, 10: 0.75, 20: 0.5, 80: 0.25, 200: 0} and 512, and "
        "mathematics is pruned by common suffixes and ROUGE-L, which is left out. The scripts have G = 8, a KL of 0.01 "
        "and a mean over tokens; here all but the rollout is GRPO's. Differences. (1) The code ends the trees of a "
        "batch together, when they are full on average, and two tokens later; here each prompt has its own end, so "
        "that no answer depends on other prompts. (2) By default the code means to spare branches beside a digit or a "
        "mathematical sign (keep_math_symbols), after which it applies verdicts to other rows than those compared; "
        "here none is spared. (3) Leaves that a tree lacks are copies of its first row in the code, which then go on "
        "with draws of their own (fill=copy). (4) With sample_nk=full the code counts rows while it adds them; here a "
        "token is sampled if the tree was full before it."
    ),
    confidence="code",
    rollout=LookaheadTree(),
    breaks={
        "fields_matter": "The laws' policy is nearly uniform, so nothing branches; its tests show every field.",
    },
)
