"""Evidence for latr: laws, mistakes, equivalences, resume, and trees worked by hand."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import evidence
import numpy as np
import pytest
from drawing import TOKENS, bench, equal, rolled, steps_of, task
from in_worlds import played, real_engine

from gruppo.data import Episode, Source, Status, pack, uniform
from gruppo.engines.base import Completion, Request
from gruppo.methods import method
from gruppo.methods.latr import LookaheadTree
from gruppo.stages import Context, Sampling
from gruppo.stages.check import refuse_weaker

test_laws = evidence.laws("latr")
test_asks = evidence.asks("latr")
test_terms = evidence.terms("latr")
test_planted_mistakes = evidence.planted("latr")
test_equivalences = evidence.equivalences("latr")
test_resume = evidence.resume("latr")

LATR = method("latr")
Odds = Callable[[str], dict[str, float]]  # of the next letters, after this part of an answer; "." ends it


class Table:
    """An engine that draws letters from a table, one after the other."""

    eos = (TOKENS.eos,)
    version = sampled = 0

    def __init__(self, odds: Odds) -> None:
        self.odds, self.heard = odds, list[Request]()

    async def generate(
        self, requests: Sequence[Request], remember: bool = False
    ) -> AsyncIterator[tuple[int, Completion]]:
        self.heard += requests
        for i, r in enumerate(requests):
            yield i, self.answer(r)

    def answer(self, r: Request) -> Completion:
        ids, logp, forced = r.prefix.tolist(), list[float](), list[bool]()
        while len(logp) < r.max_tokens and (not logp or ids[-1] != TOKENS.eos):
            z = np.full(TOKENS.vocab, -99.0)
            for letter, p in self.odds(TOKENS.decode(ids).split("=", 1)[1]).items():
                z[TOKENS.eos if letter == "." else TOKENS.encode(letter)[0]] = math.log(p)
            move = r.steer(np.array(ids), len(ids), z) if r.steer else None
            p = np.exp(z / r.temperature) / np.exp(z / r.temperature).sum()
            forced.append(move is not None and move.force is not None)
            u = float(uniform(r.key, len(ids)))
            ids.append(move.force if move and move.force is not None else int(np.searchsorted(np.cumsum(p), u)))
            logp.append(math.log(p[ids[-1]]))
        n = len(logp)
        reason = "stop" if ids[-1] == TOKENS.eos else "length"
        made = np.array(ids[len(r.prefix) :])
        return Completion(made, np.array(logp), np.zeros(n, np.int32), reason, forced=np.array(forced))


def tree(
    odds: Odds, samples: int = 8, seed: int = 0, max_tokens: int = 16, temperature: float = 1.0, **fields: Any
) -> list[Episode]:
    rule = LATR.but(rollout=LookaheadTree(**{"eta": 1.0, "lookaheads": (2,), **fields}))
    how = Sampling(max_tokens=max_tokens, temperature=temperature)
    ctx = bench(rule, lambda p, r: "", lambda e: 1.0, sampling=how, seed=seed)
    ctx.engine = Table(odds)
    found = rolled(rule, ctx, [task(0)], samples)
    assert len(found) == samples and len({e.uid for e in found}) == samples
    assert all(e.status in (Status.OK, Status.TRUNCATED) and e.total == 1.0 for e in found)
    pack(found)
    return found


def texts(episodes: Sequence[Episode]) -> list[str]:
    return [e.text for e in episodes]


def forced(e: Episode) -> str:
    return "".join("1" if x else "0" for x in e.notes["forced"].values)


def parents(episodes: Sequence[Episode]) -> list[int]:
    place = {e.uid: i for i, e in enumerate(episodes)}
    return [place.get(e.parent, -1) for e in episodes]


def unsure(text: str) -> dict[str, float]:
    """p = ½, .3, .2 everywhere, for ten letters."""
    return {"a": 0.5, "b": 0.3, "c": 0.2} if len(text) < 10 else {".": 1.0}


def sure_but(at: int) -> Odds:
    """Unsure between a and b at one letter of the answer."""

    def odds(text: str) -> dict[str, float]:
        if len(text) == at:
            return {"a": 0.55, "b": 0.45}
        return {"x": 0.9, "y": 0.1} if len(text) < 9 else {".": 1.0}

    return odds


# ---- what is worked by hand


def test_card_which_candidates_branch() -> None:
    """Card S063: .3 > .15 and .5 − .3 < .25: yes. .7 − .2 = .5: no. The third, .2, is too far from the first."""
    rule = LookaheadTree()
    assert rule.candidates(np.array([0.5, 0.3])) == [1] and rule.candidates(np.array([0.7, 0.2])) == []
    assert rule.candidates(np.array([0.5, 0.3, 0.2])) == [1]
    assert rule.candidates(np.array([0.4, 0.3, 0.3])) == [1, 2]
    assert rule.candidates(np.array([0.25, 0.15])) == []  # above, not at, the bar
    assert LookaheadTree(tau_abs=0.1).candidates(np.array([0.5, 0.25])) == []  # nearer, not at, the gap


def test_card_eight_prefixes() -> None:
    """Everybody branches at every letter: 2, 4, 8 rows. The last are of letter 3, two letters old after letter 4."""
    found = tree(unsure)
    first = ["aaa", "baa", "aba", "bba", "aab", "bab", "abb", "bbb"]
    assert [t[:4] for t in texts(found)] == [f"{t}a" for t in first]
    assert parents(found) == [-1, 0, 0, 1, 0, 1, 2, 3] and {e.fork for e in found[1:]} == {0}
    assert {forced(e) for e in found} == {"1111" + "0" * 7}  # then they are sampled, to the full stop
    assert len(set(texts(found))) == 8 and {len(t) for t in texts(found)} == {10}


def test_room_goes_to_higher_ranks_then_to_older_rows() -> None:
    """Three rows: of a and b, a is older. Three candidates: with room for three, rank 1 of a, b, c, and no rank 2."""
    assert [t[:2] for t in texts(tree(unsure, samples=3))] == ["aa", "ba", "ab"]
    wide = {"max_candidates": 3, "tau_rel": 0.35}
    assert [t[:2] for t in texts(tree(unsure, samples=6, **wide))] == ["aa", "ba", "ca", "ab", "bb", "cb"]
    assert [t[:2] for t in texts(tree(unsure, samples=2, **wide))] == ["aa", "ba"]


def test_a_branch_that_stays_similar_goes() -> None:
    """axxx and bxxx: 1 of 4 letters differs, .25 < .4. At 2 letters 1/2 is not. What is missing is sampled."""
    kept, gone = (tree(sure_but(0), samples=2, lookaheads=(n,)) for n in (2, 4))
    assert parents(kept) == [-1, 0] and [t[:2] for t in texts(kept)] == ["ax", "bx"]
    assert parents(gone) == [-1, -1] and forced(gone[0]) == "1" * 10 and forced(gone[1]) == "0" * 10
    assert parents(tree(sure_but(0), samples=2, lookaheads=(2, 4))) == [
        -1,
        -1,
    ]  # looked at twice, it goes at the second
    assert parents(tree(sure_but(0), samples=2, lookaheads=(4,), tau_ed=0.25)) == [-1, 0]  # .25 is not below .25


def test_what_grew_from_a_branch_goes_with_it_and_leaves_room() -> None:
    """bxxx is too much like axxx; its own branch, bxb, is two letters old then. At the sixth letter there is room."""

    def odds(text: str) -> dict[str, float]:
        if len(text) in (0, 5) or text == "bx":
            return {"x" if text else "a": 0.55, "b": 0.45}
        return {"x": 1.0} if len(text) < 9 else {".": 1.0}

    found = tree(odds, samples=3, lookaheads=(4,))
    assert parents(found)[:2] == [-1, -1]  # the branch of the sixth letter is pruned, too, after the ninth
    found = tree(odds, samples=3, lookaheads=(4,), tree_tokens=8)
    assert parents(found) == [-1, 0, -1] and texts(found)[1] == "axxxxbxxx"
    assert parents(tree(odds, samples=3, lookaheads=(20,))) == [-1, 0, 1]  # not pruned: the branch and its branch


def test_rows_that_have_ended_are_left_alone_and_keep_their_place() -> None:
    """A branch that ends at once is compared with nothing, stays, and takes room. So is the branch of such a root."""

    def odds(text: str) -> dict[str, float]:
        return {"a": 0.55, ".": 0.45} if len(text) < 2 else {"a": 1.0} if len(text) < 9 else {".": 1.0}

    found = tree(odds, samples=2, lookaheads=(1, 2), tau_ed=9.0)
    assert parents(found) == [-1, 0] and texts(found) == ["a" * 9, ""]
    assert found[1].status == Status.OK and forced(found[1]) == "1"
    found = tree(lambda text: {".": 0.55, "a": 0.45} if len(text) < 1 else odds("aa" + text), samples=2, tau_ed=9.0)
    assert parents(found) == [-1, 0] and texts(found)[0] == "" and texts(found)[1].startswith("aaa")


def test_the_tree_ends_when_it_is_full_and_settled_or_at_its_last_token() -> None:
    """Two rows at letter 0; the younger is old enough after L letters. With one row it waits for tree_tokens."""
    assert [forced(e).count("1") for e in tree(sure_but(0), samples=2, lookaheads=(3,), tau_ed=0.0)] == [3, 3]
    assert [forced(e).count("1") for e in tree(sure_but(4), samples=2, lookaheads=(3,), tau_ed=0.0)] == [7, 7]
    assert [forced(e).count("1") for e in tree(sure_but(12), samples=2, tree_tokens=6)] == [6, 0]


def test_a_little_less_is_full_later() -> None:
    """Ten never come. After 4 letters round(10 · (.98 − .5 · 4/16)) = 9 would be full, after 5 round(8.24) = 8 are."""

    def odds(text: str) -> dict[str, float]:
        return unsure(text) if len(text) < 3 else sure_but(99)(text)

    assert [forced(e).count("1") for e in tree(odds, samples=10, full_decay=0.5)] == [5] * 8 + [0, 0]


def test_answers_that_run_out_of_tokens() -> None:
    found = tree(lambda text: {"a": 0.55, "b": 0.45}, samples=4, max_tokens=3, lookaheads=(20,))
    assert [e.status for e in found] == [Status.TRUNCATED] * 4 and texts(found) == ["aaa", "baa", "aba", "bba"]
    found = tree(lambda text: {"a": 0.55, "b": 0.45}, samples=4, max_tokens=5, lookaheads=(1,))
    assert [len(t) for t in texts(found)] == [5] * 4 and {forced(e) for e in found} == {"11000"}


def test_the_share_of_the_tree() -> None:
    """round(.5 · 4) = 2 rows of the tree, two samples. One row is the most probable answer. None: a group of grpo."""
    assert [forced(e)[0] for e in tree(unsure, samples=4, eta=0.5)] == ["1", "1", "0", "0"]
    alone = tree(unsure, samples=4, eta=0.25, lookaheads=(20,))
    assert texts(alone)[0] == "a" * 10 and [forced(e)[0] for e in alone] == ["1", "0", "0", "0"]


def test_the_raw_softmax_decides_and_the_record_has_the_temperature() -> None:
    """At temperature ½ p² counts: .25/.38 and .09/.38, a gap of .42. It branches all the same."""
    e = tree(unsure, samples=2, temperature=0.5)[1]
    s = e.sequences[0]
    first, second = s.logp[s.prompt_len : s.prompt_len + 2].tolist()
    assert (first, second) == pytest.approx((math.log(0.09 / 0.38), math.log(0.25 / 0.38)), abs=1e-6)
    assert s.temperature is not None and (s.temperature[s.prompt_len :] == 0.5).all()


def test_branches_share_the_nodes_of_their_parents() -> None:
    found = tree(unsure, samples=4)
    node = pack(found).node_N.reshape(4, -1).tolist()
    assert parents(found) == [-1, 0, 0, 1]
    shared = [[a == b for a, b in zip(node[i], node[p], strict=True)].count(True) for i, p in ((1, 0), (2, 0), (3, 1))]
    assert shared == [0, 1, 1] and len({n for row in node for n in row}) == 4 * 11 - 2
    assert all((e.sequences[0].source[e.turns[0].start :] == Source.POLICY).all() for e in found)


def test_no_candidate_no_branch() -> None:
    """tau_abs = 1: one row, which takes the best letters; the others are the samples of grpo, with their keys."""
    grpo = method("grpo")
    ctx = bench(grpo, lambda p, r: "", lambda e: 1.0, sampling=Sampling(max_tokens=16))
    ctx.engine = Table(unsure)
    plain = rolled(grpo, ctx, [task(0)], 6)
    greedy, drawn = (tree(unsure, samples=6, tau_abs=1.0, sample_nk=nk) for nk in ("none", "always"))
    assert texts(greedy) == ["a" * 10, *texts(plain)[1:]] and forced(greedy[0]) == "1" * 11
    assert texts(drawn) == texts(plain) and [e.uid for e in drawn] == [e.uid for e in plain]
    assert {forced(e) for e in drawn} == {"0" * 11}


def test_rows_that_are_sampled_where_they_do_not_branch() -> None:
    """always: drawn, but a parent goes on with the best letter. full: once the tree has all its rows."""
    odds = sure_but(2)
    always = tree(odds, samples=2, sample_nk="always", lookaheads=(5,), tau_ed=0.0)
    assert [t[2] for t in texts(always)] == ["a", "b"] and {forced(e) for e in always} == {"0010000000"}
    assert texts(always)[0][:2] == texts(always)[1][:2] and len({t[3:] for t in texts(always)}) == 2
    full = tree(odds, samples=2, sample_nk="full", lookaheads=(5,), tau_ed=0.0)
    assert {forced(e) for e in full} == {"1110000000"} and [t[:3] for t in texts(full)] == ["xxa", "xxb"]


def test_a_drawn_letter_gives_way_where_a_row_branches() -> None:
    """a may be drawn at letters 2 and 4, but b goes on and c branches; the q after an a that was drawn is not kept."""

    def odds(text: str) -> dict[str, float]:
        if len(text) in (1, 3):
            return {"a": 0.3, "b": 0.35, "c": 0.35}
        return {"q" if "a" in text else "x": 0.5, "y": 0.2, "z": 0.3} if len(text) < 9 else {".": 1.0}

    for seed in range(6):
        found = tree(odds, samples=3, seed=seed, sample_nk="always", tau_abs=0.31, lookaheads=(9,))
        assert parents(found) == [-1, 0, 0] and [t[1] for t in texts(found)] == ["b", "c", "b"]
        assert [found[0].text[3], found[2].text[3]] == ["b", "c"] and forced(found[2])[:4] == "0101"
        assert not any("q" in t and "a" not in t for t in texts(found))


@pytest.mark.parametrize("nk", ["none", "full", "always"])
def test_how_far_a_row_looks_ahead_changes_nothing(nk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def grown() -> list[tuple[str, str]]:
        return [(e.text, forced(e)) for e in tree(unsure, samples=6, sample_nk=nk, lookaheads=(3, 4), tau_ed=0.5)]

    far = grown()
    for ahead in (1, 3):
        monkeypatch.setattr("gruppo.stages.tree.AHEAD", ahead)
        assert grown() == far


def test_leaves_that_are_missing() -> None:
    """copy: they go on from where the tree left the root, each with luck of its own; if it has ended, they are it."""
    found = tree(unsure, samples=4, tau_abs=1.0, tree_tokens=3, fill="copy")
    assert {t[:3] for t in texts(found)} == {"aaa"} and len(set(texts(found))) > 1
    assert {forced(e) for e in found} == {"111" + "0" * 8} and parents(found) == [-1, 0, 0, 0]
    found = tree(unsure, samples=3, tau_abs=1.0, fill="copy")
    assert set(texts(found)) == {"a" * 10} and {forced(e) for e in found} == {"1" * 11}


@pytest.mark.parametrize(
    "fields",
    [
        {"eta": 0.5},
        {"tau_abs": 0.35},
        {"tau_rel": 0.1},
        {"tau_ed": 0.6},
        {"lookaheads": (3,)},
        {"max_candidates": 3, "tau_rel": 0.31},
        {"sample_nk": "full"},
        {"full_bar": 0.3},
        {"full_decay": 2.0},
        {"tree_tokens": 2},
        {"fill": "copy", "tau_abs": 0.4},
    ],
    ids=lambda f: next(iter(f)),
)
def test_every_field_matters(fields: dict[str, Any]) -> None:
    name = next(iter(fields))

    def seen(**some: Any) -> list[tuple[str, str, int]]:
        found = tree(sure_but(0) if "full_" in name else unsure, samples=6, **some)  # two rows, or all of them
        return [(e.text, forced(e), p) for e, p in zip(found, parents(found), strict=True)]

    assert seen(**fields) != seen(**{k: v for k, v in fields.items() if k != name})


# ---- with an engine that samples


def grown(rows: int = 1024, order: int = 1) -> tuple[Any, list[Episode]]:
    """Two prompts, in one order or the other; a policy that is nearly uniform, so a bar near 0."""
    m = LATR.but(rollout=LookaheadTree(eta=0.75, tau_abs=0.01, lookaheads=(2, 3), tau_ed=0.6))
    ctx = bench(m, lambda p, r: "", lambda e: 1.0, sampling=Sampling(max_tokens=7))
    ctx.engine = real_engine()
    ctx.engine.limits.rows = rows
    return ctx.engine, rolled(m, ctx, [task(i) for i in range(2)][::order], 8)


def of_the_tree(episodes: Sequence[Episode]) -> dict[str, list[list[int]]]:
    """The forced tokens of each task: what is sampled after them has the luck of its place in the draw."""
    out: dict[str, list[list[int]]] = {}
    for e in episodes:
        n = int(e.notes["forced"].values.sum())
        out.setdefault(e.task, []).append(e.sequences[0].ids[e.turns[0].start :][:n].tolist())
    return out


def test_the_same_tree_whatever_the_engine_does_at_once() -> None:
    """And it is recorded as the policy says: forced or drawn, a token has its own log-probability."""
    (engine, found), (_, narrow), (_, backwards) = grown(), grown(rows=3), grown(order=-1)
    assert sum(e.parent != -1 for e in found) >= 6
    assert [e.sequences[0].ids.tolist() for e in narrow] == [e.sequences[0].ids.tolist() for e in found]
    assert of_the_tree(backwards) == of_the_tree(narrow) == of_the_tree(found)
    for e in found:
        [s], t = e.sequences, e.turns[0]
        [logp] = engine.logprobs([s.ids[: t.start]], [s.ids[t.start : t.stop]])
        np.testing.assert_allclose(logp, s.logp[t.start : t.stop], atol=1e-6)


def test_what_a_branch_shares_is_not_computed_again() -> None:
    """Of a branch, the tree computes the token that it begins with, and what follows."""
    m = LATR.but(rollout=LookaheadTree(eta=1.0, tau_abs=0.005, lookaheads=(20,)))
    ctx = bench(m, lambda p, r: "", lambda e: 1.0, sampling=Sampling(max_tokens=9))
    ctx.engine = real_engine()
    found = rolled(m, ctx, [task(0)], 8)
    branches = [e for e in found if e.parent != -1]
    assert len(branches) == 7 and ctx.engine.prefilled == found[0].sequences[0].prompt_len + 7


def test_truncated_sampling() -> None:
    """What is forced could have been any id; what is drawn after it is one of the two most probable."""
    m = LATR.but(rollout=LookaheadTree(eta=1.0, tau_abs=0.005, lookaheads=(1,)))
    ctx = bench(m, lambda p, r: "", lambda e: 1.0, sampling=Sampling(max_tokens=6, top_k=2))
    ctx.engine = real_engine()
    for e in rolled(m, ctx, [task(0)], 4):
        s = e.sequences[0]
        sizes = [len((s.allowed or {})[p]) for p in range(s.prompt_len, len(s.ids))]
        assert [n == 2 for n in sizes] == [x == 0 for x in e.notes["forced"].values] and {0, 2} <= {0, *sizes}


def test_no_tree_is_grpo_bit_for_bit() -> None:
    (a, left), (b, right) = (steps_of(m, steps=2) for m in (LATR.but(rollout=LookaheadTree(eta=0.0)), method("grpo")))
    assert equal(a, b) and [r.facts for r in left] != []
    assert [e.uid for r in left for e in r.drawn] == [e.uid for r in right for e in r.drawn]


def test_it_trains() -> None:
    _, records = steps_of(LATR.but(rollout=LookaheadTree(lookaheads=(2, 3))), steps=2)
    assert all(len(r.drawn) == 12 for r in records)
    assert any(e.parent != -1 for r in records for e in r.drawn)


# ---- refusals


def test_refusals() -> None:
    for ages in ((20, 0), (20, 2.5)):
        with pytest.raises(
            ValueError, match=rf"lookaheads=20,{ages[1]}: a branch has a token of its own. Use whole numbe"
        ):
            LookaheadTree(lookaheads=ages)  # type: ignore[arg-type]
    bad: dict[str, Any] = {"tau_abs": 1.5, "tau_rel": -0.1, "max_candidates": 1, "tree_tokens": 0, "full_bar": 0.0}
    for name, value in bad.items():
        with pytest.raises(ValueError, match=f"{name}={value} is out of range"):
            LookaheadTree(**{name: value})
    with pytest.raises(ValueError, match=r"eta=1\.5 is out of range"):
        LookaheadTree(eta=1.5)
    with pytest.raises(ValueError, match="needs an engine that promises 'steer'"):
        refuse_weaker(LATR, "plain", {"keyed"})
    with pytest.raises(ValueError, match=r"is played in an environment.*arpo_agentic"):
        played(LATR, real_engine(), "guess", turns=2)
    assert Context().at(LATR.rollout.eta) == 1.0 and Context(step=250).at(LATR.rollout.eta) == 0.5
