"""Rooms of several methods in one run, taken from the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from cli_runs import SMALL, refused, rows, trained

from gruppo.cli import main
from gruppo.cli.overrides import PLAIN, apply
from gruppo.methods import all_methods, method
from gruppo.methods.pipo import LastBatch
from gruppo.stages import CHAINS, ROOMS, Context, Method, kind
from gruppo.stages.check import check
from gruppo.train.config import RunConfig

METHODS = all_methods()
TAKEN = [(name, room) for name, m in METHODS.items() for room in ROOMS if getattr(m, room) != PLAIN.get(room)]


def put(host: str, setting: str) -> Method:
    return apply(RunConfig(), [f"method={host}", setting]).method


def standing(held: Any) -> list[tuple[str, Any]]:
    """(role, occupant) of a chain, or of the chains of several roles."""
    chains = held.items() if isinstance(held, Mapping) else [("policy", held)]
    return [(role, o) for role, chain in chains for o in chain]


def hosts(name: str, room: str, every: int) -> list[str]:
    """Every so many methods, from another one on for each room."""
    return list(METHODS)[crc32(f"{name} {room}".encode()) % every :: every]


@pytest.mark.parametrize(("name", "room"), TAKEN)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_room_goes_into_every_method_or_is_refused_in_words(every: int, name: str, room: str) -> None:
    """`=` takes all that belongs together. `+=` loses nothing of the host's: chains grow, only plain rooms give way."""
    other = METHODS[name]
    rooms = other.together if room in other.together else (room,)
    for host in hosts(name, room, every):
        m = METHODS[host]
        whole = put(host, f"method.{room}={name}")
        assert all(getattr(whole, r) == getattr(other, r) for r in rooms)
        assert all(getattr(whole, r) == getattr(m, r) for r in ROOMS if r not in rooms)
        assert set(whole.cast) >= set(other.cast)
        if room not in CHAINS:
            continue
        lost = [r for r in rooms if r not in CHAINS and getattr(m, r) not in (PLAIN.get(r), getattr(other, r))]
        if lost:
            with pytest.raises(
                ValueError, match=rf"method\.{room}\+={name}: .* in {lost[0]}, .* {host}'s .*Write method"
            ):
                put(host, f"method.{room}+={name}")
            continue
        both = put(host, f"method.{room}+={name}")
        for r in rooms:
            theirs, before, after = getattr(other, r), getattr(m, r), getattr(both, r)
            if r in CHAINS:
                kinds = [{(role, kind(o)) for role, o in standing(held)} for held in (before, theirs, after)]
                assert kinds[2] == kinds[0] | kinds[1] and set(standing(theirs)) <= set(standing(after))
            else:
                assert after == theirs


COMBINED = {
    "clip, curriculum and credit": ("method=bapo", "method.curriculum=dump", "method.credit=gdpo"),
    "entropy control on dapo": (
        "method=dapo",
        "method.rollout=with_heated",
        "method.select+=host_alone",
        "method.objective+=heated_likelihood",
    ),
    "drafts with a geometric mean": ("method=gmpo", "method.prompting+=igrpo", "samples=8"),
    "hints where groups fail, covariance clipped": ("method=clip_cov", "method.rollout=scaf_grpo"),
}


@pytest.mark.parametrize("what", COMBINED)
def test_it_is_checked_and_trains(what: str) -> None:
    settings = COMBINED[what]
    m = apply(RunConfig(), settings).method
    check(m, Context(), samples=4)
    run = trained("both", *settings, "model=tiny", "task=sorting", "task.reward=gruppo.tasks.sorting:score_places")
    assert max(row.get("grad_norm", 0.0) for row in rows(run)) > 0
    assert m.name == method(settings[0].partition("=")[2]).name


