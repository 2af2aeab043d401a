"""Any Hugging Face causal language model as a policy. Needs the extra `hf`.

The code of the architecture does the computing. This module adds the packed protocol of `base.py`, our cache, and a
check at loading that the model's own forward, packed sequences and cached decoding agree on a few tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.utils import logging

from gruppo.data import Inputs
from gruppo.data.files import follow_umask
from gruppo.policies.base import Transformer
from gruppo.policies.cache import Cache, Kept, Step, new_cache
from gruppo.policies.dense import dense_of
from gruppo.policies.files import first_line
from gruppo.policies.folder import refuse_incomplete
from gruppo.policies.layout import Layout, Past, additive, packed
from gruppo.policies.lora import merged_state
from gruppo.policies.scores import Head

# Largest difference that rounding explains, relative to the largest logit.
AGREE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.05}


class Slots(DynamicCache):
    """transformers' interface to our cache, for one new token per row."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        new = (key_states, value_states)  # (rows, heads, 1, size) each
        tables = self.step.write(layer_idx, *(x.transpose(1, 2).reshape(len(x), -1) for x in new))
        keys, values = (t.unflatten(-1, (x.shape[1], -1)).transpose(1, 2) for t, x in zip(tables, new, strict=True))
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.step.span - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.step.span, 0


