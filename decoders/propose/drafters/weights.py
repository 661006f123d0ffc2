"""Weights of drafters with a class of their own: the model's, by name, or a folder that a learner's
`save` wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decoders.api import DecoderError, ImageModel
from decoders.models.checkpoint import assign
from decoders.models.weights import load_into, read_tensors, write_weights

WEIGHTS = "model.safetensors"
# Of nets whose layers are no operators of the CPU kernel: compiled, a product rounds to half
# precision elsewhere than it does alone, and drafts would be other codes.
FLOAT = torch.float32


@dataclass(frozen=True)
class Stored:
    """A file of weights that comes with a model (`ImageModel.drafters`)."""

    path: Path
    sha256: str


def trained(
    model: ImageModel,
    checkpoint: str | None,
    build: Callable[[ImageModel], Any],
    dtype: torch.dtype | None = None,
) -> Any:
    """The net that `build` makes for the model, frozen, on its device and in its dtype (or in
    `dtype`), with the weights of `checkpoint`: a name of the model's drafters or a folder; None: as
    it is made.

    A named net is loaded once, however many decoders use it. Raises DecoderError where there is no
    such drafter, or its weights are of another net.
    """
    found = None if checkpoint is None else model.drafters.get(checkpoint)
    with torch.random.fork_rng(devices=[]):  # what is untrained is the same every time
        torch.manual_seed(0)
        net = build(model)
    if isinstance(found, type(net)):
        return found
    if checkpoint is not None:
        fill(net, model, checkpoint)
    for name, value in list(net.named_parameters()):
        assign(net, name, value.detach().to(model.device, dtype or model.dtype))
    for name, table in list(net.named_buffers()):  # keep their types: places, bars, rotations
        net.register_buffer(name, table.to(model.device), persistent=False)
    net = net.eval().requires_grad_(False)
    if isinstance(found, Stored):
        model.drafters[str(checkpoint)] = net
        model.weights_sha256[str(checkpoint)] = found.sha256
    return net


def fill(net: nn.Module, model: ImageModel, checkpoint: str) -> None:
    """Loads the weights of a checkpoint, as `trained`, into a net. Raises DecoderError."""
    found = model.drafters.get(checkpoint)
    if isinstance(found, nn.Module):
        net.load_state_dict({name: value.float() for name, value in found.state_dict().items()})
        return
    path, sha256 = Path(checkpoint) / WEIGHTS, None
    if isinstance(found, Stored):
        path, sha256 = found.path, found.sha256
    elif not path.exists():
        raise DecoderError(
            f"model {model.name!r} has no drafter {checkpoint!r}; it has: "
            f"{', '.join(model.drafters) or 'none'}. Train it (`make tiny`), or give the folder "
            f"that `bench train` wrote: expected {path}"
        )
    load_into(net, read_tensors(path, sha256), str(path))


def save(net: nn.Module, folder: Path) -> str:
    """Writes what `trained` reads of a folder; returns the file's SHA-256."""
    return write_weights(net, folder / WEIGHTS)
