"""A reward that is drawn at random: it says nothing of the answer, and is the same when it is asked again."""

from gruppo.data import Episode
from gruppo.lab.claims.placebo import RandomReward
from gruppo.lab.tabular import World
from gruppo.stages import Context


def test_a_random_reward_says_nothing_of_the_answer() -> None:
    world = World(prompts=1, answers=2, right=1).of(0)
    episodes: list[Episode] = [world.episode(uid, uid % 2) for uid in range(2000)]
    [paid] = RandomReward(rate=0.3)(Context(), episodes).values()
    assert set(paid) == {0.0, 1.0} and RandomReward.replaces == ("task",)
    for answer in (0, 1):
        mine = [p for p, e in zip(paid, episodes, strict=True) if e.uid % 2 == answer]
        assert abs(sum(mine) / len(mine) - 0.3) < 0.05
    assert RandomReward(rate=0.3)(Context(), episodes[:7])["random"] == paid[:7]
    assert RandomReward(rate=0.3)(Context(step=1), episodes)["random"] != paid
