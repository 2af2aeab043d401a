"""The packed batch that is trained on, without padding: five levels, and the model inputs of each view.

    N decisions ⊂ K turns ⊂ S sequences ⊂ E episodes ⊂ G groups            at_N → M, the input positions of a view
    P pairs of episodes, outside this order

A column is a tensor whose name ends in its level (`adv_N`, `reward_E`, `reward_EC`). The rows of a turn, a sequence
or an episode are contiguous; the episodes of a group need not be.
"""

import difflib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gruppo.data import segment
from gruppo.data.columns import Columns
from gruppo.data.episode import Source, Status, Use
from gruppo.data.inputs import Inputs, Ragged, count_up
from gruppo.data.levels import LEVELS, PROBE, UP, Level, level_of, refuse_level, refuse_mask, refuse_rows, rows_of
from gruppo.data.pairs import Pairs, renumbered
from gruppo.data.segment import How, Key


@dataclass(frozen=True, eq=False)
class Batch(Columns):
    columns: dict[str, Tensor]
    views: dict[str, Inputs]
    components: tuple[str, ...]  # names of the C reward components
    agents: tuple[str, ...]  # names that agent_K indexes
    drawn: float  # groups drawn in this step, before selection; a minibatch has its share
    allowed: Ragged | None = None  # the tokens each decision was sampled from, if truncated (length 0: all)
    _cache: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{level}={self.size(level)}" for level in LEVELS)
        return f"Batch({sizes}; columns {', '.join(sorted(self.columns))})"

    def __getattr__(self, name: str) -> Any:
        columns: dict[str, Tensor] = self.__dict__.get("columns", {})
        if name in columns:
            return columns[name]
        near = difflib.get_close_matches(name, list(columns), 3)
        raise AttributeError(
            f"this batch has no column {name!r}; nearest: {', '.join(near) or 'none'}. To read a model, such as for "
            "logp_ref_N, declare it in the occupant's needs(ctx)."
        )

    # sizes and levels

    def size(self, level: Level) -> int:
        refuse_level(level)
        probe = PROBE[level]
        return len(self.columns[probe]) if level != "P" or probe in self.columns else 0

    def up(self, low: Level, high: Level) -> Tensor:
        """For each row of `low`, its row of `high`."""
        refuse_level(low)
        refuse_level(high)
        if "P" in (low, high):
            raise ValueError(
                "a pair has two episodes, so it lies in no level above it. Use batch.pairs.gap(x_E), and mean='token' "
                "for terms at level P."
            )
        if LEVELS.index(low) > LEVELS.index(high):
            raise ValueError(
                f"level {high} lies below {low}, so a row of {low} has many rows of {high}, not one. "
                f"Name the lower level first ({' ⊂ '.join(LEVELS)}); gather goes up, spread goes down."
            )
        name = f"up_{low}{high}"
        if name not in self._cache:
            if low == high:
                index = torch.arange(self.size(low), device=self.device)
            else:
                column, above = UP[low]
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

    @cached_property
    def seats(self) -> Key:
        """The turns of each agent in each episode: part e · A + a for agent a of A in episode e."""
        return Key(self.up("K", "E") * len(self.agents) + self.agent_K, self.size("E") * len(self.agents))

    @cached_property
    def speaks_A(self) -> Tensor:
        """Agents that the policy speaks for: it sampled a token of theirs. All agents, if it sampled none."""
        mine_K = self.gather(self.source_N == Source.POLICY, "N", "K", "any")
        mine_A = segment.gather(mine_K, Key(self.agent_K, len(self.agents)), "any")
        return mine_A if bool(mine_A.any()) else torch.ones_like(mine_A)

    @property
    def pairs(self) -> Pairs:
        """The preference pairs made by credit (see `data.pairs`)."""
        if "win_P" not in self.columns:
            raise ValueError("this batch has no pairs. Use a credit that makes them, such as method.credit=pair_up.")
        return Pairs(self.win_P, self.lose_P, self.margin_P, self.size("E"))

    # masks, one for each purpose

    @cached_property
    def policy_N(self) -> Tensor:
        """Tokens sampled by the policy in episodes to learn from: what penalties count by default."""
        return (self.source_N == Source.POLICY) & self.spread(self.learn_E, "E", "N")

    @cached_property
    def learn_N(self) -> Tensor:
        """`policy_N` that selection kept: what objectives count by default."""
        return self.policy_N & self.keep_N

    @cached_property
    def sampled_N(self) -> Tensor:
        """Tokens sampled by the policy in episodes that did not fail, including open ones: what credit covers."""
        return (self.source_N == Source.POLICY) & self.spread(self.alive_E, "E", "N")

    @cached_property
    def alive_E(self) -> Tensor:
        """Episodes of use LEARN or APART that did not fail. Nothing else is learned from; open ones only on request."""
        return (self.status_E <= Status.INVALID) & self._learned_E

    @cached_property
    def learn_E(self) -> Tensor:
        """Episodes to learn from: ended, of use LEARN or APART, and with a reward unless APART."""
        return self._ended_E & self._learned_E & (~torch.isnan(self.reward_E) | (self.use_E == Use.APART))

    @cached_property
    def open_E(self) -> Tensor:
        """Those of `alive_E` that continue in a later step and have no reward yet."""
        return self.alive_E & (self.status_E == Status.OPEN)

    @cached_property
    def judged_E(self) -> Tensor:
        """Episodes that enter statistics: ended, with a reward, of use LEARN or BASELINE."""
        return self._ended_E & (self.use_E <= Use.BASELINE) & ~torch.isnan(self.reward_E)

    @cached_property
    def drawn_now_G(self) -> Tensor:
        """Groups with an episode that this step drew for its statistics: none that only the replay or experts made."""
        return self.gather((self.use_E <= Use.BASELINE) & ~self.replayed_E, "E", "G", "any")

    @cached_property
    def paid_C(self) -> Tensor:
        """Reward components that count for at least one episode in statistics."""
        return self.paid_EC[self.judged_E].any(0)

    @property
    def _learned_E(self) -> Tensor:
        return (self.use_E == Use.LEARN) | (self.use_E == Use.APART)

    @property
    def _ended_E(self) -> Tensor:
        return (self.status_E <= Status.INVALID) & (self.status_E != Status.OPEN)

    @cached_property
    def on_policy_N(self) -> Tensor:
        """Sampled by the policy under the context it is trained in: where logp_gen is comparable."""
        return (self.source_N == Source.POLICY) & ~self.spread(self.changed_S, "S", "N")

    @cached_property
    def newest_N(self) -> Tensor:
        """Sampled by the newest weights in the batch. A continued episode also has tokens of older weights."""
        return self.version_N == (self.version_N.max() if len(self.version_N) else 0)

    # up and down

    def key(self, level: Level, *columns: Tensor) -> Key:
        """The partition of the rows of `level` by equal values in all `columns` (none: by group)."""
        if any(rows_of(c) != self.size(level) for c in columns):
            raise ValueError(
                f"columns of {[rows_of(c) for c in columns]} rows make no key of level {level}, which has "
                f"{self.size(level)}: rows would be misaligned. Spread each column to {level} first."
            )
        return segment.key_of(*columns) if columns else self.level(level, "G")

    def level(self, low: Level, high: Level) -> Key:
        return Key(self.up(low, high), self.size(high))

    def spread(self, x: Tensor, high: Level, low: Level) -> Tensor:
        """Values of level `high` on the rows of level `low`."""
        index = self.up(low, high)
        self._refuse_rows("x", x, high)
        return x.index_select(0, index)

    def gather(self, x: Tensor, low: Level, by: Level | Key, how: How = "sum", **options: Any) -> Tensor:
        """Reduce rows of `low` to the rows of a level or the parts of a key (see `segment.gather`)."""
        parts = self._parts(low, by)
        self._refuse_rows("x", x, low)
        if options.get("where") is not None:
            refuse_mask("where", options["where"], f"level {low}", self.size(low))
        return segment.gather(x, parts, how, **options)

    def _refuse_rows(self, what: str, x: Tensor, level: Level) -> None:
        """Refuses a tensor that has not the rows of the level, and names a level that has as many."""
        size, rows = self.size(level), rows_of(x)
        if rows != size:
            others = ", ".join(other for other in LEVELS if self.size(other) == rows)
            hint = f" (With {rows} rows: {others}.)" if others else ""
            refuse_rows(what, x, f"level {level}", size, f"Give one value per row of {level}.{hint}")

    def _parts(self, low: Level, within: Level | Key) -> Key:
        if not isinstance(within, Key):
            return self.level(low, within)
        if len(within.index) != self.size(low):
            raise ValueError(
                f"a key of {len(within.index)} rows does not divide level {low}, which has {self.size(low)}: rows "
                f"would be misaligned. Make the key from columns of level {low}."
            )
        return within

    def _order(self, low: Level, within: Level | Key) -> Tensor | None:
        """The permutation that sorts rows by time inside `within`; None if they are sorted already.

        Episodes have no common time: those of a group or of a part follow each other in the order of the batch.
        """
        if isinstance(within, Key):
            return self._order_of_parts(low, within)
        name = f"order_{low}{within}"
        if low == "N" and within == "E" and self._order("K", "E") is None:
            return None  # the decisions of a turn are contiguous
        if name not in self._cache:
            part, turn = self.up(low, within), self._turn_index(low)
            if within == "G" and low != "G":
                part = torch.argsort(torch.argsort(self.group_E, stable=True))[self.up(low, "E")]
            rank = part * (int(turn.max()) + 1 if len(turn) else 1) + turn
            in_order = bool((rank[1:] >= rank[:-1]).all())
            self._cache[name] = None if in_order else torch.argsort(rank, stable=True)
        return self._cache[name]

    def _order_of_parts(self, low: Level, key: Key) -> Tensor | None:
        part = self._parts(low, key).index
        by_time = None if low == "G" else self._order(low, "E")
        part = part if by_time is None else part[by_time]
        if bool((part[1:] >= part[:-1]).all()):
            return by_time
        by_part = torch.argsort(part, stable=True)
        return by_part if by_time is None else by_time[by_part]

    def _turn_index(self, low: Level) -> Tensor:
        """The turn of its episode in which each row begins."""
        if low in ("N", "K"):
            return self.spread(self.turn_index_K, "K", low)
        if low == "S":
            return self.gather(self.turn_index_K, "K", "S", "min").to(torch.int64)
        return torch.zeros(self.size(low), dtype=torch.int64, device=self.device)

    def time_order(self, low: Level, within: Level | Key = "E", where: Tensor | None = None) -> Tensor:
        """The rows of `low` (those in `where`) in time order, one `within` after another."""
        order = self._order(low, within)
        if where is not None:
            refuse_mask("where", where, f"level {low}", self.size(low))
        if order is None:
            everything = torch.arange(self.size(low), device=self.device)
            return everything if where is None else torch.nonzero(where)[:, 0]
        return order if where is None else order[where[order]]

    def scan(self, b: Tensor, c: Tensor | float, low: Level, within: Level | Key = "E") -> Tensor:
        """y_t = b_t + c_t y_{t+1} over the rows of `low` in time order, inside each part of `within`."""
        return self._in_order(low, within, segment.scan, b, c)

    def lag(self, x: Tensor, k: int, low: Level = "K", within: Level | Key = "E", fill: int | float = 0) -> Tensor:
        """The value k rows earlier in time inside the same part of `within` (k < 0: later)."""

        def earlier(y: Tensor, _: Tensor | float, part: Tensor) -> Tensor:
            return segment.lag(y, k, part, fill)

        return self._in_order(low, within, earlier, x, 0.0)

    def _in_order(self, low: Level, within: Level | Key, f: Any, x: Tensor, c: Tensor | float) -> Tensor:
        order, part = self._order(low, within), self._parts(low, within).index
        self._refuse_rows("x", x, low)
        if isinstance(c, Tensor) and c.dim():
            self._refuse_rows("c", c, low)
        if order is None:
            return f(x, c, part)
        y = f(x[order], c[order] if isinstance(c, Tensor) and c.dim() else c, part[order])
        return torch.empty_like(y).index_copy(0, order, y)

    # parts of the batch

    def with_columns(self, **columns: Tensor) -> "Batch":
        """The same batch with columns added or replaced."""
        for name, x in columns.items():
            level = level_of(name)
            if level not in (*LEVELS, "M", "P"):
                raise ValueError(
                    f"column {name!r} does not end in its level, so its rows cannot be split with the batch. "
                    f"Call it {name}_N, or use another of {', '.join(LEVELS)}."
                )
            size = len(self.inputs.ids_M) if level == "M" else self.size(level)  # type: ignore[arg-type]
            size = len(columns["win_P"]) if level == "P" and "win_P" in columns else size
            refuse_rows(f"column {name}", x, f"level {level}", size, f"Give one value per row of {level}.")
        return replace(self, columns={**self.columns, **columns}, _cache={})

    def minibatch(self, rows_E: Tensor) -> "Batch":
        """These episodes as a batch of their own: every level is renumbered, and counts are those of the part."""
        start, length = segment.offsets(self.level("S", "E"))
        # The sequences of a batch that is itself a part may be in any order.
        by_episode = torch.argsort(self.episode_S, stable=True)
        rows_S = by_episode[segment.ranges(start[rows_E], length[rows_E])]
        part = self.micro(rows_S)
        groups = self.group_E[rows_E]
        rows_G = torch.unique(groups)
        index_G = torch.full((self.size("G"),), -1, dtype=torch.int64, device=self.device)
        index_G[rows_G] = torch.arange(len(rows_G), device=self.device)
        columns = dict(part.columns)
        for name in columns:
            level = level_of(name)
            if level in "EG":
                columns[name] = columns[name][rows_E if level == "E" else rows_G]
        columns["group_E"] = index_G[groups]
        columns["episode_S"] = count_up(length[rows_E])
        columns |= renumbered(self.columns, rows_E, self.size("E"))
        now_G = self.drawn_now_G
        if not bool(now_G.any()):
            now_G = torch.ones_like(now_G)
        share = self.drawn * int(now_G[rows_G].sum()) / max(int(now_G.sum()), 1)
        return replace(part, columns=columns, drawn=share, _cache={})

    def micro(self, rows_S: Tensor) -> "Batch":
        """These sequences, for one forward: only N, K and S are reduced; all episodes and groups stay.

        The cost is proportional to the rows taken: offsets of the whole batch are computed once and cached.
        """
        starts = {name: (start[rows_S], length[rows_S]) for name, (start, length) in self._starts.items()}
        rows_N, rows_K = segment.ranges(*starts["N"]), segment.ranges(*starts["K"])
        rows = {"N": rows_N, "K": rows_K, "S": rows_S, "M": segment.ranges(*starts["as_trained"])}
        columns = {n: x[rows[level_of(n)]] if level_of(n) in rows else x for n, x in self.columns.items()}
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

    @cached_property
    def _starts(self) -> dict[str, tuple[Tensor, Tensor]]:
        """First row and number of rows of each sequence: in N, in K and in the inputs of each view."""
        keys = {name: Key(view.seq_M, self.size("S")) for name, view in self.views.items()}
        keys |= {"N": self.level("N", "S"), "K": self.level("K", "S")}
        return {name: segment.offsets(key) for name, key in keys.items()}

    def to(self, device: torch.device | str) -> "Batch":
        return replace(
            self,
            columns={k: v.to(device) for k, v in self.columns.items()},
            views={k: v.to(device) for k, v in self.views.items()},
            allowed=None if self.allowed is None else self.allowed.to(device),
            _cache={},
        )
