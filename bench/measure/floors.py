"""What a forward must read and compute, the floor that follows at a machine's rates, and what
bounds an AR step: reading or arithmetic.

Roofline model (Williams, Waterman, Patterson 2009): seconds >= max(bytes / bandwidth, operations /
rate). Of a decoder-only network with n layers of width D and a body of W parameters, on R rows of T
codes each that see S cache slots, with Z bytes a number (METHODS 2 has the notation; G query heads
share a head of keys and values):

    bytes      = Z (W + V D + 2 n R S D / G)       weights and head once, keys and values of S slots
    operations = 2 R (T W + H V D) + 4 n R T S D   products; H codes a row reach the head; attention

Activations are left out, and so is everything but matrix products: a floor is a lower bound. Drafts
pay where an AR step waits for memory, since a forward over more codes then costs little more.
No torch is imported before a loaded network is looked at, so that a report needs none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn

    from decoders.api import ImageModel

MEMORY, CACHE = "memory", "the processor's cache"
FASTER = 1.5  # a rate so far above main memory's is a cache's


class Rates(Protocol):
    """What a floor needs of a machine."""

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

    def reading(self, rates: Rates) -> float:
        """Seconds that the bytes take."""
        return self.bytes / rates.bytes_per_s

    def computing(self, rates: Rates) -> float:
        """Seconds that the operations take."""
        return self.operations / rates.operations_per_s

    def floor_seconds(self, rates: Rates) -> float:
        """The larger of the two."""
        return max(self.reading(rates), self.computing(rates))


@dataclass(frozen=True)
class Growth:
    """A forward over n codes per row, by n: bytes `fixed` + `each` n (weights and head once, a key
    and a value per code), operations `linear` n + `square` n^2 (products, and attention of every
    code to every other). Two forwards give the whole curve."""

    fixed: float
    each: float
    linear: float
    square: float

    @classmethod
    def through(cls, one: Work, codes: float = 1, other: Work | None = None) -> Growth:
        """From the forwards over one code and over `codes` codes. From the first alone: bytes that
        stay as they are and operations that grow with the codes, nearly right for few codes."""
        if other is None:
            return cls(one.bytes, 0.0, one.operations, 0.0)
        each = (other.bytes - one.bytes) / (codes - 1)
        square = (other.operations / codes - one.operations) / (codes - 1)
        return cls(one.bytes - each, each, one.operations - square, square)

    def at(self, codes: float) -> Work:
        """The forward over so many codes per row."""
        operations = self.linear * codes + self.square * codes**2
        return Work(self.fixed + self.each * codes, operations)

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


def regime(growth: Growth, rates: Rates, place: str = MEMORY) -> str:
    """What bounds an AR step, in a sentence; place: what is read."""
    one = growth.at(1)
    reading, computing = one.reading(rates), one.computing(rates)
    if reading > computing:
        said = f"{_ms(reading)} for {_size(one.bytes)} at {_giga(rates.bytes_per_s)} GB/s"
        over = growth.takes_over(rates)
        more = f", and takes over from {over} codes per forward on" if over else ""
        allowed = f"arithmetic would allow {_ms(computing)}{more}."
        return f"AR is bound by {place} here ({said}); {allowed}"
    said = f"{_ms(computing)} for {one.operations / 1e6:,.3g} Mflop at "
    said += f"{_giga(rates.operations_per_s)} Gflop/s"
    return (
        f"AR is bound by arithmetic here ({said}); {place} would allow {_ms(reading)}, so a "
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
        """What a forward reads, but for the cache."""
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


def step_bytes(net: Net, model: ImageModel) -> int:
    """What an AR step at batch 1 reads half-way through an image."""
    return round(net.work(model.sampling.guidance_rows).bytes)


def target_net(model: ImageModel) -> Net | Unknown:
    """The target of a loaded model, from its `cfg`; Unknown for a plug-in that has none, or whose
    layers hold another number of parameters than the formula says."""
    from torch import nn

    target: Any = model.target
    cfg = getattr(target, "cfg", None)
    if cfg is None:
        return Unknown(f"the target {type(target).__name__} has no `cfg` that gives its shape")
    try:
        layers, heads = cfg.layers * layer_parameters(cfg), head_parameters(cfg)
        width, slots, length = cfg.width, cfg.prefix, cfg.length
    except AttributeError as error:
        return Unknown(f"the `cfg` of {type(target).__name__} lacks a field ({error})")
    own = getattr(target, "layers", None)
    if isinstance(own, nn.Module) and (found := parameters(own)) != layers:
        return Unknown(
            f"the layers of {type(target).__name__} hold {found} parameters, its shape gives "
            f"{layers}"
        )
    return Net(
        body=layers + width,
        head=heads,
        layers=cfg.layers,
        width=width,
        kv_width=width // cfg.group,
        slots=slots,
        length=length,
        size=model.dtype.itemsize,
    )


def layer_parameters(cfg: Any) -> int:
    """2 D^2 + 2 D^2 / G (attention) + 3 D F (SwiGLU) + 2 D (norms); + 2 D + 2 D / G (scales and
    shifts of queries and keys) where they are normalised."""
    width, shared = cfg.width, cfg.width // cfg.group
    norms = 2 * width + (2 * (width + shared) if cfg.qk_norm else 0)
    return int(width * (2 * width + 2 * shared + 3 * cfg.ffn) + norms)


def head_parameters(cfg: Any) -> int:
    """V D; with a hidden layer (Janus) D^2 + D more, and V biases."""
    hidden = cfg.width**2 + cfg.width + cfg.vocab if cfg.head == "mlp" else 0
    return int(cfg.vocab * cfg.width + hidden)


def drafter_net(net: Any, target: Net | Unknown) -> Net | Unknown:
    """A drafter's network that is run once a call: all its parameters but embedding tables, and an
    output head: its own where one of its products has V outputs, else the target's.

    Unknown where it has no `cfg` and `layers` like a target's (Medusa runs one head of many).
    """
    from torch import nn

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
    return replace(
        target,
        body=parameters(net) - tables - head,
        head=head or target.head,
        layers=len(layers),
        width=cfg.width,
        kv_width=cfg.width // getattr(cfg, "group", 1),
        slots=max(target.slots - 1, 0),
    )


def parameters(module: nn.Module) -> int:
    """Numbers in a module's parameters, shared ones once."""
    return sum(p.numel() for p in module.parameters())
