"""Rooms of several methods in one run, taken from the command line."""

import pytest
from cli_runs import refused, rows, trained

from gruppo.cli.overrides import PLAIN, apply
from gruppo.methods import all_methods, method
from gruppo.stages import CHAINS, ROOMS, Context, Method, kind
from gruppo.stages.check import check
from gruppo.train.config import RunConfig

METHODS = all_methods()
TAKEN = [(name, room) for name, m in METHODS.items() for room in ROOMS if getattr(m, room) != PLAIN.get(room)]


def put(host: str, setting: str) -> Method:
    return apply(RunConfig(), [f"method={host}", setting]).method


@pytest.mark.parametrize(("name", "room"), TAKEN)
def test_a_room_goes_into_every_method_or_is_refused_in_words(name: str, room: str) -> None:
    """`=` takes all that belongs together. `+=` loses nothing of the host's: chains grow, only plain rooms give way."""
    other = METHODS[name]
    rooms = other.together if room in other.together else (room,)
    for host, m in METHODS.items():
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
                assert {kind(o) for o in after} == {kind(o) for o in (*before, *theirs)} and set(theirs) <= set(after)
            else:
                assert after == theirs


def test_what_is_refused_names_both_and_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "train", "method=remax", "method.prompting+=igrpo")
    for word in ("igrpo", "draft_then_refine in rollout", "remax's with_greedy", "method.prompting=igrpo"):
        assert word in said


COMBINED = {
    "clip, curriculum and credit": ("method=bapo", "method.curriculum=dump", "method.credit=gdpo"),
    "entropy control on dapo": ("method=dapo", "method.penalties+=aepo"),
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


SENSELESS = {
    "credit that no objective reads": (("method=gspo", "method.credit=disco"), ("credit", "right_N", "Choose")),
    "right and wrong of vector rewards": (("method=disco", "method.credit=gdpo"), ("objective", "right_N", "Choose")),
    "a note that nobody makes": (
        ("method=grpo", "method.penalties+=heated_likelihood"),
        ("penalties", "note_heated_E", "Choose"),
    ),
}


@pytest.mark.parametrize("what", SENSELESS)
def test_senseless_ones_are_refused(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings, words = SENSELESS[what]
    said = refused(capsys, "train", *settings)
    assert all(word in said for word in words), said
