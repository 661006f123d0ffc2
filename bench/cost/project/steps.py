"""What a run's acceptance gives on a machine that is not here: the speed-up that it allows.

    seconds of a forward  = max(bytes / bandwidth, operations / rate) + kernels x launch
    seconds of a step     = forward over N + 1 codes + calls x drafter forward + launch of the graph
    speed-up              = `bench.cost.speed.predict` of these and of the recorded lengths

The machine's figures are its data sheet's, so a step is never slower than this: the speed-up is
*projected*. Assumed: that drafts are accepted as they were in the run, whatever the model's size;
that acceptance and bookkeeping cost no more than their launches; `KERNELS` per forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.config.schema import LoaderConfig
from bench.cost.plan.checkpoints import MODELS, shape_of_source, source_of
from bench.cost.project.settings import Hardware
from bench.cost.speed import Prediction, StepSeconds, predict, reach
from bench.cost.work import Net, Work, eagle_net, net_of
from bench.data.errors import BenchError, ConfigError, unknown
from bench.judge.paired import image_rows, latency_rows, paired_speedup
from decoders.models.sizes import BYTES, Shape
from metrics.stats import Interval

# Of a layer: two norms, products (4), rotation, append, attention, gate; of a forward: embedding,
# norm, head, guidance, filters, drawing or verdicts.
KERNELS_PER_LAYER, KERNELS_PER_FORWARD = 10, 10
NOT_TIMED = Interval(math.nan, math.nan, math.nan)
SIZE = BYTES["bfloat16"]  # of a number, on every machine that is projected to


@dataclass(frozen=True)
class Sizes:
    """A model's target, and an EAGLE drafter of its width."""

    name: str
    target: Net
    drafter: Net


def sizes_of(model: LoaderConfig) -> Sizes:
    """From a preset of random weights, which has the released model's name and size, a folder on
    this disk or a public checkpoint's figures: nothing is loaded. Raises ConfigError where the
    shape of a model is not known so."""
    preset = model.kwargs.get("preset")
    if isinstance(preset, str):
        from decoders.models.unweighted import config_of

        return of_shape(preset, Shape.of(config_of(preset, model.kwargs.get("grid"))))
    source, usual, _ = source_of(model)
    found = shape_of_source(model, source, usual.shape if usual else None)
    if found is None:
        known = unknown("shape of the model", model.name, MODELS)
        raise ConfigError(f"{known}; or a model with a `preset`, such as llamagen_xl_256_random")
    return of_shape(model.name, found)


def of_shape(name: str, shape: Shape) -> Sizes:
    """The networks of a shape, in bfloat16."""
    return Sizes(name, net_of(shape, SIZE), eagle_net(shape, SIZE))


@dataclass(frozen=True)
class Recorded:
    """What a run recorded of a decoder. reached: P(accepted >= d); nodes: N; calls: of the drafter
    in a step; rows: guidance rows; speedup: as measured where the run was made."""

    decoder: str
    tree: str
    temperature: float
    rows: int
    images: int
    reached: tuple[float, ...]
    nodes: int
    calls: float
    speedup: Interval

    @property
    def drafts(self) -> bool:
        """Whether a forward verifies more than one code."""
        return self.nodes > 0


@dataclass(frozen=True)
class Forward:
    """Seconds of a forward: what it reads, what it computes, what its kernels take to start."""

    reading: float
    computing: float
    launching: float

    @property
    def seconds(self) -> float:
        return max(self.reading, self.computing) + self.launching

    @property
    def bound(self) -> str:
        """What takes longest."""
        most = max(self.reading, self.computing, self.launching)
        names = {self.launching: "launches", self.computing: "arithmetic", self.reading: "memory"}
        return names[most]


@dataclass(frozen=True)
class Projected:
    """A decoder on the machine. forward: the target's (of AR: an AR step); draft: seconds of
    drafting in a step; step: all of it."""

    recorded: Recorded
    forward: Forward
    draft: float
    step: float
    prediction: Prediction


