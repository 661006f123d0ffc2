"""A small random target with a drafter and a tokenizer, for exactness checks by enumeration.

A handful of codes and a tiny grid make every image enumerable; random weights (scaled up, so that
the distributions are far from uniform) make drafter and target disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoders.api import ImageModel, Sampling, TextFeatures
from decoders.models.eagle_net import EagleNet
from decoders.models.transformer import Transformer, TransformerConfig, cast

SHARPNESS = 6.0  # scale of the random output head


@dataclass(frozen=True)
class RandomText:
    """Features that are a fixed random function of the prompt's place in the list."""

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
    place = torch.device(device)
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
        cast(module, place, dtype)
    return ImageModel(
        name=f"random-{vocab}x{grid * grid}",
        target=target,
        text=RandomText(config.prefix, config.text_width, place, dtype),
        tokenizer=RandomTokenizer(codebook.to(place)),
        sampling=Sampling(cfg=2.0),
        device=place,
        dtype=dtype,
        weights_sha256={},
        drafters={"eagle": drafter},
    )
