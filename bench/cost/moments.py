"""Measures the machine at several moments of a run; machine.json keeps them and the best rates.

Why: a floor must be a lower bound, and whatever else runs while the machine is measured raises it.
One moment may be a busy one; the best of several, in every session of a run, is less likely to be.
A neighbour that stays all run long is seen by none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from bench.cost.machine import measure_rates
from bench.cost.rates import MACHINE, MachineRates, read_rates, save_rates
from bench.cost.work import Unknown, step_bytes, target_net
from decoders.api import ImageModel

BUDGET = 0.04  # seconds a kernel is repeated for: half a second for a moment on a CPU
BETWEEN = 4  # moments before and between parts of a run; one more comes after


@dataclass(frozen=True)
class Watch:
    """Of the machine under one model. folder: where machine.json lies; step: bytes that an AR
    step reads; name: of the processor or GPU."""

    folder: Path
    model: ImageModel
    step: int
    name: str

    def known(self) -> MachineRates | None:
        """The best of all moments so far, of earlier sessions too; None where machine.json is not
        there, or is of another machine, dtype, thread count or model."""
        found = read_rates(self.folder / MACHINE)
        dtype = str(self.model.dtype).removeprefix("torch.")
        threads, device = torch.get_num_threads(), str(self.model.device)
        fits = found is not None and found.fits(device, self.name, dtype, threads, self.step)
        return found if fits else None

    def look(self) -> MachineRates:
        """Measures now; returns the best of all moments so far."""
        model, before = self.model, self.known()
        rates = measure_rates(model.device, model.dtype, self.step, self.name, BUDGET)
        best = rates if before is None else before.joined(rates)
        save_rates(best, self.folder / MACHINE)
        return best


def watch_of(folder: Path, model: ImageModel, name: str) -> Watch | None:
    """None for a model whose floor is not known: nothing asks for the machine's rates then."""
    net = target_net(model)
    return None if isinstance(net, Unknown) else Watch(folder, model, step_bytes(net, model), name)


def moments_of(parts: int) -> set[int]:
    """Before which of so many parts of a run to measure: at most `BETWEEN`, evenly spread, the
    first among them."""
    count = min(BETWEEN, parts)
    return {number * parts // count for number in range(count)}
