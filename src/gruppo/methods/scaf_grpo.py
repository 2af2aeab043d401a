"""Scaf-GRPO, scaffolded GRPO (Zhang et al. 2025, arXiv:2510.19807).

    a group without a right answer:  o^l ~ π_old(· | q, h_l) for every hint h_1 … h_L, weakest first;
    l* = min{l : R(o^l) > 0},  one wrong answer of the group is replaced by o^{l*};  then GRPO, without KL
    r = π(o | q, h) / π_old(o | q, h) for the answer that was helped: on-policy, nothing to correct

Differs from GRPO: prompts that are too hard get the weakest hint that suffices. There are no hints in the first 15 % of
the run, in which the policy tries alone. A group with a right answer is left unchanged, and so is one that no hint
solves. The levels are `task.hints`, whatever their number. By default a hint is the beginning of the answer: it is not
learned, what follows is. `method.prompting=hint_in_message` puts it into the prompt, as in the paper, for models that
follow instructions; with `method.prompting.hint_in_message.learn_without=true` the answer is learned under the plain
prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from gruppo.data import Episode, Use
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, Prompt, setting
from gruppo.stages.prompting import Hint
from gruppo.stages.requires import InRoom
from gruppo.stages.reward import task_reward
from gruppo.stages.rollout import again, asks_of


@dataclass(frozen=True)
class HelpFailedGroups(Occupant):
    """Sample each prompt; where all answers are wrong, replace one by the right answer with the weakest hint.

    levels        number of hints to try, evenly spaced if the task has more
    exempt_share  share of the run without hints
    """

    levels: int = setting(12, low=0, witness=1)
    exempt_share: float = setting(0.15, low=0, high=1, witness=0.05)
    requires = (InRoom("prompting", ("hint", "hint_in_message")),)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        episodes = await ctx.play(prompts)
        if ctx.progress < self.exempt_share or not self.levels:
            return episodes
        wrong: dict[str, list[Episode]] = {}
        solved: set[str] = set()
        for e in episodes:
            if e.status.judged and task_reward(e) > 0:
                solved.add(e.group)
            elif e.status.judged:
                wrong.setdefault(e.group, []).append(e)
        asks = [
            again(a, f"hint {n}", 1, {"hint_level": n})
            for a in asks_of(prompts)
            if a.group in wrong and a.group not in solved
            for n in spaced(len(a.task.hints), self.levels)
        ]
        helped = await ctx.draw(asks) if asks else []  # in the order of the asks: the weakest hint of a group first
        for e in helped:
            e.use = Use.NONE
            if e.status.judged and task_reward(e) > 0 and e.group not in solved:
                solved.add(e.group)
                e.use = Use.LEARN
                gone = min(wrong[e.group], key=lambda w: float(ctx.uniform("replaced", w.uid)))
                gone.use = Use.NONE
        return [*episodes, *helped]


def spaced(hints: int, levels: int) -> list[int]:
    """The numbers 1 to `hints`; if these exceed `levels`, that many of them, evenly spaced, the last included."""
    return [ceil(i * hints / levels) for i in range(1, levels + 1)] if hints > levels else [*range(1, hints + 1)]


SCAF_GRPO = GRPO.but(
    name="scaf_grpo",
    paper="arXiv:2510.19807",
    checked=(
        "Compared with dvlab-research/Scaf-GRPO, hint_mix_grpo/trainer/ray_trainer.py: one answer at each level, "
        "all levels at once, the first right one of the weakest. `warmup_steps` is 50 in its script; the share of "
        "15 % is the paper's, as recalled. Its twelve levels are three tiers (knowledge, planning, solution) of "
        "four parts each; here they are task.hints. In the paper a hint stands in the prompt, and learning under "
        "the plain prompt is one of its variants; a hint that begins the answer is ours."
    ),
    confidence="code",
    prompting=Hint(),
    rollout=HelpFailedGroups(),
    penalties=(),
    together=("prompting", "rollout"),
)
