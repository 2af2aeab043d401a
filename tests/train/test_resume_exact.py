"""Every method goes on exactly: stopped by Ctrl-C, then by a crash in the middle of an update, each time resumed."""

import signal
from pathlib import Path
from typing import Any

import pytest
from train_runs import checkpoint, gruppo, metrics, same_run, saved, train

from gruppo.data.store import load_episodes
from gruppo.methods import all_methods
from gruppo.train import trainer
from gruppo.train.checkpoint import load_checkpoint
from gruppo.train.learner import Learner

# What a checkpoint must hold beyond the built-in methods: a buffer, a reference that follows, more than one update.
OWN = """
from gruppo.methods.grpo import GRPO
from gruppo.methods.ppo import PPO
from gruppo.methods.reinforce import REINFORCE
from gruppo.stages import Ema, Every, Role
from gruppo.stages.replay import Recent
from gruppo.stages.update import Passes

REPLAY = REINFORCE.but(name="replay", replay=Recent(capacity=24, take=6, max_age=3))
REPLAY_NOW = GRPO.but(name="replay_now", replay=Recent(take=4, proximal="now"), update=Passes(minibatches=2))
MINIBATCHES = GRPO.but(name="minibatches", update=Passes(epochs=2, minibatches=3))
FOLLOWING = GRPO.but(name="following", cast={"ref": Role(refresh=Ema(tau=0.3))})
COPIED = GRPO.but(name="copied", cast={"ref": Role(refresh=Every(steps=4))})
CRITIC = PPO.but(name="critic", credit=PPO.credit.__class__(kl_coef=0.1), cast={"ref": Role(refresh=Ema(tau=0.5))},
                 update=Passes(epochs=2, minibatches=2))
"""
OWN_NAMES = ("REPLAY", "REPLAY_NOW", "MINIBATCHES", "FOLLOWING", "COPIED", "CRITIC")
STEPS = ("steps=5", "save.checkpoint_every=2", "eval.every=2", "eval.prompts=4", "save.episodes_every=2")
# test_torture.py has a replay, an EMA and a critic, too, and of minibatches nothing is kept between two steps.
OFTEN = ("REPLAY_NOW", "FOLLOWING", "CRITIC", "MINIBATCHES")
FAST = ("reinforce", "grpo", "dapo", "ppo", "rloo", "disco")


class Crash(Exception):
    """Something that nobody foresaw."""


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`trouble(ctrl_c_at=…, crash_at=…)`: what happens to the runs that follow, by the number of the step."""
    events: dict[str, int] = {}
    plain_step, plain_apply = trainer.train_step, Learner.apply

    async def train_step(run: Any, step: int) -> Any:
        if events.get("ctrl_c_at") == step + 1:
            signal.raise_signal(signal.SIGINT)
        return await plain_step(run, step)

    def apply(self: Learner, role: str, lr: float | None = None) -> None:
        plain_apply(self, role, lr)
        if events.get("crash_at") == self.ctx.step + 1:
            raise Crash  # after an optimiser step: the weights are half-way
        if events.get("refuse_at") == self.ctx.step + 1:
            raise ValueError("that went wrong")

    monkeypatch.setattr(trainer, "train_step", train_step)
    monkeypatch.setattr(Learner, "apply", apply)

    def set_to(**now: int) -> None:
        events.clear()
        events.update(now)

    return set_to


def stopped_crashed_and_resumed(name: str, trouble: Any) -> None:
    known = all_methods().get(name)
    roles = [f"method.cast.{r}=tiny" for r, role in known.cast.items() if not role.start] if known else []  # a teacher
    assert train("a", f"method={name}", *roles, *STEPS) == 0
    trouble(ctrl_c_at=1)
    assert train("b", f"method={name}", *roles, *STEPS) == 0
    assert saved("b") == ["step-000001"]
    trouble(crash_at=4)
    with pytest.raises(Crash) as crash:
        gruppo("train", "--resume", "runs/b")
    assert "Step 2 is saved: go on with  gruppo train --resume runs/b" in crash.value.__notes__[0]
    trouble()
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b", keep=2)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in OFTEN else ()) for n in OWN_NAMES])
def test_own_method(name: str, trouble: Any) -> None:
    Path("own.py").write_text(OWN)
    stopped_crashed_and_resumed(f"./own.py:{name}", trouble)
    state = load_checkpoint(checkpoint("b", 5))
    if name.startswith("REPLAY"):
        assert state.replay and load_episodes(checkpoint("b", 5) / "replay.arrow")
    if name in ("FOLLOWING", "COPIED", "CRITIC"):
        assert not (state.weights["ref"]["model.norm.weight"] == state.weights["policy"]["model.norm.weight"]).all()
    if name == "CRITIC":
        assert {"critic", "policy"} == state.optimisers.keys()


def test_half_a_step_is_never_saved(trouble: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal in the middle of an update (here by hand; three bad gradients in a row do it too)."""
    settings = ("method.update.minibatches=2", *STEPS)
    assert train("a", *settings) == 0
    trouble(refuse_at=4)
    assert train("b", *settings) == 2
    assert "step 4: that went wrong" in (words := capsys.readouterr().err)
    assert "Step 2 is saved" in words and saved("b") == ["step-000002"]
    trouble()
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b")


def test_the_first_batch_is_checked_also_after_a_resume(capsys: pytest.CaptureFixture[str]) -> None:
    """DisCO wants right or wrong; the reward has many values. What is refused once is refused again."""
    Path("reward.py").write_text("def score(task, text):\n    return float(sum(map(ord, text)) % 5)")
    assert train("b", "method=disco", "task.reward=./reward.py:score", *STEPS) == 2
    assert "requires binary_reward" in capsys.readouterr().err and saved("b") == ["step-000000"]
    assert gruppo("train", "--resume", "runs/b") == 2
    assert "requires binary_reward" in capsys.readouterr().err
    Path("reward.py").write_text("def score(task, text):\n    return sum(map(ord, text)) % 2")
    assert gruppo("train", "--resume", "runs/b") == 2
    assert "task.reward (reward.py): " in capsys.readouterr().err  # another reward is another run
    assert gruppo("train", "--resume", "runs/b", "--allow-changes") == 0
    rows = metrics("b")
    assert [row["step"] for row in rows] == [0, 0, 1, 2, 3, 4, 5] and rows[1]["held_out/anew"]  # another measure


def test_a_schedule_and_a_mixture_of_levels_go_on(trouble: Any) -> None:
    settings = ("method=reinforce", "optim.lr=linear(1e-3, 0, steps=6)", "task.level=1-2", "task.train_size=10", *STEPS)
    assert train("a", *settings) == 0
    trouble(ctrl_c_at=3)
    assert train("b", *settings) == 0
    trouble()
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b")
