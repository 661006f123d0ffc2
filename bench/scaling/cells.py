"""One decoder at one batch size: its calls, and the row that comes of them.

A call decodes B prompts at once; its seconds are prefill and decoding (text and pictures are not
part of it), which is the latency of every image in it, since all are done when the slowest row is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch

from bench.config.schema import StudyConfig
from bench.measure.clock import Clock
from bench.measure.memory import meter_of
from bench.report.plain import NONE
from bench.run.codes_only import codes_only
from bench.run.outcome import Failure, Outcome, attempt, decode
from bench.run.schedule import cells as study_cells
from decoders.api import Decoder, ImageModel, Sampling
from decoders.compose import build_decoder
from metrics.acceptance import from_trace
from metrics.stats import Interval, bootstrap_mean, paired_ratio


@dataclass
class Cell:
    """A decoder at a batch size, and what its calls have shown. `rival`: the baseline of the same
    temperature and guidance, if there is one. forwards: of the slowest row of each call."""

    decoder: str
    batch: int
    built: Decoder | Failure
    sampling: Sampling
    rival: str | None
    seconds: dict[int, float] = field(default_factory=dict)  # turn -> seconds of the call
    forwards: list[int] = field(default_factory=list)
    mal: list[float] = field(default_factory=list)
    peak_mb: float = math.nan
    error: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table. images_s: images a second; speedup: over the rival at this batch."""

    decoder: str
    batch: int
    temperature: float
    cfg: float
    calls: int
    latency: Interval
    images_s: Interval
    speedup: Interval
    rival: str
    mal: float
    forwards: float
    peak_mb: float
    error: str


def cells_of(config: StudyConfig, model: ImageModel, batches: Sequence[int]) -> list[Cell]:
    """Every decoder at every batch size. What cannot be built carries its failure."""
    every = study_cells(config, model.sampling)
    found = []
    for one in every:
        built = attempt(lambda one=one: build_decoder(model, one.entry.spec, one.sampling))  # type: ignore[misc]
        alike = [
            c.entry.name
            for c in every
            if c.entry.baseline
            and (c.sampling.temperature, c.sampling.cfg)
            == (one.sampling.temperature, one.sampling.cfg)
        ]
        rival = alike[0] if alike else None
        found += [Cell(one.entry.name, batch, built, one.sampling, rival) for batch in batches]
    return found


class Meter:
    """Decodes batches of a study's prompts on one clock."""

    def __init__(self, model: ImageModel, prompts: Sequence[str], seed: int) -> None:
        self.model, self.prompts, self.seed = codes_only(model), list(prompts), seed
        self.clock, self.memory = Clock(model.device), meter_of(model)

    def run(self, cell: Cell, turn: int, timed: bool = True) -> None:
        """One call on the prompts of a turn. A cell that failed is not tried again."""
        if isinstance(cell.built, Failure):
            cell.error = cell.built.error
        if cell.error:
            return
        outcome = attempt(lambda: self._decode(cell, turn))
        if isinstance(outcome, Failure):
            cell.error = outcome.error
            if self.model.device.type == "cuda":
                torch.cuda.empty_cache()  # a call that ran out of memory leaves its blocks behind
        elif timed:
            trace = outcome.generation.trace
            cell.seconds[turn] = outcome.seconds_total
            cell.forwards.append(int(trace.target_calls.max()))
            cell.mal += [image.mal for image in from_trace(trace)]
            if not cell.peak_mb >= outcome.peak_mb:  # the first, or a larger one
                cell.peak_mb = outcome.peak_mb

    def _decode(self, cell: Cell, turn: int) -> Outcome:
        if isinstance(cell.built, Failure):
            raise TypeError(cell.built.error)
        first = turn * cell.batch
        prompts = [self.prompts[i % len(self.prompts)] for i in range(first, first + cell.batch)]
        return decode(
            self.model, cell.built, prompts, self.seed, clock=self.clock, meter=self.memory
        )


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    """The rows, batch by batch."""
    known = {(cell.decoder, cell.batch): cell for cell in cells}
    batches = dict.fromkeys(cell.batch for cell in cells)
    ordered = [cell for batch in batches for cell in cells if cell.batch == batch]
    return [_row(cell, known.get((cell.rival or "", cell.batch))) for cell in ordered]


def _row(cell: Cell, rival: Cell | None) -> Row:
    latency, speedup = NONE, NONE
    if not cell.error:
        latency = bootstrap_mean(list(cell.seconds.values()))
        if rival is not None and not rival.error:
            turns = list(cell.seconds)  # neither failed, so both have all of them
            theirs, own = ([c.seconds[t] for t in turns] for c in (rival, cell))
            speedup = paired_ratio(theirs, own)
    per = Interval(*(cell.batch / x for x in (latency.value, latency.hi, latency.lo)))
    measured = not cell.error
    return Row(
        decoder=cell.decoder,
        batch=cell.batch,
        temperature=cell.sampling.temperature,
        cfg=cell.sampling.cfg,
        calls=len(cell.seconds),
        latency=latency,
        images_s=per,
        speedup=speedup,
        rival=cell.rival or "",
        mal=fmean(cell.mal) if measured else math.nan,
        forwards=fmean(cell.forwards) if measured else math.nan,
        peak_mb=cell.peak_mb if measured else math.nan,
        error=cell.error,
    )
