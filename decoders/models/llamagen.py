"""LlamaGen (2406.06525): a decoder-only transformer over VQ codes with a text prefix.

One module for every size, for training and for decoding: RMSNorm, SwiGLU, 2-D RoPE over the grid,
text features through a caption MLP, an unconditional embedding for guidance. Parameter names follow
the original checkpoint, except that w1 and w3 of the feed-forward are one matrix ``w13``.

The rotary table of the prefix is **zero** in the released models (METHODS 6), so prefix keys and
queries vanish after rotation; ``prefix_rope="identity"`` keeps them unrotated instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError, TextFeatures
from decoders.cache import KVCache

OVERRUN = 64  # zero rotary rows past the last cell, for tree nodes beyond the image's end
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class LlamaGenConfig:
    """Shape of a target. ``grid`` is the image side in codes, ``prefix`` the text positions P."""

    vocab: int = 16384
    width: int = 1280
    layers: int = 36
    heads: int = 20
    ffn: int = 3584
    grid: int = 16
    prefix: int = 120
    text_width: int = 2048
    norm_eps: float = 1e-5
    prefix_rope: str = "zero"

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 4:
            raise DecoderError(
                f"width {self.width} over {self.heads} heads must be a multiple of 4"
            )
        if self.prefix_rope not in ("zero", "identity"):
            raise DecoderError(f"prefix_rope is 'zero' or 'identity', found {self.prefix_rope!r}")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def rope_table(cfg: LlamaGenConfig) -> Tensor:
    """[P + grid**2 + OVERRUN, d / 2] complex64: half of a head turns with the row, half with the
    column; interleaved pairs; zero past the end, zero or one on the prefix."""
    half = cfg.head_dim // 2
    frequency = 1.0 / ROPE_BASE ** (torch.arange(0, half, 2).float() / half)  # [d / 4]
    angle = torch.outer(torch.arange(cfg.grid).float(), frequency)  # [grid, d / 4]
    side = cfg.grid
    grid = torch.cat(
        [angle[:, None].expand(side, side, -1), angle[None].expand(side, side, -1)], -1
    )
    cells = torch.polar(torch.ones_like(grid), grid).flatten(0, 1)  # [grid**2, d / 2]
    fill = 0.0 if cfg.prefix_rope == "zero" else 1.0
    prefix = torch.full((cfg.prefix, half), fill, dtype=cells.dtype)
    return torch.cat([prefix, cells, torch.zeros(OVERRUN, half, dtype=cells.dtype)])


def cast(module: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Moves a module with a ``rope`` buffer, which keeps its complex type whatever the weights'."""
    rope = module.rope
    module.rope = torch.empty(0)
    module.to(device=device, dtype=dtype)
    module.rope = rope.to(device)
    return module


class RMSNorm(nn.Module):
    """x / rms(x) * weight, in float32 inside, the dtype of x outside."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class CaptionMLP(nn.Module):
    """Text features [.., F] -> [.., D]."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(text_width, width, bias=False)
        self.fc2 = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """The prefix: caption features, or the unconditional embedding on all P positions."""

    def __init__(self, cfg: LlamaGenConfig) -> None:
        super().__init__()
        self.cap_proj = CaptionMLP(cfg.text_width, cfg.width)
        self.uncond_embedding = nn.Parameter(
            torch.randn(cfg.prefix, cfg.text_width) / cfg.text_width**0.5
        )

    def forward(self, features: Tensor, drop: Tensor | None = None) -> Tensor:
        """features [R, P, F], drop [R] bool (True: unconditional) -> [R, P, D]."""
        if drop is not None:
            features = torch.where(
                drop[:, None, None], self.uncond_embedding.to(features.dtype), features
            )
        return self.cap_proj(features.to(self.cap_proj.fc1.weight.dtype))


