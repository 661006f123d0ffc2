"""Models of two official sizes with random weights: what a step costs, without a checkpoint.

Time and memory of a step depend on shapes alone. Codes and acceptance of such a model mean nothing,
and it draws no pictures. PyTorch's own initialisation gives finite and nearly flat logits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.models.loading.checkpoint import cast
from decoders.models.loading.weights import dtype_of
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Transformer
from decoders.models.vq.tokenizer import NoTokenizer

# The target's shape, and the numbers of a code's latent in the codebook.
SIZES = {
    "llamagen_xl_256": (TransformerConfig(pads="released"), 8),
    "anole_7b": (
        TransformerConfig(
            vocab=8192, width=4096, layers=32, heads=32, ffn=11008, grid=32, prefix=128,
            conditioning="tokens", tokens=65536, positions="line", prefix_rope="identity",
            qk_norm=True,
        ),
        256,
    ),
}  # fmt: skip


def load(
    size: Literal["llamagen_xl_256", "anole_7b"] = "llamagen_xl_256",
    device: str = "cpu",
    dtype: str = "bfloat16",
    cfg: float = 7.5,
    top_k: int = 1000,
) -> ImageModel:
    """Target, EAGLE drafter and codebook. cfg, top_k: the usual sampling of the released model."""
    (shape, latent), torch_device, kind = SIZES[size], torch.device(device), dtype_of(dtype)
    with initialised(torch_device, kind):
        target = Transformer(shape)
        drafter = EagleNet(replace(shape, layers=1), input_norm=shape.tokens > 0)
        codebook = F.normalize(torch.randn(shape.vocab, latent, dtype=torch.float32), dim=-1)
    for module in (target, drafter):
        cast(module.eval().requires_grad_(False), torch_device, kind)
    return ImageModel(
        name=f"{size}_random",
        target=target,
        text=RandomText(shape, torch_device, kind),
        tokenizer=NoTokenizer("a model with random weights has none", codebook),
        sampling=Sampling(cfg=cfg, top_k=top_k),
        device=torch_device,
        dtype=kind,
        weights_sha256={size: "random"},
        drafters={"eagle": drafter},
    )


@contextmanager
def initialised(torch_device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Modules are made on the device, in their final dtype, from the seed 0: 14 GB need no copy."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.random.fork_rng(), torch.device(torch_device):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class RandomText:
    """Features [B, P, F] or token ids [B, P] that are a function of the prompt."""

    config: TransformerConfig
    device: torch.device
    dtype: torch.dtype

    def encode(self, prompts: list[str]) -> TextFeatures:
        size, rows = self.config.prefix, []
        for prompt in prompts:
            generator = torch.Generator().manual_seed(zlib.crc32(prompt.encode()))
            if self.config.conditioning == "tokens":
                rows.append(torch.randint(self.config.tokens, (size,), generator=generator))
            else:
                rows.append(torch.randn(size, self.config.text_width, generator=generator))
        mask = torch.ones(len(prompts), size, dtype=torch.bool, device=self.device)
        features = torch.stack(rows).to(self.device)  # [B, P, F] or [B, P]
        if self.config.conditioning != "tokens":
            return TextFeatures(features.to(self.dtype), mask)
        alone = mask & (torch.arange(size, device=self.device) >= size - 2)  # start, image token
        return TextFeatures(features, mask, features, alone)
