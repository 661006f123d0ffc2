"""A machine's measured rates, and machine.json, which keeps them with the rows of a run.

Why of several moments: what else runs on a machine only ever lowers its rates, and a floor from a
lowered rate is too high, so that a slow baseline passes as fair. The best that was seen counts.

Apart from `bench.measure.machine`, which measures them, so that a report needs no torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.data.files import write_text

MACHINE = "machine.json"
BUSY = 0.8  # of the best bandwidth that this kind of host has shown
NOISY = 0.25  # repeats that lie so far apart say that something else runs here
RATES = ("large_bytes_per_s", "step_bytes_per_s", "operations_per_s")


@dataclass(frozen=True)
class Moment:
    """What was measured at one moment. at: UTC, ISO 8601; the rest as in `MachineRates`."""

    at: str
    large_bytes_per_s: float
    step_bytes_per_s: float
    operations_per_s: float
    spread: float


@dataclass(frozen=True)
class MachineRates:
    """Rates of one device at one dtype and thread count. Bytes, operations and seconds, unscaled.

    spread: median over best repeat, less one, of the least steady of the three rates, at the
    moments that the rates are of. moments: all that were measured, of which each rate is the best.
    """

    device: str
    name: str  # of the processor or GPU
    dtype: str  # of the matrix products
    threads: int
    large_bytes: int
    large_bytes_per_s: float
    step_bytes: int  # what an AR step reads half-way through an image: weights, keys, values
    step_bytes_per_s: float
    operations_per_s: float  # one multiplication and one addition are two
    spread: float
    seconds: float  # that measuring took
    moments: tuple[Moment, ...] = ()
    shown: float = 0.0  # the best large_bytes_per_s that this kind of host has shown to any run

    @property
    def busy(self) -> bool:
        """Whether the machine reads more slowly than its kind is known to."""
        return self.large_bytes_per_s < BUSY * self.shown

    @property
    def bytes_per_s(self) -> float:
        """The rate of a floor: at which as many bytes as an AR step reads are read again and again,
        from a cache where they fit in one; no slower than main memory."""
        return max(self.step_bytes_per_s, self.large_bytes_per_s)

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY

    @property
    def _every(self) -> tuple[Moment, ...]:
        """The moments; these rates as one, where an older file does not say."""
        own = {name: getattr(self, name) for name in RATES}
        return self.moments or (Moment(at="", spread=self.spread, **own),)

    @property
    def apart(self) -> float:
        """How far the slowest moment lies below the best, as a share of it, of the rate that moved
        most."""
        return max(
            1 - min(getattr(m, name) for m in self._every) / getattr(self, name) for name in RATES
        )

    def joined(self, other: MachineRates) -> MachineRates:
        """The best of two measurements of one machine."""
        every = (*self._every, *other._every)
        best = {name: max(getattr(m, name) for m in every) for name in RATES}
        kept = [m for m in every if any(getattr(m, n) == rate for n, rate in best.items())]
        return replace(
            self,
            **best,
            large_bytes=max(self.large_bytes, other.large_bytes),
            spread=max(m.spread for m in kept),
            seconds=self.seconds + other.seconds,
            moments=every,
        )

    def fits(self, device: str, name: str, dtype: str, threads: int, step: int) -> bool:
        """Whether these are the rates of such a run."""
        mine = (self.device, self.name, self.dtype, self.threads, self.step_bytes)
        return mine == (device, name, dtype, threads, step)

    @property
    def rates(self) -> str:
        """`reads 21.3 GB/s, multiplies 982 Gflop/s`, and whether it was busy."""
        text = f"reads {self.bytes_per_s / 1e9:.3g} GB/s, multiplies "
        text += f"{self.operations_per_s / 1e9:.3g} Gflop/s"
        shown = f" (busy: this kind of host has shown {self.shown / 1e9:.3g} GB/s)"
        return text + shown * self.busy

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        count, best = len(self.moments), ""
        if count > 1:
            best = f"; each the best of {count} moments, the slowest {self.apart:.0%} lower"
        return (
            f"{self.name} ({self.device}, {threads}, {self.dtype}): reads "
            f"{self.step_bytes_per_s / 1e9:.3g} GB/s over what an AR step reads "
            f"({self.step_bytes / 1e6:.3g} MB) and {self.large_bytes_per_s / 1e9:.3g} GB/s over "
            f"{self.large_bytes / 1e6:.0f} MB, multiplies {self.operations_per_s / 1e9:.3g} Gflop/s"
            + best
        )


def save_rates(rates: MachineRates, path: Path) -> None:
    """Writes machine.json; floats in full."""
    write_text(path, json.dumps(asdict(rates), indent=1) + "\n")


def read_rates(path: Path) -> MachineRates | None:
    """The rates of machine.json; None where there is no such file, or one of other fields."""
    if not path.is_file():
        return None
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        moments = tuple(Moment(**one) for one in found.pop("moments", ()))
        return MachineRates(**found, moments=moments)
    except (ValueError, TypeError, KeyError):
        return None
