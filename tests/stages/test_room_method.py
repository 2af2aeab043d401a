"""Methods as values: chains, differences, tables; nearest names; the rest of the rooms' own rules."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from rooms import context, prompt, rolled, task

from gruppo.data import Batch, Episode, Source, Status, Use, pack
from gruppo.methods import described, method, summary
from gruppo.stages import Ask, Context, Method, Need, Occupant, Role, Schedule, StepRecord, difference, kind, need
from gruppo.stages.check import check_first_batch, problems
from gruppo.stages.context import Memory
from gruppo.stages.credit import Gae, GroupNormalised, LeaveOneOut, RunningBaseline, whitened
from gruppo.stages.names import nearest
from gruppo.stages.objective import NOW, ClippedSurrogate, PolicyGradient
from gruppo.stages.occupant import setting
from gruppo.stages.penalties import IN_FULL, EntropyBonus, ReferenceKL
from gruppo.stages.record import from_table, record_hash, tag, to_table
from gruppo.stages.requires import BASELINE_EPISODES, BINARY_REWARD, PAIRS
from gruppo.stages.rollout import Group
from gruppo.stages.select import MaskTruncated, TopEntropy
from gruppo.stages.terms import Term
from gruppo.stages.update import Passes
from gruppo.tasks.imports import load_object

GRPO, PPO, DAPO = method("grpo"), method("ppo"), method("dapo")


def plain(**rooms: Any) -> Method:
    return Method(**{"name": "m", "credit": GroupNormalised(), "objective": PolicyGradient(), **rooms})


def batch(*rewards: list[float]) -> Batch:
    return pack(episodes(*rewards), dtype=torch.float64)


def episodes(*rewards: list[float]) -> list[Episode]:
    out = rolled(Group(), context(), [prompt(Ask(task(i), len(mine))) for i, mine in enumerate(rewards)])
    for e, r in zip(out, [r for mine in rewards for r in mine], strict=True):
        e.reward = {"task": r}
    return out


# chains


def test_a_bare_occupant_is_a_chain_of_one() -> None:
    m = plain(penalties=EntropyBonus(), select=TopEntropy())
    assert m.penalties == (EntropyBonus(),) and m.select == (TopEntropy(),) and m.reward == ()


def test_what_is_no_occupant_is_refused() -> None:
    class Plain(Occupant):
        """Not a dataclass."""

    @dataclass(frozen=True)
    class Other:
        """Not an occupant."""

    for wrong in (Plain(), Other(), 3):
        with pytest.raises(ValueError, match=r"room credit holds .* which is no occupant"):
            plain(credit=wrong)


def test_a_bare_objective_is_the_whole_chain_and_a_tuple_adds() -> None:
    """In other chains a bare occupant is added, or takes the place of one of its own class."""
    m = plain(penalties=(EntropyBonus(), ReferenceKL()))
    assert m.but(objective=ClippedSurrogate()).objective == (ClippedSurrogate(),)
    both = m.but(objective=(*m.objective, ClippedSurrogate()))
    assert both.objectives == {"policy": (PolicyGradient(), ClippedSurrogate())}
    assert said(m, both) == [f"objective: + {ClippedSurrogate()}"]
    stronger = EntropyBonus(entropy_coef=0.5)
    assert m.but(penalties=stronger).penalties == (stronger, ReferenceKL())
    assert m.but(select=MaskTruncated()).select == (MaskTruncated(),)
    back = from_table(to_table(both))
    assert back == both and back.objective == both.objective


def test_a_chain_of_one_objective_has_the_hash_of_the_objective_alone() -> None:
    """Records that were written before objectives were chains keep their hash; a chain of two has another."""
    m = plain()
    table = to_table(m, brief=True)
    table["objective"] = table["objective"][0]  # as it was written
    for talk in ("doc", "paper", "base", "checked", "confidence"):
        table.pop(talk)
    assert record_hash(m) == hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]
    assert record_hash(m) == record_hash(m.but(checked="the authors' code", confidence="code", doc="x"))
    assert record_hash(m) != record_hash(m.but(objective=(*m.objective, ClippedSurrogate())))


# differences


def said(a: Method, b: Method) -> list[str]:
    return [str(c) for c in difference(a, b)]


def test_differences_of_fields_chains_and_roles() -> None:
    m = plain(penalties=(EntropyBonus(), ReferenceKL()))
    assert said(m, m) == []
    assert said(m, m.but(credit=GroupNormalised(eps=0.5))) == ["credit.group_normalised.eps: 1e-06 → 0.5"]
    assert said(m, m.but(penalties=(EntropyBonus(entropy_coef=0.5), ReferenceKL()))) == [
        "penalties.entropy_bonus.entropy_coef: 0.01 → 0.5"
    ]
    assert said(m, m.but(penalties=(ReferenceKL(), EntropyBonus()))) == [], "by kind, not by place"
    assert said(m, m.but(penalties=(ReferenceKL(),))) == [f"penalties: - {EntropyBonus()}"]
    assert said(m, m.but(select=MaskTruncated())) == ["select: + MaskTruncated()"]
    assert said(m, m.but(credit=LeaveOneOut())) == [f"credit: {GroupNormalised()} → {LeaveOneOut()}"]


def test_an_objective_alone_is_that_of_the_policy() -> None:
    two = plain(objective={"policy": PolicyGradient(), "critic": ClippedSurrogate()})
    assert said(plain(), two) == [f"objective.critic: + {ClippedSurrogate()}"]
    assert said(two, plain()) == [f"objective.critic: - {ClippedSurrogate()}"]
    assert two.objectives == {"policy": (PolicyGradient(),), "critic": (ClippedSurrogate(),)}
    assert plain().objectives == {"policy": (PolicyGradient(),)}
    cast = plain().but(cast={"ref": Role(train=True)})
    assert said(plain(), cast) == ["cast.ref.role.train: False → True"]


@pytest.mark.parametrize(
    ("name", "snake"),
    [("TopEntropy", "top_entropy"), ("ReferenceKL", "reference_kl"), ("Gae", "gae"), ("_Own", "own"), ("My_", "my_")],
)
def test_kinds(name: str, snake: str) -> None:
    assert kind(type(name, (), {})) == snake


def test_nearest_names() -> None:
    known = ["linear", "cosine", "warmup", "lienar", "linera", "liner"]
    assert nearest("xyz", known) == ""
    assert nearest("cosin", known) == " (nearest: cosine)"
    assert nearest("abcdef", ["abcxyz"]) == " (nearest: abcxyz)", "half of the letters is near"
    assert nearest("abcdef", ["abwxyz"]) == ""
    near = ["abcdeg", "abcdeh", "abcdei", "abcdej"]
    assert nearest("abcdef", [*near[:3], "abdcfe"]).startswith(" (nearest: abdcfe, "), "the same letters come first"
    assert "abdcfe" not in nearest("abcdef", [*near, "abdcfe"]), "if they are among the four nearest"
    assert nearest("abcdef", near).count(",") == 1


# tables


def test_a_schedule_is_a_text_and_neutral_fields_are_left_out_in_brief() -> None:
    kl = ReferenceKL(kl_coef=Schedule("linear(0.1, 0.0, steps=3)"))
    assert to_table(kl)["estimator"] == "k3" and to_table(kl)["kl_coef"] == "linear(0.1, 0.0, steps=3)"
    assert (
        "estimator" not in to_table(kl, brief=True) and to_table(ReferenceKL(estimator="k1"), brief=True)["estimator"]
    )
    assert "estimator" not in to_table({"a": [kl]}, brief=True)["a"][0], "all the way down"
    assert from_table(to_table(kl)) == kl


def test_a_method_comes_back_as_it_was() -> None:
    for m in (GRPO, PPO, method("vapo")):
        back = from_table(to_table(m))
        assert back == m and record_hash(back) == record_hash(m)
        assert isinstance(back.cast, MappingProxyType) and isinstance(back.breaks, MappingProxyType)


@dataclass(frozen=True)
class HasCast(Occupant):
    """An occupant with a field that a method has, too."""

    cast: Any = ()


def test_only_a_methods_cast_is_a_mapping_that_nobody_writes() -> None:
    back = from_table(to_table(HasCast(cast={"a": 1.0})))
    assert type(back.cast) is dict and back == HasCast({"a": 1.0})


def test_kinds_that_are_none() -> None:
    with pytest.raises(ValueError, match="is no dataclass"):
        from_table({"kind": "gruppo.stages.names:nearest"})
    with pytest.raises(ValueError, match="is no dataclass"):
        from_table({"kind": "gruppo.methods.grpo:GRPO"})
    with pytest.raises(ValueError, match="written with version 9, the code is version 1"):
        from_table({"kind": "gruppo.stages.credit:Gae@9"})
    assert (
        from_table({"kind": "gruppo.stages.credit:Gae@1"}) == from_table({"kind": "gruppo.stages.credit:Gae"}) == Gae()
    )
    assert tag(Gae) == "gruppo.stages.credit:Gae@1"


def test_a_folder_may_have_the_sign_of_a_version(tmp_path: Path) -> None:
    """A class of a user's file is named by the file, `…/me@home/own.py:Own@1`."""
    (tmp_path / "me@home").mkdir()
    file = tmp_path / "me@home" / "own.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom gruppo.stages import Occupant\n\n\n"
        "@dataclass(frozen=True)\nclass Own(Occupant):\n    x: float = 1.0\n"
    )
    own = load_object(f"{file}:Own")
    assert from_table(to_table(own(2.0))) == own(2.0)


