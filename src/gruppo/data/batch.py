"""The packed, padding-free view that learning uses: five levels and the tables of model inputs.

    N decisions ⊂ K turns ⊂ S sequences ⊂ E episodes ⊂ G groups            at_N → M, the input positions of a view
    P pairs of episodes, beside them

A column is a tensor whose name ends in its level (`adv_N`, `reward_E`, `reward_EC`). Rows of a lower level are
neighbours inside their row of the level above, down to S ⊂ E; groups may lie scattered.
"""

import difflib
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gruppo.data import segment
from gruppo.data.episode import Source, Status, Use
from gruppo.data.inputs import Inputs, Ragged, count_up
from gruppo.data.pairs import Pairs, renumbered
from gruppo.data.segment import How, Key

Level = Literal["N", "K", "S", "E", "G", "P"]
_UP = {"N": ("turn_N", "K"), "K": ("seq_K", "S"), "S": ("episode_S", "E"), "E": ("group_E", "G")}
_LEVELS: tuple[Level, ...] = ("N", "K", "S", "E", "G")


def _level(name: str) -> str:
    """The level that a column's name ends in: N of `adv_N`, E of `reward_EC`."""
    return name.rpartition("_")[2][:1] if "_" in name else name


class Columns:
    """The columns that pack makes; others (advantages, needs, notes) are added with `with_columns`."""

    turn_N: Tensor
    uid_N: Tensor
    token_N: Tensor
    logp_gen_N: Tensor
    source_N: Tensor
    version_N: Tensor
    node_N: Tensor
    temperature_N: Tensor
    keep_N: Tensor
    weight_N: Tensor
    seq_K: Tensor
    turn_index_K: Tensor
    state_K: Tensor
    action_key_K: Tensor
    agent_K: Tensor
    flags_K: Tensor
    reward_K: Tensor
    reward_KC: Tensor
    episode_S: Tensor
    changed_S: Tensor
    group_E: Tensor
    uid_E: Tensor
    task_E: Tensor
    reward_E: Tensor
    reward_EC: Tensor
    paid_EC: Tensor  # whether the component is there and not replaced
    return_EC: Tensor  # with those of the turns; 0 where absent or replaced
    status_E: Tensor
    use_E: Tensor
    source_E: Tensor
    replayed_E: Tensor
    final_state_E: Tensor
    domain_E: Tensor
    answer_E: Tensor  # 0: no answer was found
    index_E: Tensor  # of the task in the training set
    uid_G: Tensor
    drawn_G: Tensor
    win_P: Tensor
    lose_P: Tensor
    margin_P: Tensor


