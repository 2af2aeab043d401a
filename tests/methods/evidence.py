"""Evidence that every method has, drawn together by method: one line of its file for each kind.

How to add the file of a new method NAME, tests/methods/test_NAME.py:

1. its docstring, `\"""Evidence for NAME: what is worked by hand.\"""`, and `import evidence`;
2. `test_laws = evidence.laws("NAME")`, `test_asks = evidence.asks("NAME")`, `test_resume = evidence.resume("NAME")`;
3. a planted mistake in a file tests/laws/planted_*.py, and `test_planted_mistakes = evidence.planted("NAME")`;
4. an edge in a file tests/equivalences/graph_*.py, and `test_equivalences = evidence.equivalences("NAME")`; its terms
   in term_table.py, and `test_terms = evidence.terms("NAME")`;
5. the numbers of its paper, worked by hand in plain Python (hand.py makes batches, drawing.py scripts rollouts).

`pytest tests/methods/test_NAME.py` runs it, `pytest --method NAME` also what other files have about it, and with
`-m ""` the slow part: more seeds, all fields of all rooms, a run that is stopped and crashes. test_evidence.py says
what a file lacks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from drawing import finished
from hand import worked
from interrupted import stopped_crashed_and_resumed
from term_table import TERMS

from gruppo.cli import overrides
from gruppo.data import Batch
from gruppo.lab.laws import LAWS, ONCE, fields, verdict
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.laws import RARE
from gruppo.lab.laws.world import World
from gruppo.methods import all_methods, method
from gruppo.stages import Method, Stats, Term
from gruppo.stages.occupant import Occupant
from gruppo.train.checkpoint import load_checkpoint, save_checkpoint
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run

TESTS = Path(__file__).parents[1]
# Their fields show only after steps that were observed, or in rollouts that were sampled: a second or more.
HEAVY = frozenset({"archer", "arpo_replay", "pipo", "poise", "spear", "spo_segment", "spo_single", "t_ppo"})
LONG = frozenset({("archer", "roles")})  # laws that take a whole update of many optimiser steps
SLOW = pytest.mark.slow
Test = Callable[..., None]
# Methods for agents, and a small world for each: there they are resumed in every run of the tests.
WORLDS = dict.fromkeys(
    (
        "gigpo", "hgpo", "salt", "poad", "igpo_gain", "rlvmr", "ufo", "scalinginter", "arpo_agentic", "memact",
        "simpletir", "loop", "spear", "arpo_replay", "oprl", "archer",
    ),
    "guess",
) | {"drmas": "kuhn", "mars": "kuhn", "spiral": "kuhn", "otc": "calculator"}  # fmt: skip
# Settings for runs of methods that take many optimiser steps a step.
LIGHT = {"archer": ("method.update.critic_epochs=2", "method.update.utterances=8", "method.update.warmup=1")}


def seeds_of(*key: str, many: int = 1) -> tuple[int, ...]:
    """The seed of the default run, 0 or 1 (with 1 rewards have two components), or many others."""
    if many == 1:
        return (crc32(" ".join(key).encode()) % 2,)
    return tuple(crc32(" ".join((*key, str(i))).encode()) % 2**31 for i in range(many))


# laws


def laws(name: str) -> Test:
    """Every law, or that it is broken where the record says so. Of fields, those that its base does not have."""
    m = method(name)
    kept = [law for law in LAWS if law not in m.breaks]
    cases = [pytest.param(law, seeds_of(name, law), id=law) for law in kept if law not in ONCE]
    cases += [pytest.param(law, (0,), id=law) for law in kept if law in ONCE and law != "fields_matter"]
    if "fields_matter" in kept:
        heavy = [SLOW] if name in HEAVY else []
        own = [pytest.param("fields_matter", (), id="fields_matter", marks=heavy)] if own_places(m) else []
        cases += [*own, pytest.param("fields_matter", (0,), id="fields_matter-all", marks=SLOW)]
    long = {law: [SLOW] if (name, law) in LONG else [] for law in m.breaks}
    cases += [pytest.param(law, range(RARE), id=f"{law}-broken", marks=marks) for law, marks in long.items()]
    many = [law for law in kept if law not in ONCE]
    cases += [pytest.param(law, seeds_of(name, law, many=40), id=f"{law}-many", marks=SLOW) for law in many]

    @pytest.mark.parametrize(("law", "seeds"), cases)
    def test_laws(law: str, seeds: Sequence[int]) -> None:
        if law in m.breaks:
            broken_on_purpose(m, law, seeds)
            return
        said = {seed: verdict(law, m, seed) for seed in seeds} if seeds else {0: idle_field(m)}
        assert {seed: what for seed, what in said.items() if what} == {}, f"{name} breaks {law}"

    return test_laws


def broken_on_purpose(m: Method, law: str, seeds: Sequence[int]) -> None:
    assert law in LAWS, f"{m.name} declares {law}, which is no law"
    assert len(m.breaks[law].split()) >= 5, f"{m.name} breaks {law} without a reason that a reader could judge"
    tried = (verdict(law, m, seed) for seed in (seeds if law not in ONCE else (0,)))
    said = next((s for s in tried if s), "")
    assert said, f"{law} holds for {m.name}: take the declaration away"
    assert not said.startswith("raised")


def own_places(m: Method) -> list[tuple[str, Any, Any]]:
    """Occupants that its base does not have, as they are; of a method without a base, all."""
    base = all_methods().get(m.base)
    theirs = list(base.occupants()) if base else []
    return [(room, at, o) for room, at, o in fields.slots_of(m) if (room, o) not in theirs]


def idle_field(m: Method) -> str:
    """The law `fields_matter` over the method's own occupants. The others are tried with its base."""
    try:
        return fields.fields_matter(m, 0, own_places(m))
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def asks(name: str) -> Test:
    def test_asks() -> None:
        """Of the models that are there: an occupant asks for what it reads, since in another method nobody else
        may. Its own role has a gradient at every optimiser step; others have their full names."""
        world = World(method(name), 0)
        packed = world.packed(random_episodes(0))
        world.method.credit(world.ctx, alone(world, packed, world.method.credit))
        batch, generator = world.prepared(packed), torch.Generator().manual_seed(0)
        mine = [(role, o) for role, chain in world.method.objectives.items() for o in chain]
        for role, o in [*mine, *(("policy", p) for p in world.method.penalties)]:
            now = [n for n in o.needs(world.ctx) if n.when == "step"]
            now = [n if n.role == role else replace(n, when="batch") for n in now]
            stats = {n.column: world.synthetic(n, batch, generator) for n in now}
            worked(o, alone(world, batch, o), world.ctx, **stats)

    return test_asks


