"""From episodes to a batch, and from a batch to minibatches and micro-batches."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gruppo.data.batch import Batch
from gruppo.data.episode import FLAGS, Episode, Sequence, Source, Turn
from gruppo.data.inputs import Inputs, Ragged
from gruppo.data.keyed import key_hash, name_hash, uniform
from gruppo.data.prefix import WORTH, common_with_previous, prefix_nodes
from gruppo.data.views import VIEWS, as_sampled


def _inputs(episodes: Seq[Episode], name: str, share: float) -> Inputs:
    if name not in VIEWS:
        near = difflib.get_close_matches(name, list(VIEWS), 3) or list(VIEWS)
        raise ValueError(f"view {name!r} is unknown, so it has no model inputs. Use {', '.join(near)}.")
    parts = VIEWS[name](episodes)
    for i, (_, at) in enumerate(parts):
        if len(at) and at[0] < 1:  # positions increase
            raise ValueError(
                f"view {name!r}: sequence {i} of the batch decides its very first token, which no position "
                "predicts. Put a given token before it, such as BOS."
            )
    length = np.array([len(ids) for ids, _ in parts], np.int64)
    start = np.cumsum(length) - length
    pos = np.arange(int(length.sum())) - np.repeat(start, length)
    parent = np.where(pos > 0, np.arange(len(pos)) - 1, -1)
    at = [at + s for (_, at), s in zip(parts, start, strict=True)]
    ids = _join([ids for ids, _ in parts], np.int64)
    node = prefix_nodes(ids, length, share) if share <= 1 else None
    return Inputs(
        ids_M=torch.from_numpy(ids),
        pos_M=torch.from_numpy(pos),
        seq_M=torch.from_numpy(np.repeat(np.arange(len(parts)), length)),
        parent_M=torch.from_numpy(parent),
        at_N=torch.from_numpy(_join(at, np.int64)),
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
    """Pack episodes without padding. `drawn` counts the episodes of every group before selection.

    A forward computes a common prefix of sequences once if it is at least the fraction `share` of a sequence; above 1,
    never. Levels and rows do not depend on it.
    """
    group_names = list(dict.fromkeys(e.group for e in episodes))
    drawn = drawn or {}
    components = tuple(
        sorted({c for e in episodes for c in e.reward} | {c for e in episodes for t in e.turns for c in t.reward})
    )
    agents = tuple(sorted({t.agent for e in episodes for t in e.turns}))
    sequences = [s.trained() for e in episodes for s in e.sequences]
    originals = [s for e in episodes for s in e.sequences]
    columns = {
        **_decisions(episodes, sequences, dtype),
        **_turns(episodes, components, agents, dtype),
        **_episodes(episodes, group_names, components, dtype),
        "episode_S": _ints(i for i, e in enumerate(episodes) for _ in e.sequences),
        "changed_S": torch.tensor([_changed(s) for s in originals], dtype=torch.bool),
        "uid_G": _ints(map(name_hash, group_names)),
    }
    counts = torch.bincount(columns["group_E"], minlength=len(group_names))
    columns["drawn_G"] = torch.maximum(counts, _ints(drawn.get(g, 0) for g in group_names))
    columns.update(_returns(columns, components, episodes))
    columns.update(_notes(episodes, columns, dtype))
    return Batch(
        columns=columns,
        views={name: _inputs(episodes, name, share) for name in dict.fromkeys(("as_trained", *views))},
        components=components,
        agents=agents,
        drawn=len(set(drawn) | set(group_names)),
        allowed=_allowed(sequences),
    )


def _ints(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def _changed(s: Sequence) -> bool:
    """Whether the sequence is trained under a different prompt than it was sampled under."""
    return s.train_as is not None and not np.array_equal(s.train_as, s.ids[: s.prompt_len])


def _decisions(episodes: Seq[Episode], sequences: Seq[Sequence], dtype: torch.dtype) -> dict[str, Tensor]:
    """Columns of level N, taken from the concatenation of all sequences at once."""
    length = np.array([len(s.ids) for s in sequences], np.int64)
    source = _join([s.source for s in sequences], np.int64)
    here = np.flatnonzero(source != Source.ENV)
    owner = np.repeat(np.arange(len(sequences)), length)[here]
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
    at = here - (np.cumsum(length) - length)[owner]
    return {
        "turn_N": torch.from_numpy(_turn_of(episodes, at, count)),
        "uid_N": uid_N,
        "token_N": take([s.ids for s in sequences], np.int64),
        "logp_gen_N": take([s.logp for s in sequences], np.float32).to(dtype),
        "source_N": torch.from_numpy(source[here]),
        "version_N": take([s.version for s in sequences], np.int64),
        "node_N": torch.where(node == -1, uid_N, node),
        "temperature_N": warm,
        "keep_N": torch.ones(len(here), dtype=torch.bool),
        "weight_N": torch.ones(len(here), dtype=dtype),
    }


def _by_sequence(e: Episode) -> list[list[tuple[int, Turn]]]:
    """The turns of each sequence in the order of their rows, with their index in time."""
    turns: list[list[tuple[int, Turn]]] = [[] for _ in e.sequences]
    for i, t in enumerate(e.turns):
        if not 0 <= t.sequence < len(turns):
            raise ValueError(
                f"episode {e.uid}: turn {i} says sequence={t.sequence}, but there are {len(turns)}, so its tokens "
                "cannot be found. Count sequences from 0."
            )
        turns[t.sequence].append((i, t))
    for i, mine in enumerate(turns):
        if not mine:
            raise ValueError(
                f"episode {e.uid}: sequence {i} holds no turn, so its tokens belong to no action. "
                "Give every sequence at least one Turn, or leave the sequence out."
            )
        mine.sort(key=lambda it: (it[1].start, it[1].stop))
    return turns


def _turn_of(episodes: Seq[Episode], at: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The turn of each decision: the first of its sequence that ends after it (given tokens belong to the next)."""
    if all(len(e.turns) == len(e.sequences) == 1 for e in episodes):
        return np.repeat(np.arange(len(count)), count)
    out: list[np.ndarray] = []
    rows = iter(np.split(at, np.cumsum(count)[:-1]))
    first = 0
    for e in episodes:
        for s, mine in zip(e.sequences, _by_sequence(e), strict=True):
            shift = 0 if s.train_as is None else len(s.train_as) - s.prompt_len
            stops = np.array([t.stop + shift for _, t in mine])
            out.append(first + np.minimum(np.searchsorted(stops, next(rows), side="right"), len(mine) - 1))
            first += len(mine)
    return _join(out, np.int64)


