"""Bad input gets a sentence with value, consequence and remedy, exit code 2, and costs nothing."""

from pathlib import Path

import pytest
from cli_runs import SMALL, refused, trained

from gruppo.cli import main

OWN = """
from dataclasses import dataclass
from gruppo.methods.grpo import GRPO
from gruppo.stages import Occupant, Term, need

@dataclass(frozen=True)
class Imitate(Occupant):
    def needs(self, ctx):
        return (need("logp", when="step"), need("logp", "teacher"))

    def terms(self, ctx, batch):
        return [Term("imitate", batch.policy_N)]

    def __call__(self, ctx, batch, stats):
        return {"imitate": stats.logp_N}

@dataclass(frozen=True)
class Quarrel(Occupant):
    refuses = ("reference_kl",)

    def terms(self, ctx, batch):
        return []

    def __call__(self, ctx, batch, stats):
        return {}

NUMBER = 3
IMITATE = GRPO.but(name="imitate", penalties=Imitate())
"""

# What is typed after `gruppo train`, and what the sentence must name.
REFUSED = {
    "method=grop": ("method='grop'", "nearest: grpo", "gruppo methods"),
    "method=grpo@7": ("grpo@7", "grpo@1"),
    "method=grpo@latest": ("grpo@latest", "grpo@1"),
    "method=./gone.py:X": ("gone.py", "there is no file"),
    "method=./own.py:NUMBER": ("./own.py:NUMBER is int, no Method",),
    "method=./own.py:IMITAT": ("no 'IMITAT'", "Did you mean 'IMITATE'?"),
    "method=./syntax.py:X": ("syntax.py", "importing it failed", "SyntaxError"),
    "methd=grpo": ("no 'methd'", "nearest: method", "nothing was started"),
    "clip_high=0.3": ("no 'clip_high'", "did you mean method.objective.clipped_surrogate.clip_high?"),
    "clip_hihg=0.3": ("did you mean method.objective.clipped_surrogate.clip_high?",),
    "lr=0.1": ("did you mean optim.lr?",),
    "eval.prompt=4": ("EvalConfig has no 'prompt' (nearest: prompts)",),
    "eval.lr=4": ("did you mean optim.lr?",),
    "level=2": ("did you mean task.level?",),
    "kl_coef=0.1": ("did you mean method.penalties.reference_kl.kl_coef?",),
    "method.objective.clip_hihg=1": ("no 'clip_hihg' here", "nearest: clip_high"),
    "method.penalties.reference_k.kl_coef=1": ("no 'reference_k' here", "nearest: reference_kl"),
    "task=adition": ("task='adition'", "Did you mean 'addition'?", "Built in:"),
    "task.level=9": ("level='9'", "levels 1 to 4"),
    "model=tinny": ("model 'tinny'", "Did you mean 'tiny'?"),
    "model.dtype=float16": ("model.dtype=float16 is not one of its values", "Use float32, float64, bfloat16."),
    "model.device=gpu0": ("model.device=gpu0 cannot be used here", "model.device=auto"),
    "steps=many": ("steps=many is not a whole number", "nothing was started", "Use a whole number >= 1."),
    "steps=2.5": ("steps=2.5 is not a whole number", "Use a whole number >= 1."),
    "steps=0": ("steps=0 is out of range: use a whole number >= 1.",),
    "optim.lr=fast": ("optim.lr=fast is not a number", "nothing was started", "linear("),
    "optim.lr=linear(1)": ("linear(1)", "linear(start, end, steps)"),
    "optim.lr=-1": ("optim.lr=-1 is out of range", "AdamW", "use a number >= 0 and <= 1."),
    "optim.clip_norm=0": ("optim.clip_norm=0 is out of range: use a number >= 1e-12, or inf.",),
    "save.keep=0": ("save.keep=0 is out of range: use a whole number >= 1.",),
    "threads=-1": ("threads=-1 is out of range: use a whole number >= 0",),
    "model.lora.targets=q_proj": ("model.lora.rank is 0", "all weights", "model.lora.rank=16"),
    "max_failures=2": ("max_failures=2 is out of range: use a number >= 0 and <= 1.",),
    "eval.prompts=0": ("eval.prompts=0 is out of range: use a whole number >= 1.",),
    "method.update.epochs=0": ("method.update.epochs=0 is out of range: use a whole number >= 1.",),
    "sampling.temperature=-1": ("sampling.temperature=-1 is out of range: use 0, or a number >= 1e-06.",),
    "sampling.temperature=1e-300": ("sampling.temperature=1e-300 is out of range: use 0, or a number >= 1e-06.",),
    "method.credit.eps=-1": ("method.credit.eps=-1 is out of range: use a number >= 0.",),
    "method.penalties.kl_coef=-3": ("method.penalties.kl_coef=-3 is out of range: use a number >= 0.",),
    "optim.lr=1e30": ("optim.lr=1e30 is out of range", "use a number >= 0 and <= 1."),
    "optim.lr=inf": ("optim.lr=inf is out of range", "use a number >= 0 and <= 1."),
    "optim.beta1=2": ("optim.beta1=2 is out of range: use a number >= 0 and < 1.",),
    "method.objective.mean=-1": ("method.objective.mean=-1 is out of range: use a number > 0.",),
    "sampling.max_tokens=9999": ("max_tokens=9999", "the context is 256"),
    "samples=1": ("samples=1", "compares the samples of one prompt", "samples >= 2", "method=reinforce"),
    "method.penalties+=./own.py:Imitate": ("imitate in penalties needs logp@teacher", "unmet", "method.cast.teacher="),
    "method=./own.py:IMITATE": ("needs logp@teacher",),
    "method.penalties+=./own.py:Quarrel": ("quarrel in penalties and reference_kl in penalties conflict", "Keep one"),
    "method.credit+=rloo": ("credit holds one occupant, no chain", "method.credit=rloo"),
    "method.objective-=x": ("no 'x' here", "There is: clipped_surrogate"),
    "method.objective=none": ("no objective", "nothing that it would learn", "Choose one"),
    "method.objective-=clipped_surrogate": ("no objective for role 'policy'", "Choose one"),
    "optim.lr+=1": ("optim.lr is no chain",),
    "method.penalties-=nothing_there": ("no 'nothing_there' here", "There is: reference_kl"),
    "method.penalties=refernce_kl": ("refernce_kl", "nearest: reference_kl"),
    "method.credit=groop_normalised": ("groop_normalised", "nearest: group_normalised"),
    "method.credit=ppo": ("role 'critic'", "no objective trains it", "method.objective=ppo"),
    "method.objective=ppo": ("reads ret_N", "credit group_normalised writes adv_N"),
    "method.cast.ref=gone": ("model 'gone'",),
    "method.cast=ppo": ("one model for each role", "method.cast.ROLE=FOLDER", "ref"),
    "method.credit=./own.py:IMITATE": ("a whole method", "Write method.credit=./own.py:IMITATE.credit"),
    "method.objective.mean=tokn": ("mean='tokn'", "token, turn, sequence", "start it again"),
    "sampling=hot": ("sampling=hot", "sampling.max_tokens"),
    "accept=everything": ("accept=everything", "step zero has no such check", "judged"),
    "task.reward=score": ("'score' is no import path",),
    "task.reward=./gone.py:score": ("gone.py", "there is no file"),
    "task.reward=./own.py:scor": ("no 'scor'",),
    "task.seconds=0": ("task.seconds=0 is out of range: use a number > 0",),
    "save.folder=/proc/nowhere": ("/proc/nowhere", "cannot be made", "save.folder"),
    f"save.name={'a' * 300}": ("cannot be made (File name too long)", "Choose a shorter save.name"),
    "task.template=x": ("task.template='x' names no field", "every prompt would be the same text", "Fields: a, b"),
    "nonsense": ("'nonsense' is not a setting", "key=value"),
    "--allow-changes": ("--allow-changes without --resume",),
}


