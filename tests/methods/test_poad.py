"""Evidence for poad: laws, mistakes, equivalences, resume, and numbers worked by hand on episodes of several turns."""

import math
from collections.abc import Sequence

import evidence
import pytest
from hand import close, mean, objective, sample_std
from turn_by_turn import Step, packed, played

from gruppo.data import Episode, Status
from gruppo.methods import method
from gruppo.methods.poad import ActionGae
from gruppo.stages import Context
from gruppo.stages.credit import Gae

test_laws = evidence.laws("poad")
test_asks = evidence.asks("poad")
test_terms = evidence.terms("poad")
test_planted_mistakes = evidence.planted("poad")
test_equivalences = evidence.equivalences("poad")
test_resume = evidence.resume("poad")

V = [0.2, 0.4, 0.1, 0.7, 0.6]


def turns(uid: int, *steps: tuple[int, float], **fields: object) -> Episode:
    """Turns of so many tokens, each with its reward."""
    return played(uid, [Step("", r, tokens=n) for n, r in steps], group=f"g{uid}", **fields)  # type: ignore[arg-type]


def raw(credit: object, episodes: Sequence[Episode], values: Sequence[float]) -> list[float]:
    """Advantages before they are whitened: R̂ − V."""
    batch = packed(episodes, value_critic_N=values)
    return (credit(Context(), batch)["ret_N"] - batch.value_critic_N).tolist()  # type: ignore[operator]


def by_loops(lengths: Sequence[int], rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float):
    """batch_process_tppo of ADRL: δ = V' − V inside an action, r + γ V' − V at its end."""
    ends = [sum(lengths[: i + 1]) - 1 for i in range(len(lengths))]
    paid = dict(zip(ends, rewards, strict=True))
    out, ahead = [0.0] * len(values), 0.0
    for t in reversed(range(len(values))):
        after = values[t + 1] if t + 1 < len(values) else 0.0
        g = gamma if t in paid else 1.0
        ahead = paid.get(t, 0.0) + g * after - values[t] + g * lam * ahead
        out[t] = ahead
    return out


@pytest.mark.parametrize("apart", [False, True])
def test_poad_by_hand(apart: bool) -> None:
    """Two actions of three and two tokens, γ = .9, λ = .5. From the end: −.6 + 1 = .4; −.1 + .5 · .4 = .1; at the end
    of the first action .25 + .9 · .7 − .1 + .9 · .5 · .1 = .825; −.3 + .5 · .825 = .1125; .2 + .5 · .1125 = .25625."""
    got = raw(ActionGae(gamma=0.9, lam=0.5), [turns(0, (3, 0.25), (2, 1.0), apart=apart)], V)
    close(got, [0.25625, 0.1125, 0.825, 0.1, 0.4])
    close(got, by_loops([3, 2], [0.25, 1.0], V, 0.9, 0.5))


def test_poad_card() -> None:
    """Card S215: with λ = 1 the first token of an action has the advantage of the action, r + γ V' − V(o), plus what
    comes after it; of the last action r − V(o). PPO over ten tokens at .95 has discounted by .6."""
    first, second = raw(ActionGae(gamma=0.9, lam=1.0), [turns(0, (3, 0.25), (2, 1.0))], V)[0::3]
    close(second, 1.0 - 0.7)
    close(first, 0.25 + 0.9 * 0.7 - 0.2 + 0.9 * second)
    # ten tokens, then one that is paid; no values
    long = [turns(0, (10, 0.0), (1, 1.0))]
    close(raw(ActionGae(gamma=0.95, lam=1.0), long, [0.0] * 11), [0.95] * 10 + [1.0])
    plain = raw(Gae(gamma=0.95, lam=1.0), long, [0.0] * 11)
    close(plain, [0.95 ** (10 - t) for t in range(11)])
    assert plain[0] == pytest.approx(0.6, abs=0.002)


