"""A method of ours as a trainer of verl: what fits TRL fits here, objectives that couple a whole step too. Needs verl.

    from gruppo.inside.verl_trainer import register_trainer
    print(register_trainer("disco"))     # the settings for verl's command line

Credit, selection, objective, penalties, passes and components of the reward are the method's. The trainer has all
answers of a step and what the policy says about them, so it computes dJ/dstatistic of each optimiser step by itself.
verl's workers are given these slopes, and sum slope · statistic (`set_loss_fn`). Everything else is verl's: prompts,
sampling, reward functions, models, forward and backward passes, optimiser, processes, checkpoints, logging.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any, ClassVar

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
    spread,
    through_rooms,
)
from gruppo.inside.fits import VERL_TRAINER, admitted
from gruppo.inside.slopes import Slopes, filled, slopes_of
from gruppo.inside.verl import ENTROPY, LOGP, VALUE, slope_loss
from gruppo.inside.verl_settings import ACTOR, refuse_settings, settings_of
from gruppo.methods import method as named
from gruppo.stages import Context, Memory, Method, Need, Sampling, StepRecord
from gruppo.stages.check import check, check_first_batch
from gruppo.stages.goal import Goal
from gruppo.stages.walk import Walk

try:
    import transfer_queue as tq  # type: ignore[import-not-found]
    from omegaconf import OmegaConf, open_dict  # type: ignore[import-not-found]
    from tensordict import TensorDict  # type: ignore[import-not-found]
    from verl.trainer.ppo import v1  # type: ignore[import-not-found]
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # type: ignore[import-not-found]
    from verl.utils.metric import reduce_metrics  # type: ignore[import-not-found]
    from verl.utils.py_functional import rename_dict  # type: ignore[import-not-found]
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions  # type: ignore[import-not-found]
    from verl.workers.utils.padding import response_from_nested  # type: ignore[import-not-found]
except ImportError as error:
    raise ImportError(
        f"gruppo.inside.verl_trainer needs verl with its trainer, which cannot be imported: {error}. Install both in "
        "an environment of their own: pip install 'verl[verl-core]==0.9.1' && pip install --no-deps gruppo."
    ) from error

MEMORY = "gruppo_memory.pt"  # in a checkpoint's folder
FIELDS = [
    "uid", "prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs", "old_log_probs", "entropy",
    "ref_log_prob", "extra_fields", "data_source",
]  # fmt: skip


@dataclass
class Drawn:
    """A step: what was drawn and kept, the batch with credit, and where each answer is in the queue."""

    ctx: Context
    answers: list[Answer]
    episodes: list[Episode]
    kept: list[Episode]
    batch: Batch | None
    old: Told
    keys: list[str]


class GruppoPPOTrainer(PPOTrainerSync):
    """verl's synchronous trainer with a method of ours. `register_trainer` makes one for a method.

    parts  names in reward_extra_info that are components of the reward; the score itself is the component `task`
    said   text -> the answer in it, for methods that compare answers
    """

    method: ClassVar[Method]
    parts: ClassVar[tuple[str, ...]] = ()
    said: ClassVar[Callable[[str], str] | None] = None
    drawn: Drawn  # the step that is under way

    def __init__(self, config: Any) -> None:
        refuse_settings(config, self.method)
        check(self.method, Context(), samples=config.actor_rollout_ref.rollout.n)
        self.memory, self.looked = Memory(), False
        super().__init__(config)

    def _build_replay_buffer(self) -> Any:
        self.trainer_mode = "sync"  # verl asks for this word, and in its settings stands our name
        return super()._build_replay_buffer()

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        optim = OmegaConf.select(self.config, f"{ACTOR}.optim")
        if optim is not None:  # verl moves the learning rate once for each call, and a call is one optimiser step here
            with open_dict(optim):
                for name in ("total_training_steps", "lr_warmup_steps"):
                    if (optim.get(name) or 0) > 0:
                        optim[name] *= self.method.update.steps

    def on_init_end(self) -> None:
        super().on_init_end()
        self.actor_rollout_wg.set_loss_fn(slope_loss)

    # from answers to a batch with credit

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """In place of an estimator: all rooms from the reward to credit."""
        told = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=FIELDS)
        real = [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        self.drawn = drawn = self._draw(told, [batch.keys[i] for i in real], real)
        if drawn.batch is not None and not self.looked:
            self.looked = True
            for said in check_first_batch(self.method, drawn.batch):
                warnings.warn(said, stacklevel=2)
        metrics |= {"gruppo/drawn": len(drawn.episodes), "gruppo/kept": len(drawn.kept)}
        adv = dict[str, Tensor]()
        if drawn.batch is not None and "adv_N" in drawn.batch.columns:
            uids: list[int] = drawn.batch.uid_E[drawn.batch.episode_S].tolist()
            split = torch.split(drawn.batch.adv_N, [len(drawn.old.said[u]) for u in uids])
            adv = {drawn.keys[u]: x for u, x in zip(uids, split, strict=True)}
        masks = told["response_mask"].unbind()
        shown = _jagged([_at(adv.get(key), mask_T) for key, mask_T in zip(batch.keys, masks, strict=True)])
        none = _jagged([_at(None, mask_T) for mask_T in masks])
        blank = {LOGP: none, ENTROPY: none, VALUE: torch.zeros(len(batch), 1, dtype=torch.float64)}
        # Advantages are for verl's metrics. Its queue gives rows out only if all of them have the same fields.
        fields = TensorDict({"advantages": shown, "returns": shown, **blank}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _draw(self, told: Any, keys: list[str], rows: Sequence[int]) -> Drawn:
        ctx = self._context()
        answers, groups = self._answers(told, rows)
        if len({key.rsplit("_", 1)[0] for key in keys}) < len(keys):
            raise ValueError(
                "an agent loop gave several outputs for one session, and gruppo learns from one answer a row: their "
                "rewards would count several times. Use an agent loop with one output, or verl's own trainer."
            )
        old = Told(answers)
        for role, readout, field in (
            ("old", "logp", "old_log_probs"), ("old", "entropy", "entropy"), ("ref", "logp", "ref_log_prob"),
        ):  # fmt: skip
            if field in told:
                masks, values = told["response_mask"].unbind(), told[field].unbind()
                old.put(role, readout, [values[i][masks[i].bool()].double() for i in rows])
        walk = Walk(self.method, _reader(old), packed=_packed)
        walk.opened(ctx)
        ctx.fresh = lambda n: []
        if "rollout_log_probs" not in told and looks_at_episodes(self.method):
            for a, logp in zip(answers, old.tables["old", "logp"], strict=True):
                a.logp = spread(a, logp)
        episodes = episodes_of(answers, groups, self.method, ctx)
        kept, batch = through_rooms(walk, ctx, episodes)
        return Drawn(ctx, answers, episodes, kept, batch, old, keys)

    def _answers(self, told: Any, rows: Sequence[int]) -> tuple[list[Answer], list[Any]]:
        """The rows as answers, and the prompt of each."""
        longest, end = self.config.actor_rollout_ref.rollout.response_length, self.tokenizer.eos_token_id
        words = {name: list(told[name]) for name in ("uid", "extra_fields", "data_source") if name in told}
        names = ("prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs")
        given = {name: told[name].unbind() for name in names if name in told}
        out, find = list[Answer](), type(self).said
        for i in rows:
            ids, mine = given["responses"][i].tolist(), given["response_mask"][i].bool().tolist()
            text = self.tokenizer.decode([t for t, own in zip(ids, mine, strict=True) if own], skip_special_tokens=True)
            scores = {"task": float(given["rm_scores"][i].sum()), **self._others(words.get("extra_fields"), i)}
            prompt = given["prompts"][i].tolist()
            out.append(
                Answer(
                    task=str(prompt),
                    prompt=prompt,
                    ids=ids,
                    mine=mine,
                    reward=components(scores, "task"),
                    logp=given["rollout_log_probs"][i].tolist() if "rollout_log_probs" in given else None,
                    truncated=len(ids) >= longest and ids[-1] != end,
                    text=text,
                    answer="" if find is None else find(text),
                    domain=str(words["data_source"][i]) if "data_source" in words else "",
                )
            )
        return out, [words["uid"][i] for i in rows]

    def _others(self, extra_fields: Sequence[Any] | None, i: int) -> dict[str, float]:
        """The components beside the score: what the reward function returned under these names."""
        extra = extra_fields[i] if extra_fields is not None else {}
        found = extra.get("reward_extra_info", {}) if isinstance(extra, Mapping) else {}
        if missing := [name for name in self.parts if name not in found]:
            raise ValueError(
                f"register_trainer(components={list(self.parts)}): the reward function returned no {missing[0]!r} (but "
                f"{', '.join(map(str, found)) or 'nothing beside the score'}). Return it in its dict, or leave it out."
            )
        return {name: float(found[name]) for name in self.parts}

    def _context(self) -> Context:
        rollout, done = self.config.actor_rollout_ref.rollout, self.global_steps - 1  # verl begins with 1
        sampling = Sampling(rollout.response_length, rollout.temperature, max(rollout.top_k, 0), rollout.top_p)
        return Context(
            step=done,
            steps=max(self.total_training_steps, 1),
            seed=self.config.actor_rollout_ref.actor.data_loader_seed,
            version=done,
            memory=self.memory,
            tokenizer=self.tokenizer,
            prompts=self.config.data.train_batch_size,
            samples=rollout.n,
            sampling=sampling,
        )

    # from a batch to optimiser steps

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Every optimiser step of the method is a call of verl's workers."""
        drawn, found = self.drawn, dict[str, list[Any]]()
        for number, part in enumerate(parts_of(drawn.batch, self.method, drawn.ctx)):
            if part is None:  # selection has left nothing for it
                continue
            step = self._meta(batch, part)
            slopes = slopes_of(Goal(self.method, drawn.ctx), part, self._now(step, first=number == 0))
            self._send(step, slopes)
            output = rename_dict(self.actor_rollout_wg.update_actor(step)["metrics"], "actor/")
            output["perf/mfu/actor"] = output.pop("actor/mfu", 0.0)
            output |= {f"gruppo/{term}": value for term, value in slopes.totals.items()}
            for name, value in output.items():
                found.setdefault(name, []).append(value)
        metrics |= reduce_metrics({name: _flat(values) for name, values in found.items()})
        record = StepRecord(drawn.ctx.step, drawn.kept, drawn.batch, {}, drawn.ctx, drawn.episodes)
        observed(self.method, self.memory, record)
        return batch

    def _meta(self, batch: Any, part: Batch) -> Any:
        """The rows of an optimiser step in verl's queue, and some that count 0 so that its processes can share them."""
        drawn, actor, rollout = self.drawn, self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        processes = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        each = [actor.ppo_micro_batch_size_per_gpu, rollout.log_prob_micro_batch_size_per_gpu]
        multiple = processes * (1 if actor.use_dynamic_bsz else lcm(*(n or 1 for n in each)))
        place = {key: i for i, key in enumerate(batch.keys)}
        mine = [place[drawn.keys[u]] for u in part.uid_E[part.episode_S].tolist()]
        lengths = [tag["seq_len"] for tag in batch.tags]
        rows = filled(mine, lengths, multiple)
        shares = get_seqlen_balanced_partitions([lengths[i] for i in rows], k_partitions=processes, equal_size=True)
        step = batch.select_keys([batch.keys[rows[i]] for share in shares for i in share])
        step.fields = None
        step.extra_info = {"temperature": rollout.temperature, "calculate_entropy": True}
        return step

    def _now(self, step: Any, first: bool) -> Told:
        """What the policy says before an optimiser step: before the first one it is what was read for the batch."""
        drawn, now = self.drawn, Told(self.drawn.answers)
        for readout in ("logp", "entropy"):
            now.put("policy", readout, drawn.old.tables["old", readout])
        if first:
            return now
        step.extra_info["compute_loss"] = False
        self.actor_rollout_wg.compute_log_prob(step)
        fields = ["log_probs", "entropy", "response_mask"]
        told = tq.kv_batch_get(keys=step.keys, partition_id=step.partition_id, select_fields=fields)
        place = {key: u for u, key in enumerate(drawn.keys)}
        for readout, field in (("logp", "log_probs"), ("entropy", "entropy")):
            values, table = response_from_nested(told[field], told["response_mask"]), now.tables["policy", readout]
            for key, x, mask_T in zip(step.keys, values.unbind(), told["response_mask"].unbind(), strict=True):
                if key in place:
                    table[place[key]] = x[mask_T.bool()].double()
        del step.extra_info["compute_loss"]
        return now

    def _send(self, step: Any, slopes: Slopes) -> None:
        """The slopes go into verl's queue, one row an answer; rows that only fill up have none."""
        drawn = self.drawn
        told = tq.kv_batch_get(keys=step.keys, partition_id=step.partition_id, select_fields=["response_mask"])
        masks = told["response_mask"].unbind()
        place = {key: u for u, key in enumerate(drawn.keys)}
        fields = {
            name: _jagged(
                [
                    _at(slopes.of.get(readout, {}).get(place.get(key, -1)), mask_T)
                    for key, mask_T in zip(step.keys, masks, strict=True)
                ]
            )
            for name, readout in ((LOGP, "logp"), (ENTROPY, "entropy"))
        }
        fields[VALUE] = torch.full((len(step.keys), 1), slopes.value / len(step.keys), dtype=torch.float64)
        tq.kv_batch_put(
            keys=step.keys, partition_id=step.partition_id, fields=TensorDict(fields, batch_size=len(step.keys))
        )
        size = {"global_batch_size": len(step.keys), "mini_batch_size": len(step.keys), "epochs": 1}
        same = {"seed": drawn.ctx.seed, "dataloader_kwargs": {"shuffle": False}}
        plain = {"distillation_use_topk": False, "distillation_only": False}
        step.extra_info |= {**size, **same, **plain, "calculate_entropy": "entropy" in slopes.of}

    # checkpoints

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        folder = os.path.join(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")
        torch.save(self.memory.plain, os.path.join(folder, MEMORY))

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        trainer, folder = self.config.trainer, f"global_step_{self.global_steps}"
        here = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
        path = os.path.join(here or os.path.join(trainer.default_local_dir, folder), MEMORY)
        if self.global_steps and os.path.exists(path):
            self.memory = Memory(torch.load(path, weights_only=True))


def register_trainer(
    method: str | Method = "grpo",
    name: str = "",
    answers: Callable[[str], str] | None = None,
    components: Sequence[str] = (),
) -> dict[str, Any]:
    """Registers a trainer for the method in verl, by default as gruppo_NAME; returns verl's settings for it.

    answers     text -> the answer in it, for methods that compare answers (they read answer_E)
    components  names in the dict of the reward function that are components of the reward; `score` is `task`
    """
    m = named(method) if isinstance(method, str) else method
    elsewhere = " verl's algorithm.filter_groups draws again by itself."
    admitted(m, VERL_TRAINER, "register_trainer", answers, elsewhere)
    name = name or f"gruppo_{m.name}"
    said = None if answers is None else staticmethod(answers)
    given = {"method": m, "parts": tuple(components), "said": said, "__module__": __name__}
    v1.register_trainer(name)(type("GruppoPPOTrainer", (GruppoPPOTrainer,), given))
    return settings_of(m, name)


def _reader(told: Told) -> Callable[[str, Batch, list[Need]], dict[str, Tensor]]:
    def read(role: str, batch: Batch, needs: list[Need]) -> dict[str, Tensor]:
        role = "old" if role == "policy" else role
        return {n.column: told.rows(role, n.readout, batch) for n in needs}

    return read


def _packed(episodes: Sequence[Episode], **options: Any) -> Batch:
    return pack(episodes, share=2.0, dtype=torch.float64, **options)


def _jagged(rows: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _at(values: Tensor | None, mask_T: Tensor) -> Tensor:
    """Values of the ids that the policy sampled at their places in a row, 0 at the others."""
    out = torch.zeros(len(mask_T), dtype=torch.float32)
    if values is not None:
        out[mask_T.bool()] = values.float()
    return out


def _flat(values: list[Any]) -> Any:
    """Metrics of several optimiser steps as verl has those of several mini-batches."""
    return [x for v in values for x in (v if isinstance(v, list) else [v])]