class Known(DynamicCache):
    """A cache that begins with keys and values that are known: new ones come after them, and are kept as well."""

    def __init__(self, past_LBPW: Tensor) -> None:
        super().__init__()  # without a config: every layer keeps everything
        self.past = past_LBPW  # (layers, 2, rows, longest past, width)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *more: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        super().update(key_states, value_states, layer_idx, *more, **named)
        out: list[Tensor] = []
        for known_BPW, new in zip(self.past[layer_idx], (key_states, value_states), strict=True):
            heads, size = new.shape[1], new.shape[3]
            mine = known_BPW[..., : heads * size].unflatten(-1, (heads, size)).transpose(1, 2)
            out.append(torch.cat([mine, new], 2))
        return out[0], out[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.past.shape[3]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.past.shape[3] + query_length, 0


class HFHead(Head):
    """The head of a transformers model, with the scale or cap that its architecture puts on logits."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.logit_scale = getattr(config, "logit_scale", None)  # Cohere
        self.logits_scaling = getattr(config, "logits_scaling", None)  # Granite
        self.cap = getattr(config, "final_logit_softcapping", None)  # Gemma

    def forward(self, hidden_XD: Tensor) -> Tensor:
        logits_XV = super().forward(hidden_XD)
        if self.logit_scale:
            logits_XV = logits_XV * self.logit_scale
        if self.logits_scaling:
            logits_XV = logits_XV / self.logits_scaling
        if self.cap:
            logits_XV = self.cap * torch.tanh(logits_XV / self.cap)
        return logits_XV


class HFPolicy(Transformer):
    """A causal language model of transformers, without dropout: with it every forward would be another policy."""

    def __init__(self, model: PreTrainedModel, name: str = "", checkpointing: bool = False) -> None:
        super().__init__()
        self.model, self.name = model, name or type(model).__name__
        blocks = _blocks(model)
        if self.output is None or blocks is None or self.trunk is model:
            raise ValueError(
                f"model {self.name!r} ({type(model).__name__}) has no trunk of blocks with a linear head on top, so "
                "its hidden states cannot be read. Use a causal language model of transformers."
            )
        self.lm_head, self.blocks_name = HFHead(model.config.get_text_config()), blocks
        self.vocab, self.dim = self.output.weight.shape
        self.layers, self.context = len(model.get_submodule(blocks)), context_of(model.config)  # type: ignore[arg-type]
        self.width = 0  # of keys and values; set by the first prefill, in the check
        _without_dropout(model)
        self._check()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.train()

    @property
    def trunk(self) -> nn.Module:
        return self.model.base_model

    @property
    def root(self) -> nn.Module:
        return self.model

    @property
    def output(self) -> Any:
        return self.model.get_output_embeddings()

    @property
    def described(self) -> dict[str, Any]:
        return {**self.model.config.to_dict(), "architectures": [type(self.model).__name__]}

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return self.output.weight.dtype

    def forward(
        self,
        inputs: Inputs | Step,
        collect: tuple[int, ...] = (),
        keep: Kept | None = None,
        past: Past | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Final hidden states and those of the layers in `collect` (0: the input of block 1)."""
        self._check_layers(collect)
        if isinstance(inputs, Step):
            return self._decode(inputs), {}
        layout, last = dense_of(inputs, self.context, self.dim, self.dtype), list[Tensor]()
        seen: dict[int, list[Tensor]] = {layer: [] for layer in collect}
        tables: list[list[Tensor]] = [[] for _ in range(2 * self.layers)]
        with self._recording(seen):
            for lines in self._lines(inputs, layout) if past is None else self._after(inputs, layout, past):
                if keep is not None:  # without a config: every layer keeps everything
                    lines.setdefault("past_key_values", DynamicCache())
                out = self.trunk(**lines, use_cache=keep is not None)
                last.append(out.last_hidden_state)
                if keep is not None:
                    self._append(tables, lines["past_key_values"])
        if keep is not None:
            keep.kv += [self._positions(table, layout, self.width) for table in tables]
        return self._positions(last, layout), {layer: self._positions(x, layout) for layer, x in seen.items()}

    def _append(self, tables: list[list[Tensor]], past: DynamicCache) -> None:
        """Add the keys and values of some lines, all padded to one width."""
        new = [x.transpose(1, 2).flatten(2) for layer in past.layers for x in (layer.keys, layer.values)]  # type: ignore[union-attr]
        self.width = self.width or max(x.shape[-1] for x in new)
        for table, x in zip(tables, new, strict=True):
            table.append(F.pad(x, (0, self.width - x.shape[-1])))

    def _decode(self, step: Step) -> Tensor:
        out = self.trunk(
            input_ids=step.ids_M[:, None],
            position_ids=step.pos_M[:, None],
            attention_mask=step.mask(self.dtype),
            past_key_values=Slots(step),
            use_cache=True,
        )
        return out.last_hidden_state[:, 0]

    def _lines(self, inputs: Inputs, layout: Layout) -> Iterator[dict[str, Any]]:
        """Inputs of the trunk. Without branches attention is causal and needs neither a mask nor positions."""
        for ids, pos, mask in zip(layout.lines(inputs.ids_M), layout.lines(inputs.pos_M), layout.masks, strict=True):
            lines = {"input_ids": ids}
            yield lines if mask is None else lines | {"position_ids": pos, "attention_mask": mask}

    def _after(self, inputs: Inputs, layout: Layout, past: Past) -> Iterator[dict[str, Any]]:
        """Inputs of the trunk for sequences after a past, which is padded on the right to the longest of a bucket."""
        tables = (layout.lines(x) for x in (inputs.ids_M, inputs.pos_M, inputs.seq_M))
        start_S, length_S = (torch.from_numpy(x).to(self.device) for x in (past.start_S, past.length_S))
        for ids, pos, seq in zip(*tables, strict=True):
            length_B, longest = length_S[seq[:, 0]], max(int(length_S[seq[:, 0]].max()), 1)
            column = torch.arange(longest, device=self.device)
            # Beyond a past, and for a sequence without one: any row, masked.
            at_BP = start_S[seq[:, 0], None] + torch.minimum(column, (length_B[:, None] - 1).clamp(min=0))
            known = past.kv[:, :, at_BP.clamp(max=past.kv.shape[2] - 1)]
            here = torch.arange(ids.shape[1], device=self.device)
            new = (here <= here[:, None]).expand(len(ids), -1, -1)
            old = (column < length_B[:, None])[:, None].expand(-1, len(here), -1)
            mask = additive(torch.cat([old, new], -1), self.dtype)[:, None]
            yield {"input_ids": ids, "position_ids": pos, "attention_mask": mask, "past_key_values": Known(known)}

    def _positions(self, lines: list[Tensor], layout: Layout, width: int | None = None) -> Tensor:
        """From padded lines back to packed positions."""
        if not lines:
            return torch.zeros(0, self.dim if width is None else width, device=self.device, dtype=self.dtype)
        return layout.positions(lines)

    @contextmanager
    def _recording(self, seen: dict[int, list[Tensor]]) -> Iterator[None]:
        """Append the outputs of blocks, and the input of the first for layer 0, to the lists in `seen`."""
        blocks: Any = self.model.get_submodule(self.blocks_name)

        def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[0].append(args[0] if args else kwargs["hidden_states"])

        def after(layer: int) -> Any:
            return lambda _m, _a, y: seen[layer].append(y[0] if isinstance(y, tuple) else y)

        hooks = [blocks[layer - 1].register_forward_hook(after(layer)) for layer in seen if layer]
        if 0 in seen:
            hooks.append(blocks[0].register_forward_pre_hook(before, with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def cache(self, rows: int, span: int) -> Cache:
        return new_cache(self.layers, rows, span, self.width, like=self.output.weight)

    # loading and saving

    def _check(self) -> None:
        """The model's own logits must agree with ours of whole sequences, of a tree, of one decoding step, and of
        tokens after a past."""
        ids = (torch.arange(12) * 7 + 3) % self.vocab
        long, short = ids[:8], torch.cat([ids[:3], ids[8:]])  # three tokens in common
        inputs, tree = packed([long.numpy(), short.numpy()], self.device), _tree(long, short[3:], self.device)
        try:
            with torch.no_grad():
                own = torch.cat([self.model(x[None].to(self.device)).logits[0] for x in (long, short)]).float()
                whole = self.head(self(inputs)[0]).float()
                shared = self.head(self(tree)[0]).float()
                cache, last = self.cache_of(inputs, [7, 6]), [7, 14]
                step = self.head(self.decode(inputs.ids_M[last], inputs.pos_M[last], cache)).float()
                later = self.head(self._later(inputs, long, short)).float()
        except Exception as error:  # whatever an unknown architecture does not support
            self._refuse(f"it fails with {type(error).__name__}: {first_line(error)}")
        found = {
            "its logits are not its head times its last hidden state": whole - own,
            "its attention does not follow a mask": shared - torch.cat([own[:8], own[11:]]),
            "its layers keep something other than one key and one value per token": step - own[[7, 14]],
            "its attention does not go on after given keys and values": later - torch.cat([own[3:8], own[10:]]),
        }
        limit = AGREE.get(self.dtype, 0.05) * max(float(own.abs().max()), 1e-6)
        for why, difference in found.items():
            if float(difference.abs().max()) > limit:
                self._refuse(why)

    def _later(self, inputs: Inputs, long: Tensor, short: Tensor) -> Tensor:
        """Hidden states of two sequences after their first three and two tokens."""
        past = Past(self.prefill(inputs)[1], np.array([0, 8]), np.array([3, 2]))
        rest = packed([long[3:].numpy(), short[2:].numpy()], self.device, after=past.length_S)
        return self.extend(rest, past)[0]

    def cache_of(self, inputs: Inputs, length: list[int]) -> Cache:
        """A cache with one row per sequence of `inputs`, each up to its `length`."""
        _, kv_M = self.prefill(inputs)
        first = (inputs.pos_M == 0).nonzero()[:, 0]
        cache = self.cache(len(length), max(length) + 1)
        cache.put(0, kv_M, first, torch.tensor(length, device=self.device), max(length))
        return cache

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(
            f"model {self.name!r} ({type(self.model).__name__}) cannot be sampled and trained here: {why}. Use a model "
            "with ordinary attention, such as a Llama, Qwen, Mistral, Gemma or GPT."
        ) from None

    def save(self, folder: str | Path) -> None:
        """Write a folder for `AutoModelForCausalLM.from_pretrained`, with any adapter merged into the weights."""
        self.model.save_pretrained(folder, state_dict=merged_state(self.model))
        for path in Path(folder).glob("*.safetensors"):
            follow_umask(path)


def load_hf(
    folder: Path, name: str, config: dict[str, Any], dtype: torch.dtype, device: torch.device | str, checkpointing: bool
) -> HFPolicy:
    """A policy from a folder. Models that cannot be trained, or whose files are incomplete, are refused."""
    if config.get("is_encoder_decoder"):
        raise ValueError(
            f"model {name!r} ({config.get('model_type')}) is an encoder-decoder: its answers do not continue the "
            "prompt, so it cannot be sampled here. Use a decoder-only model."
        )
    if config.get("quantization_config"):
        raise ValueError(
            f"model {name!r} has quantised weights (quantization_config in its config.json), which cannot be trained. "
            "Use the model it was quantised from."
        )
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        model, info = loaded
    except Exception as error:  # each architecture raises its own
        said = first_line(error)
        if "ignore_mismatched_sizes" in said:
            said = "its weights have other shapes than its config.json says"
        raise ValueError(
            f"model {name!r} could not be loaded as a causal language model ({said}). Use a decoder-only "
            "model whose weights are safetensors and whose code is in transformers."
        ) from None
    finally:
        logging.set_verbosity(before)
    if info["missing_keys"] or info["mismatched_keys"]:
        refuse_incomplete(name, sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]])))
    try:
        return HFPolicy(model.to(device), name, checkpointing)
    except (TypeError, AttributeError, LookupError) as error:  # a value of another kind than transformers checks
        raise ValueError(
            f"model {name!r} ({type(model).__name__}) cannot be used with its config.json ({first_line(error)}). Copy "
            f"the one of the original model into {folder}."
        ) from None


