"""The papers' numbers in the light of the machines that they were measured on.

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
from bench.compare.methods import Names, Pair, pairs
from bench.compare.published import Published
from bench.cost.plan.checkpoints import MODELS
from bench.cost.predict.machines import Hardware
from bench.cost.predict.there import Sizes, of_shape

GUIDED = 2  # rows where a source does not state the guidance: all of these models are sampled so


@dataclass(frozen=True)
class Floors:
    """A published row. step, floor: seconds of its AR step and of its floor on `machine`, NaN where
    they are not known, and `why`; own: the source names the machine."""

    row: Published
    machine: str
    own: bool
    step: float = math.nan
    floor: float = math.nan
    why: str = ""

    @property
    def floors(self) -> float:
        """How many floors the step took."""
        return self.step / self.floor

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
    if "latency_s" not in row.figures:
        return math.nan
    if row.method == "AR":
        return row.figures["latency_s"]
    if row.baseline == "AR" and "speedup" in row.figures:
        return row.figures["latency_s"] * row.figures["speedup"]
    return math.nan


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
        one = Floors(row, machine.name, own is not None)
        if isinstance(size, str):
            one = replace(one, why=size)
        elif math.isnan(seconds):
            one = replace(one, why="no seconds of AR")
        else:
            floor = floor_seconds(row, size, machine)
            one = replace(one, step=seconds / size.target.length, floor=floor)
        found.append(one)
    return found


def floor_seconds(row: Published, sizes: Sizes, machine: Hardware) -> float:
    """The floor of an AR step of the row's model."""
    rows = 1 if row.cfg == 1 else GUIDED
    return sizes.target.work(rows).floor_seconds(machine)


def sizes_named(row: Published, names: Names) -> Sizes | str:
    """The networks of a published model; why they are not known in words."""
    wanted = names.families.get(row.model, (row.model,))
    fits = [
        ours
        for ours, (name, resolution) in names.models.items()
        if name in wanted and row.resolution in (None, resolution) and ours in MODELS
    ]
    if len(fits) == 1:
        return of_shape(fits[0], MODELS[fits[0]].shape)
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
            if pair.measured is not None and _alike(pair, pair.measured):
                found.setdefault(pair.measured.decoder, []).append(row)
    return found


def _alike(pair: Pair, measured: Measured) -> bool:
    published = pair.published.temperature
    same = published is None or math.isclose(published, measured.temperature)
    return pair.same_model and same
