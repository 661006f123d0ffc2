"""A machine's measured rates, and machine.json, which keeps them beside the rows of a run.

Apart from `bench.measure.machine`, which measures them, so that a report needs no torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.records import write_atomically

MACHINE = "machine.json"
NOISY = 0.25  # repeats that lie so far apart say that something else runs here


@dataclass(frozen=True)
class MachineRates:
    """Rates of one device at one dtype and thread count. Bytes, operations and seconds, unscaled.

    spread: median over best repeat, less one, of the least steady of the three rates.
    """

    device: str
    name: str  # of the processor or GPU
    dtype: str  # of the matrix products
    threads: int
    large_bytes: int
    large_bytes_per_s: float
    weights_bytes: int
    weights_bytes_per_s: float
    operations_per_s: float  # one multiplication and one addition are two
    spread: float
    seconds: float  # that measuring took

    @property
    def bytes_per_s(self) -> float:
        """The rate of a floor: at which as many bytes as the weights have are read again and again,
        from a cache where they fit in one; no slower than main memory."""
        return max(self.weights_bytes_per_s, self.large_bytes_per_s)

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY

    def fits(self, device: str, name: str, dtype: str, threads: int, weights: int) -> bool:
        """Whether these are the rates of such a run."""
        mine = (self.device, self.name, self.dtype, self.threads, self.weights_bytes)
        return mine == (device, name, dtype, threads, weights)

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return (
            f"{self.name} ({self.device}, {threads}, {self.dtype}): reads "
            f"{self.weights_bytes_per_s / 1e9:.3g} GB/s where the weights are "
            f"({self.weights_bytes / 1e6:.3g} MB) and {self.large_bytes_per_s / 1e9:.3g} GB/s over "
            f"{self.large_bytes / 1e6:.0f} MB, multiplies {self.operations_per_s / 1e9:.3g} Gflop/s"
        )


def save_rates(rates: MachineRates, path: Path) -> None:
    """Writes machine.json; floats in full."""
    text = json.dumps(asdict(rates), indent=1).encode()
    write_atomically(path, lambda file: file.write(text + b"\n"))


def read_rates(path: Path) -> MachineRates | None:
    """The rates of machine.json; None where there is no such file, or one of other fields."""
    if not path.is_file():
        return None
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    if not isinstance(found, dict) or set(found) != {f.name for f in fields(MachineRates)}:
        return None
    return MachineRates(**found)
