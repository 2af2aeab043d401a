"""The exact world and its training, as settings."""

from dataclasses import dataclass, fields, replace
from math import exp, log, log10
from typing import Any, Literal

from gruppo.fields import Checked, setting
from gruppo.lab.exact.world import MOST_PROMPTS, ExactWorld
from gruppo.methods import all_methods
from gruppo.stages import Context, Memory, Method, Sampling
from gruppo.stages.names import nearest
from gruppo.train.config import RunConfig
from gruppo.train.learner import OptimConfig

LETTERS = "".join(map(chr, (*range(0x61, 0x7B), *range(0x3B1, 0x3C2), *range(0x430, 0x450))))  # a-z, α-ρ, а-я
LONGEST = 40  # letters of an answer
TASK = "gruppo.lab.tabular:exact"  # as the task of a claim
OPTIONS = ("optimiser", "gradient", "noise", "teacher", "old", "flip", "flip_every")  # of the setup, as task.options
UNUSED = ("model", "engine", "sampling", "budget_tokens", "turns_a_step", "regime", "scale")  # of a run
RAREST = -250  # at the start an answer has a chance of at least 1e-250; float64 ends at 1e-308
LEAST_LONG = 40  # `longer` makes the longest answers at most 1e40 times rarer than the shortest


@dataclass(frozen=True)
class World(Checked):
    """Prompts with the same answers; the seed says how likely each is at the start.

    form      words: all words of `depth` letters; slips: a chain of `depth` letters a, which may go wrong once, at any
              place, by any other letter. The chain is right, and so are `right` − 1 of the slips
    shortest  letters of the shortest answers. words: all from so many letters to `depth`; slips: after a slip an answer
              ends once it has so many letters, and goes on with a until then; 0: all have `depth` letters
    domains   kinds of prompts, for methods that choose among kinds: so many bands of difficulty
    longer    each letter more makes an answer this much as likely at the start, among the right ones and among the
              wrong ones: below 1 the policy begins with short answers, and is right as often; 1: as the seed says
    """

    prompts: int = setting(64, low=1, high=MOST_PROMPTS)
    form: Literal["words", "slips"] = "words"
    answers: int = setting(16, low=2, high=256)  # words: a power of `depth`; slips: 1 + a multiple of `depth`
    right: int = setting(4, low=1)  # right answers, of every prompt
    depth: int = setting(1, low=1, high=LONGEST)  # letters of an answer; 1: an answer is a single choice
    low: float = setting(0.05, low=1e-100, below=1)  # success rate of the hardest prompt
    high: float = setting(0.6, low=1e-100, below=1)  # of the easiest; those between are evenly spaced in logits
    steep: float = setting(0.5, above=0, high=1)  # each right (wrong) answer is this much as likely as the one before
    shortest: int = setting(0, low=0, high=LONGEST)
    domains: int = setting(1, low=1)
    longer: float = setting(1.0, above=0, high=1)

    def wrong(self) -> str:
        others = max(self.right, self.answers - self.right) - 1
        rate = log10(min(self.low, self.high, 1 - self.low, 1 - self.high))
        by_length = (self.depth - (self.shortest or self.depth)) * log10(self.longer)  # of the longest answers
        if by_length < -LEAST_LONG:
            return (
                f"longer={self.longer:g} with depth={self.depth}, shortest={self.shortest}: the longest answers would "
                f"be 1e{by_length:.0f} times as likely as the shortest, and no step would sample one. Use longer from "
                f"{1.1 * 10 ** (-LEAST_LONG / (self.depth - self.shortest)):.2g} to 1, or lengths that differ less."
            )
        if self.longer != 1 and self.shortest in (0, self.depth):
            return (
                f"longer={self.longer:g} has no effect with shortest={self.shortest}, depth={self.depth}: all answers "
                "are equally long. Use a smaller shortest, from 1 on, or leave longer out."
            )
        rate += by_length
        if rate + others * log10(self.steep) >= RAREST:
            return ""
        return (
            f"steep={self.steep:g} with answers={self.answers}, right={self.right}: the rarest answer would have a "
            f"chance of 1e{rate + others * log10(self.steep):.0f}, and its logit, the logarithm, would be minus "
            f"infinity. Use steep from {1.1 * 10 ** ((RAREST - rate) / others):.2g} to 1, or fewer answers."
        )

    def of(self, seed: int) -> ExactWorld:
        """The world of a seed: the same prompts and answers, with other chances."""
        if self.shortest > self.depth:
            raise ValueError(
                f"shortest={self.shortest} is above depth={self.depth}: the shortest answers would be longer than the "
                f"longest. Use {self.depth} or less."
            )
        words = FORMS[self.form](self.answers, self.depth, self.shortest or self.depth)
        if self.right >= self.answers:
            raise ValueError(f"right={self.right} of answers={self.answers}: there must be wrong ones. Use fewer.")
        # Right answers are spread over the words, so that in a tree they share beginnings with wrong ones.
        chain = words[: self.form == "slips"]
        right = (*chain, *_spread(words[len(chain) :], self.right - len(chain)))
        shares = tuple(self.steep**i for i in range(self.answers))
        rates = _rates(self.prompts, self.low, self.high)
        return ExactWorld(rates, words, right, shares, seed, self.domains, self.longer)


