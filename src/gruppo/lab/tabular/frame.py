"""The batch of many independent steps, made from the numbers of answers, without an episode.

A part is one step of one policy: `prompts` prompts with `samples` answers each. Parts share nothing. The columns are
those that `pack` makes of the same episodes; besides, `part_G` says whose step a group belongs to, and `cell_N` where a
decision stands in the rows of the tables that were asked: those of each group, one after another.
"""

from dataclasses import replace

import torch
from torch import Tensor

from gruppo.data import Batch, key_hash
from gruppo.lab.tabular.tables import Tables

FAR = 1 << 24  # between the numbers of the first episodes of two seeds


class Frame:
    """Makes batches of `prompts` × `samples` answers for each part; `seeds` number the random keys of the parts."""

    def __init__(self, tables: Tables, seeds: Tensor, prompts: int, samples: int) -> None:
        self.tables, self.prompts, self.samples = tables, prompts, samples
        self.atlas, parts = tables.atlas, len(seeds)
        self.part_G = torch.arange(parts).repeat_interleave(prompts)
        self.group_E = torch.arange(parts * prompts).repeat_interleave(samples)
        self.part_E = self.part_G[self.group_E]
        within = torch.arange(prompts * samples).repeat(parts)
        self.uid_E = seeds[self.part_E] * FAR + within
        deep = torch.arange(tables.path_AD.shape[1])
        uid_ED = key_hash(self.uid_E[:, None], 0, deep)
        assert isinstance(uid_ED, Tensor)
        self.uid_ED = uid_ED
        # One name for the same place in every part, so that minibatches are the same choice in every part.
        slot = key_hash("slot", torch.arange(prompts))
        assert isinstance(slot, Tensor)
        self.of_groups = {
            "uid_G": slot.repeat(parts),
            "drawn_G": torch.full((parts * prompts,), samples),
            "part_G": self.part_G,
        }
        self.drawn = float(parts * prompts)
        self.even = bool((tables.length_A == tables.length_A[0]).all())
        self._last: Batch | None = None

    def batch(self, asked_PX: Tensor, answer_E: Tensor, turned_E: Tensor | None = None) -> Batch:
        """The batch of these answers to these prompts, in the order of parts, groups and samples.

        The rewards of answers in `turned_E` are 1 for wrong ones and 0 for right ones.
        """
        made = self._made(asked_PX, answer_E)
        if turned_E is None:
            return made
        reward_E = torch.where(turned_E, 1 - made.reward_E, made.reward_E)
        shaped = {n: reward_E.view(-1, 1) for n in ("reward_EC", "return_EC", "reward_EA")}
        return made.with_columns(reward_E=reward_E, **shaped)

    def _made(self, asked_PX: Tensor, answer_E: Tensor) -> Batch:
        number_E = asked_PX.flatten()[self.group_E] * self.tables.answers + answer_E
        if self.even and self._last is not None:
            return self._as_before(self._last, number_E, answer_E)
        base = self.atlas.micro(number_E)
        columns = {name: x for name, x in base.columns.items() if not name.startswith("row_")}
        columns |= self._of_episodes(number_E) | self.of_groups
        columns |= {"episode_S": torch.arange(len(number_E)), "uid_E": self.uid_E, "group_E": self.group_E}
        columns |= self._of_decisions(answer_E)
        own = key_hash("no state", self.uid_E, torch.zeros_like(self.uid_E))
        assert isinstance(own, Tensor)
        columns["state_K"] = own
        views = {name: replace(view, row_M=None, node_M=None) for name, view in base.views.items()}
        out = replace(base, columns=columns, views=views, drawn=self.drawn, _cache={})
        self._last = out if self.even else None
        return out

    def _of_episodes(self, number_E: Tensor) -> dict[str, Tensor]:
        kept = (n for n in self.atlas.columns if n.rpartition("_")[2][:1] == "E")
        return {name: self.atlas.columns[name][number_E] for name in kept}

    def _of_decisions(self, answer_E: Tensor) -> dict[str, Tensor]:
        t = self.tables
        cell_ED = self.group_E[:, None] * (t.cells + 1) + t.path_AD[answer_E]
        if self.even:
            return {"cell_N": cell_ED.flatten(), "uid_N": self.uid_ED.flatten(), "node_N": self.uid_ED.flatten()}
        there_ED = torch.arange(t.path_AD.shape[1]) < t.length_A[answer_E][:, None]
        return {"cell_N": cell_ED[there_ED], "uid_N": self.uid_ED[there_ED], "node_N": self.uid_ED[there_ED]}

    def _as_before(self, last: Batch, number_E: Tensor, answer_E: Tensor) -> Batch:
        """Where all answers are equally long, only what was asked and said differs from one step to the next."""
        atlas, E = self.atlas, len(number_E)
        ids_M = atlas.inputs.ids_M.view(atlas.size("S"), -1)[number_E].flatten()
        token_N = atlas.token_N.view(atlas.size("S"), -1)[number_E].flatten()
        said = {n: atlas.columns[n][number_E] for n in ("task_E", "index_E", "answer_E", "reward_E")}
        said |= {n: said["reward_E"].view(E, 1) for n in ("reward_EC", "return_EC", "reward_EA")}
        said |= {"token_N": token_N, **self._of_decisions(answer_E)}
        views = {"as_trained": replace(last.inputs, ids_M=ids_M)}
        return replace(last, columns={**last.columns, **said}, views=views, _cache={})