def test_a_field_that_came_later() -> None:
    @dataclass(frozen=True)
    class Later(Occupant):
        more: float = setting(0.5, added=True)

    assert Later().more == 0.5 and Later.__dataclass_fields__["more"].metadata["neutral"] == 0.5


# the catalogue


def test_a_method_is_described_by_its_file_unless_it_brings_its_own_words() -> None:
    import gruppo.methods.grpo as module

    assert described(plain(), None).doc == "" and described(plain(doc=" own "), module).doc == "own"
    assert described(plain(), module).doc == (module.__doc__ or "").strip()
    assert summary("\n first: line\n second\n third") == "first: line"
    assert GRPO.doc.startswith("GRPO") and summary(GRPO.doc) == GRPO.doc.splitlines()[0]


def test_a_methods_file_may_stand_in_a_folder_with_a_colon(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    file = tmp_path / "a:b" / "mine.py"
    file.write_text('"""My own."""\nfrom gruppo.methods.grpo import GRPO\n\nMINE = GRPO.but(name="mine")\n')
    assert method(f"{file}:MINE").doc == "My own."


# what the rooms need


def test_needs_by_name() -> None:
    ctx = Context()
    assert need("logp", when="step") == NOW and need("kl", against="ref", when="step") == IN_FULL
    old, ref = need("logp", "old"), need("logp", "ref")
    wanted: Mapping[Any, tuple[Need, ...]] = {
        Gae(): (need("value", "critic"),),
        Gae(kl_coef=0.1): (need("value", "critic"), old, ref),
        LeaveOneOut(): (),
        LeaveOneOut(kl_coef=0.1): (old, ref),
        ReferenceKL(): (NOW, ref),
        ReferenceKL(estimator="full"): (IN_FULL,),
        EntropyBonus(): (need("entropy", when="step"),),
        ClippedSurrogate(): (NOW, old),
        PolicyGradient(): (NOW,),
        TopEntropy(): (need("entropy", "old"),),
    }
    for occupant, needs in wanted.items():
        assert occupant.needs(ctx) == needs, occupant
    reinforce_pp = method("reinforce_pp").credit
    assert reinforce_pp.needs(ctx) == (old, ref) and type(reinforce_pp)(kl_coef=0.0).needs(ctx) == ()
    assert method("vapo").credit.needs(ctx) == (need("value", "critic"),)
    assert method("vapo").objectives["policy"][1].needs(ctx) == (NOW,)


@dataclass(frozen=True)
class Works(Occupant):
    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "teacher"),)