@dataclass(frozen=True, eq=False)
class Batch(Columns):
    columns: dict[str, Tensor]
    views: dict[str, Inputs]
    components: tuple[str, ...]  # names of the C reward components
    agents: tuple[str, ...]  # names behind agent_K
    drawn: float  # groups drawn before selection; a minibatch has its share
    allowed: Ragged | None = None  # payload: truncation set of each decision (length 0: everything)
    _cache: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def __getattr__(self, name: str) -> Any:
        columns: dict[str, Tensor] = self.__dict__.get("columns", {})
        if name in columns:
            return columns[name]
        near = difflib.get_close_matches(name, list(columns), 3)
        raise AttributeError(
            f"this batch has no column {name!r}; nearest: {', '.join(near) or 'none'}. What a model knows, such as "
            "logp_ref_N, is there if the occupant declares it in needs(ctx)."
        )

    # sizes and levels

    def size(self, level: Level) -> int:
        probe = {"N": "turn_N", "K": "seq_K", "S": "episode_S", "E": "group_E", "G": "drawn_G", "P": "win_P"}[level]
        return len(self.columns[probe]) if level != "P" or probe in self.columns else 0

    def up(self, low: Level, high: Level) -> Tensor:
        """For each row of `low`, its row of `high`."""
        if "P" in (low, high):
            raise ValueError(
                "a pair has two episodes, so it lies in no level above it. Use batch.pairs.gap(x_E), and mean='token' "
                "for terms of level P."
            )
        if _LEVELS.index(low) > _LEVELS.index(high):
            raise ValueError(
                f"level {high} lies below {low}, so a row of {low} has many rows of {high} and no single one. "
                f"Name the lower of {' ⊂ '.join(_LEVELS)} first; gather goes up, spread goes down."
            )
        name = f"up_{low}{high}"
        if name not in self._cache:
            if low == high:
                index = torch.arange(self.size(low), device=self.device)
            else:
                column, above = _UP[low]
                index = self.columns[column]
                index = index if above == high else self.up(above, high).index_select(0, index)  # type: ignore[arg-type]
            self._cache[name] = index
        return self._cache[name]

    @property
    def device(self) -> torch.device:
        return self.columns["turn_N"].device

    @property
    def inputs(self) -> Inputs:
        return self.views["as_trained"]

    @property
    def at_N(self) -> Tensor:
        return self.inputs.at_N

    @property
    def episode_N(self) -> Tensor:
        return self.up("N", "E")

    @property
    def group_K(self) -> Tensor:
        return self.up("K", "G")

    @property
    def pairs(self) -> Pairs:
        """Which episode is better than which, as credit said (see `data.pairs`)."""
        if "win_P" not in self.columns:
            raise ValueError("this batch has no pairs. Use a credit that gives them, such as method.credit=pair_up.")
        return Pairs(self.win_P, self.lose_P, self.margin_P)

    # masks, one for each purpose

    @property
    def policy_N(self) -> Tensor:
        """Tokens the policy sampled in episodes to learn from: what penalties count unless told."""
        return self._mask("policy_N", lambda: (self.source_N == Source.POLICY) & self.spread(self.learn_E, "E", "N"))

    @property
    def learn_N(self) -> Tensor:
        """`policy_N` that selection kept: what the objective counts unless told."""
        return self._mask("learn_N", lambda: self.policy_N & self.keep_N)

    @property
    def sampled_N(self) -> Tensor:
        """Tokens the policy sampled in episodes that did not fail, open ones included: what credit walks over."""
        return self._mask("sampled_N", lambda: (self.source_N == Source.POLICY) & self.spread(self.alive_E, "E", "N"))

    @property
    def alive_E(self) -> Tensor:
        """Episodes that did not fail and are not put aside. Only these can be learned from, open ones if told."""
        return self._mask("alive_E", lambda: (self.status_E <= Status.INVALID) & self._learned_E())

    @property
    def learn_E(self) -> Tensor:
        """Episodes to learn from: ended, and judged unless they stand apart; an open one when it has ended."""
        known = ~torch.isnan(self.reward_E) | (self.use_E == Use.APART)
        return self._mask("learn_E", lambda: self._ended_E() & self._learned_E() & known)

    @property
    def open_E(self) -> Tensor:
        """Episodes to learn from that go on in a later step: no reward yet, and learned from only if told."""
        return self._mask("open_E", lambda: self.alive_E & (self.status_E == Status.OPEN))

    @property
    def judged_E(self) -> Tensor:
        """Episodes that enter statistics: judged, with a reward, learned from or used as a baseline."""
        return self._mask(
            "judged_E", lambda: self._ended_E() & (self.use_E <= Use.BASELINE) & ~torch.isnan(self.reward_E)
        )

    @property
    def paid_C(self) -> Tensor:
        """Which components of the reward pay anyone who is in statistics."""
        return self._mask("paid_C", lambda: self.paid_EC[self.judged_E].any(0))

    def _learned_E(self) -> Tensor:
        return (self.use_E == Use.LEARN) | (self.use_E == Use.APART)

    def _ended_E(self) -> Tensor:
        return (self.status_E <= Status.INVALID) & (self.status_E != Status.OPEN)

    @property
    def on_policy_N(self) -> Tensor:
        """Sampled by the policy in the context it is learned in: where logp_gen can be compared."""
        return self._mask(
            "on_policy_N",
            lambda: (self.source_N == Source.POLICY) & ~self.spread(self.changed_S, "S", "N"),
        )

    @property
    def newest_N(self) -> Tensor:
        """Sampled by the newest weights of the batch: an open episode that went on holds tokens of older ones, too."""
        return self._mask("newest_N", lambda: self.version_N == (self.version_N.max() if len(self.version_N) else 0))

    def _mask(self, name: str, make: Any) -> Tensor:
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    # up and down

    def key(self, level: Level, *columns: Tensor) -> Key:
        """The partition of the rows of `level` that agree in all `columns` (none: by group)."""
        if any(len(c) != self.size(level) for c in columns):
            raise ValueError(
                f"columns of {[len(c) for c in columns]} rows make no key of level {level}, which has "
                f"{self.size(level)}: rows would slip. Spread each column to {level} first."
            )
        return segment.key_of(*columns) if columns else self.level(level, "G")

    def level(self, low: Level, high: Level) -> Key:
        return Key(self.up(low, high), self.size(high))

    def spread(self, x: Tensor, high: Level, low: Level) -> Tensor:
        """Values of `high`, down to the rows of `low`."""
        return x.index_select(0, self.up(low, high))

    def gather(self, x: Tensor, low: Level, by: Level | Key, how: How = "sum", **options: Any) -> Tensor:
        """Rows of `low`, up to the rows of a level or the parts of a key (see `segment.gather`)."""
        return segment.gather(x, by if isinstance(by, Key) else self.level(low, by), how, **options)

    def _order(self, low: Level, within: Level) -> Tensor | None:
        """The time order of rows inside `within`; None when rows already lie in it.

        Episodes have no common time: inside a group they follow each other, in the order of the batch.
        """
        name = f"order_{low}{within}"
        if low == "N" and within == "E" and self._order("K", "E") is None:
            return None  # decisions lie inside their turns
        if name not in self._cache:
            part, turn = self.up(low, within), self._turn_index(low)
            if within == "G" and low != "G":
                part = torch.argsort(torch.argsort(self.group_E, stable=True))[self.up(low, "E")]
            rank = part * (int(turn.max()) + 1 if len(turn) else 1) + turn
            in_order = bool((rank[1:] >= rank[:-1]).all())
            self._cache[name] = None if in_order else torch.argsort(rank, stable=True)
        return self._cache[name]

    def _turn_index(self, low: Level) -> Tensor:
        """When each row began, in turns of its episode."""
        if low in ("N", "K"):
            return self.spread(self.turn_index_K, "K", low)
        if low == "S":
            return self.gather(self.turn_index_K, "K", "S", "min").to(torch.int64)
        return torch.zeros(self.size(low), dtype=torch.int64, device=self.device)

    def time_order(self, low: Level, within: Level = "E", where: Tensor | None = None) -> Tensor:
        """The rows of `low` (those in `where`) in time, one `within` after the other."""
        order = self._order(low, within)
        if order is None:
            everything = torch.arange(self.size(low), device=self.device)
            return everything if where is None else torch.nonzero(where)[:, 0]
        return order if where is None else order[where[order]]

    def scan(self, b: Tensor, c: Tensor | float, low: Level, within: Level = "E") -> Tensor:
        """y_t = b_t + c_t y_{t+1} over the rows of `low` in time order, inside `within`."""
        return self._in_order(low, within, segment.scan, b, c)

    def lag(self, x: Tensor, k: int, low: Level = "K", within: Level = "E", fill: int | float = 0) -> Tensor:
        """The value k rows earlier in time inside `within` (k < 0: later)."""

        def earlier(y: Tensor, _: Tensor | float, part: Tensor) -> Tensor:
            return segment.lag(y, k, part, fill)

        return self._in_order(low, within, earlier, x, 0.0)

    def _in_order(self, low: Level, within: Level, f: Any, x: Tensor, c: Tensor | float) -> Tensor:
        order, part = self._order(low, within), self.up(low, within)
        if order is None:
            return f(x, c, part)
        y = f(x[order], c[order] if isinstance(c, Tensor) and c.dim() else c, part[order])
        return torch.empty_like(y).index_copy(0, order, y)

    # parts of the batch

    def with_columns(self, **columns: Tensor) -> "Batch":
        """The same rows with columns added or replaced."""
        for name, x in columns.items():
            level = _level(name)
            if level not in (*_LEVELS, "M", "P"):
                raise ValueError(
                    f"column {name!r} does not end in its level, so its rows cannot be cut with the batch. "
                    f"Call it {name}_N, or another of {', '.join(_LEVELS)}."
                )
            size = len(self.inputs.ids_M) if level == "M" else self.size(level)  # type: ignore[arg-type]
            size = len(columns["win_P"]) if level == "P" and "win_P" in columns else size
            if len(x) != size:
                raise ValueError(
                    f"column {name} has {len(x)} rows, level {level} has {size}: rows would slip. "
                    f"Give one value per row of {level}."
                )
        return replace(self, columns={**self.columns, **columns}, _cache={})

    def minibatch(self, rows_E: Tensor) -> "Batch":
        """These episodes as a batch of their own: every level is renumbered, so every count is counted again."""
        start, length = segment.offsets(self.level("S", "E"))
        # A batch that is itself a part may hold its sequences in any order.
        by_episode = torch.argsort(self.episode_S, stable=True)
        rows_S = by_episode[segment.ranges(start[rows_E], length[rows_E])]
        part = self.micro(rows_S)
        groups = self.group_E[rows_E]
        rows_G = torch.unique(groups)
        index_G = torch.full((self.size("G"),), -1, dtype=torch.int64, device=self.device)
        index_G[rows_G] = torch.arange(len(rows_G), device=self.device)
        columns = dict(part.columns)
        for name in columns:
            level = _level(name)
            if level in "EG":
                columns[name] = columns[name][rows_E if level == "E" else rows_G]
        columns["group_E"] = index_G[groups]
        columns["episode_S"] = count_up(length[rows_E])
        columns |= renumbered(self.columns, rows_E, self.size("E"))
        share = self.drawn * len(rows_G) / max(self.size("G"), 1)
        return replace(part, columns=columns, drawn=max(share, len(rows_G)), _cache={})

    def micro(self, rows_S: Tensor) -> "Batch":
        """These sequences, for one forward: rows of N, K and S are cut, episodes, groups and their counts stay.

        The work is that of the rows cut out: what belongs to the whole batch is made once and kept.
        """
        starts = {name: (start[rows_S], length[rows_S]) for name, (start, length) in self._starts().items()}
        rows_N, rows_K = segment.ranges(*starts["N"]), segment.ranges(*starts["K"])
        rows = {"N": rows_N, "K": rows_K, "S": rows_S, "M": segment.ranges(*starts["as_trained"])}
        columns = {n: x[rows[_level(n)]] if _level(n) in rows else x for n, x in self.columns.items()}
        columns["seq_K"], seq_N = count_up(starts["K"][1]), count_up(starts["N"][1])
        moved_S = torch.cumsum(starts["K"][1], 0) - starts["K"][1] - starts["K"][0]
        columns["turn_N"] = self.turn_N[rows_N] + moved_S[seq_N]
        return replace(
            self,
            columns={**columns, "row_N": rows_N, "row_K": rows_K, "row_S": rows_S},
            views={name: view.take(rows_N, seq_N, *starts[name]) for name, view in self.views.items()},
            allowed=None if self.allowed is None else self.allowed.take(rows_N),
            _cache={},
        )

    def _starts(self) -> dict[str, tuple[Tensor, Tensor]]:
        """First row and number of rows of each sequence, in N, K and the inputs of each view."""
        if "starts" not in self._cache:
            keys = {name: Key(view.seq_M, self.size("S")) for name, view in self.views.items()}
            keys |= {"N": self.level("N", "S"), "K": self.level("K", "S")}
            self._cache["starts"] = {name: segment.offsets(key) for name, key in keys.items()}
        return self._cache["starts"]

    def to(self, device: torch.device | str) -> "Batch":
        return replace(
            self,
            columns={k: v.to(device) for k, v in self.columns.items()},
            views={k: v.to(device) for k, v in self.views.items()},
            allowed=None if self.allowed is None else self.allowed.to(device),
            _cache={},
        )
