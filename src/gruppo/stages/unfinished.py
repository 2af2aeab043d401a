"""Groups that are not complete: episodes of a world that a step did not end go on in the next one.

    step k      a group is drawn, and its episodes play `turns` turns; some are over, some are open
    step k + 1  the open ones play as many turns more, under the weights of now; the other slots take new groups
    …           when all are over, the group is rewarded, selected, credited and learned from, as one of that step

A group waits until its last episode is over, so a baseline compares all of its samples, and no reward, selection or
credit sees a part of a group. A world with at most T turns keeps a group for at most ceil(T / turns) steps. An open
episode has a slot among the prompts × samples of a step, and one that is over has none, so a step always plays about as
many episodes. The task of a group that waits is not drawn a second time meanwhile. Nothing is redrawn: what would be
drawn in place of a group would not be complete in the same step.
"""

from collections.abc import Sequence

from gruppo.data import Episode, Growing, Status
from gruppo.stages.context import Ask, Context
from gruppo.stages.play import Further, further

NO_REDRAWS = (
    "draws other groups in place of some, and those would not be complete in the same step: it would play more "
    "episodes, and its batch would be no larger. Leave turns_a_step out, or use a selection that drops groups and "
    "draws none, such as redraw_equal_groups with method.select.redraw_equal_groups.max_rounds=0."
)


def going_on(ctx: Context) -> list[Further]:
    """The open episodes of earlier steps, to be played on."""
    return [further(ctx, e) for e in ctx.open if e.status == Status.OPEN]


def in_free_slots(ctx: Context, asks: Sequence[Ask]) -> Sequence[Ask]:
    """The first of these asks, of tasks that do not wait, as far as open episodes leave room for their samples."""
    if not ctx.open:
        return asks
    free = sum(a.samples for a in asks) - sum(e.status == Status.OPEN for e in ctx.open)
    chosen: list[Ask] = []
    for ask in not_waiting(ctx, asks):
        free -= ask.samples
        if free < 0:
            break
        chosen.append(ask)
    return chosen


def not_waiting(ctx: Context, asks: Sequence[Ask]) -> list[Ask]:
    """Those of these asks whose group does not wait: two groups with one name would be one."""
    waiting = {name for e in ctx.open for name in (e.group, e.ask.group if e.ask is not None else e.group)}
    return [a for a in asks if a.group not in waiting]


def parted(before: Sequence[Episode], made: Sequence[Episode]) -> tuple[list[Episode], list[Episode]]:
    """(the episodes of complete groups, those of groups that wait), in the order in which they began.

    `before` were waiting; of these, what has been played on is among `made`. Finished ones are copied, so a step that
    fails does not change the originals.
    """
    now = {e.uid: e for e in made}
    begun = {e.uid for e in before}
    every = [now.get(e.uid, e) for e in before] + [e for e in made if e.uid not in begun]
    waiting = {e.group for e in every if e.status == Status.OPEN}
    whole = [e if e.uid in now else Growing.of(e).finish() for e in every if e.group not in waiting]
    return whole, [e for e in every if e.group in waiting]
