"""What all decoders of a run share: a plug-in that changes it would change the rows of the others.

Two mistakes are looked for after each call of a decoder with parts that are not the project's own:
weights or buffers of the model were changed, or torch's default dtype or device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.config.schedule import Cell
from bench.data.errors import BenchError
from bench.records.study import differing
from bench.run.outcome import foreign
from decoders.api import ImageModel

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
DTYPE, DEVICE = "torch's default dtype", "torch's default device"


class SharedStateError(BenchError):
    """A decoder has changed what all decoders of a run share."""


class Guard:
    """The state of a model and of torch before any decoder has run."""

    def __init__(self, model: ImageModel, every: Sequence[Cell]) -> None:
        self.model, self.defaults = model, _defaults()
        self.known = self._now() if any(foreign(c.entry.spec) for c in every) else {}

    def check(self, cell: Cell) -> None:
        """Raises SharedStateError where a plug-in of the cell has changed any of it. torch's
        defaults are put back."""
        names = foreign(cell.entry.spec)
        if not names:
            return
        defaults = _defaults()
        torch.set_default_dtype(self.defaults[DTYPE])
        device = self.defaults[DEVICE]
        torch.set_default_device(None if device.type == "cpu" else device)
        found = self._now() | defaults
        if found != self.known:
            raise SharedStateError(
                f"{cell.entry.name} ({', '.join(names)}) has changed "
                f"{differing(self.known, found)}, which all decoders share. The run ends here, and "
                "no row that came after it is kept; leave that decoder out, or have it put back "
                "what it changes and work on a copy of the model"
            )

    @torch.inference_mode()
    def _now(self) -> dict[str, Any]:
        """torch's defaults; of each weight and buffer (shape, dtype, sum of the bits)."""
        tensors = dict(_tensors(self.model))
        sums = torch.stack([_sum(x) for x in tensors.values()]).tolist() if tensors else []
        each = zip(tensors.items(), sums, strict=True)
        return self.defaults | {name: (tuple(x.shape), x.dtype, y) for (name, x), y in each}


def _defaults() -> dict[str, Any]:
    return {DTYPE: torch.get_default_dtype(), DEVICE: torch.get_default_device()}


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
