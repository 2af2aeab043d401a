"""Pitfall 7: "GAE/returns crossing observation spans, terminal reward on a masked token, decay counted on
observations". Rule: "recursion over action tokens only".

If the bug came back, an observation or hint between two actions would change returns (it would be decayed over, or
its value used), and a reward whose last token is given would be lost.
"""

import numpy as np
import pytest
import torch

from gruppo.data import Batch, Episode, Sequence, Source, Turn, pack
from gruppo.pieces import advantage
from gruppo.stages import Context
from gruppo.stages.credit import Gae

GAMMA, LAM = 0.9, 0.8
P, E, H = Source.POLICY, Source.ENV, Source.HINT


def episode(uid: int, middle: list[Source], tail: list[Source], reward: float) -> Episode:
    """Two actions of two tokens, with `middle` between them and `tail` after them."""
    source = np.array([E, E, P, P, *middle, P, P, *tail], np.int8)
    mine = source == P
    second = 4 + len(middle)
    sequence = Sequence(
        np.arange(len(source)) + 1, source, np.where(mine, -1.0, np.nan).astype(np.float32),
        np.where(mine, 0, -1).astype(np.int32), prompt_len=2,
    )  # fmt: skip
    turns = [Turn(2, 4, reward={"step": 0.5}), Turn(second, second + 2, obs_start=4, obs_stop=second)]
    return Episode(uid, "t", "g", [sequence], turns, {"task": reward})


def with_values(episodes: list[Episode], given: float) -> Batch:
    """0.1, 0.2, … on the policy's tokens of each episode, `given` on those that it did not write."""
    batch = pack(episodes, dtype=torch.float64)
    mine = (batch.source_N == P).double()
    before = batch.gather(mine, "N", "E").cumsum(0) - batch.gather(mine, "N", "E")
    place = mine.cumsum(0) - before[batch.episode_N]
    return batch.with_columns(value_critic_N=torch.where(mine > 0, 0.1 * place, torch.full_like(mine, given)))


def by_hand(reward: float) -> list[float]:
    """Returns of four tokens: the plain recursion, as if nothing stood between them."""
    values, rewards = [0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.0, reward]
    adv, out = 0.0, list[float]()
    for t in reversed(range(4)):
        after = values[t + 1] if t < 3 else 0.0
        adv = rewards[t] + GAMMA * after - values[t] + GAMMA * LAM * adv
        out.insert(0, adv + values[t])
    return out


SPANS = [([], []), ([E, E], []), ([H], []), ([E, H, H, E], []), ([H], [H]), ([E], [E, E]), ([H, E], [E, H])]


@pytest.mark.parametrize(("middle", "tail"), SPANS)
def test_what_stands_between_actions_changes_nothing(middle: list[Source], tail: list[Source]) -> None:
    batch = with_values([episode(1, middle, tail, 1.0), episode(2, [], [], -0.5)], given=7.0)
    columns = Gae(gamma=GAMMA, lam=LAM)(Context(), batch)
    mine = batch.source_N == P
    want = torch.tensor(by_hand(1.0) + by_hand(-0.5), dtype=torch.float64)
    assert torch.allclose(columns["ret_N"][mine], want, atol=1e-12)
    raw = want - batch.value_critic_N[mine]
    white = (raw - raw.mean()) / raw.std()
    assert torch.allclose(columns["adv_N"][mine], white, atol=1e-6)
    assert bool((columns["adv_N"][~mine] == 0).all() and (columns["ret_N"][~mine] == 0).all())


@pytest.mark.parametrize(("middle", "tail"), [s for s in SPANS if H in s[0] + s[1]])
def test_a_recursion_over_all_tokens_is_another_one(middle: list[Source], tail: list[Source]) -> None:
    """The bugs, planted: every given token is a step of the recursion, and the reward stands on the last token."""
    batch = with_values([episode(1, middle, tail, 1.0)], given=0.35)
    n = batch.size("N")
    last = torch.arange(n) == n - 1
    reward_N = last.double() * 1.0
    reward_N[1] += 0.5
    _, crossing = advantage.gae(reward_N, batch.value_critic_N, batch.episode_N, GAMMA, LAM)
    mine = batch.source_N == P
    want = torch.tensor(by_hand(1.0), dtype=torch.float64)
    assert float((crossing[mine] - want).abs().max()) > 0.01
    if tail == [H]:
        assert not bool((last & mine).any())  # the reward would stand on a masked token


def test_a_plain_answer_has_one_recursion() -> None:
    batch = with_values([episode(1, [], [], 1.0)], given=0.0)
    reward_N = torch.tensor([0.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    _, ret = advantage.gae(reward_N, batch.value_critic_N, batch.episode_N, GAMMA, LAM)
    assert torch.allclose(ret, torch.tensor(by_hand(1.0), dtype=torch.float64))
