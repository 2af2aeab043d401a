"""Exact worlds with answers of different lengths, prompts of several kinds, and rewards that are turned."""

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest
import torch

from gruppo.data import pack
from gruppo.lab.tabular import Setup, World, train_exact
from gruppo.lab.tabular.frame import Frame
from gruppo.lab.tabular.measure import measured
from gruppo.lab.tabular.quick import turned
from gruppo.lab.tabular.tables import Tables
from gruppo.methods import method
from gruppo.methods.kdrl import TeacherKL
from gruppo.stages import Method, Role
from gruppo.stages.curriculum import Uniform
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.select import TopEntropy
from gruppo.tasks.base import domains_of

SMALL = World(prompts=3, answers=6, depth=2, shortest=1, right=2)


@dataclass(frozen=True)
class Mine(Uniform):
    """A curriculum of one's own, which asks as usual: trained by the loop."""


@pytest.mark.parametrize("world", [SMALL, World(prompts=3, answers=9, depth=2, right=2)])
def test_turned_rewards_are_what_pack_makes_of_turned_episodes(world: World) -> None:
    """Twice, because the second batch of equally long answers is made from the first."""
    exact = world.of(1)
    tables = Tables(exact)
    frame = Frame(tables, torch.tensor([0]), 2, 3)
    asked_PX, turned_E = torch.tensor([[0, 2]]), torch.tensor([True, False, True, False, False, True])
    for turn in range(2):
        answer_E = (torch.arange(6) * (turn + 2) + 1) % tables.answers
        batch = frame.batch(asked_PX, answer_E, turned_E)
        numbers = (asked_PX.flatten().repeat_interleave(3) * tables.answers + answer_E).tolist()
        episodes = [exact.episode(int(u), n) for u, n in zip(frame.uid_E, numbers, strict=True)]
        for e, g, t in zip(episodes, frame.group_E.tolist(), turned_E.tolist(), strict=True):
            e.group = f"group {g}"
            e.reward["task"] = 1 - e.reward["task"] if t else e.reward["task"]
        want = pack(episodes, dtype=torch.float64)
        for name in (n for n in want.columns if n.startswith(("reward", "return"))):
            assert torch.equal(batch.columns[name].nan_to_num(-7), want.columns[name].nan_to_num(-7)), name
        plain = frame.batch(asked_PX, answer_E)  # nothing stays turned
        assert torch.equal(plain.reward_E, tables.reward_QA.flatten()[torch.tensor(numbers)])


@pytest.mark.parametrize("m", [method("rloo"), method("rloo").but(curriculum=Mine())], ids=["quick", "loop"])
def test_rewards_that_are_all_turned_move_the_policy_the_other_way(m: Method) -> None:
    setup = Setup(SMALL, steps=1, prompts=3, samples=6, optimiser="sgd", every=1)
    changes: list[dict[str, Any]] = [{}, {"flip": 1.0}, {"flip": 1.0, "flip_every": 2}]
    true, back, half = (train_exact(m, setup, seeds=2, lr=0.5, clip_norm=inf, **more) for more in changes)
    start = Tables(SMALL.of(0)).start([SMALL.of(0), SMALL.of(1)])
    assert torch.allclose(back.theta - start, start - true.theta, atol=1e-12)
    assert float((true.theta - start).norm()) > 0.01
    assert torch.equal(half.theta, true.theta)  # the first step is not the second


def test_a_quick_step_logs_of_its_batch_what_the_loop_logs() -> None:
    """With as many answers as there are, the shares of both ways come together."""
    setup = Setup(SMALL, steps=1, prompts=3, samples=100, every=1)
    tokens = (TopEntropy(share=0.5),)
    quick, loop = (
        train_exact(m.but(select=tokens), setup, seeds=2, lr=0.0)
        for m in (method("grpo"), method("grpo").but(curriculum=Mine()))
    )
    assert (quick.how, loop.how) == ("apart", "loop")
    for name in ("kept", "adv_std", "adv_live", "dead_groups"):
        assert quick.last(name) == pytest.approx(loop.last(name), abs=0.12), name
    assert 0.4 < float(quick.last("kept").mean()) < 0.9 and float(quick.last("dead_groups").sum()) == 0