@pytest.fixture(autouse=True)
def own() -> None:
    Path("own.py").write_text(OWN)
    Path("syntax.py").write_text("def (:")
    Path("runs").mkdir()


@pytest.mark.parametrize("typed", REFUSED)
def test_train(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "train", *SMALL, "save.name=b", typed)
    for words in REFUSED[typed]:
        assert words in said, said
    assert not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    ("argv", "words"),
    {
        "eval nowhere": "model 'nowhere'",
        "eval tiny task=adition": "Did you mean 'addition'?",
        "eval tiny steps=many": "is not a whole number",
        "doctor method=grop": "nearest: grpo",
        "methods show grop": "nearest: grpo",
        "methods grop": "nearest: grpo",
        "methods diff grpo": "wants 2 names",
        "methods show": "wants 1 name",
        "methods check": "wants 1 name",
        "methods list ./gone.py:X": "there is no file",
    }.items(),
)
def test_other_commands(argv: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, *argv.split())


def test_a_teacher_can_be_given() -> None:
    """The remedy of the sentence works."""
    trained("a", "method=./own.py:IMITATE", "method.cast.teacher=tiny-random", "steps=1")


FILES = {
    "steps = 3\nthis is not TOML": ("is not TOML", "line 2", "fix that line"),
    "stepz = 3": ("no 'stepz'", "nearest: steps"),
    "[method]\nname = 'dapo'\n[method.objective]\nclip_hihg = 0.3": ("clip_hihg", "nearest: clip_high"),
    "[optim]\nlr = 'fast'": ("optim.lr=fast is not a number", "linear("),
    "steps = 'many'": ("steps=many is not a whole number",),
}


