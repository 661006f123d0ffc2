"""A small random target with a drafter and a tokenizer, for exactness checks by enumeration.

A handful of codes and a tiny grid make every image enumerable; random weights (scaled up, so that
the distributions are far from uniform) make drafter and target disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.models.loading.checkpoint import cast
from decoders.models.nets.eagle import EagleNet
from decoders.models.nets.transformer import Transformer, TransformerConfig
from decoders.noise import Noise

SHARPNESS = 6.0  # scale of the random output head
WIDTH, LAYERS, HEADS = 16, 2, 2  # of a small target; the drafter is as wide
DAMPING = 0.5  # scale of the layers' outputs, which the drafter cannot know
HEARING = 0.3  # weight of the previous feature in the drafter


@dataclass(frozen=True)
class FixedText:
    """Random features, the same for all prompts: a function of the first one's length."""

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
        """Grey images: a code's first latent coordinate is its brightness."""
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
) -> ImageModel:
    """An `ImageModel` of V = vocab codes and L = grid**2 with a random EAGLE drafter."""
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
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        target, drafter = Transformer(config), EagleNet(config)
        for module in (target, drafter):
            for name, parameter in module.named_parameters():
                if parameter.ndim == 2 and "output" not in name:
                    torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        torch.nn.init.normal_(target.output.weight, std=SHARPNESS / width)
        codebook = torch.nn.functional.normalize(torch.randn(vocab, 3), dim=-1)
    for module in (target, drafter):
        module.eval().requires_grad_(False)
        cast(module, torch_device, dtype)
    return ImageModel(
        name=f"random-{vocab}x{grid * grid}",
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
) -> ImageModel:
    """V = vocab codes, L = grid**2, on the CPU, with a drafter under every name. It embeds codes as
    the target does, so that its drafts are accepted and rejected often."""
    model = random_model(vocab, grid, WIDTH, LAYERS, seed, dtype, heads=HEADS)
    target: Any = model.target
    net = model.drafters["eagle"]
    with torch.no_grad():
        for layer in [*target.layers, *net.layers]:
            layer.attention.wo.weight.mul_(DAMPING)
            layer.feed_forward.w2.weight.mul_(DAMPING)
        net.embed_tokens.weight.copy_(target.tok_embeddings.weight)
        eye = torch.eye(target.width)
        net.fc.weight.copy_(torch.cat([eye * target.width**0.5, eye * HEARING], 1))
    generator = torch.Generator().manual_seed(seed)
    raw = model.codebook * (0.5 + torch.rand(vocab, 1, generator=generator))
    tokenizer = RandomTokenizer(model.codebook, raw)
    return replace(model, tokenizer=tokenizer, drafters=dict.fromkeys(drafters, net))


def prompts(model: ImageModel, count: int, seed: int) -> TextFeatures:
    """`count` different random captions of different lengths, left-padded."""
    target: Any = model.target
    generator = torch.Generator().manual_seed(seed)
    shape = (count, target.prefix, target.config.text_width)
    pad = torch.randint(0, target.prefix, (count, 1), generator=generator)  # [B, 1]
    features = torch.randn(shape, generator=generator).to(model.dtype)
    return TextFeatures(features, torch.arange(target.prefix) >= pad)


def same_prompt(text: TextFeatures, count: int) -> TextFeatures:
    """One caption, `count` times."""
    return TextFeatures(text.features[:1].expand(count, -1, -1), text.mask[:1].expand(count, -1))


def fresh_noise(count: int, length: int, generator: torch.Generator) -> Noise:
    return Noise.of_keys(torch.randint(2**32, (count, 2), generator=generator), length)
