"""Convolution blocks of LlamaGen's VQ tokenizer (the VQGAN encoder/decoder, LlamaGen 2406.06525).

Module names follow the released checkpoint's keys (``norm1``, ``conv1``, ``nin_shortcut``, ...), so
that the official weights load into these classes without renaming.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 32


def group_norm(channels: int) -> nn.GroupNorm:
    """At most 32 groups (the released widths), and at least four channels a group: with fewer the
    norm would erase an image's mean colour."""
    return nn.GroupNorm(min(GROUPS, channels // 4), channels, eps=1e-6)


class ResnetBlock(nn.Module):
    """[B, C, H, W] -> [B, C', H, W]: two 3x3 convolutions with a shortcut. norm: makes the norms of
    so many channels; they may read what else is given (Emu3's latents)."""

    def __init__(
        self, channels: int, out_channels: int, norm: Callable[[int], nn.Module] = group_norm
    ) -> None:
        super().__init__()
        self.norm1 = norm(channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.norm2 = norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        if channels != out_channels:
            self.nin_shortcut: nn.Module = nn.Conv2d(channels, out_channels, 1)
        else:
            self.nin_shortcut = nn.Identity()

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x, *given)))
        h = self.conv2(F.silu(self.norm2(h, *given)))
        return self.nin_shortcut(x) + h


class AttnBlock(nn.Module):
    """Single-head self-attention over the H*W places, with a residual."""

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


class Downsample(nn.Module):
    """[B, C, H, W] -> [B, C, H/2, W/2], padded right and bottom as in the released weights."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """[B, C, H, W] -> [B, C, 2H, 2W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """One resolution: residual blocks, optional attention, optional resampling."""

    def __init__(
        self, channels: int, out_channels: int, blocks: int, attention: bool, resample: str | None
    ) -> None:
        super().__init__()
        widths = [channels] + [out_channels] * blocks
        self.res = nn.ModuleList(ResnetBlock(a, b) for a, b in pairwise(widths))
        self.attn = nn.ModuleList(
            AttnBlock(out_channels) for _ in range(blocks if attention else 0)
        )
        if resample == "down":
            self.downsample = Downsample(out_channels)
        elif resample == "up":
            self.upsample = Upsample(out_channels)
        self.resample = resample

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        if self.resample == "down":
            x = self.downsample(x)
        elif self.resample == "up":
            x = self.upsample(x)
        return x


def middle(channels: int) -> nn.ModuleList:
    return nn.ModuleList(
        [ResnetBlock(channels, channels), AttnBlock(channels), ResnetBlock(channels, channels)]
    )


def run_all(modules: nn.ModuleList, x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


def to_unit(images: Tensor) -> Tensor:
    """[-1, 1] -> [0, 1], clamped, float32."""
    return torch.clamp(images.float() * 0.5 + 0.5, 0.0, 1.0)
