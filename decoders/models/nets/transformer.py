"""The decoder-only transformer over VQ codes that serves every target and every EAGLE drafter.

LlamaGen (2406.06525) and Chameleon (2405.09818: Anole, Lumina-mGPT) differ in a few choices that
are fields of `TransformerConfig`: how the prefix is made, rotation over the grid or along the line,
normalised queries and keys. Everything else is the same: attention of T new codes over a cache of S
slots, then SwiGLU. Parameter names follow LlamaGen's original checkpoint, except that w1 and w3 of
the feed-forward are one matrix ``w13``; `decoders.models.loading.layouts` reads the released ones
into it.

The rotary table of LlamaGen's prefix is **zero** in the released models (METHODS 6), so prefix keys
and queries vanish after rotation; ``prefix_rope="identity"`` keeps them unrotated instead.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import TextFeatures
from decoders.cache import KVCache, additive_mask
from decoders.distribution import guided, take
from decoders.models.nets.parts import CaptionEmbedder, HeadNorm, LabelEmbedder
from decoders.models.nets.shape import TransformerConfig, tables


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


def prefix_mask(valid: Tensor, cfg: TransformerConfig, turn: Tensor | None = None) -> Tensor:
    """Validity [R, T], T >= P -> causal mask [R, T, T], see `causal_mask`. With
    ``pads="released"`` a padded query sees, as in the released float32 code, all positions up to
    itself and the whole caption, all alike, as its query is zero (METHODS 6).
    """
    visible = causal_mask(valid, turn)
    if cfg.pads != "released":
        return visible
    caption = valid & (torch.arange(valid.shape[1], device=valid.device) < cfg.prefix)
    before = causal_mask(torch.ones_like(valid), turn)
    return torch.where(valid[:, :, None], visible, before | caption[:, None, :])


# ---- a layer ------------------------------------------------------------------------------------


def attend(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float | None = None
) -> Tensor:
    """softmax(scale q k^T + bias) v: query [R, H, T, d], keys, values [R, H, S, d], bias as of
    `attention_bias`; scale: 1 / sqrt(d) where there is none -> [R, H, T, d].

    On a CPU plain matrix products beat the fused operator at these sizes: 6 times at T = 1, 1.7
    times at T = 58, and 1.4 times in a training step, as they use the bf16 units throughout. A
    training step in float32 is the exception: the fused operator makes it up to 1.4 times as fast.
    """
    trains = query.requires_grad and query.dtype == torch.float32
    if query.device.type != "cpu" or trains:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.add(bias, query @ keys.transpose(-1, -2), alpha=scale)
    return scores.softmax(-1) @ values


def rope_at(table: Tensor, places: Tensor) -> Tensor:
    """Rows of a rotary table complex64 [places, d / 2] at places [...] -> [..., d / 2]. Compiled:
    float32 [..., d / 2, 2], since Inductor writes no complex kernels."""
    if torch.compiler.is_compiling():
        table = torch.view_as_real(table)
    return table[places.clamp_max(len(table) - 1)]


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

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = cfg.heads, cfg.head_dim
        self.wqkv = nn.Linear(cfg.width, 3 * cfg.width, bias=False)
        self.wo = nn.Linear(cfg.width, cfg.width, bias=False)
        self.qk_norm = HeadNorm(2 * cfg.heads, cfg.head_dim) if cfg.qk_norm else None

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        bias: Tensor,
        layer: int,
        cache: KVCache | None,
        index: Tensor | None,
    ) -> Tensor:
        rows, length, width = x.shape
        qkv = self.wqkv(x).view(rows, length, -1, self.head_dim)  # [R, T, 3 H, d]
        qkv = qkv.transpose(1, 2)
        turning, v = qkv.split((2 * self.heads, self.heads), 1)
        if self.qk_norm is not None:
            turning = self.qk_norm(turning)
        query, k = rotate(turning, rope).split(self.heads, 1)
        if cache is not None and index is not None:
            cache.write(layer, index, torch.stack([k, v]))  # [R, H, T, d] each
            k, v = cache.read(layer)  # [R, H, S, d]
        out = attend(query, k, v, bias)  # [R, H, T, d]
        return self.wo(out.transpose(1, 2).reshape(rows, length, width))


def swiglu(both: Tensor) -> Tensor:
    """[..., 2 F], gate and then up -> silu(gate) * up [..., F]."""
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x), w1 and w3 stacked in one matrix."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.w13 = nn.Linear(cfg.width, 2 * cfg.ffn, bias=False)
        self.w2 = nn.Linear(cfg.ffn, cfg.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(swiglu(self.w13(x)))


class Layer(nn.Module):
    """A transformer layer. ``input_norm=False`` is the EAGLE drafter's layer (METHODS 6). bias: of
    `attention_bias`."""

    def __init__(self, cfg: TransformerConfig, input_norm: bool = True) -> None:
        super().__init__()
        self.attention = Attention(cfg)
        self.feed_forward = FeedForward(cfg)
        self.attention_norm: nn.Module = (
            nn.RMSNorm(cfg.width, cfg.norm_eps) if input_norm else nn.Identity()
        )
        self.ffn_norm = nn.RMSNorm(cfg.width, cfg.norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        bias: Tensor,
        layer: int = 0,
        cache: KVCache | None = None,
        index: Tensor | None = None,
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, bias, layer, cache, index)
        return x + self.feed_forward(self.ffn_norm(x))


# ---- targets and drafters -----------------------------------------------------------------------


class Transformer(nn.Module):
    """A target. Decoding interface: `decoders.api.Target`; training: `forward`."""

    rope: Tensor
    code_tokens: Tensor | None  # [V] int64, the codes' ids in the model's own vocabulary
    barred: Tensor | None  # see `barred_codes`
    packed: Any = None  # see `decoders.api.Target`

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.vocab_size, self.width = cfg.vocab, cfg.width
        self.length, self.prefix = cfg.length, cfg.prefix
        embedders = {"caption": CaptionEmbedder, "class": LabelEmbedder}
        # None where the prefix is tokens of the model's own embedding.
        embedder = embedders.get(cfg.conditioning)
        self.cls_embedding: Any = None if embedder is None else embedder(cfg)
        self.tok_embeddings = nn.Embedding(cfg.tokens or cfg.vocab, cfg.width)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = nn.RMSNorm(cfg.width, cfg.norm_eps)
        self.output = nn.Linear(cfg.width, cfg.vocab, bias=False)
        for name, table in tables(cfg).items():
            self.register_buffer(name, table, persistent=False)
        self.apply(self._init)

    def tables(self) -> dict[str, Tensor | None]:
        """See `tables`."""
        return tables(self.cfg)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    # ---- decoding -------------------------------------------------------------------------------

    def grid(self) -> tuple[int, int]:
        """See `decoders.api.Target`."""
        return self.cfg.grid, self.cfg.grid + self.cfg.row_end

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        cfg, weight = self.cfg, self.output.weight
        heads = cfg.heads, cfg.head_dim
        return KVCache(cfg.layers, rows, capacity, *heads, weight.dtype, weight.device)

    def stack(
        self, x: Tensor, places: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """The layers and the norm after them: x [R, T, D] at places [R, T] of the rotary table;
        keys and values go to slots [R, T]; mask [R, T, S] -> [R, T, D]."""
        if self.packed is not None:
            return self.packed.layers(x, places, slots, mask, cache)
        rope = rope_at(self.rope, places)[:, None]  # [R, 1, T, d / 2]
        bias = attention_bias(mask, x.dtype)
        return self._run(x, rope, bias, cache, cache.flat_index(slots))

    def _run(
        self, x: Tensor, rope: Tensor, bias: Tensor, cache: Any = None, index: Any = None
    ) -> Any:
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, bias, i, cache, index)
        return self.norm(x)

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
        """Runs the prefix of [conditional; unconditional] rows -> hidden [R, P, D].

        With captions both rows use the caption's mask (METHODS 6). Slots 0..P-1 of the cache are
        filled.
        """
        rows, drop = text.paired(guidance_rows)
        x = self._prefix(rows, drop)  # [R, P, D]
        valid = rows.valid(drop)  # [R, P]
        slots = torch.arange(self.prefix, device=x.device).expand(len(drop), -1)  # [R, P]
        mask = prefix_mask(valid, self.cfg)  # [R, P, P]
        mask = F.pad(mask, (0, cache.capacity - self.prefix))  # [R, P, S]
        return self.stack(x, slots, slots, mask, cache)

    def forward_codes(
        self, codes: Tensor, grid_index: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """See `decoders.api.Target.forward_codes`."""
        places = self.prefix + grid_index  # [R, T]
        return self.stack(self.embed(codes), places, slots, mask, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden) if self.packed is None else self.packed.project(hidden)

    def guided_logits(self, hidden: Tensor, cfg: float) -> Tensor:
        """See `decoders.api.Target`. With packed weights it does not call `logits`."""
        if self.packed is not None:
            return self.packed.project.guided(hidden, cfg)
        return guided(self.logits(hidden), cfg)

    # ---- training -------------------------------------------------------------------------------

    def hidden_states(
        self, text: TextFeatures, codes: Tensor, drop: Tensor, cache: Any = None
    ) -> Tensor:
        """Teacher-forced states of prefix and codes, [B, P + L - 1, D] (normed, head-ready).

        text of B captions, codes [B, L] (the last one is predicted, never read), drop [B] bool:
        rows without their caption. The state at P - 1 + j predicts code j. cache: one that
        grows, see `decoders.cache.GrowingCache`.
        """
        prefix = self._prefix(text, drop)  # [B, P, D]
        read, places, turn = self.training_queries(codes)
        x = torch.cat([prefix, self.embed(read).to(prefix.dtype)], 1)
        valid = F.pad(text.valid(drop), (0, read.shape[1]), value=True)  # [B, P + L - 1]
        bias = attention_bias(prefix_mask(valid, self.cfg, turn), x.dtype)
        rope = self.rope[: self.prefix], self.rope[self.prefix + places]
        return self._run(x, torch.cat(rope), bias, cache, None if cache is None else codes)

    def training_queries(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The codes that the queries of a whole image read, [B, L - 1] of codes [B, L]; the places
        that they stand at, [L - 1]; and their turns, see `prefix_mask`."""
        return codes[:, :-1], torch.arange(codes.shape[1] - 1, device=codes.device), None

    def forward(self, text: TextFeatures, codes: Tensor, drop: Tensor) -> Tensor:
        """The states [B, L, D] that predict codes 0..L-1; see `hidden_states`."""
        return self.hidden_states(text, codes, drop)[:, self.prefix - 1 :]