def _state(e: Episode, i: int) -> int:
    """A turn without a state gets a unique key, which does not depend on the step or the order of packing."""
    state = e.turns[i].state
    key = name_hash(state) if state else key_hash("no state", e.uid, i)
    assert isinstance(key, int)
    return key


def _flags(e: Episode, i: int) -> int:
    unknown = e.turns[i].flags - FLAGS.keys()
    if unknown:
        raise ValueError(
            f"episode {e.uid}: turn {i} has the unknown flags {sorted(unknown)}, which nothing could act on. "
            f"Use {', '.join(FLAGS)}."
        )
    return sum(FLAGS[f] for f in e.turns[i].flags)


def _turns(episodes: Seq[Episode], components: Seq[str], agents: Seq[str], dtype: torch.dtype) -> dict[str, Tensor]:
    index = {a: i for i, a in enumerate(agents)}
    sequences = [(e, mine) for e in episodes for mine in _by_sequence(e)]
    rows = [(e, i, t) for e, mine in sequences for i, t in mine]
    reward_KC = _rewards([t.reward for _, _, t in rows], components, dtype)
    return {
        "seq_K": _ints(s for s, (_, mine) in enumerate(sequences) for _ in mine),
        "turn_index_K": _ints(i for _, i, _ in rows),
        "state_K": _ints(_state(e, i) for e, i, _ in rows),
        "action_key_K": _ints(name_hash(t.action_key) for _, _, t in rows),
        "agent_K": _ints(index[t.agent] for _, _, t in rows),
        "flags_K": _ints(_flags(e, i) for e, i, _ in rows),
        "reward_KC": reward_KC,
        "reward_K": torch.where(_paid(components, [e for e, _, _ in rows]), reward_KC, 0.0).nansum(-1),
    }


def _rewards(rewards: Seq[Mapping[str, float]], components: Seq[str], dtype: torch.dtype) -> Tensor:
    """A row for each reward and a column for each component; NaN where the reward has no such component."""
    table = np.array([[r.get(c, np.nan) for c in components] for r in rewards], np.float64)
    return torch.from_numpy(table.reshape(len(rewards), len(components))).to(dtype)


def _paid(components: Seq[str], owners: Seq[Episode]) -> Tensor:
    """Which components of each row are part of the return: those that no other component replaces."""
    if not any(e.replaced for e in owners):
        return torch.ones((), dtype=torch.bool)
    rows = [[c not in e.replaced for c in components] for e in owners]
    return torch.tensor(rows, dtype=torch.bool).view(len(owners), len(components))


def _returns(columns: Mapping[str, Tensor], components: Seq[str], episodes: Seq[Episode]) -> dict[str, Tensor]:
    """Which components count for an episode, and the sum of each over the episode and its turns."""
    episode_K = columns["episode_S"][columns["seq_K"]]
    own_EC, turns_KC = columns["reward_EC"], columns["reward_KC"]
    there_EC = (~own_EC.isnan()).int().index_add(0, episode_K, (~turns_KC.isnan()).int()) > 0
    own_EC, turns_KC = (torch.where(x.isnan(), 0.0, x) for x in (own_EC, turns_KC))
    paid_EC = there_EC & _paid(components, episodes)
    return {"paid_EC": paid_EC, "return_EC": torch.where(paid_EC, own_EC.index_add(0, episode_K, turns_KC), 0.0)}


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
        "reward_EC": _rewards([e.reward for e in episodes], components, dtype),
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
