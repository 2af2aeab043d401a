"""Evidence for igpo_gain: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math
from collections.abc import Sequence
from typing import Any

import evidence
import pytest
import torch
from dialogues import dialogue
from drawing import steps_of
from hand import batch_of, close, mean, sample_std

from gruppo.data import Episode, Source, Status, pack
from gruppo.methods import method
from gruppo.methods.igpo_gain import InformationGain, JointReturns, asked_before_turns, gains
from gruppo.policies import CharTokenizer
from gruppo.stages import Ask, Context
from gruppo.stages.reward import add_components
from gruppo.stages.rollout import Group
from gruppo.tasks import Task

test_laws = evidence.laws("igpo_gain")
test_asks = evidence.asks("igpo_gain")
test_planted_mistakes = evidence.planted("igpo_gain")
test_equivalences = evidence.equivalences("igpo_gain")
test_resume = evidence.resume("igpo_gain")


def ask(answer: str = "ab") -> Ask:
    return Ask(Task("t", "?", answer, 1, "own"), 4, "g")


class Reader:
    """A context that reads these probabilities, each as two tokens whose geometric mean it is."""

    def __init__(self, chances: Sequence[float]) -> None:
        self.chances, self.seen = list(chances), list[list[int]]()
        self.ctx = Context(tokenizer=CharTokenizer(), read=self.read)

    def read(self, episodes: Sequence[Episode]) -> Any:
        batch = pack(episodes, dtype=torch.float64)
        self.seen += [s.ids.tolist() for e in episodes for s in e.sequences]
        tokens = batch.gather(batch.keep_N, "N", "S", "count").tolist()
        logp = [math.log(p) + d for p, n in zip(self.chances, tokens, strict=True) for d in _around(n)]
        return batch.with_columns(logp_policy_N=torch.tensor(logp, dtype=torch.float64))


def _around(n: int) -> list[float]:
    """Numbers around 0 that add up to 0."""
    return [0.3 * (i - (n - 1) / 2) for i in range(n)]


def paid(chances: Sequence[float], episodes: list[Episode], **fields: Any) -> list[list[float]]:
    add_components(Reader(chances).ctx, (InformationGain(**fields),), episodes)
    return [[t.reward["gain"] for t in e.turns] for e in episodes]


def returns(episodes: list[Episode], **fields: Any) -> list[float]:
    return JointReturns(**fields)(Context(), batch_of(episodes))["adv_N"].tolist()


def test_igpo_gain_card() -> None:
    """Card S079: p = .1, .4, .3 is r = (.3, −.1), the outcome is 0; returns without normalisation (.2, −.1, 0)."""
    [gain] = paid([0.1, 0.4, 0.3], [dialogue(0, [1, 1, 1], 0.0, ask=ask())])
    close(gain, [0.3, -0.1, 0.0])
    close([math.fsum(gain[i:]) for i in range(3)], [0.2, -0.1, 0.0])
    close(math.fsum(gain), 0.3 - 0.1)  # p_{T−1} − p_0
    assert gains([]) == [] and gains([0.7]) == [0.0]


def test_igpo_gain_reads_what_was_seen_before_each_turn_and_then_the_answer() -> None:
    """With what the environment said to the turns before; a turn in a context of its own has only that before it."""
    answer = CharTokenizer().encode("so ab").tolist()
    for fresh, want in ((False, [[1, 2], [1, 2, 5, 5, 3, 3]]), (True, [[1, 2], [1, 2]])):
        reader = Reader([0.5, 0.5])
        InformationGain("so {answer}")(reader.ctx, [dialogue(0, [2, 1], 1.0, fresh=fresh, ask=ask())])
        assert reader.seen == [[*before, *answer] for before in want]
    probe = asked_before_turns(dialogue(3, [1, 1], 1.0), CharTokenizer().encode("ab"))
    assert [(s.prompt_len, set(s.source[s.prompt_len :])) for s in probe.sequences] == [(2, {2}), (5, {2})]
    assert Source.EXPERT == 2 and probe.tokens == 0


def test_igpo_gain_of_a_group() -> None:
    """All five rewards (.3, .0 and .1, −.2, 1.0) are normalised together, then added from the end."""
    group = [dialogue(0, [1, 2], 0.0, ask=ask()), dialogue(1, [1, 1, 1], 1.0, ask=ask())]
    paid([0.1, 0.4, 0.3, 0.4, 0.2], group)
    rewards = [0.3, 0.0, 0.1, -0.2, 1.0]
    z = [(r - mean(rewards)) / (sample_std(rewards) + 1e-6) for r in rewards]
    want = [z[0] + z[1], z[1], z[1], z[2] + z[3] + z[4], z[3] + z[4], z[4]]
    close(returns(group), want)
    half = [z[0] + z[1] / 2, z[1], z[1], z[2] + z[3] / 2 + z[4] / 4, z[3] + z[4] / 2, z[4]]
    close(returns(group, gamma=0.5), half)


def test_igpo_gain_where_all_fail_something_is_learned() -> None:
    """GRPO has no gradient there; the rollout that came nearer is better."""
    group = [dialogue(0, [1, 1], 0.0, ask=ask()), dialogue(1, [1, 1], 0.0, ask=ask())]
    assert method("grpo").credit(Context(), batch_of(group))["adv_N"].tolist() == [0.0] * 4
    paid([0.1, 0.6, 0.1, 0.2], group)
    adv = returns(group)
    assert adv[0] > 0 > adv[2]


def test_igpo_gain_by_position_as_released() -> None:
    """Each token has its turn's reward less the mean at its place: 0, 1 and 4 after the first of both rollouts."""
    group = [dialogue(0, [2, 1], 1.0, ask=ask()), dialogue(1, [1, 1], 0.0, ask=ask())]
    paid([0.1, 0.4, 0.1, 0.2], group)
    # places 0, 1, 4 of the first (rewards .3, .3, 1) and 0, 3 of the second (.1, 0)
    close(returns(group, normalise="position"), [0.1, 0.0, 0.0, -0.1, 0.0])