def _words(answers: int, depth: int, shortest: int) -> tuple[str, ...]:
    """All words of `shortest` to `depth` letters, the short ones first."""
    long = range(shortest, depth + 1)
    letters = next((n for n in range(2, len(LETTERS) + 1) if sum(n**k for k in long) == answers), 0)
    if not letters:
        raise ValueError(
            f"answers={answers} with depth={depth}, shortest={shortest}: no alphabet has so many words of these "
            f"lengths. Use n**depth answers with n from 2 to {len(LETTERS)}, such as 16 with depth 1 or 2; with "
            "answers of different lengths the sum of such powers, such as 30 with depth 4 and shortest 1."
        )
    words, out = [""], list[str]()
    for _ in range(depth):
        words = [w + c for w in words for c in LETTERS[:letters]]
        out += words if len(words[0]) >= shortest else []
    return tuple(out)


def _slips(answers: int, depth: int, shortest: int) -> tuple[str, ...]:
    """The chain, then every slip by its place and letter."""
    others, left = divmod(answers - 1, depth)
    if left or not 1 <= others < len(LETTERS):
        raise ValueError(
            f"answers={answers} with form=slips, depth={depth}: a chain can go wrong at {depth} places, by the same "
            f"letters at each. Use 1 + {depth} · n answers, n from 1 to {len(LETTERS) - 1}, such as {1 + depth}."
        )
    wrong = [LETTERS[0] * k + c for k in range(depth) for c in LETTERS[1 : 1 + others]]
    return LETTERS[0] * depth, *(w.ljust(shortest, LETTERS[0]) for w in wrong)


FORMS = {"words": _words, "slips": _slips}


