"""Models with random weights: of two official sizes, for what a step costs, and small ones with a
handful of codes on a tiny grid, whose images can be enumerated.

Codes and acceptance of a model of an official size mean nothing, and it draws no pictures. A small
model's weights are scaled up, so that distributions are far from uniform and drafter and target
disagree.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.kinds import Amount, NotNegative
from decoders.models.loading.checkpoint import cast
from decoders.models.loading.weights import dtype_of
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.shape import TransformerConfig
from decoders.models.nets.transformer import Transformer
from decoders.models.pictures import NoTokenizer
from decoders.noise import Noise

# The target's shape, and the numbers of a code's latent in the codebook.
OFFICIAL_SHAPES = {
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
    cfg: NotNegative = 7.5,
    top_k: Amount = 1000,
) -> ImageModel:
    """Makes target, EAGLE drafter and codebook, by PyTorch's own initialisation from the seed 0:
    logits are finite and nearly flat. cfg, top_k: the usual sampling of the released model."""
    shape, latent = OFFICIAL_SHAPES[size]
    torch_device, kind = torch.device(device), dtype_of(dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)  # made on the device, in the final dtype: 14 GB need no copy
    try:
        with torch.random.fork_rng(), torch.device(torch_device):
            torch.manual_seed(0)
            target = Transformer(shape)
            drafter = EagleNet(replace(shape, layers=1), input_norm=shape.tokens > 0)
            codebook = F.normalize(torch.randn(shape.vocab, latent, dtype=torch.float32), dim=-1)
    finally:
        torch.set_default_dtype(before)
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


@dataclass(frozen=True)
class RandomText:
    """Encodes prompts to features [B, P, F] or token ids [B, P] that are a function of each."""

    config: TransformerConfig
    device: torch.device
    dtype: torch.dtype

    def encode(self, prompts: list[str]) -> TextFeatures:
        size, rows = self.config.prefix, []
        tokens = self.config.conditioning == "tokens"
        for prompt in prompts:
            generator = torch.Generator().manual_seed(zlib.crc32(prompt.encode()))
            if tokens:
                rows.append(torch.randint(self.config.tokens, (size,), generator=generator))
            else:
                rows.append(torch.randn(size, self.config.text_width, generator=generator))
        mask = torch.ones(len(prompts), size, dtype=torch.bool, device=self.device)
        features = torch.stack(rows).to(self.device)  # [B, P, F] or [B, P]
        if not tokens:
            return TextFeatures(features.to(self.dtype), mask)
        alone = mask & (torch.arange(size, device=self.device) >= size - 2)  # start, image token
        return TextFeatures(features, mask, features, alone)


# ---- small models -------------------------------------------------------------------------------

HEAD_SCALE = 6.0  # scale of the random output head
SMALL_WIDTH, SMALL_LAYERS, SMALL_HEADS = 16, 2, 2  # of a small target; the drafter is as wide
LAYER_SCALE = 0.5  # scale of the layers' outputs, which the drafter cannot know
FEATURE_WEIGHT = 0.3  # weight of the previous feature in the drafter


@dataclass(frozen=True)
class FixedText:
    """Encodes all prompts to the same random features, a function of the first one's length."""

    prefix: int
    width: int
    device: torch.device
    dtype: torch.dtype

    def encode(self, prompts: list[str]) -> TextFeatures:
        generator = torch.Generator().manual_seed(len(prompts[0]))
        one = torch.randn(1, self.prefix, self.width, generator=generator)
        mask = torch.ones(len(prompts), self.prefix, dtype=torch.bool)
        mask[:, 0] = False  # left padding is part of what is checked
        features = one.expand(len(prompts), -1, -1) * mask[..., None]
        return TextFeatures(features.to(self.device, self.dtype), mask.to(self.device))


@dataclass(frozen=True)
class RandomTokenizer:
    codebook: Tensor
    raw_codebook: Tensor | None = None

    def decode(self, codes: Tensor) -> Tensor:
        """Draws grey images: a code's first latent coordinate is its brightness."""
        side = int(codes.shape[1] ** 0.5)
        grey = self.codebook[codes][..., 0].sigmoid().view(len(codes), 1, side, side)
        return grey.expand(-1, 3, -1, -1).float()