def test_igpo_gain_edges() -> None:
    """One turn: nothing is read. A failed rollout is neither read nor compared. A turn without tokens has a gain."""
    one = [dialogue(i, [2], r, ask=ask()) for i, r in enumerate((1.0, 0.0))]
    assert paid([], one) == [[0.0], [0.0]]
    close(returns(one), method("grpo").credit(Context(), batch_of(one))["adv_N"].tolist())
    lost = dialogue(2, [1, 1], None, status=Status.TIMEOUT, ask=ask())
    mixed = [dialogue(0, [1, 0, 1], 1.0, ask=ask()), dialogue(1, [1], 0.0, ask=ask()), lost]
    add_components(Reader([0.2, 0.5, 0.4]).ctx, (InformationGain(),), mixed)
    assert [t.reward.get("gain") for t in mixed[0].turns] == pytest.approx([0.3, -0.1, 0.0])
    assert all(not t.reward for t in lost.turns) and returns(mixed)[-2:] == [0.0, 0.0]
    assert returns([dialogue(0, [1], 1.0, ask=ask())]) == [0.0]


def test_igpo_gain_refuses_a_task_without_an_answer() -> None:
    for nobody in (ask(""), None):
        with pytest.raises(ValueError, match=r"has no answer in words.*Use a task"):
            paid([0.1, 0.2], [dialogue(0, [1, 1], 1.0, ask=nobody)])
        assert paid([], [dialogue(0, [1], 1.0, ask=nobody)]) == [[0.0]]
    with pytest.raises(ValueError, match=r"has no \{answer\}"):
        InformationGain("the answer")


def test_igpo_gain_in_a_real_run() -> None:
    """Two steps on answers that are split into turns: gains are differences of probabilities, and not all 0."""
    m = method("igpo_gain").but(rollout=Group(steps=" "))
    _, records = steps_of(m, "task=chain", "prompts=2", "samples=3", steps=2)
    told = [[t.reward["gain"] for t in e.turns] for r in records for e in r.drawn if len(e.turns) > 1]
    assert told and all(-1 < x < 1 for gain in told for x in gain) and all(gain[-1] == 0.0 for gain in told)
    assert any(abs(x) > 1e-6 for gain in told for x in gain)