def test_one_reward_of_ten_is_turned() -> None:
    chance = [Setup(flip=0.1, flip_every=k).flips(step) for k in (1, 3) for step in range(6)]
    assert chance == [0.1] * 6 + [0, 0, 0.1, 0, 0, 0.1]
    some = turned(0.1, 3, torch.arange(20_000))
    assert some is not None and float(some.double().mean()) == pytest.approx(0.1, abs=0.01)
    assert turned(0.0, 3, torch.arange(4)) is None


def test_words_of_several_lengths() -> None:
    assert SMALL.of(0).answers == ("a", "b", "aa", "ab", "ba", "bb")
    assert World(answers=9, depth=2, shortest=2).of(0).answers == World(answers=9, depth=2).of(0).answers
    tables = Tables(SMALL.of(0))
    assert tables.length_A.tolist() == [2, 2, 3, 3, 3, 3]  # with the token that ends an answer
    theta = torch.zeros(1, 3, tables.cells).double()  # a third each: a, b at first; then the end, a, b
    assert float(measured(tables, theta, theta)["length"][0]) == pytest.approx(2 / 3 + 2)


def test_chains_that_may_slip_once() -> None:
    assert World(form="slips", depth=3, answers=7).of(0).answers == ("aaa", "baa", "caa", "aba", "aca", "aab", "aac")
    short = World(form="slips", depth=4, answers=5, shortest=2, right=2).of(0)
    assert short.answers == ("aaaa", "ba", "ab", "aab", "aaab") and short.right == ("aaaa", "aab")
    long = World(form="slips", depth=40, answers=41, right=1, low=0.1, high=0.1, prompts=1)
    tables = Tables(long.of(0))
    assert tables.cells == 80  # after a slip nothing is left to choose, so a place is a choice of two
    start = tables.start([long.of(0)])
    assert float(measured(tables, start, start)["reward"][0]) == pytest.approx(0.1)
    assert float(tables.log_p(start)[0, 0, tables.path_AD[0]].sum().exp()) == pytest.approx(0.1)


@pytest.mark.parametrize("m", [method("rloo"), method("rloo").but(curriculum=Mine())], ids=["quick", "loop"])
def test_a_chain_of_forty_letters_is_learned(m: Method) -> None:
    world = World(form="slips", depth=40, answers=41, right=1, low=0.3, high=0.3, prompts=1, steep=0.8)
    trained = train_exact(m, Setup(world, steps=15, prompts=1, samples=8, every=0), seeds=2, lr=0.3)
    assert (trained.last("reward") > 0.7).all()


def test_the_loop_counts_what_it_samples() -> None:
    """Three prompts, four answers of three tokens; probes of a segment method are sampled, too."""
    setup = Setup(World(prompts=3, answers=4, depth=2, right=1), steps=1, prompts=3, samples=4, every=1)
    plain = train_exact(method("rloo").but(curriculum=Mine()), setup, seeds=2)
    assert plain.how == "loop" and plain.last("sampled").tolist() == [36, 36]
    assert (train_exact("spo_segment", setup, seeds=2).last("sampled") > 36).all()


def test_kinds_of_prompts_are_bands_of_difficulty() -> None:
    tasks = World(prompts=10, domains=5).of(0).tasks
    assert list(domains_of(tasks).values()) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert len(domains_of(World(prompts=10).of(0).tasks)) == 1


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match=r"flip=0.1 has no effect along the expected gradient"):
        Setup(flip=0.1, gradient="expected")
    with pytest.raises(ValueError, match="answers=16 with depth=4, shortest=1: no alphabet"):
        World(answers=16, depth=4, shortest=1).of(0)
    with pytest.raises(ValueError, match="shortest=10 is above depth=4"):
        World(answers=5, depth=4, shortest=10, right=1, form="slips").of(0)
    with pytest.raises(ValueError, match=r"answers=16 with form=slips, depth=4: .* such as 5"):
        World(answers=16, depth=4, form="slips").of(0)


