"""Makes the weights of `tiny-agent`: imitation of scripted players of mixed care in all built-in worlds.

    python scripts/make_agent.py                   # trains, measures, writes weights, recipe.json, docs/agent-policy.md
    python scripts/make_agent.py --start FOLDER    # goes on from weights that it wrote
    python scripts/make_agent.py --page            # writes the page again, from recipe.json

docs/agent-policy.md has the commands that made the weights in the package.

Only tasks of the train splits are played, most of level 1 and a few of level 2. A player follows the winning path with
a probability that is drawn for each episode, else it takes any action that is allowed; in games each seat has one of
the world's own players. A sequence is what one seat saw and did; only actions and their <eos> are learned.

The mean care of each world is adjusted while training: the policy plays train tasks now and then, and where it wins
more often than `AIM` the players become more careless. `--mix` sets with what care they start.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # runs from a checkout, not installed

from agent_play import CONFIG, GAMES, TOKENIZER, WORLDS, Played, first, measure, play, tasks_of

from gruppo.envs import make_env
from gruppo.envs.base import seats_of
from gruppo.envs.players import episode, scripted
from gruppo.envs.registry import env_class
from gruppo.policies import TinyTransformer, packed
from gruppo.tasks.base import Task

HOME = Path(__file__).resolve().parents[1]
AIM = 0.15  # success at level 1
CARE, LEAST, MOST = 0.35, 0.02, 0.9  # mean care at the start, and its bounds
WEIGHT = 2.0  # how many episodes of a world there are for each one of a game
SECOND = 0.15  # share of episodes of level 2
TOKENS = 3500  # of a step
SAMPLED = 40  # episodes of each world between two adjustments

# ---- the corpus ----------------------------------------------------------------------------------


@dataclass
class Line:
    """What one seat saw and did, in ids; `learned` are the places of its actions and their <eos>."""

    ids: list[int] = field(default_factory=list)
    learned: list[int] = field(default_factory=list)

    def see(self, task: Task, text: str) -> None:
        user = {"role": "user", "content": text}
        new = TOKENIZER.follow([user], TOKENIZER.eos) if self.ids else first(task, text)
        self.ids += new.tolist()

    def act(self, action: str) -> None:
        done = [*TOKENIZER.encode(action).tolist(), TOKENIZER.eos]
        self.learned += range(len(self.ids), len(self.ids) + len(done))
        self.ids += done


@cache
def world(name: str) -> Any:
    return make_env(name)


class Corpus:
    """Episodes of scripted players, and the uids of their tasks."""

    def __init__(self, seed: int, mix: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.draw = Random(seed)
        start = dict.fromkeys(WORLDS, (CARE, WEIGHT)) | dict(mix or {})
        self.care = {name: care for name, (care, _) in start.items()}
        self.weight = [*(weight for _, weight in start.values()), *(1.0 for _ in GAMES)]
        self.uids: set[str] = set()
        self.episodes = self.tokens = self.actions = 0

    def task(self, name: str, level: int = 1) -> Task:
        tasks = tasks_of(name, level).train
        task = tasks[self.draw.randrange(len(tasks))]
        self.uids.add(task.uid)
        return task

    def lines(self) -> list[Line]:
        """One episode of any world."""
        name = self.draw.choices([*WORLDS, *GAMES], self.weight)[0]
        level = 2 if self.draw.random() < SECOND and 2 in env_class(name).levels else 1
        task, env = self.task(name, level), world(name)
        if name in WORLDS:
            mean = self.care[name]
            player: Any = scripted(env, self.draw.random() ** ((1 - mean) / mean))  # a number in [0, 1] of this mean
        else:
            player = {seat: self.draw.choice(list(env.players.values())) for seat in seats_of(env)}
        self.episodes += 1
        lines: dict[str, Line] = {}
        (_, _, seen), *turns = episode(env, task, player, self.draw.getrandbits(60))
        for agent, action, after in turns:
            line = lines.setdefault(agent, Line())
            line.see(task, seen.text)
            line.act(action)
            seen = after
            self.actions += 1
        return list(lines.values())

    def batch(self) -> list[Line]:
        out: list[Line] = []
        total = 0
        while total < TOKENS:
            out += self.lines()
            total = sum(len(line.ids) for line in out)
        self.tokens += total
        return out


# ---- training ------------------------------------------------------------------------------------


def loss_of(policy: TinyTransformer, lines: Sequence[Line]) -> torch.Tensor:
    """Mean cross-entropy of the actions."""
    inputs = packed([np.array(line.ids) for line in lines])
    starts = np.cumsum([0, *(len(line.ids) for line in lines[:-1])])
    at = torch.tensor([int(s) + i for s, line in zip(starts, lines, strict=True) for i in line.learned])
    hidden, _ = policy(inputs)
    return F.cross_entropy(policy.head(hidden[at - 1]), inputs.ids_M[at])


def rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over a twentieth of the steps, then a cosine to a fiftieth of the peak."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def train(policy: TinyTransformer, corpus: Corpus, options: argparse.Namespace) -> Iterator[tuple[int, float]]:
    """AdamW; yields (step, loss)."""
    matrices = [w for w in policy.parameters() if w.dim() > 1]
    others = [w for w in policy.parameters() if w.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.98))
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, options.steps, options.lr)
        loss = loss_of(policy, corpus.batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        yield step, float(loss.detach())


class Adjust:
    """Moves the mean care of each world towards the success that is wanted, from two fifths of the steps on."""

    def __init__(self, corpus: Corpus, steps: int) -> None:
        self.corpus, self.steps, self.won = corpus, steps, dict.fromkeys(WORLDS, AIM)

    def due(self, step: int) -> bool:
        return step >= 0.4 * self.steps and step % max(1, self.steps // 20) == 0

    def __call__(self, policy: TinyTransformer) -> None:
        draw = self.corpus.draw
        rows = [Played(make_env(n), self.corpus.task(n), draw.getrandbits(60)) for n in WORLDS for _ in range(SAMPLED)]
        play(policy, rows)
        for i, name in enumerate(WORLDS):
            now = sum(e.won for e in rows[i * SAMPLED : (i + 1) * SAMPLED]) / SAMPLED
            self.won[name] = 0.5 * self.won[name] + 0.5 * now
            care = self.corpus.care[name] + 0.5 * (AIM - self.won[name])
            self.corpus.care[name] = min(MOST, max(LEAST, care))
        print("  ".join(f"{n} {self.won[n]:.2f} ({self.corpus.care[n]:.2f})" for n in WORLDS), flush=True)


# ---- the page ------------------------------------------------------------------------------------


def page(recipe: dict[str, Any]) -> str:
    """docs/agent-policy.md."""
    table = recipe["held_out"]
    rows = []
    for cell, r in sorted(table.items(), key=lambda row: row[0].split()[0] in GAMES):
        name, level = cell.split()
        against = " against `random`" if name in GAMES else ""
        full = f"{r['full']:.2f}" if r["full"] else ""
        rows.append(
            f"| `{name}`{against} | {level} | {r['success']:.3f} | {r['random']:.3f} | {r['turns']:.1f} | "
            f"{r['invalid']:.2f} | {full} |"
        )
    level_1 = {n: table[f"{n} 1"] for n in WORLDS}
    outside = [
        f"{n} ({r['success']:.3f}, random {r['random']:.3f})"
        for n, r in level_1.items()
        if not 0.1 <= r["success"] <= 0.2
    ]
    told = {
        "rows": "\n".join(rows),
        "commands": "\n".join(commands(recipe["stages"])),
        "seconds": " and ".join(f"{stage['seconds']:.0f}" for stage in recipe["stages"]),
        "care": ", ".join(f"{n} {c:.2f}" for n, c in recipe["care"].items()),
        "held": "and so it does" + (f", except in {', '.join(outside)}" if outside else ""),
    }
    return PAGE.format(**told, count=recipe["episodes_a_cell"], size=recipe["parameters"])


def commands(stages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What to type: each stage goes on from the weights of the one before, and the last one is measured."""
    for i, stage in enumerate(stages, 1):
        start = f" --start runs/agent-{i - 1}" if i > 1 else ""
        mix = f" --mix {' '.join(stage['mix'])}" if stage["mix"] else ""
        out = f" --episodes 0 --out runs/agent-{i}" if i < len(stages) else ""
        yield f"python scripts/make_agent.py --steps {stage['steps']} --lr {stage['lr']:g} --seed {stage['seed']}" + (
            start + mix + out
        )


