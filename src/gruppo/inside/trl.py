"""A method of ours inside TRL: a drop-in for its `GRPOTrainer`. Needs the extra `trl`.

    from gruppo.inside.trl import GruppoGRPOTrainer
    GruppoGRPOTrainer(method="gspo", model=…, reward_funcs=…, args=GRPOConfig(…), train_dataset=…).train()

Credit, selection, objective, penalties, passes and components of the reward are the method's. Everything else is TRL's:
prompts, sampling, reward functions, models, forward and backward passes, optimiser, processes, checkpoints, logging.
Every process holds the ids of the whole step and forwards its share, so that nothing is counted by process or by slice.
"""

import copy
import dataclasses
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, pack
from gruppo.inside.answers import (
    Answer,
    Told,
    components,
    episodes_of,
    looks_at_episodes,
    observed,
    parts_of,
    shares,
    spread,
    through_rooms,
)
from gruppo.inside.fits import TRL, admitted, reads
from gruppo.inside.step import OneStep
from gruppo.methods import method as named
from gruppo.stages import Context, Memory, Method, Need, Sampling, StepRecord
from gruppo.stages.check import check, check_first_batch
from gruppo.stages.goal import Goal, zero_of
from gruppo.stages.walk import Walk

try:
    from accelerate.utils import gather_object
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
    from trl.models.utils import disable_gradient_checkpointing  # type: ignore[import-not-found]
    from trl.trainer.grpo_config import GRPOConfig  # type: ignore[import-not-found]
    from trl.trainer.grpo_trainer import GRPOTrainer  # type: ignore[import-not-found]
    from trl.trainer.utils import pad  # type: ignore[import-not-found]
except ImportError as error:
    raise ImportError(
        f"gruppo.inside.trl needs TRL, which cannot be imported: {error}. Install the extra: pip install 'gruppo[trl]'."
    ) from error

MEMORY = "gruppo_memory.pt"  # in a checkpoint's folder
# Settings of TRL that the method decides, and the room that says it.
DECIDED = {
    "beta": "penalties",
    "epsilon": "objective",
    "epsilon_high": "objective",
    "delta": "objective",
    "importance_sampling_level": "objective",
    "loss_type": "objective",
    "use_bias_correction_kl": "penalties",
    "multi_objective_aggregation": "credit",
    "scale_rewards": "credit",
    "mask_truncated_completions": "select",
    "top_entropy_quantile": "select",
    "off_policy_mask_threshold": "select",
    "entropy_coef": "penalties",
    "use_adaptive_entropy": "penalties",
    "sync_ref_model": "cast",
}


def settled(config: GRPOConfig, method: Method) -> GRPOConfig:
    """TRL's settings with the passes of the method. One that the method decides is refused, not ignored."""
    out, passes = copy.copy(config), method.update
    plain = {f.name: f.default for f in dataclasses.fields(GRPOConfig)}
    for name, room in DECIDED.items():
        if getattr(config, name) != plain[name]:
            raise ValueError(
                f"GRPOConfig({name}={getattr(config, name)!r}) would be ignored: {method.name} decides it in its room "
                f"{room}. Leave it out, and change the method instead: method=METHOD.but({room}=…)."
            )
    each = config.gradient_accumulation_steps
    steps = each * passes.minibatches
    if config.num_iterations not in (1, passes.epochs) or config.steps_per_generation not in (each, steps):
        raise ValueError(
            f"GRPOConfig(num_iterations={config.num_iterations}, steps_per_generation={config.steps_per_generation}) "
            f"contradicts {method.name}, which learns from a batch in {passes.epochs} passes of {passes.minibatches} "
            f"optimiser steps ({passes.epochs} and {steps} here). Leave both out, or use "
            "method=METHOD.but(update=Passes(epochs=…, minibatches=…))."
        )
    out.num_iterations, out.steps_per_generation = passes.epochs, steps
    out.generation_batch_size = config.per_device_train_batch_size * config.world_size * steps
    out.beta = 1.0 if reads(method, "ref") else 0.0  # makes TRL load a reference; its own loss is never computed
    return out


