"""The world of the exact laboratory: prompts with a few possible answers, and policies that are tables.

A policy has one logit for each letter that may follow each beginning of an answer, for each prompt. Prompts share no
parameters, so the gradient of a prompt is a block of its own. All numbers are float64.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gruppo.data import Episode, Inputs, single_turn
from gruppo.policies import CharTokenizer
from gruppo.tasks import Task

ANSWERS = ("", "a", "b", "aa", "ab", "ba", "bb")  # each is followed by the end token
RIGHT = ("a", "ab", "bb")
RATES = (0.1, 0.3, 0.5, 0.9)
SHARES = (0.6, 0.3, 0.1)  # of the right answers in their mass, shuffled by the seed; the same for the wrong ones
NEVER = -1e4  # the logit of what cannot follow: its probability is exactly 0, and 0 · log 0 is not NaN
SEPARATORS = "\n "  # inside a prompt or between two pieces of an answer; the policies ignore them
MOST_PROMPTS = 256


def prompt_letter(q: int) -> str:
    """The name of a prompt: a capital or, from the 27th on, a Chinese character, which no answer contains."""
    return chr(ord("A") + q) if q < 26 else chr(0x4E00 + q)


class Letters(CharTokenizer):
    """Characters as ids: the end is 0, then the letters of answers, `<bos>`, a capital for each prompt, separators."""

    eos = 0
    stops = (0,)

    def __init__(self, letters: str, prompts: int) -> None:
        self.prompts = "".join(map(prompt_letter, range(prompts)))
        self.choices = 1 + len(letters)  # what a policy can write
        self.bos = self.pad = self.choices
        self._id = {c: 1 + i for i, c in enumerate(letters)}
        self._id |= {c: self.bos + 1 + i for i, c in enumerate(self.prompts)}
        self._id |= {c: self.bos + 1 + prompts + i for i, c in enumerate(SEPARATORS)}
        self._letter = {i: c for c, i in self._id.items()}
        self.vocab = self.bos + 1 + prompts + len(SEPARATORS)

    def encode(self, text: str) -> NDArray[np.int64]:
        if not set(text) <= self._id.keys():
            raise ValueError(f"it writes {text!r}, and the alphabet of the laboratory is {''.join(self._id)}")
        return np.array([self._id[c] for c in text], np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._letter.get(int(i), "") for i in ids)


@dataclass(frozen=True)
class ExactWorld:
    """Prompts with given success rates, all with the same answers; `right` are the right ones.

    How a prompt's mass is shared among its right answers, and among its wrong ones, is drawn from the seed. Prompts are
    of `domains` kinds, in their order.
    """

    rates: tuple[float, ...] = RATES
    answers: tuple[str, ...] = ANSWERS
    right: tuple[str, ...] = RIGHT
    shares: tuple[float, ...] = SHARES
    seed: int = 0
    domains: int = 1
    longer: float = 1.0  # each letter more makes an answer so much as likely, among right ones and among wrong ones

    def __post_init__(self) -> None:
        if not self.rates or any(not 0 < p < 1 for p in self.rates):
            raise ValueError(
                f"rates={list(self.rates)}: a prompt that is always or never solved has no gradient to compare with. "
                "Give success rates between 0 and 1."
            )
        if len(self.rates) > MOST_PROMPTS:
            raise ValueError(
                f"{len(self.rates)} rates: each is a prompt with a name of one letter, and there are {MOST_PROMPTS}. "
                "Give fewer."
            )
        if len(set(self.answers)) < len(self.answers) or not all(re.fullmatch("[a-zα-ωа-я]*", a) for a in self.answers):
            raise ValueError(
                f"answers={list(self.answers)}: each has one probability, and capitals are prompts. Use different "
                "words of small letters."
            )
        wrong = set(self.answers) - set(self.right)
        if not wrong or not self.right or set(self.right) - set(self.answers):
            raise ValueError(
                f"right={list(self.right)} of answers={list(self.answers)}: there must be right answers and wrong "
                "ones. Take some of the answers, not all."
            )

    @cached_property
    def tokenizer(self) -> Letters:
        return Letters("".join(sorted({c for a in self.answers for c in a})), len(self.rates))

    @cached_property
    def right_A(self) -> Tensor:
        return torch.tensor([a in self.right for a in self.answers])

    @cached_property
    def reward_QA(self) -> Tensor:
        return self.right_A.double().expand(len(self.rates), -1)

    @cached_property
    def mass_QA(self) -> Tensor:
        """Probability of every answer to every prompt at the start."""
        rng = np.random.default_rng(self.seed)
        out = torch.zeros(len(self.rates), len(self.answers), dtype=torch.float64)
        for q, p in enumerate(self.rates):
            for mask, mass in ((self.right_A, p), (~self.right_A, 1 - p)):
                n = int(mask.sum())
                share = np.array([self.shares[min(i, len(self.shares) - 1)] for i in range(n)])
                share = rng.permutation(share / share.sum())
                if self.longer != 1:
                    letters = np.array([len(a) for a, m in zip(self.answers, mask, strict=True) if m])
                    share = share * self.longer ** (letters - letters.min())
                    share = share / share.sum()
                out[q, mask] = mass * torch.from_numpy(share)
        return out

    # the tree of answers

    @cached_property
    def beginnings(self) -> list[str]:
        """Every beginning of an answer, the answer itself included: the states in which the policy writes a token."""
        return sorted({a[:i] for a in self.answers for i in range(len(a) + 1)}, key=lambda s: (len(s), s))

    def following(self, beginning: str) -> list[str]:
        """What may follow it: letters, and "." for the end."""
        ended = [a + "." for a in self.answers]
        return sorted({a[len(beginning)] for a in ended if a.startswith(beginning)})

    @cached_property
    def cells(self) -> list[tuple[int, str, str]]:
        """(prompt, beginning, token) of every parameter. States with a single possible token have none."""
        free = [(b, c) for b in self.beginnings for c in self.following(b) if len(self.following(b)) > 1]
        return [(q, b, c) for q in range(len(self.rates)) for b, c in free]

    def names(self) -> list[str]:
        return [f"{self.tokenizer.prompts[q]}:{b}→{c}" for q, b, c in self.cells]

    @cached_property
    def theta(self) -> Tensor:
        """The initial logits, one per cell: log P(token | beginning)."""

        ended, mass_QA = [a + "." for a in self.answers], self.mass_QA.tolist()
        begins = {
            a[:i]: [n for n, b in enumerate(ended) if b.startswith(a[:i])] for a in ended for i in range(len(a) + 1)
        }

        def mass(q: int, start: str) -> float:
            return sum(mass_QA[q][n] for n in begins[start])

        return torch.tensor([mass(q, b + c) / mass(q, b) for q, b, c in self.cells], dtype=torch.float64).log()

    def node(self, q: int, beginning: str) -> int:
        """The row of a state; row 0 is the state before the prompt and after the end."""
        return 1 + q * len(self.beginnings) + self.beginnings.index(beginning)

    @cached_property
    def next_XV(self) -> Tensor:
        """The state after a state and a token."""
        out = torch.zeros(1 + len(self.rates) * len(self.beginnings), self.tokenizer.vocab, dtype=torch.int64)
        for q, name in enumerate(self.tokenizer.prompts):
            out[0, self.tokenizer.encode(name)[0]] = self.node(q, "")
            for b in self.beginnings:
                for c in self.following(b):
                    if c != ".":
                        out[self.node(q, b), self.tokenizer.encode(c)[0]] = self.node(q, b + c)
        out[:, self.tokenizer.encode(SEPARATORS)] = torch.arange(len(out))[:, None]
        return out

    def token(self, c: str) -> int:
        return self.tokenizer.eos if c == "." else int(self.tokenizer.encode(c)[0])

    # as the rooms see it

    @cached_property
    def tasks(self) -> list[Task]:
        names = zip(self.tokenizer.prompts, self.rates, strict=True)
        longest = max(self.right, key=len)
        hints = [longest[:i] for i in range(1, len(longest))]
        meta = {"hints": hints} if hints else {}
        kinds = [1 + q * self.domains // len(self.rates) for q in range(len(self.rates))]
        return [
            Task(n, n, self.right[0], kind, "lab", longest, meta={"rate": p, **meta})
            for kind, (n, p) in zip(kinds, names, strict=True)
        ]

    def with_recorded(self, q: int, numbers: Sequence[int]) -> Task:
        """The task with the answers of a draw as its recorded answers."""
        mine = [n % len(self.answers) for n in numbers if n // len(self.answers) == q]
        written = [{"text": self.answers[a], "reward": float(self.reward_QA[q, a])} for a in mine]
        return replace(self.tasks[q], meta={"answers": written})

    def prompt(self, q: int) -> NDArray[np.int64]:
        return self.tokenizer.chat([{"role": "user", "content": self.tasks[q].prompt}])

    def ids(self, answer: int) -> NDArray[np.int64]:
        return np.append(self.tokenizer.encode(self.answers[answer]), self.tokenizer.eos)

    def going_on(self, start: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which answers begin with these ids."""
        if start not in self._going_on:
            ids = [self.ids(a)[: len(start)].tolist() for a in range(len(self.answers))]
            self._going_on[start] = np.array([i == list(start) for i in ids])
        return self._going_on[start]

    @cached_property
    def _going_on(self) -> dict[tuple[int, ...], NDArray[np.bool_]]:
        return {}

    def episode(self, uid: int, number: int) -> Episode:
        """The episode of an answer to a prompt; `number` counts the answers, prompt by prompt."""
        q, a = divmod(number, len(self.answers))
        ids, task = self.ids(a), self.tasks[q]
        unknown = np.zeros(len(ids), np.float32)  # the exact log-probability is a column of the batch later
        reward = {"task": float(self.reward_QA[q, a])}
        return single_turn(
            uid, task.uid, task.uid, self.prompt(q), ids, unknown, 0,
            reward=reward, text=self.answers[a], answer=self.answers[a], step=0, index=q,
        )  # fmt: skip

    def answer_of(self, text: str) -> int:
        """The number of the answer that a text gives; -1 for none."""
        plain = text.translate({ord(c): None for c in SEPARATORS})
        return self.answers.index(plain) if plain in self.answers else -1

    def score(self, task: str, text: str) -> float:
        """The task's own reward for a text."""
        a = self.answer_of(text)
        return float(a >= 0 and self.answers[a] in self.right and task in self.tokenizer.prompts)