# what: settings, and words of the refusal: the room, what it needs, the remedy
SENSELESS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "an objective without its advantage": (
        ("method=gspo", "method.credit=disco"),
        ("sequence_clipped in objective", "adv_N", "Choose a credit"),
    ),
    "right and wrong of several rewards": (
        ("method=disco", "method.credit=gdpo"),
        ("discriminate in objective", "right_N", "Choose a credit that writes right_N (", "right_against_wrong, right"),
    ),
    "a curriculum by values that nobody tracks": (
        ("method.curriculum=by_tracker",),
        ("by_tracker in curriculum", "requires tracked in credit", "Use method.credit=tracked"),
    ),
    "a note that nobody makes": (
        ("method.objective+=heated_likelihood",),
        ("heated_likelihood in objective", "note_heated_E", "Choose the rollout that comes with it (with_heated)"),
    ),
    "gains of segments that nobody probed": (
        ("method.credit=segment_gain",),
        ("segment_gain in credit", "note_gain_N", "Choose the rollout"),
    ),
    "errors of a critic that is not there": (
        ("method.credit=gae",),
        ("gae in credit", "value@critic", "method.objective=ppo"),
    ),
    "a critic without returns": (
        ("method=ppo", "method.credit=rloo"),
        ("value_loss in objective", "ret_N", "Choose a credit"),
    ),
    "experts that nobody minds": (
        ("method=chord", "method.objective=gspo"),
        ("with_experts in rollout", "expert tokens", "Choose an objective"),
    ),
    "a teacher that is not there": (
        ("method.penalties+=kdrl",),
        ("in penalties", "there is no model for 'teacher' yet", "method.cast.teacher=FOLDER"),
    ),
    "labels that are not looked at, and are": (
        ("method=dapo", "method.reward=empo"),
        ("in reward", "redraw_equal_groups in select conflict", "Keep one"),
    ),
    "a step back without the batch before": (
        ("method=pipo", "method.replay=ssb"),
        ("look_back in update", "last_batch in replay, which has selective", "method.replay=last_batch"),
    ),
    "a step back without advantages": (
        ("method=disco", "method.update=pipo"),
        ("look_back in update", "adv_N", "Choose a credit"),
    ),
    "a buffer of advantages without any": (
        ("method=nft", "method.replay=ssb"),
        ("selective in replay", "adv_N", "Choose a credit"),
    ),
    "drafts that nobody is shown": (
        ("method=igrpo", "method.prompting=none"),
        ("draft_then_refine in rollout", "refine in prompting, which has nothing", "method.prompting+=refine"),
    ),
    "hints that nobody gives": (
        ("method.rollout=help_failed_groups",),
        ("help_failed_groups in rollout", "hint or hint_in_message in prompting", "method.prompting+=hint"),
    ),
    "hints in rounds that nobody gives": (
        ("method.rollout=hint_rounds",),
        ("hint_rounds in rollout", "hint or hint_in_message in prompting", "method.prompting+=hint"),
    ),
    "open answers that nobody keeps": (
        ("method=t_ppo", "method.replay=forget"),
        ("windowed in rollout", "open_pool in replay, which has forget", "method.replay=open_pool"),
    ),
    "one sample, compared": (("method=gdpo", "samples=1"), ("in credit", "samples=1", "Use samples >= 2")),
    "drafts in place of a baseline": (
        ("method=remax", "method.prompting+=igrpo"),
        ("draft_then_refine in rollout", "remax's with_greedy", "Write method.prompting=igrpo"),
    ),
}


@pytest.mark.parametrize("what", SENSELESS)
def test_senseless_ones_are_refused(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings, words = SENSELESS[what]
    said = refused(capsys, "train", *SMALL, *settings)
    assert all(word in said for word in words), said


def test_a_class_derived_from_the_other_half_will_do() -> None:
    class Longer(LastBatch):
        pass

    check(method("pipo").but(replay=Longer()), Context(), samples=4)


def test_what_a_room_brings_along_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("method.credit=copo", "steps=1", "save.name=along")
    assert main(["train", *SMALL, *settings]) == 0
    first, *head = capsys.readouterr().out.splitlines()[:5]
    assert first == "run folder  runs/along" and head[0] == "grpo, with these changes:"
    assert head[1].startswith("  credit: GroupNormalised(") and "→ InsideAndBetween(" in head[1]
    assert head[2].startswith("  objective: - ClippedSurrogate(")
    assert head[3].startswith("  objective: + TwoSurrogates(")
    assert main(["train", "--dry-run", *SMALL, *settings]) == 0
    assert "# grpo, with these changes:\n#   credit: " in capsys.readouterr().out
    assert main(["train", "--dry-run", *SMALL]) == 0
    assert "with these changes" not in capsys.readouterr().out


# At the first batch, before anything is learned
UNFIT = {
    "greedy answers that nobody drew": (
        ("method.credit=against_greedy",),
        ("against_greedy in credit", "baseline_episodes", "method.rollout=with_greedy"),
    ),
    "hints of a task without a solution": (
        ("method=grpo", "method.prompting+=scaf_grpo", "task=./own.jsonl"),
        ("prompting", "task 'own/", "no worked solution", "task.solution=FIELD"),
    ),
    "right or wrong of many rewards": (
        ("method=disco", "model=tiny", "task=sorting", "task.reward=gruppo.tasks.sorting:score_places"),
        ("right_against_wrong in credit", "binary_reward", "Use a task or a reward"),
    ),
}


@pytest.mark.parametrize("what", UNFIT)
def test_unfit_ones_are_refused_at_the_first_batch(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.jsonl").write_text("".join(f'{{"prompt": "{n}?", "answer": "{n}"}}\n' for n in range(20)))
    settings, words = UNFIT[what]
    assert main(["train", *SMALL, *settings]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words) and "Traceback" not in said, said
