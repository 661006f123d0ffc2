"""The EAGLE drafter's loss (2401.15077; METHODS 6): features by SmoothL1, distributions by soft CE.

The distributions are compared *after* guidance, for that is where drafts are accepted: rows come in
pairs, conditional and unconditional, and the soft cross-entropy is between the guided target p and
the guided draft q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.api import TextFeatures
from decoders.distribution import guided
from decoders.drafters.eagle import EagleNet
from decoders.models.transformer import Transformer, prefix_mask


@dataclass(frozen=True)
class EagleLoss:
    """Weights of the loss. feature_noise: width of the uniform noise added to the input
    features."""

    cfg: float
    soft_weight: float = 0.1
    feature_noise: float = 0.2


@dataclass(frozen=True)
class Paired:
    """Teacher-forced target states of B images, conditional rows then unconditional ones."""

    codes: Tensor  # [B, L]
    hidden: Tensor  # [2 B, P + L - 1, D] float32
    text: TextFeatures  # of B captions


@torch.no_grad()
def paired_states(target: Transformer, text: TextFeatures, codes: Tensor) -> Paired:
    """The target's states with and without the caption."""
    rows, drop = text.paired(2)
    with torch.autocast(codes.device.type, torch.bfloat16):
        hidden = target.hidden_states(rows, codes.repeat(2, 1), drop)
    return Paired(codes, hidden.float(), text)


def predict(net: EagleNet, states: Paired, noise: Tensor | None = None) -> Tensor:
    """Drafted features [2 B, L - 1, D]: entry j is the drafter's guess of the state after code
    j."""
    rows, drop = states.text.paired(2)
    ids = net.token_ids(states.codes).repeat(2, 1)  # [2 B, L]
    ids = torch.cat([net.prefix_ids(rows, drop), ids], 1)  # [2 B, P - 1 + L]
    valid = F.pad(net.valid(rows, drop), (0, states.codes.shape[1]), value=True)
    features = states.hidden if noise is None else states.hidden + noise
    out = net(ids, features, prefix_mask(valid, net.cfg))
    return out[:, net.cfg.prefix - 1 : -1]


def draft_logits(target: Transformer, features: Tensor, cfg: float) -> Tensor:
    """Guided logits [B, T, V] of paired features [2 B, T, D]."""
    return guided(target.logits(features.to(target.output.weight.dtype)), cfg)


def eagle_loss(
    net: EagleNet, target: Transformer, states: Paired, loss: EagleLoss, generator: torch.Generator
) -> tuple[Tensor, dict[str, float]]:
    """Scalar loss and its parts; `overlap` is the mean of sum_x min(p, q) over places: the share of
    single drafts that the exact rule accepts."""
    shape = states.hidden.shape
    noise = torch.rand(shape, generator=generator).to(states.hidden.device) - 0.5
    with torch.autocast(states.codes.device.type, torch.bfloat16):
        drafted = predict(net, states, noise * loss.feature_noise)  # [2 B, L - 1, D]
        truth = states.hidden[:, net.cfg.prefix :]  # [2 B, L - 1, D]
        q = draft_logits(target, drafted, loss.cfg).log_softmax(-1)
        with torch.no_grad():
            p = draft_logits(target, truth, loss.cfg).softmax(-1)
    regression = F.smooth_l1_loss(drafted.float(), truth)
    soft = -(p * q).sum(-1).mean()
    overlap = torch.minimum(p, q.detach().exp()).sum(-1).mean()
    return regression + loss.soft_weight * soft, {
        "regression": float(regression.detach()),
        "soft": float(soft.detach()),
        "overlap": float(overlap),
    }
