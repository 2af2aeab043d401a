"""The two sides of `against_trl.py`, each in a process of its own: `python benchmarks/trl_sides.py SIDE WORKLOAD.json`.

A side sets up, says that it is ready, and then makes as many steps as it is told to, one line of JSON for each order.
A step is everything from one batch to the next: prompts to tokens, sampling, rewards, forward, backward, optimiser,
metrics. Nothing is written to disk on either side.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from trl_reward import share_of_digits

clock = time.perf_counter


@dataclass(frozen=True)
class Workload:
    """What both sides do."""

    name: str
    folder: str  # the model, as a Hugging Face folder
    rows: str  # JSONL with the field prompt
    chat: bool  # prompts are rendered through the model's chat template
    prompts: int
    samples: int
    new_tokens: int
    lr: float = 1e-6
    beta2: float = 0.95
    clip_norm: float = 1.0
    threads: int = 2

    def read(self) -> list[str]:
        return [json.loads(line)["prompt"] for line in Path(self.rows).read_text().splitlines()]


class Line:
    """Orders come in on stdin and answers go out on stdout; what libraries print goes to stderr."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **answer: Any) -> None:
        self.out.write(json.dumps(answer) + "\n")
        self.out.flush()

    def order(self) -> dict[str, Any]:
        line = sys.stdin.readline()
        return json.loads(line) if line else {"do": "end"}


def children() -> list[int]:
    return [int(pid) for f in Path("/proc/self/task").glob("*/children") for pid in f.read_text().split()]


def cpu_seconds() -> float:
    """Processor time so far, of this process and of those that it started: other work on the machine is not in it."""
    ticks = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in children()]
    return time.process_time() + sum(int(t) for pair in ticks for t in pair) / os.sysconf("SC_CLK_TCK")


def peak_memory() -> dict[str, float]:
    """Most memory ever resident (MiB): of this process, and with the processes that it started (their own peaks)."""

    def peak(pid: int | str) -> float:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0

    own = peak("self")
    return {"own_mib": own, "mib": own + sum(map(peak, children()))}


# gruppo


def gruppo_side(w: Workload, line: Line) -> None:
    """`gruppo train`'s own step, without its display, evaluation and files."""
    from gruppo.methods import method
    from gruppo.stages import Sampling
    from gruppo.tasks import TaskConfig
    from gruppo.train.config import ModelConfig, RunConfig
    from gruppo.train.learner import OptimConfig
    from gruppo.train.loop import train_step
    from gruppo.train.run import Run

    config = RunConfig(
        method=method("grpo").but(penalties=()),  # no reference
        task=TaskConfig(name=w.rows, reward=f"{Path(__file__).resolve().with_name('trl_reward.py')}:reward"),
        model=ModelConfig(name=w.folder, device="cpu"),
        sampling=Sampling(max_tokens=w.new_tokens),
        optim=OptimConfig(lr=w.lr, beta2=w.beta2, clip_norm=w.clip_norm),
        prompts=w.prompts,
        samples=w.samples,
        threads=w.threads,
    )
    run = Run(config, say=lambda text: print(text, file=sys.stderr))
    never = run.models["policy"].vocab  # an id that is never drawn: every answer has full length
    run.tokenizer.eos, run.engine.eos = never, (never,)
    first = run.tokenizer.chat([{"role": "user", "content": w.read()[0]}])

    async def steps() -> None:
        line.say(ready=True, prompt=first.tolist(), parameters=_parameters(run.models["policy"]))
        done = 0
        while (order := line.order())["do"] != "end":
            rows, before = list[dict[str, float]](), cpu_seconds()
            with profiled(order.get("profile", "")):
                for _ in range(order["steps"]):
                    start = clock()
                    facts = (await train_step(run, done)).facts
                    rows.append({"seconds": clock() - start, "tokens": facts["tokens"], **_parts(facts)})
                    done += 1
            line.say(rows=rows, memory=peak_memory(), cpu=(cpu_seconds() - before) / order["steps"])

    try:
        asyncio.run(steps())
    finally:
        run.close()


def _parts(facts: Any) -> dict[str, float]:
    return {k: v for k, v in facts.items() if k.startswith("seconds/")}


def _parameters(model: Any) -> int:
    return sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())


# TRL


