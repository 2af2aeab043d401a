"""What credits of agents compare: the turns of an episode, with their states, their returns and their seats."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from gruppo.data import Batch, Key, centre
from gruppo.data.keyed import key_hash, name_hash
from gruppo.data.levels import refuse_word
from gruppo.pieces import advantage
from gruppo.stages.credit import turn_reward

Compared = Callable[[Tensor, Key, Tensor], Tensor]  # values, the partition, which rows count
Normalise = Literal["std", "mean"]
Alone = Literal["zero", "raw"]


def comparison(normalise: Normalise, eps: float, ddof: int = 1, alone: Alone = "zero") -> Compared:
    """(x − mean) / (std + eps) inside each part, or x − mean; a single row has 0, or keeps its raw value."""
    refuse_word("normalise", normalise, get_args(Normalise))
    refuse_word("alone", alone, get_args(Alone))

    def compared(x: Tensor, key: Key, where: Tensor) -> Tensor:
        scaled = normalise == "std"
        adv = advantage.z_score(x, key, where=where, eps=eps, ddof=ddof) if scaled else centre(x, key, where=where)
        return torch.where(advantage.alone(key, where), x, adv) if alone == "raw" else adv

    return compared


def judged_K(batch: Batch) -> Tensor:
    """Turns of episodes that are in statistics."""
    return batch.spread(batch.judged_E, "E", "K")


def turn_return(batch: Batch, gamma: float) -> Tensor:
    """g_t = r_t + gamma g_{t+1} over the turns of one agent in one episode, with r_t = `turn_reward`."""
    return batch.scan(turn_reward(batch, batch.seats), gamma, "K", batch.seats)


def seat_advantage(batch: Batch, compared: Compared) -> Tensor:
    """On every turn, the return of its agent, compared with that agent's returns in the other episodes of the group.

    An episode counts once for each agent, however many turns it has. With one agent it is the comparison of `reward_E`.
    """
    known = batch.judged_E[:, None] & ~batch.reward_EA.isnan()
    adv = compared(batch.reward_EA.flatten(), seats_of_groups(batch), known.flatten())
    return adv.index_select(0, batch.seats.index)


def seats_of_groups(batch: Batch) -> Key:
    """The rows of `reward_EA`, flattened: those of the same agent in the episodes of a group."""
    agents = len(batch.agents)
    seat = batch.group_E[:, None] * agents + torch.arange(agents, device=batch.device)
    return Key(seat.flatten(), batch.size("G") * agents)


def seat_return(batch: Batch) -> Tensor:
    """On every turn, the return of its agent; NaN where the episode has none."""
    return batch.reward_EA.flatten().index_select(0, batch.seats.index)


def stateless_K(batch: Batch) -> Tensor:
    """Turns whose state nobody told: `pack` gave them a key of their own."""
    own = key_hash("no state", batch.spread(batch.uid_E, "E", "K"), batch.turn_index_K)
    assert isinstance(own, Tensor)
    return batch.state_K == own


def anchor_K(batch: Batch) -> Tensor:
    """The state in which a turn begins, equal where the state is equal.

    A first turn without a state begins at its task, as all answers of a task without an environment do. Another turn
    without a state begins where no other turn does.
    """
    start = stateless_K(batch) & (batch.turn_index_K == 0)
    return torch.where(start, name_hash("the task itself"), batch.state_K)
