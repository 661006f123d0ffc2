"""A run's figures in parts: acceptance by draft depth, what confidences say of it, the figures
of a category of prompt, and how many codes target and drafter spread their mass over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from bench.analyse.figures import BY_NAME, cells
from bench.analyse.line import mass, share
from bench.analyse.paired import image_rows
from bench.analyse.run import Run
from metrics.ambiguity import RANKS
from metrics.traces import reliability, steps_by_depth

DEEPEST = 12  # depths that are shown
BY_CATEGORY = ("n_latency", "n_quality", "mal", "speedup", "clip")  # figures of a category


def by_depth(run: Run) -> Iterator[dict[str, Any]]:
    """Acceptance by decoder and draft depth d. steps: those that accepted depth d - 1; accepted:
    the share of them that accepted depth d too, with its interval over images."""
    for entry in (e for section in run.sections for e in section.decoders):
        images = entry.line.images
        levels = min(int(images["tree_depth"].max()) if len(images) else 0, DEEPEST)
        steps = steps_by_depth(images["accepted"], levels)  # [images, levels + 1]
        for at in range(levels):
            yield {
                "decoder": entry.name,
                "depth": at + 1,
                "steps": int(steps[:, at].sum()),
                **cells({"accepted": share(steps[:, at + 1], steps[:, at])}),
            }


def by_confidence(run: Run) -> Iterator[dict[str, Any]]:
    """What the confidence of a drafter says of its drafts, by decoder and depth: how many were
    tested, their mean confidence, the share that the exact rule accepts, and the expected
    calibration error; bins: as of `metrics.traces`. Nothing where no drafter has one."""
    for entry in (e for section in run.sections for e in section.decoders):
        images = entry.line.images
        sure = images[images.confidence.map(len) > 0]
        for one in reliability(zip(sure.kind, sure.step, sure.confidence, strict=True)):
            if one.depth <= DEEPEST:
                yield {"decoder": entry.name, **vars(one)}


def by_category(run: Run) -> Iterator[dict[str, Any]]:
    """The figures `BY_CATEGORY` of the prompts of each category. Speed-ups pair the blocks in which
    these were timed. Nothing where the prompts have fewer than two categories."""
    names = [name for name in run.rows.category.dropna().unique() if name]
    for entry in (e for section in run.sections for e in section.decoders):
        for name in names if len(names) > 1 else ():
            line = entry.line.category(name)
            figures = {figure: BY_NAME[figure].of(line) for figure in BY_CATEGORY}
            yield {"decoder": entry.name, "category": name} | cells(figures)


def mass_curves(run: Run) -> Iterator[dict[str, Any]]:
    """The mass of the n likeliest codes at recorded pairs: of the target, pooled over all decoders
    of a section, and of each drafter."""
    for section in run.sections:
        images = {e.name: image_rows(e.rows) for e in section.decoders if not e.failed}
        images = {name: rows for name, rows in images.items() if len(rows)}
        groups: dict[str, tuple[str, list[pd.DataFrame]]] = {}
        if images:
            groups["target"] = ("target", [*images.values()])
        for entry in (e for e in section.decoders if e.name in images):
            label = f"drafter {entry.text('drafter')}"
            groups.setdefault(label, ("drafter", []))[1].append(images[entry.name])
        for label, (of, parts) in groups.items():
            rows = pd.concat(parts)
            for at, rank in enumerate(RANKS):
                value = mass(rows, of, at).value
                if math.isfinite(value):
                    yield {"section": section.title, "of": label, "codes": rank, "mass": value}
