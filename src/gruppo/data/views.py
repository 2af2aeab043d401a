"""Views: the same decisions under another context, as model inputs.

A view maps the episodes of a batch to (ids, position of each decision), sequence by sequence. All views have the same
decisions, so a row of level N is the same token in each of them.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np

from gruppo.data.episode import Episode, Sequence, Source, Use
from gruppo.data.keyed import name_hash

Placed = tuple[np.ndarray, np.ndarray]
View = Callable[[Seq[Episode]], list[Placed]]


def as_sampled(sequence: Sequence) -> Placed:
    """The context of the sampler. Tokens given in a prompt that `train_as` replaces are not decisions."""
    at = np.flatnonzero(sequence.source != Source.ENV)
    return sequence.ids, at if sequence.train_as is None else at[at >= sequence.prompt_len]


def as_trained(sequence: Sequence) -> Placed:
    return as_sampled(sequence.trained())


def without_hints(sequence: Sequence) -> Placed:
    """Without the hints. Decisions that were hint tokens are moved to the next position that is left."""
    s = sequence.trained()
    keep = s.source != Source.HINT
    position = np.cumsum(keep) - 1
    at = np.flatnonzero(s.source != Source.ENV)
    return s.ids[keep], np.where(keep[at], position[at], np.minimum(position[at] + 1, keep.sum() - 1))


def under(sequence: Sequence, prompt: np.ndarray) -> Placed:
    """The same answer after another prompt. Decisions inside the old prompt are moved to the first position after
    the new one."""
    s = sequence.trained()
    at = np.flatnonzero(s.source != Source.ENV)
    ids = np.concatenate([prompt, s.ids[s.prompt_len :]])
    return ids, np.minimum(np.maximum(at - s.prompt_len, 0) + len(prompt), len(ids) - 1)


def mismatched(episodes: Seq[Episode]) -> list[Placed]:
    """Every answer under the prompt of the next group (KTO's x', arXiv:2402.01306).

    Groups form a ring, ordered by the hashes of their names. Each lends the prompt of its judged episode of use LEARN
    with the smallest uid, so the result depends neither on the order of episodes nor on failed ones. A single group
    keeps its own prompt.
    """
    lenders: dict[str, Episode] = {}
    for e in episodes:
        if e.status.judged and e.use == Use.LEARN and (e.group not in lenders or e.uid < lenders[e.group].uid):
            lenders[e.group] = e
    ring = sorted(lenders, key=name_hash)
    follows = dict(zip(ring, ring[1:] + ring[:1], strict=True))
    out: list[Placed] = []
    for e in episodes:
        lender = lenders.get(follows.get(e.group, ring[0] if ring else ""), e)
        first = lender.sequences[0].trained()
        out += [under(s, first.ids[: first.prompt_len]) for s in e.sequences]
    return out


def each(one: Callable[[Sequence], Placed]) -> View:
    """A view that treats each sequence separately."""
    return lambda episodes: [one(s) for e in episodes for s in e.sequences]


VIEWS: dict[str, View] = {
    "as_trained": each(as_trained),
    "as_sampled": each(as_sampled),
    "without_hints": each(without_hints),
    "mismatched": mismatched,
}
