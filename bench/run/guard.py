"""What all decoders of a run share: a plug-in that changes it would change the rows of the others.

After each call of a decoder with parts that are not the project's own, the weights and buffers of
the model and torch's default dtype and device are compared with what they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.config.schema import DecoderVariant
from bench.data.errors import BenchError
from bench.run.generate import foreign
from decoders.api import ImageModel

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
SHOWN = 3  # names in a message


class SharedStateError(BenchError):
    """A decoder has changed what all decoders of a run share."""


class Guard:
    """The state of a model and of torch before any decoder has run."""

    def __init__(self, model: ImageModel, every: Sequence[DecoderVariant]) -> None:
        self.model = model
        self.dtype, self.device = torch.get_default_dtype(), torch.get_default_device()
        self.before = self._state() if any(foreign(v.entry.spec) for v in every) else {}

    def check(self, variant: DecoderVariant) -> None:
        """Raises SharedStateError where a plug-in of the decoder has changed any of it. torch's
        defaults are put back."""
        names = foreign(variant.entry.spec)
        if not names:
            return
        now = self._defaults()
        torch.set_default_dtype(self.dtype)
        torch.set_default_device(None if self.device.type == "cpu" else self.device)
        now = self._state() | now
        changed = [
            name for name in {**now, **self.before} if now.get(name) != self.before.get(name)
        ]
        if changed:
            more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
            raise SharedStateError(
                f"{variant.name} ({', '.join(names)}) has changed {', '.join(changed[:SHOWN])}"
                f"{more}, which all decoders share. The run ends here, and no row that came after "
                "it is kept; leave that decoder out, or have it put back what it changes and work "
                "on a copy of the model"
            )

    def _defaults(self) -> dict[str, Any]:
        dtype, device = torch.get_default_dtype(), torch.get_default_device()
        return {"torch's default dtype": dtype, "torch's default device": device}

    @torch.inference_mode()
    def _state(self) -> dict[str, Any]:
        """torch's defaults; of each weight and buffer (shape, dtype, sum of the bits)."""
        tensors = dict(_tensors(self.model))
        sums = torch.stack([_sum(x) for x in tensors.values()]).tolist() if tensors else []
        each = zip(tensors.items(), sums, strict=True)
        return self._defaults() | {name: (tuple(x.shape), x.dtype, y) for (name, x), y in each}


def _tensors(model: ImageModel) -> Iterator[tuple[str, Tensor]]:
    """Weights and buffers of a model's parts: of modules, or of objects that have such members."""
    for name in ("target", "text", "tokenizer"):
        part = getattr(model, name)
        own = {"": part} if isinstance(part, nn.Module) else getattr(part, "__dict__", {})
        for member, module in own.items():
            if isinstance(module, nn.Module):
                place = f"{name}.{member}".rstrip(".")
                for key, tensor in (*module.named_parameters(), *module.named_buffers()):
                    yield f"{place}.{key}", tensor


def _sum(tensor: Tensor) -> Tensor:
    """int64, on the CPU: the sum of the bits as whole numbers."""
    if tensor.is_meta or not tensor.numel():
        return torch.zeros((), dtype=torch.long)
    bits = tensor.detach().contiguous().reshape(-1)
    bits = bits.view(INTEGERS[min(8, tensor.element_size())])
    return bits.sum(dtype=torch.long).cpu()
