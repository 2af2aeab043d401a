"""How exploitable a policy is in Kuhn poker: exactly, from its own probabilities, without a game being played.

    σ(bold | s) = p(bold) / (p(bold) + p(careful))        the first token of each, in each of the twelve situations s

Illegal words are left out of σ. `legal` says how probable the two legal ones are together where they are least so: of
a policy that hardly ever acts by the rules, or that thinks before it acts, σ says little.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gruppo.envs.format import Line
from gruppo.envs.kuhn import CARDS, SEATS, Kuhn, allowed
from gruppo.envs.kuhn_exact import ALL, exploitability
from gruppo.policies import packed
from gruppo.stages.converse import Converse

Strategy = dict[str, float]


def exploited(engine: Any, tokenizer: Any, tasks: Sequence[Any], play: Any, temperature: float) -> dict[str, float]:
    """`exploitability` and `legal` of what an engine samples from; empty if none of the tasks is of Kuhn poker.

    Also where it could not be exact: if an action is not a line of its own, if not all turns are seen, or if dialogues
    cannot be extended.
    """
    mine = next((t for t in tasks if t.meta.get("env") == "kuhn"), None)
    models: Mapping[str, Any] = getattr(engine, "models", {})
    exact = isinstance(play, Converse) and isinstance(play.format, Line) and play.window < 0
    exact = exact and not getattr(tokenizer, "stuck", "")
    if mine is None or not exact or not models or not _apart(tokenizer):
        return {}
    system = mine.system or (Kuhn.rules if play.rules else "")
    strategy, legal = Strategy(), 1.0
    for seat in SEATS:
        model = models[play.writers.get(seat, "policy")]
        for s, p in chances(model, tokenizer, temperature, mine.prompt, system).items():
            if seat_of(s) == seat:
                strategy[s], legal = p[1] / sum(p) if sum(p) else 0.5, min(legal, sum(p))
    return {"exploitability": exploitability(strategy), "legal": legal}


def _apart(tokenizer: Any) -> bool:
    """Whether the two actions of a situation begin with different tokens."""
    return all(len({_first(tokenizer, word) for word in allowed(said)}) == 2 for said in ((), ("bet",)))


def _first(tokenizer: Any, word: str) -> int:
    return int(tokenizer.encode(word)[0])


def strategy_of(policy: Any, tokenizer: Any) -> Strategy:
    """The probability of the bold action in every situation, of the two that are allowed."""
    return {s: float(torch.softmax(two, 0)[1]) for s, (two, _) in _logits(policy, tokenizer).items()}


def chances(
    policy: Any, tokenizer: Any, temperature: float = 1.0, prompt: str = "", system: str = ""
) -> dict[str, tuple[float, float]]:
    """The probabilities of the careful and of the bold action in every situation, among all tokens."""
    out: dict[str, tuple[float, float]] = {}
    for s, (two, all_V) in _logits(policy, tokenizer, prompt, system).items():
        if temperature == 0:
            best = float(all_V.max())
            out[s] = float(two[0] == best), float(two[1] == best)
        else:
            careful, bold = (two / temperature - torch.logsumexp(all_V / temperature, 0)).exp().tolist()
            out[s] = careful, bold
    return out


def _logits(policy: Any, tokenizer: Any, prompt: str = "", system: str = "") -> dict[str, tuple[Any, Any]]:
    """Of the two actions, and of all tokens, in every situation."""
    dialogues = [dialogue(tokenizer, s, prompt, system) for s in ALL]
    ends = np.cumsum([len(ids) for ids in dialogues]) - 1
    with torch.no_grad():
        hidden_MD, _ = policy(packed(dialogues, policy.device))
        logits_SV = policy.head(hidden_MD[torch.from_numpy(ends).to(hidden_MD.device)]).double()
    words_S = [[_first(tokenizer, word) for word in allowed(s.split()[1:])] for s in ALL]
    return {s: (logits_SV[i][words_S[i]], logits_SV[i]) for i, s in enumerate(ALL)}


def seat_of(situation: str) -> str:
    return SEATS[(len(situation.split()) - 1) % 2]


def dialogue(tokenizer: Any, situation: str, prompt: str = "", system: str = "") -> Any:
    """The ids that the policy goes on from in a situation, as the world and `stages/converse.py` write them."""
    card, *said = situation.split()
    seat = len(said) % 2
    cards = [CARDS[CARDS.index(card) - 1]] * 2  # the other one holds any other card
    cards[seat] = card
    ids: Any = np.zeros(0, np.int64)
    world = Kuhn()
    for turn in range(len(said) + 1):
        state = (CARDS.index(cards[0]), CARDS.index(cards[1]), tuple(said[:turn]))
        if world.seat(state) != SEATS[seat]:
            continue
        seen = world.view(state)
        if not len(ids):
            first = [{"role": "user", "content": f"{prompt or world.asked({})}\n{seen}"}]
            ids = tokenizer.chat([{"role": "system", "content": system}, *first] if system else first)
        else:
            ids = np.concatenate([ids, tokenizer.follow([{"role": "user", "content": seen}], int(ids[-1]))])
        if turn < len(said):
            ids = np.concatenate([ids, tokenizer.encode(said[turn]), [tokenizer.eos]])
    return ids
