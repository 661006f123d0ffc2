"""The floor of a target's forward: the least seconds that a machine needs for it.

Roofline model (Williams, Waterman, Patterson 2009): seconds >= max(bytes / bandwidth, operations /
rate). Of R rows of T codes each that see S cache slots, with W numbers in the weights of layers and
head, n layers and width D:

    bytes      = weights + R S (keys and values of a slot)
    operations = 2 R T W + 4 n R T S D             products; attention

Activations are left out, and so is everything but matrix products: a floor is a lower bound. Of a
target that does not name its `layers` and its head, `output`, all parameters count but embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from bench.measure.rates import MachineRates, Watch
from decoders.api import ImageModel
from decoders.cache import ALIGNED


class Work(NamedTuple):
    """What a forward needs. bytes: read from memory; operations: multiplications and additions."""

    bytes: float
    operations: float

    def floor_ms(self, rates: MachineRates) -> float:
        """The larger of what reading and computing take, in milliseconds."""
        computing = self.operations / rates.operations_per_s
        return 1e3 * max(self.bytes / rates.step_bytes_per_s, computing)


@dataclass(frozen=True)
class TargetCost:
    """What forwards of a target cost. weights: their bytes; numbers: in them (W); slot: bytes of a
    cache slot of a row; attention: 4 n D; seen: S half-way through an image, the mean over its
    steps; note: what is not known for sure."""

    weights: int
    numbers: int
    slot: float
    attention: int
    seen: float
    note: str = ""

    def work(self, rows: int, codes: int = 1) -> Work:
        """A forward over R `rows` of T `codes`."""
        slots = self.seen + codes
        operations = rows * codes * (2 * self.numbers + self.attention * slots)
        return Work(self.weights + rows * slots * self.slot, operations)


def target_cost(model: ImageModel) -> TargetCost | str:
    """Of a model's target; why it is not known, where there is no torch module in it."""
    target: Any = model.target
    name, note = type(target).__name__, ""
    parts = [target.layers, target.output]
    if not all(isinstance(part, nn.Module) for part in parts):
        members = [target] if isinstance(target, nn.Module) else vars(target).values()
        parts = [part for part in members if isinstance(part, nn.Module)]
        note = (
            f"the floor counts all parameters of {name} but embeddings; for a closer one it names "
            "its `layers` and its head `output` (decoders.api.Target)"
        )
    modules = dict.fromkeys(module for part in parts for module in part.modules())
    weights = {
        id(weight): weight
        for module in modules
        if not isinstance(module, nn.Embedding)
        for weight in module.parameters(recurse=False)
    }.values()
    if not weights:
        return f"no floor known: the target {name} has no parameters (torch.nn.Module)"
    cache = target.new_cache(1, ALIGNED).data  # [layers, 2, R, H, S, d]
    return TargetCost(
        weights=sum(weight.nbytes for weight in weights),
        numbers=sum(weight.numel() for weight in weights),
        slot=cache.nbytes / ALIGNED,
        attention=4 * cache.shape[0] * target.width,
        seen=target.prefix + target.length / 2,
        note=note,
    )


def watch_of(folder: Path, model: ImageModel, name: str) -> Watch | None:
    """Measures the machine of a run; None for a model whose floor is not known: nothing asks for
    rates then. name: of the processor or GPU."""
    cost = target_cost(model)
    if isinstance(cost, str):
        return None
    return Watch(folder, model, round(cost.work(model.sampling.guidance_rows).bytes), name)
