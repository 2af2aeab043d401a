"""From episodes to a batch, and from a batch to minibatches and micro-batches."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gruppo.data.batch import Batch
from gruppo.data.episode import Episode, Sequence, Source, Use
from gruppo.data.inputs import Inputs, Ragged
from gruppo.data.keyed import key_hash, name_hash, uniform
from gruppo.data.prefix import WORTH, common_with_previous, prefix_nodes
from gruppo.data.rows import returns, reward_table, turn_columns, turn_rows
from gruppo.data.views import VIEWS, as_sampled


@dataclass(frozen=True, eq=False)
class Joined:
    """Sequences one after another, as model inputs: all ids, and the decisions among them."""

    ids: np.ndarray
    length_S: np.ndarray
    here_N: np.ndarray  # place of each decision among the ids
    owner_N: np.ndarray  # its sequence

    @property
    def start_S(self) -> np.ndarray:
        return np.cumsum(self.length_S) - self.length_S

    @property
    def at_N(self) -> np.ndarray:
        """Position of each decision in its sequence."""
        return self.here_N - self.start_S[self.owner_N]


def _trained(sequences: Seq[Sequence], source: np.ndarray) -> Joined:
    """The view `as_trained`, made at once instead of sequence by sequence."""
    length = np.fromiter((len(s.ids) for s in sequences), np.int64, len(sequences))
    here = np.flatnonzero(source != Source.ENV)
    owner = np.repeat(np.arange(len(sequences)), length)[here]
    return Joined(_join([s.ids for s in sequences], np.int64), length, here, owner)


def _viewed(episodes: Seq[Episode], name: str) -> Joined:
    if name not in VIEWS:
        near = difflib.get_close_matches(name, list(VIEWS), 3) or list(VIEWS)
        raise ValueError(f"view {name!r} is unknown, so it has no model inputs. Use {', '.join(near)}.")
    parts = VIEWS[name](episodes)
    length = np.array([len(ids) for ids, _ in parts], np.int64)
    here = [at + s for (_, at), s in zip(parts, np.cumsum(length) - length, strict=True)]
    owner = np.repeat(np.arange(len(parts)), [len(at) for _, at in parts])
    return Joined(_join([ids for ids, _ in parts], np.int64), length, _join(here, np.int64), owner)


def _inputs(view: Joined, name: str, share: float) -> Inputs:
    if len(early := view.owner_N[view.at_N < 1]):
        raise ValueError(
            f"view {name!r}: sequence {early[0]} of the batch decides its very first token, which no position "
            "predicts. Put a given token before it, such as BOS."
        )
    length = view.length_S
    pos = np.arange(int(length.sum())) - np.repeat(view.start_S, length)
    node = prefix_nodes(view.ids, length, share) if share <= 1 else None
    return Inputs(
        ids_M=torch.from_numpy(view.ids),
        pos_M=torch.from_numpy(pos),
        seq_M=torch.from_numpy(np.repeat(np.arange(len(length)), length)),
        parent_M=torch.from_numpy(np.where(pos > 0, np.arange(len(pos)) - 1, -1)),
        at_N=torch.from_numpy(view.here_N),
        node_M=None if node is None else torch.from_numpy(node),
    )


def _join(parts: Seq[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def pack(
    episodes: Seq[Episode],
    *,
    drawn: Mapping[str, int] | None = None,
    views: Seq[str] = ("as_trained",),
    dtype: torch.dtype = torch.float32,
    share: float = WORTH,
) -> Batch:
    """Pack episodes without padding. `drawn` counts the episodes of every group in statistics, before selection.

    A forward computes a common prefix of sequences once if it is at least the fraction `share` of a sequence; above 1,
    never. Levels and rows do not depend on it.
    """
    group_names = list(dict.fromkeys(e.group for e in episodes))
    drawn = drawn or {}
    rows = turn_rows(episodes)
    components = tuple(sorted({c for x in (*episodes, *rows.turns) if x.reward for c in x.reward}))
    agents = tuple(sorted({t.agent for t in rows.turns}))
    originals = [s for e in episodes for s in e.sequences]
    sequences = [s if s.train_as is None else s.trained() for s in originals]
    source = _join([s.source for s in sequences], np.int64)
    trained = _trained(sequences, source)
    shift_S = trained.length_S - np.fromiter((len(s.ids) for s in originals), np.int64, len(originals))
    columns = {
        "turn_N": torch.from_numpy(rows.turn_of(trained.at_N, trained.owner_N, shift_S)),
        **_decisions(episodes, sequences, source, trained, dtype),
        **turn_columns(episodes, rows, components, agents, dtype),
        **_episodes(episodes, group_names, components, dtype),
        "episode_S": _ints(i for i, e in enumerate(episodes) for _ in e.sequences),
        "changed_S": torch.tensor([_changed(s) for s in originals], dtype=torch.bool),
        "uid_G": _ints(map(name_hash, group_names)),
    }
    # What is replayed, or in no statistic, was not drawn for a group of this step.
    fresh_E = (columns["use_E"] <= Use.BASELINE) & ~columns["replayed_E"]
    counts = torch.bincount(columns["group_E"][fresh_E], minlength=len(group_names))
    columns["drawn_G"] = torch.maximum(counts, _ints(drawn.get(g, 0) for g in group_names))
    columns.update(returns(columns, rows, components, agents, episodes))
    columns.update(_notes(episodes, columns, dtype))
    others = [name for name in dict.fromkeys(views) if name != "as_trained"]
    return Batch(
        columns=columns,
        views={
            "as_trained": _inputs(trained, "as_trained", share),
            **{name: _inputs(_viewed(episodes, name), name, share) for name in others},
        },
        components=components,
        agents=agents,
        drawn=len({*drawn, *(g for g, n in zip(group_names, counts.tolist(), strict=True) if n)}),
        allowed=_allowed(sequences),
    )


def _ints(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def _changed(s: Sequence) -> bool:
    """Whether the sequence is trained under a different prompt than it was sampled under."""
    return s.train_as is not None and not np.array_equal(s.train_as, s.ids[: s.prompt_len])


def _decisions(
    episodes: Seq[Episode], sequences: Seq[Sequence], source: np.ndarray, joined: Joined, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Columns of level N, taken from the concatenation of all sequences at once."""
    here, owner = joined.here_N, joined.owner_N
    count = np.bincount(owner, minlength=len(sequences))
    rank = np.arange(len(here)) - np.repeat(np.cumsum(count) - count, count)

    def take(columns: Seq[np.ndarray], kind: type) -> Tensor:
        return torch.from_numpy(_join(columns, kind)[here])

    uid = np.array([e.uid for e in episodes for _ in e.sequences], np.int64)
    which = np.array([i for e in episodes for i in range(len(e.sequences))], np.int64)
    uid_N = key_hash(*(torch.from_numpy(x) for x in (uid[owner], which[owner], rank)))
    assert isinstance(uid_N, Tensor)
    node, warm = uid_N, torch.ones(len(here), dtype=dtype)
    if any(s.node is not None for s in sequences):
        node = take([np.full(len(s.ids), -1) if s.node is None else s.node for s in sequences], np.int64)
    if any(s.temperature is not None for s in sequences):
        heat = [np.ones(len(s.ids), np.float32) if s.temperature is None else s.temperature for s in sequences]
        warm = take(heat, np.float32).to(dtype)
    return {
        "uid_N": uid_N,
        "token_N": torch.from_numpy(joined.ids[here]),
        "logp_gen_N": take([s.logp for s in sequences], np.float32).to(dtype),
        "source_N": torch.from_numpy(source[here]),
        "version_N": take([s.version for s in sequences], np.int64),
        "node_N": torch.where(node == -1, uid_N, node),
        "temperature_N": warm,
        "keep_N": torch.ones(len(here), dtype=torch.bool),
        "weight_N": torch.ones(len(here), dtype=dtype),
    }


