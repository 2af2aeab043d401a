"""Step zero: what must hold before the first update. Every run starts with it; `gruppo doctor` shows it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from gruppo.data import Batch, Episode, Source, Status, Use
from gruppo.stages import need
from gruppo.stages.check import learnable_N, least_samples
from gruppo.stages.names import nearest
from gruppo.stages.writers import by_writer
from gruppo.train.run import Run
from gruppo.train.slow import told_if_slow

# Differences that rounding explains, by the dtype of the weights.
GAP = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1}
# A shorter gradient is treated as if it had this norm: where parts cancel, what is left is rounding.
FAINT = 1e-2
STORED = 1e-5  # episodes hold log-probabilities and temperatures in float32, even if the weights are float64


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    value: float
    limit: float
    found: str  # what was looked at and what it is, in words
    remedy: str = ""  # if it is not as it must be
    accepted: bool = False


async def step_zero(run: Run, prompts: int = 8) -> list[Check]:
    """Draw a few groups, and check them as the trainer would see them. Changes nothing."""
    drawn = min(prompts, run.config.prompts) * run.config.samples
    with told_if_slow(run.say_late, f"checking step zero, before anything is learned: {drawn} {_whole(run)}"):
        return await _checked(run, prompts)


async def _checked(run: Run, prompts: int) -> list[Check]:
    ctx = run.context(0)
    run.engine.forget()
    ctx.prompts = min(prompts, run.config.prompts)
    run.learner.begin(ctx)
    asks = run.method.curriculum(ctx, run.tasks.train)[: ctx.prompts]
    episodes = await run.walk.drawn(ctx, asks, run.method.rollout)
    batch = run.walk.batch_of(ctx, episodes, episodes)
    if batch is None:
        raise ValueError("step zero: no episode can be learned from. Look at the rollout of the method.")
    if not batch.size("N"):
        said = f" {_source(run)} said: {_first_error(episodes)}" if _first_error(episodes) else ""
        raise ValueError(f"step zero: no token was sampled, so there is nothing to check or to learn from.{said}")
    batch = batch.with_columns(**run.learner.read("old", batch, [need("logp", "old")]))
    checks = [
        _ratio(run, batch),
        _gap(run, batch),
        _reference(run, batch),
        _tokens(run, episodes),
        _coverage(run, batch),
        _judged(run, episodes),
        _cut_off(run, episodes),
        _dead(batch),
        _greedy(run, episodes),
        _gradient(run, ctx, batch),
    ]
    run.clock.take()
    names = [c.name for c in checks]
    for name in run.config.accept:
        if name not in names:
            raise ValueError(
                f"accept={name}: step zero has no such check{nearest(name, names)}. It has: {', '.join(names)}."
            )
    return [replace(c, accepted=not c.ok and c.name in run.config.accept) for c in checks]


def refuse(checks: list[Check]) -> None:
    bad = [c for c in checks if not c.ok and not c.accepted]
    if bad:
        unjudged = any(c.name == "judged" and not c.value for c in bad)  # then nothing can be learned from either
        lines = [
            f"step zero, {c.name}: {c.found}. {c.remedy}".rstrip()
            for c in bad
            if not (unjudged and c.name in ("mask", "dead_groups"))
        ]
        names = ",".join(c.name for c in bad)
        fix = f"Correct that, or start all the same with accept={names} (recorded with the run)."
        raise ValueError("\n".join(lines if unjudged else [*lines, fix]))


def _ratio(run: Run, batch: Batch) -> Check:
    now = run.learner.read("policy", batch, [need("logp", when="step")], grad=True)["logp_N"]
    worst, limit = float((torch.exp(now - batch.logp_old_N) - 1).abs().max()), GAP[run.dtype]
    found = f"before an update π/π_old must be 1: it is off by {worst:.2g} at most (rounding explains {limit:.2g})"
    return Check("ratio", worst <= limit, worst, limit, found, "Dropout, or numerics that depend on the batch?")


def _gap(run: Run, batch: Batch) -> Check:
    here = batch.on_policy_N & torch.isfinite(batch.logp_gen_N) & (batch.version_N == run.version)
    gap = (batch.logp_old_N - batch.logp_gen_N)[here].abs()
    # In bfloat16 a rare token is always off by tenths; a real error still shows in the mean.
    rough = run.dtype == torch.bfloat16
    worst = float(gap.mean() if rough else gap.max()) if len(gap) else 0.0
    limit = max(GAP[run.dtype], STORED)
    meant = run.config.regime.rough  # by settings, on purpose
    found = (
        f"sampler and trainer {f'differ by {meant}' if meant else 'must agree'} about the sampled tokens: their "
        f"log-probabilities differ by {worst:.2g} nats {'on average' if rough else 'at most'} (rounding explains "
        f"{limit:.2g})"
    )
    ok = bool(meant) or worst <= limit
    return Check("sampler_gap", ok, worst, limit, found, "Positions, masks or temperatures may differ.")


def refuse_other_weights(run: Run, batch: Batch) -> None:
    """The gap again, on the first answers after weights have changed: an engine with weights of its own was sent them.

    Step zero has seen only the weights that it was started with. Answers of other versions say nothing.
    """
    if not bool((batch.on_policy_N & torch.isfinite(batch.logp_gen_N) & (batch.version_N == run.version)).any()):
        return
    if "logp_old_N" not in batch.columns:
        batch = batch.with_columns(**run.learner.read("old", batch, [need("logp", "old")]))
    found = _gap(run, batch)
    if not found.ok and found.name not in run.config.accept:
        remedy = (
            f"engine={run.config.engine.name} does not sample from the weights that it was sent. Use engine=native."
        )
        refuse([replace(found, remedy=remedy)])
    run.compared = True


def _reference(run: Run, batch: Batch) -> Check:
    if "ref" not in run.roles or run.version > 0:
        return Check("reference_kl", True, 0.0, 0.0, "nothing to check: the method has no reference")
    ref = run.learner.read("ref", batch, [need("logp", "ref")])["logp_ref_N"]
    worst, limit = float((ref - batch.logp_old_N).abs().max()), GAP[run.dtype]
    copy = run.method.cast["ref"].start == "policy"
    found = (
        f"the reference is {'a copy of the policy and must agree with it' if copy else 'another model'}: their "
        f"log-probabilities differ by {worst:.2g} nats at most"
    ) + (f" (rounding explains {limit:.2g})" if copy else "")
    return Check("reference_kl", not copy or worst <= limit, worst, limit, found, "Were its weights changed?")


def _tokens(run: Run, episodes: list[Episode]) -> Check:
    """bos occurs once, first (the policy itself may sample more of them), and the ids decode to the text."""
    bad, bos = 0, run.tokenizer.bos
    for e in episodes:
        begun = [bos is None or (s.ids[0] == bos and (s.ids[s.source != Source.POLICY] == bos).sum() == 1)
                 for s in e.sequences]  # fmt: skip
        bad += not (all(begun) and _says(run.tokenizer, e))
    found = f"ids and text of an answer must belong together, with bos once: they do not in {bad} of {len(episodes)}"
    return Check("tokens", bad == 0, bad, 0, found, "Look at the tokenizer and its chat template.")


def _says(tokenizer: Any, e: Episode) -> bool:
    """Whether the ids decode to the text: that of each turn, if they have texts (what was given may come before it)."""
    if not e.sequences:  # it failed before anything was said
        return True
    if any(t.text or t.state or t.flags for t in e.turns):  # an action may be empty
        return all(t.text.endswith(tokenizer.decode(e.sequences[t.sequence].ids[t.start : t.stop])) for t in e.turns)
    s = e.sequences[0]
    return tokenizer.decode(s.ids[s.source != Source.ENV]) == e.text


def _coverage(run: Run, batch: Batch) -> Check:
    share = float(learnable_N(run.method, batch).float().mean()) if batch.size("N") else 0.0
    found = f"{share:.0%} of the sampled tokens can be learned from; with none of them there would be no step"
    remedy = "Look at method.select, and at how the episodes ended: one that failed is not learned from."
    return Check("mask", share > 0, share, 0, found, remedy)


def _source(run: Run) -> str:
    """Who judges an episode, and so says why one was not judged."""
    return "The agent" if run.config.task.agent else "The world" if run.tasks.env else "The scorer"


def _whole(run: Run) -> str:
    return "episodes" if run.tasks.env else "answers"


def _first_error(episodes: list[Episode]) -> str:
    return next((e.error for e in episodes if e.error), "")


def _judged(run: Run, episodes: list[Episode]) -> Check:
    """Of the episodes that have ended: open ones are judged in a later step."""
    ended = [e for e in episodes if e.status != Status.OPEN]
    share = sum(e.status.judged for e in ended) / len(ended) if ended else 1.0
    error = _first_error(episodes)
    found = f"{share:.0%} of the {_whole(run)} got a reward; more than half must"
    said = [f"{_source(run)} said: {error}"] if error else []
    if not share:
        judge, one = _source(run).lower(), _whole(run).removesuffix("s")
        said.append(f"Correct {judge}, so that it gives every {one} a reward: without any, nothing can be learned.")
    return Check("judged", share > 0.5, share, 0.5, found, "\n".join(said))


def _cut_off(run: Run, episodes: list[Episode]) -> Check:
    """Only reported: a policy may have to learn to come to an end."""
    share = sum(e.status == Status.TRUNCATED for e in episodes) / len(episodes) if episodes else 0.0
    found = (
        f"{share:.0%} of the episodes ran out of turns, or of the model's context"
        if run.tasks.env
        else f"{share:.0%} of the answers were cut off after sampling.max_tokens={run.sampling.max_tokens} tokens"
    )
    return Check("truncated", True, share, 1, found)


def _dead(batch: Batch) -> Check:
    """Only reported: some methods learn from groups of equal rewards, and redraws may help.

    With several agents, a group is dead if the returns of each of them are equal.
    """
    dead_G = torch.ones(batch.size("G"), dtype=torch.bool, device=batch.device)
    for return_E in batch.reward_EA[:, batch.speaks_A].unbind(1):
        dead_G &= batch.gather(return_E, "E", "G", "std", where=batch.judged_E & ~return_E.isnan()) == 0
    share = float(dead_G.float().mean())
    found = f"in {share:.0%} of the groups all rewards are equal: they say nothing to most methods"
    return Check("dead_groups", True, share, 1, found)


def _greedy(run: Run, episodes: list[Episode]) -> Check:
    """Greedy samples of a prompt are one answer, unless the rollout itself makes them differ."""
    groups: dict[str, list[bytes]] = {}
    for e in episodes:
        if e.use == Use.LEARN and e.source == Source.POLICY:
            groups.setdefault(e.group, []).append(b"|".join(s.ids.tobytes() for s in e.sequences))
    several = [said for said in groups.values() if len(said) > 1]
    share = sum(len(set(said)) == 1 for said in several) / len(several) if several else 0.0
    warmth, name = run.sampling.temperature, run.method.name
    ok = warmth > 0 or share < 1 or least_samples(run.method) < 2
    found = f"with sampling.temperature={warmth:g} the answers to a prompt are the same in {share:.0%} of the groups"
    found += "" if ok else f", and {name} compares the samples of one prompt, so it would learn nothing"
    remedy = "Use sampling.temperature=1, or a method without groups such as method=reinforce."
    return Check("greedy", ok, share, 1, found, remedy)


def _gradient(run: Run, ctx: Any, batch: Batch) -> Check:
    """The gradient of an optimiser step is finite, and does not depend on the cut into micro-batches."""
    off, norms, limit = 0.0, list[float](), GAP[run.dtype]
    for role, part in by_writer(run.method, run.walk.credited(ctx, batch)):
        rows = torch.arange(part.size("S"), device=part.device)
        pieces = 2 * -(-len(part.inputs.ids_M) // run.learner.micro_tokens)  # more and smaller ones
        interleaved = [rows[i::pieces] for i in range(min(pieces, len(rows)))]
        seen = [run.learner.gradient(role, part, cut=cut) for cut in (None, interleaved)]
        norms.append(float(seen[0].norm()))
        off = max(off, float((seen[0] - seen[1]).norm()) / max(norms[-1], FAINT))
    norm = max(norms, default=0.0) if all(map(math.isfinite, norms)) else math.nan
    found = (
        f"the gradient (norm {norm:.2g}) must not depend on the cut into micro-batches: between two cuts it differs by "
        f"{off:.2g} of its norm (rounding explains {limit:.2g})"
    )
    remedy = "An objective of your own may average over a micro-batch: declare its terms, and let them be averaged."
    return Check("micro_batches", off <= limit and math.isfinite(norm), off, limit, found, remedy)
