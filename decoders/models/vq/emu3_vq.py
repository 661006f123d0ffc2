"""Emu3's VQ decoder (2409.18869, section 2.2) for one picture: 32768 codes of 4 numbers, down 8.

The released network decodes video: one frame of codes becomes four frames, through convolutions
over time that look back only and see zeros before the first frame. A picture is the first of the
four. Before it there is nothing, and doubling the frames repeats it, so of every kernel over time
only the last slice meets anything but zeros. That slice is a plain 2-D convolution, and it is all
that is kept here: the same picture for a quarter of the work.

Module names follow transformers' checkpoint (`theirs`). Norms of the decoder are modulated by the
codes' latents ("spatial norm", 2209.09002).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import DecoderError
from decoders.kinds import Within
from decoders.models.checkpoint import Checkpoint, Source, fill, numbered
from decoders.models.vq.blocks import GROUPS, ResnetBlock, Upsample, to_unit

Size = Annotated[int, Within(1, 2**24)]
EPS = 1e-6


@dataclass(frozen=True)
class Emu3VQConfig:
    """widths: of the levels, the finest first; attention: whether a level attends; blocks: residual
    blocks a level; temporal: blocks over time, and how often time is doubled."""

    codes: Size
    dim: Size
    latent: Size
    widths: tuple[int, ...]
    attention: tuple[bool, ...]
    blocks: int
    temporal: tuple[int, int]
    heads: int
    grid: Size


class ChannelNorm(nn.Module):
    """Batch norm with its running statistics: a scale and a shift of every channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.running_mean = nn.Parameter(torch.zeros(channels))
        self.running_var = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


class SpatialNorm(nn.Module):
    """Group norm, scaled and shifted by what the latents say of the place."""

    def __init__(self, latent: int, channels: int) -> None:
        super().__init__()
        self.norm_layer = nn.GroupNorm(GROUPS, channels, eps=EPS)
        self.conv_y = nn.Conv2d(latent, channels, 1)
        self.conv_b = nn.Conv2d(latent, channels, 1)

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        latents = F.interpolate(latents, size=x.shape[-2:], mode="nearest")
        return self.norm_layer(x) * self.conv_y(latents) + self.conv_b(latents)


def block(channels: int, out: int, latent: int) -> ResnetBlock:
    """A residual block whose norms read the latents."""
    return ResnetBlock(channels, out, partial(SpatialNorm, latent))


class Attention(nn.Module):
    """Self-attention over the places of a normalised map [B, C, H, W]."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(channels, channels) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(2).transpose(1, 2)  # [B, HW, C]
        q, k, v = (
            part(rows).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, HW, d]
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # [B, HW, C]
        return self.out_proj(out).transpose(1, 2).reshape(x.shape)


class Middle(nn.Module):
    def __init__(self, channels: int, cfg: Emu3VQConfig) -> None:
        super().__init__()
        self.block_1 = block(channels, channels, cfg.dim)
        self.attn_1 = Attention(channels, cfg.heads)
        self.attn_norm = SpatialNorm(cfg.dim, channels)
        self.block_2 = block(channels, channels, cfg.dim)

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        x = self.block_1(x, latents)
        return self.block_2(x + self.attn_1(self.attn_norm(x, latents)), latents)


class Level(nn.Module):
    """Blocks of one resolution, then twice the side, but at the finest."""

    def __init__(self, first: int, width: int, cfg: Emu3VQConfig, level: int) -> None:
        super().__init__()
        widths = [first] + [width] * cfg.blocks
        self.block = nn.ModuleList(block(a, b, cfg.dim) for a, b in pairwise(widths))
        count = cfg.blocks if cfg.attention[level] else 0
        self.attn = nn.ModuleList(Attention(width, cfg.heads) for _ in range(count))
        self.attn_norms = nn.ModuleList(SpatialNorm(cfg.dim, width) for _ in range(count))
        self.upsample: nn.Module = Upsample(width) if level else nn.Identity()

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        for i, residual in enumerate(self.block):
            x = residual(x, latents)
            if len(self.attn):
                x = x + self.attn[i](self.attn_norms[i](x, latents))
        return self.upsample(x)


class Decoder(nn.Module):
    def __init__(self, cfg: Emu3VQConfig) -> None:
        super().__init__()
        blocks, doublings = cfg.temporal
        coarse = cfg.widths[-1]
        before = [*cfg.widths[1:], coarse]
        # Blocks over time, of whose convolutions the last slice is left.
        self.time_res_stack = nn.ModuleList(
            ResnetBlock(cfg.latent, cfg.latent, ChannelNorm) for _ in range(blocks)
        )
        self.time_conv = nn.ModuleList(
            nn.Conv2d(cfg.latent, cfg.latent, 3, padding=1) for _ in range(doublings)
        )
        self.conv_in = nn.Conv2d(cfg.latent, coarse, 3, padding=1)
        self.middle_block = Middle(coarse, cfg)
        self.up = nn.ModuleList(
            Level(first, width, cfg, level)
            for level, (first, width) in enumerate(zip(before, cfg.widths, strict=True))
        )
        self.norm_out = SpatialNorm(cfg.dim, cfg.widths[0])
        self.conv_out = nn.Conv2d(cfg.widths[0], 3, 3, padding=1)

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        """The codes' latents after and before `post_quant_conv`, both [B, C, h, w]."""
        both = torch.cat([x, latents])  # [2 B, C, h, w]
        for layer in self.time_res_stack:
            both = layer(both)
        for layer in self.time_conv:
            both = F.silu(layer(both))
        x, latents = both.chunk(2)
        x = self.middle_block(self.conv_in(x), latents)
        for level in reversed(self.up):
            x = level(x, latents)
        return self.conv_out(F.silu(self.norm_out(x, latents)))


