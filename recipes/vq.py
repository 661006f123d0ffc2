"""Recipe of the embedded VQ tokenizer: L1 + MSE + colour + gradient loss, and an entropy term.

Objects cover a fifth of an image: their pixels weigh more. At 64 px the gradient loss keeps edges
without a GAN, and the entropy term keeps nearly every code in use, which makes the target's
distribution flat. The first steps run without quantisation, then the codebook starts from the
latents' k-means centres: else it takes thousands of steps to find colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from decoders.models.llamagen_vq import LlamaGenVQ, VQConfig
from decoders.tiny.render import SceneBatch, scene_batch
from decoders.training.trainer import Figures, TrainConfig, Trainer, autocast

VQ_CONFIG = VQConfig(
    codes=1024, dim=8, channels=32, ch_mult=(1, 2, 4), res_blocks=1, z_channels=64, grid=16
)
UNQUANTISED_STEPS = 150  # steps without quantisation
COLOUR_WEIGHT, GRADIENT_WEIGHT = 2.0, 0.25
ENTROPY_WEIGHT = 0.02
ENTROPY_TEMPERATURE = 0.02
COMMITMENT_WEIGHT = 0.25
OBJECT_PIXEL_WEIGHT = 4.0  # weight of an object's pixel over a background's


@dataclass(frozen=True)
class SceneBatches(Dataset[SceneBatch]):
    """`size` scenes per step, from index `offset` of the split train on."""

    size: int
    offset: int = 0

    def __getitem__(self, step: int) -> SceneBatch:
        first = self.offset + step * self.size
        return scene_batch("train", range(first, first + self.size))


def vq_loss(
    model: LlamaGenVQ, images: Tensor, cover: Tensor, quantise: bool
) -> tuple[Tensor, Figures]:
    """Computes the loss of images [B, 3, S, S] in [0, 1], and figures to show. cover [B, S, S]: how
    much of a pixel is an object's."""
    x = images * 2 - 1
    weights = 1 + (OBJECT_PIXEL_WEIGHT - 1) * cover[:, None]  # [B, 1, S, S]
    weights = weights / weights.mean()
    with autocast(x.device):
        z = model.quant_conv(model.encoder(x))  # [B, C, h, w]
    z = model.quantize.project(z.permute(0, 2, 3, 1))  # [B, h, w, C]
    extra = torch.zeros((), device=x.device)
    latent = z
    if quantise:
        table = model.codebook  # [V, C]
        affinity = z.reshape(-1, z.shape[-1]) @ table.T  # [n, V]
        quantized = F.embedding(affinity.detach().argmax(-1), table).view_as(z)
        extra = F.mse_loss(quantized, z.detach()) + COMMITMENT_WEIGHT * F.mse_loss(
            quantized.detach(), z
        )
        p = (affinity[::4] / ENTROPY_TEMPERATURE).softmax(-1)
        mean = p.mean(0)  # of the assignments: their mean entropy, less the entropy of their mean
        entropy = -(p * (p + 1e-8).log()).sum(-1).mean() + (mean * (mean + 1e-8).log()).sum()
        extra = extra + ENTROPY_WEIGHT * entropy
        latent = z + (quantized - z).detach()
    with autocast(x.device):
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
    """Sets the codebook to centres of the latents of 128 scenes: k-means on the sphere."""
    images = torch.from_numpy(scene_batch("train", range(900_000, 900_128)).images)
    images = images.to(model.quantize.embedding.weight.device)
    z = torch.cat([model.latents(part * 2 - 1).flatten(0, 2) for part in images.split(32)])
    spread = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    centres = z[spread[: model.config.codes]]  # [V, C]
    for _ in range(rounds):
        nearest = (z @ centres.T).argmax(-1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, z)
        empty = sums.norm(dim=-1) == 0
        centres = F.normalize(torch.where(empty[:, None], centres, sums), dim=-1)
    model.quantize.embedding.weight.copy_(centres)


@torch.no_grad()
def evaluate(model: LlamaGenVQ, count: int) -> dict[str, float]:
    """Measures PSNR (dB) and codebook use on the first scenes of the split valid."""
    device = model.quantize.embedding.weight.device
    squared, hits = [], torch.zeros(model.config.codes, device=device)
    for images in torch.from_numpy(scene_batch("valid", range(count)).images).split(64):
        images = images.to(device)
        codes = model.encode(images)
        squared.append((model.decode(codes) - images).square().mean((1, 2, 3)))
        hits += torch.bincount(codes.flatten(), minlength=model.config.codes)
    share = hits / hits.sum()
    return {
        "valid_psnr_db": float((-10 * torch.cat(squared).log10()).mean()),
        "valid_perplexity": float((-(share * (share + 1e-12).log()).sum()).exp()),
        "valid_codes_used": float((hits > 0).sum()),
    }


def train(
    config: TrainConfig, folder: Path, device: torch.device
) -> tuple[LlamaGenVQ, dict[str, Any]]:
    """Trains the tokenizer; returns it with its figures."""
    torch.manual_seed(config.seed)
    model = LlamaGenVQ(VQ_CONFIG).to(device)
    trainer = Trainer(model, config, folder)
    batches = trainer.batches(SceneBatches(config.batch))

    def losses(step: int, share: float) -> tuple[Tensor, Figures]:
        if step == UNQUANTISED_STEPS:
            start_codebook(model)
        scenes = next(batches)
        images, cover = (torch.from_numpy(x).to(device) for x in (scenes.images, scenes.cover))
        return vq_loss(model, images, cover, quantise=step >= UNQUANTISED_STEPS)

    return model, trainer.fit(losses, lambda: evaluate(model, config.held_out))
