"""The decoder-only transformer over VQ codes that serves every target and every EAGLE drafter.

LlamaGen (2406.06525) and Chameleon (2405.09818: Anole, Lumina-mGPT) differ in fields of
`TransformerConfig`: how the prefix is made, rotation over the grid or along the line, normalised
queries and keys. Parameter names follow LlamaGen's original checkpoint, except that w1 and w3 of
the feed-forward are one matrix ``w13`` (`decoders.models.loading.layouts`).

The rotary table of LlamaGen's prefix is **zero** in the released models (METHODS 6), so prefix keys
and queries vanish after rotation; ``prefix_rope="identity"`` keeps them unrotated instead.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, ImageModel, TextFeatures
from decoders.cache import KVCache, additive_mask
from decoders.models.nets.attention import attend
from decoders.models.nets.shape import (
    CaptionEmbedder,
    HeadNorm,
    LabelEmbedder,
    TransformerConfig,
    tables,
)
from decoders.repeated import compiled_once


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask [R, T, S] of either kind (`decoders.cache`) -> [R, 1, T, S] of 0 and -inf, made once per
    forward for all layers."""
    return (additive_mask(mask) if mask.dtype == torch.bool else mask).to(dtype)[:, None]


def causal_mask(valid: Tensor, turn: Tensor | None = None) -> Tensor:
    """Validity [R, T] -> causal mask [R, T, T] bool; turn [T]: a query sees none of a later one. A
    padded query sees itself only, so no row is empty; no valid position reads its state."""
    size = valid.shape[1]
    order = torch.arange(size, device=valid.device) if turn is None else turn
    eye = torch.eye(size, dtype=torch.bool, device=valid.device)
    return ((order[:, None] >= order) & valid[:, None, :]) | eye


def prefix_mask(valid: Tensor, config: TransformerConfig, turn: Tensor | None = None) -> Tensor:
    """Validity [R, T], T >= P -> causal mask [R, T, T], see `causal_mask`. With ``pads="released"``
    a padded query sees, as in the released float32 code, all positions up to itself and the whole
    caption, all alike, as its query is zero (METHODS 6)."""
    visible = causal_mask(valid, turn)
    if config.pads != "released":
        return visible
    caption = valid & (torch.arange(valid.shape[1], device=valid.device) < config.prefix)
    before = causal_mask(torch.ones_like(valid), turn)
    return torch.where(valid[:, :, None], visible, before | caption[:, None, :])


# ---- a layer ------------------------------------------------------------------------------------


