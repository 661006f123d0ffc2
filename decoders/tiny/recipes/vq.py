"""Recipe of the embedded VQ tokenizer: L1 + MSE + colour + gradient loss, and an entropy term.

Objects are what captions speak of and cover a fifth of an image: their pixels weigh more. At 64 px
the gradient loss keeps edges without a GAN, and the entropy term keeps nearly every code in use,
which makes the target's distribution as flat as the papers describe. The first steps run without
quantisation, then the codebook starts from the latents' k-means centres: quantised from the first
step, the tokenizer takes thousands of steps to find colour.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.models.vq.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.tiny.scenes import scene_batch
from decoders.training.loop import Loop, fit
from decoders.training.optimise import optimisers

CONFIG = VQConfig(
    codes=1024, dim=8, channels=32, ch_mult=(1, 2, 4), res_blocks=1, z_channels=64, grid=16
)
BATCH = 16
STEPS = 2500
WARMUP = 150  # steps without quantisation
COLOUR_WEIGHT, GRADIENT_WEIGHT = 2.0, 0.25
ENTROPY_WEIGHT = 0.02
ENTROPY_TEMPERATURE = 0.02
COMMITMENT = 0.25
OBJECTS = 4.0  # weight of an object's pixel over a background's


def images_of(split: str, first: int, count: int) -> Tensor:
    """[count, 3, 64, 64] float32 in [0, 1]."""
    return weighted_images_of(split, first, count)[0]


def weighted_images_of(split: str, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Images as `images_of` and their pixels' weights [count, 1, 64, 64] of mean 1."""
    scenes = scene_batch(split, range(first, first + count))
    weights = 1 + (OBJECTS - 1) * torch.from_numpy(scenes.cover)[:, None]
    return torch.from_numpy(np.ascontiguousarray(scenes.images)), weights / weights.mean()


def entropy_term(affinity: Tensor) -> Tensor:
    """Mean entropy of the assignments minus entropy of their mean, from [n, V] cosine logits."""
    p = affinity.softmax(-1)
    mean = p.mean(0)
    return -(p * (p + 1e-8).log()).sum(-1).mean() + (mean * (mean + 1e-8).log()).sum()


def vq_loss(
    model: LlamaGenVQ, images: Tensor, weights: Tensor, quantise: bool
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """The loss of images and weights as `weighted_images_of` gives them, and figures to show."""
    x = images * 2 - 1
    with torch.autocast(x.device.type, torch.bfloat16):
        z = model.quant_conv(model.encoder(x))  # [B, C, h, w]
    z = model.quantize.project(z.permute(0, 2, 3, 1))  # [B, h, w, C]
    extra = torch.zeros((), device=x.device)
    latent = z
    if quantise:
        table = model.codebook  # [V, C]
        affinity = z.reshape(-1, z.shape[-1]) @ table.T  # [n, V]
        quantized = F.embedding(affinity.detach().argmax(-1), table).view_as(z)
        extra = F.mse_loss(quantized, z.detach()) + COMMITMENT * F.mse_loss(quantized.detach(), z)
        extra = extra + ENTROPY_WEIGHT * entropy_term(affinity[::4] / ENTROPY_TEMPERATURE)
        latent = z + (quantized - z).detach()
    with torch.autocast(x.device.type, torch.bfloat16):
        out = model.render(latent).float()
    apart = out - x
    gradient = sum(
        (weights.narrow(d, 1, x.shape[d] - 1) * apart.diff(dim=d).abs()).mean() for d in (2, 3)
    )
    colour = (F.avg_pool2d(weights, 4) * F.avg_pool2d(apart, 4).square()).mean()
    pixel = (weights * (apart.abs() + apart.square())).mean()
    loss = pixel + COLOUR_WEIGHT * colour + GRADIENT_WEIGHT * gradient + extra
    mse = F.mse_loss(out.detach().clamp(-1, 1), x).item() / 4
    return loss, {"psnr": -10 * float(np.log10(mse)), "codebook": extra.detach()}


@torch.no_grad()
def start_codebook(model: LlamaGenVQ, rounds: int = 12) -> None:
    """Spherical k-means of the latents of 128 scenes, from evenly spaced latents."""
    z = torch.cat(
        [
            model.latents(images_of("train", 900_000 + i, 32) * 2 - 1).flatten(0, 2)
            for i in range(0, 128, 32)
        ]
    )  # [n, C]
    spread = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    centres = z[spread[: model.cfg.codes]]  # [V, C]
    for _ in range(rounds):
        nearest = (z @ centres.T).argmax(-1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, z)
        empty = sums.norm(dim=-1) == 0
        centres = F.normalize(torch.where(empty[:, None], centres, sums), dim=-1)
    model.quantize.embedding.weight.copy_(centres)


@torch.no_grad()
def held_out(model: LlamaGenVQ, count: int = 512) -> dict[str, float]:
    """PSNR (dB) and codebook use on the ``valid`` split."""
    squared, hits = [], torch.zeros(model.cfg.codes)
    for first in range(0, count, 64):
        images = images_of("valid", first, 64)
        codes = model.encode(images)
        squared.append((model.decode(codes) - images).square().mean((1, 2, 3)))
        hits += torch.bincount(codes.flatten(), minlength=model.cfg.codes)
    share = hits / hits.sum()
    perplexity = float((-(share * (share + 1e-12).log()).sum()).exp())
    psnr = float((-10 * torch.cat(squared).log10()).mean())
    return {
        "valid_psnr_db": psnr,
        "valid_perplexity": perplexity,
        "valid_codes_used": float((hits > 0).sum()),
    }


def train(out_dir: Path, *, seed: int = 0, **settings: Any) -> tuple[LlamaGenVQ, dict[str, Any]]:
    """Trains the tokenizer; returns it with its model-card figures. settings: steps and
    budget_seconds of the `Loop`."""
    torch.manual_seed(seed)
    model = LlamaGenVQ(CONFIG)
    loop = Loop("vq", out_dir, **{"steps": STEPS} | settings)

    def batch(step: int) -> tuple[Tensor, Tensor, bool]:
        if step == WARMUP:
            start_codebook(model)
        return *weighted_images_of("train", step * BATCH, BATCH), step >= WARMUP

    fit(
        loop,
        model,
        optimisers(model, lr=5e-4, muon_lr=0.0, decay=1e-4),
        batch,
        lambda made, share: vq_loss(model, *made),
    )
    spent = {"images": loop.done * BATCH, "steps": loop.done, "seconds": loop.seconds}
    return model, spent | held_out(model.eval())
