"""The same answers through verl with our trainer, on a CPU: losses and gradients step by step.

verl's own are the trainer that ours inherits from, the workers' `train_mini_batch` and `infer_batch`, and their engine
from a batch to the backward pass: micro-batches, inputs, log-probabilities, the call of the loss. Ours are what needs a
GPU or a cluster: the platform, the queue (a dict), the optimiser (a script), and two processes after each other.
"""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from native_side import LONGEST, PROMPTS, SAMPLES, TEMPERATURE, Script, Scripted, Steps, tokenizer_of
from omegaconf import OmegaConf
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from transformers import AutoModelForCausalLM
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import set_platform
from verl.utils import tensordict_utils as tu
from verl.utils.profiler import DistProfiler
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested

from gruppo.inside import verl_trainer
from gruppo.inside.verl_trainer import GruppoPPOTrainer
from gruppo.stages import Method


class OnCPU(PlatformCUDA):
    """verl asks a platform for its devices; none of its own is a CPU."""

    device_name = "cpu"  # type: ignore[assignment]

    def current_device(self) -> Any:
        return "cpu"


def begin(folder: Path) -> None:
    """What verl wants of a process."""
    set_platform(OnCPU())
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)


class Queue:
    """verl's queue between the trainer and its workers, as a dict: one row a key."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, Any] = {}

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict, tags: Any = None) -> Any:
        self.tags |= dict(zip(keys, tags, strict=True)) if tags else {}
        for i, key in enumerate(keys):
            for name, values in fields.items():
                x = values[i]
                self.rows.setdefault(key, {})[name] = x.clone() if isinstance(x, Tensor) else x
        return KVBatchMeta(keys=keys, tags=[self.tags[key] for key in keys], partition_id=partition_id)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> TensorDict:
        names = [n for n in self.rows[keys[0]] if select_fields is None or n in select_fields]
        if select_fields is None:
            assert len({frozenset(self.rows[key]) for key in keys}) == 1, "verl's queue refuses this"
        out: dict[str, Any] = {}
        for name in names:
            rows = [self.rows[key][name] for key in keys]
            if isinstance(rows[0], Tensor):
                out[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
            else:
                out[name] = NonTensorStack(*(NonTensorData(x) for x in rows))
        return TensorDict(out, batch_size=len(keys))


class Engine(FSDPEngineWithLMHead):
    """verl's engine with a model that is not sharded, and an optimiser that only notes the gradient."""

    def __init__(self, module: Any, processes: int) -> None:
        self.module, self.processes, self.seen = module, processes, list[Tensor]()
        self.engine_config = SimpleNamespace(
            use_dynamic_bsz=False, entropy_checkpointing=False, forward_only=False, use_fused_kernels=False,
            max_token_len_per_gpu=None, infer_max_token_len_per_gpu=None,
        )  # fmt: skip
        self.ulysses_sequence_parallel_size, self.ulysses_device_mesh, self.use_ulysses_sp = 1, None, False
        self._autocast_dtype, self.pad_to_length = torch.float32, False  # no mixed precision

    def train_mode(self, **_: Any) -> Any:
        return nullcontext()

    eval_mode = train_mode

    def get_data_parallel_size(self) -> int:
        return self.processes

    def optimizer_zero_grad(self) -> None:
        self.module.zero_grad()

    def optimizer_step(self) -> float:
        self.seen.append(torch.cat([p.grad.flatten().clone() for p in self.module.parameters()]))
        return float(self.seen[-1].norm())

    def lr_scheduler_step(self) -> float:
        return 0.0


class Group:
    """verl's group of workers: processes that take turns, and whose gradients are averaged."""

    def __init__(self, module: Any, queue: Any, processes: int, micro: int) -> None:
        self.queue, self.optimiser = queue, Scripted(module.parameters())
        self._dispatch_info = {"actor": list(range(processes))}
        self.workers = [_worker(Engine(module, processes), micro) for _ in range(processes)]
        self.losses, self.grads = list[float](), list[Tensor]()

    def set_loss_fn(self, loss_fn: Any) -> None:
        for worker in self.workers:
            worker.loss_fn = loss_fn

    def _data(self, meta: KVBatchMeta) -> TensorDict:
        data = self.queue.kv_batch_get(keys=meta.keys, partition_id="train")
        for name, value in meta.extra_info.items():
            tu.assign_non_tensor_data(data, name, value)
        return data

    def compute_log_prob(self, meta: KVBatchMeta) -> None:
        for worker, mine in zip(self.workers, meta.chunk(len(self.workers)), strict=True):
            found = worker.infer_batch(self._data(mine))
            fields = TensorDict({n: found[n] for n in ("log_probs", "entropy")}, batch_size=len(mine))
            self.queue.kv_batch_put(keys=mine.keys, partition_id="train", fields=fields)

    def update_actor(self, meta: KVBatchMeta) -> Any:
        metrics: dict[str, Any] = {}
        for worker, mine in zip(self.workers, meta.chunk(len(self.workers)), strict=True):
            found = worker.train_mini_batch(self._data(mine))["metrics"]
            metrics = {"loss": metrics.get("loss", 0.0) + found["loss"][0] / len(self.workers)}
        self.losses.append(metrics["loss"])
        self.grads.append(torch.stack([w.engine.seen[-1] for w in self.workers]).mean(0))
        self.optimiser.step()
        return {"metrics": metrics}


