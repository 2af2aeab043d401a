"""Turns as rows of a batch: their order, the decisions that are theirs, and the columns of rewards and of level K."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data.episode import FLAGS, Episode, Turn
from gruppo.data.keyed import key_hash, name_hash


@dataclass(frozen=True, eq=False)
class Rows:
    """All turns in the order of their rows: by sequence, then by position."""

    turns: list[Turn]
    episode_K: np.ndarray  # row of E
    index_K: np.ndarray  # index of the turn in its episode, in time
    seq_K: np.ndarray  # row of S
    stop_K: np.ndarray
    first_S: np.ndarray  # the first turn of each sequence
    last_S: np.ndarray

    def turn_of(self, at: np.ndarray, owner: np.ndarray, shift_S: np.ndarray) -> np.ndarray:
        """The turn of each decision: the first of its sequence that ends after it (given tokens belong to the next).

        at, owner  position and sequence of each decision
        shift_S    how far `train_as` has moved the tokens of each sequence
        """
        stops = self.stop_K + shift_S[self.seq_K]
        wide = 2 + max(int(stops.max(initial=0)), int(at.max(initial=0)))  # so that sequences do not overlap
        found = np.searchsorted(self.seq_K * wide + stops, owner * wide + at, side="right")
        return np.clip(found, self.first_S[owner], self.last_S[owner])


def numbers(rows: Seq[Any], name: str) -> np.ndarray:
    """A whole number of each row."""
    return np.fromiter(map(attrgetter(name), rows), np.int64, len(rows))


def hashes(texts: Iterable[str], count: int) -> np.ndarray:
    return np.fromiter(map(name_hash, texts), np.int64, count)


def turn_rows(episodes: Seq[Episode]) -> Rows:
    turns = [t for e in episodes for t in e.turns]
    count_E = np.array([len(e.turns) for e in episodes], np.int64)
    size_E = np.array([len(e.sequences) for e in episodes], np.int64)
    first_E = np.cumsum(size_E) - size_E  # the first sequence of each episode
    episode = np.repeat(np.arange(len(episodes)), count_E)
    index = np.arange(len(turns)) - np.repeat(np.cumsum(count_E) - count_E, count_E)
    own, start, stop = (numbers(turns, name) for name in ("sequence", "start", "stop"))
    lost = np.flatnonzero((own < 0) | (own >= size_E[episode]))
    if len(lost):
        i = int(lost[0])
        raise ValueError(
            f"episode {episodes[episode[i]].uid}: turn {index[i]} says sequence={own[i]}, but there are "
            f"{size_E[episode[i]]}, so its tokens cannot be found. Count sequences from 0."
        )
    seq = own + first_E[episode]
    count_S = np.bincount(seq, minlength=int(size_E.sum()))
    if len(empty := np.flatnonzero(count_S == 0)):
        e = int(np.searchsorted(first_E, empty[0], side="right")) - 1
        raise ValueError(
            f"episode {episodes[e].uid}: sequence {empty[0] - first_E[e]} holds no turn, so its tokens belong to no "
            "action. Give every sequence at least one Turn, or leave the sequence out."
        )
    order = np.lexsort((stop, start, seq))
    if (order[1:] < order[:-1]).any():
        turns, episode, index = [turns[i] for i in order.tolist()], episode[order], index[order]
        seq, stop = seq[order], stop[order]
    last_S = np.cumsum(count_S) - 1
    return Rows(turns, episode, index, seq, stop, last_S - count_S + 1, last_S)


def turn_columns(
    episodes: Seq[Episode], rows: Rows, components: Seq[str], agents: Seq[str], dtype: torch.dtype
) -> dict[str, Tensor]:
    turns, n = rows.turns, len(rows.turns)
    agent = {a: i for i, a in enumerate(agents)}
    tags, tools = [t.tag for t in turns], [t.tools for t in turns]
    waited = [sum(call.seconds for call in calls) if calls else 0.0 for calls in tools]
    reward_KC = reward_table([t.reward for t in turns], components, dtype)
    paid = paid_components(components, episodes)
    columns = {
        "seq_K": rows.seq_K,
        "turn_index_K": rows.index_K,
        "state_K": _states(episodes, rows),
        "action_key_K": hashes(map(attrgetter("action_key"), turns), n),
        "agent_K": np.fromiter((agent[t.agent] for t in turns), np.int64, n),
        "flags_K": _flags(episodes, rows),
        "tag_K": hashes(tags, n) if any(tags) else np.zeros(n, np.int64),
        "tools_K": np.fromiter(map(len, tools), np.int64, n),
    }
    if any(tags):
        columns["tag_K"][[not tag for tag in tags]] = 0
    return {name: torch.from_numpy(column) for name, column in columns.items()} | {
        "tool_seconds_K": torch.tensor(waited, dtype=dtype),
        "seconds_K": torch.tensor([t.seconds for t in turns], dtype=dtype),
        "reward_KC": reward_KC,
        "reward_K": torch.where(paid[rows.episode_K] if paid.dim() else paid, reward_KC, 0.0).nansum(-1),
    }


def _states(episodes: Seq[Episode], rows: Rows) -> np.ndarray:
    """A turn without a state gets a unique key, which does not depend on the step or the order of packing."""
    states = [t.state for t in rows.turns]
    out = hashes(states, len(states))
    blank = np.flatnonzero([not s for s in states])
    if len(blank):
        uid = numbers(episodes, "uid")[rows.episode_K[blank]]
        own = key_hash("no state", torch.from_numpy(uid), torch.from_numpy(rows.index_K[blank]))
        assert isinstance(own, Tensor)
        out[blank] = own.numpy()
    return out


def _flags(episodes: Seq[Episode], rows: Rows) -> np.ndarray:
    flags = [t.flags for t in rows.turns]
    for i, some in enumerate(flags):
        if some and (unknown := some - FLAGS.keys()):
            raise ValueError(
                f"episode {episodes[rows.episode_K[i]].uid}: turn {rows.index_K[i]} has the unknown flags "
                f"{sorted(unknown)}, which nothing could act on. Use {', '.join(FLAGS)}."
            )
    return np.fromiter((sum(FLAGS[f] for f in some) if some else 0 for some in flags), np.int64, len(flags))


# ---- rewards of turns and episodes


def reward_table(rewards: Seq[Mapping[str, float]], components: Seq[str], dtype: torch.dtype) -> Tensor:
    """A row for each reward and a column for each component; NaN where the reward has no such component."""
    table = np.full((len(rewards), len(components)), np.nan)
    column = {c: j for j, c in enumerate(components)}
    cells = [(i, column[c], x) for i, reward in enumerate(rewards) if reward for c, x in reward.items()]
    if cells:
        at, of, values = zip(*cells, strict=True)
        table[at, of] = values
    return torch.from_numpy(table).to(dtype)


def paid_components(components: Seq[str], episodes: Seq[Episode]) -> Tensor:
    """Which components of each episode are part of the return: those that no other replaces; one True if none does."""
    if not any(e.replaced for e in episodes):
        return torch.ones((), dtype=torch.bool)
    rows = [[c not in e.replaced for c in components] for e in episodes]
    return torch.tensor(rows, dtype=torch.bool).view(len(episodes), len(components))


def returns(
    columns: Mapping[str, Tensor], rows: Rows, components: Seq[str], agents: Seq[str], episodes: Seq[Episode]
) -> dict[str, Tensor]:
    """Which components count for an episode, the sum of each over the episode and its turns, and returns by agent."""
    episode_K = torch.from_numpy(rows.episode_K)
    own_EC, turns_KC = columns["reward_EC"], columns["reward_KC"]
    there_EC = (~own_EC.isnan()).int().index_add(0, episode_K, (~turns_KC.isnan()).int()) > 0
    own_EC, turns_KC = (torch.where(x.isnan(), 0.0, x) for x in (own_EC, turns_KC))
    paid_EC = there_EC & paid_components(components, episodes)
    own_E = torch.where(paid_EC, own_EC, 0.0).sum(-1)
    return {
        "paid_EC": paid_EC,
        "return_EC": torch.where(paid_EC, own_EC.index_add(0, episode_K, turns_KC), 0.0),
        "reward_EA": _by_agent(columns, episode_K, own_E, len(agents)),
    }


def _by_agent(columns: Mapping[str, Tensor], episode_K: Tensor, own_E: Tensor, agents: int) -> Tensor:
    """The rewards of an agent's turns and of the episode; NaN if it did not act, or if the episode has no return.

    An agent that acted alone has the return of the episode, to the last bit.
    """
    reward_E, reward_K = columns["reward_E"], columns["reward_K"]
    if agents == 1:
        return reward_E[:, None]
    seat_K = episode_K * agents + columns["agent_K"]
    sums = torch.zeros(len(reward_E) * agents, dtype=torch.float64).index_add(0, seat_K, reward_K.double())
    acted = torch.bincount(seat_K, minlength=len(sums)).view(len(reward_E), agents) > 0
    return_EA = (own_E.double()[:, None] + sums.view(len(reward_E), agents)).to(reward_E.dtype)
    return_EA = torch.where((acted.sum(-1) == 1)[:, None], reward_E[:, None], return_EA)
    return torch.where(acted & ~reward_E.isnan()[:, None], return_EA, float("nan"))
