"""The embedded model at another size: its weights, grown so that it computes the same function.

Why: speculative decoding pays where a step waits for memory, and how large a model must be for that
depends on the machine. The small model lives in a processor's cache. Grown, it draws the same
images and reads as many bytes per step as a size asks for, so that the regime can be chosen, and
nothing but the regime changes. Nothing is trained here, and no weights are stored.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch

from decoders.api import DecoderError, ImageModel
from decoders.models.eagle_net import EagleNet
from decoders.models.transformer import Transformer, cast
from decoders.tiny import bundle
from decoders.tiny.growth import grow, grow_drafter

SEED = 0  # of the entries that nothing reads yet


def load(
    device: str = "cpu",
    dtype: str = "bfloat16",
    checkpoint: str | None = None,
    drafters: bool = True,
    width: int = 384,
    layers: int = 16,
    ffn: int = 1024,
) -> ImageModel:
    """The embedded model of `checkpoint` (None: the shipped one) with a target of this size, and
    its drafter likewise. Heads keep their width, so there are more of them. Raises DecoderError on
    a size that it cannot be grown to."""
    given = bundle.load(device, dtype, checkpoint, drafters)
    exact = bundle.load("cpu", "float32", checkpoint, drafters)
    old = exact.target
    assert isinstance(old, Transformer)
    if width % old.cfg.head_dim:
        raise DecoderError(
            f"width must be a multiple of {old.cfg.head_dim}, the width of a head, found {width}"
        )
    config = replace(old.cfg, width=width, layers=layers, ffn=ffn, heads=width // old.cfg.head_dim)
    built = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        target = Transformer(config)
        grow(old, target)
        if drafters:
            net = EagleNet(config)
            grow_drafter(exact.drafters["eagle"], net)
            built["eagle"] = cast(net.eval().requires_grad_(False), given.device, given.dtype)
    size = hashlib.sha256(f"{width} {layers} {ffn} {SEED}".encode()).hexdigest()
    return replace(
        given,
        name="tiny_grown",
        target=cast(target.eval().requires_grad_(False), given.device, given.dtype),
        weights_sha256=given.weights_sha256 | {"size": size},
        drafters=built,
    )