def rope_at(table: Tensor, positions: Tensor) -> Tensor:
    """Rows of a rotary table complex64 [positions, d / 2] at positions [...] -> [..., d / 2].
    Compiled: float32 [..., d / 2, 2], since Inductor writes no complex kernels."""
    if torch.compiler.is_compiling():
        table = torch.view_as_real(table)
    return table[positions.clamp_max(len(table) - 1)]


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotary embedding: x [..., d], neighbouring entries as complex numbers, times `rope` as of
    `rope_at`; in float32 inside, the dtype of x outside."""
    pairs = x.float().unflatten(-1, (-1, 2))  # [..., d / 2, 2]
    if rope.is_complex() and not torch.compiler.is_compiling():
        turned = torch.view_as_real(torch.view_as_complex(pairs) * rope)
        return turned.flatten(-2).to(x.dtype)
    cos, sin = (torch.view_as_real(rope) if rope.is_complex() else rope).unbind(-1)
    re, im = pairs.unbind(-1)
    turned = torch.stack([re * cos - im * sin, re * sin + im * cos], -1)
    return turned.flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """H heads of queries, of keys and of values in one matrix."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.wqkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.wo = nn.Linear(config.width, config.width, bias=False)
        self.qk_norm = HeadNorm(2 * config.heads, config.head_dim) if config.qk_norm else None

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        bias: Tensor,
        layer: int,
        cache: KVCache | None,
        index: Tensor | None,
    ) -> Tensor:
        query, both = self.read(x, rope, layer, cache, index)
        return self.mix(query, both, bias)

    def read(
        self, x: Tensor, rope: Tensor, layer: int, cache: KVCache | None, index: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """x [R, T, D] -> queries [R, H, T, d], keys and values [2, R, H, S, d]: of the whole cache
        once those of x are written to `index` of it, else of x."""
        every = project(self, x, rope)  # [R, 3 H, T, d]
        query, both = every.split((self.heads, 2 * self.heads), 1)
        both = both.unflatten(1, (2, -1)).transpose(0, 1)  # [2, R, H, T, d]
        if cache is not None and index is not None:
            cache.write(layer, index, both)
            both = cache.read(layer)
        return query, both

    def mix(self, query: Tensor, both: Tensor, bias: Tensor) -> Tensor:
        """Queries, keys and values of `read` -> [R, T, D]."""
        out = attend(query, both[0], both[1], bias)  # [R, H, T, d]
        return self.wo(out.transpose(1, 2).flatten(2))


# A region is compiled once, however many layers call it: nine tenths of the time that compiling a
# net of 36 layers took were copies of one. It writes nothing: where a region writes into the cache,
# the compiler copies that, so writing stands between the two.


@compiled_once
def project(attention: Attention, x: Tensor, rope: Tensor) -> Tensor:
    """x [R, T, D], normed -> queries, keys and values [R, 3 H, T, d]: one tensor, which one kernel
    writes."""
    rows, length, _ = x.shape
    heads = attention.heads
    qkv = attention.wqkv(x).view(rows, length, -1, attention.head_dim)  # [R, T, 3 H, d]
    turning, v = qkv.transpose(1, 2).split((2 * heads, heads), 1)
    if attention.qk_norm is not None:
        turning = attention.qk_norm(turning)
    return torch.cat([rotate(turning, rope), v], 1)


@compiled_once
def finish(
    layer: Layer, x: Tensor, query: Tensor, both: Tensor, bias: Tensor, norm: nn.Module | None
) -> tuple[Tensor, ...]:
    """What a layer makes of x [R, T, D] and of what its attention has `read`; with a norm, the next
    layer's, also that of it, which is fused so."""
    x = x + layer.attention.mix(query, both, bias)
    x = x + layer.feed_forward(layer.ffn_norm(x))
    return (x,) if norm is None else (x, norm(x))


def swiglu(both: Tensor) -> Tensor:
    """[..., 2 F], gate and then up -> silu(gate) * up [..., F]."""
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x), w1 and w3 stacked in one matrix."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.w13 = nn.Linear(config.width, 2 * config.ffn, bias=False)
        self.w2 = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(swiglu(self.w13(x)))


class Layer(nn.Module):
    """A transformer layer. ``input_norm=False`` is the EAGLE drafter's layer (METHODS 6). bias: of
    `attention_bias`."""

    def __init__(self, config: TransformerConfig, input_norm: bool = True) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm: nn.Module = (
            nn.RMSNorm(config.width, config.norm_eps) if input_norm else nn.Identity()
        )
        self.ffn_norm = nn.RMSNorm(config.width, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        bias: Tensor,
        layer: int = 0,
        cache: KVCache | None = None,
        index: Tensor | None = None,
        normed: Tensor | None = None,
        norm: nn.Module | None = None,
    ) -> Any:
        """x [R, T, D] -> [R, T, D]. normed: x behind the layer's norm, where that is at hand; norm:
        the next layer's, then the result behind it comes too."""
        normed = self.attention_norm(x) if normed is None else normed
        query, both = self.attention.read(normed, rope, layer, cache, index)
        every = finish(self, x, query, both, bias, norm)
        return every[0] if norm is None else every


# ---- targets and drafters -----------------------------------------------------------------------