PAGE = """# The built-in agent

<!-- Written by scripts/make_agent.py; change it there. -->

`model=tiny-agent` is a small policy for the worlds of [Environments](environments.md): the architecture of `tiny` with
{size:,} parameters, 512 positions, and a tokenizer of words. `model=tiny-agent-random` is the same, untrained. An
observation of a built-in world has at most 12 tokens, an action at most 5.

It knows how to act, and wins seldom: that is what it is for. At level 1 it is meant to win .10 to .20 of the held-out
tasks in every world with one seat, {held}.

It was made from scripted players that follow the winning path with a probability that is drawn for each episode, and
else take any action that is allowed:

```sh
{commands}
```

That took {seconds} s on one core of a busy machine. All tasks were of the train splits. The mean care of the players at
the end, by world: {care}.

The mix of the second stage was chosen after a look at the held-out success of the first, where sokoban (.03) was too
low, and twenty was low on train tasks; two other mixes were begun and given up. So the figures of level 1 are tuned.

## Success

{count} held-out episodes each, sampled at temperature 1. *Random* is a player that takes any action that is allowed on
the same tasks; *invalid* is the share of actions that the world did not take; *full* is the share of episodes that
ended because the next turn did not fit into 512 positions, which count as lost. In games the policy plays each seat in
half of the episodes, and success is an outcome above 0.

| world | level | success | random | turns | invalid | full |
|---|---|---|---|---|---|---|
{rows}

## How a dialogue is written

    <bos> task ⏎ observation <act> action <eos> observation <act> action <eos> …

```python
from gruppo.policies import load_tokenizer

tokenizer = load_tokenizer("tiny-agent")
task, seen = ({{"role": "user", "content": text}} for text in ("put cup in box", "in hall box to kitchen"))
prompt = tokenizer.chat([task, seen])  # messages that follow one another are lines of one observation
then = tokenizer.follow([{{"role": "user", "content": "box is empty"}}], last=tokenizer.eos)
assert tokenizer.decode(prompt) == "put cup in box\\nin hall box to kitchen"
assert (prompt[0], prompt[-1], then[-1]) == (tokenizer.bos, tokenizer.act, tokenizer.act)
```

A known word is one token; any other is written in bytes, so every text can be encoded, and comes back as it was. An
action that was cut off has no `<eos>`: `follow` puts it in front, unless `last` is `<eos>`.
"""


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--lr", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=200, help="held-out episodes for each world and level")
    parser.add_argument("--out", type=Path, default=HOME / "src" / "gruppo" / "policies" / "weights" / "tiny-agent")
    parser.add_argument("--docs", type=Path, default=HOME / "docs" / "agent-policy.md")
    parser.add_argument("--start", type=Path, help="a folder that this script wrote: go on from its weights")
    parser.add_argument("--mix", nargs="*", default=[], metavar="WORLD=CARE:WEIGHT", help="to start with")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    return parser.parse_args(arguments)


