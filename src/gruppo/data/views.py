"""Views: a sequence as another input of the model, scored by name (design 3.7).

A view maps the episodes of a batch to (ids, position of each decision in them), sequence by sequence. Every view
places the same decisions, so that a row of level N means the same token in all of them.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np

from gruppo.data.episode import Episode, Sequence, Source, Use
from gruppo.data.keyed import name_hash

Placed = tuple[np.ndarray, np.ndarray]
View = Callable[[Seq[Episode]], list[Placed]]


def as_sampled(sequence: Sequence) -> Placed:
    """What the sampler saw. Tokens given in a prompt that `train_as` replaces are no decisions."""
    at = np.flatnonzero(sequence.source != Source.ENV)
    return sequence.ids, at if sequence.train_as is None else at[at >= sequence.prompt_len]


def as_trained(sequence: Sequence) -> Placed:
    return as_sampled(sequence.trained())


def without_hints(sequence: Sequence) -> Placed:
    """Hints leave the context; the decisions that were hints are scored at the position after it."""
    s = sequence.trained()
    keep = s.source != Source.HINT
    place = np.cumsum(keep) - 1
    at = np.flatnonzero(s.source != Source.ENV)
    return s.ids[keep], np.where(keep[at], place[at], np.minimum(place[at] + 1, keep.sum() - 1))


def under(sequence: Sequence, prompt: np.ndarray) -> Placed:
    """The same answer after another prompt; decisions inside the old prompt are scored at the first position after
    the new one."""
    s = sequence.trained()
    at = np.flatnonzero(s.source != Source.ENV)
    ids = np.concatenate([prompt, s.ids[s.prompt_len :]])
    return ids, np.minimum(np.maximum(at - s.prompt_len, 0) + len(prompt), len(ids) - 1)


def mismatched(episodes: Seq[Episode]) -> list[Placed]:
    """Every answer under the prompt of the next group (KTO's x', arXiv:2402.01306).

    Groups stand in a ring by the hash of their names and lend the prompt of their first judged episode to learn from,
    by uid: so neither the order of the episodes nor a failed one matters. With one group the prompt stays its own.
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
    """A view that looks at one sequence at a time."""
    return lambda episodes: [one(s) for e in episodes for s in e.sequences]


VIEWS: dict[str, View] = {
    "as_trained": each(as_trained),
    "as_sampled": each(as_sampled),
    "without_hints": each(without_hints),
    "mismatched": mismatched,
}