def random_model(
    vocab: int = 5,
    grid: int = 2,
    width: int = 32,
    layers: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    heads: int = 2,
    row_end: bool = False,
) -> ImageModel:
    """Makes an `ImageModel` of V = vocab codes and L = grid**2 with a random EAGLE drafter.
    row_end: each row is closed by one code more, and positions are counted along the line."""
    torch_device = torch.device(device)
    config = TransformerConfig(
        vocab=vocab,
        width=width,
        layers=layers,
        heads=heads,
        ffn=2 * width,
        grid=grid,
        prefix=4,
        text_width=8,
        row_end=row_end,
        positions="line" if row_end else "grid",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        target, drafter = Transformer(config), EagleNet(config)
        for module in (target, drafter):
            for name, parameter in module.named_parameters():
                if parameter.ndim == 2 and "output" not in name:
                    nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        nn.init.normal_(target.output.weight, std=HEAD_SCALE / width)
        codebook = F.normalize(torch.randn(vocab, 3), dim=-1)
    for module in (target, drafter):
        module.eval().requires_grad_(False)
        cast(module, torch_device, dtype)
    return ImageModel(
        name=f"random-{vocab}x{config.length}",
        target=target,
        text=FixedText(config.prefix, config.text_width, torch_device, dtype),
        tokenizer=RandomTokenizer(codebook.to(torch_device)),
        sampling=Sampling(cfg=2.0),
        device=torch_device,
        dtype=dtype,
        weights_sha256={},
        drafters={"eagle": drafter},
    )


def small_model(
    vocab: int,
    grid: int,
    seed: int,
    drafters: tuple[str, ...] = ("eagle",),
    dtype: torch.dtype = torch.float32,
    row_end: bool = False,
) -> ImageModel:
    """Makes a `random_model` of V = vocab codes on the CPU, with a drafter under every name. It
    embeds codes as the target does, so that its drafts are accepted and rejected often."""
    size = SMALL_WIDTH, SMALL_LAYERS
    model = random_model(vocab, grid, *size, seed, dtype, heads=SMALL_HEADS, row_end=row_end)
    target: Any = model.target
    net = model.drafters["eagle"]
    with torch.no_grad():
        for layer in [*target.layers, *net.layers]:
            layer.attention.wo.weight.mul_(LAYER_SCALE)
            layer.feed_forward.w2.weight.mul_(LAYER_SCALE)
        net.embed_tokens.weight.copy_(target.tok_embeddings.weight)
        eye = torch.eye(target.width)
        net.fc.weight.copy_(torch.cat([eye * target.width**0.5, eye * FEATURE_WEIGHT], 1))
    generator = torch.Generator().manual_seed(seed)
    raw = model.codebook * (0.5 + torch.rand(vocab, 1, generator=generator))
    tokenizer = RandomTokenizer(model.codebook, raw)
    return replace(model, tokenizer=tokenizer, drafters=dict.fromkeys(drafters, net))


def random_prompts(model: ImageModel, count: int, seed: int) -> TextFeatures:
    """Makes `count` different random captions of different lengths, left-padded."""
    target: Any = model.target
    generator = torch.Generator().manual_seed(seed)
    shape = (count, target.prefix, target.config.text_width)
    pad = torch.randint(0, target.prefix, (count, 1), generator=generator)  # [B, 1]
    features = torch.randn(shape, generator=generator).to(model.dtype)
    return TextFeatures(features, torch.arange(target.prefix) >= pad)


def same_prompt(text: TextFeatures, count: int) -> TextFeatures:
    """Repeats one caption `count` times."""
    return TextFeatures(text.features[:1].expand(count, -1, -1), text.mask[:1].expand(count, -1))


def random_noise(count: int, length: int, generator: torch.Generator) -> Noise:
    return Noise.of_keys(torch.randint(2**32, (count, 2), generator=generator), length)