def _spread(words: tuple[str, ...], count: int) -> list[str]:
    """So many of the words, at equal distances."""
    return [words[(2 * i + 1) * len(words) // (2 * count)] for i in range(count)]


def _rates(prompts: int, low: float, high: float) -> tuple[float, ...]:
    """Evenly spaced in log-odds."""
    a, b = (log(p / (1 - p)) for p in (low, high))
    at = [a + (b - a) * (i / (prompts - 1) if prompts > 1 else 0.5) for i in range(prompts)]
    return tuple(1 / (1 + exp(-x)) for x in at)


@dataclass(frozen=True)
class Setup(Checked):
    """How policies are trained in an exact world.

    optimiser  adamw, as in a run; or sgd, whose step is lr · prompts · gradient: lr is then the rate of one prompt's
               logits, however many prompts a step asks
    gradient   of answers that are sampled; or expected, over all groups, weighted by their chances (small worlds only)
    noise      draws for Var / |E g|² and for the chance that a right answer falls; 0: these are not measured
    teacher    the success rate, for every prompt, of a role that a run must be given; 0: it is the initial policy
    lag        steps that the sampler is behind: a step learns from answers of the policy of so many steps ago (of the
               initial one in the first steps), as a run with ahead=lag does
    old        π_old of such answers: the policy at the start of the step, as in a run with `ahead`; or the sampler that
               gave them, so that ratios, and what clips them, see the lag
    flip       the chance that the reward of an answer is turned, right for wrong, before the method sees it, in every
               step whose number is a multiple of flip_every
    """

    world: World = World()
    steps: int = setting(2000, low=1)
    prompts: int = setting(8, low=1)  # of a step
    samples: int = setting(8, low=1)  # of a prompt
    optim: OptimConfig = OptimConfig(lr=0.05)
    optimiser: Literal["adamw", "sgd"] = "adamw"
    gradient: Literal["sampled", "expected"] = "sampled"
    every: int = setting(100, low=0)  # steps between two rows of measures; 0: only the first and the last
    noise: int = setting(0, low=0)
    teacher: float = setting(0.0, low=1e-40, below=1, also=0)
    lag: int = setting(0, low=0)
    old: Literal["step", "sampler"] = "step"
    flip: float = setting(0.0, low=0, high=1)
    flip_every: int = setting(1, low=1)
    seed: int = setting(0, low=0)  # of random numbers that rooms draw themselves

    def wrong(self) -> str:
        if self.flip and self.gradient == "expected":
            return (
                f"flip={self.flip} has no effect along the expected gradient, which is over answers and not over "
                "turned rewards. Use gradient=sampled, or no flip."
            )
        if self.teacher and (self.noise or self.gradient == "expected"):
            return (
                f"teacher={self.teacher} has no effect on noise, nor along the expected gradient, where every role is "
                "the initial policy. Use gradient=sampled and noise=0, or no teacher."
            )
        if said := self._wrong_lag():
            return said
        if self.prompts <= self.world.prompts:
            return ""
        return (
            f"prompts={self.prompts}: the world has {self.world.prompts} (world.prompts), and a step asks each at most "
            "once. Use fewer, or a larger world."
        )

    def _wrong_lag(self) -> str:
        if self.lag and (self.noise or self.gradient == "expected"):
            return (
                f"lag={self.lag} has no effect on noise, nor along the expected gradient, which are of the policy as "
                "it is. Use gradient=sampled and noise=0, or no lag."
            )
        if self.lag >= self.steps:
            return (
                f"lag={self.lag} with steps={self.steps}: every answer would be one of the initial policy. Use a lag "
                "below the number of steps."
            )
        if self.old == "sampler" and not self.lag:
            return (
                "old=sampler has no effect with lag=0: the sampler is the policy at the start of the step. Give a lag, "
                "or leave it out."
            )
        return ""

    def refuse_roles(self, method: Method) -> None:
        """Every role is a table of this world: a model cannot be one, and a teacher must have a role to play."""
        cast = method.cast
        for name, role in cast.items():
            if role.start and role.start != "policy" and role.start not in cast:
                raise ValueError(
                    f"method.cast.{name}={role.start}: the policies of an exact world are tables, so no model can be "
                    f"a role there. Leave it out; how often a role that a run must be given is right, `teacher` says."
                )
        if not self.teacher or any(not role.start for role in cast.values()):
            return
        known = {f"{m.name} ({name})" for m in all_methods().values() for name, r in m.cast.items() if not r.start}
        raise ValueError(
            f"teacher={self.teacher} has no effect on {method.name}: none of its roles ({', '.join(cast)}) must be "
            f"given. Leave teacher out, or use a method with such a role: {', '.join(sorted(known))}."
        )

    def given(self, world: ExactWorld) -> ExactWorld:
        """The world whose initial policy is a role that a run must be given."""
        return replace(world, rates=(self.teacher,) * len(world.rates)) if self.teacher else world

    def context(self, step: int, memory: Memory, max_tokens: int) -> Context:
        return Context(
            step=step, steps=self.steps, seed=self.seed, memory=memory, prompts=self.prompts, samples=self.samples,
            sampling=Sampling(max_tokens=max_tokens),
        )  # fmt: skip

    def flips(self, step: int) -> float:
        """The chance that a reward is turned in a step; the first one is step 0, and has the number 1."""
        return 0.0 if (step + 1) % self.flip_every else self.flip

    def measured_at(self, step: int) -> bool:
        """Whether the state after so many steps is measured."""
        return step in (0, self.steps) or bool(self.every and step % self.every == 0)


def setup_of(config: RunConfig) -> Setup:
    """The setup that a run's configuration describes: `task.options` are fields of the world, or of the setup."""
    world, own = {f.name for f in fields(World)}, OPTIONS
    for name in config.task.options:
        if name not in {*world, *own}:
            raise ValueError(
                f"task.options.{name}: an exact world has no such option{nearest(name, {*world, *own})}. It has "
                f"{', '.join((*sorted(world), *own))}."
            )
    plain = RunConfig()
    for name in UNUSED:
        if getattr(config, name) != getattr(plain, name):
            raise ValueError(
                f"{name} has no effect in an exact world: the policy is a table, sampled at temperature 1. Leave it "
                "out."
            )
    options: dict[str, Any] = dict(config.task.options)
    return Setup(
        world=World(**{k: v for k, v in options.items() if k in world}),
        steps=config.steps, prompts=config.prompts, samples=config.samples, optim=config.optim, every=config.eval.every,
        lag=config.ahead, **{k: v for k, v in options.items() if k in own},
    )  # fmt: skip


def exact(**options: Any) -> Any:
    """The name of the exact world as a task. A claim may have it; `gruppo train` cannot."""
    raise ValueError(
        f"task={TASK} is a policy that is a table, so no model can be trained on it. Use gruppo lab METHOD --train "
        '"steps=500", gruppo.lab.tabular.train_exact, or a claim with this task.'
    )
