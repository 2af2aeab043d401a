"""What is written as other libraries write it, one level down and with dashes, and what is asked for with no words."""

import pytest
from cli_runs import refused

from gruppo.cli import main


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert not err and "train a policy: gruppo train method=dapo" in out


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (("train", "--step=3"), "steps=3"),
        (("train", "--steps", "3"), "steps=3"),
        (("train", "prompts=2", "--steps", "--json"), "steps=VALUE"),
        (("train", "--learning-rate", "1e-4"), "optim.lr=1e-4"),
        (("train", "--learning_rate=1e-4"), "optim.lr=1e-4"),
        (("train", "--lr", "1e-4", "steps=2"), "optim.lr=1e-4"),
        (("train", "--num_generations=4"), "samples=4"),
        (("train", "--output_dir", "out"), "save.folder=out"),
        (("train", "--save.folder=out"), "save.folder=out"),
        (("eval", "tiny", "--seed=3"), "seed=3"),
        (("compare", "grpo", "rloo", "--max-steps=3"), "steps=3"),
    ],
)
def test_a_setting_written_as_a_flag_is_written_out(
    words: tuple[str, ...], setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *words)
    assert f": settings are written without dashes, so nothing was started. Write {setting}.\n" in said


def test_what_is_no_setting_either_is_shown_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "train", "--wibble=3")
    assert "--wibble=3: there is no such flag" in said and "--dry-run" in said and "Did you mean" not in said
    assert "Did you mean --dry-run?" in refused(capsys, "train", "--dryrun")


def test_flags_and_their_beginnings_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "grpo", "rloo", "--task", "nothing", "--see", "2"]) == 2
    assert "task='nothing'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0


@pytest.mark.parametrize(
    ("setting", "ours"),
    [
        ("optim.learning_rate=1e-4", "optim.lr"),
        ("optim.max_grad_norm=1", "optim.clip_norm"),
        ("method.beta=0.1", "method.penalties.reference_kl.kl_coef"),
        ("method.penalties.beta=0.1", "method.penalties.reference_kl.kl_coef"),
        ("method.objective.epsilon=0.1", "method.objective.clip_low and clip_high"),
        ("method.num_generations=4", "samples"),
        ("sampling.max_completion_length=9", "sampling.max_tokens"),
        ("save.output_dir=out", "save.folder"),
    ],
)
def test_names_of_other_libraries_are_known_one_level_down(
    setting: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f" (that is {ours} here)" in refused(capsys, "train", setting)


def test_a_short_name_may_be_a_slip_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert "that is samples here" in refused(capsys, "train", "n=4")
    assert "that is samples here" not in refused(capsys, "train", "task.n=4")