class EagleNet(nn.Module):
    """An EAGLE drafter's one layer, which predicts the target's next feature (2401.15077). How it
    drafts is `decoders.propose.drafters.eagle`. ``cfg`` is the target's: width, heads, grid match.
    input_norm: whether the layer normalises its input, as the released Chameleon drafters' does.

    Where the target's prefix is tokens, the drafter reads them; else its prefix codes are zeros.
    """

    rope: Tensor
    code_tokens: Tensor | None
    packed: Any = None  # see `decoders.api.Target`

    def __init__(self, cfg: TransformerConfig, input_norm: bool = False) -> None:
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.tokens or cfg.vocab, cfg.width)
        self.fc = nn.Linear(2 * cfg.width, cfg.width, bias=True)
        self.layers = nn.ModuleList([Layer(cfg, input_norm=input_norm)])
        for name, table in self.tables().items():
            self.register_buffer(name, table, persistent=False)

    def tables(self) -> dict[str, Tensor | None]:
        """The target's tables, the rotary one shifted by a place."""
        every = tables(self.cfg)
        rope = every["rope"]
        return {"rope": None if rope is None else rope[1:], "code_tokens": every["code_tokens"]}

    def token_ids(self, codes: Tensor) -> Tensor:
        """Codes -> rows of the embedding, same shape."""
        return codes if self.code_tokens is None else self.code_tokens[codes]

    def prefix_ids(self, text: TextFeatures, drop: Tensor) -> Tensor:
        """Rows of the embedding at the P - 1 prefix places of the rows of `text`, [R, P - 1]: the
        token after each state, as in EAGLE; zeros where the prefix is no tokens."""
        if self.cfg.conditioning == "tokens":
            return text.token_ids(drop)[:, 1:]
        return torch.zeros_like(text.mask[:, 1:], dtype=torch.long)

    def valid(self, text: TextFeatures, drop: Tensor) -> Tensor:
        """Which of the P - 1 prefix places a query may see, [R, P - 1] bool: the released drafters
        have no padding mask (METHODS 6)."""
        valid = text.valid(drop)[:, : self.cfg.prefix - 1]
        return torch.ones_like(valid) if self.cfg.pads == "released" else valid

    def mix(self, ids: Tensor, features: Tensor) -> Tensor:
        """ids [R, T] rows of the embedding, features [R, T, D] -> layer input [R, T, D]."""
        embedded = self.embed_tokens(ids).to(features.dtype)
        both = torch.cat([embedded, features], -1)
        return self.fc(both) if self.packed is None else self.packed.project(both)

    def layer(
        self,
        x: Tensor,
        places: Tensor,
        slots: Tensor,
        mask: Tensor,
        cache: KVCache,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Decoding: x [R, T, D] of `mix` at places [R, T] of the rotary table; keys and values go
        to slots [R, T]; mask [R, T, S], see `decoders.cache`; wanted [R, W]: of which queries the
        result is read -> predicted features [R, W or T, D]."""
        if self.packed is not None:
            return self.packed.layers(x, places, slots, mask, cache, wanted)
        rope = rope_at(self.rope, places)[:, None]  # [R, 1, T, d / 2]
        bias = attention_bias(mask, x.dtype)
        out = self.layers[0](x, rope, bias, 0, cache, cache.flat_index(slots))
        return out if wanted is None else take(out, wanted)
