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

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from bench.data.files import write_text
from bench.measure.machine_rates import MACHINE, MachineRates, measure_rates, read_rates
from decoders.api import ImageModel
from decoders.cache import ALIGNED


@dataclass(frozen=True)
class TargetCost:
    """The cost of a target's forwards. weights: their bytes; numbers: in them (W); slot: bytes of a
    cache slot of a row; attention: 4 n D; slots: S half-way through an image, the mean over its
    steps; note: what makes the floor uncertain."""

    weights: int
    numbers: int
    slot: float
    attention: int
    slots: float
    note: str = ""

    def work(self, rows: int, codes: int = 1) -> tuple[float, float]:
        """The bytes and the operations of a forward over R `rows` of T `codes`."""
        slots = self.slots + codes
        operations = rows * codes * (2 * self.numbers + self.attention * slots)
        return self.weights + rows * slots * self.slot, operations

    def floor_ms(self, rates: MachineRates, rows: int, codes: int = 1) -> float:
        """The longer of what reading and computing take, in milliseconds."""
        size, operations = self.work(rows, codes)
        return 1e3 * max(size / rates.step_bytes_per_s, operations / rates.operations_per_s)


def target_cost(model: ImageModel) -> TargetCost | str:
    """The cost of a model's target; why it is not known, where the target has no parameters."""
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
        slots=target.prefix + target.length / 2,
        note=note,
    )


def measure_machine(folder: Path, model: ImageModel, name: str) -> MachineRates | None:
    """Measures the machine now; returns the best rates of the run so far, which machine.json keeps.
    None for a model whose floor is not known: nothing needs the rates then.

    name: the processor or GPU. A run folder belongs to one machine, model and backend
    (`bench.records.study`), so the rates in it are comparable.
    """
    cost, path = target_cost(model), folder / MACHINE
    if isinstance(cost, str):
        return None
    size, _ = cost.work(model.sampling.guidance_rows)
    best = asdict(read_rates(path) or MachineRates(name))
    best |= {rate: max(best[rate], now) for rate, now in measure_rates(model, round(size)).items()}
    write_text(path, json.dumps(best, indent=1) + "\n")
    return MachineRates(**best)