def _worker(engine: Engine, micro: int) -> Any:
    """verl's worker without Ray around it."""
    worker = TrainingWorker.__new__(TrainingWorker)
    worker.engine, worker.loss_fn, worker.flops_counter, worker.device_name = engine, None, None, "cpu"
    worker.engine_config, worker.model_config = engine.engine_config, {"use_remove_padding": False}
    engine.engine_config.micro_batch_size_per_gpu = engine.engine_config.infer_micro_batch_size_per_gpu = micro
    worker.profiler = DistProfiler(rank=0, config=None, tool_config=None)
    return worker


def config_of(micro: int, **changes: Any) -> Any:
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "n": SAMPLES, "response_length": LONGEST, "temperature": TEMPERATURE, "top_k": -1, "top_p": 1.0,
                    "log_prob_micro_batch_size_per_gpu": micro,
                },
                "actor": {
                    "data_loader_seed": 42, "use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": micro,
                    "use_kl_loss": False,
                },
            },
            "data": {"train_batch_size": PROMPTS},
        }
    )  # fmt: skip
    for path, value in changes.items():
        OmegaConf.update(config, path.replace("__", "."), value)
    return config


def trainer_of(m: Method, tokenizer: Any, micro: int, parts: tuple[str, ...] = (), said: Any = None) -> Any:
    """Our trainer as verl has it after its set-up."""
    given = {"method": m, "parts": parts, "said": None if said is None else staticmethod(said)}
    kind: Any = type("Trainer", (GruppoPPOTrainer,), given)
    trainer: Any = kind.__new__(kind)
    trainer.config, trainer.tokenizer = config_of(micro), tokenizer
    trainer.global_steps = trainer.total_training_steps = 1
    trainer.memory, trainer.looked = verl_trainer.Memory(), True
    return trainer


def rows_of(script: Script, names: list[str]) -> list[dict[str, Any]]:
    """The answers as an agent loop of verl puts them into its queue."""
    out: list[dict[str, Any]] = []
    for i, ids in enumerate(script.answers):
        prompt = torch.tensor(script.prompts[i // SAMPLES])
        response, extra = torch.tensor(ids), {n: float(getattr(script, n)[i]) for n in names}
        scores = torch.zeros(len(ids))
        scores[-1] = float(script.task[i])
        out.append(
            {
                "uid": str(i // SAMPLES),
                "prompts": prompt,
                "responses": response,
                "input_ids": torch.cat([prompt, response]),
                "position_ids": torch.arange(len(prompt) + len(ids)),
                "response_mask": torch.ones(len(ids), dtype=torch.int64),
                "loss_mask": torch.ones(len(ids), dtype=torch.int64),
                "rm_scores": scores,
                "rollout_log_probs": torch.tensor(script.logp[i], dtype=torch.float32),
                "extra_fields": {"reward_extra_info": extra},
            }
        )
    return out


def inside(m: Method, folder: Path, script: Script, names: list[str], cut: tuple[int, int], queue: Any = None) -> Steps:
    """One step of verl's trainer with our method. `cut`: processes, and the rows of a micro-batch."""
    (processes, micro), tokenizer, queue = cut, tokenizer_of(folder), queue or Queue()
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    group = Group(module, queue, processes, micro)
    words = iter(script.words)
    trainer = trainer_of(m, tokenizer, micro, tuple(n for n in names if n != "task"), lambda text: next(words))
    rows = rows_of(script, names)
    keys = [f"{row['uid']}_{i}_0" for i, row in enumerate(rows)]
    tags = [{"seq_len": len(row["input_ids"])} for row in rows]
    batch = queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    verl_trainer.tq, before = queue, verl_trainer.tq
    try:
        trainer.actor_rollout_wg = group
        group.set_loss_fn(verl_trainer.slope_loss)
        _read_before(group, batch)
        batch = trainer._compute_advantage(batch, {})
        trainer._update_actor(batch, {})
    finally:
        verl_trainer.tq = before
    return group.losses, group.grads


def _read_before(group: Group, batch: KVBatchMeta) -> None:
    """What verl reads before credit, with its own functions: the policy, and a reference, which is still the same."""
    meta = batch.select_keys(batch.keys)
    meta.extra_info = {"temperature": TEMPERATURE, "calculate_entropy": True, "compute_loss": False}
    group.compute_log_prob(meta)
    fields = ["log_probs", "entropy", "response_mask"]
    told = group.queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=fields)
    logp, entropy = (response_from_nested(told[name], told["response_mask"]) for name in ("log_probs", "entropy"))
    read = TensorDict({"old_log_probs": logp, "ref_log_prob": logp, "entropy": entropy}, batch_size=len(batch))
    group.queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=read)
