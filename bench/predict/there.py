"""What a run's acceptance gives on a machine that is not here: the speed-up that it allows.

    seconds of a forward  = max(bytes / bandwidth, operations / rate) + kernels x launch
    seconds of a step     = forward over N + 1 codes + calls x drafter forward + launch of the graph
    speed-up              = `bench.cost.speed.predict` of these and of the recorded lengths

The machine's figures are its data sheet's, so a step is never slower than this: the speed-up is
*projected*. Assumed: that drafts are accepted as they were in the run, whatever the model's size;
that acceptance and bookkeeping cost no more than their launches; `KERNELS` per forward.

The papers' numbers in the same light:

    AR step of a paper  = its AR seconds per image / codes of an image
    floors              = AR step / max(bytes / bandwidth, operations / rate) of the paper's own GPU

A speed-up larger than the codes per forward says that a whole step of the method was shorter than a
step of AR, though it does more: that AR step was slower than a verification.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.compare.measured import Measured
from bench.compare.methods import Names, pairs
from bench.compare.published import Published
from bench.config.schema import LoaderConfig
from bench.cost.speed import StepSeconds, predict
from bench.cost.work import Net, Work, eagle_net, net_of
from bench.data.errors import ConfigError, unknown
from bench.predict.checkpoints import shape_of
from bench.predict.machines import Hardware
from bench.predict.recorded import Recorded, Row
from decoders.models.sizes import BYTES, RELEASED, Shape

# Of a layer: two norms, products (4), rotation, append, attention, gate; of a forward: embedding,
# norm, head, guidance, filters, drawing or verdicts.
KERNELS_PER_LAYER, KERNELS_PER_FORWARD = 10, 10
SIZE = BYTES["bfloat16"]  # of a number, on every machine that is projected to
GUIDED = 2  # rows where a source does not state the guidance: all of these models are sampled so


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
    found = shape_of(model)
    if found is None:
        known = unknown("shape of the model", model.name, RELEASED)
        raise ConfigError(f"{known}; or a model with a `preset`, such as llamagen_xl_256_random")
    return of_shape(model.name, found)


def of_shape(name: str, shape: Shape) -> Sizes:
    """The networks of a shape, in bfloat16."""
    return Sizes(name, net_of(shape, SIZE), eagle_net(shape, SIZE))


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


def forward_of(net: Net, work: Work, machine: Hardware) -> Forward:
    """A forward of a network as part of a recorded step."""
    kernels = net.layers * KERNELS_PER_LAYER + KERNELS_PER_FORWARD
    return Forward(
        reading=work.reading(machine),
        computing=work.computing(machine),
        launching=1e-6 * machine.kernel_us * kernels,
    )


def project(recorded: Recorded, sizes: Sizes, machine: Hardware) -> Row:
    """The decoder and AR on the same machine, image by image at batch 1."""
    target, drafter, rows = sizes.target, sizes.drafter, recorded.rows
    launch = 1e-6 * machine.graph_us
    ar = forward_of(target, target.work(rows), machine)
    prefix = target.work(rows, target.slots, seen=target.slots, heads=1)
    prefill = forward_of(target, prefix, machine).seconds + launch
    forward, draft, begin = ar, 0.0, 0.0
    if recorded.drafts:
        forward = forward_of(target, target.work(rows, 1 + recorded.nodes), machine)
    if recorded.calls:
        draft = recorded.calls * _call(recorded, drafter, machine).seconds
        first = drafter.work(rows, drafter.slots, seen=drafter.slots, heads=0)
        begin = forward_of(drafter, first, machine).seconds
    step = forward.seconds + draft + launch
    seconds = StepSeconds(prefill + begin, step, draft, forward.seconds, launch)
    alone = StepSeconds(prefill, ar.seconds + launch)
    made = predict(alone, seconds, recorded.reached, target.length)
    return Row(recorded, made, seconds, "", alone.step, math.nan, bound=forward.bound)


def _call(recorded: Recorded, drafter: Net, machine: Hardware) -> Forward:
    """A drafter call, the mean of a step's: they read the committed codes and the tree's."""
    codes = (1 + sum(recorded.reached) + recorded.nodes) / recorded.calls
    return forward_of(drafter, drafter.work(recorded.rows, codes, seen=drafter.half), machine)


@dataclass(frozen=True)
class Floors:
    """A published row. step: seconds of its AR step; floors: how many floors of `machine` it took,
    both NaN where they are not known, and `why`; own: the source names the machine."""

    row: Published
    machine: str
    own: bool
    step: float
    floors: float
    why: str

    @property
    def slow(self) -> bool:
        return slow(self.row)


def slow(row: Published) -> bool:
    """Whether the speed-up over AR is larger than the codes per forward."""
    figures = row.figures
    known = row.baseline == "AR" and row.method != "AR" and {"speedup", "mal"} <= set(figures)
    return known and figures["speedup"] > figures["mal"]


def ar_seconds(row: Published) -> float:
    """Seconds per image of the row's AR: its own, or what its speed-up is over; NaN otherwise."""
    own = row.figures.get("latency_s", math.nan)
    if row.method == "AR":
        return own
    return own * row.figures.get("speedup", math.nan) if row.baseline == "AR" else math.nan


def floors_of(
    rows: Iterable[Published], names: Names, machines: Sequence[Hardware], chosen: Hardware
) -> list[Floors]:
    """Published rows with the seconds of an AR, or with a speed-up that is marked. Where a source
    names no GPU, or none that is known, floors are those of the chosen machine."""
    found = []
    for row in rows:
        seconds = ar_seconds(row)
        if math.isnan(seconds) and not slow(row):
            continue
        own = next((m for m in machines if m.gpu == row.gpu), None)
        machine, size = own or chosen, sizes_named(row, names)
        step = floors = math.nan
        why = "no seconds of AR" if math.isnan(seconds) else ""
        if isinstance(size, str):
            why = size
        elif not why:
            step = seconds / size.target.length
            work = size.target.work(1 if row.cfg == 1 else GUIDED)
            floors = step / work.floor_seconds(machine)
        found.append(Floors(row, machine.name, own is not None, step, floors, why))
    return found


def sizes_named(row: Published, names: Names) -> Sizes | str:
    """The networks of a published model; why they are not known in words."""
    wanted = names.families.get(row.model, (row.model,))
    fits = [
        ours
        for ours, (name, resolution) in names.models.items()
        if name in wanted and row.resolution in (None, resolution) and ours in RELEASED
    ]
    if len(fits) == 1:
        return of_shape(fits[0], RELEASED[fits[0]][0])
    if fits:
        return f"which {row.model} is not stated"
    return f"size of {row.model or 'the model'} not known"


def ratios(
    rows: Iterable[Published], run: Sequence[Measured], names: Names, model: str
) -> Mapping[str, list[Published]]:
    """By decoder of a run the published speed-ups over AR of its method, at the size of `model`:
    rows of that model and of no other temperature. Trees and settings may differ."""
    there = [replace(row, model=model) for row in run]
    found: dict[str, list[Published]] = {}
    for row in rows:
        if "speedup" not in row.figures or row.baseline != "AR" or row.method == "AR":
            continue
        for pair in pairs(row, there, names):
            ours, theirs = pair.measured, row.temperature
            if ours is None or not pair.same_model:
                continue
            if theirs is None or math.isclose(theirs, ours.temperature):
                found.setdefault(ours.decoder, []).append(row)
    return found