def attend(query: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d) + mask) v: query [R, H, T, d], k, v [R, H, S, d], mask [R, 1, T, S].

    On the CPU plain matrix products beat the fused kernel at these sizes: 6 times at T = 1, 1.7
    times at T = 58, and 1.4 times in a training step, as they use the bf16 units throughout.
    """
    if query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, k, v, attn_mask=mask)
    scores = torch.add(mask, query @ k.transpose(-1, -2), alpha=query.shape[-1] ** -0.5)
    return scores.softmax(-1) @ v


class Attention(nn.Module):
    def __init__(self, cfg: LlamaGenConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = cfg.heads, cfg.head_dim
        self.wqkv = nn.Linear(cfg.width, 3 * cfg.width, bias=False)
        self.wo = nn.Linear(cfg.width, cfg.width, bias=False)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Tensor,
        layer: int,
        cache: KVCache | None,
        index: Tensor | None,
    ) -> Tensor:
        rows, length, width = x.shape
        qkv = self.wqkv(x).view(rows, length, 3, self.heads, self.head_dim)
        qkv = qkv.permute(2, 0, 3, 1, 4)  # [3, R, H, T, d]
        pairs = torch.view_as_complex(qkv[:2].float().unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * rope).flatten(-2).to(qkv.dtype)  # [2, R, H, T, d]
        query, k, v = turned[0], turned[1], qkv[2]  # [R, H, T, d] each
        if cache is not None and index is not None:
            cache.write(layer, index, torch.stack([k, v]))
            k, v = cache.read(layer)  # [R, H, S, d]
        out = attend(query, k, v, mask)
        return self.wo(out.transpose(1, 2).reshape(rows, length, width))


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x), w1 and w3 stacked in one matrix."""

    def __init__(self, cfg: LlamaGenConfig) -> None:
        super().__init__()
        self.w13 = nn.Linear(cfg.width, 2 * cfg.ffn, bias=False)
        self.w2 = nn.Linear(cfg.ffn, cfg.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w13(x).chunk(2, -1)
        return self.w2(F.silu(gate) * up)


class Layer(nn.Module):
    """A transformer layer. ``input_norm=False`` is the EAGLE drafter's layer (METHODS 6)."""

    def __init__(self, cfg: LlamaGenConfig, input_norm: bool = True) -> None:
        super().__init__()
        self.attention = Attention(cfg)
        self.feed_forward = FeedForward(cfg)
        self.attention_norm: nn.Module = (
            RMSNorm(cfg.width, cfg.norm_eps) if input_norm else nn.Identity()
        )
        self.ffn_norm = RMSNorm(cfg.width, cfg.norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: Tensor,
        mask: Tensor,
        layer: int = 0,
        cache: KVCache | None = None,
        index: Tensor | None = None,
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, mask, layer, cache, index)
        return x + self.feed_forward(self.ffn_norm(x))


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """[R, T, S] bool -> [R, 1, T, S] of 0 and -inf, made once a forward for all layers."""
    empty = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, empty, float("-inf")).unsqueeze(1)


def prefix_mask(valid: Tensor) -> Tensor:
    """Text validity [R, P] -> causal mask [R, P, P]; a padded query sees itself only, so no row is
    empty (its state is never read by a valid position)."""
    size = valid.shape[1]
    causal = torch.ones(size, size, dtype=torch.bool, device=valid.device).tril()
    eye = torch.eye(size, dtype=torch.bool, device=valid.device)
    return (causal & valid[:, None, :]) | eye