@dataclasses.dataclass
class Drawn:
    """A step: what was drawn and kept, the batch with credit, and the part of each optimiser step."""

    ctx: Context
    answers: list[Answer]
    episodes: list[Episode]
    kept: list[Episode]
    batch: Batch | None
    parts: list[Batch | None]
    each: int  # forwards of a process in one optimiser step
    now: OneStep | None = None  # the optimiser step that is under way

    def rows(self, place: int, process: int, processes: int) -> Tensor:
        """The sequences of a forward of this process, in the part of its optimiser step."""
        return shares(self.parts[place // self.each], self.each * processes)[process * self.each + place % self.each]


class GruppoGRPOTrainer(GRPOTrainer):
    """TRL's trainer with a method of ours.

    method   a name, or a Method
    answers  text -> the answer in it, for methods that compare answers (they read answer_E)

    The first reward function, or one called `task`, is the component `task`; the others keep their names. All arguments
    of GRPOTrainer stay as they are.
    """

    _tag_names = ["trl", "grpo", "gruppo"]

    def __init__(
        self, *args: Any, method: str | Method = "grpo", answers: Callable[[str], str] | None = None, **kwargs: Any
    ) -> None:
        m = named(method) if isinstance(method, str) else method
        admitted(m, TRL, "GruppoGRPOTrainer", answers)
        bound = inspect.signature(GRPOTrainer.__init__).bind_partial(self, *args, **kwargs)
        config = bound.arguments.get("args") or GRPOConfig(f"gruppo-{m.name}")
        check(m, Context(), samples=config.num_generations)
        self.method, self.answers_in = m, answers
        self.memory, self.drawn, self.looked = Memory(), None, False
        bound.arguments["args"] = settled(config, m)
        bound.arguments.pop("self")
        super().__init__(**bound.arguments)

    # from completions to a batch with credit

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored = inputs, prompts, completions, completion_ids_list, rewards
        return rewards

    def _draw(self, rows: list[dict[str, Any]]) -> Drawn:
        """Completions, rewards and all that TRL does with them; then the rooms of the method."""
        train = self.model.training
        told = self._generate_and_score_completions(rows)
        if "pixel_values" in told:
            raise ValueError(
                "these prompts have images, and gruppo's batch holds token ids alone: they would be forwarded without "
                "their images. Use prompts of text, or TRL's GRPOTrainer."
            )
        ctx = self._context(train)
        answers = gather_object(self._answers(told))
        walk, said = Walk(self.method, partial(self._read, told), packed=self._packed), Told(answers)
        self._told = said
        walk.opened(ctx)
        ctx.fresh = lambda n: []
        if told.get("sampling_per_token_logps") is None and looks_at_episodes(self.method):
            self._tell(told, "old", "logp")
            for a, logp in zip(answers, said.tables["old", "logp"], strict=True):
                a.logp = spread(a, logp)
        groups = [i // ctx.samples for i in range(len(answers))]
        episodes = episodes_of(answers, groups, self.method, ctx)
        kept, batch = through_rooms(walk, ctx, episodes)
        if train and batch is not None and not self.looked:
            self.looked = True
            for said_so in check_first_batch(self.method, batch):
                warnings.warn(said_so, stacklevel=2)
        parts = parts_of(batch, self.method, ctx) if train else [batch]
        each = self.args.gradient_accumulation_steps if train else 1
        return Drawn(ctx, answers, episodes, kept, batch, parts, each)

    def _context(self, train: bool) -> Context:
        samples = self.num_generations if train else self.num_generations_eval
        done, steps = self.state.global_step // self.method.update.steps, self.state.max_steps
        return Context(
            step=done,
            steps=max(steps // self.method.update.steps, 1),
            seed=self.args.seed,
            version=self.state.global_step,
            memory=self.memory,
            tokenizer=self._tokenizer,
            prompts=self.args.generation_batch_size // samples,
            samples=samples,
            sampling=Sampling(self.max_completion_length, self.temperature, max(self.top_k or 0, 0), self.top_p),
        )

    def _packed(self, episodes: Sequence[Episode], **options: Any) -> Batch:
        made = pack(episodes, share=2.0, dtype=self._dtype, **options)  # TRL shares no prefixes
        return made.to(self.accelerator.device)

    @property
    def _dtype(self) -> torch.dtype:
        """Of rewards and statistics: at least float32, since bfloat16 counts to 256."""
        return torch.promote_types(next(self.model.parameters()).dtype, torch.float32)

    def _answers(self, told: Mapping[str, Any]) -> list[Answer]:
        """The rows of this process."""
        inputs, prompts, completions, ids, rewards = self._scored
        first = self.accelerator.process_index * len(ids)
        weights, names = self.reward_weights.tolist(), self.reward_func_names
        task = "task" if "task" in names else names[0]
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        gen, tools, seen = told.get("sampling_per_token_logps"), told.get("tool_mask"), told["prompt_mask"].bool()
        out: list[Answer] = []
        for i, mine in enumerate(ids):
            n, text = len(mine), _text(completions[i])
            scores = {name: float(r) * w for name, r, w in zip(names, rewards[first + i], weights, strict=True)}
            out.append(
                Answer(
                    task=str(prompts[i]),
                    prompt=told["prompt_ids"][i][seen[i]].tolist(),
                    ids=list(mine),
                    mine=[True] * n if tools is None else tools[i, :n].bool().tolist(),
                    reward=components(scores, task),
                    logp=None if gen is None else gen[i, :n].tolist(),
                    truncated=mine[-1] not in ends,
                    text=text,
                    answer=self.answers_in(text) if self.answers_in else "",
                    domain=str(inputs[i].get("domain", "")),
                )
            )
        return out

    def _read(self, told: Mapping[str, Any], role: str, batch: Batch, needs: Sequence[Need]) -> dict[str, Tensor]:
        """What a model says about a batch, without gradient. All processes ask for the same."""
        role = "old" if role == "policy" else role
        for n in needs:
            self._tell(told, role, n.readout)
        return {n.column: self._told.rows(role, n.readout, batch) for n in needs}

    def _tell(self, told: Mapping[str, Any], role: str, readout: str) -> None:
        if (role, readout) in self._told.tables:
            return
        mask = told["completion_mask"] if "tool_mask" not in told else told["completion_mask"] * told["tool_mask"]
        known = told.get(f"{role}_per_token_logps") if readout == "logp" else None
        values = self._forward_all(told)[readout == "entropy"] if known is None else known
        mine = [x[own].to(self._dtype).cpu().numpy() for x, own in zip(values, mask.bool(), strict=True)]
        self._told.put(role, readout, gather_object(mine))

    def _forward_all(self, told: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the policy at all rows of this process."""
        with torch.no_grad(), disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            logps, entropies, _ = self._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([told["prompt_ids"], told["completion_ids"]], 1),
                torch.cat([told["prompt_mask"], told["completion_mask"]], 1),
                told["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
                compute_entropy=True,
            )
        return logps, entropies

    # from a batch to losses

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        if not self.model.training:
            return {"drawn": self._draw(generation_batch), "place": 0}
        place = self._step % (self.args.steps_per_generation * self.num_iterations)
        if place == 0 or self.drawn is None:
            self.drawn = self._draw(generation_batch)
        return {"drawn": self.drawn, "place": place}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        drawn, place, mode = inputs["drawn"], inputs["place"], "train" if self.model.training else "eval"
        part, processes = drawn.parts[place // drawn.each], self.accelerator.num_processes
        if place % drawn.each == 0:
            drawn.now = None if part is None else OneStep(Goal(self.method, drawn.ctx), part, place == 0)
            if drawn.now is not None and drawn.now.whole:
                drawn.now.begin(self._statistics(model, drawn, drawn.now, place))
        rows_S = drawn.rows(place, self.accelerator.process_index, processes)
        stats, entropy, aux = self._forward(model, drawn, part, rows_S)
        value = drawn.now.part(rows_S, stats) if drawn.now is not None and len(rows_S) else zero_of(stats)
        loss = -processes * value  # gradients of processes are averaged
        if drawn.now is not None and drawn.now.whole:
            loss = loss - loss.detach() - drawn.now.total.value.detach() / drawn.each
        if aux is not None:
            loss = loss + self.router_aux_loss_coef * aux / drawn.each
        self._metrics[mode]["entropy"].append(self._mean(entropy))
        if place % drawn.each == drawn.each - 1 and drawn.now is not None:
            self._report(drawn.now, mode)
        return loss

    def _forward(
        self, model: Any, drawn: Drawn, part: Batch | None, rows_S: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Any]:
        """Statistics of these sequences, one row a decision; of none, those of the first answer, which count 0."""
        mine = [0] if part is None or not len(rows_S) else part.uid_E[part.episode_S[rows_S.to(part.device)]].tolist()
        answers, device = [drawn.answers[u] for u in mine], self.accelerator.device

        def padded(rows: list[list[Any]], side: str, fill: int) -> Tensor:
            return pad([torch.tensor(r) for r in rows], fill, side, self.pad_to_multiple_of).to(device)

        blank = self._tokenizer.pad_token_id
        prompts, ids = (
            padded([a.prompt for a in answers], "left", blank),
            padded([a.ids for a in answers], "right", blank),
        )
        seen = padded([[1] * len(a.prompt) for a in answers], "left", 0)
        there = padded([[1] * len(a.ids) for a in answers], "right", 0)
        own = padded([[int(x) for x in a.mine] for a in answers], "right", 0).bool()
        logps, entropies, aux = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([prompts, ids], 1),
            torch.cat([seen, there], 1),
            ids.size(1),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled and torch.is_grad_enabled(),
        )
        found = {"logp_N": logps[own].to(self._dtype), "entropy_N": entropies[own].to(self._dtype)}
        names = ["logp_N"] if drawn.now is None else drawn.now.columns()
        entropy = found["entropy_N"].detach() if len(rows_S) else found["entropy_N"][:0].detach()
        return {name: found[name] for name in names}, entropy, aux

    def _statistics(self, model: Any, drawn: Drawn, step: OneStep, place: int) -> dict[str, Tensor]:
        """Statistics of the whole optimiser step, without gradient: each process reads its rows, and all get all."""
        part, process, processes = step.batch, self.accelerator.process_index, self.accelerator.num_processes
        out: dict[str, Tensor] = {}
        for i in range(drawn.each):
            rows_S = drawn.rows(place + i, process, processes)
            with torch.no_grad():
                stats, _, _ = self._forward(model, drawn, part, rows_S)
            for name, x in stats.items():
                whole = out.setdefault(name, x.new_zeros(part.size("N")))
                if len(rows_S):
                    whole[part.micro(rows_S.to(part.device)).columns["row_N"]] = x
        return {name: self.accelerator.reduce(x, "sum") for name, x in out.items()}

    def _mean(self, x: Tensor) -> float:
        total = self.accelerator.reduce(torch.stack([x.sum(), x.new_tensor(float(len(x)))]), "sum")
        return float(total[0] / total[1].clamp(min=1.0))

    def _report(self, step: OneStep, mode: str) -> None:
        """The terms of an optimiser step, as means without their coefficients."""
        zero = torch.zeros((), device=self.accelerator.device)
        mine = torch.stack([step.total.totals.get(t.name, zero) for t in step.total.terms])
        found = mine if step.whole else self.accelerator.reduce(mine, "sum")
        for term, x in zip(step.total.terms, found.tolist(), strict=True):
            self._metrics[mode][f"gruppo/{term.name}"].append(x)

    # after a step

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        drawn = self.drawn
        if drawn is not None and self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            record = StepRecord(drawn.ctx.step, drawn.kept, drawn.batch, {}, drawn.ctx, drawn.episodes)
            observed(self.method, self.memory, record)
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            torch.save(self.memory.plain, os.path.join(self._get_output_dir(trial=trial), folder, MEMORY))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = os.path.join(checkpoint or "", MEMORY)
        if checkpoint is not None and os.path.exists(path):
            self.memory = Memory(torch.load(path, weights_only=True))


def _text(completion: Any) -> str:
    """What the policy wrote, in words: a text, or messages."""
    if isinstance(completion, str):
        return completion
    return "".join(str(m.get("content") or "") for m in completion if m.get("role") == "assistant")
