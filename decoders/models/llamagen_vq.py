"""LlamaGen's VQ tokenizer (2406.06525, section 2): images <-> codes, L2-normalised codebook.

The same class serves the released weights (16384 x 8, down 16), the embedded tokenizer (1024 x 8,
down 4) and Chameleon's (8192 x 256, down 16). Module names follow the released checkpoint's keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.kinds import Size, Within

MOST_NORM_GROUPS = 32  # of a normalisation, at most: the released widths
group_norm = partial(nn.GroupNorm, 1, eps=1e-6)  # `LlamaGenVQ` says how many groups


@dataclass(frozen=True)
class VQConfig:
    """Shape of a tokenizer. The image side is grid * 2 ** (len(ch_mult) - 1)."""

    codes: Size = 16384
    dim: Size = 8
    channels: Size = 128
    ch_mult: tuple[Annotated[int, Within(1, 1024)], ...] = (1, 1, 2, 2, 4)
    res_blocks: Annotated[int, Within(1, 1024)] = 2
    z_channels: Size = 256
    grid: Annotated[int, Within(1, 4096)] = 16
    l2_norm: bool = True
    # Least channels per group of a normalisation: with fewer than 4 it would erase an image's mean
    # colour. The released weights need 1.
    group_width: Size = 4
    attention: bool = True  # self-attention in the coarsest level, besides the middle's


class ResnetBlock(nn.Module):
    """[B, C, H, W] -> [B, C', H, W]: two 3x3 convolutions with a shortcut."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1 = group_norm(channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.norm2 = group_norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        same = channels == out_channels
        self.nin_shortcut = nn.Identity() if same else nn.Conv2d(channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return self.nin_shortcut(x) + h


class AttnBlock(nn.Module):
    """Single-head self-attention over all H * W pixels, with a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        h = self.norm(x)
        q, k, v = (m(h).flatten(2).transpose(1, 2) for m in (self.q, self.k, self.v))  # [B, HW, C]
        h = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]  # [B, HW, C]
        return x + self.proj_out(h.transpose(1, 2).reshape(b, c, height, width))


class Resample(nn.Module):
    """[B, C, H, W] -> [B, C, 2H, 2W]; or H/2, W/2, padded right and bottom as in the released
    weights."""

    def __init__(self, channels: int, up: bool) -> None:
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(channels, channels, 3, padding=int(up), stride=1 if up else 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.up:
            return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Level(nn.Module):
    """One resolution: residual blocks, optional attention, optional resampling ("upsample" or
    "downsample")."""

    def __init__(
        self, channels: int, out_channels: int, blocks: int, attention: bool, resample: str = ""
    ) -> None:
        super().__init__()
        widths = [channels] + [out_channels] * blocks
        self.res = nn.ModuleList(ResnetBlock(a, b) for a, b in pairwise(widths))
        self.attn = nn.ModuleList(
            AttnBlock(out_channels) for _ in range(blocks if attention else 0)
        )
        self.resample = resample
        if resample:
            self.add_module(resample, Resample(out_channels, resample == "upsample"))

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        return self.get_submodule(self.resample)(x) if self.resample else x


def levels(config: VQConfig, up: bool) -> nn.Sequential:
    """An encoder's resolutions, finest first; up: a decoder's, coarsest first."""
    last = len(config.ch_mult) - 1
    order = range(last, -1, -1) if up else range(last + 1)
    width, blocks = config.channels * (config.ch_mult[-1] if up else 1), config.res_blocks + up
    every = []
    for i in order:
        out = config.channels * config.ch_mult[i]
        resample = "" if i == order[-1] else "upsample" if up else "downsample"
        every.append(Level(width, out, blocks, config.attention and i == last, resample))
        width = out
    return nn.Sequential(*every)


def middle(width: int) -> nn.Sequential:
    return nn.Sequential(ResnetBlock(width, width), AttnBlock(width), ResnetBlock(width, width))


def to_unit(images: Tensor) -> Tensor:
    """Maps [-1, 1] to [0, 1], clamped, float32."""
    return torch.clamp(images.float() * 0.5 + 0.5, 0.0, 1.0)


class Encoder(nn.Module):
    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1)
        self.conv_blocks = levels(config, up=False)
        width = config.channels * config.ch_mult[-1]
        self.mid = middle(width)
        self.norm_out = group_norm(width)
        self.conv_out = nn.Conv2d(width, config.z_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.conv_blocks(self.conv_in(x)))
        return self.conv_out(F.silu(self.norm_out(x)))


class Decoder(nn.Module):
    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        width = config.channels * config.ch_mult[-1]
        self.conv_in = nn.Conv2d(config.z_channels, width, 3, padding=1)
        self.mid = middle(width)
        self.conv_blocks = levels(config, up=True)
        width = config.channels * config.ch_mult[0]
        self.norm_out = group_norm(width)
        self.conv_out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.conv_blocks(self.mid(self.conv_in(z)))
        return self.conv_out(F.silu(self.norm_out(x)))


class Codebook(nn.Module):
    """V vectors of C dims; looked up by cosine (= L2 after normalisation) when ``l2_norm``."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.l2_norm = config.l2_norm
        self.embedding = nn.Embedding(config.codes, config.dim)
        nn.init.uniform_(self.embedding.weight, -1.0 / config.codes, 1.0 / config.codes)
        if config.l2_norm:
            with torch.no_grad():
                self.embedding.weight.normal_()
                self.embedding.weight.copy_(F.normalize(self.embedding.weight, dim=-1))

    def table(self) -> Tensor:
        """Returns [V, C] float32, in the metric that codes are looked up with."""
        weight = self.embedding.weight.float()
        return F.normalize(weight, dim=-1) if self.l2_norm else weight

    def project(self, z: Tensor) -> Tensor:
        """Maps [..., C] to the space of `table`, float32."""
        return F.normalize(z.float(), dim=-1) if self.l2_norm else z.float()

    def nearest(self, z: Tensor) -> Tensor:
        """Maps projected vectors [..., C] to the nearest codes [...] int64."""
        table = self.table()
        distance = table.square().sum(-1) - 2 * z @ table.T  # [..., V]
        return distance.argmin(-1)


class LlamaGenVQ(nn.Module):
    """Images [B, 3, H, W] in [-1, 1] <-> codes [B, L] int64 in raster order."""

    def __init__(self, config: VQConfig) -> None:
        super().__init__()
        self.config, self.grid = config, config.grid
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quantize = Codebook(config)
        self.quant_conv = nn.Conv2d(config.z_channels, config.dim, 1)
        self.post_quant_conv = nn.Conv2d(config.dim, config.z_channels, 1)
        for module in self.modules():
            if isinstance(module, nn.GroupNorm):
                module.num_groups = min(MOST_NORM_GROUPS, module.num_channels // config.group_width)

    @property
    def codebook(self) -> Tensor:
        """[V, C] float32: the latent space in which neighbours are measured."""
        return self.quantize.table()

    @property
    def raw_codebook(self) -> Tensor:
        """[V, C] float32, not normalised: what the released LANTERN tables were built from."""
        return self.quantize.embedding.weight.detach().float()

    def latents(self, images: Tensor) -> Tensor:
        """Maps [B, 3, H, W] in [-1, 1] to projected latents [B, h, w, C] float32."""
        z = self.quant_conv(self.encoder(images))  # [B, C, h, w]
        return self.quantize.project(z.permute(0, 2, 3, 1))  # [B, h, w, C]

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encodes images [B, 3, H, W] in [0, 1] to codes [B, L]."""
        return self.quantize.nearest(self.latents(images * 2 - 1)).flatten(1)  # [B, L]

    def render(self, quantized: Tensor) -> Tensor:
        """Renders [B, h, w, C] as images [B, 3, H, W] around [-1, 1]."""
        weight = self.post_quant_conv.weight
        return self.decoder(self.post_quant_conv(quantized.permute(0, 3, 1, 2).to(weight.dtype)))

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Decodes codes [B, L] to images [B, 3, H, W] float32 in [0, 1]."""
        quantized = F.embedding(codes, self.codebook).unflatten(1, (self.grid, -1))
        return to_unit(self.render(quantized))
