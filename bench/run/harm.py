"""What one decoder must not do to the others of a run: change the model, or end the process again
and again.

The weights are looked at after each call of a decoder that is not the project's own alone. An image
that kills its process (out of memory, a crash in native code) would kill the next one too, so what
is about to be decoded is noted in a file that only a process that dies leaves behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.config.schedule import Batch, Cell
from bench.data.errors import BenchError
from bench.data.files import write_atomically
from bench.run.outcome import foreign
from decoders.api import ImageModel

CHUNK = 1 << 20  # elements that are summed at once
DEATHS = 3  # processes that die in a call until it is not tried any more
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class HarmError(BenchError):
    """A decoder has changed the model that all share, or its processes have died."""


class Weights:
    """A model's parameters, buffers and codebook, and what runs with each of its modules."""

    def __init__(self, model: ImageModel, every: Sequence[Cell]) -> None:
        self.model = model
        self.known = prints(model) if any(foreign(c.entry.spec) for c in every) else {}

    def require_same(self, cell: Cell) -> None:
        """Raises HarmError, where a plug-in of the cell may have changed them and they are not as
        they were."""
        names = foreign(cell.entry.spec)
        if not names:
            return
        found = prints(self.model)
        changed = [key for key in {**self.known, **found} if self.known.get(key) != found.get(key)]
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise HarmError(
                f"{cell.entry.name} ({', '.join(names)}) has changed the model that all decoders "
                f"share: {', '.join(changed[:3])}{more}. The run ends here, and no row that came "
                "after it is kept; leave that decoder out, or have it work on a copy"
            )


@torch.inference_mode()
def prints(model: ImageModel) -> dict[str, Any]:
    """name -> shape, dtype and a sum over the bits of each tensor, in which places count; of each
    module its forward, hooks and mode."""
    found: dict[str, Any] = {}
    sums: dict[str, Tensor] = {}
    for part in ("target", "text", "tokenizer"):
        for place, module in _modules(getattr(model, part), part):
            hooks = (*module._forward_hooks, *module._forward_pre_hooks)
            forward = type(module).forward, vars(module).get("forward")
            found[f"what runs in {place}"] = (forward, hooks, module.training)
            own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            sums |= {f"{place}.{name}": tensor for name, tensor in own}
    if model.draws:
        sums["the codebook"] = model.codebook
    each = torch.stack([_sum(tensor) for tensor in sums.values()]).tolist() if sums else []
    for (name, tensor), total in zip(sums.items(), each, strict=True):
        found[name] = (tuple(tensor.shape), tensor.dtype, total)
    return found


def _modules(owner: Any, place: str) -> Iterator[tuple[str, nn.Module]]:
    """Those of a part: itself, or what it has as members."""
    if isinstance(owner, nn.Module):
        for name, module in owner.named_modules():
            yield f"{place}.{name}".rstrip("."), module
    else:
        for name, member in getattr(owner, "__dict__", {}).items():
            if isinstance(member, nn.Module):
                yield from _modules(member, f"{place}.{name}")


def _sum(tensor: Tensor) -> Tensor:
    """int64, on the CPU: the bits as whole numbers, each times an odd number of its place."""
    if tensor.is_meta or not tensor.numel():
        return torch.zeros((), dtype=torch.long)
    flat = tensor.detach().contiguous().reshape(-1).view(INTEGERS[min(8, tensor.element_size())])
    total = flat.new_zeros((), dtype=torch.long)
    for part in flat.split(CHUNK):
        odd = torch.arange(1, 2 * len(part), 2, device=part.device)
        total = total * 31 + (part.long() * odd).sum()
    return total.cpu()


class Trying:
    """Notes what is being decoded. by_image: deaths count for an image (of a worker, which goes on
    with the others); else for a decoder, until one of its calls comes to an end."""

    def __init__(self, path: Path, by_image: bool) -> None:
        self.path, self.by_image = path, by_image
        self.left, self.died = None, 0  # what the process before this one died in, how many did
        try:
            found = json.loads(path.read_bytes())
            self.left, self.died = found["what"], int(found["tries"])
        except (OSError, ValueError, TypeError, KeyError):  # nobody died, or while writing it
            pass

    def deaths(self, batch: Batch) -> int:
        """How many processes have died in this call, one after the other."""
        return self.died if self.left == self._what(batch) else 0

    def _what(self, batch: Batch) -> list[str]:
        return [batch.cell.key, batch.stem(batch.indices[0]) if self.by_image else ""]

    @contextmanager
    def __call__(self, batch: Batch) -> Iterator[None]:
        """Around a call. Raises HarmError where `DEATHS` processes have died in it."""
        what, died = self._what(batch), self.deaths(batch)
        if died >= DEATHS:
            self.path.unlink(missing_ok=True)
            raise HarmError(
                f"{died} processes died while they decoded it (killed, out of memory?); "
                "retry_failed=true tries again"
            )
        note = json.dumps({"what": what, "tries": died + 1}).encode()
        write_atomically(self.path, lambda file: file.write(note), sync=False)
        try:
            yield
        finally:
            self.path.unlink(missing_ok=True)
            self.left = None if died else self.left
