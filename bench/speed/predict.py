"""Predicted beside measured: how well the speed model explains the rows of a run.

Acceptance is what the run recorded. Costs are measured now, apart from the run: piece by piece
(`bench.speed.costs`), or in place on an image. What the pieces leave out, the acceptance step, is
the run's own. The machine must be the run's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench import records
from bench.config import StudyConfig
from bench.console import progress
from bench.errors import BenchError, ConfigError, unknown
from bench.folder import differences, read_identity
from bench.measure.device import provenance
from bench.own_settings import at_least
from bench.speed.costs import PARTS, baseline_of, in_place, piece_by_piece
from bench.speed.measured import seconds_by_prompt
from bench.speed.model import (
    Baseline,
    Prediction,
    SpeedError,
    StepCosts,
    StepSeconds,
    TreeShape,
    predict,
    reach,
    shallower,
    step_seconds,
)
from bench.speed.parts import shape_of
from bench.study import Cell
from decoders.api import ImageModel
from decoders.compose import build_decoder
from metrics.latency import speedup
from metrics.stats import Interval

log = logging.getLogger(__name__)
COSTS = ("auto", "steps", "images")
FEWEST = 2  # latency rows of a decoder


@dataclass(frozen=True)
class PredictConfig:
    """costs: of steps alone, of whole images, or auto: steps where they run eagerly. images: timed
    a decoder, for costs=images. shorter: also what chains would do with fewer levels."""

    costs: str = "auto"
    images: int = 2
    shorter: bool = True

    def __post_init__(self) -> None:
        if self.costs not in COSTS:
            raise ConfigError(unknown("predict.costs", self.costs, COSTS))
        at_least("predict.images", self.images, 1)


@dataclass(frozen=True)
class Row:
    """A decoder of the run. measured: paired over AR; NaN for a tree that was not run. step: as
    predicted; recorded: what the run charged to a step and its parts. ar: the baseline's name, its
    step as measured now (seconds) and as the run had it."""

    decoder: str
    tree: str
    prediction: Prediction
    measured: Interval
    step: StepSeconds
    recorded: StepSeconds
    ar: tuple[str, float, float]

    @property
    def ran(self) -> bool:
        return not math.isnan(self.measured.value)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.prediction.speedup / self.measured.value - 1


def read_run(config: StudyConfig) -> pd.DataFrame:
    """Latency rows of the study's folder that came out. Raises BenchError: no run there, of another
    configuration, unfinished or damaged, without latency rows."""
    folder = Path(config.run_dir)
    found = read_identity(folder)
    if found["config_hash"] != config.hash:
        raise ConfigError(
            f"{folder} was made with other settings (there -> here): "
            f"{differences(found['config'], config.measured())}; name its study and the overrides "
            "that it was run with"
        )
    path = folder / "records.parquet"
    if not path.is_file():
        raise BenchError(f"{folder} holds no finished run; `python -m bench run` finishes it")
    rows = records.read(path)
    if rows is None:
        raise BenchError(f"{path} is damaged; `python -m bench run` with the same words mends it")
    ok = rows.to_pandas()
    ok = ok[(ok.status == "ok") & (ok.protocol == "latency")]
    if ok.empty:
        raise BenchError(f"{folder} has no timed images: it was run with latency.prompts=0")
    return ok


def same_machine(config: StudyConfig, model: ImageModel) -> None:
    """ConfigError where the run was made on another machine than this one."""
    theirs = read_identity(Path(config.run_dir))["machine"]
    ours = provenance(model.device).machine()
    if theirs != ours:
        raise ConfigError(
            f"{config.run_dir} was made on another machine (there -> here): "
            f"{differences(theirs, ours)}; costs are to be measured on the machine of the run"
        )


def rows_of(
    config: StudyConfig,
    told: PredictConfig,
    model: ImageModel,
    cells: Sequence[Cell],
    rows: pd.DataFrame,
    prompt: str,
) -> list[Row]:
    """Predictions of every decoder that drafts, section by section (one sampling, one baseline).

    prompt: what costs are measured on. Raises SpeedError and what decoders raise.
    """
    costs = told.costs
    if costs == "auto":
        eager = getattr(model.execution, "name", "eager") == "eager"
        costs = "steps" if eager else "images"
    out: list[Row] = []
    drafting = [c for c in cells if c.entry.spec.tree is not None]
    with progress(len(drafting), "costs", unit="decoder") as bar:
        for base in (c for c in cells if c.entry.baseline):
            mine = [c for c in drafting if c.sampling == base.sampling]
            if not mine or base.entry.name not in set(rows.decoder):
                continue
            section = _Section(config, told, model, rows, prompt, base)
            found = (
                section.by_pieces(mine, bar) if costs == "steps" else section.by_images(mine, bar)
            )
            out += found
    return out


@dataclass(frozen=True)
class _Section:
    """Decoders of one sampling, beside their baseline."""

    config: StudyConfig
    told: PredictConfig
    model: ImageModel
    rows: pd.DataFrame
    prompt: str
    base: Cell

    def by_pieces(self, cells: Sequence[Cell], bar: Any) -> list[Row]:
        """Costs from steps alone, measured once for each drafter."""
        out: list[Row] = []
        built = {c.key: build_decoder(self.model, c.entry.spec, c.sampling) for c in cells}
        shapes = {key: shape_of(decoder.tree) for key, decoder in built.items()}  # type: ignore[attr-defined]
        text = self.model.text.encode([self.prompt])
        curves: dict[str, StepCosts] = {}
        for cell in cells:
            bar.set_postfix_str(cell.entry.name, False)
            same = [c for c in cells if c.entry.spec.drafter == cell.entry.spec.drafter]
            key = str(cell.entry.spec.drafter)
            if key not in curves:
                drafter = built[cell.key].drafter  # type: ignore[attr-defined]
                every = [built[c.key].tree for c in same]  # type: ignore[attr-defined]
                curves[key] = piece_by_piece(self.model, drafter, cell.sampling, text, every)
            pieces, shape = curves[key], shapes[cell.key]
            recorded = recorded_step(self._mine(cell))
            if math.isnan(recorded.accept):
                raise SpeedError(
                    f"the rows of {cell.entry.name} do not tell the parts of a step apart (it was "
                    "one launch); set predict.costs=images"
                )
            baseline = Baseline(pieces.prefill, pieces.ar)
            step = step_seconds(pieces, shape, pieces.grow[shape.name], recorded.accept)
            out += self._row(cell, shape, baseline, step, recorded)
            if self.told.shorter and shape.chain:
                out += self._best_chain(cell, shape, baseline, pieces, recorded)
            bar.update()
        return out

    def by_images(self, cells: Sequence[Cell], bar: Any) -> list[Row]:
        """Costs from whole images."""
        seed, images = self.config.seed, self.told.images

        def timed(cell: Cell) -> tuple[Any, StepSeconds]:
            decoder: Any = build_decoder(self.model, cell.entry.spec, cell.sampling)
            return decoder, in_place(self.model, decoder, [self.prompt], seed, images)

        baseline = baseline_of(timed(self.base)[1])
        out: list[Row] = []
        for cell in cells:
            bar.set_postfix_str(cell.entry.name, False)
            decoder, step = timed(cell)
            recorded = recorded_step(self._mine(cell))
            out += self._row(cell, shape_of(decoder.tree), baseline, step, recorded)
            bar.update()
        return out

    def _mine(self, cell: Cell) -> pd.DataFrame:
        return self.rows[self.rows.decoder == cell.entry.name]

    def _row(
        self,
        cell: Cell,
        shape: TreeShape,
        baseline: Baseline,
        step: StepSeconds,
        recorded: StepSeconds,
    ) -> list[Row]:
        """The decoder's row; none where it timed too few images."""
        mine = self._mine(cell)
        if len(mine) < FEWEST:
            log.warning("%s timed %d images, %d are needed", cell.entry.name, len(mine), FEWEST)
            return []
        reached = reach(mine.accepted, shape.depth)
        made = predict(baseline, step, reached, self.model.target.length)
        theirs = self.rows[self.rows.decoder == self.base.entry.name]
        found = speedup(seconds_by_prompt(theirs), seconds_by_prompt(mine))
        ar = self._ar(baseline)
        return [Row(cell.entry.name, shape.name, made, found, step, recorded, ar)]

    def _ar(self, baseline: Baseline) -> tuple[str, float, float]:
        name = self.base.entry.name
        return name, baseline.step, recorded_step(self.rows[self.rows.decoder == name]).step

    def _best_chain(
        self,
        cell: Cell,
        shape: TreeShape,
        baseline: Baseline,
        pieces: StepCosts,
        recorded: StepSeconds,
    ) -> list[Row]:
        """The chain of fewer levels that would be fastest: its acceptance is that of the recorded
        chain's first levels, its acceptance step is taken to cost the same, growing its share."""
        mine = self._mine(cell)
        if len(mine) < FEWEST:
            return []
        reached, nan = reach(mine.accepted, shape.depth), math.nan
        grow = pieces.grow[shape.name]
        found: list[Row] = []
        for depth in range(1, shape.depth):
            paths = tuple((0,) * n for n in range(1, depth + 1))
            name = f"chain(depth={depth}), not run"
            cut = TreeShape(name, depth, depth, 1, (1,) * (depth - 1), paths)
            step = step_seconds(pieces, cut, grow * depth / shape.depth, recorded.accept)
            made = predict(baseline, step, shallower(reached, depth), self.model.target.length)
            ran, ar = Interval(nan, nan, nan), self._ar(baseline)
            found.append(Row(cell.entry.name, name, made, ran, step, recorded, ar))
        return [max(found, key=lambda row: row.prediction.speedup)] if found else []