def mix_of(words: Sequence[str]) -> dict[str, tuple[float, float]]:
    """{world: (care, weight)} of words such as household=0.8:2."""
    out: dict[str, tuple[float, float]] = {}
    for word in words:
        name, _, numbers = word.partition("=")
        care, _, weight = numbers.partition(":")
        if name not in WORLDS:
            raise ValueError(f"--mix {word}: {name!r} is no world with one seat. Use {', '.join(WORLDS)}.")
        out[name] = float(care), float(weight or WEIGHT)
    return out


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Trains, saves and measures; what was done, for recipe.json."""
    torch.set_num_threads(1)  # the order of sums, and with it the weights, depends on the number
    begun = time.perf_counter()
    before = json.loads((options.start / "recipe.json").read_text(encoding="utf-8")) if options.start else {}
    policy = TinyTransformer.load(options.start) if options.start else TinyTransformer(CONFIG, seed=options.seed)
    corpus = Corpus(options.seed, mix_of(options.mix))
    adjust, losses = Adjust(corpus, options.steps), list[float]()
    for step, loss in train(policy, corpus, options):
        losses.append(loss)
        if (step + 1) % max(1, options.steps // 40) == 0:
            spent = time.perf_counter() - begun
            print(f"step {step + 1:5d}  loss {np.mean(losses[-30:]):.4f}  {spent:4.0f} s", flush=True)
        if adjust.due(step):
            adjust(policy)
    stage = {k: getattr(options, k) for k in ("seed", "steps", "lr", "mix")}
    stage |= {"seconds": round(time.perf_counter() - begun, 1), "final_loss": round(float(np.mean(losses[-30:])), 4)}
    stage |= {k: getattr(corpus, k) for k in ("episodes", "actions", "tokens")}
    recipe = {
        "made_by": "scripts/make_agent.py",
        "torch": torch.__version__,
        "config": asdict(CONFIG),
        "parameters": sum(w.numel() for w in policy.parameters()),
        "stages": [*before.get("stages", []), stage],
        "care": {n: round(c, 3) for n, c in corpus.care.items()},
        "episodes_a_cell": options.episodes,
    }
    policy.save(options.out, TOKENIZER, dtype=torch.float16)
    policy = TinyTransformer.load(options.out)  # what ships is what is measured
    return recipe | {"held_out": measure(policy, options.episodes, corpus.uids) if options.episodes else {}}


def main() -> None:
    options = options_of()
    file = options.out / "recipe.json"
    if not options.page:
        recipe = make(options)
        file.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
        for path in options.out.iterdir():
            path.chmod(0o644)  # safetensors writes for the owner only
        size = sum(path.stat().st_size for path in options.out.iterdir())
        assert size <= 3e6, f"{size} bytes: more than the 3 MB that are meant for it."
    recipe = json.loads(file.read_text(encoding="utf-8"))
    if recipe["held_out"]:
        options.docs.write_text(page(recipe), encoding="utf-8")


if __name__ == "__main__":
    main()