DISTILLED = method("kdrl").but(objective=(ClippedSurrogate(coef=0.0),), penalties=(TeacherKL(teacher_coef=1.0),))


@pytest.mark.parametrize("m", [DISTILLED, DISTILLED.but(curriculum=Mine())], ids=["quick", "loop"])
def test_distillation_ends_at_the_rate_of_the_teacher(m: Method) -> None:
    """Without a teacher the given role is the initial policy, and nothing pulls at all."""
    setup = Setup(World(prompts=2, answers=4, right=1, low=0.1, high=0.1), prompts=2, samples=16, every=0)
    taught = train_exact(m, setup, seeds=1, lr=0.2, teacher=0.7, steps=40)
    alone = train_exact(m, setup, seeds=1, lr=0.2, steps=2)
    assert taught.last("reward") == pytest.approx(0.7, abs=0.1)
    assert alone.last("reward") == pytest.approx(0.1, abs=1e-9)


def test_the_teacher_of_a_world_differs_in_its_rates_alone() -> None:
    world = SMALL.of(3)
    given = Setup(SMALL, prompts=3, teacher=0.7).given(world)
    right = world.right_A
    assert given.mass_QA[:, right].sum(1) == pytest.approx([0.7] * 3)
    for mask in (right, ~right):
        mine, theirs = (w.mass_QA[:, mask] / w.mass_QA[:, mask].sum(1, keepdim=True) for w in (world, given))
        assert torch.allclose(mine, theirs)
    assert Setup(SMALL, prompts=3).given(world) is world


@pytest.mark.parametrize("more", [{"noise": 4}, {"gradient": "expected"}])
def test_a_teacher_that_would_not_be_asked_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"teacher=0\.7 has no effect"):
        Setup(SMALL, prompts=3, teacher=0.7, **more)


def test_a_teacher_without_a_role_and_a_model_as_a_role_are_refused() -> None:
    """Neither had an effect, and nothing was said."""
    setup = Setup(SMALL, prompts=3, steps=1)
    with pytest.raises(ValueError, match=r"teacher=0\.7 has no effect on grpo: .*policy, ref.*kdrl \(teacher\)"):
        train_exact("grpo", setup, teacher=0.7)
    copy = DISTILLED.but(cast={**DISTILLED.cast, "teacher": Role()})  # a copy of the policy is not given
    with pytest.raises(ValueError, match=r"teacher=0\.7 has no effect on kdrl"):
        train_exact(copy, setup, teacher=0.7)
    with pytest.raises(ValueError, match=r"method\.cast\.teacher=tiny: .* tables"):
        train_exact(DISTILLED.but(cast={**DISTILLED.cast, "teacher": Role(start="tiny")}), setup)
    assert train_exact(copy, setup, seeds=1).how == train_exact(DISTILLED, setup, seeds=1, teacher=0.7).how


@pytest.mark.parametrize(
    "more", [{}, {"answers": 256, "depth": 2}, {"depth": 2}, {"form": "slips", "right": 1}, {"low": 1e-100}]
)
def test_steep_is_refused_where_a_logit_would_be_infinite(more: dict[str, Any]) -> None:
    """And what the words allow has finite logits; so have the smallest teachers."""
    with pytest.raises(ValueError, match=r"steep=1e-300 with answers=.*Use steep from \S+ to 1") as said:
        World(prompts=2, steep=1e-300, **more)
    least = float(str(said.value).partition("steep from ")[2].split()[0])
    world = World(prompts=2, steep=least, **more)
    assert least < 1
    with pytest.raises(ValueError, match=r"Use steep from"):
        World(prompts=2, steep=least / 1.3, **more)
    for exact in (world.of(0), Setup(world, prompts=2, teacher=1e-40).given(world.of(0))):
        assert exact.theta.isfinite().all() and Tables(exact).start([exact]).isfinite().all()