def _episodes(episodes: Seq[Episode], groups: Seq[str], components: Seq[str], dtype: torch.dtype) -> dict[str, Tensor]:
    index = {g: i for i, g in enumerate(groups)}
    seen: set[int] = set()
    for e in episodes:
        if e.uid in seen:
            raise ValueError(
                f"episode uid {e.uid} appears twice: rows would share random numbers. Give each its own uid."
            )
        seen.add(e.uid)
    return {
        "group_E": _ints(index[e.group] for e in episodes),
        "uid_E": _ints(e.uid for e in episodes),
        "task_E": _ints(name_hash(e.task) for e in episodes),
        "reward_E": torch.tensor([e.total for e in episodes], dtype=dtype),
        "reward_EC": reward_table([e.reward for e in episodes], components, dtype),
        "status_E": _ints(int(e.status) for e in episodes),
        "use_E": _ints(int(e.use) for e in episodes),
        "source_E": _ints(int(e.source) for e in episodes),
        "replayed_E": torch.tensor([e.replayed for e in episodes], dtype=torch.bool),
        "final_state_E": _ints(name_hash(e.final_state) for e in episodes),
        "domain_E": _ints(name_hash(e.domain) for e in episodes),
        "answer_E": _ints(name_hash(e.answer) if e.answer else 0 for e in episodes),
        "index_E": _ints(e.index for e in episodes),
    }


