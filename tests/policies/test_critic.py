import numpy as np
import torch

from gruppo.policies import Critic, Policy, packed


def test_a_critic_starts_at_zero_and_never_moves_the_policy(make):
    policy = make(torch.float32)
    inputs = packed([np.arange(5), np.arange(9)])
    before = policy(inputs)[0].detach()
    critic = Critic(policy)
    assert isinstance(critic, Policy)
    value_M1 = critic.head(critic(inputs)[0])
    assert value_M1.shape == (14, 1)
    assert (value_M1 == 0).all()
    optimiser = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(2):  # the first step moves the head only: it starts at 0, so the trunk has no gradient yet
        optimiser.zero_grad()
        ((critic.head(critic(inputs)[0]) - 1) ** 2).mean().backward()
        optimiser.step()
    assert not torch.equal(critic(inputs)[0], before)
    assert torch.equal(policy(inputs)[0], before)
    assert critic(inputs, collect=(1,))[1][1].shape == (14, 32)


def test_the_head_keeps_float64_and_lifts_bfloat16(make):
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        critic = Critic(make(dtype))
        assert critic.head(torch.zeros(3, 32, dtype=dtype)).dtype == expected