@dataclass(frozen=True)
class Compares(Occupant):
    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("kl", against="nobody", when="step"),)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return []


def test_roles_that_are_not_there() -> None:
    [said] = problems(plain(rollout=Works()), Context(), samples=2)
    assert "works in rollout needs logp@teacher" in said and "the cast has no role 'teacher'" in said
    teacher = {"teacher": Role()}
    assert problems(plain(rollout=Works()).but(cast=teacher), Context(), samples=2) == []
    [said] = problems(PPO.but(penalties=Compares()), Context(), samples=2)
    assert said.endswith("Use against=… with one of policy, ref."), (
        "not the critic, which is no language model, nor old"
    )


def test_sources_that_nobody_has_a_rule_for() -> None:
    @dataclass(frozen=True)
    class Makes(Occupant):
        writes = ("expert", "hint")

    @dataclass(frozen=True)
    class Handles(Occupant):
        reads = ("expert",)

        def terms(self, ctx: Context, batch: Batch) -> list[Term]:
            return []

    [said] = problems(plain(rollout=Makes()), Context(), samples=2)
    assert "makes expert tokens" in said
    assert problems(plain(rollout=Makes(), penalties=Handles()), Context(), samples=2) == []


# the first batch


def test_predicates_of_the_first_batch() -> None:
    binary, baseline = BINARY_REWARD.at_first_batch, BASELINE_EPISODES.at_first_batch
    assert binary(batch([0.0, 1.0], [1.0])) == binary(batch([1.0])) == ""
    assert "3 different values" in binary(batch([0.0, 1.0, 0.5]))
    assert "rewards are 1 and 2" in binary(batch([1.0, 2.0]))
    found = episodes([1.0, 0.0])
    assert "no episode is one" in baseline(pack(found))
    found[0].use = Use.BASELINE
    assert baseline(pack(found)) == ""
    found[0].status = Status.TIMEOUT
    assert "none was judged" in baseline(pack(found))


