"""The decoder-only transformer over VQ codes that serves every target and every EAGLE drafter.

LlamaGen (2406.06525) and Chameleon (2405.09818: Anole, Lumina-mGPT) differ in a few choices that
are fields of `TransformerConfig`: how the prefix is made, rotation over the grid or along the line,
normalised queries and keys. Everything else is the same: the layers (`decoders.models.nets.layers`)
and a preallocated cache. Parameter names follow LlamaGen's original checkpoint, except that w1 and
w3 of the feed-forward are one matrix ``w13``; `decoders.models.loading.layouts` reads the released
ones into it.

The rotary table of LlamaGen's prefix is **zero** in the released models (METHODS 6), so prefix keys
and queries vanish after rotation; ``prefix_rope="identity"`` keeps them unrotated instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import TextFeatures, guided
from decoders.cache import KVCache
from decoders.distribution import take
from decoders.models.nets.layers import Layer, attention_bias, causal_mask, rope_at
from decoders.models.nets.parts import CaptionEmbedder, LabelEmbedder
from decoders.models.nets.shape import TransformerConfig, tables


def empty(kind: Callable[[TransformerConfig], Any], cfg: TransformerConfig) -> Any:
    """A module of class `kind` whose parameters are still to be filled (`checkpoint.fill`): nothing
    is allocated or initialised but its tables, on the CPU."""
    with torch.device("meta"):
        module = kind(cfg)
    for name, table in module.tables().items():
        module.register_buffer(name, table, persistent=False)
    return module.eval()


def cast(module: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Moves a module with a ``rope`` buffer, which keeps its complex type whatever the weights'."""
    rope = module.rope
    module.rope = torch.empty(0)
    module.to(device=device, dtype=dtype)
    module.rope = rope.to(device)
    return module


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
        grows, see `decoders.cache.Growing`.
        """
        prefix = self._prefix(text, drop)  # [B, P, D]
        read, places, turn = self.line(codes)
        x = torch.cat([prefix, self.embed(read).to(prefix.dtype)], 1)
        valid = F.pad(text.valid(drop), (0, read.shape[1]), value=True)  # [B, P + L - 1]
        bias = attention_bias(prefix_mask(valid, self.cfg, turn), x.dtype)
        rope = self.rope[: self.prefix], self.rope[self.prefix + places]
        return self._run(x, torch.cat(rope), bias, cache, None if cache is None else codes)

    def line(self, codes: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """What is read of an image's codes [B, L], at which places [L - 1], and the queries' turns,
        see `prefix_mask`."""
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