def _notes(episodes: Seq[Episode], columns: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Notes become columns `note_<name>_<LEVEL>`; NaN where an episode has none.

    Values of level K are in the order of `Episode.turns` (time); those of level N by sequence, then by position.
    """
    levels = _note_levels(episodes)
    rows: dict[str, list[int]] = {
        "E": [1] * len(episodes),
        "S": [len(e.sequences) for e in episodes],
        "K": [len(e.turns) for e in episodes],
    }
    if "N" in levels.values():
        rows["N"] = [sum(len(as_sampled(s)[1]) for s in e.sequences) for e in episodes]
    out: dict[str, Tensor] = {}
    for name, level in levels.items():
        parts: list[np.ndarray] = []
        for e, n in zip(episodes, rows[level], strict=True):
            note = e.notes.get(name)
            values = np.full(n, np.nan, np.float32) if note is None else np.asarray(note.values, np.float32).reshape(-1)
            if len(values) != n:
                raise ValueError(
                    f"note {name!r} of episode {e.uid} has {len(values)} values, its level {level} has {n} rows: "
                    "values would be misaligned. Give one value per row."
                )
            parts.append(values)
        column = torch.from_numpy(_join(parts, np.float32)).to(dtype)
        if level == "K":  # from the order of turns to the order of rows
            count = _ints(rows["K"])
            column = column[(count.cumsum(0) - count).repeat_interleave(count) + columns["turn_index_K"]]
        out[f"note_{name}_{level}"] = column
    return out


def _note_levels(episodes: Seq[Episode]) -> dict[str, str]:
    levels: dict[str, str] = {}
    for e in episodes:
        for name, note in e.notes.items():
            known = levels.setdefault(name, note.level)
            if note.level not in ("N", "K", "S", "E") or known != note.level:
                raise ValueError(
                    f"note {name!r} of episode {e.uid} has level {note.level!r}, elsewhere {known!r}: its values "
                    "would be on the wrong rows. Use one of N, K, S, E, the same in every episode."
                )
    return levels


def _allowed(sequences: Seq[Sequence]) -> Ragged | None:
    if all(s.allowed is None for s in sequences):
        return None
    empty = np.zeros(0, np.int64)
    sets = [(s.allowed or {}).get(int(p), empty) for s in sequences for p in np.flatnonzero(s.source != Source.ENV)]
    return Ragged(_ints(map(len, sets)), torch.from_numpy(_join(sets, np.int64)))


def minibatches(batch: Batch, count: int, *key: int | str) -> list[Batch]:
    """Split into `count` batches of whole groups, shuffled by a key; each counts its own rows."""
    if count <= 1:
        return [batch]
    noise_G = uniform("minibatch", *key, batch.uid_G)
    assert isinstance(noise_G, Tensor)
    rank_G = torch.argsort(torch.argsort(noise_G))
    part_E = (rank_G * count // max(len(rank_G), 1))[batch.group_E]
    if batch.size("P") and bool((part_E[batch.pairs.win_P] != part_E[batch.pairs.lose_P]).any()):
        raise ValueError(
            f"minibatches={count} would part episodes of different groups that are a pair, and lose the pair. "
            "Use one minibatch, or pairs inside a group."
        )
    rows = [torch.nonzero(part_E == i)[:, 0] for i in range(count)]
    return [batch.minibatch(r) for r in rows if len(r)]


def micro_batches(batch: Batch, tokens: int) -> Iterator[Batch]:
    """Split into forwards of at most `tokens` rows in any view (at least one sequence), longest first."""
    return (batch.micro(rows_S) for rows_S in micro_rows(batch, tokens)[0])


def micro_rows(batch: Batch, tokens: int, shares: int = 1) -> list[list[Tensor]]:
    """The sequences of each micro-batch, in `shares` of about equal cost; a share may be empty.

    A prefix that a forward shares counts once. Sequences with a common prefix follow each other, so that few splits
    separate them; where one does, both sides compute the prefix.
    """
    order, length, fresh = _forward_order(batch)
    share = (np.cumsum(fresh) - 1) * shares // max(sum(fresh), 1)
    cut, used, start = [0], 0, 0
    for i, (n, new) in enumerate(zip(length, fresh, strict=True)):
        if i > start and (used + new > tokens or share[i] != share[i - 1]):
            cut.append(i)
            used, start = 0, i
        used += n if i == start else new
    cut.append(len(order))
    out: list[list[Tensor]] = [[] for _ in range(shares)]
    for a, b in pairwise(cut):
        # Any order will do inside a forward; that of the batch makes sums reproducible.
        mine = out[int(share[a]) if len(order) else 0]
        mine.append(torch.from_numpy(np.sort(order[a:b])).to(batch.device))
    return out


def _forward_order(batch: Batch) -> tuple[np.ndarray, list[int], list[int]]:
    """The order of sequences, the rows of each, and how many of them the previous sequence does not share.

    Prefix trees are ordered by their longest sequence, longest first, and each is traversed depth first. A sequence
    that shares nothing is a tree of its own.
    """
    size = batch.size("S")
    counts = {name: torch.bincount(v.seq_M, minlength=size).cpu().numpy() for name, v in batch.views.items()}
    longest = np.stack(list(counts.values())).max(0)
    starts = {name: np.cumsum(n) - n for name, n in counts.items()}
    nodes = {name: v.node_M.cpu().numpy() for name, v in batch.views.items() if v.node_M is not None}
    order = np.argsort(-longest, kind="stable")
    if "as_trained" in nodes and size:
        start, length, node = starts["as_trained"], counts["as_trained"], nodes["as_trained"]
        by_node = np.argsort(node[start + length - 1], kind="stable")
        is_root = common_with_previous(node, start[by_node], length[by_node]) == 0
        tree, roots = np.cumsum(is_root) - 1, np.flatnonzero(is_root)
        most, first = np.maximum.reduceat(longest[by_node], roots)[tree], np.minimum.reduceat(by_node, roots)[tree]
        order = by_node[np.lexsort((np.arange(size), first, -most))]
    fresh = [
        n[order] - (common_with_previous(nodes[v], starts[v][order], n[order]) if v in nodes else 0)
        for v, n in counts.items()
    ]
    return order, longest[order].tolist(), np.stack(fresh).max(0).tolist()
