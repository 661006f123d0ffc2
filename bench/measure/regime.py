"""What bounds a forward, reading or arithmetic, by how many codes it is over.

Why: drafts pay where an AR step waits for memory, since a forward over more codes then costs little
more. By `bench.measure.roofline` a forward over n codes per row reads c + e n bytes (weights and
head once, a key and a value per code) and takes a n + b n^2 operations (products, and attention of
every code to every other). Two forwards therefore give the whole curve.

Apart from the roofline, so that a report needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

MEMORY, CACHE = "memory", "the processor's cache"
FASTER = 1.5  # a rate so far above main memory's is a cache's


class Rates(Protocol):
    """What a floor needs of a machine, measured or from a data sheet."""

    @property
    def bytes_per_s(self) -> float: ...

    @property
    def operations_per_s(self) -> float: ...


@dataclass(frozen=True)
class Known:
    """Rates as a file has them."""

    bytes_per_s: float
    operations_per_s: float


@dataclass(frozen=True)
class Point:
    """A forward over `codes` codes per row."""

    codes: float
    bytes: float
    operations: float


@dataclass(frozen=True)
class Growth:
    """A forward over n codes: bytes `fixed` + `each` n, operations `linear` n + `square` n^2."""

    fixed: float
    each: float
    linear: float
    square: float

    @classmethod
    def through(cls, one: Point, other: Point | None = None) -> Growth:
        """From the forwards over two counts of codes. From one alone: bytes that stay as they are
        and operations that grow with the codes, nearly right for few codes."""
        if other is None:
            return cls(one.bytes, 0.0, one.operations / one.codes, 0.0)
        apart = other.codes - one.codes
        each = (other.bytes - one.bytes) / apart
        square = (other.operations / other.codes - one.operations / one.codes) / apart
        linear = one.operations / one.codes - square * one.codes
        return cls(one.bytes - each * one.codes, each, linear, square)

    def at(self, codes: float) -> Point:
        """The forward over so many codes per row."""
        operations = self.linear * codes + self.square * codes**2
        return Point(codes, self.fixed + self.each * codes, operations)

    def reading(self, codes: float, rates: Rates) -> float:
        """Seconds that the bytes take."""
        return self.at(codes).bytes / rates.bytes_per_s

    def computing(self, codes: float, rates: Rates) -> float:
        """Seconds that the operations take."""
        return self.at(codes).operations / rates.operations_per_s

    def floor(self, codes: float, rates: Rates) -> float:
        """Seconds, the larger of the two."""
        return max(self.reading(codes, rates), self.computing(codes, rates))

    def takes_over(self, rates: Rates) -> int | None:
        """The fewest codes per row whose operations take at least as long as their bytes; None
        where reading always takes longer."""
        codes = self.crossing(rates)
        return None if codes is None else max(1, math.ceil(codes - 1e-9))

    def crossing(self, rates: Rates) -> float | None:
        """Where the two take equally long, in codes per row; None where they never do."""
        square = self.square / rates.operations_per_s
        linear = self.linear / rates.operations_per_s - self.each / rates.bytes_per_s
        fixed = self.fixed / rates.bytes_per_s  # square n^2 + linear n >= fixed
        if square > 0:
            return (math.sqrt(linear**2 + 4 * square * fixed) - linear) / (2 * square)
        return fixed / linear if linear > 0 else None


def regime(growth: Growth, rates: Rates, place: str = MEMORY, where: str = "here") -> str:
    """What bounds an AR step, in a sentence; place: what is read, where: on which machine."""
    one = growth.at(1)
    reading, computing = growth.reading(1, rates), growth.computing(1, rates)
    if reading > computing:
        said = f"{_ms(reading)} for {_size(one.bytes)} at {_giga(rates.bytes_per_s)} GB/s"
        over = growth.takes_over(rates)
        more = f", and takes over from {over} codes per forward on" if over else ""
        allowed = f"arithmetic would allow {_ms(computing)}{more}."
        return f"AR is bound by {place} {where} ({said}); {allowed}"
    said = f"{_ms(computing)} for {one.operations / 1e6:,.3g} Mflop at "
    said += f"{_giga(rates.operations_per_s)} Gflop/s"
    return (
        f"AR is bound by arithmetic {where} ({said}); {place} would allow {_ms(reading)}, so a "
        "forward over n codes costs about n AR steps."
    )


def place_of(bytes_per_s: float, large_bytes_per_s: float) -> str:
    """What is read at a rate, where main memory gives the other."""
    return CACHE if bytes_per_s > FASTER * large_bytes_per_s else MEMORY


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _giga(rate: float) -> str:
    value = rate / 1e9
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _size(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