class LlamaGen(nn.Module):
    """The target. Decoding interface: `decoders.api.Target`; training: `forward`."""

    rope: Tensor

    def __init__(self, cfg: LlamaGenConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.vocab_size, self.width = cfg.vocab, cfg.width
        self.length, self.prefix = cfg.grid**2, cfg.prefix
        self.cls_embedding = CaptionEmbedder(cfg)
        self.tok_embeddings = nn.Embedding(cfg.vocab, cfg.width)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = RMSNorm(cfg.width, cfg.norm_eps)
        self.output = nn.Linear(cfg.width, cfg.vocab, bias=False)
        self.register_buffer("rope", rope_table(cfg), persistent=False)
        self.apply(self._init)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    # ---- decoding -------------------------------------------------------------------------------

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        weight = self.output.weight
        return KVCache(
            self.cfg.layers,
            rows,
            capacity,
            self.cfg.heads,
            self.cfg.head_dim,
            weight.dtype,
            weight.device,
        )

    def _run(self, x: Tensor, rope: Tensor, mask: Tensor, cache: KVCache, index: Tensor) -> Tensor:
        bias = additive(mask, x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, bias, i, cache, index)
        return self.norm(x)

    def prefill(self, text: TextFeatures, guidance_rows: int, cache: KVCache) -> Tensor:
        """Runs the prefix of [conditional; unconditional] rows -> hidden [R, P, D].

        Both rows use the caption's mask (METHODS 6). Slots 0..P-1 of the cache are filled.
        """
        expected = (self.prefix, self.cfg.text_width)
        if tuple(text.features.shape[1:]) != expected:
            raise DecoderError(
                f"text features must be [B, P, F] with (P, F) = {expected}, found "
                f"{tuple(text.features.shape)}; is this the model's own encoder?"
            )
        batch, rows = text.batch, guidance_rows * text.batch
        drop = torch.arange(rows, device=text.mask.device) >= batch  # [R]
        features = (text.features * text.mask[..., None]).repeat(guidance_rows, 1, 1)  # [R, P, F]
        x = self.cls_embedding(features, drop)  # [R, P, D]
        slots = torch.arange(self.prefix, device=x.device).expand(rows, -1)  # [R, P]
        rope = self.rope[: self.prefix]  # [P, d / 2]
        mask = prefix_mask(text.mask).repeat(guidance_rows, 1, 1)  # [R, P, P]
        mask = F.pad(mask, (0, cache.capacity - self.prefix))  # [R, P, S]
        return self._run(x, rope, mask, cache, cache.flat_index(slots))

    def forward_codes(
        self, codes: Tensor, grid_index: Tensor, slots: Tensor, mask: Tensor, cache: KVCache
    ) -> Tensor:
        """See `decoders.api.Target.forward_codes`."""
        x = self.tok_embeddings(codes)  # [R, T, D]
        rope = self.rope[(self.prefix + grid_index).clamp_max(len(self.rope) - 1)]  # [R, T, d / 2]
        return self._run(x, rope[:, None], mask, cache, cache.flat_index(slots))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)

    # ---- training -------------------------------------------------------------------------------

    def hidden_states(self, text: TextFeatures, codes: Tensor, drop: Tensor) -> Tensor:
        """Teacher-forced states of prefix and codes, [B, P + L - 1, D] (normed, head-ready).

        text of B captions, codes [B, L] (the last one is predicted, never read), drop [B] bool:
        rows without their caption. The state at P - 1 + j predicts code j.
        """
        prefix = self.cls_embedding(text.features * text.mask[..., None], drop)  # [B, P, D]
        x = torch.cat([prefix, self.tok_embeddings(codes[:, :-1]).to(prefix.dtype)], 1)
        total = x.shape[1]  # P + L - 1
        valid = F.pad(text.mask, (0, total - self.prefix), value=True)  # [B, P + L - 1]
        bias = additive(prefix_mask(valid), x.dtype)
        rope = self.rope[:total]  # [T, d / 2]
        for layer in self.layers:
            x = layer(x, rope, bias)
        return self.norm(x)

    def forward(self, text: TextFeatures, codes: Tensor, drop: Tensor) -> Tensor:
        """The states [B, L, D] that predict codes 0..L-1; see `hidden_states`."""
        return self.hidden_states(text, codes, drop)[:, self.prefix - 1 :]