def alone(world: World, batch: Batch, occupant: Any) -> Batch:
    """The batch as it is when nobody else asks for anything."""
    others = {n.column for _, _, n in world.method.needs(world.ctx) if n.when == "batch"}
    others -= {n.column for n in occupant.needs(world.ctx)}
    return replace(batch, columns={k: v for k, v in batch.columns.items() if k not in others}, _cache={})


# terms


def terms(name: str) -> Test:
    """What the method hands to the learner, by role: term_table.py."""
    rows = {
        role or "policy": rows for which, rows in TERMS.items() for n, _, role in [which.partition(" ")] if n == name
    }
    assert rows, f"term_table.py has no terms of {name}"

    @pytest.mark.parametrize("role", rows)
    def test_terms(role: str) -> None:
        assert [(t.name, t.at, t.mean, t.coef, t.additive) for t in declared(name, role)] == rows[role]

    return test_terms


def declared(name: str, role: str) -> list[Term]:
    world = World(method(name), 0)
    batch = world.prepared(world.packed(random_episodes(0)))
    stats = world.statistics(batch, role)
    if "logp_old_N" not in batch.columns and "logp_N" in stats:
        batch = batch.with_columns(logp_old_N=stats["logp_N"])
    found = world.goal(role).terms(batch)
    values = world.goal(role).values(batch, Stats(stats), found)
    sizes = {
        "N": len(batch.token_N),
        "K": batch.size("K"),
        "P": batch.size("P"),
        "E": batch.size("E"),
        "G": batch.size("G"),
    }
    assert all(len(v) == len(t.over) == sizes[t.at] for t, v in zip(found, values, strict=True))
    return found


# planted mistakes


def planted(name: str) -> Test:
    """Mistakes planted in this method: each is caught by the law that is meant for it."""
    mine = mistakes().get(name, {})
    assert mine, f"no mistake is planted in {name}"
    cases = [
        pytest.param(what, (0,), id=what, marks=[SLOW] if law == "fields_matter" else [])  # it tries every value
        for what, (law, _, _) in mine.items()
    ]
    more = [what for what, (law, _, _) in mine.items() if law not in ONCE]
    cases += [pytest.param(what, (1, 2), id=f"{what}-more", marks=SLOW) for what in more]

    @pytest.mark.parametrize(("mistake", "seeds"), cases)
    def test_planted_mistakes(mistake: str, seeds: Sequence[int]) -> None:
        law, m, raises = mine[mistake]
        for seed in seeds:
            said = idle_field(m) if law == "fields_matter" else verdict(law, m, seed)
            assert said, f"{law} did not see it at seed {seed}"
            assert said.startswith("raised ") == raises, said

    return test_planted_mistakes


@cache
def mistakes() -> dict[str, dict[str, tuple[str, Method, bool]]]:
    """{method: {what is wrong: (the law, the spoiled method, whether it raises)}}, of the files of methods' families.

    planted.py and planted_prefixes.py are about the laws: what they spoil stands for any method.
    """
    out: dict[str, dict[str, tuple[str, Method, bool]]] = {}
    for path in sorted((TESTS / "laws").glob("planted_*.py")):
        if path.stem != "planted_prefixes":
            file = import_module(path.stem)
            for what, (law, m) in file.SPOILED.items():
                out.setdefault(owner(m), {})[what] = (law, m, what in getattr(file, "RAISES", ()))
    return out