def recorded_step(rows: pd.DataFrame) -> StepSeconds:
    """Mean seconds of a step's parts as a run's rows have them; NaN where they were not told apart
    (a step that is one launch)."""
    steps = float(rows.nfe.sum())

    def part(name: str) -> float:
        total = float(rows[f"seconds_{name}"].sum())
        return total / steps if total > 0 else math.nan

    whole = float((rows.seconds_total - rows.seconds_prefill).sum()) / steps
    return StepSeconds(
        prefill=float(rows.seconds_prefill.mean()),
        step=whole,
        draft=part("draft"),
        verify=part("verify"),
        accept=part("accept"),
    )


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """predicted.csv: one row a decoder; seconds are those of a step."""
    out = []
    for row in rows:
        line: dict[str, Any] = {
            "decoder": row.decoder,
            "tree": row.tree,
            "codes_a_step": row.prediction.codes,
            "steps": row.prediction.steps,
            "predicted": row.prediction.speedup,
            "measured": row.measured.value,
            "measured_lo": row.measured.lo,
            "measured_hi": row.measured.hi,
            "error": row.error,
        }
        for name in ("step", *PARTS):
            line[f"predicted_{name}"] = getattr(row.step, name)
            line[f"recorded_{name}"] = getattr(row.recorded, name) if row.ran else math.nan
        line["baseline"], line["predicted_ar"], line["recorded_ar"] = row.ar
        out.append(line)
    return pd.DataFrame(out)
