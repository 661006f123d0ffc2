"""One decoder of one run, as a paired comparison needs it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench.judge.paired import every_latency_row, image_rows
from bench.records.kept import FILE as JUDGED
from bench.records.kept import images_digest
from bench.report.load import load_run
from bench.report.model import Entry, ReportError, Role, Section
from metrics.stats import Interval, reseed_range

ROWS = "records.parquet"
IMAGE = ["prompt_index", "seed", "prompt"]
MACHINE = ("cpu", "gpu", "threads", "backend", "device", "dtype")


@dataclass(frozen=True)
class Side:
    """rows: all of the decoder's; baseline: those of the run's AR at the same temperature, None
    where it has none; clip: 100 cos by row of `images`, NaN where not scored; protocol: the lines
    of how they and FID were measured (`bench.judge.quality.Scores`); band: where AR's FID lies
    under other seeds, None where it was run under one; machine: what times depend on; unmeasured:
    why its times do not count, "" where they do."""

    run: str  # its folder
    decoder: str
    rows: pd.DataFrame
    baseline: pd.DataFrame | None
    is_baseline: bool
    clip: pd.Series
    protocol: Mapping[str, str]
    fid: float
    band: Interval | None
    machine: tuple[str, ...]
    unmeasured: str = ""

    @property
    def failed(self) -> int:
        return int((self.rows["status"] == "failed").sum())

    @property
    def timed(self) -> pd.DataFrame:
        return every_latency_row(self.rows)

    @property
    def images(self) -> pd.DataFrame:
        """The pictures of the quality protocol, in the order in which they were scored."""
        rows = self.rows
        drawn = rows[(rows.protocol == "quality") & (rows.status == "ok") & (rows.image != "")]
        return drawn.sort_values("prompt_index")

    def measured(self, figure: str) -> dict[str, str]:
        """The protocol lines that FID, or CLIP, depends on."""
        own = ("clip_", "crop")
        if figure == "CLIP":
            return {k: v for k, v in self.protocol.items() if k.startswith(own)}
        return {k: v for k, v in self.protocol.items() if not k.startswith(own[0])}

    def scores(self) -> pd.DataFrame:
        """Figures per image, indexed by `IMAGE`: codes per forward and CLIP score. Timed images
        where no pictures were drawn."""
        drawn = self.images if len(self.images) else image_rows(self.timed)
        found = drawn.set_index(IMAGE)[["mal"]].rename(columns={"mal": "codes per forward"})
        return found.assign(CLIP=self.clip.to_numpy() if len(self.clip) == len(found) else math.nan)


def read_sides(folder: Path) -> dict[str, Side]:
    """The decoders of a finished run by name. Raises ReportError on a folder that is none."""
    if (folder / "study.json").is_file() and not any((folder / n).exists() for n in (ROWS, "rows")):
        raise ReportError(
            f"{folder} holds tables without {ROWS}, so it cannot be compared: expected a finished "
            "run, or one that `python -m bench publish` copied with its records"
        )
    run = load_run(folder)
    extra = pd.read_parquet(folder / ROWS, columns=["prompt_id", "category", "image_hash"])
    records = run.records.join(extra[[c for c in extra if c not in run.records]])
    out = {}
    for section in run.sections:
        base = next((e for e in section.entries if e.role is Role.BASELINE), None)
        for entry in section.entries:
            if entry.role is not Role.RESEED:
                why = run.fairness[entry.name].reason if run.unmeasured(entry) else ""
                side = _side(folder, records, section, entry, base)
                out[entry.name] = replace(side, unmeasured=why)
    return out


def _side(
    folder: Path, records: pd.DataFrame, section: Section, entry: Entry, base: Entry | None
) -> Side:
    rows = records.loc[entry.records.index]
    made = [sorted({str(value) for value in rows[name]}) for name in MACHINE]
    side = Side(
        str(folder.resolve()),
        entry.name,
        rows,
        records.loc[base.records.index] if base else None,
        entry is base,
        pd.Series(dtype=float),
        {},
        entry.number("fid"),
        _band(section),
        tuple(" ".join(values) for values in made),
    )
    judged = _judged(folder, side.decoder)
    lines = judged["value"]["scores"].get("protocol", {}) if judged else {}
    return replace(side, clip=_clip(judged, side.images), protocol=lines)


def _band(section: Section) -> Interval | None:
    found = [e.number("fid") for e in section.entries if e.role is not Role.DECODER]
    known = [fid for fid in found if not math.isnan(fid)]
    return reseed_range(known) if len(known) > 1 else None


def _judged(folder: Path, decoder: str) -> dict[str, Any] | None:
    """What was judged of a decoder's pictures; None where nothing was."""
    path = folder / JUDGED
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return found.get(f"figures of {decoder}")


def _clip(judged: dict[str, Any] | None, images: pd.DataFrame) -> pd.Series:
    """CLIP scores of these images, as they were judged of these very pictures; else NaN."""
    empty = pd.Series(math.nan, index=images.index)
    if images.empty or judged is None or judged["of"] != images_digest(images):
        return empty
    each = judged["value"]["scores"]["clip_each"]
    return pd.Series(each, index=images.index) if len(each) == len(images) else empty