class Table(nn.Module):
    """A model that looks up the state: its hidden state is a row of a table, and its head is the identity."""

    layers, context = 0, 64

    def __init__(self, world: ExactWorld, rows_XD: Tensor) -> None:
        super().__init__()
        self.world, self.dim, self.vocab = world, rows_XD.shape[1], rows_XD.shape[1]
        self.base_XD = rows_XD
        self.head = nn.Identity()

    @property
    def device(self) -> torch.device:
        return self.base_XD.device

    def rows(self) -> Tensor:
        return self.base_XD

    def forward(self, inputs: Inputs, collect: tuple[int, ...] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        rows_MD = self.rows()[self.states(inputs)]
        return rows_MD, dict.fromkeys(collect, rows_MD)

    def states(self, inputs: Inputs) -> Tensor:
        """The state of each position, from that of its parent, for all sequences at once."""
        node_M = torch.zeros_like(inputs.ids_M)
        for depth in range(int(inputs.pos_M.max()) + 1 if len(inputs.pos_M) else 0):
            here = torch.nonzero(inputs.pos_M == depth)[:, 0]
            before = inputs.parent_M[here]
            start = torch.where(before >= 0, node_M[before.clamp(min=0)], torch.zeros_like(before))
            node_M[here] = self.world.next_XV[start, inputs.ids_M[here]]
        return node_M


class TablePolicy(Table):
    """A policy: its parameters are the logits of the world's cells."""

    def __init__(self, world: ExactWorld, theta: Tensor) -> None:
        rows_XV = torch.full((len(world.next_XV), world.tokenizer.choices), NEVER, dtype=torch.float64)
        for q in range(len(world.rates)):
            for b in world.beginnings:
                rows_XV[world.node(q, b), [world.token(c) for c in world.following(b)]] = 0.0
        super().__init__(world, rows_XV)
        self.theta = nn.Parameter(theta.clone())
        cells = [(world.node(q, b), world.token(c)) for q, b, c in world.cells]
        self.at = tuple(torch.tensor(cells).T)

    def rows(self) -> Tensor:
        return self.base_XD.index_put(self.at, self.theta)


class TableCritic(Table):
    """The exact value of a policy in every state, its expected reward; or zeros."""

    def __init__(self, world: ExactWorld, mass_QA: Tensor | None) -> None:
        super().__init__(world, torch.zeros(len(world.next_XV), 1, dtype=torch.float64))
        self.values = nn.Parameter(self._values(world, mass_QA))

    def rows(self) -> Tensor:
        return self.values

    def _values(self, world: ExactWorld, mass_QA: Tensor | None) -> Tensor:
        out = self.base_XD.clone()
        if mass_QA is None:
            return out
        for q in range(len(world.rates)):
            for b in world.beginnings:
                here = torch.tensor([a.startswith(b) for a in world.answers]).double() * mass_QA[q]
                out[world.node(q, b), 0] = (here * world.reward_QA[q]).sum() / here.sum()
        return out


def entropy(mass_QA: Tensor) -> Tensor:
    """−Σ P log P over answers, in nats, averaged over prompts."""
    return -torch.special.xlogy(mass_QA, mass_QA).sum(-1).mean()