class Emu3VQ(nn.Module):
    """Codes [B, L] int64 in raster order -> pictures; it does not encode."""

    def __init__(self, cfg: Emu3VQConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.quantize = nn.ModuleDict({"embedding": nn.Embedding(cfg.codes, cfg.dim)})
        self.post_quant_conv = nn.Conv2d(cfg.dim, cfg.latent, 1)
        self.decoder = Decoder(cfg)

    @property
    def codebook(self) -> Tensor:
        """[V, C] float32, looked up by plain L2."""
        table: Any = self.quantize["embedding"]
        return table.weight.detach()

    @property
    def raw_codebook(self) -> Tensor:
        return self.codebook

    def encode(self, images: Tensor) -> Tensor:
        """Raises DecoderError."""
        raise DecoderError(
            "Emu3's VQ model turns codes into pictures alone; give codes (data=shards), not "
            "pictures"
        )

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, L] -> images [B, 3, H, W] float32 in [0, 1]."""
        side = self.cfg.grid
        latents = F.embedding(codes, self.codebook).view(len(codes), side, side, -1)
        latents = latents.permute(0, 3, 1, 2)  # [B, C, h, w]
        return to_unit(self.decoder(self.post_quant_conv(latents), latents))


def read_emu3_vq(opened: Checkpoint, grid: int, at: str) -> Emu3VQ:
    """The VQ decoder whose names begin with `at` in a checkpoint of transformers' layout, float32
    on the CPU."""
    with torch.device("meta"):
        module = Emu3VQ(_config(opened, at, grid))
    names = [name for name, _ in module.named_parameters()]
    sources = {name: Source((f"{at}{theirs(name)}",), _last) for name in names}

    def unused(name: str) -> bool:
        """The encoder, counters of batch norms, and the language model."""
        own = name.removeprefix(at)
        return (
            not name.startswith(at)
            or not own.startswith(("decoder.", "post_quant_conv.", "quantize."))
            or own.endswith("num_batches_tracked")
        )

    fill(module, sources, opened, torch.float32, torch.device("cpu"), unused)
    return module.eval()


def theirs(own: str) -> str:
    """A parameter's name in transformers' checkpoint, which wraps convolutions over time."""
    name = re.sub(r"^(decoder\.time_res_stack\.\d+\.conv\d)\.", r"\1.conv.", own)
    name = re.sub(r"^(decoder\.time_conv\.\d+)\.", r"\1.conv.conv.", name)
    name = name.replace("decoder.up.", "decoder.up_block.up.")
    return name.replace("post_quant_conv.", "post_quant_conv.conv.")


def _last(given: list[Tensor]) -> list[Tensor]:
    """Of kernels over time the last slice."""
    return [kernel[:, :, -1] if kernel.ndim == 5 else kernel for kernel in given]


def _config(opened: Checkpoint, at: str, grid: int) -> Emu3VQConfig:
    """The network's shape, read off its tensors."""
    up, root = f"{at}decoder.up_block.up.", re.escape(at)
    levels = numbered(opened, rf"{re.escape(up)}(\d+)\.block\.0\.conv1\.weight")
    codes, dim = opened.shape(f"{at}quantize.embedding.weight", 2)
    doubled = rf"{root}decoder\.time_conv\.(\d+)\.conv\.conv\.weight"
    given = opened.config.get("vq_config")
    settings = given if isinstance(given, dict) else opened.config
    return Emu3VQConfig(
        codes=codes,
        dim=dim,
        latent=opened.shape(f"{at}post_quant_conv.conv.weight", 5)[0],
        widths=tuple(
            opened.shape(f"{up}{level}.block.0.conv1.weight", 4)[0] for level in range(levels)
        ),
        attention=tuple(
            f"{up}{level}.attn.0.q_proj.weight" in opened.index for level in range(levels)
        ),
        blocks=numbered(opened, rf"{re.escape(up)}0\.block\.(\d+)\.conv1\.weight"),
        temporal=(
            numbered(opened, rf"{root}decoder\.time_res_stack\.(\d+)\.conv1\.conv\.weight"),
            numbered(opened, doubled)
            if f"{at}decoder.time_conv.0.conv.conv.weight" in opened.index
            else 0,
        ),
        heads=int(settings.get("num_attention_heads", 1)) if given else 1,
        grid=grid,
    )