def forward_of(net: Net, work: Work, machine: Hardware) -> Forward:
    """A forward of a network as part of a recorded step."""
    kernels = net.layers * KERNELS_PER_LAYER + KERNELS_PER_FORWARD
    return Forward(
        reading=work.reading(machine),
        computing=work.computing(machine),
        launching=1e-6 * machine.kernel_us * kernels,
    )


def project(recorded: Recorded, sizes: Sizes, machine: Hardware) -> Projected:
    """The decoder and AR on the same machine, image by image at batch 1."""
    target, drafter, rows = sizes.target, sizes.drafter, recorded.rows
    launch = 1e-6 * machine.graph_us
    ar = forward_of(target, target.work(rows), machine)
    prefix = target.work(rows, target.slots, seen=target.slots, heads=1)
    prefill = forward_of(target, prefix, machine).seconds + launch
    baseline = StepSeconds(prefill, ar.seconds + launch)
    forward, draft, begin = ar, 0.0, 0.0
    if recorded.drafts:
        forward = forward_of(target, target.work(rows, 1 + recorded.nodes), machine)
    if recorded.calls:
        draft = recorded.calls * _call(recorded, drafter, machine).seconds
        first = drafter.work(rows, drafter.slots, seen=drafter.slots, heads=0)
        begin = forward_of(drafter, first, machine).seconds
    step = forward.seconds + draft + launch
    seconds = StepSeconds(prefill + begin, step, draft, forward.seconds)
    made = predict(baseline, seconds, recorded.reached, target.length)
    return Projected(recorded, forward, draft, step, made)


def _call(recorded: Recorded, drafter: Net, machine: Hardware) -> Forward:
    """A drafter call, the mean of a step's: they read the committed codes and the tree's."""
    codes = (1 + sum(recorded.reached) + recorded.nodes) / recorded.calls
    return forward_of(drafter, drafter.work(recorded.rows, codes, seen=drafter.half), machine)


def recorded_of(rows: pd.DataFrame, baselines: Sequence[str]) -> list[Recorded]:
    """Every decoder of a run with an image that came out, in the run's order. Of images that were
    timed where there are any, else of those for quality. Raises BenchError where none came out."""
    ok = rows[(rows.status == "ok") & (rows.protocol != "floor") & (rows.nfe > 0)]
    if ok.empty:
        raise BenchError("no image of this run came out: there is no acceptance to project from")
    found = []
    for name in ok.decoder.unique():
        timed, every = (f(ok[ok.decoder == name]) for f in (latency_rows, image_rows))
        used = timed if len(timed) else every
        found.append(_recorded(str(name), used, _speedup(name, ok, baselines)))
    return found


def _recorded(name: str, rows: pd.DataFrame, speedup: Interval) -> Recorded:
    first: Any = rows.iloc[0]
    nodes, lengths = int(rows.tree_nodes.max()), [list(image) for image in rows.accepted]
    deepest = max((max(image, default=0) for image in lengths), default=0)
    depth = max(int(rows.tree_depth.max()), deepest)
    return Recorded(
        decoder=name,
        tree=str(first["tree"]),
        temperature=float(first["temperature"]),
        rows=1 if float(first["cfg"]) == 1 else 2,
        images=len(rows),
        reached=reach(lengths, depth) if depth else (),
        nodes=nodes,
        calls=float(rows.drafter_calls.sum() / rows.nfe.sum()),
        speedup=speedup,
    )


def _speedup(name: str, rows: pd.DataFrame, baselines: Sequence[str]) -> Interval:
    """Over the baseline of the same temperature and guidance; NaN where one of them was not timed,
    or for the baseline itself."""
    mine = rows[rows.decoder == name]
    for base in baselines:
        theirs = rows[rows.decoder == base]
        if base != name and len(theirs) and _settings(theirs) == _settings(mine):
            return paired_speedup(theirs, mine) or NOT_TIMED
    return NOT_TIMED


def _settings(rows: pd.DataFrame) -> tuple[float, float]:
    """Temperature and guidance of a decoder's rows."""
    return float(rows.temperature.iloc[0]), float(rows.cfg.iloc[0])