def trl_side(w: Workload, line: Line) -> None:
    """TRL's GRPOTrainer with the same settings; its loop is stopped at the start of every step, to wait for orders."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.trainer_callback import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(w.threads)
    model = AutoModelForCausalLM.from_pretrained(w.folder, dtype=torch.float32)
    never = model.config.vocab_size  # an id that is never drawn: every answer has full length
    model.generation_config.eos_token_id = None
    counted: list[int] = []

    def digits(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        counted.append(sum(map(len, completion_ids)))
        texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
        return [share_of_digits(t) for t in texts]

    asked = [[{"role": "user", "content": p}] if w.chat else p for p in w.read()]
    config = GRPOConfig(
        output_dir=str(Path(w.rows).parent / "trl"),
        per_device_train_batch_size=w.prompts * w.samples,
        num_generations=w.samples,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        max_steps=10**6,
        max_completion_length=w.new_tokens,
        generation_kwargs={"eos_token_id": never},
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        loss_type="grpo",
        scale_rewards="group",
        learning_rate=w.lr,
        lr_scheduler_type="constant",
        adam_beta1=0.9,
        adam_beta2=w.beta2,
        weight_decay=0.0,
        max_grad_norm=w.clip_norm,
        optim="adamw_torch_fused",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
    )
    spy = Spy(model)
    gate = Gate(line, spy, counted, lambda: {"ready": True, "parameters": _parameters(model)})
    callback = type("Callback", (TrainerCallback,), {"on_step_begin": lambda self, *_, **__: gate.pass_through()})
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=digits,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": asked}),
        processing_class=AutoTokenizer.from_pretrained(w.folder, padding_side="left"),
        callbacks=[callback()],
    )
    trainer.eos_token_ids = [never]  # nothing is cut off behind an eos that was drawn
    trainer.train()


class Spy:
    """Times `generate`, and keeps the first prompt that it was given."""

    def __init__(self, model: Any) -> None:
        self.seconds, self.prompt = 0.0, list[int]()
        self._generate = model.generate
        model.generate = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.prompt = self.prompt or kwargs["input_ids"][0].tolist()
        start = clock()
        out = self._generate(*args, **kwargs)
        self.seconds += clock() - start
        return out

    def take(self) -> float:
        out, self.seconds = self.seconds, 0.0
        return out


class Gate:
    """Stands at the start of every step of somebody else's loop."""

    def __init__(self, line: Line, spy: Spy, counted: list[int], hello: Callable[[], dict[str, Any]]) -> None:
        self.line, self.spy, self.counted, self.hello = line, spy, counted, hello
        self.left, self.start, self.rows = 0, 0.0, list[dict[str, float]]()
        self.profile: Any = None
        self.cpu = 0.0

    def pass_through(self) -> None:
        if self.left:
            seconds, sampling = clock() - self.start, self.spy.take()
            row = {"seconds": seconds, "tokens": self.counted[-1], "seconds/sampling": sampling}
            self.rows.append(row | {"seconds/rest": seconds - sampling})
            self.left -= 1
        if not self.left:
            self._wait()
        self.start = clock()

    def _wait(self) -> None:
        if self.profile is not None:
            self.profile.__exit__(None, None, None)
        cpu = (cpu_seconds() - self.cpu) / max(len(self.rows), 1)
        done = {"rows": self.rows, "prompt": self.spy.prompt, "memory": peak_memory(), "cpu": cpu}
        self.line.say(**(done if self.rows else self.hello()))
        order, self.rows = self.line.order(), []
        if order["do"] == "end":
            os._exit(0)  # in the middle of somebody else's loop
        self.left = order["steps"]
        self.profile = profiled(order.get("profile", ""))
        self.profile.__enter__()
        self.cpu = cpu_seconds()


class profiled:
    """With a path: where the time of the block goes, by operator, into that file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        if self.path:
            self.inner = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self.inner.__enter__()

    def __exit__(self, *exception: Any) -> None:
        if self.path:
            self.inner.__exit__(*exception)
            table = self.inner.key_averages().table(
                sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=40
            )
            keep = [line for line in str(table).splitlines() if line.strip() and not line.startswith("STAGE")]
            Path(self.path).write_text("\n".join(line.rstrip() for line in keep) + "\n")


SIDES: dict[str, Callable[[Workload, Line], None]] = {"gruppo": gruppo_side, "trl": trl_side}


def median_of(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row.get(name, 0.0) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("workload", type=Path)
    args = parser.parse_args()
    SIDES[args.side](Workload(**json.loads(args.workload.read_text())), Line())


def write(workload: Workload, path: Path) -> Path:
    path.write_text(json.dumps(asdict(workload)))
    return path


if __name__ == "__main__":
    main()
