"""Any Hugging Face causal language model as a policy. Needs the extra `hf`.

The architecture's own code computes. Around it stand the packed protocol of `base.py`, our cache, and a check at
loading that its own forward, whole packed sequences and token by token agree on a few tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.utils import logging

from gruppo.data import Inputs
from gruppo.policies.cache import Cache, new_cache
from gruppo.policies.dense import dense_of
from gruppo.policies.layout import Layout, additive, packed
from gruppo.policies.lora import merged_state
from gruppo.policies.scores import scores

# Largest difference that rounding explains, as a share of the largest logit.
AGREE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.05}


class Slots(DynamicCache):
    """transformers' cache, over the first rows of ours: one token a row is written at `cell_B`."""

    def __init__(self, cache: Cache, cell_B: Tensor, span: int) -> None:
        super().__init__()
        self.cache, self.cell_B, self.span = cache, cell_B, span

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        out: list[Tensor] = []
        for table, new in zip(self.cache.kv[layer_idx], (key_states, value_states), strict=True):
            rows, heads, _one, size = new.shape
            mine = table[:, :, : heads * size]  # a narrower table leaves the last columns alone
            mine.flatten(0, 1).index_copy_(0, self.cell_B, new.transpose(1, 2).reshape(rows, -1))
            out.append(mine[:rows, : self.span].unflatten(-1, (heads, size)).transpose(1, 2))
        return out[0], out[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.span - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.span, 0


class HFPolicy(nn.Module):
    """A causal LM of transformers. Dropout is off for good: with it each forward would be another policy."""

    def __init__(self, model: PreTrainedModel, name: str = "", checkpointing: bool = False) -> None:
        super().__init__()
        self.model, self.name = model, name or type(model).__name__
        head, blocks = model.get_output_embeddings(), _blocks(model)
        if head is None or blocks is None or self.trunk is model:
            raise ValueError(
                f"model {self.name!r} ({type(model).__name__}) has no trunk of blocks with a linear head on top, so "
                "its hidden states cannot be read. Use a causal language model of transformers."
            )
        self.blocks_name = blocks
        self.vocab, self.dim = head.weight.shape
        self.layers, self.context = len(model.get_submodule(blocks)), context_of(model.config)  # type: ignore[arg-type]
        self.width = 0  # of keys and values; known after the check
        _without_dropout(model)
        self._check()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.train()

    @property
    def trunk(self) -> nn.Module:
        return self.model.base_model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return self._linear.weight.dtype

    @property
    def _linear(self) -> Any:
        return self.model.get_output_embeddings()

    # whole sequences

    def hidden(self, inputs: Inputs, collect: tuple[int, ...] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        """Final normalised hidden states (M, dim), and those of the layers in `collect` (0: what block 1 is given)."""
        for layer in collect:
            if not 0 <= layer <= self.layers:
                raise ValueError(
                    f"collect={collect}: layer {layer} does not exist. This policy has the embedding 0 and "
                    f"blocks 1 to {self.layers}."
                )
        layout, last = dense_of(inputs, self.context, self.dim, self.dtype), list[Tensor]()
        seen: dict[int, list[Tensor]] = {layer: [] for layer in collect}
        with self._listening(seen):
            for lines in self._lines(inputs, layout):
                last.append(self.trunk(**lines, use_cache=False).last_hidden_state)
        return self._positions(last, layout), {layer: self._positions(x, layout) for layer, x in seen.items()}

    def prefill(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Hidden states (M, dim), and keys and values (layers, 2, M, width)."""
        layout, last = dense_of(inputs, self.context, self.dim, self.dtype), list[Tensor]()
        tables: list[list[Tensor]] = [[] for _ in range(2 * self.layers)]
        for lines in self._lines(inputs, layout):
            past = DynamicCache()  # without the configuration: every layer keeps everything
            last.append(self.trunk(**lines, past_key_values=past, use_cache=True).last_hidden_state)
            new = [x.transpose(1, 2).flatten(2) for layer in past.layers for x in (layer.keys, layer.values)]  # type: ignore[union-attr]
            self.width = self.width or max(x.shape[-1] for x in new)
            for table, x in zip(tables, new, strict=True):
                table.append(F.pad(x, (0, self.width - x.shape[-1])))
        kv = torch.stack([self._positions(table, layout, self.width) for table in tables])
        return self._positions(last, layout), kv.unflatten(0, (-1, 2))

    def _lines(self, inputs: Inputs, layout: Layout) -> Iterator[dict[str, Tensor]]:
        """What the trunk is given. Without branches neither mask nor positions: attention reaches to the left only."""
        for ids, pos, mask in zip(layout.lines(inputs.ids_M), layout.lines(inputs.pos_M), layout.masks, strict=True):
            lines = {"input_ids": ids}
            yield lines if mask is None else lines | {"position_ids": pos, "attention_mask": mask}

    def _positions(self, lines: list[Tensor], layout: Layout, width: int | None = None) -> Tensor:
        """From padded lines back to packed positions."""
        if not lines:
            return torch.zeros(0, self.dim if width is None else width, device=self.device, dtype=self.dtype)
        return layout.positions(lines)

    @contextmanager
    def _listening(self, seen: dict[int, list[Tensor]]) -> Iterator[None]:
        """Hear what the blocks are given and give."""
        blocks: Any = self.model.get_submodule(self.blocks_name)

        def given(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[0].append(args[0] if args else kwargs["hidden_states"])

        def gives(layer: int) -> Any:
            return lambda _m, _a, y: seen[layer].append(y[0] if isinstance(y, tuple) else y)

        hooks = [blocks[layer - 1].register_forward_hook(gives(layer)) for layer in seen if layer]
        if 0 in seen:
            hooks.append(blocks[0].register_forward_pre_hook(given, with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def head(self, hidden_XD: Tensor) -> Tensor:
        """Logits in at least float32 (pitfall 24), with the scale or cap that the architecture puts on them."""
        linear, config = self._linear, self.model.config.get_text_config()
        logits_XV = scores(hidden_XD, linear.weight, getattr(linear, "bias", None))
        if scale := getattr(config, "logit_scale", None):  # Cohere
            logits_XV = logits_XV * scale
        if scale := getattr(config, "logits_scaling", None):  # Granite
            logits_XV = logits_XV / scale
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
            logits_XV = cap * torch.tanh(logits_XV / cap)
        return logits_XV

    # one token a row

    def cache(self, rows: int, span: int) -> Cache:
        return new_cache(self.layers, rows, span, self.width, like=self._linear.weight)

    def decode(self, ids_B: Tensor, pos_B: Tensor, cache: Cache, span: int | None = None) -> Tensor:
        """Hidden states (B, dim) of one token for each of the first B rows of the cache, which it extends."""
        span = int(pos_B.max()) + 1 if span is None else span
        rows = len(ids_B)
        cache.widen(span, rows)
        cell_B = torch.arange(rows, device=pos_B.device) * cache.kv.shape[3] + pos_B
        seen = torch.arange(span, device=pos_B.device) <= pos_B[:, None]
        out = self.trunk(
            input_ids=ids_B[:, None],
            position_ids=pos_B[:, None],
            attention_mask=additive(seen, self.dtype)[:, None, None],
            past_key_values=Slots(cache, cell_B, span),
            use_cache=True,
        )
        return out.last_hidden_state[:, 0]

    # loading and saving

    def _check(self) -> None:
        """Its own logits, ours of whole sequences, of a tree, and token by token must agree."""
        ids = (torch.arange(12) * 7 + 3) % self.vocab
        long, short = ids[:8], torch.cat([ids[:3], ids[8:]])  # three tokens in common
        inputs, tree = packed([long.numpy(), short.numpy()], self.device), _tree(long, short[3:], self.device)
        try:
            with torch.no_grad():
                own = torch.cat([self.model(x[None].to(self.device)).logits[0] for x in (long, short)]).float()
                whole = self.head(self.hidden(inputs)[0]).float()
                shared = self.head(self.hidden(tree)[0]).float()
                cache, last = self.cache_of(inputs, [7, 6]), [7, 14]
                step = self.head(self.decode(inputs.ids_M[last], inputs.pos_M[last], cache)).float()
        except Exception as error:  # whatever an unknown architecture does not understand
            self._refuse(f"it stops with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        found = {
            "its logits are not its head times its last hidden state": whole - own,
            "its attention does not follow a mask": shared - torch.cat([own[:8], own[11:]]),
            "its layers keep something else than one key and one value a token": step - own[[7, 14]],
        }
        limit = AGREE.get(self.dtype, 0.05) * max(float(own.abs().max()), 1e-6)
        for why, difference in found.items():
            if float(difference.abs().max()) > limit:
                self._refuse(why)

    def cache_of(self, inputs: Inputs, length: list[int]) -> Cache:
        """A cache with one row for each sequence of `inputs`, as far as `length`."""
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
        """A folder for `AutoModelForCausalLM.from_pretrained`; an adapter is merged into the weights."""
        self.model.save_pretrained(folder, state_dict=merged_state(self.model))


def load_hf(
    folder: Path, name: str, told: dict[str, Any], dtype: torch.dtype, device: torch.device | str, checkpointing: bool
) -> HFPolicy:
    """A policy from a folder; what could not be right is refused."""
    if told.get("is_encoder_decoder"):
        raise ValueError(
            f"model {name!r} ({told.get('model_type')}) is an encoder-decoder: its answers do not continue the prompt, "
            "so it cannot be sampled here. Use a decoder-only model."
        )
    if told.get("quantization_config"):
        raise ValueError(
            f"model {name!r} holds quantised weights, which cannot be trained. Use the model that it was made from."
        )
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        model, info = loaded
    except Exception as error:  # a hundred architectures, each with its own complaints
        said = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise ValueError(
            f"model {name!r} could not be loaded as a causal language model ({said}). Name a decoder-only model whose "
            "weights are safetensors and whose code is in transformers."
        ) from None
    finally:
        logging.set_verbosity(before)
    if info["missing_keys"] or info["mismatched_keys"]:
        odd = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise ValueError(
            f"model {name!r}: {len(odd)} weights are not in its files or have another shape, such as {odd[0]}. They "
            "would start at random. Get the whole model."
        )
    return HFPolicy(model.to(device), name, checkpointing)


def context_of(config: Any) -> int:
    """The longest sequence. With a sliding window the window: up to there every token sees all before it.

    Beyond it a layer would have to forget, which our cache and the masks of shared prefixes do not do.
    """
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    window = getattr(text, "sliding_window", None)
    slides = "sliding_attention" in kinds or (not kinds and window is not None)
    limits = [getattr(text, "max_position_embeddings", None), window if slides else None]
    if "chunked_attention" in kinds:
        limits.append(getattr(text, "attention_chunk_size", None))
    return min((n for n in limits if n), default=1 << 20)


def _blocks(model: nn.Module) -> str | None:
    """The path of the list of blocks: the longest list of modules."""
    lists = {name: len(m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    depth = model.config.get_text_config().num_hidden_layers  # type: ignore[union-attr]
    return next((name for name, n in lists.items() if n == depth), None)


def _tree(trunk: Tensor, branch: Tensor, device: torch.device) -> Inputs:
    """A sequence, and a branch after its third token."""
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
