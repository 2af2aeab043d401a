"""Evidence for s_grpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import numpy as np
import pytest
from drawing import TOKENS, rolled, task
from hand import answer, batch_of
from scripted import TASKS, cutting

from gruppo.data import Episode, Note, Status
from gruppo.methods import method
from gruppo.methods.s_grpo import S_GRPO, FirstRight, SerialGroup, exit_at
from gruppo.stages import Context, Method, Sampling
from gruppo.stages.reward import add_components

test_laws = evidence.laws("s_grpo")
test_asks = evidence.asks("s_grpo")
test_planted_mistakes = evidence.planted("s_grpo")
test_equivalences = evidence.equivalences("s_grpo")
test_resume = evidence.resume("s_grpo")


def exits(right: list[float | None], order: list[int] | None = None, **fields: object) -> list[Episode]:
    """A serial group by its exits, earliest first; answers of two tokens. None: it failed."""
    out: list[Episode] = []
    for i, r in enumerate(right):
        e = answer(i, "g", 2, r, notes={"exit": Note(np.array([3.0 + i], np.float32))}, **fields)
        e.status = Status.ENV_ERROR if r is None else e.status
        out.append(e)
    return [out[i] for i in order] if order else out


def serial(episodes: list[Episode], m: Method = S_GRPO) -> tuple[list[float], list[float]]:
    """(rewards, advantages) of the episodes in the order of their exits, through the reward room and the credit."""
    add_components(Context(), m.reward, episodes, of_groups=True)
    adv = m.credit(Context(), batch_of(episodes))["adv_N"].tolist()[::2]
    by_exit = sorted(range(len(episodes)), key=lambda i: float(episodes[i].notes["exit"].values[0]))
    return [episodes[i].total for i in by_exit], [adv[i] for i in by_exit]


@pytest.mark.parametrize("order", [None, [3, 0, 5, 1, 4, 2]])
def test_s_grpo_card(order: list[int] | None) -> None:
    """Card S120: right (0,1,1,1,0,1) from the earliest exit to the path. The row in the batch does not matter."""
    rewards, adv = serial(exits([0, 1, 1, 1, 0, 1], order))
    assert rewards == [0, 1, 0.5, 0.25, 0, 0.125]
    assert adv == [-0.3125, 0.6875, 0.1875, -0.0625, -0.3125, -0.1875]


def test_s_grpo_halves_by_exit_where_told() -> None:
    """The port for verl: 1, .5, .25 … by the place in the group, whoever is right."""
    m = S_GRPO.but(reward=(FirstRight(by="exit"),))
    assert serial(exits([0, 1, 1, 1, 0, 1]), m)[0] == [0, 0.5, 0.25, 0.125, 0, 1 / 32]
    with pytest.raises(ValueError, match=r"by='rigth' is not one of its values .nearest: right"):
        FirstRight(by="rigth")  # type: ignore[arg-type]


def test_s_grpo_later_worth_says_what_being_early_is_worth() -> None:
    """1 is a plain right or wrong; 0 pays the first right one alone."""
    for worth, wanted in ((1.0, [0, 1, 1, 1]), (0.75, [0, 1, 0.75, 0.5625]), (0.0, [0, 1, 0, 0])):
        assert serial(exits([0, 1, 1, 1]), S_GRPO.but(reward=(FirstRight(later_worth=worth),)))[0] == wanted
    m = S_GRPO.but(reward=(FirstRight(by="exit", later_worth=0.75),))
    assert serial(exits([0, 1, 1]), m)[0] == [0, 0.75, 0.5625]
    with pytest.raises(ValueError, match=r"later_worth=1.5"):
        FirstRight(later_worth=1.5)


def test_s_grpo_edges() -> None:
    """All wrong: 0. Only the path is right: it has 1. All right: 1, ½, ¼. A failed exit is in no order and no mean.
    Groups have orders of their own."""
    assert serial(exits([0, 0, 0])) == ([0, 0, 0], [0, 0, 0])
    assert serial(exits([0, 0, 1]))[0] == [0, 0, 1]
    assert serial(exits([1, 1, 1]))[0] == [1, 0.5, 0.25]
    rewards, adv = serial(exits([None, 1, 1]))
    assert math.isnan(rewards[0]) and rewards[1:] == [1, 0.5] and adv == [0, 0.25, -0.25]
    two = [*exits([1, 1]), *(answer(9, "h", 2, 1.0, notes={"exit": Note(np.array([1.0], np.float32))}),)]
    add_components(Context(), method("s_grpo").reward, two, of_groups=True)
    assert [e.total for e in two] == [1, 0.5, 1]
    assert [e.reward["task"] for e in two] == [1, 1, 1]  # what the scorer said is kept


def test_s_grpo_a_path_is_left_at_samples_less_one_places() -> None:
    """A path of nine tokens, an inducer of two, nine in all: it can be left after one to six of its tokens."""
    m = S_GRPO.but(rollout=SerialGroup(inducer=";;", answer_tokens=99))
    for samples, exits in ((2, 1), (3, 2), (7, 6), (99, 6)):
        ctx = cutting(m, "abcdefgh", 9)
        episodes = rolled(m, ctx, TASKS, samples)
        assert len(episodes) == len({e.uid for e in episodes}) == 3 * (1 + exits)  # each with luck of its own
        for path in episodes[:3]:
            mine = [e for e in episodes[3:] if e.group == path.group]
            at = [int(e.notes["exit"].values[0]) - path.sequences[0].prompt_len for e in mine]
            assert at == (sorted(set(at)) if exits < 6 else [1, 2, 3, 4, 5, 6]) and len(at) == exits
            assert path.notes["exit"].values.tolist() == [len(path.sequences[0].ids)]
        start = len(ctx.engine.heard[0].prefix)
        for r in ctx.engine.heard[3:]:  # what the path has used and the inducer are not there to answer in
            assert len(r.prefix) - start + r.max_tokens == 9
    assert exit_at(7).values.tolist() == [7.0] and exit_at(7).values.dtype == np.float32


def test_s_grpo_every_path_is_left_at_places_of_its_own() -> None:
    episodes = rolled(S_GRPO, cutting(S_GRPO, "abcdefghijklm", 16), [task(i) for i in range(10)], 3)
    places: dict[str, list[float]] = {}
    for e in episodes[10:]:
        places.setdefault(e.group, []).append(float(e.notes["exit"].values[0]))
    assert len(places) == 10 and len({tuple(p) for p in places.values()}) > 5


def test_s_grpo_needs_a_token_of_the_path_and_one_to_answer() -> None:
    rollout, given = SerialGroup(inducer=";;"), TOKENS.encode(";;")
    assert rollout.room(Sampling(max_tokens=4), given) == 2
    with pytest.raises(ValueError, match="has 2 tokens, and an answer max_tokens=3: no exit"):
        rollout.room(Sampling(max_tokens=3), given)
