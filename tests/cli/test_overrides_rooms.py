"""`key=value` on the rooms of a method: chains, occupants, roles and schedules."""

import dataclasses
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runs import rows, trained
from test_overrides import at

from gruppo.cli import overrides
from gruppo.cli.overrides import apply, from_toml
from gruppo.methods import all_methods, method
from gruppo.methods.chord import ExpertLikelihood
from gruppo.stages import Ema, Schedule, kind
from gruppo.stages.credit import Gae, LeaveOneOut
from gruppo.stages.objective import ClippedSurrogate, ValueLoss
from gruppo.stages.penalties import EntropyBonus, ReferenceKL
from gruppo.train.config import RunConfig

DEFAULT = RunConfig()


def test_chains() -> None:
    plain = DEFAULT.method.penalties
    assert apply(DEFAULT, ["method.penalties+=entropy_bonus"]).method.penalties == (*plain, EntropyBonus())
    again = apply(DEFAULT, ["method.penalties+=entropy_bonus", "method.penalties+=entropy_bonus"])
    assert len(again.method.penalties) == 2  # one of its own class takes its place
    assert apply(DEFAULT, ["method.penalties-=reference_kl"]).method.penalties == ()
    for nothing in ("none", ""):
        assert apply(DEFAULT, [f"method.penalties={nothing}"]).method.penalties == ()
    assert apply(DEFAULT, ["method.penalties=entropy_bonus"]).method.penalties == (EntropyBonus(),)
    deep = apply(DEFAULT, ["method.penalties.entropy_bonus.entropy_coef=0.5", "method.penalties+=entropy_bonus"])
    assert deep.method.penalties[1] == EntropyBonus(entropy_coef=0.5)
    both = apply(DEFAULT, ["method.reward+=dapo", "method.select+=dapo", "method.select+=top_entropy"])
    assert [kind(o) for o in both.method.select] == ["redraw_equal_groups", "top_entropy"]
    assert [kind(o) for o in both.method.reward] == ["overlong_shaping"]
    swapped = apply(DEFAULT, ["method.penalties-=reference_kl", "method.penalties+=entropy_bonus"])
    assert swapped.method.penalties == (EntropyBonus(),)


def test_objectives_are_a_chain() -> None:
    """A field is that of the first occupant that has one; an occupant is named where two have it."""
    plain = DEFAULT.method.objective
    [one] = apply(DEFAULT, ["method.objective.clip_high=0.3"]).method.objective
    assert one == ClippedSurrogate(clip_high=0.3) == replace(plain[0], clip_high=0.3)
    assert apply(DEFAULT, ["method.objective.clipped_surrogate.clip_high=0.3"]).method.objective == (one,)
    more = apply(DEFAULT, ["method.objective+=expert_likelihood", "method.objective.expert_coef=0.5"]).method
    assert more.objective == (*plain, ExpertLikelihood(expert_coef=0.5))
    two = ["method=chord", "method.objective.mean=sequence", "method.objective.expert_likelihood.mean=episode_sum"]
    assert [o.mean for o in apply(DEFAULT, two).method.objective] == ["sequence", "episode_sum"]
    less = apply(DEFAULT, ["method=chord", "method.objective-=expert_likelihood"]).method
    assert less.objective == method("chord").objective[:1]
    whole = apply(DEFAULT, ["method.objective=likelihood"]).method
    assert [kind(o) for o in whole.objective] == ["likelihood"]
    with pytest.raises(ValueError, match=r"method\.objective\.clip_hihg: there is no 'clip_hihg' here.*clip_high"):
        apply(DEFAULT, ["method.objective.clip_hihg=0.3"])


def test_objectives_of_a_role() -> None:
    ppo = method("ppo").objective
    for path in ("critic.clip_value", "critic.value_loss.clip_value"):
        changed = apply(DEFAULT, ["method=ppo", f"method.objective.{path}=0.2"]).method.objective
        assert changed == {**ppo, "critic": (ValueLoss(clip_value=0.2),)}
    changed = apply(DEFAULT, ["method=ppo", "method.objective.policy.clip_high=0.3"]).method.objective
    assert changed["policy"][0].clip_high == 0.3 and changed["critic"] == ppo["critic"]
    with pytest.raises(ValueError, match=r"ValueLoss has no 'clip_valu'|no 'clip_valu' here.*clip_value"):
        apply(DEFAULT, ["method=ppo", "method.objective.critic.clip_valu=0.2"])


def test_chains_of_a_role() -> None:
    """`+=` and `-=` on a method that trains two: the policy's, the one that is named, or the one that has it."""
    ppo, vapo = method("ppo").objective, method("vapo").objective
    for room in ("objective", "objective.policy"):
        more = apply(DEFAULT, ["method=ppo", f"method.{room}+=expert_likelihood"]).method.objective
        assert more == {**ppo, "policy": (*ppo["policy"], ExpertLikelihood())}
        less = apply(DEFAULT, ["method=vapo", f"method.{room}-=imitate_right"]).method.objective
        assert less == {**vapo, "policy": vapo["policy"][:1]}
    assert apply(DEFAULT, ["method=ppo", "method.objective.critic=value_loss"]).method.objective == ppo
    both = apply(DEFAULT, ["method.objective+=ppo"]).method.objectives
    assert both == ppo  # one of its own class takes its place
    both = apply(DEFAULT, ["method=ppo", "method.objective+=chord"]).method.objectives
    assert both == {"policy": method("chord").objective, "critic": ppo["critic"]}