def test_recorded_answers_must_differ_once_and_sampled_ones_may_come_to() -> None:
    found, pairs = episodes([1.0, 1.0]), PAIRS.at_first_batch
    assert pairs(pack(found)) == ""
    for e in found:
        e.source = Source.EXPERT
    made = pack(found)
    assert "nothing to compare" in pairs(made)
    one = {"win_P": torch.tensor([0]), "lose_P": torch.tensor([1]), "margin_P": torch.ones(1)}
    assert pairs(made.with_columns(**one)) == ""
    found[0].source = Source.POLICY
    assert pairs(pack(found)) == ""


def test_equal_rewards_are_worth_a_warning_where_rewards_are_compared() -> None:
    assert check_first_batch(GRPO, batch([2.0, 2.0])) == [
        "every reward of the first batch is 2: nothing can be compared yet."
    ]
    assert check_first_batch(GRPO, batch([2.0, 1.0])) == check_first_batch(GRPO, batch([1.0, 2.0, 2.0])) == []
    assert check_first_batch(method("rft"), batch([2.0, 2.0])) == [], "its objective compares nothing"
    assert len(check_first_batch(GRPO, batch([2.0]))) == 1


# credit that remembers


def test_a_running_baseline_by_hand() -> None:
    credit, memory = RunningBaseline(decay=0.75), Memory()
    b = batch([1.0, 0.0], [2.0])

    def adv(made: Batch) -> list[float]:
        return credit(context(memory=memory), made)["adv_N"][::3].tolist()

    assert adv(b) == [0.0, -1.0, 1.0], "at first the mean of the batch"
    for made, after in ((b, 1.0), (batch([3.0]), 0.75 * 1.0 + 0.25 * 3.0), (batch([0.0]), 0.75 * 1.5)):
        with memory.writing():
            credit.observe(StepRecord(0, [], made, {}), memory)
        assert memory["baseline"] == pytest.approx(after)
    assert adv(b) == pytest.approx([-0.125, -1.125, 0.875])
    failed = episodes([1.0])
    failed[0].status = Status.TIMEOUT
    for nothing in (None, pack(failed, dtype=torch.float64)):
        with memory.writing():
            credit.observe(StepRecord(0, [], nothing, {}), memory)
    assert memory["baseline"] == pytest.approx(1.125)
    assert RunningBaseline()(context(), pack(failed, dtype=torch.float64))["adv_N"].tolist() == [0.0] * 3


def test_one_value_alone_is_whitened_to_nothing() -> None:
    b = batch([1.0])
    one = whitened(b, torch.tensor([1]), torch.tensor([5.0], dtype=torch.float64))
    assert one["adv_N"].tolist() == [0.0] * 3
    two = whitened(b, torch.tensor([2, 0]), torch.tensor([5.0, 1.0], dtype=torch.float64))["adv_N"].tolist()
    assert two[1] == 0.0 and two[2] == pytest.approx(-two[0]) and two[2] > 0.5


def test_given_tokens_do_not_count_in_the_kl_of_an_answer() -> None:
    found = episodes([1.0, 0.0])
    found[0].sequences[0].source[-1] = Source.FORCED
    columns = {
        "logp_old_N": torch.full((6,), -1.0, dtype=torch.float64),
        "logp_ref_N": torch.full((6,), -2.0, dtype=torch.float64),
    }
    made = LeaveOneOut(kl_coef=0.5)(context(), pack(found, dtype=torch.float64).with_columns(**columns))["adv_N"]
    assert made.tolist() == pytest.approx(
        [(1.0 - 0.5 * 2) - (0.0 - 0.5 * 3)] * 3 + [(0.0 - 0.5 * 3) - (1.0 - 0.5 * 2)] * 3
    )


# steps and terms


def test_steps_of_a_batch() -> None:
    assert [Passes(e, m).steps for e, m in ((1, 1), (2, 3), (3, 1), (1, 4))] == [1, 6, 3, 4]
    for e, m in ((0, 1), (1, 0), (0, 0)):
        with pytest.raises(ValueError, match=r"=0 is out of range: use a whole number >= 1\."):
            Passes(e, m)


def test_a_term_is_a_mean_over_tokens_of_its_own_rows_unless_it_says_so() -> None:
    t = Term("x", torch.ones(3, dtype=torch.bool))
    assert (t.mean, t.coef, t.at, t.additive) == ("token", 1.0, "N", True)