def context_of(config: Any) -> int:
    """The longest sequence: at most a sliding window, since our cache and our masks never forget a key."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    window = getattr(text, "sliding_window", None)
    slides = "sliding_attention" in kinds or (not kinds and window is not None)
    limits = [getattr(text, "max_position_embeddings", None), window if slides else None]
    if "chunked_attention" in kinds:
        limits.append(getattr(text, "attention_chunk_size", None))
    return min((n for n in limits if n), default=1 << 20)


def _blocks(model: nn.Module) -> str | None:
    """The path of the list of blocks: the first module list as long as the model is deep."""
    lists = {name: len(m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    depth = model.config.get_text_config().num_hidden_layers  # type: ignore[union-attr]
    return next((name for name, n in lists.items() if n == depth), None)


def _tree(trunk: Tensor, branch: Tensor, device: torch.device) -> Inputs:
    """A sequence with a branch after its third token."""
    rest = torch.arange(len(branch) - 1) + len(trunk)
    parent = torch.cat([torch.arange(-1, len(trunk) - 1), torch.tensor([2]), rest])
    pos = torch.cat([torch.arange(len(trunk)), 3 + torch.arange(len(branch))])
    zero = torch.zeros_like(parent)
    return Inputs(torch.cat([trunk, branch]), pos, zero, parent, zero[:0]).to(device)


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
