"""Causal models of `transformers` that draw with codes, as targets: each class as it is.

Two parts are this project's: the cache, which keeps every code at a slot that the caller names, so
that a tree can be written into it and an accepted path kept (`decoders.cache`), and attention over
it (`attend`). docs/new_target.md is a worked example.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.utils import logging as transformers_logging

from decoders.api import DecoderError, TextFeatures
from decoders.cache import KVCache, bool_mask
from decoders.models.loading.checkpoint import Checkpoint, some
from decoders.models.loading.weights import check_values
from decoders.models.nets.attention import attend
from decoders.models.nets.shape import barred_codes
from decoders.models.nets.transformer import attention_bias, causal_mask

ATTENTION_NAME = "lantern_bench"  # of our attention
# The largest difference of logits, over their spread, in float32 and in half precision.
MOST_DIFFERENCE_FLOAT32, MOST_DIFFERENCE_HALF = 1e-3, 0.1
# Code that a folder brings along is never run.
LOCAL_FILES_ONLY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
# What a class raises that does not take what it is given.
UNFIT_ERRORS = (TypeError, ValueError, KeyError, AttributeError, IndexError, RuntimeError)


def read_model(
    opened: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    kind: Any,
    unread: tuple[str, ...] = (),
) -> Any:
    """Reads the model of a checkpoint, whole and finite, by the loader of `kind`, a class of
    transformers; frozen. unread: how names of tensors begin that the class does without. Raises
    DecoderError for weights that are incomplete, damaged, quantised or of another model."""
    with explain_loading(opened):
        model, report = kind.from_pretrained(
            opened.folder, dtype=dtype, output_loading_info=True, **LOCAL_FILES_ONLY
        )
    unexpected = [name for name in report["unexpected_keys"] if not name.startswith(unread)]
    odd = {"missing": report["missing_keys"], "unexpected": unexpected}
    if any(odd.values()):
        wrong = "; ".join(f"{name} {some(keys)}" for name, keys in odd.items() if keys)
        raise DecoderError(f"{opened.path} is no {type(model).__name__}: {wrong}")
    for name, values in model.named_parameters():
        if name in opened.index:
            opened.read(name)  # transformers would convert another dtype in silence
        check_values(values, name, opened.path)
    return model.to(device).eval().requires_grad_(False)


@contextmanager
def explain_loading(opened: Checkpoint) -> Iterator[None]:
    """Turns what goes wrong while transformers loads into a DecoderError, and silences its log,
    which would say it a second time, and its progress bars."""
    before = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    except (*UNFIT_ERRORS, OSError, ImportError, StrictDataclassError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DecoderError(
            f"{opened.folder} cannot be read ({reason}); are all files of the release in it?"
        ) from error
    finally:
        transformers_logging.set_verbosity(before)
        if bars:
            transformers_logging.enable_progress_bar()


def text_model(whole: Any, kind: Any) -> Any:
    """Makes the causal model of class `kind` that a model with a tower for pictures has inside, on
    the same weights."""
    inner = whole.get_decoder()
    with torch.device("meta"):
        model = kind(inner.config)
    model.model, model.lm_head = inner, whole.lm_head
    return model


# ---- attention over our cache -------------------------------------------------------------------


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attends as transformers asks: query [R, H, T, d], key and value [R, K, S, d], a mask [R, 1,
    T, S] to be added -> [R, T, H, d]. `CausalLM.compare` refuses models that need other options."""
    del module, options
    rows, heads, length, _ = query.shape
    shared = key.shape[1]
    bias = attention_mask.expand(-1, heads // shared, -1, -1).reshape(rows, 1, -1, key.shape[2])
    out = attend(query.reshape(rows, shared, -1, query.shape[-1]), key, value, bias, scaling)
    return out.reshape(rows, heads, length, -1).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, attention)


class SlotCache(Cache):
    """A `KVCache` as layers of `transformers` see it: new keys and values go to the slots of
    `index` (`KVCache.flat_index`), and what comes back is all slots."""

    def __init__(self, cache: KVCache, index: Tensor) -> None:
        super().__init__(layers=[])
        self.cache, self.index = cache, index

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """[R, K, T, d] each -> [R, K, S, d] each."""
        self.cache.write(layer_idx, self.index, torch.stack([key_states, value_states]))
        keys, values = self.cache.read(layer_idx).unbind(0)
        return keys, values