def owner(m: Method) -> str:
    """The registered method that a record is, or was made from ("reg_grpo without kl" from reg_grpo)."""
    named = (m.name, m.base, m.base.partition(" ")[0].rstrip(","))
    return next((n for n in named if n in all_methods()), m.base)


# equivalences


def equivalences(name: str) -> Test:
    """What this method is, once some of its furniture is changed: the edges that begin at it."""
    mine = edges().get(name, {})
    assert mine, f"no equivalence begins at {name}"
    check = import_module("test_equivalences").check
    cases = [pytest.param(edge, seeds_of(edge), id=edge) for edge in mine]
    cases += [pytest.param(edge, seeds_of(edge, many=40), id=f"{edge}-many", marks=SLOW) for edge in mine]

    @pytest.mark.parametrize(("edge", "seeds"), cases)
    def test_equivalences(edge: str, seeds: Sequence[int]) -> None:
        for seed in seeds:
            check(mine[edge], seed)

    return test_equivalences


@cache
def edges() -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for edge in import_module("graph").GRAPH:
        out.setdefault(owner(edge.left), {})[edge.name] = edge
    return out


# resume

SMALL = ("model=tiny", "prompts=3", "samples=4", "steps=3", "threads=1")
SMALL += ("save.tensorboard=no", "eval.every=0")


def resume(name: str) -> Test:
    """Two steps, then a third from the checkpoint: bit for bit that of the run that was not stopped.

    Here with the slow tests: those of agents, which are in a world (tests/envs/test_world_resume.py), those that keep
    nothing more than their base does, and of those that only draw otherwise, and remember nothing, all but `DRAWING`.
    """
    later = name in WORLDS or keeps_nothing_more(method(name), draws=name in DRAWING)
    cases = [pytest.param(False, id="resumed", marks=[SLOW] if later else [])]
    cases.append(pytest.param(True, id="stopped-and-crashed", marks=SLOW))

    @pytest.mark.parametrize("by_command", cases)
    def test_resume(by_command: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if by_command:
            monkeypatch.chdir(tmp_path)
            stopped_crashed_and_resumed(name, monkeypatch, LIGHT.get(name, ()))
        else:
            resumed(name, tmp_path)

    return test_resume


DRAWING = ("dpo", "latr", "igrpo")  # pairs of a file, a tree within an answer, drafts before it


def keeps_nothing_more(m: Method, draws: bool = True) -> bool:
    """It adds only functions of a batch to its base: no room that keeps episodes or tasks, no memory, no role; and,
    unless `draws` is False, no rollout, which has keys of its own and may leave answers open."""
    base = all_methods().get(m.base)
    own = [(room, o) for room, _, o in own_places(m)]
    keeps = ("curriculum", "rollout", "replay") if draws else ("curriculum", "replay")
    if base is None or m.cast.keys() != base.cast.keys() or type(m.update) is not type(base.update):
        return False
    return not any(room in keeps or type(o).observe is not Occupant.observe for room, o in own)


def resumed(name: str, folder: Path, *settings: str) -> None:
    m = method(name)
    roles = [f"method.cast.{r}=tiny" for r, role in m.cast.items() if not role.start]  # a teacher
    config = overrides.apply(RunConfig(), (f"method={name}", *roles, *SMALL, *LIGHT.get(name, ()), *settings))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        straight = Run(config, say=lambda said: None)
        for step in range(2):
            finished(train_step(straight, step))
        at_two = save_checkpoint(folder / "straight", straight.state(2, {}))
        again = Run(config, say=lambda said: None)
        again.restore(load_checkpoint(at_two))
        left, right = (last_step(run, folder / which) for run, which in ((straight, "a"), (again, "b")))
    finally:
        torch.set_num_threads(threads)
    assert left.keys() == right.keys() and [k for k in left if left[k] != right[k]] == []
    assert any(k.startswith("optimiser-") and left[k] != x for k, x in contents(at_two).items()), "nothing was learned"


def last_step(run: Run, folder: Path) -> dict[str, bytes]:
    """The checkpoint after the third step, file by file."""
    try:
        finished(train_step(run, 2))
        return contents(save_checkpoint(folder, run.state(3, {})))
    finally:
        run.close()


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


# what a file must have


def expected(name: str) -> Iterator[str]:
    """The lines that the file of a method has."""
    yield f'test_laws = evidence.laws("{name}")'
    yield f'test_asks = evidence.asks("{name}")'
    if any(which.partition(" ")[0] == name for which in TERMS):
        yield f'test_terms = evidence.terms("{name}")'
    if name in mistakes():
        yield f'test_planted_mistakes = evidence.planted("{name}")'
    if name in edges():
        yield f'test_equivalences = evidence.equivalences("{name}")'
    yield f'test_resume = evidence.resume("{name}")'
