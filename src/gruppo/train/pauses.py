"""Where no episode can stay open at the end of a step (`turns_a_step`): refused with the reason and the remedy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gruppo.data import Episode
from gruppo.stages import Method, kind
from gruppo.stages.check import draws_again
from gruppo.stages.rollout import pauses
from gruppo.stages.unfinished import NO_REDRAWS
from gruppo.tasks import TaskSet

if TYPE_CHECKING:
    from gruppo.train.config import RunConfig


def refuse_pauses(method: Method, tasks: TaskSet, config: "RunConfig") -> None:
    """Refuses `turns_a_step` where no episode can be left in its middle and gone on with."""
    task, said = config.task, f"turns_a_step={config.turns_a_step}"
    if not config.turns_a_step:
        return
    if task.agent:
        raise ValueError(
            f"{said} with task.agent={task.agent}: a program plays its episodes from the beginning to the end, so none "
            "can go on in the next step. Leave turns_a_step out, or play in a world, such as task=household."
        )
    if task.tools:
        raise ValueError(
            f"{said} with task.tools={task.tools}: an episode goes on by playing its actions again, and a tool would "
            "be called a second time, which may cost, act on things, or say something else. Leave one of them out."
        )
    if not tasks.env:
        raise ValueError(
            f"{said}: task={task.name} is one answer, which is one turn, so it would have no effect. Leave it out, use "
            "a world, such as task=household, or method=t_ppo, which leaves answers open."
        )
    if not pauses(method.rollout):
        raise ValueError(
            f"{said} with {method.name}: {kind(method.rollout)} in rollout may look at its episodes when they are "
            "over, and some would still be open. Leave turns_a_step out, or use a method with the plain rollout "
            "(group), such as method=gigpo. A rollout that looks at no ending says pauses = True beside its own "
            "__call__."
        )
    if who := draws_again(method):
        raise ValueError(f"{said} with {method.name}: {', '.join(who)} in select {NO_REDRAWS}")


def refuse_open(waiting: Sequence[Episode], method: Method, tasks: TaskSet, config: "RunConfig") -> None:
    """Refuses to go on from a checkpoint that holds open episodes where they could not be played on."""
    if not waiting:
        return
    said = f"the checkpoint holds {len(waiting)} episodes of groups that go on in the next step"
    if config.ahead:
        raise ValueError(f"ahead={config.ahead}: {said}, and a step that is drawn ahead cannot take them. Use ahead=0.")
    if not pauses(method.rollout):
        raise ValueError(
            f"method={method.name}: {said}, and {kind(method.rollout)} in rollout plays only from the beginning. Take "
            "the method back, or start a new run from the saved policy (model.name)."
        )
    size, train = len(tasks.train), tasks.train
    if gone := next((e.task for e in waiting if e.index >= size or train[e.index].uid != e.task), ""):
        raise ValueError(
            f"task={config.task.name}: {said}, and {gone!r} is no task of this training set, so it cannot go on. Take "
            "the settings of the task back, or start a new run from the saved policy (model.name)."
        )