# ---- the target ---------------------------------------------------------------------------------


class CausalLM(nn.Module):
    """A target (`decoders.api.Target`) of square images and prompts as tokens. model: of a class
    `...ForCausalLM`. tokens: the token of every code, [V]; with `row_end` the last one closes every
    row of the grid. grid: codes per side. prefix: P, tokens of the longest prompt. embed, head:
    modules codes -> [..., D] and [..., D] -> [..., V], of a model whose codes are not in its
    vocabulary. Raises DecoderError for a model that does more than embedding, causal layers and a
    head."""

    barred: Tensor | None
    code_tokens: Tensor  # [V] int64

    def __init__(
        self,
        model: Any,
        tokens: Sequence[int] | Tensor,
        grid: int,
        prefix: int,
        row_end: bool = False,
        embed: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.layers: nn.Module = model.base_model  # without the head: codes have one of their own
        self.token_embedding, self.code_embedding = model.get_input_embeddings(), embed
        self.vocab_size, self.prefix = len(tokens), prefix
        self.length = grid * (grid + row_end)
        device = self.token_embedding.weight.device
        barred = barred_codes(grid, self.vocab_size).to(device) if row_end else None
        codes = torch.as_tensor(tokens, dtype=torch.long, device=device)
        self.register_buffer("barred", barred, persistent=False)
        self.register_buffer("code_tokens", codes, persistent=False)
        self.output: Any = head_rows(model, codes) if head is None else head
        self.eval().requires_grad_(False)
        self.config = model.config.get_text_config(decoder=True)
        self.width = int(self.config.hidden_size)
        self.positions = require_positions(self.config, prefix + self.length)
        try:
            self.compare(separate_head=head is not None)
        except UNFIT_ERRORS as error:
            if isinstance(error, DecoderError):
                raise
            raise DecoderError(
                f"{type(model).__name__} cannot be a target ({type(error).__name__}: {error}); "
                "expected a causal model of transformers that takes inputs_embeds, position_ids, "
                "an attention_mask [R, 1, T, S] and past_key_values"
            ) from error

    @torch.no_grad()
    def compare(self, separate_head: bool) -> None:
        """Compares with the model's own forward: a few codes behind two padded positions must give
        the same logits. separate_head: the head is no part of that forward. Raises DecoderError."""
        ids = self.code_tokens[None, : min(8, self.vocab_size)]  # [1, T]
        codes, pads = torch.arange(ids.shape[1], device=ids.device)[None], 2
        x = self.embed(codes)  # [1, T, D]
        if separate_head:
            states = self.model.get_decoder()(inputs_embeds=x, use_cache=False)
            right = self.output(states.last_hidden_state)
        else:
            right = self.model(input_ids=ids).logits[..., self.code_tokens]
        self.model.set_attn_implementation(ATTENTION_NAME)
        positions = torch.arange(-pads, ids.shape[1], device=ids.device)[None]  # [1, 2 + T]
        cache = self.new_cache(1, positions.shape[1])
        x = F.pad(x, (0, 0, pads, 0))
        mask, slots = causal_mask(positions >= 0), cache.flat_index(positions + pads)
        hidden = self._run(x, positions.clamp_min(0), mask, SlotCache(cache, slots))
        logits = self.logits(hidden[:, pads:])
        error = float((logits - right).float().abs().max() / right.float().std().clamp_min(1e-6))
        most = MOST_DIFFERENCE_FLOAT32 if right.dtype == torch.float32 else MOST_DIFFERENCE_HALF
        if not error <= most:
            raise DecoderError(
                f"{type(self.model).__name__} cannot be a target: its logits of a few codes differ "
                f"by {error:.2g} of their spread, at most {most:g} is allowed; it does more than "
                "an embedding, causal attention over all positions and a head"
            )

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        config, weight = self.config, self.token_embedding.weight
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or self.width // config.num_attention_heads
        layers = config.num_hidden_layers
        return KVCache(layers, rows, capacity, heads, size, weight.dtype, weight.device)

    def token_ids(self, codes: Tensor) -> Tensor:
        """Maps codes to rows of their embedding, same shape."""
        return self.code_tokens[codes] if self.code_embedding is None else codes

    def embed(self, codes: Tensor) -> Tensor:
        """[R, T] int64 -> [R, T, D]."""
        x: Tensor = (self.code_embedding or self.token_embedding)(self.token_ids(codes))
        return x

    def _run(
        self, x: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """x [R, T, D] at positions [R, T], mask [R, T, S] of either kind -> [R, T, D]."""
        out = self.model.get_decoder()(
            inputs_embeds=x,
            attention_mask=attention_bias(mask, x.dtype),
            position_ids=positions.clamp_max(self.positions - 1),
            past_key_values=cache,
            use_cache=cache is not None,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: KVCache) -> Tensor:
        """See `decoders.api.Target`. A prompt's first token has position 0, wherever it stands."""
        rows, drop = text.paired(guidance_rows)
        valid = rows.valid(drop)  # [R, P]
        slots = torch.arange(self.prefix, device=valid.device).expand(len(drop), -1)
        mask = F.pad(causal_mask(valid), (0, cache.capacity - self.prefix))  # [R, P, S]
        x = self.token_embedding(rows.token_ids(drop))  # [R, P, D]
        slot_cache = SlotCache(cache, cache.flat_index(slots))
        return self._run(x, positions_of(valid), mask, slot_cache)

    def forward_codes(
        self, codes: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """See `decoders.api.Target`. Every code sees its whole prompt, so the mask says how long
        that is."""
        positions = bool_mask(mask[..., : self.prefix]).sum(-1) + positions  # [R, T]
        slot_cache = SlotCache(cache, cache.flat_index(slots))
        return self._run(self.embed(codes), positions, mask, slot_cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        logits: Tensor = self.output(hidden)
        return logits

    def forward(self, text: TextFeatures, codes: Tensor, drop: Tensor) -> Tensor:
        """Computes the states [B, L, D] that predict the codes [B, L], without a cache: all codes
        are known. drop [B] bool: rows without their caption."""
        prompt, embedded = self.token_embedding(text.token_ids(drop)), self.embed(codes[:, :-1])
        valid = F.pad(text.valid(drop), (0, embedded.shape[1]), value=True)  # [B, P + L - 1]
        x = torch.cat([prompt, embedded], 1)  # [B, P + L - 1, D]
        return self._run(x, positions_of(valid), causal_mask(valid))[:, self.prefix - 1 :]


def positions_of(valid: Tensor) -> Tensor:
    """Counts positions from a row's first valid one, [R, T], of validity [R, T]."""
    return (valid.long().cumsum(1) - 1).clamp_min(0)


def head_rows(model: Any, tokens: Tensor) -> nn.Linear:
    """Takes the rows of a model's head that predict tokens [V]; of consecutive ones no copy."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or int(tokens.max()) >= head.out_features:
        size = f"{head.out_features} rows" if isinstance(head, nn.Linear) else type(head).__name__
        raise DecoderError(
            f"the head of {type(model).__name__} must be a matrix with a row for each token up to "
            f"{int(tokens.max())}, found {size}; give the one of the codes as `head`"
        )
    first = int(tokens[0])
    row = torch.arange(first, first + len(tokens), device=tokens.device)
    rows: Any = slice(first, first + len(tokens)) if torch.equal(row, tokens) else tokens
    with torch.device("meta"):
        linear = nn.Linear(head.in_features, len(tokens), bias=head.bias is not None)
    for name, values in head.named_parameters():
        setattr(linear, name, nn.Parameter(values.detach()[rows], requires_grad=False))
    return linear


def require_positions(config: Any, needed: int) -> int:
    """Returns the positions of a model. Raises DecoderError where a prompt and an image need more,
    or where a layer does not look at all of them."""
    most = getattr(config, "max_position_embeddings", None) or needed
    if needed > most:
        raise DecoderError(
            f"a prompt and an image of {needed} tokens together are more than the model's {most} "
            "positions; lower model.prefix or model.grid"
        )
    kinds = {*(getattr(config, "layer_types", None) or ["sliding_attention"])}
    window = getattr(config, "sliding_window", None) or needed
    if kinds - {"full_attention", "sliding_attention"} or (
        "sliding_attention" in kinds and window < needed
    ):
        raise DecoderError(
            f"layers must look at all {needed} positions, found {some(kinds)} with a window of "
            f"{window}; such a model cannot be a target"
        )
    return int(most)
