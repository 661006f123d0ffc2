"""The floor of a forward: what it must read and compute, at the machine's own rates.

Roofline model (Williams, Waterman, Patterson 2009): seconds >= max(bytes / bandwidth, operations /
rate). Of a decoder-only network with n layers of width D and a body of W parameters, on R rows of T
codes each that see S cache slots, with Z bytes a number (METHODS 2 has the notation; G query heads
share a head of keys and values):

    bytes      = Z (W + V D + 2 n R S D / G)       weights and head once, keys and values of S slots
    operations = 2 R (T W + H V D) + 4 n R T S D   products; H codes a row reach the head; attention

Bandwidth: see `MachineRates.bytes_per_s`. Activations are left out, and so is everything but matrix
products: a floor is a lower bound.
A network whose shape is not known has no floor, and says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from bench.measure.regime import Growth, Point, Rates
from bench.plan.costs import Shape
from decoders.api import ImageModel


@dataclass(frozen=True)
class Unknown:
    """Why there is no floor."""

    reason: str

    def __str__(self) -> str:
        return f"no floor known: {self.reason}"


@dataclass(frozen=True)
class Work:
    """What a forward needs. bytes: read from memory; operations: multiplications and additions."""

    bytes: float
    operations: float

    def floor_seconds(self, rates: Rates) -> float:
        """max(bytes / bandwidth, operations / rate)."""
        return max(self.bytes / rates.bytes_per_s, self.operations / rates.operations_per_s)


@dataclass(frozen=True)
class Net:
    """A network as its forward sees it. body: W parameters, head: V D, size: Z bytes a number;
    kv_width: D / G; slots: cache slots before the image's first code; length: L."""

    body: int
    head: int
    layers: int
    width: int
    kv_width: int
    slots: int
    length: int
    size: int

    @property
    def weights_bytes(self) -> int:
        """What a forward reads beside the cache."""
        return (self.body + self.head) * self.size

    @property
    def half(self) -> float:
        """S half-way through an image: the mean over its steps."""
        return self.slots + self.length / 2

    def work(
        self, rows: int, codes: float = 1, seen: float | None = None, heads: float | None = None
    ) -> Work:
        """One forward on R `rows` of T `codes`; `seen`: S, the codes' own slots included (None:
        half-way through an image); `heads`: H (None: all codes). Means over forwards may be given.
        """
        slots = self.half + codes if seen is None else seen
        last = codes if heads is None else heads
        cache = 2 * self.layers * rows * slots * self.kv_width
        products = 2 * rows * (codes * self.body + last * self.head)
        attention = 4 * self.layers * rows * codes * slots * self.width
        return Work(self.weights_bytes + self.size * cache, products + attention)

    def growth(self, rows: int) -> Growth:
        """What a forward needs by its codes per row, half-way through an image."""
        one, two = (self.work(rows, codes) for codes in (1, 2))
        return Growth.through(
            Point(1, one.bytes, one.operations), Point(2, two.bytes, two.operations)
        )


def step_bytes(net: Net, model: ImageModel) -> int:
    """What an AR step at batch 1 reads half-way through an image."""
    return round(net.work(model.sampling.guidance_rows).bytes)


def target_net(model: ImageModel) -> Net | Unknown:
    """The target of a loaded model, from its `cfg`; Unknown for a plug-in that has none, or whose
    layers hold another number of parameters than the formula says."""
    target: Any = model.target
    cfg = getattr(target, "cfg", None)
    if cfg is None:
        return Unknown(f"the target {type(target).__name__} has no `cfg` that gives its shape")
    try:
        shape = Shape.of(cfg)
    except AttributeError as error:
        return Unknown(f"the `cfg` of {type(target).__name__} lacks a field ({error})")
    layers = getattr(target, "layers", None)
    if isinstance(layers, nn.Module) and (found := parameters(layers)) != shape.blocks:
        return Unknown(
            f"the layers of {type(target).__name__} hold {found} parameters, its shape gives "
            f"{shape.blocks}"
        )
    return net_of(shape, model.dtype.itemsize)


def net_of(shape: Shape, size: int) -> Net:
    """A target of that shape; size: bytes a number."""
    return Net(
        body=shape.blocks + shape.width,
        head=shape.head,
        layers=shape.layers,
        width=shape.width,
        kv_width=shape.kv_width,
        slots=shape.prefix,
        length=shape.length,
        size=size,
    )


def drafter_net(net: Any, target: Net | Unknown) -> Net | Unknown:
    """A drafter's network that is run once a call: all its parameters but embedding tables, and an
    output head: its own where one of its products has V outputs, else the target's.

    Unknown where it has no `cfg` and `layers` like a target's (Medusa runs one head of many).
    """
    if isinstance(target, Unknown):
        return target
    cfg: Any = getattr(net, "cfg", None)
    layers: Any = getattr(net, "layers", None)
    known = isinstance(net, nn.Module) and isinstance(layers, nn.ModuleList)
    if not known or not hasattr(cfg, "width") or not hasattr(cfg, "vocab"):
        return Unknown("the drafter has no `net` with `cfg` and `layers` that is run once a call")
    tables = sum(parameters(m) for m in net.modules() if isinstance(m, nn.Embedding))
    outputs = [m for m in net.modules() if isinstance(m, nn.Linear) and m.out_features == cfg.vocab]
    head = sum(m.weight.numel() for m in outputs)
    return Net(
        body=parameters(net) - tables - head,
        head=head or target.head,
        layers=len(layers),
        width=cfg.width,
        kv_width=cfg.width // getattr(cfg, "group", 1),
        slots=max(target.slots - 1, 0),  # a drafter's prefix is a place shorter (METHODS 6)
        length=target.length,
        size=target.size,
    )


def parameters(module: nn.Module) -> int:
    """Numbers in a module's parameters, shared ones once."""
    return sum(p.numel() for p in module.parameters())