class Transformer(nn.Module):
    """A target. Decoding interface: `decoders.api.Target`; training: `forward`."""

    rope: Tensor
    code_tokens: Tensor | None  # [V] int64, the codes' ids in the model's own vocabulary
    barred: Tensor | None  # see `barred_codes`

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size, self.width = config.vocab, config.width
        self.length, self.prefix = config.length, config.prefix
        embedders = {"caption": CaptionEmbedder, "class": LabelEmbedder}
        # None where the prefix is tokens of the model's own embedding.
        embedder = embedders.get(config.conditioning)
        self.cls_embedding: Any = None if embedder is None else embedder(config)
        self.tok_embeddings = nn.Embedding(config.tokens or config.vocab, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.norm_eps)
        self.output = nn.Linear(config.width, config.vocab, bias=False)
        for name, table in tables(config).items():
            self.register_buffer(name, table, persistent=False)
        self.apply(self._init)

    def tables(self) -> dict[str, Tensor | None]:
        """See `tables`."""
        return tables(self.config)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    # ---- decoding -------------------------------------------------------------------------------

    def grid(self) -> tuple[int, int]:
        """See `decoders.api.Target`."""
        return self.config.grid, self.config.grid + self.config.row_end

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        config, weight = self.config, self.output.weight
        heads = config.heads, config.head_dim
        return KVCache(config.layers, rows, capacity, *heads, weight.dtype, weight.device)

    def stack(
        self, x: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """The layers and the norm after them: x [R, T, D] at positions [R, T] of the rotary table;
        keys and values go to slots [R, T]; mask [R, T, S] -> [R, T, D]."""
        rope = rope_at(self.rope, positions)[:, None]  # [R, 1, T, d / 2]
        bias = attention_bias(mask, x.dtype)
        return self._run(x, rope, bias, cache, cache.flat_index(slots))

    def _run(
        self, x: Tensor, rope: Tensor, bias: Tensor, cache: Any = None, index: Any = None
    ) -> Any:
        layers: Any = self.layers
        norms = [*(layer.attention_norm for layer in layers), self.norm]
        normed = norms[0](x)
        for i, layer in enumerate(layers):
            x, normed = layer(x, rope, bias, i, cache, index, normed, norms[i + 1])
        return normed

    def embed(self, codes: Tensor) -> Tensor:
        """[R, T] int64 -> [R, T, D]."""
        return self.tok_embeddings(self.token_ids(codes))

    def token_ids(self, codes: Tensor) -> Tensor:
        """Codes -> rows of the embedding, same shape."""
        return codes if self.code_tokens is None else self.code_tokens[codes]

    def _prefix(self, text: TextFeatures, drop: Tensor) -> Tensor:
        """The prefix of R rows, drop [R] bool -> [R, P, D]."""
        if self.cls_embedding is None:
            return self.tok_embeddings(text.token_ids(drop))
        return self.cls_embedding(text, drop)

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: KVCache) -> Tensor:
        """Runs the prefix of [conditional; unconditional] rows -> hidden [R, P, D]. With captions
        both rows use the caption's mask (METHODS 6). Slots 0..P-1 of the cache are filled."""
        rows, drop = text.paired(guidance_rows)
        x = self._prefix(rows, drop)  # [R, P, D]
        valid = rows.valid(drop)  # [R, P]
        slots = torch.arange(self.prefix, device=x.device).expand(len(drop), -1)  # [R, P]
        mask = prefix_mask(valid, self.config)  # [R, P, P]
        mask = F.pad(mask, (0, cache.capacity - self.prefix))  # [R, P, S]
        return self.stack(x, slots, slots, mask, cache)

    def forward_codes(
        self, codes: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """See `decoders.api.Target.forward_codes`."""
        positions = self.prefix + positions  # [R, T]
        return self.stack(self.embed(codes), positions, slots, mask, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)

    # ---- training -------------------------------------------------------------------------------

    def hidden_states(
        self, text: TextFeatures, codes: Tensor, drop: Tensor, cache: Any = None
    ) -> Tensor:
        """Teacher-forced states of prefix and codes, [B, P + L - 1, D] (normed, head-ready). text
        of B captions, codes [B, L] (the last one is predicted, never read), drop [B] bool: rows
        without their caption. The state at P - 1 + j predicts code j. cache: one that grows, see
        `decoders.cache.GrowingCache`."""
        prefix = self._prefix(text, drop)  # [B, P, D]
        read, positions, turn = self.training_queries(codes)
        x = torch.cat([prefix, self.embed(read).to(prefix.dtype)], 1)
        valid = F.pad(text.valid(drop), (0, read.shape[1]), value=True)  # [B, P + L - 1]
        bias = attention_bias(prefix_mask(valid, self.config, turn), x.dtype)
        rope = self.rope[: self.prefix], self.rope[self.prefix + positions]
        return self._run(x, torch.cat(rope), bias, cache, None if cache is None else codes)

    def training_queries(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The codes that the queries of a whole image read, [B, L - 1] of codes [B, L]; the
        positions that they stand at, [L - 1]; and their turns, see `prefix_mask`."""
        return codes[:, :-1], torch.arange(codes.shape[1] - 1, device=codes.device), None

    def forward(self, text: TextFeatures, codes: Tensor, drop: Tensor) -> Tensor:
        """The states [B, L, D] that predict codes 0..L-1; see `hidden_states`."""
        return self.hidden_states(text, codes, drop)[:, self.prefix - 1 :]


def transformer_of(model: ImageModel) -> Transformer:
    """The model's target, whose states can be computed along given codes. DecoderError where it is
    another kind of target."""
    if not isinstance(model.target, Transformer):
        raise DecoderError(
            "expected a target that is a decoders.models.nets.transformer.Transformer, whose "
            f"layers and states are read here, found {type(model.target).__name__}; take another "
            "drafter or loop for this target"
        )
    return model.target
