"""What a run says about its world: turns that nobody can read, seats that are not told apart, states that never recur.

Each function is given what was seen and returns a sentence with the cause and the remedy, or "" if nothing is wrong.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gruppo.data import Batch, Episode, Source, Turn
from gruppo.envs.base import Seen, seats_of
from gruppo.envs.registry import BUILT_IN, env_class, made, make_env
from gruppo.envs.with_tools import PREFIX, reading
from gruppo.methods import all_methods
from gruppo.policies import CharTokenizer
from gruppo.policies.words import WordTokenizer
from gruppo.stages import Method, kind
from gruppo.stages.check import equal_returns
from gruppo.stages.converse import Converse
from gruppo.stages.dialogue import GOAL, OVERFLOW, said_first
from gruppo.stages.names import nearest
from gruppo.stages.requires import OneTurn, RecurringStates, Requirement, SeveralSeats, StepsOfTasks
from gruppo.tasks import TaskConfig, TaskSet
from gruppo.train.pauses import refuse_pauses
from gruppo.train.regime import flipped

if TYPE_CHECKING:
    from gruppo.train.config import RunConfig
    from gruppo.train.run import Run

MOST = 0.5  # a share of turns from which on they are said to be the cause
NEARLY_ALL = 0.9
WATCHED = 3  # steps before it is said that no state recurs


# ---- turns


def unread_words(tokenizer: object, model: str, task: str, worlds: str) -> str:
    """A model of characters in a world of words, or one of the words of the worlds elsewhere."""
    wordless = [name for name in worlds.split("+") if name in BUILT_IN and not env_class(name).words]
    if wordless and isinstance(tokenizer, CharTokenizer | WordTokenizer):
        return (
            f"model={model} was never shown the world {wordless[0]}, whose actions are no words of a list, so that it "
            "will hardly act, whatever the level. Use a language model: model=FOLDER, or model=NAME of one on the hub."
        )
    if worlds and isinstance(tokenizer, CharTokenizer):
        return (
            f"model={model} reads single characters, and task={task} is a world of words, so that it will hardly act. "
            "Use model=tiny-agent, or a language model."
        )
    if not worlds and isinstance(tokenizer, WordTokenizer):
        return (
            f"model={model} knows the words of the built-in worlds alone, and was never shown a task such as {task}, "
            "so that it will hardly answer. Use model=tiny, or a language model."
        )
    return ""


def unread(run: "Run", drawn: Sequence[Episode]) -> str:
    """Most turns did nothing: they were cut off, have no action that the format finds, or the world refuses them."""
    play = run.walk.play
    if not isinstance(play, Converse):
        return ""
    turns = [t for e in drawn if e.source == Source.POLICY for t in e.turns if t.state or t.flags]
    for told in (_cut, _unreadable, _refused):
        if said := told(turns, run):
            return said
    return ""


def _cut(turns: Sequence[Turn], run: "Run") -> str:
    bad = [t for t in turns if "truncated" in t.flags and t.flags & {"void", "invalid"}]
    if not len(bad) > MOST * len(turns):
        return ""
    most = run.sampling.max_tokens
    return (
        f"{_share(bad, turns)} of the turns were cut off at sampling.max_tokens={most}, before their action had ended, "
        f"such as {_usual(bad)}. Give them more room, for example sampling.max_tokens={max(4 * most, 8)}."
    )


def _unreadable(turns: Sequence[Turn], run: "Run") -> str:
    bad = [t for t in turns if "void" in t.flags or ("invalid" in t.flags and not t.action_key)]
    if not len(bad) > MOST * len(turns):
        return ""
    format, read = run.config.task.format, run.walk.play.format  # type: ignore[attr-defined]
    read = reading(read) if run.config.task.tools else read
    help = "Ask for that form in task.system, or use task.format=line, which takes the last line as it is."
    if format == "line":
        help = "The model ends its turns at once: look at its chat template, or use another model."
    return (
        f"{_share(bad, turns)} of the turns have no action that task.format={format} can read. It expects "
        f"{getattr(read, 'expects', 'another form')}, and the policy writes {_usual(bad)}. {help}"
    )


def _refused(turns: Sequence[Turn], run: "Run") -> str:
    bad = [t for t in turns if "invalid" in t.flags]
    if not len(bad) > NEARLY_ALL * len(turns):
        return ""
    return (
        f"{_share(bad, turns)} of the actions are refused by the world, such as {_usual(bad)}. gruppo env play "
        f"{run.tasks.env.split('+')[0]} shows what it understands. Tell the model in task.system; in a built-in "
        "world, model=tiny-agent knows it."
    )


def _share(some: Sequence[Turn], turns: Sequence[Turn]) -> str:
    return f"{len(some) / len(turns):.0%}"


def _usual(turns: Iterable[Turn]) -> str:
    """What was written most often, in one line."""
    [(text, _)] = Counter(" ".join(t.text.split()) for t in turns).most_common(1)
    return repr(text if len(text) <= 60 else f"{text[:59]}…") if text else "nothing"


def overflown(run: "Run", drawn: Sequence[Episode]) -> str:
    """Episodes that ended because what they were to see next had no room."""
    over = [int(e.notes[OVERFLOW].values[0]) for e in drawn if OVERFLOW in e.notes]
    if not over:
        return ""
    return (
        f"{len(over)} of {len(drawn)} episodes ended early, since what they were to see next did not fit into the "
        f"{run.engine.context()} tokens of this model's context, by {max(over)} tokens at most. {SHORTER}"
    )


SHORTER = (
    "Show fewer turns (task.window=2), allow fewer (task.options.turns, in a built-in world), make observations "
    "shorter, or use a model with a longer context."
)


# ---- seats


def declaring(requirement: Requirement, among: Iterable[Method] | None = None) -> list[str]:
    """The names of the methods that require this."""
    methods = all_methods().values() if among is None else among
    return sorted(m.name for m in methods if any(requirement in o.requires for _, o in m.occupants()))


def refuse_unfit_tasks(method: Method, tasks: TaskSet, config: "RunConfig") -> None:
    """Refuses a method, or settings of a run, that these tasks give nothing to do."""
    refuse_strangers(method, tasks, config.task)
    refuse_without_steps(method, tasks, config.task.name)
    refuse_other_worlds(method, tasks, config.task.against)
    refuse_pauses(method, tasks, config)


def refuse_other_worlds(method: Method, tasks: TaskSet, against: str = "") -> None:
    """Refuses a method of one answer in a world, and one that tells seats apart where the policy has one."""
    worlds = tasks.env.split("+") if tasks.env else []
    if worlds and (who := _requiring(method, OneTurn())):
        raise ValueError(
            f"{method.name}: {who} cuts one answer, and {', '.join(worlds)} is played in turns. Use a task of one "
            "answer, such as task=addition, or another method."
        )
    who = _requiring(method, SeveralSeats())
    if who and against:
        raise ValueError(
            f"{method.name} with task.against={against}: {who} tells the seats of a game apart, and the policy would "
            "play one of them, so there would be nothing to tell apart. Leave task.against out, or use another method, "
            "such as method=grpo. gruppo eval takes task.against for every policy."
        )
    if not who or not worlds or any(len(seats_in(world)) != 1 for world in worlds):
        return
    two = [name for name in BUILT_IN if len(seats_in(name)) > 1]
    raise ValueError(
        f"{method.name}: {who} tells the seats of a game apart, and {', '.join(worlds)} has one seat, so there would "
        f"be nothing to tell apart. Use a world with two seats ({', '.join(two)}), or another method."
    )


def _requiring(method: Method, requirement: Requirement) -> str:
    return ", ".join(f"{kind(o)} in {room}" for room, o in method.occupants() if requirement in o.requires)


def seats_in(world: str, hosted: bool = False) -> tuple[str, ...]:
    """The seats of a world. Those that only its process knows are left out, unless it may be started (`hosted`)."""
    if world in BUILT_IN:
        return seats_of(env_class(world))
    if ":" in world and not world.startswith("env:"):
        return seats_of(made(world))  # one of your own may say so itself
    if not hosted:
        return ()
    env = make_env(world)
    try:
        return seats_of(env)
    finally:
        env.close()


def refuse_strangers(method: Method, tasks: TaskSet, config: TaskConfig) -> None:
    """Refuses writers of agents that the tasks do not have, and writers that leave nothing to the policy."""
    if not method.writers:
        return
    seats = tuple(dict.fromkeys(s for name in tasks.env.split("+") if name for s in seats_in(name, hosted=True)))
    own = {agent: role for agent, role in method.writers.items() if role != "policy"}
    for agent, role in own.items():
        if config.agent or config.against or len(seats) < 2:
            why = "programs of agents speak through the policy alone" if config.agent else "it has one agent"
            why = f"with task.against={config.against} the policy plays one seat" if config.against else why
            raise ValueError(
                f"method.writers.{agent}={role} with task={config.name}: {why}, so there is nothing that another role "
                "would write. Leave it out, or use a world of several agents, such as task=verify."
            )
    for agent, role in method.writers.items():
        if agent not in seats:
            raise ValueError(
                f"method.writers.{agent}={role}: task={config.name} has no agent {agent!r}{nearest(agent, seats)}, so "
                f"{role} would write nothing. Its agents: {', '.join(seats) or 'one, without a name'}."
            )
    if all(seat in own for seat in seats):
        raise ValueError(
            f"method.writers: no agent of task={config.name} is left to the policy, so the policy of the run would "
            f"learn nothing. Leave one of them out, such as {seats[0]}."
        )


def refuse_without_steps(method: Method, tasks: TaskSet, name: str) -> None:
    """Refuses rewards of steps where a task has none; looks at the first one."""
    if (who := _requiring(method, StepsOfTasks())) and not getattr(tasks.train[0], "steps", ()):
        raise ValueError(
            f"{who}: task={name} has no steps, so no step of an answer would be right. Use task=chain or longchain, "
            "or data with solutions of several lines, or leave it out."
        )


def seats_alike(method: Method, batch: Batch) -> str:
    """The seats of a game earn different returns, which add up to the same in every episode, and that is all it saw."""
    mine = torch.nonzero(batch.speaks_A)[:, 0]
    if len(mine) < 2 or "adv_N" not in batch.columns or equal_returns(batch):
        return ""
    return_EA = batch.reward_EA[:, mine]
    whole_E = batch.judged_E & ~return_EA.isnan().any(1)  # every seat has acted
    learned_N = batch.learn_N & batch.spread(whole_E, "E", "N")
    if not bool(learned_N.any()) or bool((batch.adv_N[learned_N].abs() > 1e-9).any()):
        return ""
    seats = " and ".join(batch.agents[a] for a in mine.tolist())
    return (
        f"{method.name} credits an episode with the sum of all seats, which is {float(return_EA[whole_E].sum(1)[0]):g} "
        f"in every game here, so every advantage is 0 and nothing is learned, although the returns of {seats} differ. "
        f"Use a method that tells seats apart: {', '.join(declaring(SeveralSeats()))}."
    )


# ---- states

REPLAYED = 8  # turns of an episode that are played again


def unstable(run: "Run", drawn: Sequence[Episode]) -> str:
    """A world that is another one when it is looked at again. One episode of each world is played once more."""
    play = run.walk.play
    if not isinstance(play, Converse):
        return ""
    of_world: dict[str, Episode] = {}
    for e in drawn:
        if e.status.judged and e.turns and e.ask is not None and "env" in e.ask.task.meta:
            world = str(e.ask.task.meta["env"])
            if not world.startswith(PREFIX):  # a tool may cost, act on things, or say something else each time
                of_world.setdefault(world, e)
    for world, e in of_world.items():
        if what := _otherwise(play, e):
            return (
                f"{world} is not the same when it is looked at again: in task {e.task!r} {what}, after the same "
                "actions. So states that are equal are not known to be, and what is learned may not hold. Compute "
                f"everything from the task and the actions, without a clock or a generator; gruppo env check {world} "
                "says more."
            )
    return ""


def _otherwise(play: Converse, e: Episode) -> str:
    """What is different when the actions of an episode are played again; empty: nothing, or the world fails now."""
    with play.borrowed(e.ask) as env:
        goal = str(e.ask.task.meta.get(GOAL, e.ask.task.prompt))
        seen = env.reset(replace(e.ask.task, prompt=goal))
        first, shown = said_first(goal, seen), e.ask.task.prompt
        if GOAL in e.ask.task.meta and "memory" not in e.ask.how and not seen.error and first != shown:
            return f"the first observation was {shown!r} and is {first!r} now"
        for i, t in enumerate(e.turns[:REPLAYED]):
            if seen.error:
                return ""
            if seen.done or seen.state != t.state:
                return (
                    f"the state of turn {i} was {t.state!r} and is {'the end' if seen.done else repr(seen.state)} now"
                )
            if (one := _looked(env)) != (two := _looked(env)):
                return f"two looks at turn {i} show {one!r} and {two!r}"
            seen = env.step(play.format_in(env)(t.text).action)
        now = seen.rewards.get("task") if seen.done and not seen.error and len(e.turns) <= REPLAYED else None
        was = now if flipped(e) else e.reward.get("task", now)
        return "" if now == was or now is None else f"the reward was {was:g} and is {now:g} now"


def _looked(env: Any) -> tuple[str, str]:
    """What the world itself shows, if it can be asked without an action."""
    while hasattr(env, "env"):
        env = env.env
    seen = env.look() if callable(getattr(env, "look", None)) else None
    return (seen.state, seen.text) if isinstance(seen, Seen) else ("", "")


class Recurring:
    """Whether turns begin in states that others of their group begin in, too, watched over the first steps."""

    def __init__(self, method: Method, world: str = "NAME") -> None:
        self.method, self.world, self.first_differ = method, world, False
        self.steps, self.turns, self.later, self.over = 0, 0, 0, False

    def __call__(self, drawn: Sequence[Episode]) -> str:
        """A sentence after some steps without any state that recurs; once."""
        if self.over or not declaring(RecurringStates(), [self.method]):
            return ""
        played = [e for e in drawn if any(t.state or t.flags for t in e.turns)]
        if not played:
            return ""
        self._count(played)
        if self.over or self.steps < WATCHED or not self.turns:
            return ""
        self.over = True
        why = (
            "Even the first states of one task differ, so the world is not a pure function of its task. "
            if self.first_differ
            else "Is it a pure function of its task and actions, and is Seen.state equal where the state is? "
        )
        return (
            f"no state recurred in {self.turns:,} turns of {self.steps} steps, so {self.method.name} has "
            f"nothing but first turns to compare. {why}gruppo env check {self.world} says; more samples also make "
            "states recur."
        )

    def _count(self, played: Sequence[Episode]) -> None:
        """First turns of a group begin in one state anyway, if the world is a pure function: only later ones count."""
        self.steps += 1
        later = Counter((e.group, t.agent, t.state) for e in played for t in e.turns[1:] if t.state)
        self.turns += sum(len(e.turns) for e in played)
        self.later += sum(max(len(e.turns) - 1, 0) for e in played)
        self.over = any(n > 1 for n in later.values()) or not self.later
        firsts: dict[str, set[str]] = {}
        for e in played:
            firsts.setdefault(e.group, set()).update(t.state for t in e.turns[:1])
        self.first_differ |= any(len(states) > 1 for states in firsts.values())
