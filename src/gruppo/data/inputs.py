"""Model inputs: the token positions of one view, and ragged lists of ids."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import segment


def count_up(length: Tensor) -> Tensor:
    """0 repeated length_0 times, 1 repeated length_1 times, and so on."""
    return torch.repeat_interleave(torch.arange(len(length), device=length.device), length)


@dataclass(frozen=True)
class Ragged:
    """A list of ids for each row: values of row i are values[start_i : start_i + length_i]."""

    length: Tensor
    values: Tensor

    def take(self, rows: Tensor) -> "Ragged":
        start = torch.cumsum(self.length, 0) - self.length
        return Ragged(self.length[rows], self.values[segment.ranges(start[rows], self.length[rows])])

    def to(self, device: torch.device | str) -> "Ragged":
        return Ragged(self.length.to(device), self.values.to(device))


@dataclass(frozen=True)
class Inputs:
    """The model inputs of one view. `parent_M` is the previous position; -1 starts a sequence.

    In a batch every sequence has its own rows. Models are given the `tree`, with one row for each shared prefix token.
    """

    ids_M: Tensor
    pos_M: Tensor
    seq_M: Tensor
    parent_M: Tensor
    at_N: Tensor  # the position of each decision, which is predicted from parent_M[at_N]
    row_M: Tensor | None = None  # of a micro-batch: its positions in the full batch
    node_M: Tensor | None = None  # equal where token and prefix are; increases along a sequence. None: nothing shared

    def take(self, rows_N: Tensor, seq_N: Tensor, start_S: Tensor, length_S: Tensor) -> "Inputs":
        """The sequences that begin at `start_S`, one after another, and their decisions."""
        rows_M = segment.ranges(start_S, length_S)
        seq_M = count_up(length_S)
        moved_S = torch.cumsum(length_S, 0) - length_S - start_S
        parent = self.parent_M[rows_M]
        return Inputs(
            ids_M=self.ids_M[rows_M],
            pos_M=self.pos_M[rows_M],
            seq_M=seq_M,
            parent_M=torch.where(parent >= 0, parent + moved_S[seq_M], parent),
            at_N=self.at_N[rows_N] + moved_S[seq_N],
            row_M=rows_M,
            node_M=None if self.node_M is None else self.node_M[rows_M],
        )

    def tree(self) -> tuple["Inputs", Tensor | None]:
        """Inputs with one row for each node, and the row of each position (None if rows are positions).

        Rows are in depth-first order. `seq_M` numbers trees, because a shared row belongs to several sequences.
        """
        if self.node_M is None:
            return self, None
        nodes, row_M = torch.unique(self.node_M, return_inverse=True)
        if len(nodes) == len(row_M):
            return self, None
        here = torch.empty_like(nodes).scatter_(0, row_M, torch.arange(len(row_M), device=nodes.device))  # any of them
        parent = self.parent_M[here]
        parent = torch.where(parent >= 0, row_M[parent.clamp(min=0)], parent)
        tree = torch.cumsum((parent < 0).long(), 0) - 1
        return Inputs(self.ids_M[here], self.pos_M[here], tree, parent, row_M[self.at_N]), row_M

    def to(self, device: torch.device | str) -> "Inputs":
        moved: dict[str, Any] = {k: None if v is None else v.to(device) for k, v in vars(self).items()}
        return Inputs(**moved)
