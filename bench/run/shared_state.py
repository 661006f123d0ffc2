"""What all decoders of a run share: the model's weights, and torch's defaults.

A plug-in that changes them would change the rows of the other decoders. So after each call of a
decoder with a plug-in they are compared with what they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bench.errors import BenchError
from decoders.api import ImageModel

DTYPE, DEVICE = "torch's default dtype", "torch's default device"


class SharedStateError(BenchError):
    """A decoder has changed what all decoders of a run share."""


class SharedState:
    """before: torch's defaults, and by name the sum of the bytes of each weight and buffer of the
    model's modules; nothing where no decoder has a plug-in."""

    def __init__(self, model: ImageModel, guarded: bool) -> None:
        self.model = model
        self.before = self.read() if guarded else {}

    def require_unchanged(self, name: str, plug_ins: Sequence[str]) -> None:
        """Raises SharedStateError where a plug-in of the decoder `name` has changed anything."""
        after = self.read() if plug_ins else self.before
        if changed := [key for key, value in self.before.items() if after.get(key) != value]:
            torch.set_default_dtype(self.before[DTYPE])
            device = self.before[DEVICE]
            torch.set_default_device(None if device.type == "cpu" else device)
            raise SharedStateError(
                f"{name} ({', '.join(plug_ins)}) has changed {', '.join(changed[:3])}, "
                "which all decoders share. The run ends here, and no row that came after it is "
                "kept; leave that decoder out, or have it put back what it changes and work on a "
                "copy of the model"
            )

    @torch.inference_mode()
    def read(self) -> dict[str, Any]:
        state = {DTYPE: torch.get_default_dtype(), DEVICE: torch.get_default_device()}
        for part in ("target", "text", "tokenizer"):
            owner = getattr(self.model, part)
            members = {"": owner} if isinstance(owner, nn.Module) else vars(owner)
            modules = {name: one for name, one in members.items() if isinstance(one, nn.Module)}
            for member, module in modules.items():
                for name, tensor in module.state_dict().items():
                    data = tensor.contiguous().reshape(-1).view(torch.uint8)
                    state[f"{part}.{member}.{name}".replace("..", ".")] = int(data.sum())
        return state
