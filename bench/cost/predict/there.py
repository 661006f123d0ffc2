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
from dataclasses import dataclass

from bench.config.schema import LoaderConfig
from bench.cost.plan.checkpoints import MODELS, shape_of_source, source_of
from bench.cost.predict.machines import Hardware
from bench.cost.predict.recorded import Recorded, Row
from bench.cost.speed import StepSeconds, predict
from bench.cost.work import Net, Work, eagle_net, net_of
from bench.data.errors import ConfigError, unknown
from decoders.models.sizes import BYTES, Shape

# Of a layer: two norms, products (4), rotation, append, attention, gate; of a forward: embedding,
# norm, head, guidance, filters, drawing or verdicts.
KERNELS_PER_LAYER, KERNELS_PER_FORWARD = 10, 10
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


def project(recorded: Recorded, sizes: Sizes, machine: Hardware, baseline: str = "") -> Row:
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
    return Row(recorded, made, seconds, baseline, alone.step, math.nan, bound=forward.bound)


def _call(recorded: Recorded, drafter: Net, machine: Hardware) -> Forward:
    """A drafter call, the mean of a step's: they read the committed codes and the tree's."""
    codes = (1 + sum(recorded.reached) + recorded.nodes) / recorded.calls
    return forward_of(drafter, drafter.work(recorded.rows, codes, seen=drafter.half), machine)