def test_poad_length_does_not_matter() -> None:
    """The same two actions, once short and once long: the same returns at their beginnings."""
    short, long = turns(0, (1, 0.0), (1, 1.0)), turns(1, (8, 0.0), (5, 1.0))
    got = raw(ActionGae(gamma=0.5, lam=1.0), [short, long], [0.0] * 15)
    close(got, [0.5, 1.0, *[0.5] * 8, *[1.0] * 5])


def test_poad_whitens_and_learns() -> None:
    """The whole objective: clipped surrogate over whitened advantages and the entropy, and the critic's error."""
    episodes = [turns(0, (3, 0.25), (2, 1.0)), turns(1, (2, 0.0))]
    values = [*V, 0.3, -0.2]
    adv = [*by_loops([3, 2], [0.25, 1.0], V, 0.95, 0.95), *by_loops([2], [0.0], values[5:], 0.95, 0.95)]
    white = [(a - mean(adv)) / math.sqrt(sample_std(adv) ** 2 + 1e-8) for a in adv]
    old, logp, heat = [-1.0] * 7, [-0.95] * 7, [0.5] * 7
    batch = packed(episodes, value_critic_N=values, logp_old_N=old)
    value, slope = objective(method("poad"), batch, logp_N=logp, entropy_N=heat)
    r = math.exp(0.05)
    close(value, mean([r * a for a in white]) + 0.01 * 0.5, 1e-9)
    close(slope["logp_N"], [r * a / 7 for a in white], 1e-9)
    close(slope["entropy_N"], [0.01 / 7] * 7)
    now = [v + 0.1 for v in values]
    lost, _ = objective(method("poad"), batch, "critic", value_N=now)
    close(lost, -0.5 * mean([(v + 0.1 - (v + a)) ** 2 for v, a in zip(values, adv, strict=True)]), 1e-9)


def test_poad_of_one_turn_is_ppo() -> None:
    episodes = [turns(0, (3, 1.0)), turns(1, (2, 0.0))]
    assert raw(ActionGae(gamma=0.5), episodes, V) == raw(Gae(gamma=1.0), episodes, V)


def test_poad_edges() -> None:
    """The reward of the episode itself is at its end. Nothing was said: no step, no discount. Failed: nothing is
    learned, and nobody else notices. Open: it goes on from its last value."""
    own = played(0, [Step(tokens=1), Step(tokens=1)], 1.0)
    close(raw(ActionGae(gamma=0.5, lam=1.0), [own], [0.0, 0.0]), [0.5, 1.0])
    silent = turns(0, (1, 0.0), (0, 0.0), (1, 1.0))
    close(raw(ActionGae(gamma=0.5, lam=1.0), [silent], [0.0, 0.0]), [0.5, 1.0])
    two, failed = [turns(0, (2, 1.0), (1, 0.0))], turns(1, (2, 9.0), status=Status.ENV_ERROR)
    columns = ActionGae()(Context(), packed([*two, failed], value_critic_N=V))
    alone = ActionGae()(Context(), packed(two, value_critic_N=V[:3]))
    assert columns["adv_N"].tolist() == [*alone["adv_N"].tolist(), 0.0, 0.0] and columns["ret_N"].tolist()[3:] == [0, 0]
    unfinished = played(0, [Step(tokens=1), Step(tokens=1)], status=Status.OPEN)
    close(raw(ActionGae(gamma=0.5, lam=1.0), [unfinished], [0.0, 0.8]), [0.5 * (0.5 * 0.8), 0.5 * 0.8 - 0.8])


def test_poad_given_tokens_are_no_decisions() -> None:
    """The last token of an action is the last that was sampled: with hints in between nothing changes."""
    batch = packed([turns(0, (3, 0.0), (2, 1.0))], value_critic_N=[0.0] * 5)
    assert ActionGae(gamma=0.5).discounts(batch).tolist() == [1.0, 1.0, 0.5, 1.0, 0.5]
    source_N = batch.source_N.clone()
    source_N[2] = 4  # forced
    given = ActionGae(gamma=0.5).discounts(batch.with_columns(source_N=source_N)).tolist()
    assert [given[i] for i in (0, 1, 3, 4)] == [1.0, 0.5, 1.0, 0.5]