@pytest.mark.parametrize("text", FILES)
def test_run_file(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text(text)
    said = refused(capsys, "train", "--config", "run.toml", *SMALL[:3])
    for words in FILES[text]:
        assert words in said, said


def test_run_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no such file" in refused(capsys, "train", "--config", "gone.toml")
    assert "Is a directory" in (said := refused(capsys, "train", "--config", ".")) or "no such file" in said


RESOLVED = {
    ('steps = 2', 'steps = "two"'): ("steps='two'", "number"),
    ('steps = 2', 'stepz = 2'): ("no field 'stepz'", "nearest: steps"),
    ('seed = 0', 'seed = "zero"'): ("seed='zero' is not a number", "whole number"),
    ('clip_high = 0.2', 'clip_high = "0.2"'): ("method.objective.clipped_surrogate.clip_high='0.2'", "number"),
    ('dtype = "float32"', 'dtype = "float16"'): ("model.dtype='float16' is not one of its values",),
    ('name = "grpo"\n', ""): ("Method cannot be rebuilt", "'name'"),
    ("ReferenceKL@1", "ReferenceKL@2"): ("ReferenceKL", "version 2", "version 1"),
    ("stages.penalties:ReferenceKL", "stages.penalties:RefKL"): ("no 'RefKL'",),
    ("kl_coef = 0.04", "kl_koef = 0.04"): ("no field 'kl_koef'", "nearest: kl_coef"),
}  # fmt: skip


DRY: list[str] = []  # what a run that is not made prints, once for all changes of it


@pytest.mark.parametrize("change", RESOLVED)
def test_resolved_run_file_edited_by_hand(change: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    if not DRY:
        assert main(["train", *SMALL, "--dry-run"]) == 0
        DRY.append(capsys.readouterr().out)
    assert change[0] in DRY[0]
    Path("run.toml").write_text(DRY[0].replace(*change, 1))
    said = refused(capsys, "train", "--config", "run.toml")
    for words in RESOLVED[change]:
        assert words in said, said


def test_a_name_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    trained("a", "steps=1")
    said = refused(capsys, "train", *SMALL, "save.name=a")
    assert "runs/a holds a run already" in said and "gruppo train --resume runs/a" in said and "save.name" in said


def test_no_space_for_the_first_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from gruppo.train.folder import RunFolder

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_config", full)
    said = refused(capsys, "train", *SMALL, "save.name=a")
    assert "No space left on device" in said and "start it again" in said
    assert not list(Path("runs").iterdir())