def test_a_start_that_guesses_short() -> None:
    """Each letter more is a quarter as likely, among right and among wrong answers; success rates stay."""
    plain, short = (World(prompts=3, answers=6, depth=2, shortest=1, right=2, steep=1, longer=x) for x in (1.0, 0.25))
    was, now = plain.of(3).mass_QA, short.of(3).mass_QA
    right_A = plain.of(3).right_A
    assert torch.allclose(now[:, right_A].sum(-1), was[:, right_A].sum(-1), atol=1e-15)
    assert now.sum(-1).tolist() == pytest.approx([1.0] * 3)
    for q in range(3):  # wrong: two of one letter and two of two, or as the right ones leave them
        for mask in (right_A, ~right_A):
            letters = torch.tensor([len(a) for a, m in zip(plain.of(3).answers, mask, strict=True) if m])
            by_hand = 0.25 ** letters.double()
            assert torch.allclose(now[q, mask] / now[q, mask].sum(), by_hand / by_hand.sum())
    tables = Tables(short.of(3))
    lengths = [measured(tables, s, s)["length"][0] for s in (tables.start([w.of(3)]) for w in (plain, short))]
    assert lengths[1] < lengths[0] - 0.3


def test_a_start_that_guesses_short_changes_no_draw_of_the_seed() -> None:
    """The same shares, each times what its length says: two worlds of a seed differ by lengths alone."""
    plain, short = (World(prompts=2, answers=6, depth=2, shortest=1, right=2, longer=x).of(5) for x in (1.0, 0.5))
    ratio_QA = short.mass_QA / plain.mass_QA
    for mask in (plain.right_A, ~plain.right_A):
        by_length: dict[int, list[float]] = {}
        for a, r in zip((a for a, m in zip(plain.answers, mask, strict=True) if m), ratio_QA[0, mask], strict=True):
            by_length.setdefault(len(a), []).append(float(r))
        for found in by_length.values():
            assert found == pytest.approx([found[0]] * len(found))
        if len(by_length) == 2:
            assert by_length[2][0] == pytest.approx(by_length[1][0] / 2)


def test_a_start_that_guesses_short_is_refused_without_effect_or_end() -> None:
    for more in ({"shortest": 0}, {"shortest": 2}):
        with pytest.raises(ValueError, match="all answers are equally long"):
            World(answers=9, depth=2, longer=0.5, **more)
    with pytest.raises(ValueError, match=r"1e-195 times as likely.*Use longer from 0.1 to 1"):
        World(form="slips", answers=40, depth=40, shortest=1, right=1, longer=1e-5)


def test_the_advantages_of_groups_of_equal_rewards() -> None:
    """NGRPO has some of them, and at first, where nearly nothing is right, nearly all; GRPO none."""
    world = World(prompts=8, answers=16, right=1, low=1e-6, high=1e-6)
    setup = Setup(world, steps=1, prompts=8, samples=4, every=1)
    virtual = method("ngrpo").but(select=())
    grpo, ngrpo = (train_exact(m, setup, seeds=3, lr=0.0) for m in (method("grpo"), virtual))
    assert ngrpo.how == "together"
    assert grpo.last("adv_equal").tolist() == [0, 0, 0] and ngrpo.last("adv_equal") == pytest.approx([1, 1, 1])
    some = train_exact(virtual, setup, seeds=3, lr=0.0, low=0.5, high=0.5)
    live, dead = some.last("adv_equal"), some.last("dead_groups")
    assert (live >= 0).all() and (live <= dead + 1e-9).all()  # groups that are all right have none