def test_an_occupant_that_has_moved_is_found_by_its_kind() -> None:
    """Claims that are committed name it where it stood; nothing else is guessed."""
    for name, field in (("aepo", "heated_likelihood.heated_coef"), ("seele", "hint_likelihood.hint_coef")):
        for room in ("penalties", "objective"):
            m = apply(DEFAULT, [f"method={name}", f"method.{room}.{field}=16"]).method
            assert at(m, f"objective.{field}") == 16.0 and m.penalties == method(name).penalties
    for path in ("penalties", "objective", "objective.policy"):
        m = apply(DEFAULT, ["method=vapo", f"method.{path}.imitate_right.nll_coef=0.5"]).method
        assert at(m, "objective.policy.imitate_right.nll_coef") == 0.5
    file = "[method]\nname = 'aepo'\n[method.penalties.heated_likelihood]\nheated_coef = 16.0\n"
    assert from_toml(tomllib.loads(file), DEFAULT).method.objective[1].heated_coef == 16.0


@pytest.mark.parametrize(
    ("settings", "said"),
    {
        ("method=grpo", "method.penalties.heated_likelihood.heated_coef=1"): r"no 'heated_likelihood' here",
        ("method=aepo", "method.penalties.heated_likelihod.heated_coef=1"): r"no 'heated_likelihod' here",
        (
            "method=aepo",
            "method.penalties.heated_likelihood.heated_coeff=1",
        ): r"no 'heated_coeff' \(nearest: heated_coef",
        ("method=aepo", "method.penalties.heated_coef=1"): r"no 'heated_coef' here",
        ("method=aepo", "method.penalties.group_normalised.eps=1"): r"no 'group_normalised' here",
        ("method=aepo", "method.update.heated_likelihood.heated_coef=1"): r"Passes has no 'heated_likelihood'",
    }.items(),
)
def test_what_stands_nowhere_is_refused(settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=rf"{settings[1].partition('=')[0]}: .*{said}"):
        apply(DEFAULT, settings)


def test_an_occupant_that_stands_in_two_chains_must_be_named() -> None:
    twice = method("ppo").but(name="twice", objective={r: (ValueLoss(),) for r in ("policy", "critic")})
    config = dataclasses.replace(DEFAULT, method=twice)
    with pytest.raises(ValueError, match=r"value_loss in objective\.policy and in objective\.critic.*Name the one"):
        apply(config, ["method.objective.value_loss.clip_value=0.2"])
    made = apply(config, ["method.objective.critic.value_loss.clip_value=0.2"]).method.objective
    assert [made[r][0].clip_value for r in ("policy", "critic")] == [0.5, 0.2]


def test_a_room_of_another_method_brings_its_roles() -> None:
    m = apply(DEFAULT, ["method=grpo", "method.credit=ppo", "method.objective=ppo"]).method
    assert isinstance(m.credit, Gae) and set(m.objectives) == {"policy", "critic"}
    assert m.cast["critic"].train and m.cast["critic"].as_ == "head" and m.name == "grpo"
    assert isinstance(m.penalties[0], ReferenceKL)  # the rest is still GRPO's


def test_it_trains_the_critic() -> None:
    run = trained("a", "method=grpo", "method.credit=ppo", "method.objective=ppo", "model=tiny")
    assert all(
        {"grad_norm_critic", "value", "kl_ref"} <= row.keys() and row["grad_norm_critic"] > 0 for row in rows(run)[1:]
    )
    assert (run / "checkpoints/step-000002/optimiser-critic.safetensors").is_file()


def test_together_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = method("dapo").but(name="pair", credit=LeaveOneOut(kl_coef=0.5), together=("credit", "select"))
    monkeypatch.setattr(overrides, "all_methods", lambda: {**all_methods(), "pair": pair})
    for room in ("credit", "select"):
        m = apply(DEFAULT, [f"method.{room}=pair"]).method
        assert (m.credit, m.select) == (pair.credit, pair.select) and m.reward == DEFAULT.method.reward
    m = apply(DEFAULT, ["method.reward=pair"]).method
    assert m.reward == pair.reward and m.credit == DEFAULT.method.credit


def test_refresh_of_a_role() -> None:
    m = apply(DEFAULT, ["method.cast.ref.refresh.tau=0.3", "method.cast.ref.refresh=ema"]).method
    assert m.cast["ref"].refresh == Ema(tau=0.3)


def test_schedules_from_text() -> None:
    lr = "linear(1e-3, 0, steps=10)"
    assert apply(DEFAULT, [f"optim.lr={lr}"]).optim.lr == Schedule(lr)
    run = trained("a", f"optim.lr={lr}", "method.penalties.reference_kl.kl_coef=switch(1, 0.5, 0.0)")
    assert [row["lr"] for row in rows(run)[1:]] == pytest.approx([1e-3, 9e-4])


def test_own_occupant_by_path() -> None:
    Path("own.py").write_text(
        "from dataclasses import dataclass\nfrom gruppo.stages.credit import GroupNormalised\n"
        "@dataclass(frozen=True)\nclass Mine(GroupNormalised):\n    pass\n"
    )
    m = apply(DEFAULT, ["method.credit.eps=0.5", "method.credit=./own.py:Mine"]).method
    assert type(m.credit).__name__ == "Mine" and m.credit.eps == 0.5
