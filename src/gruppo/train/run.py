"""Everything that a run holds: models, engine, judge, learner, memory, clock."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from gruppo.data import Batch, Episode, Status, pack
from gruppo.data.prefix import WORTH
from gruppo.engines.base import RunEngine
from gruppo.engines.config import engine_of
from gruppo.policies import load_policy, load_tokenizer
from gruppo.scale.cluster import engine_at, judge_at, play_at
from gruppo.stages import Context, Memory, Never, kind
from gruppo.stages.check import check, check_first_batch, refuse_engine
from gruppo.stages.converse import HEARD, play_of
from gruppo.stages.dialogue import OVERFLOW
from gruppo.stages.play import close_play, one_answer
from gruppo.stages.walk import Walk
from gruppo.stages.writers import with_companions
from gruppo.tasks import TaskSet
from gruppo.tasks.fit import most_tokens, refuse_unfit
from gruppo.tasks.judge import judge_of
from gruppo.tasks.load import load
from gruppo.train.allocator import keep_freed_memory
from gruppo.train.beforehand import refuse_too_many
from gruppo.train.cast import build_cast
from gruppo.train.checkpoint import State
from gruppo.train.config import RunConfig
from gruppo.train.equal import examples, why_equal
from gruppo.train.exact import be_deterministic, needed
from gruppo.train.hidden import hidden
from gruppo.train.learner import Learner
from gruppo.train.memory_plan import planned
from gruppo.train.pauses import refuse_open
from gruppo.train.place import place_of
from gruppo.train.ranks import Ranks, ranks
from gruppo.train.regime import Flips, plain_engine, rough_copies
from gruppo.train.slow import told_if_slow
from gruppo.train.source import source_of, uncorrected
from gruppo.train.worlds import (
    Recurring,
    overflown,
    refuse_unfit_tasks,
    seats_alike,
    unread,
    unread_words,
    unstable,
)

TOLD = 5  # kinds of errors that are told; more of them are counted only


def _shape(error: str) -> str:
    """An error without its numbers and quoted texts, which may be others for every answer."""
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "…", error)


class Run:
    """`where` is its folder, as it is written in a command; `opening` is said first of all, but not by a run that is
    refused at once."""

    to_look_at = False  # a warning was given that sends the user to the episodes of this step: they are to be stored

    def __init__(
        self, config: RunConfig, say: Callable[[str], None] = print, where: str = "RUN", opening: str = ""
    ) -> None:
        self.config, self.method, self.say = config, with_companions(config.method), say
        self.where, self.opening = where, opening
        keep_freed_memory()
        if config.threads:
            torch.set_num_threads(config.threads)
        together = ranks()  # before a model is put on a GPU
        self.device, self.dtype = place_of(config)
        self.end_exact = be_deterministic(self) if needed(config.deterministic, self.device) else lambda: None
        try:
            self._set_up(config, together)
        except BaseException:  # whose traceback may keep this alive
            self.end_exact()
            raise

    def _set_up(self, config: RunConfig, together: Ranks) -> None:
        self.share = WORTH if config.optim.share_prefixes else math.inf
        self.batch_dtype = torch.promote_types(self.dtype, torch.float32)  # bfloat16 cannot count beyond 256
        self.tasks = tasks_of(config)
        refuse_too_many(config, self.tasks)
        for sentence in self.tasks.notes:
            self.say(sentence)
        longest = config.sampling.max_tokens or self.tasks.max_tokens
        self.sampling = replace(config.sampling, max_tokens=longest)
        self.memory = Memory()
        self.replay: list[Episode] = []
        self.open: list[Episode] = []  # of groups that are not complete, for the next step
        self.version, self.checked = 0, False
        self.between_steps = True  # False: a checkpoint would not be whole: weights, memory, replay and draws
        self.dead_steps, self.empty_steps = 0, 0
        self.told_errors: set[str] = set()
        self.told_dead = self.told_full = self.told_stale = False
        self.recurring = Recurring(self.method, self.tasks.env.split("+")[0])
        check(self.method, self.bare_context(0), samples=config.samples)
        refuse_unfit_tasks(self.method, self.tasks, config)
        m = config.model
        loading = f"loading the model {m.name}"
        with told_if_slow(self.say_late, loading):
            self.tokenizer = load_tokenizer(m.name)
        worlds = "" if config.task.agent or config.task.tools else self.tasks.env
        self.warn(*filter(None, [unread_words(self.tokenizer, m.name, config.task.name, worlds)]))
        with told_if_slow(self.say_late, loading):
            policy = load_policy(m.name, self.dtype, self.device, config.seed, m.lora, m.checkpointing, m.sharpen)
        if policy.fallback:
            self.say(policy.fallback)
        if m.sharpen != 1:
            self.say(f"the logits of {m.name} are multiplied by {m.sharpen:g} at the start (model.sharpen)")
        longest = config.sampling.max_tokens or most_tokens(self.tasks, self.tokenizer, policy.context)
        self.sampling = replace(config.sampling, max_tokens=longest)
        if self.tasks.notes:
            self.say(f"answers have at most {longest} tokens (sampling.max_tokens)")
        self.models = build_cast(self.method, policy, self.bare_context(0), self.tokenizer)
        self.roles = tuple(self.models)
        self.learner = self._learner(together)
        self.learner.version, self.clock = self.version, self.learner.clock
        self.engine = self.engine_of(self.sampled())
        self.plain = plain_engine(self)  # for evaluations
        refuse_engine(self.method, config.engine.name, self.engine.promises)
        self.compared = "shared" in self.engine.promises  # sampler and trainer, since weights have changed
        if self.tokenizer.rewrites:
            self.warn(self.tokenizer.rewrites)
        refuse_unfit(self.tasks, self.tokenizer, policy.context, self.sampling.max_tokens)
        self.judge = judge_at(self, judge_of(self.tasks, config.task, self.warn)).start()
        self.walk = self._walk()
        self.source = source_of(self)
        for said in filter(None, (planned(self), config.regime.words())):
            self.say(said)

    def _walk(self) -> Walk:
        """The rooms around the learner, from tasks to a batch with credit."""
        return Walk(
            self.method,
            self.learner.read,
            self.tasks.train,
            self.judge,
            self.packed,
            play_at(self, play_of(self.tasks, self.config.task, self.tokenizer, self.say, self.method.writers)),
            self.current,
            budget_tokens=self.config.budget_tokens,
            turns=self.config.turns_a_step,
            clock=self.clock,
            pay=Flips(self.config.regime),
        )

    def _learner(self, together: Ranks) -> Learner:
        """The learner; of several ranks one that has the others learn with it, and `models` are whole copies."""
        if together.size == 1:
            return Learner(self.method, self.models, self.config.optim, self.warn, together)
        from gruppo.scale.ranks import lead

        size = together.size
        self.say(f"scale.ranks={size}: the weights are spread over {size} processes; this one samples")
        learner, self.models = lead(self, self.bare_context(0), together)
        return cast(Learner, learner)

    def sampled(self) -> dict[str, Any]:
        """The models that can be sampled from, by role."""
        return {r: m for r, m in self.models.items() if self.method.cast[r].as_ == "full"}

    def engine_of(self, models: Mapping[str, Any], rough: bool = True) -> RunEngine:
        """An engine with the settings of the run, for these models; `rough`: with the roughness of its sampler."""
        c, copies = self.config, rough_copies(self, models) if rough else None
        engine = replace(c.engine, lockstep="yes") if c.deterministic else c.engine
        return engine_at(self, engine, engine_of(engine, models, self.tokenizer, self.warn, copies))

    def bare_context(self, step: int) -> Context:
        return Context(
            step=step,
            steps=self.config.steps,
            seed=self.config.seed,
            version=self.version,
            memory=self.memory,
            prompts=self.config.prompts,
            samples=self.config.samples,
            sampling=self.sampling,
        )

    def context(self, step: int) -> Context:
        """The context of a step."""
        ctx = self.bare_context(step)
        ctx.cast, ctx.engine, ctx.tokenizer, ctx.open = self.models, self.engine, self.tokenizer, self.open
        return self.walk.opened(ctx, self.replay)

    def current(self) -> None:
        """Before anything is drawn: weights that an optimiser step has changed since get a version of their own.

        Without draws inside of updates the version counts steps.
        """
        if self.learner.moved & set(self.sampled()):
            self.next_version()

    def next_version(self) -> None:
        """Tells the engine that weights have changed."""
        self.set_version(self.version + 1)
        self.learner.moved.clear()

    def set_version(self, version: int) -> None:
        self.version = self.learner.version = version
        self.learner.publish(self.models)
        self.engine.sync(version, self.models)
        if self.plain is not self.engine:
            self.plain.sync(version, self.models)

    def packed(
        self, episodes: Sequence[Episode], drawn: Mapping[str, int] | None = None, views: Sequence[str] = ()
    ) -> Batch:
        return pack(episodes, drawn=drawn, views=views, dtype=self.batch_dtype, share=self.share).to(self.device)

    def open_words(self) -> None:
        """Says its opening, once."""
        opening, self.opening = self.opening, ""
        if opening:
            self.say(opening)

    def say_late(self, sentence: str) -> None:
        """What it is doing, where that takes long before its first step."""
        self.open_words()
        self.say(sentence)

    def warn(self, *sentences: str) -> None:
        for sentence in sentences:
            self.say(f"warning: {sentence}")

    def look_at_first(self, drawn: Sequence[Episode], batch: Batch) -> None:
        """What is said once, about the first batch. Raises if the method cannot learn from it."""
        equal = check_first_batch(self.method, batch, why_equal(self, drawn))
        quoted = hidden(self, drawn)
        unlike = [
            seats_alike(self.method, batch),
            "" if equal else unread(self, drawn),
            unstable(self, drawn),
            quoted,
        ]
        shown = examples(self, drawn) if equal else ""
        self.warn(*(f"{said} {shown}".rstrip() for said in equal), *filter(None, unlike))
        self.to_look_at = bool(equal or quoted)
        self.warn_if_unheard(drawn)
        self.checked = True

    def warn_of_worlds(self, drawn: Sequence[Episode]) -> None:
        """What the first steps in a world show, once each."""
        for said in (self.recurring(drawn), "" if self.told_full else overflown(self, drawn)):
            if said:
                self.warn(said)
        self.told_full = self.told_full or any(OVERFLOW in e.notes for e in drawn)

    def warn_if_unheard(self, drawn: Sequence[Episode]) -> None:
        """What a method asks of an environment has no effect on a task that is one answer."""
        asked = {name for e in drawn if e.ask is not None for name in e.ask.how if name in HEARD}
        if asked and self.walk.play is one_answer:
            self.warn(
                f"{self.method.name} asks for {', '.join(HEARD[name] for name in sorted(asked))}, and a task of one "
                "answer has none, so that part has no effect. Use a task with an environment, such as task=calculator."
            )

    def warn_if_stale(self, age: float) -> None:
        """What is learned from was sampled by older weights, and nothing in the method looks at the difference."""
        older = (self.config.ahead, self.config.turns_a_step)
        if not self.told_stale and any(older) and age > 0:
            self.told_stale = True
            self.warn(*filter(None, [uncorrected(self.method, *older)]))

    def warn_if_empty(self, empty: bool) -> None:
        """Selection has kept nothing for three steps in a row: the run continues but learns nothing."""
        self.empty_steps = self.empty_steps + 1 if empty else 0
        if self.empty_steps == 3:
            doors = ", ".join(kind(o) for o in self.method.select if hasattr(o, "episodes")) or "selection"
            self.warn(
                f"{doors} kept no episode of the last three steps, so nothing was learned. Look at the rewards of the "
                "episodes: an easier task.level, another task.reward or another setting of method.select may help."
            )

    def warn_if_dead(self, share: float, drawn: Sequence[Episode] = ()) -> None:
        """All groups have had equal rewards for three steps in a row, and the method learns nothing from such ones."""
        self.dead_steps = self.dead_steps + 1 if share == 1.0 else 0
        if self.dead_steps == 3 and not self.told_dead:  # once: `dead_groups` is in the line of every step
            self.told_dead = self.to_look_at = True
            self.warn(
                "every group of the last three steps has equal rewards, so there is nothing to compare. "
                + why_equal(self, drawn)
            )

    def stop_if_failing(self, failed: float, drawn: Sequence[Episode]) -> None:
        """Too many failures mean that the reward function or the environment is broken; training on would hide it."""
        errors = [e.error for e in drawn if e.error]
        if failed > self.config.max_failures:
            raise ValueError(
                f"{failed:.0%} of the episodes of this step could not be judged, more than max_failures="
                f"{self.config.max_failures:.0%}: the step was not learned from. First error: "
                f"{self.told_once(errors[0]) if errors else 'none'}\n"
                "Fix the reward function or environment, or raise max_failures; to resume with such a change, add "
                "--allow-changes."
            )
        first = next((e for e in drawn if e.error and _shape(e.error) not in self.told_errors), None)
        if first is not None and len(self.told_errors) < TOLD:
            what = "hung" if first.status == Status.TIMEOUT else "failed"
            self.warn(
                f"{len(errors)} of {len(drawn)} episodes {what} and were left out. First error: "
                f"{self.told_once(first.error)}\nMore of this kind are counted as `failed` in the lines of steps."
            )

    def told_once(self, error: str) -> str:
        """An error, the first time; later only its last line, shortened."""
        known = _shape(error) in self.told_errors
        self.told_errors.add(_shape(error))
        last = error.rstrip().splitlines()[-1]
        return f"{last[:80]}{'…' if len(last) > 80 else ''} (as above)" if known else error

    # checkpoints

    def state(self, step: int, facts: dict[str, Any]) -> State:
        own = {"version": self.version, "checked": self.checked, "bad_steps": self.learner.bad_steps}
        own |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
        own |= {"micro_tokens": self.learner.micro_tokens, "data": self.tasks.digest}
        weights, optimisers = self.learner.state(self._changing())
        return State(
            step=step,
            weights=weights,
            optimisers=optimisers,
            memory=self.memory.plain,
            replay=self.replay,
            facts={**facts, **own},
            drawn=self.source.drawn,
            open=self.open,
        )

    def _changing(self) -> list[str]:
        """The roles whose weights a checkpoint holds."""
        return [r for r in self.roles if self.changes(r)]

    def changes(self, role: str) -> bool:
        return role == "policy" or self.method.cast[role].train or not isinstance(self.method.cast[role].refresh, Never)

    def restore(self, state: State, allow: bool = False) -> None:
        """The run as it was; with `allow` also on other data, or with another number of threads."""
        before, now = state.facts["threads"], torch.get_num_threads()
        if before != now and not allow:
            raise ValueError(
                f"the run used {before} threads, this process has {now}: sums would be added in another order, and the "
                f"run would not go on exactly. Resume with threads={before}, or OMP_NUM_THREADS={before}; or go on "
                f"with {now}, which differs in the last bits: threads={now} --allow-changes."
            )
        if state.facts.get("data", "") != self.tasks.digest:
            said = f"the data of task {self.config.task.name} is not what it was when this run was saved"
            if not allow:
                raise ValueError(f"{said}. Put the data back, or go on with other data: --allow-changes.")
            self.warn(f"{said}, so it goes on, but not as it would have.")
        changing = set(self._changing())
        if set(state.weights) != changing:
            raise ValueError(
                f"the checkpoint holds {', '.join(sorted(state.weights))}, and the method as it is now trains or moves "
                f"{', '.join(sorted(changing))}: it cannot go on from there. Take the method back, or start a new run."
            )
        kept = {name: state.facts[name] for name in ("bad_steps", "micro_tokens")}
        self.learner.load(state.weights, state.optimisers, **kept)
        self.memory = Memory(state.memory)
        self.replay, self.open = state.replay, [self.walk.asked(e) for e in state.open]
        refuse_open(self.open, self.method, self.tasks, self.config)
        self.set_version(int(state.facts["version"]))
        self.source.restore(state.drawn)
        self.checked = state.facts["checked"]

    def close(self) -> None:
        self.end_exact()
        self.source.close()
        self.engine.close()
        self.judge.close()
        close_play(self.walk.play)


def tasks_of(config: RunConfig) -> TaskSet:
    if config.deterministic and config.task.agent:
        raise ValueError(
            "deterministic=true promises the same bits, and programs of agents (task.agent) are served in the order in "
            "which they call, which is that of the clock. Which calls share a forward pass then differs from run to "
            "run, and with it the last bits of log-probabilities and now and then a token; tasks and random keys are "
            "the same. "
            "Leave deterministic out, or play in an environment (such as task=household, or ./file.py:World in a file "
            "of levels), whose episodes go in lockstep."
        )
    return load(config.task)
